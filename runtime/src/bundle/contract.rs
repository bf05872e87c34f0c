//! What a bundle says of itself, as JSON: the manifest, and a contract for each kernel.

use std::collections::BTreeMap;

use flashtile_codegen::Schedule;
use flashtile_dsl::ir::{Binding, Elem, ParamKind};
use serde::{Deserialize, Serialize};

use crate::device::Variant;
use crate::kernel::BoundKernel;
use crate::lowering::CallingContract;
use crate::toolchain::PtxasReport;

/// Version of these files.
pub const FORMAT: u32 = 1;
/// Name of the manifest, which lists all other files.
pub const MANIFEST: &str = "manifest.json";

/// What a bundle consists of, and what made it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the files.
    pub format: u32,
    /// Version of flashtile whose code generator made the code.
    pub flashtile: String,
    /// Versions of NVRTC that compiled it.
    pub nvrtc: Vec<String>,
    /// Names of the kernels.
    pub kernels: Vec<String>,
    /// Every other file, by its path in the bundle.
    pub files: BTreeMap<String, FileEntry>,
}

/// A file of a bundle.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileEntry {
    /// SHA-256 of its bytes, in hexadecimal digits.
    pub sha256: String,
    /// Its length.
    pub bytes: u64,
}

/// A kernel of a bundle: its text, its parameters, and its code.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct KernelContract {
    /// Name in the bundle, which is that of the C function: the kernel's name, types and constants.
    pub name: String,
    /// Name in the kernel text.
    pub kernel: String,
    /// Name of the file of the text.
    pub file: String,
    /// The kernel text. [`crate::Bundle`] reads it, so that a launch is checked as any other.
    pub text: String,
    /// Line of the file on which the text begins.
    pub first_line: u32,
    /// What its generics are bound to.
    pub binding: Binding,
    /// Parameters, in order.
    pub parameters: Vec<Parameter>,
    /// Code.
    pub architectures: Vec<ArchContract>,
}

/// A parameter, for readers of the contract.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// Element type of a tensor, or type of a scalar.
    pub elem: Elem,
    /// Extents over the sizes of the kernel; none of a scalar.
    pub shape: Option<Vec<String>>,
    /// Whether the kernel writes it.
    pub output: bool,
}

/// The code of a kernel for an architecture.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ArchContract {
    /// Name of the architecture.
    pub arch: String,
    /// Code, which variants refer to by its place.
    pub code: Vec<CodeContract>,
    /// Which code runs for which arguments.
    pub variants: Vec<Variant>,
}

/// Code in files of the bundle, and how to call it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CodeContract {
    /// File of the machine code.
    pub cubin: String,
    /// File of the PTX.
    pub ptx: String,
    /// Version of NVRTC, major and minor.
    pub nvrtc: (u32, u32),
    /// Hash of the CUDA C.
    pub source_hash: String,
    /// Its schedule, for readers.
    pub schedule: String,
    /// Its schedule.
    pub knobs: Schedule,
    /// Resources as compiled.
    pub report: PtxasReport,
    /// How to call it.
    #[serde(flatten)]
    pub contract: CallingContract,
}

impl KernelContract {
    /// Of a kernel without code.
    pub(super) fn of(kernel: &BoundKernel) -> Self {
        let (ir, binding) = (kernel.ir(), kernel.binding());
        let parameter = |p: &flashtile_dsl::ir::Param| {
            let name = p.name.clone();
            match &p.kind {
                ParamKind::Tensor(t) => {
                    let shape = Some(t.shape.iter().map(|extent| ir.size_text(extent)).collect());
                    Parameter { name, elem: binding.elem(ir, t.elem), shape, output: t.direction.is_written() }
                }
                ParamKind::Scalar(elem) => Parameter { name, elem: binding.elem(ir, *elem), shape: None, output: false },
            }
        };
        Self {
            name: name(kernel),
            kernel: ir.name.clone(),
            file: ir.source.name.clone(),
            text: ir.source.text.to_string(),
            first_line: ir.source.first_line,
            binding: binding.clone(),
            parameters: ir.params.values().map(parameter).collect(),
            architectures: Vec::new(),
        }
    }
}

/// Name of a bound kernel in a bundle: `attention_bf16_d128`. A kernel without types and constants
/// is called `NAME_kernel`, since C may have its name for something else: `double`, `memcpy`.
pub(super) fn name(kernel: &BoundKernel) -> String {
    let binding = kernel.binding();
    let types = binding.types.values().map(|elem| format!("_{}", elem.name()));
    // A type parameter each would be named; those of one type are told once.
    let mut types: Vec<String> = types.collect();
    types.dedup();
    let consts = binding.consts.iter().map(|(name, value)| format!("_{}{value}", name.to_lowercase()));
    let of = types.concat() + &consts.collect::<String>();
    let of = if of.is_empty() { "_kernel" } else { &of };
    kernel.ir().name.clone() + of
}

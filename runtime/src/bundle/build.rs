//! Makes a bundle: for each kernel and architecture, code for the shapes that are asked for, and
//! code for all other arguments.

use std::collections::BTreeMap;
use std::path::Path;

use flashtile_codegen::{Arch, Facts, Ranker, Schedule, wide_tensors};
use flashtile_dsl::analysis::reach::Reach;
use flashtile_dsl::ir::ParamKind;

use super::contract::{ArchContract, CodeContract, KernelContract, Manifest};
use super::launcher;
use super::write;
use crate::cache::{Cache, DeviceKey};
use crate::device::{Choice, Origin, Variant};
use crate::error::{BundleError, Result};
use crate::kernel::BoundKernel;
use crate::lowering::{self, Code, Machine};
use crate::toolchain::Toolchain;
use crate::tuner::facts_of;
use flashtile_dsl::inputs::InputData;

/// Code that a bundle is to have: for these facts and sizes.
#[derive(Clone, PartialEq, Debug)]
pub struct Wanted {
    /// Facts that it takes for granted.
    pub facts: Facts,
    /// The run-time sizes that its schedule is chosen for.
    pub sizes: BTreeMap<String, i64>,
}

/// What code is made for: an architecture, and the machine of the cost model and of tuning records.
#[derive(Clone, PartialEq, Debug)]
pub struct BundleTarget {
    /// The architecture.
    pub arch: &'static Arch,
    /// The machine that the cost model takes it for.
    pub machine: Machine,
    /// The device whose tuning records count.
    pub device: DeviceKey,
}

/// A bundle in the making.
#[derive(Debug)]
pub struct BundleBuilder {
    toolchain: Toolchain,
    cache: Cache,
    kernels: Vec<(BoundKernel, KernelContract)>,
    /// Cubins and PTX, by the name of their file.
    files: BTreeMap<String, Vec<u8>>,
}

impl Wanted {
    /// Code for packed tensors of these shapes with positive scalars.
    ///
    /// # Errors
    /// A size is unknown, missing or impossible.
    pub fn shape(kernel: &BoundKernel, sizes: &BTreeMap<String, i64>) -> Result<Self> {
        Ok(Self { facts: facts_of(kernel, sizes, &InputData::default())?, sizes: sizes.clone() })
    }

    /// Code for all arguments that a launch of the kernel accepts; its schedule is chosen for these
    /// sizes.
    pub fn general(kernel: &BoundKernel, sizes: &BTreeMap<String, i64>) -> Self {
        let (ir, binding) = (kernel.ir(), kernel.binding());
        let moved = ir.params.values().zip(wide_tensors(ir)).filter(|(_, wide)| *wide);
        let natural = moved.filter_map(|(p, _)| match &p.kind {
            ParamKind::Tensor(t) => Some((p.name.clone(), binding.elem(ir, t.elem).bytes()? as u32)),
            ParamKind::Scalar(_) => None,
        });
        let wide = Reach::new(ir, binding).may_be_wide();
        Self { facts: Facts { wide, ..Facts::none() }.with_alignments(natural), sizes: sizes.clone() }
    }
}

impl BundleBuilder {
    /// An empty bundle. Code is compiled by this toolchain, or taken from this cache, which has the
    /// tuning records too.
    pub fn new(toolchain: Toolchain, cache: Cache) -> Self {
        Self { toolchain, cache, kernels: Vec::new(), files: BTreeMap::new() }
    }

    /// Compiles code and adds it. Without a schedule, that of [`code_of_launch`].
    ///
    /// # Errors
    /// [`BundleError::Unsupported`] if a bundle cannot carry the kernel; the schedule is not legal;
    /// NVRTC failed.
    pub fn add(
        &mut self,
        kernel: &BoundKernel,
        target: &BundleTarget,
        wanted: &Wanted,
        schedule: Option<&Schedule>,
    ) -> Result<()> {
        let at = self.place(kernel)?;
        let (code, origin) = match schedule {
            Some(schedule) => {
                let code = lowering::compile(kernel, &wanted.facts, schedule, target.arch, &self.toolchain, &self.cache)?;
                (code, Origin::Given)
            }
            None => code_of_launch(kernel, target, wanted, &self.toolchain, &self.cache)?,
        };
        let contract = &mut self.kernels[at].1;
        launcher::check(kernel, &code.contract)?;
        let arch = of_arch(contract, target.arch.name);
        let hash = &code.module.key.source_hash;
        let known = contract.architectures[arch].code.iter().position(|own| own.source_hash == *hash);
        let place = known.unwrap_or_else(|| {
            let stem = format!("{}.{}.{}", contract.name, target.arch.name, contract.architectures[arch].code.len());
            let (cubin, ptx) = (format!("{stem}.cubin"), format!("{stem}.ptx"));
            self.files.insert(cubin.clone(), code.module.cubin.clone());
            self.files.insert(ptx.clone(), code.module.ptx.clone().into_bytes());
            let all = &mut contract.architectures[arch].code;
            all.push(CodeContract {
                cubin,
                ptx,
                nvrtc: code.module.nvrtc,
                source_hash: hash.clone(),
                schedule: code.schedule.to_string(),
                knobs: code.schedule.clone(),
                report: code.module.report.clone(),
                contract: code.contract.clone(),
            });
            all.len() - 1
        });
        // What the code does not use is not asked of arguments.
        let foldable = wanted.facts.foldable && code.contract.folded.is_some();
        let facts = Facts { foldable, ..wanted.facts.clone() };
        contract.architectures[arch].variants.push(Variant { facts, sizes: wanted.sizes.clone(), origin, code: place });
        Ok(())
    }

    /// The kernels so far.
    #[cfg(test)]
    pub(super) fn kernels(&self) -> &[(BoundKernel, KernelContract)] {
        &self.kernels
    }

    /// Writes the bundle into a directory, in place of a bundle that was there.
    ///
    /// # Errors
    /// [`BundleError::NotEmpty`], [`BundleError::Io`].
    pub fn write(self, directory: &Path) -> Result<Manifest> {
        let mut files = self.files;
        launcher::write(&self.kernels, &mut files)?;
        let contracts: Vec<KernelContract> = self.kernels.into_iter().map(|(_, contract)| contract).collect();
        Ok(write::write(directory, &contracts, files)?)
    }

    /// Place of a kernel, which is new or was added before.
    fn place(&mut self, kernel: &BoundKernel) -> Result<usize, BundleError> {
        if kernel.ir().source.text.is_empty() {
            let reason =
                "it has no text, which Bundle::load reads; write it as text with flashtile inspect --emit text".to_owned();
            return Err(BundleError::Unsupported { kernel: kernel.ir().name.clone(), reason });
        }
        let contract = KernelContract::of(kernel);
        match self.kernels.iter().position(|(_, own)| own.name == contract.name) {
            Some(at) if self.kernels[at].0 == *kernel => Ok(at),
            Some(_) => Err(BundleError::Twice { name: contract.name }),
            None => {
                self.kernels.push((kernel.clone(), contract));
                Ok(self.kernels.len() - 1)
            }
        }
    }
}

/// The code that a launch takes on a device of this kind, and where its schedule comes from: what
/// tuning found for these sizes or near ones, else, of what the cost model ranks, the fastest with
/// what its code keeps in memory.
///
/// # Errors
/// No schedule is legal; NVRTC failed.
pub fn code_of_launch(
    kernel: &BoundKernel,
    target: &BundleTarget,
    wanted: &Wanted,
    toolchain: &Toolchain,
    cache: &Cache,
) -> Result<(Code, Origin)> {
    let choice = Choice {
        kernel,
        arch: target.arch,
        device: target.device.clone(),
        machine: target.machine,
        cache,
        ranker: &Ranker::new(&kernel.instance(wanted.facts.clone()), target.arch),
        facts: &wanted.facts,
        sizes: &wanted.sizes,
    };
    choice.code(toolchain)
}

/// Place of an architecture in a contract.
fn of_arch(contract: &mut KernelContract, arch: &str) -> usize {
    let all = &mut contract.architectures;
    all.iter().position(|own| own.arch == arch).unwrap_or_else(|| {
        all.push(ArchContract { arch: arch.to_owned(), code: Vec::new(), variants: Vec::new() });
        all.len() - 1
    })
}

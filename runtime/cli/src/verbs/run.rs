//! `flashtile run`: a kernel on tensors of a safetensors file. A tensor has its parameter's name.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use flashtile::{AnyTensor, Argument, Binding, Device, Elem, Kernel, LaunchOptions};
use flashtile_dsl::ir::{self, ParamKind, SizeExpr, SizeId, SizeKind};
use serde_json::json;

use crate::failure::{Failure, Result};
use crate::files::{self, Written};
use crate::flags::GlobalFlags;
use crate::output::Output;
use crate::settings::Numbers;
use crate::subject::{DType, Subject, SubjectFlags, file_of};
use crate::target::{EmulationFlags, PlanFlags, launch_options};
use crate::tensors::{self, FileTensor, TensorFile};

/// Flags of `flashtile run`.
#[derive(Args, Debug)]
pub struct Flags {
    /// A built-in's name (see `flashtile list`), FILE, or FILE:NAME
    kernel: String,
    /// Safetensors file with the inputs, each named as its parameter
    #[arg(long = "in", value_name = "FILE")]
    input: PathBuf,
    /// Safetensors file to write the outputs to; it is written whole or not at all
    #[arg(long = "out", value_name = "FILE")]
    output: PathBuf,
    /// Scalars, and sizes that no input determines, such as scale=0.125; may be repeated
    #[arg(long, value_name = "NAME=VALUE,..", allow_hyphen_values = true)]
    set: Vec<Numbers>,
    /// Element type of the kernel's type parameters that no input has, such as that of an output alone
    #[arg(long, value_enum)]
    dtype: Option<DType>,
    /// Device: cpu, cuda:N or emulator; by default the best one there is
    #[arg(long)]
    device: Option<String>,
    /// Generate code for this architecture, which may be older than the GPU's
    #[arg(long, value_name = "ARCH")]
    arch: Option<String>,
    /// Knobs of the schedule to run with, on top of the defaults; without it the tuned schedule or the model's choice
    #[arg(long, value_name = "KNOB=VALUE,..")]
    schedule: Option<String>,
    #[command(flatten)]
    plan: PlanFlags,
    #[command(flatten)]
    emulation: EmulationFlags,
}

/// An argument, placed on the device.
enum Placed {
    Input(AnyTensor),
    Output(AnyTensor),
    F32(f32),
    I32(i32),
}

/// Runs the kernel.
pub fn run(flags: &Flags, global: &GlobalFlags, output: &mut Output) -> Result<()> {
    let named = SubjectFlags { kernel: flags.kernel.clone(), dtype: DType::Bf16, set: flags.set.clone(), shape: Vec::new() };
    let mut subject = named.open()?;
    let device = match &flags.device {
        Some(name) => name.parse()?,
        None => Device::best(),
    };
    let read = [
        ("the inputs", Some(flags.input.as_path())),
        ("the kernel", file_of(&flags.kernel)),
        ("the plan", flags.plan.path()),
        ("the code", flags.emulation.code()),
    ];
    files::keep_apart("--out", &flags.output, &read)?;
    // Inputs are read and kernels launched only where the outputs have a place.
    files::check_writable(&flags.output)?;
    let file = TensorFile::open(&flags.input)?;
    let kernel = subject.kernel.clone();
    let inputs = inputs(&file, kernel.ir())?;
    let binding = bind(&mut subject, &inputs, flags.dtype)?;
    for name in file.names()?.iter().filter(|name| !inputs.contains_key(name.as_str())) {
        output.note(format!("note: {} holds `{name}`, which is no input of `{}`", flags.input.display(), kernel.name()));
    }
    let placed = place(&subject, &binding, &inputs, &device)?;
    let options = launch_options(global, &device, flags.arch.as_deref(), flags.schedule.as_deref())?;
    let options = LaunchOptions { emulation: flags.emulation.emulation(&device)?, ..options };
    let bound = kernel.bind_to(binding)?;
    let options = flags.plan.apply(options, &device, &bound)?;
    let loaded = bound.on_with(&device, options)?;
    let arguments: Vec<Argument<'_>> = placed.iter().map(Placed::argument).collect();
    loaded.launch(&arguments)?;
    device.synchronize()?;
    let outputs: Vec<(String, AnyTensor)> = kernel
        .ir()
        .params
        .values()
        .zip(&placed)
        .filter_map(|(param, placed)| match placed {
            Placed::Output(tensor) => Some((param.name.clone(), tensor.clone())),
            _ => None,
        })
        .collect();
    match tensors::write(&flags.output, &outputs)? {
        // What is said of a file would be among its bytes.
        Written::StandardOutput => Ok(()),
        _ => report(flags, &kernel, &device, &outputs, output),
    }
}

fn report(flags: &Flags, kernel: &Kernel, device: &Device, outputs: &[(String, AnyTensor)], output: &mut Output) -> Result<()> {
    let path = flags.output.display();
    if output.json {
        let tensors: Vec<_> =
            outputs.iter().map(|(name, t)| json!({ "name": name, "dtype": t.elem().name(), "shape": t.shape() })).collect();
        let device = device.to_string();
        return output.json(&json!({ "kernel": kernel.name(), "device": device, "out": flags.output, "tensors": tensors }));
    }
    for (name, tensor) in outputs {
        output.text(format!("{path}: {name} {} {:?}", tensor.elem().name(), tensor.shape()))?;
    }
    Ok(())
}

impl Placed {
    fn argument(&self) -> Argument<'_> {
        match self {
            Placed::Input(tensor) => Argument::Input(tensor),
            Placed::Output(tensor) => Argument::Output(tensor),
            Placed::F32(x) => Argument::F32(*x),
            Placed::I32(x) => Argument::I32(*x),
        }
    }
}

/// The inputs by name, every one of which must be in the file.
fn inputs<'f>(file: &'f TensorFile, ir: &ir::Kernel) -> Result<BTreeMap<String, FileTensor<'f>>> {
    let mut inputs = BTreeMap::new();
    for param in ir.params.values() {
        if let ParamKind::Tensor(declared) = &param.kind
            && declared.direction.is_read()
        {
            inputs.insert(param.name.clone(), file.input(ir, param, declared)?);
        }
    }
    Ok(inputs)
}

/// Types, constants and sizes that follow from the inputs; `dtype` is what else type parameters are. Whether the inputs agree
/// with each other is for the launch to say, which names the argument.
fn bind(subject: &mut Subject, inputs: &BTreeMap<String, FileTensor<'_>>, dtype: Option<DType>) -> Result<Binding> {
    let kernel = subject.kernel.clone();
    let ir = kernel.ir();
    let mut types = BTreeMap::new();
    for (param, decl, input) in tensor_params(ir).filter_map(|(param, decl)| Some((param, decl, inputs.get(&param.name)?))) {
        if let Elem::Generic(index) = decl.elem
            && let Some(name) = ir.type_params.get(index as usize)
        {
            if !matches!(input.elem, Elem::F32 | Elem::F16 | Elem::Bf16) {
                let reason = format!("holds {}, where `{name}` is f32, f16 or bf16; convert it", input.elem.name());
                return Err(Failure::Tensor { name: param.name.clone(), reason });
            }
            types.entry(name.clone()).or_insert(input.elem);
        }
        for (extent, &found) in decl.shape.iter().zip(&input.shape) {
            if let Some((id, value)) = solve(extent, found) {
                let size = &ir.sizes[id];
                let table = if size.kind == SizeKind::Const { &mut subject.consts } else { &mut subject.sizes };
                table.entry(size.name.clone()).or_insert(value);
            }
        }
    }
    let open: Vec<&String> = ir.type_params.iter().filter(|name| !types.contains_key(*name)).collect();
    match dtype {
        None if open.is_empty() => {}
        None => {
            let names = open.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
            return Err(Failure::Usage(format!("no input has the type {names} of kernel `{}`; give --dtype", ir.name)));
        }
        Some(dtype) if open.is_empty() => {
            if let Some((name, elem)) = types.iter().find(|(_, elem)| **elem != dtype.elem()) {
                let (given, found) = (dtype.elem().name(), elem.name());
                return Err(Failure::Usage(format!(
                    "--dtype {given} does not fit: the inputs say that type {name} is {found}; leave it out, or convert the inputs"
                )));
            }
        }
        Some(dtype) => open.into_iter().for_each(|name| {
            types.insert(name.clone(), dtype.elem());
        }),
    }
    Ok(Binding { types, consts: subject.consts.clone() })
}

fn tensor_params(ir: &ir::Kernel) -> impl Iterator<Item = (&ir::Param, &ir::TensorDecl)> {
    ir.params.values().filter_map(|param| match &param.kind {
        ParamKind::Tensor(t) => Some((param, t)),
        ParamKind::Scalar(_) => None,
    })
}

/// The size of a dimension of one size only.
fn solve(extent: &SizeExpr, found: usize) -> Option<(SizeId, i64)> {
    let (terms, constant, divisor) = extent.parts();
    let mut terms = terms.iter();
    let (&id, &coefficient) = terms.next().filter(|(_, c)| **c != 0)?;
    let total = i64::try_from(found).ok()?.checked_mul(divisor)?.checked_sub(constant)?;
    (terms.next().is_none() && total % coefficient == 0).then(|| (id, total / coefficient))
}

/// Why a dimension of an output has no number of elements.
fn no_extent(ir: &ir::Kernel, extent: &SizeExpr, size: impl Fn(SizeId) -> Option<i64>) -> String {
    let text = ir.size_text(extent);
    match extent.sizes().find(|id| size(*id).is_none()) {
        Some(missing) => {
            let name = ir.size_name(missing);
            format!("has a dimension {text}, and no input determines {name}; give --set {name}=..")
        }
        None => {
            let known = extent.sizes().filter_map(|id| Some(format!("{}={}", ir.size_name(id), size(id)?)));
            let known = known.collect::<Vec<_>>().join(", ");
            format!("has a dimension {text}, which is no whole number of elements where {known}")
        }
    }
}

fn place(
    subject: &Subject,
    binding: &Binding,
    inputs: &BTreeMap<String, FileTensor<'_>>,
    device: &Device,
) -> Result<Vec<Placed>> {
    let ir = subject.kernel.ir();
    let size = |id: SizeId| {
        let name = ir.size_name(id);
        binding.consts.get(name).or_else(|| subject.sizes.get(name)).copied()
    };
    let mut placed = Vec::new();
    for param in ir.params.values() {
        placed.push(match &param.kind {
            ParamKind::Tensor(t) if t.direction.is_written() => {
                let extent = |extent: &SizeExpr| {
                    let value = extent.eval(size).and_then(|v| usize::try_from(v).ok());
                    value.ok_or_else(|| Failure::Tensor { name: param.name.clone(), reason: no_extent(ir, extent, size) })
                };
                let shape = t.shape.iter().map(extent).collect::<Result<Vec<_>>>()?;
                let elem = match t.elem {
                    Elem::Generic(index) => ir.type_params.get(index as usize).and_then(|n| binding.types.get(n)).copied(),
                    own => Some(own),
                };
                let elem = elem.expect("bound: every type parameter has a type");
                Placed::Output(AnyTensor::zeros(device, elem, &shape)?)
            }
            ParamKind::Tensor(_) => {
                let input = inputs.get(&param.name).expect("every input was read");
                Placed::Input(AnyTensor::from_bytes(device, input.elem, &input.shape, input.bytes)?)
            }
            ParamKind::Scalar(elem) => {
                let value = subject.scalars.get(&param.name).copied();
                let missing = || {
                    let name = &param.name;
                    Failure::Usage(format!("kernel `{}` needs the scalar `{name}`; give --set {name}=..", ir.name))
                };
                match elem {
                    Elem::I32 => Placed::I32(value.ok_or_else(missing)? as i32),
                    _ => Placed::F32(value.ok_or_else(missing)? as f32),
                }
            }
        });
    }
    Ok(placed)
}

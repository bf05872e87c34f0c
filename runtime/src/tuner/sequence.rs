//! Times several launches as one: each takes named tensors, and what one writes a later one reads. What comes out is compared
//! with the float64 oracle of one kernel that computes the same.

use std::collections::{BTreeMap, BTreeSet};

use flashtile_dsl::interpret::HostTensor;
use flashtile_dsl::ir::{Elem, ParamKind};

use super::TuneError;
use super::gate::read;
use super::inputs::{SAMPLES, all_sizes, shapes};
use super::measure::{MeasureOptions, time};
use crate::cache::Measurement;
use crate::device::{Device, VariantInfo, scratch_bytes};
use crate::error::Result;
use crate::kernel::BoundKernel;
use crate::launch::{Argument, LoadedKernel};
use crate::lowering::Generated;
use crate::tensor::AnyTensor;
use crate::verify::{HostArgument, OutputVerdict, Programs, Reference};
use flashtile_dsl::inputs::{Floats, InputData, Plan, rotations};

/// A kernel with its sizes, and the tensors that its parameters are.
#[derive(Clone, PartialEq, Debug)]
pub struct Part {
    /// The kernel.
    pub kernel: BoundKernel,
    /// Its run-time sizes.
    pub sizes: BTreeMap<String, i64>,
    /// Tensors by parameter, for parameters whose tensor is not named as they are.
    pub tensors: BTreeMap<String, String>,
}

/// Times of a sequence, the judgement of what was computed, and the memory it took.
#[derive(Clone, PartialEq, Debug)]
pub struct MeasuredSequence {
    /// Times of all launches together, as [`super::measure`] takes them; `None` if no repetition was asked for.
    pub times: Option<Measurement>,
    /// One per output of the oracle that the sequence computes, on a sample of the programs.
    pub verdicts: Vec<OutputVerdict>,
    /// The code that each launch ran; `None` on a device that compiles nothing.
    pub variants: Vec<Option<VariantInfo>>,
    /// Memory beyond the inputs.
    pub memory: PeakMemory,
}

/// The most memory of a device that a sequence had allocated at a time, beyond its inputs, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PeakMemory {
    /// Counted at every allocation: outputs, intermediate tensors, workspaces.
    pub counted: usize,
    /// By what the driver said was free before and after; in its granularity. `None` without a driver.
    pub driver: Option<usize>,
}

impl MeasuredSequence {
    /// The largest error of any output.
    pub fn max_error(&self) -> f64 {
        self.verdicts.iter().map(|v| v.max_error).fold(0.0, f64::max)
    }
}

/// Bytes that the tensors of a sequence take on a device beyond its inputs; they are allocated, and nothing runs.
///
/// # Errors
/// As [`measure_sequence`].
pub fn count_memory(device: &Device, parts: &[Part]) -> Result<usize> {
    let bound = parts.iter().map(Part::bind).collect::<Result<Vec<_>>>()?;
    let (forms, inputs) = (forms(bound.iter())?, inputs(&bound));
    let base = device.memory_use().current;
    let made = forms.iter().filter(|(name, _)| !inputs.contains(name));
    let made = made.map(|(_, (elem, shape))| AnyTensor::zeros(device, *elem, shape)).collect::<Result<Vec<_>>>()?;
    let bytes = device.memory_use().current - base;
    drop(made);
    Ok(bytes)
}

/// Bytes that lie between the launches of generated code, for these run-time sizes: scratch
/// tensors, as devices lay them out. `None` if a size is missing, or they are larger than any
/// memory.
pub fn count_scratch(generated: &Generated, sizes: &BTreeMap<String, i64>) -> Option<usize> {
    let with_size = generated.folded.as_ref().and_then(|folded| folded.with_size(sizes));
    let sizes = with_size.as_ref().unwrap_or(sizes);
    scratch_bytes(&generated.scratch, |name| sizes.get(name).copied())
}

/// Element type and shape of a tensor.
type Form = (Elem, Vec<usize>);

/// A parameter of a part.
enum Slot {
    Input(String),
    Output(String),
    F32(f32),
    I32(i32),
}

/// What the parameters of a part are.
struct Bound {
    slots: Vec<Slot>,
    forms: Vec<(String, Form)>,
    sizes: Vec<i64>,
}

impl Part {
    fn bind(&self) -> Result<Bound> {
        let (ir, binding) = (self.kernel.ir(), self.kernel.binding());
        let sizes = all_sizes(&self.kernel, &self.sizes)?;
        let data = InputData::default();
        let plan = Plan::new(ir, &sizes, &data).map_err(TuneError::from)?;
        let (mut slots, mut forms) = (Vec::new(), Vec::new());
        for ((id, param), shape) in ir.params.iter().zip(shapes(&self.kernel, &sizes)?) {
            slots.push(match (&param.kind, shape) {
                (ParamKind::Tensor(t), Some(shape)) => {
                    let name = self.tensors.get(&param.name).unwrap_or(&param.name).clone();
                    forms.push((name.clone(), (binding.elem(ir, t.elem), shape)));
                    if t.direction.is_written() { Slot::Output(name) } else { Slot::Input(name) }
                }
                (ParamKind::Scalar(Elem::I32), _) => Slot::I32(plan.i32(id)),
                _ => Slot::F32(plan.f32(id)),
            });
        }
        Ok(Bound { slots, forms, sizes })
    }
}

/// Runs the kernels of `parts` one after the other on random inputs, each a kernel made ready for the same device; compares
/// what they compute with the float64 oracle of `oracle`, a kernel that computes the same from the same inputs; then times
/// them together, unless no repetition is asked for. Scalars are as for [`super::measure`].
///
/// # Errors
/// [`TuneError::Sequence`] for parts that do not fit each other, [`TuneError::Size`]; what launches and the device say.
///
/// # Panics
/// If there is no part, or not as many kernels as parts.
pub fn measure_sequence(parts: &[(Part, LoadedKernel)], oracle: &Part, options: &MeasureOptions) -> Result<MeasuredSequence> {
    let device = parts.first().expect("a sequence has a part").1.device().clone();
    let bound = parts.iter().map(|(part, _)| part.bind()).collect::<Result<Vec<_>>>()?;
    let judge = oracle.bind()?;
    let forms = forms(bound.iter().chain([&judge]))?;
    let inputs = inputs(&bound);
    check_oracle(&judge, &inputs)?;

    let mut tensors: BTreeMap<String, AnyTensor> = BTreeMap::new();
    for (n, name) in inputs.iter().enumerate() {
        let (elem, shape) = &forms[name];
        let bytes = match rotations(name, *elem, shape) {
            Some(table) => table,
            None if !elem.is_float() => {
                let parts = parts.iter().map(|(part, _)| part).zip(&bound);
                integers(parts, name, (*elem, shape), options.seed)?
            }
            None => repeated(*elem, shape.iter().product(), options.seed ^ ((n as u64 + 1) << 48)),
        };
        tensors.insert(name.clone(), AnyTensor::from_bytes(&device, *elem, shape, &bytes)?);
    }
    let programs = Programs::Sample { count: SAMPLES, seed: options.seed };
    let expected = Reference::new(&oracle.kernel, &judge.sizes, &host_arguments(&judge, &forms, &tensors)?, programs)?;

    let base = device.memory_use().current;
    device.reset_peak_memory();
    let made: BTreeSet<&String> =
        bound.iter().flat_map(|b| &b.forms).map(|(name, _)| name).filter(|n| !inputs.contains(n)).collect();
    let make = |tensors: &mut BTreeMap<String, AnyTensor>| -> Result<()> {
        for &name in &made {
            let (elem, shape) = &forms[name];
            tensors.insert(name.clone(), AnyTensor::zeros(&device, *elem, shape)?);
        }
        Ok(())
    };
    make(&mut tensors)?;
    for &name in &made {
        tensors[name].fill_bytes(0xff)?; // NaN: what is never written shows
    }
    let launch = |tensors: &BTreeMap<String, AnyTensor>| {
        parts.iter().zip(&bound).try_for_each(|((_, kernel), bound)| kernel.launch(&arguments(bound, tensors)))
    };
    launch(&tensors)?;
    device.synchronize()?;
    let counted = device.memory_use().peak - base;
    let found = expected.outputs.iter().map(|output| {
        let Some(tensor) = tensors.get(oracle.tensors.get(&output.name).unwrap_or(&output.name)) else { return Ok(None) };
        let bytes = tensor.to_bytes()?;
        Ok(Some(output.at_places(|at| read(output.elem, &bytes, at))))
    });
    let found = found.collect::<Result<Vec<_>>>()?;
    let verdicts = expected.judge(&found, || host_arguments(&judge, &forms, &tensors))?;
    let driver = free_by_driver(&device, &made, &mut tensors, make)?;
    let times = match options.repetitions {
        0 => None,
        _ => Some(time(&device, options, || launch(&tensors))?),
    };
    let variants = parts.iter().map(|(_, kernel)| kernel.variants().into_iter().next()).collect();
    Ok(MeasuredSequence { times, verdicts, variants, memory: PeakMemory { counted, driver } })
}

/// Values that are drawn anew; longer tensors repeat them. The number is odd, so that rows and heads of a power of two differ.
const DRAWN: usize = (1 << 24) - 3;

/// Normally distributed values, as bytes.
fn repeated(elem: Elem, count: usize, seed: u64) -> Vec<u8> {
    let mut bytes = Floats::normal().bytes(elem, &[count.min(DRAWN)], seed);
    let whole = count * elem.bytes().unwrap_or(4);
    while bytes.len() < whole {
        let more = bytes.len().min(whole - bytes.len());
        bytes.extend_from_within(..more);
    }
    bytes
}

/// Integers of an input, as bytes: what the first part that reads it asks for.
fn integers<'a>(
    mut parts: impl Iterator<Item = (&'a Part, &'a Bound)>,
    name: &String,
    (elem, shape): (Elem, &[usize]),
    seed: u64,
) -> Result<Vec<u8>> {
    let reads = |bound: &Bound| bound.slots.iter().position(|slot| matches!(slot, Slot::Input(input) if input == name));
    let found = parts.find_map(|(part, bound)| reads(bound).map(|at| (part, bound, at)));
    let (part, bound, at) = found.expect("an input is read by a part");
    let (ir, data) = (part.kernel.ir(), InputData::default());
    let plan = Plan::new(ir, &bound.sizes, &data).map_err(TuneError::from)?;
    let param = ir.params.keys().nth(at).expect("a slot for each parameter");
    Ok(plan.bytes(param, elem, shape, seed))
}

/// Every tensor with its element type and shape, which all parts must agree on.
fn forms<'a>(bound: impl Iterator<Item = &'a Bound>) -> Result<BTreeMap<String, Form>> {
    let mut all: BTreeMap<String, Form> = BTreeMap::new();
    for (name, form) in bound.flat_map(|b| &b.forms) {
        match all.get(name) {
            Some(known) if known != form => {
                let text = |(elem, shape): &Form| format!("{} {shape:?}", elem.name());
                let reason = format!("is {} in one kernel and {} in another", text(known), text(form));
                return Err(TuneError::Sequence { tensor: name.clone(), reason }.into());
            }
            _ => all.insert(name.clone(), form.clone()),
        };
    }
    Ok(all)
}

/// The tensors that are read before any part has written them, in order.
fn inputs(bound: &[Bound]) -> Vec<String> {
    let (mut inputs, mut written) = (Vec::new(), BTreeSet::new());
    for part in bound {
        for slot in &part.slots {
            if let Slot::Input(name) = slot
                && !written.contains(name)
                && !inputs.contains(name)
            {
                inputs.push(name.clone());
            }
        }
        written.extend(part.slots.iter().filter_map(|slot| match slot {
            Slot::Output(name) => Some(name),
            _ => None,
        }));
    }
    inputs
}

fn check_oracle(judge: &Bound, inputs: &[String]) -> Result<()> {
    for slot in &judge.slots {
        if let Slot::Input(name) = slot
            && !inputs.contains(name)
        {
            let reason = "is read by the oracle, but is no input of the sequence".to_owned();
            return Err(TuneError::Sequence { tensor: name.clone(), reason }.into());
        }
    }
    Ok(())
}

fn arguments<'a>(bound: &Bound, tensors: &'a BTreeMap<String, AnyTensor>) -> Vec<Argument<'a>> {
    let argument = |slot: &Slot| match slot {
        Slot::Input(name) => Argument::Input(&tensors[name]),
        Slot::Output(name) => Argument::Output(&tensors[name]),
        Slot::F32(x) => Argument::F32(*x),
        Slot::I32(x) => Argument::I32(*x),
    };
    bound.slots.iter().map(argument).collect()
}

/// The arguments of the oracle.
fn host_arguments(
    judge: &Bound,
    forms: &BTreeMap<String, Form>,
    tensors: &BTreeMap<String, AnyTensor>,
) -> Result<Vec<HostArgument>> {
    let host = |name: &String, bytes| {
        let (elem, shape) = forms[name].clone();
        let strides = (0..shape.len()).map(|d| shape[d + 1..].iter().product()).collect();
        HostTensor { elem, shape, strides, offset: 0, bytes }
    };
    let argument = |slot: &Slot| {
        Ok(match slot {
            Slot::Input(name) => HostArgument::Input(host(name, tensors[name].to_bytes()?)),
            Slot::Output(name) => HostArgument::Output(host(name, Vec::new())),
            Slot::F32(x) => HostArgument::F32(*x),
            Slot::I32(x) => HostArgument::I32(*x),
        })
    };
    judge.slots.iter().map(argument).collect()
}

/// What the driver says the tensors that the sequence makes take: they are freed and made again, so that code which the first
/// launch loaded does not count.
fn free_by_driver(
    device: &Device,
    made: &BTreeSet<&String>,
    tensors: &mut BTreeMap<String, AnyTensor>,
    make: impl Fn(&mut BTreeMap<String, AnyTensor>) -> Result<()>,
) -> Result<Option<usize>> {
    if device.free_memory()?.is_none() {
        return Ok(None);
    }
    tensors.retain(|name, _| !made.contains(name));
    let before = device.free_memory()?;
    make(tensors)?;
    Ok(before.zip(device.free_memory()?).map(|(before, after)| before.saturating_sub(after)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Kernel;
    use flashtile_dsl::ir::SourceText;

    const KERNELS: &str = "
pub fn double<T: Element>(x: &Tensor<T, (M, N)>, y: &mut Tensor<T, (M, N)>) {
    let i = program(tiles(M));
    for j in tiles(N) {
        store(y, [i, j], 2.0 * load(x, [i, j]));
    }
}
pub fn quadruple<T: Element>(x: &Tensor<T, (M, N)>, y: &mut Tensor<T, (M, N)>) {
    let i = program(tiles(M));
    for j in tiles(N) {
        store(y, [i, j], 4.0 * load(x, [i, j]));
    }
}
";

    fn part(name: &str, tensors: &[(&str, &str)], n: i64) -> Part {
        let source = SourceText { name: "kernels".into(), text: KERNELS.into(), first_line: 1 };
        let kernels = Kernel::from_source(&source).expect("well formed");
        let kernel = kernels.into_iter().find(|k| k.name() == name).expect("is there");
        Part {
            kernel: kernel.bind(Elem::F32, [] as [(&str, i64); 0]).expect("binds"),
            sizes: [("M", 33), ("N", n)].map(|(name, size)| (name.to_owned(), size)).into(),
            tensors: tensors.iter().map(|(p, t)| ((*p).to_owned(), (*t).to_owned())).collect(),
        }
    }

    fn measured(parts: Vec<Part>, oracle: &Part) -> Result<MeasuredSequence> {
        let loaded = |part: Part| part.kernel.on(&Device::cpu()).map(|kernel| (part, kernel));
        let parts = parts.into_iter().map(loaded).collect::<Result<Vec<_>>>()?;
        measure_sequence(&parts, oracle, &MeasureOptions { repetitions: 2, warm_ups: 0, ..MeasureOptions::default() })
    }

    #[test]
    fn what_one_writes_the_next_reads() {
        let chain = || vec![part("double", &[("y", "t")], 40), part("double", &[("x", "t")], 40)];
        let right = measured(chain(), &part("quadruple", &[], 40)).expect("runs");
        assert!(right.verdicts.len() == 1 && right.verdicts[0].passed(), "{:?}", right.verdicts);
        assert!(right.memory.counted >= 2 * 33 * 40 * 4, "{:?}", right.memory);
        let wrong = measured(chain(), &part("double", &[], 40)).expect("runs");
        assert!(!wrong.verdicts[0].passed());
    }

    #[test]
    fn parts_that_do_not_fit_are_told() {
        let error = |parts, oracle: &Part| measured(parts, oracle).expect_err("does not fit").to_string();
        assert_eq!(
            error(vec![part("double", &[("y", "t")], 40), part("double", &[("x", "t")], 41)], &part("quadruple", &[], 40)),
            "tensor `t` of the sequence is f32 [33, 40] in one kernel and f32 [33, 41] in another"
        );
        assert_eq!(
            error(vec![part("double", &[], 40)], &part("quadruple", &[("x", "z")], 40)),
            "tensor `z` of the sequence is read by the oracle, but is no input of the sequence"
        );
    }
}

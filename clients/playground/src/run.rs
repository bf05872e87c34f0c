//! A kernel on small random tensors, by the interpreter: what kernel text means.

use flashtile_dsl::analysis::cost::Workload;
use flashtile_dsl::analysis::lengths;
use flashtile_dsl::inputs::{InputData, Plan};
use flashtile_dsl::interpret::{Argument, Arithmetic, Blocks, Exact64, HostTensor, InterpretError, Interpreter, Ir32};
use flashtile_dsl::ir::{Direction, Elem, Entity, ParamId, ParamKind, SizeExpr};
use serde_json::{Map, Value, json};

use crate::request::Asked;
use crate::subject::{Fault, Subject};

/// Positions of a tile.
const BLOCK: usize = 16;
/// Lengths and other run-time sizes at most, unless the text addresses more.
const SMALL_LENGTH: i64 = 24;
const SMALL_OTHER: i64 = 2;
/// Elements of all tensors, and FLOPs, at most: what a page waits for.
const MOST_ELEMENTS: usize = 1 << 22;
const MOST_FLOPS: u64 = 1 << 28;
/// Rows and columns of a result that a page shows.
const SHOWN: usize = 8;
const SEED: u64 = 1;

/// What a parameter is given.
enum Given {
    Tensor(HostTensor, Direction),
    F32(f32),
    I32(i32),
}

/// The first elements of each output, and how far rounding takes it from the exact result. Sizes
/// that are no constants are made small.
pub fn run(asked: &Asked) -> Result<Value, Fault> {
    let mut subject = Subject::of(asked)?;
    make_small(&mut subject);
    let subject = subject;
    let (kernel, binding) = (&subject.instance.kernel, &subject.instance.binding);
    let sizes = kernel.sizes.values().map(|size| subject.size(&size.name).expect("every size has a value"));
    let sizes: Vec<i64> = sizes.collect();
    let workload = Workload { kernel, binding, sizes: &subject.sizes };
    if workload.cost().algorithm.flops > MOST_FLOPS {
        return Err(Fault::plain("these constants take the interpreter too long; give smaller ones"));
    }
    let given = given(&subject, &sizes)?;
    let rounded = outputs(&subject, &sizes, &given, Blocks::PerAxis(vec![BLOCK; kernel.axes.len()]), Ir32)?;
    let exact = outputs(&subject, &sizes, &given, Blocks::WholeLoops(BLOCK), Exact64)?;
    let shown = rounded.iter().zip(&exact).map(|((param, tensor), (_, exact))| {
        let (values, exact) = (tensor.to_f64(), exact.to_f64());
        let error = values.iter().zip(&exact).map(|(&x, &y)| difference(x, y)).fold(0.0, f64::max);
        json!({
            "name": kernel.params[*param].name,
            "type": tensor.elem.name(),
            "shape": tensor.shape,
            "rows": first(&tensor.shape, &values),
            "error": error,
        })
    });
    let named = kernel.sizes.values().map(|size| &size.name).zip(&sizes).map(|(name, size)| (name.clone(), json!(size)));
    Ok(json!({ "sizes": named.collect::<Map<_, _>>(), "outputs": shown.collect::<Vec<_>>() }))
}

/// Run-time sizes as large as the interpreter takes in a moment, but no smaller than the text
/// addresses.
fn make_small(subject: &mut Subject) {
    let (kernel, consts) = (&subject.instance.kernel, &subject.instance.binding.consts);
    for (name, size) in &mut subject.sizes {
        let most = if lengths::is_walked(kernel, name) { SMALL_LENGTH } else { SMALL_OTHER };
        *size = (*size).min(most).max(lengths::addressed(kernel, name, consts));
    }
}

/// Random inputs, and outputs of zeros.
fn given(subject: &Subject, sizes: &[i64]) -> Result<Vec<Given>, Fault> {
    let (kernel, binding) = (&subject.instance.kernel, &subject.instance.binding);
    let data = InputData::default();
    let plan = Plan::new(kernel, sizes, &data).map_err(Fault::plain)?;
    let mut elements = 0usize;
    let mut each = Vec::new();
    for (id, param) in kernel.params.iter() {
        each.push(match &param.kind {
            ParamKind::Scalar(Elem::I32) => Given::I32(plan.i32(id)),
            ParamKind::Scalar(_) => Given::F32(plan.f32(id)),
            ParamKind::Tensor(of) => {
                let extents = of.shape.iter().map(|extent| self::extent(extent, sizes));
                let shape = extents.collect::<Option<Vec<usize>>>();
                let shape = shape.ok_or_else(|| Fault::plain(format!("`{}` has no shape for these sizes", param.name)))?;
                elements = shape.iter().fold(1usize, |a, &b| a.saturating_mul(b)).saturating_add(elements);
                if elements > MOST_ELEMENTS {
                    return Err(Fault::plain("these constants take the interpreter too much memory; give smaller ones"));
                }
                let elem = binding.elem(kernel, of.elem);
                let mut tensor = HostTensor::packed(elem, &shape);
                if of.direction.is_read() {
                    tensor.bytes = plan.bytes(id, elem, &shape, SEED);
                }
                Given::Tensor(tensor, of.direction)
            }
        });
    }
    Ok(each)
}

fn extent(extent: &SizeExpr, sizes: &[i64]) -> Option<usize> {
    extent.eval(|size| sizes.get(size.index()).copied()).and_then(|value| usize::try_from(value).ok())
}

/// All outputs, rounded to their element types as they are stored, whatever the arithmetic.
fn outputs<A: Arithmetic>(
    subject: &Subject,
    sizes: &[i64],
    given: &[Given],
    blocks: Blocks,
    arithmetic: A,
) -> Result<Vec<(ParamId, HostTensor)>, Fault> {
    let (kernel, binding) = (&subject.instance.kernel, &subject.instance.binding);
    let arguments = given.iter().map(|given| match given {
        Given::Tensor(_, Direction::Out | Direction::Sum) => Argument::Output,
        Given::Tensor(tensor, Direction::In | Direction::InOut) => Argument::Input(tensor.view()),
        Given::F32(x) => Argument::F32(*x),
        Given::I32(x) => Argument::I32(*x),
    });
    let arguments: Vec<Argument<'_>> = arguments.collect();
    let failed = |error: InterpretError| Fault::plain(error);
    let interpreter = Interpreter::new(kernel, binding, sizes, &blocks, &arguments, arithmetic).map_err(failed)?;
    let mut results: Vec<(ParamId, HostTensor)> = Vec::new();
    for ((id, _), given) in kernel.params.iter().zip(given) {
        if let Given::Tensor(tensor, direction) = given
            && direction.is_written()
        {
            results.push((id, tensor.clone()));
        }
    }
    for program in 0..interpreter.programs() {
        for stored in interpreter.run(program).map_err(failed)? {
            let (id, tensor) = results.iter_mut().find(|(id, _)| *id == stored.param).expect("only outputs are stored to");
            let (elem, strides) = (tensor.elem, tensor.strides.clone());
            match kernel.params[*id].kind.is_sum() {
                true => stored.add(&strides, tensor.memory_mut()),
                false => stored.write(elem, &strides, tensor.memory_mut()),
            }
        }
    }
    Ok(results)
}

/// How far two elements are apart; those that are no finite numbers are as far apart as can be,
/// unless they are the same.
fn difference(x: f64, y: f64) -> f64 {
    match (x - y).abs() {
        _ if x == y || (x.is_nan() && y.is_nan()) => 0.0,
        finite if finite.is_finite() => finite,
        _ => f64::INFINITY,
    }
}

/// The first rows and columns of the last two dimensions, where all others are at 0; null for what
/// is not finite.
fn first(shape: &[usize], values: &[f64]) -> Vec<Vec<Option<f64>>> {
    let columns = shape.last().copied().unwrap_or(1);
    let rows = shape.iter().rev().nth(1).copied().unwrap_or(1);
    let row = |n: usize| values[n * columns..][..columns.min(SHOWN)].iter().map(|&x| x.is_finite().then_some(x)).collect();
    let rows = if values.is_empty() { 0 } else { rows.min(SHOWN) };
    (0..rows).map(row).collect()
}

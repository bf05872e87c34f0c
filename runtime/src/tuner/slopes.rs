//! Gradients against slopes of their forward kernel.
//!
//! [`super::Chain`] judges each kernel of a gradient by its own text. Whether these texts together
//! are the gradient is another question: two kernels may be right, and the one read what the other
//! did not mean. Here they run on the CPU in f32, and what they give is compared along a direction
//! `d` with a central difference of the forward kernel in f64, of fourth order:
//!
//! ```text
//! sum(grad_x d)  for  (8 (L(x + h d) - L(x - h d)) - (L(x + 2 h d) - L(x - 2 h d))) / 12 h
//! ```
//!
//! where `L` is the sum of the outputs times numbers of their own.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use flashtile_dsl::ir::{self, BinaryOp, Elem, Entity, Op, UnaryOp, ValueDef, ValueId};
use serde::Serialize;

use super::InputData;
use super::gate::host;
use super::inputs::{Inputs, Value};
use super::joins::joins;
use crate::device::Device;
use crate::error::Result;
use crate::kernel::{BoundKernel, Gradient, Kernel};
use crate::launch::{Argument, LoadedGradient, LoadedKernel, Workspace};
use crate::tensor::AnyTensor;
use crate::verify::exact;

/// Steps, each of which is tried where the one before disagrees: shorter ones lead past fewer kinks,
/// such as that of `abs` at 0, of which sums of many products have many. Along a steep curve, such
/// as a square of large positions, they are nearer to the slope. Rounding moves an input of order 1
/// by 2^-25 at most, which is 2^-10 of the last of them.
const STEPS: [f64; 3] = [1.0 / 256.0, 1.0 / 4096.0, 1.0 / 32768.0];
/// Part of the gradient's length along the direction by which it may be off.
const ALLOWED: f64 = 0.002;
/// The same where a step may lead past kinks: an element that a difference straddles has half of
/// either slope.
const ALLOWED_KINKS: f64 = 0.01;
/// What rounding in f32 leaves of terms of order 1 that cancel in a gradient, for each output that it
/// is of: 1024 units in the last place.
const ROUNDING: f64 = 1024.0 / (1 << 23) as f64;

/// The gradient of an input along a direction, and the slope of the forward kernel along it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Slope {
    /// The input.
    pub input: String,
    /// What the kernels of the gradient give.
    pub found: f64,
    /// What the forward kernel gives.
    pub slope: f64,
    /// How far these may be apart.
    pub allowed: f64,
}

/// Slopes of a gradient, or why there are none.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(untagged)]
pub enum Slopes {
    /// One for each input whose gradient is given.
    Of(Vec<Slope>),
    /// Differences tell nothing.
    None {
        /// What makes the forward kernel jump, or rounds small steps away.
        why: String,
    },
}

impl Slope {
    /// Whether both agree.
    pub fn passed(&self) -> bool {
        (self.found - self.slope).abs() <= self.allowed
    }
}

impl fmt::Display for Slope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.passed() { "right" } else { "wrong: the kernels together are no gradient" };
        let Self { input, found, slope, allowed } = self;
        write!(f, "slope of {input} {what}; {found:.6} for {slope:.6} (allowed {allowed:.1e})")
    }
}

/// Compares a gradient, on the CPU and in f32, with slopes of its forward kernel in f64. Inputs are
/// drawn as for [`super::judge_on`].
///
/// # Errors
/// Constants, sizes or data that do not fit the forward kernel.
pub fn slopes(
    gradient: &Gradient,
    consts: &BTreeMap<String, i64>,
    sizes: &BTreeMap<String, i64>,
    seed: u64,
    data: &InputData,
) -> Result<Slopes> {
    let ir = gradient.forward.ir();
    let (of, from) = (inputs(gradient), &gradient.from);
    if let Some(why) = narrow(ir, of.iter().chain(from)).or_else(|| jump(ir, &of)) {
        return Ok(Slopes::None { why });
    }
    let device = Device::cpu();
    let bind = |kernel: &Kernel| {
        let of_kernel = consts.iter().filter(|(name, _)| kernel.ir().size_named(name).is_some());
        kernel.bind(Elem::F32, of_kernel.map(|(name, value)| (name.clone(), *value)))
    };
    let bound = bind(&gradient.forward)?;
    let inputs = Inputs::random(&bound, sizes, &device, seed, data)?;
    let mut point = Point::new(&bound, inputs, from, seed)?;
    let backward = gradient.backward.iter().map(|kernel| bind(kernel)?.on(&device)).collect::<Result<Vec<_>>>()?;
    let found = point.gradients(backward, &of, from)?;
    if point.has_undefined && found.iter().flatten().any(|x| !x.is_finite()) {
        let why = "outputs are not finite on these inputs, and gradients through them are not either".to_owned();
        return Ok(Slopes::None { why });
    }
    let kinks = has_kinks(ir);
    let share = if kinks { ALLOWED_KINKS } else { ALLOWED };
    let rounding = point.rounding();
    let mut slopes = Vec::new();
    for ((n, input), gradient) in of.iter().enumerate().zip(found) {
        let direction = numbers(gradient.len(), seed.wrapping_add(101 + n as u64));
        let along: Vec<f64> = gradient.iter().zip(&direction).map(|(g, d)| g * d).collect();
        let length = along.iter().map(|x| x * x).sum::<f64>().sqrt();
        let mut compared = |step: f64| -> Result<Slope> {
            let slope = point.slope(input, &direction, step)?;
            let allowed = share * length + rounding;
            Ok(Slope { input: input.clone(), found: along.iter().sum(), slope, allowed })
        };
        let mut slope = compared(STEPS[0])?;
        for &step in &STEPS[1..] {
            if !slope.passed() {
                slope = compared(step)?;
            }
        }
        slopes.push(slope);
    }
    Ok(Slopes::Of(slopes))
}

/// Inputs of the forward kernel whose gradients the others store.
fn inputs(gradient: &Gradient) -> Vec<String> {
    let is_stored = |name: &String| {
        let grad = format!("grad_{name}");
        let of = |kernel: &Kernel| kernel.ir().param_named(&grad).is_some_and(|id| kernel.ir().params[id].kind.is_written());
        gradient.backward.iter().any(of)
    };
    let params = gradient.forward.ir().params.values();
    params.filter(|param| !param.kind.is_written()).map(|param| param.name.clone()).filter(is_stored).collect()
}

/// A tensor among these in whose elements small steps are lost.
fn narrow<'a>(ir: &ir::Kernel, mut names: impl Iterator<Item = &'a String>) -> Option<String> {
    let elem = |name: &String| ir.tensor(ir.param_named(name).expect("a parameter")).elem;
    let found = names.find(|name| !matches!(elem(name), Elem::F32 | Elem::Generic(_)))?;
    Some(format!("`{found}` holds {}, in which small steps are lost", ir.elem_name(elem(found))))
}

/// Whether a kernel takes magnitudes, maxima or minima of floats other than those that a loop
/// carries along, or chooses between values that meet.
fn has_kinks(ir: &ir::Kernel) -> bool {
    let is_float = |v: ValueId| ir.ty(v).tile().is_some_and(|tile| tile.elem.is_float());
    let is_carried = |v: ValueId| matches!(ir.values[v].def, ValueDef::BlockParam(..));
    ir.walk().into_iter().any(|(_, op)| match ir.ops[op].op {
        Op::Unary(UnaryOp::Abs, x) => is_float(x),
        Op::Compare(_, a, _) => is_float(a) && joins(ir, op),
        Op::Binary(BinaryOp::Max | BinaryOp::Min, a, b) => is_float(a) && !is_carried(a) && !is_carried(b),
        _ => false,
    })
}

/// What makes a kernel jump where one of the inputs moves.
fn jump(ir: &ir::Kernel, of: &[String]) -> Option<String> {
    let mut moved: HashSet<ValueId> = HashSet::new();
    let is_float = |v: ValueId| ir.ty(v).tile().is_some_and(|tile| tile.elem.is_float());
    for (_, op) in ir.walk() {
        let data = &ir.ops[op];
        let reads = data.op.operands();
        let wanted = matches!(&data.op, Op::Load { tensor, .. } if of.contains(&ir.params[*tensor].name));
        // What a loop carries moves if it did before, or a step moves it.
        let carried = |v: &ValueId| matches!(ir.values[*v].def, ValueDef::BlockParam(..)) && is_float(*v);
        if !wanted && !reads.iter().any(|v| moved.contains(v) || carried(v)) {
            continue;
        }
        let jumps = matches!(&data.op, Op::Unary(UnaryOp::Floor, _))
            || matches!(&data.op, Op::Compare(_, a, _) if is_float(*a) && !joins(ir, op))
            || matches!(&data.op, Op::Cast(elem, x) if is_float(*x) && !elem.is_float());
        if jumps {
            return Some(format!("`{}` jumps where an input moves: `{}` of what is made of it", ir.name, data.op.mnemonic()));
        }
        moved.extend(&data.results);
    }
    None
}

/// The forward kernel at a point.
struct Point {
    kernel: BoundKernel,
    names: Vec<String>,
    inputs: Inputs,
    /// The outputs that count, by their place among the parameters, and their weights.
    weights: Vec<(usize, Vec<f64>)>,
    /// Whether some of these outputs hold what is not finite.
    has_undefined: bool,
}

impl Point {
    fn new(kernel: &BoundKernel, inputs: Inputs, from: &[String], seed: u64) -> Result<Self> {
        let names: Vec<String> = kernel.ir().params.values().map(|param| param.name.clone()).collect();
        kernel.on(&Device::cpu())?.launch(&inputs.arguments())?;
        let mut point = Self { kernel: kernel.clone(), names, inputs, weights: Vec::new(), has_undefined: false };
        for (param, exact) in point.outputs()?.into_iter().filter(|(param, _)| from.contains(&kernel.ir().params[*param].name)) {
            let Value::Output(stored) = &point.inputs.values[param.index()] else { unreachable!("an output") };
            // What has no value, such as the logarithm of a sum over nothing, has no slope; nor has
            // what overflows in f32 alone.
            let finite: Vec<bool> = exact.iter().zip(stored.to_f32()?).map(|(x, y)| x.is_finite() && y.is_finite()).collect();
            point.has_undefined |= finite.contains(&false);
            let own = numbers(exact.len(), seed.wrapping_add(11 + param.index() as u64));
            let weights = own.iter().zip(finite).map(|(&w, finite)| if finite { w } else { 0.0 }).collect();
            point.weights.push((param.index(), weights));
        }
        Ok(point)
    }

    /// What the forward kernel stores in f64.
    fn outputs(&self) -> Result<Vec<(ir::ParamId, Vec<f64>)>> {
        let arguments = self.inputs.values.iter().map(host).collect::<Result<Vec<_>>>()?;
        exact(&self.kernel, &self.inputs.sizes, &arguments)
    }

    /// What the kernels of the gradient give for these inputs.
    fn gradients(&self, backward: Vec<LoadedKernel>, of: &[String], from: &[String]) -> Result<Vec<Vec<f64>>> {
        let device = Device::cpu();
        let place = |name: &String| self.names.iter().position(|other| other == name).expect("a parameter");
        let shaped = |at: usize| match &self.inputs.values[at] {
            Value::Input(tensor) | Value::Output(tensor) => tensor.shape().to_vec(),
            Value::F32(_) | Value::I32(_) => unreachable!("gradients are of tensors"),
        };
        let given = |(at, weights): &(usize, Vec<f64>)| of_f32(&device, &shaped(*at), weights);
        let given = self.weights.iter().map(given).collect::<Result<Vec<_>>>()?;
        let made =
            of.iter().map(|name| AnyTensor::zeros(&device, Elem::F32, &shaped(place(name)))).collect::<Result<Vec<_>>>()?;
        let (from, of): (Vec<String>, Vec<String>) =
            (from.iter().map(|name| format!("grad_{name}")).collect(), of.iter().map(|name| format!("grad_{name}")).collect());
        let names: Vec<&str> = self.names.iter().chain(&from).chain(&of).map(String::as_str).collect();
        let mut arguments: Vec<Argument<'_>> = self.inputs.values.iter().map(read).collect();
        arguments.extend(given.iter().map(Argument::Input));
        arguments.extend(made.iter().map(Argument::Output));
        LoadedGradient::new(backward, &names)?.launch(&mut Workspace::new(), &arguments)?;
        made.iter().map(|tensor| Ok(tensor.to_f32()?.into_iter().map(f64::from).collect())).collect()
    }

    /// The slope of the sum of weighted outputs where an input moves along a direction.
    fn slope(&mut self, input: &str, direction: &[f64], step: f64) -> Result<f64> {
        let place = self.names.iter().position(|name| name == input).expect("a parameter");
        let Value::Input(start) = &self.inputs.values[place] else { unreachable!("`{input}` is an input") };
        let (start, shape, values) = (start.clone(), start.shape().to_vec(), start.to_f32()?);
        let mut moved = |by: f64| {
            let values: Vec<f64> = values.iter().zip(direction).map(|(&x, d)| f64::from(x) + by * step * d).collect();
            self.inputs.values[place] = Value::Input(of_f32(&Device::cpu(), &shape, &values)?);
            self.sum()
        };
        let (near, far) = (moved(1.0)? - moved(-1.0)?, moved(2.0)? - moved(-2.0)?);
        self.inputs.values[place] = Value::Input(start);
        Ok((8.0 * near - far) / (12.0 * step))
    }

    /// The sum of the weighted outputs.
    fn sum(&self) -> Result<f64> {
        let outputs = self.outputs()?;
        let of = |(place, weights): &(usize, Vec<f64>)| {
            let (_, values) = outputs.iter().find(|(param, _)| param.index() == *place).expect("an output");
            values.iter().zip(weights).filter(|(_, w)| **w != 0.0).map(|(x, w)| x * w).sum::<f64>()
        };
        Ok(self.weights.iter().map(of).sum())
    }

    /// How far rounding moves a gradient of order 1 along a direction, where terms of it cancel.
    fn rounding(&self) -> f64 {
        let outputs: usize = self.weights.iter().map(|(_, weights)| weights.len()).sum();
        ROUNDING * (outputs as f64).sqrt()
    }
}

/// An argument that is read, an output of the forward kernel too.
fn read(value: &Value) -> Argument<'_> {
    match value {
        Value::Input(tensor) | Value::Output(tensor) => Argument::Input(tensor),
        Value::F32(x) => Argument::F32(*x),
        Value::I32(x) => Argument::I32(*x),
    }
}

fn of_f32(device: &Device, shape: &[usize], values: &[f64]) -> Result<AnyTensor> {
    let bytes: Vec<u8> = values.iter().flat_map(|&x| (x as f32).to_le_bytes()).collect();
    AnyTensor::from_bytes(device, Elem::F32, shape, &bytes)
}

/// Multiples of 1/16 between -1 and 1.
fn numbers(count: usize, seed: u64) -> Vec<f64> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f64::from((state >> 40) as u32 % 33) / 16.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

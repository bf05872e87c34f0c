//! The gate: results of a candidate against the float64 oracle, before it is timed.
//!
//! The oracle is run on a sample of the programs of the shape that is tuned; the error allowed is that of the plain
//! 16-bit computation on the same inputs: twice its largest, 1.2 times its mean error.

use flashtile_dsl::interpret::{Argument as Data, Arithmetic, Blocks, Exact64, Interpreter, Plain16, Real, Stored, TensorView};
use flashtile_dsl::ir::{Elem, Entity};
use rayon::prelude::*;

use super::inputs::{Inputs, Value};
use crate::error::Result;
use crate::kernel::{BoundKernel, KernelError};

/// Rows of a program of the oracle.
const BLOCK: usize = 32;
/// Programs that are sampled: the first, the last, and some between.
const SAMPLES: usize = 8;
/// Relative error that an f32 result may always have: the GPU's `ex2.approx` and `tanh.approx` are not as exact as the
/// functions of the plain f32 computation.
const F32_FLOOR: f64 = 1.0 / (1 << 20) as f64;

/// A run of consecutive elements of an output, as the oracle has it.
struct ExpectedRun {
    /// First element, in row-major order of the packed tensor.
    at: usize,
    values: Vec<f64>,
}

/// What the oracle says of one output.
struct ExpectedOutput {
    param: usize,
    name: String,
    elem: Elem,
    runs: Vec<ExpectedRun>,
    max_allowed: f64,
    mean_allowed: f64,
}

/// Expected results of a sample of programs.
pub(super) struct Gate {
    outputs: Vec<ExpectedOutput>,
}

/// Errors of an output against the oracle.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Errors {
    max: f64,
    sum: f64,
    count: usize,
    /// NaN or infinite where the oracle is not, or the other way round.
    strange: usize,
}

impl Errors {
    fn add(&mut self, found: f64, expected: f64) {
        self.count += 1;
        if found.is_nan() && expected.is_nan() || found == expected {
            return;
        }
        let error = (found - expected).abs();
        if error.is_finite() {
            self.max = self.max.max(error);
            self.sum += error;
        } else {
            self.strange += 1;
        }
    }

    fn mean(&self) -> f64 {
        self.sum / self.count.max(1) as f64
    }
}

impl Gate {
    /// Runs the oracle and the plain computation on a sample of programs.
    pub fn new(kernel: &BoundKernel, inputs: &Inputs) -> Result<Self> {
        let bytes: Vec<Option<Vec<u8>>> = inputs
            .values
            .iter()
            .map(|v| match v {
                Value::Input(t) => t.to_bytes().map(Some),
                _ => Ok(None),
            })
            .collect::<Result<_>>()?;
        let data: Vec<Data<'_>> = inputs
            .values
            .iter()
            .zip(&bytes)
            .map(|(value, bytes)| match (value, bytes) {
                (Value::Input(t), Some(bytes)) => {
                    // As packed as `to_bytes` gives them, which is how the inputs were made.
                    Data::Input(TensorView { elem: t.elem(), shape: t.shape(), strides: t.strides(), bytes })
                }
                (Value::F32(x), _) => Data::F32(*x),
                (Value::I32(x), _) => Data::I32(*x),
                _ => Data::Output,
            })
            .collect();
        let exact = run_sample(kernel, inputs, &data, Exact64)?;
        let plain = run_sample(kernel, inputs, &data, Plain16::new(kernel.ir(), kernel.binding()))?;
        let mut outputs = Vec::new();
        for (param, value) in inputs.values.iter().enumerate() {
            let Value::Output(tensor) = value else { continue };
            let of = |stored: &Stored<f64>| stored.param.index() == param;
            let mut runs = Vec::new();
            let mut errors = Errors::default();
            let mut largest: f64 = 0.0;
            for (exact, plain) in exact.iter().zip(&plain).filter(|(e, _)| of(e)) {
                let len = exact.row_len();
                for (at, from) in exact.rows(tensor.strides()) {
                    let values = exact.values[from..from + len].to_vec();
                    for (&expected, &found) in values.iter().zip(&plain.values[from..from + len]) {
                        errors.add(round(tensor.elem(), f64::from(found)), expected);
                        largest = if expected.is_finite() { largest.max(expected.abs()) } else { largest };
                    }
                    runs.push(ExpectedRun { at, values });
                }
            }
            let floor = F32_FLOOR * largest;
            outputs.push(ExpectedOutput {
                param,
                name: kernel.ir().params[flashtile_dsl::ir::ParamId::from_index(param)].name.clone(),
                elem: tensor.elem(),
                runs,
                max_allowed: (2.0 * errors.max).max(floor),
                mean_allowed: (1.2 * errors.mean()).max(floor),
            });
        }
        Ok(Self { outputs })
    }

    /// Compares what is in the output tensors. Gives the largest error; a text says what is wrong.
    pub fn check(&self, inputs: &Inputs) -> Result<Result<f64, String>> {
        let mut largest: f64 = 0.0;
        for output in &self.outputs {
            let Value::Output(tensor) = &inputs.values[output.param] else { continue };
            let bytes = tensor.to_bytes()?;
            let mut errors = Errors::default();
            for run in &output.runs {
                for (n, &expected) in run.values.iter().enumerate() {
                    errors.add(read(output.elem, &bytes, run.at + n), expected);
                }
            }
            if errors.strange > 0 {
                let (strange, count) = (errors.strange, errors.count);
                return Ok(Err(format!(
                    "`{}`: {strange} of {count} values are NaN or infinite where they should not be",
                    output.name
                )));
            }
            for (what, found, allowed) in
                [("largest", errors.max, output.max_allowed), ("mean", errors.mean(), output.mean_allowed)]
            {
                if found > allowed {
                    return Ok(Err(format!("`{}`: {what} error {found:.3e}, {allowed:.3e} is allowed", output.name)));
                }
            }
            largest = largest.max(errors.max);
        }
        Ok(Ok(largest))
    }
}

fn run_sample<A: Arithmetic>(
    kernel: &BoundKernel,
    inputs: &Inputs,
    data: &[Data<'_>],
    arithmetic: A,
) -> Result<Vec<Stored<A::Real>>, KernelError>
where
    A::Real: Real + Send,
{
    let refused = |e: flashtile_dsl::interpret::InterpretError| KernelError::Execute {
        kernel: kernel.ir().name.clone(),
        reason: e.to_string(),
    };
    let blocks = Blocks::WholeLoops(BLOCK);
    let interpreter =
        Interpreter::new(kernel.ir(), kernel.binding(), &inputs.sizes, &blocks, data, arithmetic).map_err(refused)?;
    let stored: Vec<Vec<_>> =
        sample(interpreter.programs()).into_par_iter().map(|p| interpreter.run(p).map_err(refused)).collect::<Result<_, _>>()?;
    Ok(stored.into_iter().flatten().collect())
}

/// Programs to look at: the first, the last, and others spread unevenly between, so that no period hides a fault.
fn sample(programs: usize) -> Vec<usize> {
    if programs <= SAMPLES {
        return (0..programs).collect();
    }
    let mut picked: Vec<usize> = (0..SAMPLES).map(|n| n * (programs - 1) / (SAMPLES - 1)).collect();
    for (n, p) in picked.iter_mut().enumerate().take(SAMPLES - 1).skip(1) {
        *p += n * 7 % (programs / SAMPLES);
    }
    picked.dedup();
    picked
}

fn round(elem: Elem, x: f64) -> f64 {
    match elem {
        Elem::F16 => half::f16::from_f64(x).to_f64(),
        Elem::Bf16 => half::bf16::from_f64(x).to_f64(),
        _ => x,
    }
}

fn read(elem: Elem, bytes: &[u8], at: usize) -> f64 {
    let two = |at: usize| [bytes[at], bytes[at + 1]];
    let four = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
    match elem {
        Elem::F16 => half::f16::from_le_bytes(two(at * 2)).to_f64(),
        Elem::Bf16 => half::bf16::from_le_bytes(two(at * 2)).to_f64(),
        Elem::I32 => i32::from_le_bytes(four(at * 4)).into(),
        _ => f32::from_le_bytes(four(at * 4)).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::kernel::Kernel;
    use std::collections::BTreeMap;

    fn setup() -> (BoundKernel, Inputs) {
        let kernel = Kernel::builtin("row_softmax").expect("a built-in").bind(Elem::F16, [] as [(&str, i64); 0]).expect("binds");
        let sizes = BTreeMap::from([("M".to_owned(), 70), ("N".to_owned(), 33)]);
        let inputs = Inputs::random(&kernel, &sizes, &Device::cpu(), 1).expect("fits");
        (kernel, inputs)
    }

    /// Softmax of each row in f64, rounded to f16.
    fn softmax(inputs: &Inputs) -> Vec<half::f16> {
        let Value::Input(x) = &inputs.values[0] else { panic!("an input") };
        let x = x.to_f32().expect("reads");
        let row = |row: &[f32]| {
            let sum: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
            row.iter().map(|&x| half::f16::from_f64(f64::from(x).exp() / sum)).collect::<Vec<_>>()
        };
        x.chunks(33).flat_map(row).collect()
    }

    fn put(inputs: &Inputs, values: &[half::f16]) {
        let Value::Output(y) = &inputs.values[1] else { panic!("an output") };
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        y.write_bytes(&bytes).expect("fits");
    }

    #[test]
    fn right_results_pass_and_wrong_ones_do_not() {
        let (kernel, inputs) = setup();
        let gate = Gate::new(&kernel, &inputs).expect("runs");
        let check = || gate.check(&inputs).expect("reads");
        let right = softmax(&inputs);
        put(&inputs, &right);
        assert!(check().is_ok_and(|error| error > 0.0 && error < 1e-3));
        let mut wrong = right.clone();
        *wrong.last_mut().expect("not empty") += half::f16::from_f32(0.1);
        put(&inputs, &wrong);
        assert!(check().is_err_and(|e| e.starts_with("`y`: largest error 1.0")), "{:?}", check());
        wrong = right.clone();
        wrong[0] = half::f16::NAN;
        put(&inputs, &wrong);
        assert_eq!(check(), Err("`y`: 1 of 2310 values are NaN or infinite where they should not be".to_owned()));
        let biased: Vec<_> = right.iter().map(|&x| half::f16::from_f32(x.to_f32() * 1.0009)).collect();
        put(&inputs, &biased);
        assert!(check().is_err_and(|e| e.contains("mean error")), "{:?}", check());
    }

    #[test]
    fn samples_hold_the_first_and_the_last_program() {
        for programs in [0, 1, 5, 8, 9, 17, 1000] {
            let sample = sample(programs);
            assert!(sample.iter().all(|&p| p < programs) && sample.is_sorted(), "{sample:?}");
            if programs > 0 {
                assert_eq!((sample.first(), sample.last()), (Some(&0), Some(&(programs - 1))));
            }
        }
    }
}

//! The oracle and the baseline: what a launch must give, element by element, and what a plain 16-bit library would; and
//! further computations, for what is off.

use std::sync::OnceLock;

use flashtile_dsl::interpret::{self, Arithmetic, Exact64, Hidden, Ir32, Plain16, Scattered};
use flashtile_dsl::ir::{At, Binding, Entity, Kernel, Op, ParamId};

use super::excerpt::{Called, Excerpt, Programs};
use super::launch::HostArgument;
use super::tolerance::{Bound, OutputReference, OutputVerdict, Terms};
use crate::error::Result;
use crate::kernel::{BoundKernel, KernelError};

/// What a launch must give.
#[derive(Clone, PartialEq, Debug)]
pub struct Reference {
    /// What was run of the grid.
    excerpt: Excerpt,
    /// Of which kernel, and with which sizes.
    kernel: BoundKernel,
    sizes: Vec<i64>,
    /// The outputs with bounds for which further computations count, once something was off.
    wider: OnceLock<Vec<OutputReference>>,
    /// One per output, in order of the parameters.
    pub outputs: Vec<OutputReference>,
}

impl Reference {
    /// Runs the oracle and the baseline. `sizes` has the values of all sizes by [`flashtile_dsl::ir::SizeId`].
    ///
    /// # Errors
    /// The arguments do not fit the kernel.
    pub fn new(kernel: &BoundKernel, sizes: &[i64], arguments: &[HostArgument], programs: Programs) -> Result<Self> {
        let (ir, binding, arguments) = (kernel.ir(), kernel.binding(), views(arguments));
        let called = Called { kernel: ir, binding, sizes, arguments: &arguments, block: None };
        let failed = |e: interpret::InterpretError| failed(ir, &e);
        let plain_arithmetic = Plain16::new(ir, binding);
        let excerpt = Excerpt::new(&called, programs).map_err(failed)?;
        let exact = excerpt.run(&called, Hidden::Absent, Exact64).map_err(failed)?;
        let plain_stored = excerpt.run(&called, Hidden::Absent, plain_arithmetic).map_err(failed)?;
        // Where a hidden element meets what is not finite, NaN is right too.
        let met = exact.met.then(|| excerpt.run(&called, Hidden::Met, Exact64)).transpose().map_err(failed)?;
        let outputs = ir
            .params
            .iter()
            .filter(|(_, p)| p.kind.is_written())
            .map(|(param, p)| {
                let (shape, elem) = (excerpt.shape(param).to_vec(), binding.elem(ir, ir.tensor(param).elem));
                let (places, values) = excerpt.gather(&exact, param);
                let (plain_places, mut plain) = excerpt.gather(&plain_stored, param);
                let or_nan = met.as_ref().map_or_else(Vec::new, |met| {
                    let (_, met) = excerpt.gather(met, param);
                    met.iter().map(|x| x.is_nan()).collect()
                });
                assert_eq!(places, plain_places, "the same text stores to the same places");
                // The plain computation stores to an output of this type.
                plain.iter_mut().for_each(|x| *x = super::launch::rounded(elem, *x));
                let terms = Terms { stored: exact.terms(param), exponents: exact.exponent_terms };
                let in_row = if stores_rows(ir, param) { shape.last().copied().unwrap_or(1) } else { 1 };
                let bound = Bound::new(elem, &values, &plain, plain_arithmetic.elem, terms, in_row);
                let steady = values.iter().zip(&plain).all(|(exact, plain)| !exact.is_finite() || plain.is_finite());
                OutputReference { param, name: p.name.clone(), elem, shape, places, exact: values, or_nan, bound, steady }
            })
            .collect();
        Ok(Self { excerpt, kernel: kernel.clone(), sizes: sizes.to_vec(), wider: OnceLock::new(), outputs })
    }

    /// Whether the text overflows nowhere in f32 where it does not in f64.
    pub fn is_steady(&self) -> bool {
        self.outputs.iter().all(|output| output.steady)
    }

    /// Whether the oracle stores NaN somewhere, or NaN is right since a hidden element met what is
    /// not finite.
    pub(crate) fn holds_nan(&self) -> bool {
        self.outputs.iter().any(|output| output.or_nan.contains(&true) || output.exact.iter().any(|x| x.is_nan()))
    }

    /// The same, with NaN right only where the oracle has it.
    pub(crate) fn without_hidden_nan(mut self) -> Self {
        self.outputs.iter_mut().for_each(|output| output.or_nan.clear());
        self
    }

    /// Judges the outputs of a launch whose arguments were `arguments`.
    ///
    /// # Panics
    /// If an output is not among them: the reference was made for another kernel.
    pub fn check(&self, arguments: &[HostArgument]) -> Vec<OutputVerdict> {
        let found = |output: &OutputReference| {
            let tensor = arguments[output.param.index()].tensor().expect("the reference is of this kernel");
            let values = tensor.to_f64();
            output.at_places(|at| values[at])
        };
        let found: Vec<_> = self.outputs.iter().map(|output| Some(found(output))).collect();
        self.judge(&found, || Ok(arguments.to_vec())).expect("arguments are there")
    }

    /// Judges what the outputs hold at the known places, of those for which there is something.
    /// `arguments` gives what the reference was made of, if that is needed.
    pub(crate) fn judge(
        &self,
        found: &[Option<Vec<f64>>],
        arguments: impl FnOnce() -> Result<Vec<HostArgument>>,
    ) -> Result<Vec<OutputVerdict>> {
        let check = |outputs: &[OutputReference]| -> Vec<OutputVerdict> {
            outputs.iter().zip(found).filter_map(|(output, found)| Some(output.check(found.as_ref()?))).collect()
        };
        let verdicts = check(&self.outputs);
        if !verdicts.iter().any(OutputVerdict::is_off) {
            return Ok(verdicts);
        }
        let wider = match self.wider.get() {
            Some(outputs) => check(outputs),
            None => {
                let arguments = arguments()?;
                check(self.wider.get_or_init(|| self.scattered(&arguments)))
            }
        };
        Ok(verdicts.into_iter().zip(wider).map(|(verdict, wider)| if verdict.is_off() { wider } else { verdict }).collect())
    }

    /// The outputs with bounds for which further computations count, that round at random. One that
    /// fails, or stores to other places, since what it loads at depends on what it rounds, does not
    /// count.
    fn scattered(&self, arguments: &[HostArgument]) -> Vec<OutputReference> {
        let (ir, binding, views) = (self.kernel.ir(), self.kernel.binding(), views(arguments));
        let called = Called { kernel: ir, binding, sizes: &self.sizes, arguments: &views, block: None };
        let plain = Plain16::new(ir, binding);
        let scattered = (0..SCATTERED).map(|seed| Scattered::new(plain, seed));
        let summing = (SCATTERED..SCATTERED + SUMMING).map(|seed| Scattered::new(plain, seed).summing_before_rounding());
        let run = |arithmetic| self.excerpt.run(&called, Hidden::Absent, arithmetic).ok();
        let runs: Vec<_> = scattered.chain(summing).filter_map(run).collect();
        let wider = |output: &OutputReference| {
            let stored = runs.iter().map(|run| self.excerpt.gather(run, output.param));
            let stored: Vec<_> = stored.filter(|(places, _)| *places == output.places).map(|(_, values)| values).collect();
            OutputReference { bound: output.bound.beside(output.elem, &output.exact, &stored), ..output.clone() }
        };
        self.outputs.iter().map(wider).collect()
    }
}

/// How many further computations count where errors are larger than the baseline allows, and how
/// many more that sum the rows of matrices before they round these.
const SCATTERED: u64 = 4;
const SUMMING: u64 = 2;

/// What the oracle stores to each output, in row-major order; 0 where it stores nothing.
///
/// # Errors
/// The arguments do not fit the kernel.
pub(crate) fn exact(kernel: &BoundKernel, sizes: &[i64], arguments: &[HostArgument]) -> Result<Vec<(ParamId, Vec<f64>)>> {
    let (ir, binding, arguments) = (kernel.ir(), kernel.binding(), views(arguments));
    let called = Called { kernel: ir, binding, sizes, arguments: &arguments, block: None };
    let failed = |e: interpret::InterpretError| failed(ir, &e);
    let excerpt = Excerpt::new(&called, Programs::All).map_err(failed)?;
    let found = excerpt.run(&called, Hidden::Absent, Exact64).map_err(failed)?;
    let outputs = ir.params.iter().filter(|(_, p)| p.kind.is_written()).map(|(param, _)| {
        let mut values = vec![0.0; excerpt.shape(param).iter().product()];
        let (places, stored) = excerpt.gather(&found, param);
        places.into_iter().zip(stored).for_each(|(at, value)| values[at] = value);
        (param, values)
    });
    Ok(outputs.collect())
}

/// Whether programs store rows of an output whole, or parts of a known length.
fn stores_rows(kernel: &Kernel, output: ParamId) -> bool {
    kernel.walk().into_iter().any(|(_, id)| match &kernel.ops[id].op {
        Op::Store { tensor, at, .. } => *tensor == output && at.len() > 1 && matches!(at.last(), Some(At::Range { .. })),
        _ => false,
    })
}

impl Reference {
    /// Judges what another text of the same parameters stores: the same programs of it, interpreted in f32, with loops that walk
    /// tiles of `block` positions. What it does not store counts as NaN.
    ///
    /// # Errors
    /// The text cannot be executed on these arguments.
    pub fn check_text(
        &self,
        text: &Kernel,
        binding: &Binding,
        sizes: &[i64],
        arguments: &[HostArgument],
        block: usize,
    ) -> Result<Vec<OutputVerdict>> {
        let mut found = self.interpret(text, binding, sizes, arguments, block, Ir32)?;
        for (output, found) in self.outputs.iter().zip(&mut found) {
            found.iter_mut().for_each(|x| *x = super::launch::rounded(output.elem, *x));
        }
        let found: Vec<_> = found.into_iter().map(Some).collect();
        self.judge(&found, || Ok(arguments.to_vec()))
    }

    /// How far another text is from the oracle if it is not rounded either: the largest difference of an element, relative to the
    /// largest value of its output; infinite where one is NaN or infinite and the other something else.
    ///
    /// # Errors
    /// The text cannot be executed on these arguments.
    pub fn difference(
        &self,
        text: &Kernel,
        binding: &Binding,
        sizes: &[i64],
        arguments: &[HostArgument],
        block: usize,
    ) -> Result<f64> {
        let stored = self.interpret(text, binding, sizes, arguments, block, Exact64)?;
        let mut most = 0.0f64;
        for (output, stored) in self.outputs.iter().zip(&stored) {
            let largest = output.exact.iter().filter(|x| x.is_finite()).fold(0.0f64, |m, x| m.max(x.abs()));
            for (&exact, &found) in output.exact.iter().zip(stored) {
                let same = exact == found || (exact.is_nan() && found.is_nan());
                let difference = if same { 0.0 } else { (exact - found).abs() / largest };
                most = most.max(if difference.is_nan() { f64::INFINITY } else { difference });
            }
        }
        Ok(most)
    }

    /// What a text stores at the places of every output; NaN where it stores nothing.
    fn interpret<A: Arithmetic + Copy>(
        &self,
        text: &Kernel,
        binding: &Binding,
        sizes: &[i64],
        arguments: &[HostArgument],
        block: usize,
        arithmetic: A,
    ) -> Result<Vec<Vec<f64>>> {
        let views = views(arguments);
        let called = Called { kernel: text, binding, sizes, arguments: &views, block: Some(block) };
        let found = self.excerpt.run(&called, Hidden::Absent, arithmetic).map_err(|e| failed(text, &e))?;
        let stored = self.outputs.iter().map(|output| {
            let (places, values) = self.excerpt.gather(&found, output.param);
            let value = |at: &usize| places.binary_search(at).map_or(f64::NAN, |found| values[found]);
            output.places.iter().map(value).collect()
        });
        Ok(stored.collect())
    }
}

/// Arguments as the interpreter takes them.
fn views(arguments: &[HostArgument]) -> Vec<interpret::Argument<'_>> {
    arguments
        .iter()
        .map(|argument| match argument {
            HostArgument::Input(tensor) => interpret::Argument::Input(tensor.view()),
            HostArgument::Output(_) => interpret::Argument::Output,
            HostArgument::F32(x) => interpret::Argument::F32(*x),
            HostArgument::I32(x) => interpret::Argument::I32(*x),
        })
        .collect()
}

fn failed(kernel: &Kernel, error: &interpret::InterpretError) -> crate::Error {
    KernelError::Execute { kernel: kernel.name.clone(), reason: error.to_string() }.into()
}

#[cfg(test)]
mod tests {
    use flashtile_dsl::interpret::HostTensor;
    use flashtile_dsl::ir::{Elem, SourceText};

    use super::*;
    use crate::kernel::Kernel;

    /// A kernel in f32 of `(N)` inputs and one output, and what it is called with.
    fn call(text: &str, inputs: &[Vec<f64>]) -> (BoundKernel, Vec<i64>, Vec<HostArgument>) {
        let source = SourceText { name: "f.rs".to_owned(), text: text.into(), first_line: 1 };
        let kernel = Kernel::from_source(&source).expect("reads").remove(0);
        let bound = kernel.bind(Elem::F32, Vec::<(String, i64)>::new()).expect("binds");
        let n = inputs[0].len();
        let tensor = |values: &[f64]| HostTensor::from_f64(Elem::F32, &[n], values);
        let arguments = inputs.iter().map(|values| HostArgument::Input(tensor(values)));
        let arguments = arguments.chain([HostArgument::Output(tensor(&vec![0.0; n]))]).collect();
        (bound, vec![n as i64], arguments)
    }

    /// Judges values of the output.
    fn judged(reference: &Reference, arguments: &[HostArgument], values: &[f64]) -> OutputVerdict {
        let mut arguments = arguments.to_vec();
        *arguments.last_mut().expect("an output") =
            HostArgument::Output(HostTensor::from_f64(Elem::F32, &[values.len()], values));
        reference.check(&arguments).remove(0)
    }

    /// Further computations widen the bound of what is off, and not by more than luck explains.
    #[test]
    fn what_is_far_off_is_wrong_beside_several_computations_too() {
        let text = "pub fn f(x: &Tensor<f32, (N)>, y: &mut Tensor<f32, (N)>) {
            let n = program(tiles(N));
            store(y, [n], exp(sin(load(x, [n])) * 90.0));
        }";
        let (kernel, sizes, arguments) = call(text, &[vec![0.7, 0.72]]);
        let reference = Reference::new(&kernel, &sizes, &arguments, Programs::All).expect("runs");
        let output = &reference.outputs[0];
        let by = |error: f64| output.exact.iter().map(|x| x + error).collect::<Vec<_>>();
        let within = judged(&reference, &arguments, &by(0.5 * output.bound.mean()));
        assert!(within.passed() && within.bound == output.bound, "{within:?}");
        let far = judged(&reference, &arguments, &by(2.0 * Bound::LUCK * output.bound.max()));
        assert!(!far.passed() && far.bound.max() >= output.bound.max(), "{far:?}");
        assert!(far.bound.max() <= Bound::LUCK * output.bound.max() + output.bound.floor, "{far:?}");
    }

    /// What rounds at random is on the other side of a jump where a right computation is on it, and
    /// loads beyond a tensor. A wrong result stays wrong.
    #[test]
    fn a_text_that_jumps_does_not_widen_its_bound_without_end() {
        let jumps = "pub fn f(x: &Tensor<f32, (N)>, y: &mut Tensor<f32, (N)>) {
            let n = program(tiles(N));
            store(y, [n], load(x, [n]) * 0.001 + floor(pos(n).to::<f32>() * 0.1 * 10.0));
        }";
        let x: Vec<f64> = (0..64).map(|n| f64::from(n % 7) / 8.0).collect();
        let (kernel, sizes, arguments) = call(jumps, std::slice::from_ref(&x));
        let reference = Reference::new(&kernel, &sizes, &arguments, Programs::All).expect("runs");
        let wrong: Vec<f64> = reference.outputs[0].exact.iter().zip(&x).map(|(y, x)| y + 0.03 * x).collect();
        assert!(!judged(&reference, &arguments, &wrong).passed());

        let loads = "pub fn f(x: &Tensor<f32, (N)>, y: &mut Tensor<f32, (N)>) {
            let n = program(N);
            let at = floor(load(x, [0]) / 3.0 * 3.0).to::<i32>();
            store(y, [n], load(x, [N - 1 - at]) * 0.3);
        }";
        let (kernel, sizes, arguments) = call(loads, &[vec![2.0, 5.0, 7.0]]);
        let reference = Reference::new(&kernel, &sizes, &arguments, Programs::All).expect("runs");
        let wrong: Vec<f64> = reference.outputs[0].exact.iter().map(|y| y * 1.03).collect();
        assert!(!judged(&reference, &arguments, &wrong).passed());
    }
}

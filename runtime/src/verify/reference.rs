//! The oracle and the baseline: what a launch must give, element by element, and what a plain 16-bit library would.

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
        Ok(Self { excerpt, kernel: kernel.clone(), sizes: sizes.to_vec(), outputs })
    }

    /// Whether the text overflows nowhere in f32 where it does not in f64.
    pub fn is_steady(&self) -> bool {
        self.outputs.iter().all(|output| output.steady)
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
        self.judge(&found, || Ok(arguments.to_vec())).expect("it has run on these")
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
        let wider = check(&self.scattered(&arguments()?)?);
        Ok(verdicts.into_iter().zip(wider).map(|(verdict, wider)| if verdict.is_off() { wider } else { verdict }).collect())
    }

    /// The outputs with bounds for which further computations count, that round at random.
    fn scattered(&self, arguments: &[HostArgument]) -> Result<Vec<OutputReference>> {
        let (ir, binding, views) = (self.kernel.ir(), self.kernel.binding(), views(arguments));
        let called = Called { kernel: ir, binding, sizes: &self.sizes, arguments: &views, block: None };
        let mut outputs = self.outputs.clone();
        for seed in 0..SCATTERED {
            let arithmetic = Scattered::new(Plain16::new(ir, binding), seed);
            let stored = self.excerpt.run(&called, Hidden::Absent, arithmetic).map_err(|e| failed(ir, &e))?;
            for output in &mut outputs {
                let (_, values) = self.excerpt.gather(&stored, output.param);
                output.bound = output.bound.beside(output.elem, &output.exact, &values);
            }
        }
        Ok(outputs)
    }
}

/// How many further computations count where errors are larger than the baseline allows.
const SCATTERED: u64 = 4;

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

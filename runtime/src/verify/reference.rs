//! The oracle and the baseline: what a launch must give, element by element, and what a plain 16-bit library would.

use std::collections::BTreeSet;

use flashtile_dsl::interpret::{self, Arithmetic, Blocks, Exact64, Hidden, Interpreter, Ir32, Plain16, Real, Stored};
use flashtile_dsl::ir::{Axis, AxisKind, Binding, Direction, Entity, Kernel, ParamId, ParamKind};
use rayon::prelude::*;

use super::launch::HostArgument;
use super::tolerance::{Bound, OutputReference, OutputVerdict};
use crate::error::Result;
use crate::kernel::{BoundKernel, KernelError};

/// Which programs of the grid the oracle runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Programs {
    /// All of them.
    All,
    /// At most so many: the first, the last and those beside them, the rest drawn with the seed.
    Sample {
        /// How many.
        count: usize,
        /// Seed of the draw.
        seed: u64,
    },
}

/// Rows that a program of the oracle owns: few, so that a sample reaches many places.
const ROWS: usize = 32;

/// What a launch must give.
#[derive(Clone, PartialEq, Debug)]
pub struct Reference {
    /// Programs of the grid that were run, with tiles of [`ROWS`] rows.
    programs: Vec<usize>,
    /// One per output, in order of the parameters.
    pub outputs: Vec<OutputReference>,
}

impl Reference {
    /// Runs the oracle and the baseline. `sizes` has the values of all sizes by [`flashtile_dsl::ir::SizeId`].
    ///
    /// # Errors
    /// The arguments do not fit the kernel.
    pub fn new(kernel: &BoundKernel, sizes: &[i64], arguments: &[HostArgument], programs: Programs) -> Result<Self> {
        let arguments = views(arguments);
        let (ir, binding) = (kernel.ir(), kernel.binding());
        let blocks = Blocks::WholeLoops(ROWS);
        let failed = |e: interpret::InterpretError| {
            crate::Error::from(KernelError::Execute { kernel: ir.name.clone(), reason: e.to_string() })
        };
        let exact = Interpreter::new(ir, binding, sizes, &blocks, &arguments, Exact64).map_err(failed)?;
        let plain_arithmetic = Plain16::new(ir, binding);
        let plain = Interpreter::new(ir, binding, sizes, &blocks, &arguments, plain_arithmetic).map_err(failed)?;
        // Any program may add to any place of a sum.
        let sums = ir.params.values().any(|p| matches!(&p.kind, ParamKind::Tensor(t) if t.direction == Direction::Sum));
        let chosen = choose(exact.programs(), if sums { Programs::All } else { programs });
        let exact_tiles = execute(&exact, &chosen).map_err(failed)?;
        let plain_tiles = execute(&plain, &chosen).map_err(failed)?;
        // Where a hidden element meets what is not finite, NaN is right too.
        let met_tiles = match exact.has_met() {
            false => None,
            true => {
                let met = Interpreter::new(ir, binding, sizes, &blocks, &arguments, Exact64).map_err(failed)?;
                Some(execute(&met.with_hidden(Hidden::Met), &chosen).map_err(failed)?)
            }
        };
        let outputs = ir
            .params
            .iter()
            .filter(|(_, p)| p.kind.is_written())
            .map(|(param, p)| {
                let (shape, elem) = (exact.shape(param).to_vec(), exact.elem(param));
                let gather = |tiles: &_| gather_of(ir, tiles, param, &shape);
                let (places, values) = gather(&exact_tiles);
                let (plain_places, mut plain) = gather_of(ir, &plain_tiles, param, &shape);
                let or_nan = met_tiles.as_ref().map_or_else(Vec::new, |tiles| {
                    let (_, met) = gather(tiles);
                    met.iter().map(|x| x.is_nan()).collect()
                });
                assert_eq!(places, plain_places, "the same text stores to the same places");
                // The plain computation stores to an output of this type.
                plain.iter_mut().for_each(|x| *x = super::launch::rounded(elem, *x));
                let terms = exact_tiles.iter().filter(|t| t.param == param).fold(0.0f64, |most, t| most.max(t.terms));
                let bound = Bound::new(elem, &values, &plain, plain_arithmetic.elem, terms);
                let steady = values.iter().zip(&plain).all(|(exact, plain)| !exact.is_finite() || plain.is_finite());
                OutputReference { param, name: p.name.clone(), elem, shape, places, exact: values, or_nan, bound, steady }
            })
            .collect();
        Ok(Self { programs: chosen, outputs })
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
        self.outputs
            .iter()
            .map(|output| {
                let tensor = arguments[output.param.index()].tensor().expect("the reference is of this kernel");
                output.check(&tensor.to_f64())
            })
            .collect()
    }
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
        let stored = self.interpret(text, binding, sizes, arguments, block, Ir32)?;
        let judge = |(output, stored): (&OutputReference, &Vec<f64>)| {
            let found: Vec<f64> = stored.iter().map(|&x| super::launch::rounded(output.elem, x)).collect();
            OutputVerdict::new(output, &found)
        };
        Ok(self.outputs.iter().zip(&stored).map(judge).collect())
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
    fn interpret<A: Arithmetic>(
        &self,
        text: &Kernel,
        binding: &Binding,
        sizes: &[i64],
        arguments: &[HostArgument],
        block: usize,
        arithmetic: A,
    ) -> Result<Vec<Vec<f64>>> {
        let failed = |e: interpret::InterpretError| {
            crate::Error::from(KernelError::Execute { kernel: text.name.clone(), reason: e.to_string() })
        };
        let views = views(arguments);
        let block_of = |axis: &Axis| if axis.kind == AxisKind::Program { ROWS } else { block };
        let blocks = Blocks::PerAxis(text.axes.values().map(block_of).collect());
        let interpreter = Interpreter::new(text, binding, sizes, &blocks, &views, arithmetic).map_err(failed)?;
        let tiles = execute(&interpreter, &self.programs).map_err(failed)?;
        let stored = self.outputs.iter().map(|output| {
            let (places, values) = gather_of(text, &tiles, output.param, &output.shape);
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

fn choose(programs: usize, which: Programs) -> Vec<usize> {
    match which {
        Programs::Sample { count, seed } if count < programs => {
            let edges = [0, 1, programs - 2, programs - 1];
            let mut chosen: BTreeSet<usize> = edges.into_iter().take(count).collect();
            let mut state = seed;
            while chosen.len() < count {
                state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
                let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
                let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
                chosen.insert(((mixed ^ (mixed >> 31)) % programs as u64) as usize);
            }
            chosen.into_iter().collect()
        }
        _ => (0..programs).collect(),
    }
}

fn execute<A: Arithmetic>(
    interpreter: &Interpreter<'_, A>,
    programs: &[usize],
) -> Result<Vec<Stored<A::Real>>, interpret::InterpretError> {
    let tiles: Vec<Vec<_>> = programs.par_iter().map(|&p| interpreter.run(p)).collect::<Result<_, _>>()?;
    Ok(tiles.into_iter().flatten().collect())
}

/// Places (row-major) and values of an output, by place: of everything stored, or of all that a sum
/// has.
fn gather_of<R: Real>(kernel: &Kernel, tiles: &[Stored<R>], param: ParamId, shape: &[usize]) -> (Vec<usize>, Vec<f64>) {
    let (places, values) = gather(tiles, param, shape);
    if kernel.tensor(param).direction != Direction::Sum {
        return (places, values);
    }
    let mut sums = vec![0.0; shape.iter().product()];
    places.into_iter().zip(values).for_each(|(place, value)| sums[place] += value);
    ((0..sums.len()).collect(), sums)
}

/// Places and values of everything stored to an output, by place.
fn gather<R: Real>(tiles: &[Stored<R>], param: ParamId, shape: &[usize]) -> (Vec<usize>, Vec<f64>) {
    let strides: Vec<usize> = (0..shape.len()).map(|d| shape[d + 1..].iter().product()).collect();
    let mut pairs = Vec::new();
    for tile in tiles.iter().filter(|t| t.param == param) {
        for (at, from) in tile.rows(&strides) {
            pairs.extend((0..tile.row_len()).map(|c| (at + c, tile.values[from + c].to_f64())));
        }
    }
    pairs.sort_by_key(|p| p.0);
    pairs.into_iter().unzip()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_hold_both_ends_and_nothing_twice() {
        let chosen = choose(100, Programs::Sample { count: 20, seed: 7 });
        assert_eq!(chosen.len(), 20);
        assert!([0, 1, 98, 99].iter().all(|p| chosen.contains(p)) && chosen.is_sorted());
        assert_eq!(chosen, choose(100, Programs::Sample { count: 20, seed: 7 }));
        assert_ne!(chosen, choose(100, Programs::Sample { count: 20, seed: 8 }));
        assert_eq!(choose(3, Programs::Sample { count: 20, seed: 7 }), [0, 1, 2]);
        assert_eq!(choose(3, Programs::All), [0, 1, 2]);
    }
}

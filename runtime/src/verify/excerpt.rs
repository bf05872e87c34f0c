//! What of a grid the oracle runs: some programs, and all that adds to some parts of sums.
//!
//! Any program may add to any place of a sum, so that programs of a sample tell nothing of it. Of a
//! sum parts are drawn, and [`Addends`] says which programs and iterations they need.

use std::collections::BTreeSet;
use std::ops::Range;

use flashtile_dsl::analysis::addends::{Addends, Along};
use flashtile_dsl::interpret::{Argument, Arithmetic, Blocks, Exact64, Hidden, InterpretError, Interpreter, Real, Stored};
use flashtile_dsl::ir::{AxisId, AxisKind, Binding, Entity, Kernel, ParamId, Type, ValueId};
use rayon::prelude::*;

/// Which programs of the grid the oracle runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Programs {
    /// All of them.
    All,
    /// At most so many: the first, the last and those beside them, the rest drawn with the seed. Of
    /// sums, as many parts at most.
    Sample {
        /// How many.
        count: usize,
        /// Seed of the draw.
        seed: u64,
    },
}

/// Rows that a program of the oracle owns: few, so that a sample reaches many places.
const ROWS: usize = 32;

/// A kernel with what it is called with.
#[derive(Clone, Copy)]
pub(super) struct Called<'a> {
    pub kernel: &'a Kernel,
    pub binding: &'a Binding,
    pub sizes: &'a [i64],
    pub arguments: &'a [Argument<'a>],
    /// Positions that loops walk at once; all of them where it is `None`.
    pub block: Option<usize>,
}

/// What is run of a grid.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Excerpt {
    /// Programs, with tiles of [`ROWS`] rows.
    programs: Vec<usize>,
    /// Whether these are all.
    all: bool,
    /// Parts of sums that are known: positions along each dimension. They do not overlap.
    parts: Vec<(ParamId, Vec<Range<usize>>)>,
    /// Shapes of the parameters.
    shapes: Vec<Vec<usize>>,
}

/// What an excerpt stores.
pub(super) struct Found<R> {
    tiles: Vec<Stored<R>>,
    /// Whether a hidden element met what is not finite.
    pub met: bool,
    /// What [`Interpreter::exponent_terms`] gives.
    pub exponent_terms: f64,
}

impl Excerpt {
    /// What to run of a kernel.
    pub fn new(called: &Called<'_>, which: Programs) -> Result<Self, InterpretError> {
        let whole = called.interpreter(called.kernel, &[], Exact64)?;
        let programs = choose(whole.programs(), which);
        let all = programs.len() == whole.programs();
        let sums = called.kernel.params.keys().filter(|&param| called.kernel.params[param].kind.is_sum());
        let parts = sums.flat_map(|sum| {
            let along = match all {
                true => vec![Along::All; whole.shape(sum).len()],
                false => Addends::of(called.kernel, sum).along,
            };
            parts(&along, whole.shape(sum), which).into_iter().map(move |part| (sum, part))
        });
        let (parts, shapes) = (parts.collect(), called.kernel.params.keys().map(|param| whole.shape(param).to_vec()).collect());
        Ok(Self { programs, all, parts, shapes })
    }

    /// Shape of a tensor parameter.
    pub fn shape(&self, param: ParamId) -> &[usize] {
        &self.shapes[param.index()]
    }

    /// Runs it, of this kernel or of another one with the same parameters.
    pub fn run<A: Arithmetic + Copy>(
        &self,
        called: &Called<'_>,
        rule: Hidden,
        arithmetic: A,
    ) -> Result<Found<A::Real>, InterpretError> {
        let whole = called.interpreter(called.kernel, &[], arithmetic)?.with_hidden(rule);
        let tiles = execute(&whole, &self.programs)?;
        let mut found = Found { tiles, met: whole.has_met(), exponent_terms: whole.exponent_terms() };
        if self.all {
            return Ok(found);
        }
        found.tiles.retain(|tile| !called.kernel.params[tile.param].kind.is_sum());
        for (sum, part) in &self.parts {
            let needed = Addends::of(called.kernel, *sum);
            let (mut dims, mut only) = (Vec::new(), Vec::new());
            for (along, range) in needed.along.iter().zip(part) {
                match *along {
                    Along::Program { dim, tile } => dims.extend(number(range, tile).map(|number| (dim, number))),
                    Along::Loop { at, tile } => only.extend(number(range, tile).map(|number| (at, number))),
                    Along::All => {}
                }
            }
            let interpreter = called.interpreter(&needed.kernel, &only, arithmetic)?.with_hidden(rule);
            let mut programs = Vec::new();
            for program in 0..interpreter.programs() {
                let at = interpreter.coordinates(program)?;
                programs.extend(dims.iter().all(|&(dim, number)| at[dim] == number).then_some(program));
            }
            let tiles = execute(&interpreter, &programs)?;
            found.tiles.extend(tiles.into_iter().filter(|tile| touches(tile, part)));
            found.met |= interpreter.has_met();
            found.exponent_terms = found.exponent_terms.max(interpreter.exponent_terms());
        }
        Ok(found)
    }

    /// Places (row-major) and values of an output, by place: of everything stored, or of the parts
    /// of a sum that are known.
    pub fn gather<R: Real>(&self, found: &Found<R>, param: ParamId) -> (Vec<usize>, Vec<f64>) {
        let shape = self.shape(param);
        let strides: Vec<usize> = (0..shape.len()).map(|d| shape[d + 1..].iter().product()).collect();
        let mut stored = Vec::new();
        for tile in found.tiles.iter().filter(|t| t.param == param) {
            for (at, from) in tile.rows(&strides) {
                stored.extend((0..tile.row_len()).map(|c| (at + c, tile.values[from + c].to_f64())));
            }
        }
        let parts: Vec<_> = self.parts.iter().filter(|(sum, _)| *sum == param).collect();
        if parts.is_empty() {
            stored.sort_by_key(|pair| pair.0);
            return stored.into_iter().unzip();
        }
        let mut places: Vec<usize> = parts.iter().flat_map(|(_, part)| places_of(part, &strides)).collect();
        places.sort_unstable();
        let mut values = vec![0.0; places.len()];
        let mut next = 0;
        for (place, value) in stored {
            // Most places follow the one before.
            if places.get(next) != Some(&place) {
                let Ok(at) = places.binary_search(&place) else { continue };
                next = at;
            }
            values[next] += value;
            next += 1;
        }
        (places, values)
    }
}

impl<R> Found<R> {
    /// The largest magnitude of the terms of what is stored to an output; 0 where it is no sum.
    pub fn terms(&self, param: ParamId) -> f64 {
        self.tiles.iter().filter(|t| t.param == param).fold(0.0f64, |most, t| most.max(t.terms))
    }
}

impl<'a> Called<'a> {
    /// Of a kernel with these parameters, which of some loops walks one tile.
    fn interpreter<'k, A: Arithmetic>(
        &self,
        kernel: &'k Kernel,
        only: &[(ValueId, usize)],
        arithmetic: A,
    ) -> Result<Interpreter<'k, A>, InterpretError>
    where
        'a: 'k,
    {
        let alone = |axis: AxisId| only.iter().any(|(at, _)| *kernel.ty(*at) == Type::Coord(axis));
        let block = |axis: AxisId| match kernel.axes[axis].kind {
            AxisKind::Program => ROWS,
            _ if alone(axis) => ROWS,
            _ => self.block.unwrap_or(usize::MAX),
        };
        let blocks = Blocks::PerAxis(kernel.axes.keys().map(block).collect());
        Ok(Interpreter::new(kernel, self.binding, self.sizes, &blocks, self.arguments, arithmetic)?.with_only(only.to_vec()))
    }
}

/// The programs to run of so many.
fn choose(programs: usize, which: Programs) -> Vec<usize> {
    match which {
        Programs::Sample { count, seed } if count < programs => {
            let edges = [0, 1, programs - 2, programs - 1];
            let mut chosen: BTreeSet<usize> = edges.into_iter().take(count).collect();
            let mut state = seed;
            while chosen.len() < count {
                chosen.insert((drawn(&mut state) % programs as u64) as usize);
            }
            chosen.into_iter().collect()
        }
        _ => (0..programs).collect(),
    }
}

fn drawn(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// The parts to know of a sum. They are numbered as programs are: the first, the last, some between.
fn parts(along: &[Along], shape: &[usize], which: Programs) -> Vec<Vec<Range<usize>>> {
    let step = |(along, &extent): (&Along, &usize)| match along {
        Along::Program { tile, .. } | Along::Loop { tile, .. } if !tile => 1,
        Along::All => extent.max(1),
        _ => ROWS,
    };
    let steps: Vec<usize> = along.iter().zip(shape).map(step).collect();
    let counts: Vec<usize> = shape.iter().zip(&steps).map(|(extent, &step)| extent.div_ceil(step)).collect();
    let part = |mut number: usize| {
        let mut part: Vec<Range<usize>> = Vec::new();
        for dim in (0..shape.len()).rev() {
            let start = number % counts[dim] * steps[dim];
            part.push(start..(start + steps[dim]).min(shape[dim]));
            number /= counts[dim];
        }
        part.reverse();
        part
    };
    choose(counts.iter().product(), which).into_iter().map(part).collect()
}

/// The number of a tile or position, if the range is within one.
fn number(range: &Range<usize>, tile: bool) -> Option<usize> {
    let step = if tile { ROWS } else { 1 };
    (range.start / step == range.end.saturating_sub(1) / step).then_some(range.start / step)
}

/// Whether a tile has places in a part.
fn touches<R>(tile: &Stored<R>, part: &[Range<usize>]) -> bool {
    tile.region.iter().zip(part).all(|(&(start, len), range)| start < range.end && range.start < start + len)
}

/// Places of a part in a tensor of these strides.
fn places_of(part: &[Range<usize>], strides: &[usize]) -> Vec<usize> {
    part.iter().zip(strides).fold(vec![0], |places, (range, stride)| {
        places.iter().flat_map(|place| range.clone().map(move |n| place + n * stride)).collect()
    })
}

fn execute<A: Arithmetic>(interpreter: &Interpreter<'_, A>, programs: &[usize]) -> Result<Vec<Stored<A::Real>>, InterpretError> {
    let tiles: Vec<Vec<_>> = programs.par_iter().map(|&p| interpreter.run(p)).collect::<Result<_, _>>()?;
    Ok(tiles.into_iter().flatten().collect())
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

    #[test]
    fn parts_of_sums_are_positions_and_tiles_and_whole_dimensions() {
        let along = [Along::Program { dim: 0, tile: false }, Along::Program { dim: 1, tile: true }, Along::All];
        let known = parts(&along, &[3, 70, 5], Programs::Sample { count: 2, seed: 0 });
        assert_eq!(known, [vec![0..1, 0..32, 0..5], vec![0..1, 32..64, 0..5]]);
        let all = parts(&along, &[3, 70, 5], Programs::All);
        assert_eq!((all.len(), &all[8]), (9, &vec![2..3, 64..70, 0..5]));
        let places: BTreeSet<usize> = all.iter().flat_map(|part| places_of(part, &[350, 5, 1])).collect();
        assert!(places.into_iter().eq(0..1050), "each place once");
    }
}

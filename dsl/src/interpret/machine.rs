//! The interpreter: a kernel with all that it is called with, executed program by program.

use std::sync::atomic::Ordering;

use super::arithmetic::{Exact64, Ir32, Plain16, Rounding, Scattered};
use super::call::{Blocks, Call};
use super::error::InterpretError;
use super::execution::execute;
use super::hidden::Hidden;
use super::memory::{Argument, Stored};
use crate::ir::{Binding, Elem, Entity, Kernel, ParamId, ValueId};

/// A kernel with its sizes, block sizes and arguments, ready to be executed program by program.
///
/// Programs are independent: they may run in any order and in parallel.
#[derive(Debug)]
pub struct Interpreter<'a, A> {
    call: Call<'a>,
    arithmetic: A,
}

impl<'a, A: Arithmetic> Interpreter<'a, A> {
    /// Checks that everything fits. `sizes` has the values of all sizes by [`crate::ir::SizeId`];
    /// the values of const sizes are taken from the binding.
    ///
    /// # Errors
    /// Any [`InterpretError`] but those of accesses and divisions, which only execution can find.
    pub fn new(
        kernel: &'a Kernel,
        binding: &'a Binding,
        sizes: &[i64],
        blocks: &Blocks,
        arguments: &[Argument<'a>],
        arithmetic: A,
    ) -> Result<Self, InterpretError> {
        Ok(Self { call: Call::new(kernel, binding, sizes, blocks, arguments)?, arithmetic })
    }

    /// With this rule for hidden elements.
    #[must_use]
    pub fn with_hidden(mut self, rule: Hidden) -> Self {
        self.call.rule = rule;
        self
    }

    /// With these loops walking one tile only: by coordinate, its number.
    #[must_use]
    pub fn with_only(mut self, tiles: Vec<(ValueId, usize)>) -> Self {
        self.call.only = tiles;
        self
    }

    /// Where a program is in each dimension of the grid.
    ///
    /// # Errors
    /// [`InterpretError::Program`].
    pub fn coordinates(&self, program: usize) -> Result<Vec<usize>, InterpretError> {
        self.call.coordinates(program)
    }

    /// Whether, in the programs that ran, a hidden element held NaN or met what is not finite: then
    /// [`Hidden::Met`] gives other results that are right.
    pub fn has_met(&self) -> bool {
        self.call.met.load(Ordering::Relaxed)
    }

    /// The largest magnitude of the terms of differences whose exponential was taken, in the programs
    /// that ran, where the exponential is between `e^-17` and `e^17` and the terms are
    /// no larger than 32768; and of what is no difference, up to 88. The exponential of `s - m` may
    /// be off by half a unit in the last place of `m`, relative to it: compiled kernels round `m`
    /// times `log2(e)` once, and take it from a product that is exact.
    pub fn exponent_terms(&self) -> f64 {
        f64::from_bits(self.call.exponent_terms.load(Ordering::Relaxed))
    }

    /// Number of programs in the grid.
    pub fn programs(&self) -> usize {
        self.call.programs()
    }

    /// Shape of the tensor parameter; empty for a scalar.
    pub fn shape(&self, param: ParamId) -> &[usize] {
        &self.call.shapes[param.index()]
    }

    /// Element type of the tensor parameter, with type parameters bound.
    pub fn elem(&self, param: ParamId) -> Elem {
        self.call.elem(param)
    }

    /// Executes one program (numbered row-major over the grid) and returns the tiles it stores, in
    /// order.
    ///
    /// # Errors
    /// [`InterpretError::Program`] or [`InterpretError::OutOfBounds`].
    pub fn run(&self, program: usize) -> Result<Vec<Stored<A::Real>>, InterpretError> {
        A::run(self, program)
    }
}

/// A [`Rounding`] that the interpreter is compiled for: [`Exact64`], [`Ir32`], [`Plain16`] and
/// [`Scattered`].
pub trait Arithmetic: Rounding {
    /// What [`Interpreter::run`] calls. Not generic in the implementations, so that the interpreter
    /// is compiled with this crate and its optimisation level, not with the crate that uses it.
    #[doc(hidden)]
    fn run(interpreter: &Interpreter<'_, Self>, program: usize) -> Result<Vec<Stored<Self::Real>>, InterpretError>;
}

macro_rules! compiled_here {
    ($($arithmetic:ty),*) => {$(
        impl Arithmetic for $arithmetic {
            fn run(interpreter: &Interpreter<'_, Self>, program: usize) -> Result<Vec<Stored<Self::Real>>, InterpretError> {
                execute(&interpreter.call, &interpreter.arithmetic, program)
            }
        }
    )*};
}

compiled_here!(Exact64, Ir32, Plain16, Scattered);

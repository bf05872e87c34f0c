//! What can be wrong with the data given to the interpreter.

use crate::ir::{Elem, Span};

/// Why a program cannot be executed. Names the argument or size, and both values.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InterpretError {
    /// Type parameters or const sizes without a value.
    #[error("kernel `{kernel}` needs a binding for {}", missing.join(", "))]
    Unbound {
        /// The kernel.
        kernel: String,
        /// What is missing.
        missing: Vec<String>,
    },
    /// A size without a value.
    #[error("kernel `{kernel}` needs a value for size {size}")]
    MissingSize {
        /// The kernel.
        kernel: String,
        /// The size.
        size: String,
    },
    /// A size expression that gives no whole number, or a negative one.
    #[error("`{text}` is not a whole number of elements with these sizes")]
    NotAnExtent {
        /// The expression.
        text: String,
    },
    /// A block of no positions.
    #[error("axis `{axis}` has block size 0; the least is 1")]
    EmptyBlock {
        /// The axis.
        axis: String,
    },
    /// A block size too few or too many.
    #[error("the kernel has {expected} tile axes, but {found} block sizes were given")]
    BlockCount {
        /// Axes of the kernel.
        expected: usize,
        /// Block sizes given.
        found: usize,
    },
    /// Wrong number of arguments.
    #[error("kernel `{kernel}` takes {expected} arguments, but {found} were given")]
    ArgumentCount {
        /// The kernel.
        kernel: String,
        /// Parameters.
        expected: usize,
        /// Arguments.
        found: usize,
    },
    /// A tensor for a scalar, an input for an output, or the like.
    #[error("argument `{name}` must be {expected}, but is {found}")]
    Kind {
        /// The parameter.
        name: String,
        /// What is declared.
        expected: &'static str,
        /// What was given.
        found: &'static str,
    },
    /// A tensor of another element type.
    #[error("argument `{name}` must hold {expected}, but holds {found}", expected = expected.name(), found = found.name())]
    Element {
        /// The parameter.
        name: String,
        /// Type declared.
        expected: Elem,
        /// Type held.
        found: Elem,
    },
    /// A tensor of another shape.
    #[error("argument `{name}` must have shape {expected:?}, but has {found:?}")]
    Shape {
        /// The parameter.
        name: String,
        /// Shape declared, with these sizes.
        expected: Vec<usize>,
        /// Shape given.
        found: Vec<usize>,
    },
    /// A tensor whose last dimension is not contiguous, or whose strides are fewer than its dimensions.
    #[error("argument `{name}` needs one stride per dimension and a contiguous last one, but has {strides:?}")]
    Strides {
        /// The parameter.
        name: String,
        /// Strides given, in elements.
        strides: Vec<usize>,
    },
    /// A tensor that reaches beyond its memory.
    #[error("argument `{name}` reaches byte {needed}, but its memory has {found}")]
    Memory {
        /// The parameter.
        name: String,
        /// Bytes that shape and strides need.
        needed: usize,
        /// Bytes given.
        found: usize,
    },
    /// A program that is not in the grid.
    #[error("program {program} is not in the grid of {programs}")]
    Program {
        /// The program asked for.
        program: usize,
        /// How many there are.
        programs: usize,
    },
    /// A load or store outside of its tensor.
    #[error("`{name}` is accessed at {start}..{end} of dimension {dimension}, which has {extent} elements")]
    OutOfBounds {
        /// The parameter.
        name: String,
        /// The dimension, from 0.
        dimension: usize,
        /// First element accessed.
        start: i64,
        /// One past the last element accessed.
        end: i64,
        /// Elements that there are.
        extent: usize,
        /// The op in the kernel text.
        span: Span,
    },
}

impl InterpretError {
    /// The op that failed, where execution found the error.
    pub fn span(&self) -> Option<Span> {
        match self {
            InterpretError::OutOfBounds { span, .. } => Some(*span),
            _ => None,
        }
    }
}

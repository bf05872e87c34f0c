//! Errors of making and viewing tensors.

use flashtile_dsl::ir::Elem;

/// Why a tensor cannot be made or viewed as asked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// The number of values is not that of the shape.
    #[error("shape {shape:?} has {expected} elements, but {found} values were given")]
    Length {
        /// The shape.
        shape: Vec<usize>,
        /// Its number of elements.
        expected: usize,
        /// Values given.
        found: usize,
    },
    /// The shape has more elements than an address can count.
    #[error("shape {0:?} has more than 2^63 elements")]
    TooLarge(Vec<usize>),
    /// As many strides as dimensions are needed.
    #[error("shape {shape:?} has {} dimensions, but {} strides were given: {strides:?}", shape.len(), strides.len())]
    Rank {
        /// The shape.
        shape: Vec<usize>,
        /// The strides.
        strides: Vec<usize>,
    },
    /// A view reaches beyond the memory of the tensor.
    #[error(
        "a view of shape {shape:?} with strides {strides:?} at offset {offset} reaches element {last}, but the memory holds {len}"
    )]
    Bounds {
        /// Shape of the view.
        shape: Vec<usize>,
        /// Strides of the view, in elements.
        strides: Vec<usize>,
        /// First element of the view.
        offset: usize,
        /// Last element that it reaches.
        last: usize,
        /// Elements of the memory.
        len: usize,
    },
    /// The last dimension is not contiguous.
    #[error("the last dimension must be contiguous, but shape {shape:?} has strides {strides:?}; make it the last with stride 1")]
    NotContiguous {
        /// Shape.
        shape: Vec<usize>,
        /// Strides, in elements.
        strides: Vec<usize>,
    },
    /// The tensor holds another element type.
    #[error("the tensor holds {found}, not {expected}", found = found.name(), expected = expected.name())]
    Element {
        /// Type asked for.
        expected: Elem,
        /// Type it holds.
        found: Elem,
    },
    /// Not the name of an element type that can be in memory.
    #[error("`{0}` is not an element type; expected f32, f16, bf16 or i32")]
    UnknownElement(String),
}

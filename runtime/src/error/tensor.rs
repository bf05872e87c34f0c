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
    /// Truth values are asked of elements that are no integers of one byte.
    #[error("elements of {0} are no truth values; those of u8, i8 and bool are")]
    NotBytes(&'static str),
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
    /// A dimension that the tensor does not have.
    #[error("there is no dimension {dimension} in shape {shape:?}; dimensions count from 0")]
    Dimension {
        /// The dimension asked for.
        dimension: usize,
        /// The shape.
        shape: Vec<usize>,
    },
    /// A slice or an index beyond the extent of a dimension.
    #[error("positions {start}..{end} of dimension {dimension} are not in shape {shape:?}")]
    Range {
        /// The dimension.
        dimension: usize,
        /// First position asked for.
        start: usize,
        /// One past the last.
        end: usize,
        /// The shape.
        shape: Vec<usize>,
    },
    /// An order of dimensions that does not name each once.
    #[error("{order:?} is not an order of the dimensions of shape {shape:?}; name each of 0..{} once", shape.len())]
    Order {
        /// The order asked for.
        order: Vec<usize>,
        /// The shape.
        shape: Vec<usize>,
    },
    /// A shape to which a tensor cannot be repeated.
    #[error("shape {shape:?} cannot be broadcast to {to:?}; aligned at the right, each extent must be the same or 1")]
    Broadcast {
        /// The shape.
        shape: Vec<usize>,
        /// The shape asked for.
        to: Vec<usize>,
    },
    /// A shape with another number of elements.
    #[error("shape {shape:?} cannot be reshaped to {to:?}, which has another number of elements")]
    ReshapeLength {
        /// The shape.
        shape: Vec<usize>,
        /// The shape asked for.
        to: Vec<usize>,
    },
    /// A shape that strides cannot describe.
    #[error(
        "shape {shape:?} with strides {strides:?} cannot be reshaped to {to:?} without a copy; copy it with to_vec and from_slice"
    )]
    ReshapeCopies {
        /// The shape.
        shape: Vec<usize>,
        /// Its strides, in elements.
        strides: Vec<usize>,
        /// The shape asked for.
        to: Vec<usize>,
    },
    /// A write to a view in which several elements are the same place.
    #[error("shape {shape:?} with strides {strides:?} has elements that share memory, so that it can be read only")]
    OverlapsItself {
        /// The shape.
        shape: Vec<usize>,
        /// Its strides, in elements.
        strides: Vec<usize>,
    },
    /// A null pointer to elements.
    #[error("the pointer to the elements of shape {0:?} is null")]
    Null(Vec<usize>),
    /// A pointer that no element can have.
    #[error("address {address:#x} is not a multiple of the {bytes} bytes of an element")]
    Misaligned {
        /// The address.
        address: u64,
        /// Bytes of an element.
        bytes: usize,
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

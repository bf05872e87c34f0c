//! Errors of the arguments of a launch.

use flashtile_dsl::ir::Elem;

/// Why the arguments of a launch do not fit the kernel. Names the argument.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArgumentError {
    /// Wrong number of arguments.
    #[error("kernel `{kernel}` takes {expected} arguments ({names}), but {found} were given")]
    Count {
        /// The kernel.
        kernel: String,
        /// Number of parameters.
        expected: usize,
        /// Their names.
        names: String,
        /// Number of arguments.
        found: usize,
    },
    /// An input of a kernel of a gradient that is neither an argument nor stored by a kernel
    /// before.
    #[error("`{name}` of kernel `{kernel}` is neither an argument of the gradient nor stored by a kernel before; name it")]
    NotNamed {
        /// The kernel.
        kernel: String,
        /// The parameter.
        name: String,
    },
    /// A tensor where a scalar is declared, the other way round, or a scalar of another type.
    #[error("argument `{name}` must be {expected}, but is {found}")]
    Kind {
        /// The parameter.
        name: String,
        /// What is declared.
        expected: String,
        /// What was given.
        found: String,
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
    /// A tensor of another rank.
    #[error("argument `{name}` must have {expected} dimensions {declared}, but has shape {found:?}")]
    Rank {
        /// The parameter.
        name: String,
        /// Number of dimensions declared.
        expected: usize,
        /// Shape declared, as in the kernel text.
        declared: String,
        /// Shape given.
        found: Vec<usize>,
    },
    /// A dimension that does not agree with the others or with a constant.
    #[error("argument `{name}`: dimension {dimension} must be {}, but is {found}", wanted(declared, *expected, because))]
    Extent {
        /// The parameter.
        name: String,
        /// The dimension, from 0.
        dimension: usize,
        /// The declared extent, as in the kernel text.
        declared: String,
        /// Its value.
        expected: i64,
        /// What fixed the value.
        because: String,
        /// Extent given.
        found: usize,
    },
    /// A dimension of which the kernel addresses more than there is.
    #[error(
        "argument `{name}`: dimension {dimension} must be at least {least}, because the kernel reads or writes as many, but is {found}"
    )]
    Short {
        /// The parameter.
        name: String,
        /// The dimension, from 0.
        dimension: usize,
        /// What the kernel addresses.
        least: usize,
        /// Extent given.
        found: usize,
    },
    /// More sizes or parameters than a launch can handle.
    #[error("kernel `{kernel}` has {sizes} sizes and {params} parameters; at most {max_sizes} and {max_params} are supported")]
    TooMany {
        /// The kernel.
        kernel: String,
        /// Its number of sizes.
        sizes: usize,
        /// Its number of parameters.
        params: usize,
        /// Sizes that are supported.
        max_sizes: usize,
        /// Parameters that are supported.
        max_params: usize,
    },
    /// A size that no argument determines.
    #[error("size `{size}` of kernel `{kernel}` follows from no argument: no tensor has a dimension that determines it")]
    Undetermined {
        /// The kernel.
        kernel: String,
        /// The size.
        size: String,
    },
    /// A dimension from which a size does not follow as a whole number.
    #[error("argument `{name}`: dimension {dimension} is {found}, from which {declared} gives no whole size")]
    Fraction {
        /// The parameter.
        name: String,
        /// The dimension, from 0.
        dimension: usize,
        /// The declared extent, as in the kernel text.
        declared: String,
        /// Extent given.
        found: usize,
    },
    /// A size beyond what generated code counts.
    #[error("argument `{name}`: dimension {dimension} is {found}; sizes must be at most 2^31 - 2^16")]
    TooLarge {
        /// The parameter.
        name: String,
        /// The dimension, from 0.
        dimension: usize,
        /// Extent given.
        found: usize,
    },
    /// A size that is negative, or an extent or a sum of sizes beyond what generated code counts.
    #[error("{text} of kernel `{kernel}` is {value}, and must be from 0 to {most}; sizes are {sizes}")]
    Size {
        /// The kernel.
        kernel: String,
        /// The size or extent, as in the kernel text.
        text: String,
        /// Its value, in words.
        value: String,
        /// The largest size.
        most: i64,
        /// All sizes, in words.
        sizes: String,
    },
    /// More programs than a launch can have.
    #[error("a launch of kernel `{kernel}` with {sizes} has more than 2^31 programs; launch it for parts of the tensors")]
    Programs {
        /// The kernel.
        kernel: String,
        /// All sizes, in words.
        sizes: String,
    },
    /// An index outside of the dimension that it addresses.
    #[error(
        "argument `{name}`: dimension {dimension} has extent {extent}, but the kernel addresses {value} (`{text}`{place}); sizes \
         are {sizes}"
    )]
    Outside {
        /// The parameter.
        name: String,
        /// The dimension, from 0.
        dimension: usize,
        /// Its extent.
        extent: i64,
        /// The index that is outside.
        value: i64,
        /// The index, as in the kernel text.
        text: String,
        /// Its line in the kernel text.
        place: String,
        /// All sizes and i32 scalars, in words.
        sizes: String,
    },
    /// A division by zero.
    #[error("kernel `{kernel}` divides by `{text}`{place}, which is 0; sizes are {sizes}")]
    Division {
        /// The kernel.
        kernel: String,
        /// The divisor, as in the kernel text.
        text: String,
        /// Its line in the kernel text.
        place: String,
        /// All sizes and i32 scalars, in words.
        sizes: String,
    },
    /// Integer arithmetic that leaves its width.
    #[error("`{text}`{place} of kernel `{kernel}` leaves {bits} bits; give smaller sizes or scalars than {sizes}")]
    Overflow {
        /// The kernel.
        kernel: String,
        /// The value, as in the kernel text.
        text: String,
        /// Its line in the kernel text.
        place: String,
        /// Bits of its type.
        bits: u32,
        /// All sizes and i32 scalars, in words.
        sizes: String,
    },
    /// Integer arithmetic of which it was not found out what it reaches.
    #[error(
        "what `{text}`{place} of kernel `{kernel}` reaches was not found out for {sizes}; bound it in the kernel text with min and \
         max"
    )]
    Undecided {
        /// The kernel.
        kernel: String,
        /// The value, as in the kernel text.
        text: String,
        /// Its line in the kernel text.
        place: String,
        /// All sizes and i32 scalars, in words.
        sizes: String,
    },
    /// An output of which several elements are one place in memory.
    #[error(
        "argument `{name}` is written by the kernel, but elements of it share their memory: shape {shape:?}, strides {strides:?}; \
         give it a layout without overlaps"
    )]
    Overlapping {
        /// The output.
        name: String,
        /// Its shape.
        shape: Vec<usize>,
        /// Its strides in elements.
        strides: Vec<usize>,
    },
    /// An output given as an input.
    #[error("argument `{name}` is written by the kernel; give it as `&mut`")]
    NotMutable {
        /// The parameter.
        name: String,
    },
    /// An output whose memory was lent for reading.
    #[error("argument `{name}` is written by the kernel, but its memory was lent for reading; lend it with Loans::write")]
    ReadOnly {
        /// The parameter.
        name: String,
    },
    /// A tensor whose last dimension is not contiguous.
    #[error(
        "argument `{name}` has shape {shape:?} and strides {strides:?}; its last dimension must be contiguous: copy it (`.contiguous()` \
         in Python, `.contiguous()?` in candle, `to_vec` and `from_slice` of flashtile's own tensors), or declare its dimensions in \
         another order"
    )]
    NotContiguous {
        /// The parameter.
        name: String,
        /// Shape given.
        shape: Vec<usize>,
        /// Its strides, in elements.
        strides: Vec<usize>,
    },
    /// An output of which an element lies in the memory of another argument.
    #[error(
        "argument `{name}` is written by the kernel and shares memory with argument `{other}`; give them memory of their own"
    )]
    Aliased {
        /// The output.
        name: String,
        /// The other argument.
        other: String,
    },
    /// A tensor on another device.
    #[error("argument `{name}` is on {found}, but the kernel is on {expected}; copy it there")]
    Device {
        /// The parameter.
        name: String,
        /// Device of the kernel.
        expected: String,
        /// Device of the tensor.
        found: String,
    },
    /// A tensor whose address or strides are not a multiple of its element's size.
    #[error("argument `{name}` lies at address {address:#x}, which is not a multiple of its {bytes}-byte elements")]
    Misaligned {
        /// The parameter.
        name: String,
        /// Its address.
        address: u64,
        /// Size of an element.
        bytes: usize,
    },
}

/// The extent that a dimension must have: `N = 7 (from dimension 2 of `k`)`. A dimension that is a
/// number, with no sizes to give a reason, is the number alone.
fn wanted(declared: &str, expected: i64, because: &str) -> String {
    match because {
        "" => expected.to_string(),
        because => format!("{declared} = {expected} ({because})"),
    }
}

//! Errors of kernels and of the arguments of a launch.

use flashtile_dsl::ir::Elem;

/// Why a kernel cannot be had, bound or compiled.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The text is not a kernel. Holds the rendered diagnostics, every error of the text.
    #[error("{count} error(s) in {source_name}\n{rendered}")]
    Text {
        /// Name of the source.
        source_name: String,
        /// Number of errors.
        count: usize,
        /// The errors with their place in the text.
        rendered: String,
    },
    /// A file of kernels cannot be read.
    #[error("failed to read kernel file {path}: {reason}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        reason: String,
    },
    /// No kernel of this name.
    #[error("no kernel `{name}` in {place}; there is {known}")]
    Unknown {
        /// Name asked for.
        name: String,
        /// Where it was looked for.
        place: String,
        /// Names that there are.
        known: String,
    },
    /// A file holds several kernels and none was named.
    #[error("{place} holds several kernels ({known}); name one as FILE:NAME")]
    Ambiguous {
        /// The file.
        place: String,
        /// Names that there are.
        known: String,
    },
    /// Type parameters or constants are not bound.
    #[error("kernel `{kernel}` needs {}; bind them", missing.join(", "))]
    Unbound {
        /// The kernel.
        kernel: String,
        /// Names of what is missing.
        missing: Vec<String>,
    },
    /// A binding names what the kernel does not have.
    #[error("kernel `{kernel}` has no {what} `{name}`; it has {known}")]
    NoSuchGeneric {
        /// The kernel.
        kernel: String,
        /// `type parameter` or `constant`.
        what: &'static str,
        /// Name given.
        name: String,
        /// Names that there are.
        known: String,
    },
    /// A type parameter is bound to a type that is not an element type of floats.
    #[error("type parameter `{name}` cannot be {found}; expected f32, f16 or bf16", found = found.name())]
    TypeArgument {
        /// The type parameter.
        name: String,
        /// Type given.
        found: Elem,
    },
    /// A constant is bound to a value that no tensor can have.
    #[error("constant `{name}` cannot be {value}; expected a positive number")]
    ConstArgument {
        /// The constant.
        name: String,
        /// Value given.
        value: i64,
    },
    /// No schedule is legal for the kernel on the architecture.
    #[error("kernel `{kernel}` has no schedule for {arch}: {reason}")]
    NoSchedule {
        /// The kernel.
        kernel: String,
        /// The architecture.
        arch: String,
        /// Why, in words.
        reason: String,
    },
    /// A schedule that was asked for is not legal.
    #[error("schedule {schedule} is not legal for kernel `{kernel}` on {arch}: {}", reasons.join("; "))]
    IllegalSchedule {
        /// The kernel.
        kernel: String,
        /// The architecture.
        arch: String,
        /// The schedule.
        schedule: String,
        /// All reasons against.
        reasons: Vec<String>,
    },
    /// Code generation failed.
    #[error("failed to generate code for kernel `{kernel}` on {arch}: {reason}")]
    Generate {
        /// The kernel.
        kernel: String,
        /// The architecture.
        arch: String,
        /// Why.
        reason: String,
    },
    /// The interpreter refused the kernel.
    #[error("failed to execute kernel `{kernel}` on the CPU: {reason}")]
    Execute {
        /// The kernel.
        kernel: String,
        /// Why.
        reason: String,
    },
    /// No such architecture.
    #[error("`{name}` is not an architecture; expected {known}")]
    UnknownArchitecture {
        /// Name given.
        name: String,
        /// Names that there are.
        known: String,
    },
}

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
    #[error("argument `{name}`: dimension {dimension} must be {declared} = {expected} ({because}), but is {found}")]
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
    /// A size beyond 2^31, which generated code cannot count.
    #[error("argument `{name}`: dimension {dimension} is {found}; sizes must be below 2^31")]
    TooLarge {
        /// The parameter.
        name: String,
        /// The dimension, from 0.
        dimension: usize,
        /// Extent given.
        found: usize,
    },
    /// An output given as an input.
    #[error("argument `{name}` is written by the kernel; give it as `&mut`")]
    NotMutable {
        /// The parameter.
        name: String,
    },
    /// An output that is the memory of another argument.
    #[error(
        "argument `{name}` is written by the kernel and shares its memory with argument `{other}`; give them memory of their own"
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

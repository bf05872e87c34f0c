//! Why an operator cannot run.

use candle_core::{DType, DeviceLocation};

/// Why an operator cannot run. Names the kernel or the input.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// flashtile refuses the kernel or an argument (`flashtile::Error::Argument` for an element
    /// type, a rank, an extent, or a last dimension that is not contiguous), or a device failed.
    #[error(transparent)]
    Flashtile(Box<flashtile::Error>),
    /// A text of several kernels, of which an operator has one.
    #[error("the text holds several kernels ({}); give one of `Kernel::from_source` to `Operator::new`", names.join(", "))]
    SeveralKernels {
        /// Their names.
        names: Vec<String>,
    },
    /// candle failed.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
    /// A type that kernels do not have.
    #[error("input `{name}` holds {dtype:?}, which kernels do not read; convert it with `to_dtype`, integers to I32")]
    DType {
        /// The parameter.
        name: String,
        /// What it holds.
        dtype: DType,
    },
    /// More dimensions than a launch takes.
    #[error("`{name}` has {rank} dimensions; {} are possible", flashtile::client::MAX_RANK)]
    Dimensions {
        /// The parameter.
        name: String,
        /// Its dimensions.
        rank: usize,
    },
    /// A type that candle does not have.
    #[error("output `{name}` holds {elem}, which candle's tensors do not")]
    OutputType {
        /// The parameter.
        name: String,
        /// Its element type.
        elem: &'static str,
    },
    /// A device that flashtile does not have.
    #[error("flashtile has no device for {0:?}; it runs on candle's CPU, and with the feature `cuda` on its CUDA devices")]
    NoDevice(DeviceLocation),
    /// Inputs on several devices.
    #[error("input `{name}` is on {found:?}, those before on {expected:?}; move it with `to_device`")]
    Device {
        /// The parameter.
        name: String,
        /// The device of the inputs before.
        expected: DeviceLocation,
        /// Where it is.
        found: DeviceLocation,
    },
    /// No input is a tensor, so nothing says on which device to run.
    #[error("kernel `{0}` was given no tensor, so that nothing says where it runs")]
    NoTensor(String),
    /// Wrong number of inputs.
    #[error("kernel `{kernel}` takes {} inputs ({}), but {found} were given", names.len(), names.join(", "))]
    Count {
        /// The kernel.
        kernel: String,
        /// Names of its inputs.
        names: Vec<String>,
        /// Number of inputs given.
        found: usize,
    },
    /// An input, an output, a size or a type that the kernel does not have, or an input that was
    /// named twice.
    #[error("kernel `{kernel}` has no further {what} `{name}`; it has {}", known.join(", "))]
    Unknown {
        /// The kernel.
        kernel: String,
        /// `input`, `output`, `size` or `type parameter`.
        what: &'static str,
        /// The name.
        name: String,
        /// The names that there are.
        known: Vec<String>,
    },
    /// An input that was not named.
    #[error("kernel `{kernel}` needs its input `{name}`")]
    Missing {
        /// The kernel.
        kernel: String,
        /// The parameter.
        name: String,
    },
    /// A kernel with a tensor that is read and written back.
    #[error("kernel `{kernel}` reads and writes `{name}`; an operator of candle makes its outputs anew")]
    InOut {
        /// The kernel.
        kernel: String,
        /// The parameter.
        name: String,
    },
    /// An order of dimensions that an output cannot have in memory.
    #[error(
        "output `{name}` of kernel `{kernel}` cannot lie in memory as {order:?}: \
             all of its {rank} dimensions are named once, the last one last"
    )]
    Layout {
        /// The kernel.
        kernel: String,
        /// The parameter.
        name: String,
        /// The order.
        order: Vec<usize>,
        /// Number of dimensions.
        rank: usize,
    },
    /// More inputs need gradients than an operator of candle can have.
    #[error(
        "of kernel `{kernel}` {} need gradients; candle's operators have at most three tensors: detach the others",
        names.join(", ")
    )]
    TooManyGradients {
        /// The kernel.
        kernel: String,
        /// The inputs.
        names: Vec<String>,
    },
}

/// `std::result::Result` with this crate's [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl From<flashtile::Error> for Error {
    fn from(error: flashtile::Error) -> Self {
        Error::Flashtile(Box::new(error))
    }
}

impl From<Error> for candle_core::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Candle(error) => error,
            other => candle_core::Error::wrap(other),
        }
    }
}

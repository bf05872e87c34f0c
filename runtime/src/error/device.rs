//! Errors of devices and their drivers.

/// What a device or its driver refused.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// Not the name of a device.
    #[error("`{0}` is not a device; expected cpu, cuda:N (N from 0) or emulator")]
    UnknownName(String),
    /// The driver library is missing.
    #[error("no CUDA driver; install the NVIDIA driver, or use device cpu (`flashtile doctor` says where it was looked for)")]
    NoDriver {
        /// Names given to the dynamic loader.
        looked_for: Vec<String>,
    },
    /// The driver library lacks a function that is needed.
    #[error("the CUDA driver library lacks `{symbol}`; a driver of version 12.0 or later is needed")]
    OldDriver {
        /// The missing symbol.
        symbol: String,
    },
    /// There is a driver, but no device of this number.
    #[error("no GPU number {ordinal}: the driver sees {count}; use cuda:N with N below that, or device cpu")]
    NoSuchGpu {
        /// Number asked for.
        ordinal: usize,
        /// Number of devices.
        count: usize,
    },
    /// No code can be made for a GPU of this compute capability.
    #[error("{name} has compute capability {}.{}, which is not supported; the supported ones are {known}", capability.0, capability.1)]
    UnknownArchitecture {
        /// Name of the GPU.
        name: String,
        /// Its compute capability.
        capability: (u32, u32),
        /// Names of all architectures.
        known: String,
    },
    /// Code of the architecture does not run on the device.
    #[error("code for {arch} does not run on {name} (compute capability {}.{}); choose an older architecture", capability.0, capability.1)]
    Incompatible {
        /// Architecture asked for.
        arch: String,
        /// Name of the GPU.
        name: String,
        /// Its compute capability.
        capability: (u32, u32),
    },
    /// Device memory is exhausted.
    #[error("out of memory on {device}: {requested} bytes asked for, {free} of {total} free; use smaller sizes or free tensors")]
    OutOfMemory {
        /// The device.
        device: String,
        /// Bytes asked for.
        requested: usize,
        /// Bytes free.
        free: usize,
        /// Bytes in all.
        total: usize,
    },
    /// A call of the driver failed.
    #[error("{device}: {call} failed with {code}: {message}")]
    Driver {
        /// The device.
        device: String,
        /// Name of the driver function.
        call: &'static str,
        /// Name of the error code.
        code: String,
        /// Description by the driver.
        message: String,
    },
    /// An access outside of an allocation.
    #[error("bytes {offset}..{end} are outside of an allocation of {bytes} bytes")]
    OutOfRange {
        /// First byte.
        offset: usize,
        /// One past the last byte.
        end: usize,
        /// Size of the allocation.
        bytes: usize,
    },
    /// More programs than a grid can have.
    #[error("{device}: a launch of these sizes has more than 2^31 programs; use smaller sizes")]
    GridTooLarge {
        /// The device.
        device: String,
    },
    /// A launch on the CPU in a process that was forked from one that had launched there.
    #[error(
        "cpu: this process was forked from one that had run kernels on the CPU, whose threads do not run here; start processes by \
         spawn, or fork before the first launch"
    )]
    Forked,
    /// A captured call needs more scratch memory than its stream has.
    #[error(
        "{device}: a captured call needs {bytes} bytes of scratch memory, and a capture must not allocate; launch once with these \
         sizes on the stream before the capture"
    )]
    ScratchInCapture {
        /// The device.
        device: String,
        /// Bytes needed.
        bytes: usize,
    },
    /// A stream of another device.
    #[error("the stream belongs to another device than {device}; make one with Stream::new(&device)")]
    OtherDevice {
        /// Device of the kernel.
        device: String,
    },
    /// A stream of the driver on a device without a driver.
    #[error("{0} has no streams of a driver; make one with Stream::new(&device)")]
    NoStreams(String),
    /// A graph of a device that cannot capture.
    #[error("{0} cannot capture launches into a graph; launch them on its stream")]
    NoGraphs(String),
    /// Foreign memory of a device that only has its own.
    #[error("{0} cannot use memory that was allocated elsewhere; copy it with Tensor::from_slice, or use device cpu")]
    NoForeignMemory(String),
    /// A write to memory that was lent for reading.
    #[error("{device}: the memory of the tensor was lent for reading; lend it with Loans::write to write to it")]
    ReadOnly {
        /// The device.
        device: String,
    },
    /// A loan in the order of a stream that captures a graph.
    #[error(
        "{device}: the stream captures a graph, which outlives a loan; capture launches on tensors of Tensor::from_raw_parts instead"
    )]
    LoanInCapture {
        /// The device.
        device: String,
    },
    /// A use of memory after its loan, or of a graph after its tensors.
    #[error("{device}: the memory is gone: its loan has ended, or its tensor was dropped; use it before that")]
    GivenBack {
        /// The device.
        device: String,
    },
}

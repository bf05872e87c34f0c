//! Why a verb failed: the library's error, or one of the command's own.

use flashtile::kernel::KernelError;
use flashtile_codegen::{Reason, ScheduleError, Summary};
use flashtile_dsl::syntax::{self, Style};

use crate::exit::Exit;

/// Why a verb failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The library refused.
    #[error(transparent)]
    Library(#[from] flashtile::Error),
    /// Options that do not fit each other or the kernel.
    #[error("{0}")]
    Usage(String),
    /// Text that is no schedule.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// A line of a file that is no schedule.
    #[error("{path}:{line}: {error}")]
    ScheduleFile {
        /// The file.
        path: String,
        /// Line, from 1.
        line: usize,
        /// What is wrong with it.
        error: ScheduleError,
    },
    /// No GPU to tune on.
    #[error("{reason}; {to_do}")]
    NoGpuToTune {
        /// Why there is none.
        reason: String,
        /// What to do.
        to_do: &'static str,
    },
    /// An input tensor, named.
    #[error("tensor `{name}` {reason}")]
    Tensor {
        /// The parameter's name.
        name: String,
        /// What is wrong and what to do.
        reason: String,
    },
    /// A file of tensors, as a whole.
    #[error("{path} {reason}")]
    TensorFile {
        /// The file.
        path: String,
        /// What is wrong and what to do.
        reason: String,
    },
    /// A file cannot be read or written.
    #[error("failed to {action} {path}: {reason}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: String,
        /// Why.
        reason: String,
    },
    /// The Python that was named for the peers is of no use.
    #[error("{python} cannot run the peers: {reason}; name a Python that has PyTorch with CUDA, or give --no-peers")]
    Peers {
        /// The interpreter.
        python: String,
        /// Why.
        reason: String,
    },
    /// Results are wrong.
    #[error("{0}")]
    Verification(String),
    /// Entries of the cache are damaged.
    #[error("{count} damaged entries in the cache; they were set aside and will be made again when needed")]
    DamagedCache {
        /// How many.
        count: usize,
    },
    /// The GPU is of no more use to this process.
    #[error("the device was lost: {0}; what was known before is kept")]
    DeviceLost(String),
    /// Ended by Ctrl-C.
    #[error("interrupted; what was known is kept")]
    Interrupted,
    /// Whoever read standard output is gone.
    #[error("standard output is closed")]
    Closed,
}

/// Result of a verb.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// A failure of a file operation.
    pub fn io(action: &'static str, path: &std::path::Path, error: &std::io::Error) -> Self {
        Self::Io { action, path: path.display().to_string(), reason: error.to_string() }
    }

    /// All reasons against a schedule, if these are why.
    pub fn reasons(&self) -> Option<&[Reason]> {
        let Self::Library(flashtile::Error::Kernel(error)) = self else { return None };
        match error {
            KernelError::IllegalSchedule { reasons, .. } | KernelError::NoSchedule { reasons, .. } => Some(reasons),
            _ => None,
        }
    }

    /// What to tell, with colours where errors of a kernel text can have them. `explain`: with all
    /// reasons against a schedule, a reason a line, in place of the three that matter most.
    pub fn text(&self, style: Style, explain: bool) -> String {
        match self {
            Self::Library(flashtile::Error::Kernel(KernelError::Text(errors))) => {
                let count = errors.list.len();
                format!("{}\n\n{count} error(s) in {}", syntax::render(errors, style), errors.source.name)
            }
            other => {
                let told = format!("flashtile: error: {other}");
                match other.reasons().filter(|reasons| Summary::of(reasons).more() > 0) {
                    Some(reasons) if explain => {
                        let all = Summary::all(reasons);
                        let lines: String = all.reasons().map(|reason| format!("\n  {reason}")).collect();
                        format!("{told}; all reasons:{lines}")
                    }
                    Some(_) => format!("{told}; --explain lists all"),
                    None => told,
                }
            }
        }
    }

    /// The exit code.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Library(error) => Exit::of(error),
            Self::Usage(_) => Exit::Usage,
            Self::Schedule(_) | Self::ScheduleFile { .. } => Exit::Schedule,
            Self::NoGpuToTune { .. } => Exit::Device,
            Self::Tensor { .. } | Self::TensorFile { .. } => Exit::Input,
            Self::Io { .. } => Exit::Io,
            Self::Peers { .. } => Exit::Toolchain,
            Self::Verification(_) => Exit::Verification,
            Self::DamagedCache { .. } => Exit::Cache,
            Self::DeviceLost(_) => Exit::Driver,
            Self::Interrupted => Exit::Interrupted,
            Self::Closed => Exit::Success,
        }
    }
}

macro_rules! from_library {
    ($($error:ty),+) => {
        $(impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self::Library(error.into())
            }
        })+
    };
}

from_library!(
    flashtile::cache::CacheError,
    flashtile::device::DeviceError,
    flashtile::kernel::KernelError,
    flashtile::launch::ArgumentError,
    flashtile::tensor::TensorError,
    flashtile::toolchain::ToolchainError,
    flashtile::tuner::TuneError
);

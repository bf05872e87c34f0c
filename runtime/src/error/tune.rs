//! Errors of tuning.

use crate::cache::Candidate;
use flashtile_dsl::inputs::DataError;

/// Why tuning gives no winner.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TuneError {
    /// A size is missing, unknown or no possible value.
    #[error("size `{name}` {reason}; kernel `{kernel}` has {known}")]
    Size {
        /// The kernel.
        kernel: String,
        /// The size.
        name: String,
        /// What is wrong.
        reason: String,
        /// Names of the sizes.
        known: String,
    },
    /// Data that an input cannot hold.
    #[error(transparent)]
    Data(#[from] DataError),
    /// There is neither a GPU nor an architecture.
    #[error(
        "{device} has no architecture to tune for; name one (`--arch sm_90a` of the command), and candidates are checked on the \
         emulator and ranked by the cost model; or use cuda:N"
    )]
    NoArchitecture {
        /// The device.
        device: String,
    },
    /// Every candidate was rejected.
    #[error("none of {candidates} candidates of kernel `{kernel}` works on {device}; the first was rejected because {first}")]
    NoneLeft {
        /// The kernel.
        kernel: String,
        /// The device or architecture.
        device: String,
        /// Number of candidates.
        candidates: usize,
        /// Why the first was rejected.
        first: String,
        /// Every candidate, and why it was rejected.
        evidence: Vec<Candidate>,
    },
    /// Kernels of a sequence that do not fit each other.
    #[error("tensor `{tensor}` of the sequence {reason}")]
    Sequence {
        /// The tensor.
        tensor: String,
        /// What is wrong.
        reason: String,
    },
    /// Cancelled or out of time before any candidate was measured.
    #[error("tuning of kernel `{kernel}` ended ({why}) before any candidate was measured; give it a larger budget")]
    Ended {
        /// The kernel.
        kernel: String,
        /// Why.
        why: String,
    },
}

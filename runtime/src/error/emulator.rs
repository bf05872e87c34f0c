//! Errors of the emulator.

use std::fmt::Write as _;

use flashtile_emulator::{Finding, LaunchError, LoadError, Options};

/// Findings that a message tells in full.
const TOLD: usize = 4;

/// What the emulator refused, or found.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmulatorError {
    /// Compiled code that the emulator does not understand.
    #[error("the emulator cannot load `{kernel}`, compiled for {arch}: {error}")]
    Load {
        /// Name of the kernel.
        kernel: String,
        /// Architecture it was compiled for.
        arch: String,
        /// Why.
        error: LoadError,
    },
    /// A launch that does not fit the code.
    #[error("the emulator cannot launch `{kernel}`: {error}")]
    Launch {
        /// Name of the kernel.
        kernel: String,
        /// Why.
        error: LaunchError,
    },
    /// A tensor of which there is no tensor map.
    #[error("the emulator cannot launch `{kernel}`: {reason}")]
    TensorMap {
        /// Name of the kernel.
        kernel: String,
        /// Why.
        reason: String,
    },
    /// Code that was given in place of what is generated, and that is not like it.
    #[error(
        "the code that was given for `{kernel}` cannot be executed: {reason}; begin with a copy of what `inspect --emit ptx` or `--emit cuda` prints for the same flags"
    )]
    OwnCode {
        /// Name of the kernel.
        kernel: String,
        /// Why.
        reason: String,
    },
    /// Faults of the kernel.
    #[error("{}", describe(kernel, arch, options, findings))]
    Findings {
        /// Name of the kernel.
        kernel: String,
        /// Architecture it was compiled for.
        arch: String,
        /// How it was executed.
        options: Box<Options>,
        /// All of them.
        findings: Vec<Finding>,
    },
    /// A workspace that was not left as it was found.
    #[error("`{kernel}` leaves {bytes} bytes of its workspace that are not zero: its next launch would find them")]
    Workspace {
        /// Name of the kernel.
        kernel: String,
        /// How many.
        bytes: usize,
    },
}

impl EmulatorError {
    /// The error, if the code was given by the user.
    pub(crate) fn of_own_code(self, kernel: &str) -> Self {
        let reason = match &self {
            Self::Load { error, .. } => error.to_string(),
            Self::Launch { error, .. } => error.to_string(),
            Self::TensorMap { reason, .. } => reason.clone(),
            Self::OwnCode { .. } | Self::Findings { .. } | Self::Workspace { .. } => return self,
        };
        Self::OwnCode { kernel: kernel.to_owned(), reason }
    }
}

fn describe(kernel: &str, arch: &str, options: &Options, findings: &[Finding]) -> String {
    let faults = if findings.len() == 1 { "fault" } else { "faults" };
    let mut text = format!("the emulator found {} {faults} in `{kernel}`, compiled for {arch} ({options}):", findings.len());
    for finding in findings.iter().take(TOLD) {
        // Writing to a string cannot fail.
        let _ = write!(text, "\n{finding}");
    }
    if findings.len() > TOLD {
        let _ = write!(text, "\nand {} more", findings.len() - TOLD);
    }
    text
}

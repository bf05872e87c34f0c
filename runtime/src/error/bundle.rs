//! Errors of bundles.

/// Why a bundle cannot be made or loaded.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BundleError {
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
    /// The directory for a bundle holds what is no bundle.
    #[error("{path} is not empty and holds no bundle; name a new directory")]
    NotEmpty {
        /// The directory.
        path: String,
    },
    /// A file is no JSON of the kind that it should be.
    #[error("{path} cannot be read: {reason}; make the bundle again")]
    Malformed {
        /// The file.
        path: String,
        /// Why.
        reason: String,
    },
    /// A file of another format or version of flashtile.
    #[error("the bundle is of flashtile {found} (format {format}), but this is {expected} (format {known}); make it again")]
    Version {
        /// Version of flashtile in the manifest.
        found: String,
        /// Its format.
        format: u32,
        /// Version of this flashtile.
        expected: String,
        /// The format that it reads.
        known: u32,
    },
    /// A file is not what the manifest says.
    #[error("{path} has the SHA-256 {found}, but the manifest says {expected}; it was changed or damaged")]
    Hash {
        /// The file.
        path: String,
        /// Of the manifest.
        expected: String,
        /// Of the file.
        found: String,
    },
    /// A name in a manifest that leads out of the bundle.
    #[error("the manifest names `{path}`, which is no file of the bundle")]
    Outside {
        /// The name.
        path: String,
    },
    /// No such kernel.
    #[error("the bundle has no kernel `{name}`; it has {known}")]
    NoKernel {
        /// Name asked for.
        name: String,
        /// Names that there are.
        known: String,
    },
    /// No code for a device.
    #[error("the bundle has code of `{kernel}` for {known}, and none that runs on {device}; bundle it with --arch {wanted}")]
    NoArchitecture {
        /// The kernel.
        kernel: String,
        /// Architectures that there are.
        known: String,
        /// The device.
        device: String,
        /// The architecture of the device.
        wanted: String,
    },
    /// A device that runs no compiled code.
    #[error("{device} runs no compiled code; load the bundle for cuda:N or the emulator")]
    NotCompiled {
        /// The device.
        device: String,
    },
    /// No variant for the arguments of a launch.
    #[error("the bundle has no code of `{kernel}` for these arguments; needed: {}; bundle it without --no-general", needed.join("; "))]
    NoVariant {
        /// The kernel.
        kernel: String,
        /// Facts that the arguments do not have.
        needed: Vec<String>,
    },
    /// What a bundle cannot carry.
    #[error("kernel `{kernel}` cannot be bundled: {reason}")]
    Unsupported {
        /// The kernel.
        kernel: String,
        /// Why.
        reason: String,
    },
    /// Two kernels of one name.
    #[error("two kernels of the bundle are called `{name}`; bundle them into two directories")]
    Twice {
        /// The name.
        name: String,
    },
}

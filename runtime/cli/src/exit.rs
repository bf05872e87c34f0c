//! Exit codes: documented, stable, one table. `--help` and `docs/cli.md` print it; a test walks it.

use flashtile::bundle::BundleError;
use flashtile::cache::CacheError;
use flashtile::device::{DeviceError, EmulatorError};
use flashtile::kernel::KernelError;
use flashtile::tensor::TensorError;
use flashtile::toolchain::ToolchainError;
use flashtile::tuner::TuneError;

/// How the command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// Everything asked for was done.
    Success,
    /// The command line is wrong.
    Usage,
    /// A kernel is wrong.
    Kernel,
    /// Input tensors are wrong.
    Input,
    /// A schedule is wrong.
    Schedule,
    /// No usable device or architecture.
    Device,
    /// A compiler or tool is missing.
    Toolchain,
    /// Results are wrong.
    Verification,
    /// Memory is exhausted.
    Memory,
    /// A file cannot be read or written.
    Io,
    /// The compiler or a tool failed.
    Compile,
    /// Tuning found nothing.
    Tuning,
    /// The cache or an export is damaged.
    Cache,
    /// The device or its driver failed.
    Driver,
    /// A bundle is damaged or of another version.
    Bundle,
    /// A bug.
    Internal,
    /// Ended by Ctrl-C.
    Interrupted,
}

/// A row of the table.
pub struct ExitCode {
    /// How the command ended.
    pub exit: Exit,
    /// The code.
    pub code: u8,
    /// Name, as `--json` prints it.
    pub name: &'static str,
    /// When it is returned.
    pub doc: &'static str,
}

const fn row(exit: Exit, code: u8, name: &'static str, doc: &'static str) -> ExitCode {
    ExitCode { exit, code, name, doc }
}

/// Every exit code, in ascending order.
pub const EXIT_CODES: &[ExitCode] = &[
    row(Exit::Success, 0, "success", "everything asked for was done"),
    row(
        Exit::Usage,
        2,
        "usage",
        "the command line is wrong: an unknown option, size, constant or device name, or --code that cannot be executed",
    ),
    row(Exit::Kernel, 3, "kernel", "the kernel is unknown or malformed, or uses what the target cannot do as it is asked for"),
    row(Exit::Input, 4, "input", "an input tensor is missing, misshapen, misaligned or of the wrong type"),
    row(
        Exit::Schedule,
        5,
        "schedule",
        "a schedule has an unknown knob or value, or is not legal for the kernel; or no schedule is, on the target",
    ),
    row(Exit::Device, 6, "device", "no such device, or an architecture that is not supported"),
    row(Exit::Toolchain, 7, "toolchain", "NVRTC or a tool is missing, cannot be loaded, or has the wrong version"),
    row(
        Exit::Verification,
        8,
        "verification",
        "a result differs from the float64 oracle by more than the tolerance, or the emulator found a fault",
    ),
    row(Exit::Memory, 9, "memory", "the device or the host has no memory for these sizes"),
    row(Exit::Io, 10, "io", "a file cannot be read or written"),
    row(Exit::Compile, 11, "compile", "NVRTC refused generated code, or a tool failed"),
    row(Exit::Tuning, 12, "tuning", "tuning ended without a winner"),
    row(Exit::Cache, 13, "cache", "the cache holds damaged entries, others can change it, or a file to import is no export"),
    row(Exit::Driver, 14, "driver", "a call of the GPU driver failed"),
    row(Exit::Bundle, 15, "bundle", "a bundle is damaged, was changed, or is of another version of flashtile"),
    row(Exit::Internal, 70, "internal", "a bug in flashtile; please report it"),
    row(Exit::Interrupted, 130, "interrupted", "ended by Ctrl-C; what was known is kept"),
];

impl Exit {
    /// Its row of the table.
    pub fn row(self) -> &'static ExitCode {
        EXIT_CODES.iter().find(|row| row.exit == self).expect("the table has every exit")
    }

    /// The exit code of an error of the library.
    pub fn of(error: &flashtile::Error) -> Self {
        use flashtile::Error;
        match error {
            Error::Device(e) => Self::of_device(e),
            Error::Kernel(e) => Self::of_kernel(e),
            Error::Toolchain(e) => Self::of_toolchain(e),
            Error::Emulator(EmulatorError::Findings { .. } | EmulatorError::Workspace { .. }) => Self::Verification,
            Error::Emulator(EmulatorError::OwnCode { .. }) => Self::Usage,
            Error::Tensor(TensorError::TooLarge(_)) => Self::Memory,
            Error::Tensor(_) | Error::Argument(_) => Self::Input,
            Error::Tune(TuneError::Size { .. } | TuneError::Data(_) | TuneError::NoArchitecture { .. }) => Self::Usage,
            Error::Tune(_) => Self::Tuning,
            Error::Cache(CacheError::Foreign { .. } | CacheError::Distrusted { .. }) => Self::Cache,
            Error::Cache(_) => Self::Io,
            Error::Bundle(e) => Self::of_bundle(e),
            _ => Self::Internal,
        }
    }

    fn of_bundle(error: &BundleError) -> Self {
        match error {
            BundleError::Io { .. } | BundleError::NotEmpty { .. } => Self::Io,
            BundleError::Malformed { .. }
            | BundleError::Version { .. }
            | BundleError::Hash { .. }
            | BundleError::Outside { .. } => Self::Bundle,
            BundleError::NoArchitecture { .. } | BundleError::NotCompiled { .. } => Self::Device,
            BundleError::NoVariant { .. } => Self::Input,
            BundleError::NoKernel { .. } | BundleError::Twice { .. } => Self::Usage,
            BundleError::Unsupported { .. } => Self::Kernel,
            _ => Self::Internal,
        }
    }

    fn of_device(error: &DeviceError) -> Self {
        match error {
            DeviceError::UnknownName(_) => Self::Usage,
            DeviceError::NoDriver { .. }
            | DeviceError::OldDriver { .. }
            | DeviceError::NoSuchGpu { .. }
            | DeviceError::UnknownArchitecture { .. }
            | DeviceError::Incompatible { .. }
            | DeviceError::NoStreams(_)
            | DeviceError::NoGraphs(_)
            | DeviceError::NoForeignMemory(_)
            | DeviceError::ReadOnly { .. }
            | DeviceError::GivenBack { .. }
            | DeviceError::LoanInCapture { .. } => Self::Device,
            DeviceError::OutOfMemory { .. } => Self::Memory,
            DeviceError::GridTooLarge { .. } => Self::Input,
            DeviceError::Driver { .. } => Self::Driver,
            _ => Self::Internal,
        }
    }

    fn of_kernel(error: &KernelError) -> Self {
        match error {
            KernelError::Read { .. } => Self::Io,
            KernelError::Unbound { .. }
            | KernelError::NoSuchGeneric { .. }
            | KernelError::TypeArgument { .. }
            | KernelError::ConstArgument { .. } => Self::Usage,
            KernelError::NoSchedule { .. } | KernelError::IllegalSchedule { .. } => Self::Schedule,
            KernelError::Execute { .. } => Self::Input,
            KernelError::UnknownArchitecture { .. } => Self::Device,
            _ => Self::Kernel,
        }
    }

    fn of_toolchain(error: &ToolchainError) -> Self {
        match error {
            ToolchainError::Compile { .. }
            | ToolchainError::Registers { .. }
            | ToolchainError::Call { .. }
            | ToolchainError::Tool { .. } => Self::Compile,
            _ => Self::Toolchain,
        }
    }
}

/// The table as text, for `--help`.
pub fn table() -> String {
    let lines = EXIT_CODES.iter().map(|row| format!("  {:>3}  {:<13} {}", row.code, row.name, row.doc));
    format!("Exit codes:\n{}", lines.collect::<Vec<_>>().join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_in_order_and_distinct() {
        assert!(EXIT_CODES.windows(2).all(|w| w[0].code < w[1].code));
        assert!(EXIT_CODES.iter().all(|row| row.exit.row().code == row.code && !row.doc.is_empty()));
        let names: std::collections::BTreeSet<_> = EXIT_CODES.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), EXIT_CODES.len());
    }

    #[test]
    fn errors_of_the_library_have_the_code_that_the_table_says() {
        let code = |error: flashtile::Error| Exit::of(&error).row().code;
        let table: Vec<(flashtile::Error, u8)> = vec![
            (DeviceError::UnknownName("x".into()).into(), 2),
            (DeviceError::NoDriver { looked_for: vec![] }.into(), 6),
            (DeviceError::UnknownArchitecture { name: "GPU".into(), capability: (3, 5), known: "sm_80".into() }.into(), 6),
            (DeviceError::OutOfMemory { device: "cuda:0".into(), requested: 8, free: 1, total: 4 }.into(), 9),
            (KernelError::Read { path: "x".into(), reason: "gone".into() }.into(), 10),
            (KernelError::Unknown { name: "x".into(), place: "y".into(), known: "z".into() }.into(), 3),
            (ToolchainError::Version { path: "x".into(), found: (11, 0), supported: "12.8".into() }.into(), 7),
            (CacheError::Foreign { path: "x".into(), reason: "y".into() }.into(), 13),
            (CacheError::Distrusted { root: "x".into(), reason: "y".into() }.into(), 13),
            (EmulatorError::OwnCode { kernel: "x".into(), reason: "y".into() }.into(), 2),
            (TensorError::TooLarge(vec![usize::MAX]).into(), 9),
            (TuneError::NoArchitecture { device: "cpu".into() }.into(), 2),
        ];
        for (error, expected) in table {
            let text = error.to_string();
            assert_eq!(code(error), expected, "{text}");
        }
    }
}

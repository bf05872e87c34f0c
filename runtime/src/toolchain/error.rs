//! Errors of finding, installing and running compilers.

/// Why a compiler is missing or failed.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolchainError {
    /// NVRTC is nowhere to be found and could not be installed.
    #[error(
        "no NVRTC (the CUDA run-time compiler): looked for it in\n{}\n{install}\nprovide it with `python3 -m pip install {wheel}`, or set FLASHTILE_NVRTC to libnvrtc.so or its directory",
        looked_in.iter().map(|l| format!("  {l}")).collect::<Vec<_>>().join("\n")
    )]
    NotFound {
        /// Every place, with what was found wrong there.
        looked_in: Vec<String>,
        /// What came of installing it.
        install: String,
        /// The wheel that provides it.
        wheel: String,
    },
    /// A library that is there cannot be loaded.
    #[error("failed to load {path}: {reason}")]
    Load {
        /// The library.
        path: String,
        /// What the dynamic loader says.
        reason: String,
    },
    /// NVRTC of an unsupported version.
    #[error("NVRTC {}.{} at {path} is not supported; {supported} is; unset FLASHTILE_NVRTC to have it installed", found.0, found.1)]
    Version {
        /// The library.
        path: String,
        /// Its version.
        found: (u32, u32),
        /// Versions that are supported.
        supported: String,
    },
    /// The program does not compile.
    #[error("NVRTC failed to compile `{name}` for {target}: {code}\n{log}")]
    Compile {
        /// Name of the program.
        name: String,
        /// Architecture.
        target: String,
        /// NVRTC's error.
        code: String,
        /// The compiler's log.
        log: String,
    },
    /// The compiler gave the threads of a block fewer registers than its roles then ask for: it would wait for them forever.
    #[error(
        "the roles of a block of `{name}` ask for {asked} registers, it is launched with {launched}; set producer_registers=0"
    )]
    Registers {
        /// Name of the kernel.
        name: String,
        /// Registers that roles ask for.
        asked: u32,
        /// Registers of all threads at launch.
        launched: u32,
    },
    /// NVRTC refused a call.
    #[error("{call} failed with {code}")]
    Call {
        /// The function.
        call: &'static str,
        /// NVRTC's error.
        code: String,
    },
    /// A tool for machine code is missing.
    #[error("no {tool}: looked for it in\n{}\nprovide it with `python3 -m pip install {wheel}`, or put it on PATH",
        looked_in.iter().map(|l| format!("  {l}")).collect::<Vec<_>>().join("\n"))]
    NoTool {
        /// The tool.
        tool: String,
        /// Every place.
        looked_in: Vec<String>,
        /// The wheel that provides it.
        wheel: String,
    },
    /// A tool failed.
    #[error("{tool} failed: {reason}")]
    Tool {
        /// The tool.
        tool: String,
        /// What it says.
        reason: String,
    },
}

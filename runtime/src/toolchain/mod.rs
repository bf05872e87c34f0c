//! Compilers: NVRTC found or installed, programs compiled, code disassembled.

mod error;

use std::path::PathBuf;
use std::sync::Arc;

pub use error::ToolchainError;
use serde::{Deserialize, Serialize};

/// How NVRTC is found.
#[derive(Clone)]
pub struct ToolchainOptions {
    /// The library, or a directory that holds it; nothing else is looked at.
    pub nvrtc: Option<PathBuf>,
    /// Whether to install NVRTC into the project's own directory where none is found.
    pub install: bool,
    /// Told what is going on, one line each, while NVRTC is looked for and installed.
    pub progress: Option<Arc<dyn Fn(&str) + Send + Sync>>,
}

/// What ptxas reports of a compiled kernel.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PtxasReport {
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of spill stores.
    pub spill_stores: u32,
    /// Bytes of spill loads.
    pub spill_loads: u32,
    /// Bytes of stack of a thread.
    pub stack: u32,
    /// Bytes of static shared memory of a block.
    pub shared: u32,
    /// Remarks `C75xx`, which say that ptxas serialised or rebuilt what should have been asynchronous.
    pub remarks: Vec<String>,
}

/// A compiled program.
#[derive(Clone, PartialEq, Debug)]
pub struct Compiled {
    /// Machine code for the architecture it was compiled for.
    pub cubin: Vec<u8>,
    /// PTX, which newer GPUs can run too.
    pub ptx: String,
    /// What ptxas reports.
    pub report: PtxasReport,
    /// Warnings of the compiler.
    pub log: String,
    /// Version of NVRTC, major and minor.
    pub nvrtc: (u32, u32),
    /// Seconds it took.
    pub seconds: f64,
}

/// The compiler, found on first use. Clones are the same toolchain.
#[derive(Clone, Debug)]
pub struct Toolchain {}

impl Toolchain {
    /// The toolchain of the process with default options.
    pub fn shared() -> Self {
        Toolchain {}
    }
}

//! What comes out of the compiler.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What ptxas reports of compiled code. Of several entry points, the largest numbers.
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
    /// Registers of a thread of each entry point.
    pub entries: BTreeMap<String, u32>,
    /// Remarks `C75xx`, but for harmless ones: ptxas serialised or rebuilt what should have been asynchronous.
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
    /// The compiler's log.
    pub log: String,
    /// Version of NVRTC, major and minor.
    pub nvrtc: (u32, u32),
    /// Seconds it took.
    pub seconds: f64,
}

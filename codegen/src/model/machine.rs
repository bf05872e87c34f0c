//! The device that a time is predicted for.

use serde::{Deserialize, Serialize};

use crate::arch::Arch;

/// The device a time is predicted for.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// Multiprocessors.
    pub sms: u32,
    /// Clock in GHz.
    pub ghz: f64,
    /// Memory bandwidth in GB/s.
    pub gbytes_per_s: f64,
}

impl Machine {
    /// A typical card of the architecture.
    pub fn typical(arch: &Arch) -> Self {
        Self { sms: arch.typical_sms, ghz: arch.typical_ghz, gbytes_per_s: arch.typical_gbytes_per_s }
    }
}

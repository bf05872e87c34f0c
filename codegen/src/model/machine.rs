//! The device that a time is predicted for.

use flashtile_dsl::analysis::cost;
use flashtile_dsl::ir::Binding;
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

    /// Peak rates for a kernel's element types, per second: tensor cores if one of them has 16
    /// bits, else multiply-adds.
    pub fn peak(&self, arch: &Arch, binding: &Binding) -> cost::Machine {
        let clocks = f64::from(self.sms) * self.ghz * 1e9;
        let sixteen_bit = binding.types.values().any(|e| e.bytes() == Some(2));
        let flops = if sixteen_bit { arch.tensor_flops_per_clock } else { arch.ffma_flops_per_clock };
        cost::Machine {
            flops: f64::from(flops) * clocks,
            bytes_per_s: self.gbytes_per_s * 1e9,
            special_per_s: f64::from(arch.special_per_clock) * clocks,
        }
    }
}

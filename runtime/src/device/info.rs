//! What is known about a device.

use flashtile_codegen::Arch;
use serde::{Deserialize, Serialize};

use crate::cache::DeviceKey;
use crate::lowering::Machine;

/// Kind of a device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// The CPU, executing tile IR.
    Cpu,
    /// A GPU through the CUDA driver.
    Cuda,
    /// Compiled code, executed and checked on the host.
    Emulator,
}

/// Properties of a device, as its driver reports them.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// `cpu`, `cuda:N` or `emulator`.
    pub id: String,
    /// Kind.
    pub kind: DeviceKind,
    /// Name of the product.
    pub name: String,
    /// Memory in bytes; 0 where unknown.
    pub memory_bytes: u64,
    /// Properties of a GPU.
    pub gpu: Option<GpuInfo>,
}

impl DeviceInfo {
    /// What identifies its kind in the cache.
    pub fn key(&self) -> DeviceKey {
        let gpu = self.gpu.as_ref();
        DeviceKey {
            name: self.name.clone(),
            capability: gpu.map_or((0, 0), |g| g.capability),
            sms: gpu.map_or(0, |g| g.sms),
            memory_bytes: self.memory_bytes,
            driver: gpu.map_or((0, 0), |g| g.driver),
        }
    }
}

/// Properties of a GPU.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct GpuInfo {
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// Multiprocessors.
    pub sms: u32,
    /// L2 cache in bytes.
    pub l2_bytes: u64,
    /// Shared memory that a block may opt in to, in bytes.
    pub shared_per_block: u64,
    /// Boost clock in GHz.
    pub clock_ghz: f64,
    /// Memory bandwidth in GB/s from clock and bus width; 0 where the driver does not tell.
    pub memory_gbytes_per_s: f64,
    /// CUDA version of the driver, major and minor.
    pub driver: (u32, u32),
}

/// The machine that a GPU is, or the typical one of the architecture where there is none.
pub fn machine_of(arch: &Arch, gpu: Option<&GpuInfo>) -> Machine {
    let typical = Machine::typical(arch);
    let Some(gpu) = gpu else { return typical };
    let known = |value: f64, typical: f64| if value > 0.0 { value } else { typical };
    Machine {
        sms: gpu.sms,
        ghz: known(gpu.clock_ghz, typical.ghz),
        gbytes_per_s: known(gpu.memory_gbytes_per_s, typical.gbytes_per_s),
    }
}

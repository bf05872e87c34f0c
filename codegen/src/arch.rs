//! GPU architectures as data. Adding one touches this table, its templates and its tests only.
//!
//! Source of the limits: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", and the PTX ISA's
//! "Target ISA Notes" of each instruction named below.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Warps of a warpgroup: those that execute `wgmma` together (PTX ISA 9.7.15.1).
pub(crate) const WARPGROUP: u32 = 4;

/// How a matrix product is computed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TensorOp {
    /// Scalar fused multiply-adds on f32.
    Ffma,
    /// `mma.sync.m16n8k8` on f16 (PTX ISA 9.7.14.5).
    MmaM16n8k8,
    /// `mma.sync.m16n8k16` on f16 and bf16.
    MmaM16n8k16,
    /// `wgmma.mma_async` (PTX ISA 9.7.15).
    Wgmma,
}

impl TensorOp {
    /// Whether its products are issued by a warpgroup and complete later, so that a producer fills
    /// the rings that they read.
    pub fn is_asynchronous(self) -> bool {
        self == TensorOp::Wgmma
    }

    /// Whether it is executed by tensor cores, which take left operands from registers too.
    pub fn is_of_tensor_cores(self) -> bool {
        self != TensorOp::Ffma
    }
}

/// How a tile gets from global to shared memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CopyOp {
    /// Through registers: `ld.global`, `st.shared`.
    Sync,
    /// `cp.async` (PTX ISA 9.7.9.25.3).
    CpAsync,
    /// `cp.async.bulk.tensor` (PTX ISA 9.7.9.27).
    Tma,
}

/// Limits and instructions of one compute capability.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Arch {
    /// `sm_80`; with `a` where architecture-specific instructions are used.
    pub name: &'static str,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// Bytes of shared memory a block may use, opted in.
    pub shared_per_block: usize,
    /// Bytes of shared memory of a multiprocessor.
    pub shared_per_sm: usize,
    /// 32-bit registers of a multiprocessor.
    pub registers_per_sm: u32,
    /// Resident threads of a multiprocessor.
    pub threads_per_sm: u32,
    /// Resident blocks of a multiprocessor.
    pub blocks_per_sm: u32,
    /// Whether `bf16` operands are supported.
    pub bf16: bool,
    /// Whether blocks of a cluster read each other's shared memory (PTX ISA 5.1.7, `barrier.cluster`).
    pub clusters: bool,
    /// Whether a launch may begin while the one before it ends (PTX ISA, `griddepcontrol`).
    pub dependent_launches: bool,
    /// Tensor ops, best first.
    pub tensor_ops: &'static [TensorOp],
    /// Copy ops, best first.
    pub copy_ops: &'static [CopyOp],
    /// Dense 16-bit tensor-core FLOPs (f32 accumulation) per clock and multiprocessor through `mma.sync`.
    pub mma_flops_per_clock: u32,
    /// The same through the architecture's own tensor instruction (`wgmma` on sm_90a).
    pub tensor_flops_per_clock: u32,
    /// f32 multiply-add FLOPs per clock and multiprocessor.
    pub ffma_flops_per_clock: u32,
    /// `ex2`-like results per clock and multiprocessor.
    pub special_per_clock: u32,
    /// A typical card's multiprocessors, used only where no device is present.
    pub typical_sms: u32,
    /// A typical card's clock in GHz, likewise.
    pub typical_ghz: f64,
    /// A typical card's memory bandwidth in GB/s, likewise.
    pub typical_gbytes_per_s: f64,
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

const MMA: &[TensorOp] = &[TensorOp::MmaM16n8k16, TensorOp::MmaM16n8k8, TensorOp::Ffma];
const ASYNC: &[CopyOp] = &[CopyOp::CpAsync, CopyOp::Sync];
const WGMMA: &[TensorOp] = &[TensorOp::Wgmma, TensorOp::MmaM16n8k16, TensorOp::MmaM16n8k8, TensorOp::Ffma];
const BULK: &[CopyOp] = &[CopyOp::Tma, CopyOp::CpAsync, CopyOp::Sync];

/// Every architecture, oldest first.
pub const ARCHS: &[Arch] = &[
    Arch {
        name: "sm_75",
        capability: (7, 5),
        shared_per_block: 64 << 10,
        shared_per_sm: 64 << 10,
        registers_per_sm: 65_536,
        threads_per_sm: 1024,
        blocks_per_sm: 16,
        bf16: false,
        clusters: false,
        dependent_launches: false,
        tensor_ops: &[TensorOp::MmaM16n8k8, TensorOp::Ffma],
        copy_ops: &[CopyOp::Sync],
        mma_flops_per_clock: 1024,
        tensor_flops_per_clock: 1024,
        ffma_flops_per_clock: 128,
        special_per_clock: 16,
        typical_sms: 40,
        typical_ghz: 1.59,
        typical_gbytes_per_s: 320.0,
    },
    Arch {
        name: "sm_80",
        capability: (8, 0),
        shared_per_block: 163 << 10,
        shared_per_sm: 164 << 10,
        registers_per_sm: 65_536,
        threads_per_sm: 2048,
        blocks_per_sm: 32,
        bf16: true,
        clusters: false,
        dependent_launches: false,
        tensor_ops: MMA,
        copy_ops: ASYNC,
        mma_flops_per_clock: 2048,
        tensor_flops_per_clock: 2048,
        ffma_flops_per_clock: 128,
        special_per_clock: 16,
        typical_sms: 108,
        typical_ghz: 1.41,
        typical_gbytes_per_s: 2039.0,
    },
    Arch {
        name: "sm_86",
        capability: (8, 6),
        shared_per_block: 99 << 10,
        shared_per_sm: 100 << 10,
        registers_per_sm: 65_536,
        threads_per_sm: 1536,
        blocks_per_sm: 16,
        bf16: true,
        clusters: false,
        dependent_launches: false,
        tensor_ops: MMA,
        copy_ops: ASYNC,
        mma_flops_per_clock: 512,
        tensor_flops_per_clock: 512,
        ffma_flops_per_clock: 256,
        special_per_clock: 16,
        typical_sms: 82,
        typical_ghz: 1.7,
        typical_gbytes_per_s: 936.0,
    },
    Arch {
        name: "sm_89",
        capability: (8, 9),
        shared_per_block: 99 << 10,
        shared_per_sm: 100 << 10,
        registers_per_sm: 65_536,
        threads_per_sm: 1536,
        blocks_per_sm: 24,
        bf16: true,
        clusters: false,
        dependent_launches: false,
        tensor_ops: MMA,
        copy_ops: ASYNC,
        mma_flops_per_clock: 512,
        tensor_flops_per_clock: 512,
        ffma_flops_per_clock: 256,
        special_per_clock: 16,
        typical_sms: 128,
        typical_ghz: 2.52,
        typical_gbytes_per_s: 1008.0,
    },
    Arch {
        name: "sm_90a",
        capability: (9, 0),
        shared_per_block: 227 << 10,
        shared_per_sm: 228 << 10,
        registers_per_sm: 65_536,
        threads_per_sm: 2048,
        blocks_per_sm: 32,
        bf16: true,
        clusters: true,
        dependent_launches: true,
        tensor_ops: WGMMA,
        copy_ops: BULK,
        mma_flops_per_clock: 2560,
        tensor_flops_per_clock: 4096,
        ffma_flops_per_clock: 256,
        special_per_clock: 16,
        typical_sms: 132,
        typical_ghz: 1.7,
        typical_gbytes_per_s: 4295.0,
    },
    Arch {
        name: "sm_100",
        capability: (10, 0),
        shared_per_block: 227 << 10,
        shared_per_sm: 228 << 10,
        registers_per_sm: 65_536,
        threads_per_sm: 2048,
        blocks_per_sm: 32,
        bf16: true,
        clusters: true,
        dependent_launches: true,
        tensor_ops: MMA,
        copy_ops: ASYNC,
        mma_flops_per_clock: 2048,
        tensor_flops_per_clock: 8192,
        ffma_flops_per_clock: 256,
        special_per_clock: 16,
        typical_sms: 148,
        typical_ghz: 1.8,
        typical_gbytes_per_s: 8000.0,
    },
    Arch {
        name: "sm_120",
        capability: (12, 0),
        shared_per_block: 99 << 10,
        shared_per_sm: 100 << 10,
        registers_per_sm: 65_536,
        threads_per_sm: 1536,
        blocks_per_sm: 24,
        bf16: true,
        clusters: true,
        dependent_launches: true,
        tensor_ops: MMA,
        copy_ops: ASYNC,
        mma_flops_per_clock: 512,
        tensor_flops_per_clock: 512,
        ffma_flops_per_clock: 256,
        special_per_clock: 16,
        typical_sms: 170,
        typical_ghz: 2.4,
        typical_gbytes_per_s: 1792.0,
    },
];

impl Arch {
    /// The architecture of this name (`sm_90` is understood as `sm_90a`).
    pub fn named(name: &str) -> Option<&'static Arch> {
        ARCHS.iter().find(|a| a.name == name || a.name.trim_end_matches('a') == name)
    }

    /// The architecture whose code runs on a GPU of this compute capability: the newest one of the same major version
    /// that is not newer.
    pub fn for_capability(major: u32, minor: u32) -> Option<&'static Arch> {
        ARCHS.iter().rev().find(|a| a.capability.0 == major && a.capability.1 <= minor)
    }

    /// Registers that a thread may have where so many blocks of so many threads are on a
    /// multiprocessor: a warp gets 8 of each thread at once, and a thread 255 at most.
    pub fn registers_of_thread(&self, threads: u32, blocks: u32) -> u32 {
        (self.registers_per_sm / (threads * blocks.max(1)) / 8 * 8).min(255)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_are_shared_by_the_threads_of_a_multiprocessor() {
        let of = |threads, blocks| Arch::named("sm_90a").expect("known").registers_of_thread(threads, blocks);
        assert_eq!([of(128, 0), of(256, 1), of(256, 2), of(384, 1), of(512, 1), of(1024, 1)], [255, 255, 128, 168, 128, 64]);
    }

    #[test]
    fn table_is_in_order_and_names_are_found() {
        assert!(ARCHS.windows(2).all(|w| w[0].capability < w[1].capability));
        for arch in ARCHS {
            assert_eq!(Arch::named(arch.name), Some(arch));
            assert_eq!(Arch::for_capability(arch.capability.0, arch.capability.1), Some(arch));
            assert!(arch.shared_per_block <= arch.shared_per_sm);
            assert!(arch.tensor_ops.contains(&TensorOp::Ffma) && arch.copy_ops.contains(&CopyOp::Sync));
        }
        assert_eq!(Arch::named("sm_90").map(|a| a.name), Some("sm_90a"));
        assert_eq!(Arch::for_capability(8, 7).map(|a| a.name), Some("sm_86"));
        assert_eq!(Arch::for_capability(7, 0), None);
    }
}

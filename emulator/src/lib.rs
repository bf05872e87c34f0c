//! Executes compiled kernels (PTX) on a machine with no GPU, and says where they race.
//!
//! # What it is
//!
//! A front end for the PTX that NVRTC makes of flashtile's kernels, and a machine that executes it: a grid of blocks, warps
//! of 32 lanes in lockstep with divergence, all state spaces, asynchronous copies, mbarriers, tensor copies and tensor
//! products. While a kernel runs, every access is checked: see [`FindingKind`].
//!
//! ```
//! use flashtile_emulator::{GlobalMemory, Launch, Module, Options};
//!
//! let module = Module::load(
//!     ".version 8.0 .target sm_80 .address_size 64
//!      .visible .entry twice(.param .u64 p) {
//!          .reg .b64 %rd<4>; .reg .b32 %r<3>;
//!          ld.param.u64 %rd1, [p];
//!          cvta.to.global.u64 %rd1, %rd1;
//!          mov.u32 %r1, %tid.x;
//!          mul.wide.u32 %rd2, %r1, 4;
//!          add.s64 %rd3, %rd1, %rd2;
//!          ld.global.u32 %r2, [%rd3];
//!          add.s32 %r2, %r2, %r2;
//!          st.global.u32 [%rd3], %r2;
//!          ret;
//!      }",
//! )?;
//! let mut memory = GlobalMemory::new();
//! let numbers: Vec<u8> = (0..32u32).flat_map(u32::to_le_bytes).collect();
//! let buffer = memory.allocate_from(&numbers);
//! let launch = Launch {
//!     grid: [1, 1, 1],
//!     block: [32, 1, 1],
//!     shared_bytes: 0,
//!     parameters: vec![buffer.address.to_le_bytes().to_vec()],
//!     pending: vec![],
//! };
//! let report = module.kernel("twice")?.launch(&memory, &launch, &Options::default())?;
//! assert!(report.findings.is_empty());
//! assert_eq!(memory.read(buffer)[4 * 31..], 62u32.to_le_bytes());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # How it works
//!
//! `syntax` makes a tree of the text; `program` decodes it, so that a kernel that loads never meets an instruction that is
//! not known; `machine` executes blocks, each on one thread. A register is a row of 32 values; constants and special
//! registers are rows too.
//!
//! # Invariants
//!
//! * Asynchrony is adversarial ([`Landing`]): a copy or product takes effect as late as its wait allows, or as early as it
//!   can, or at random by a seed. So is the order of warps ([`Order`]). A result that depends on either is a fault of the
//!   kernel, and is meant to be seen.
//! * Races are found by what happened before what, not by what the schedule made of it: one run finds the races of all
//!   schedules that take the same branches.
//! * Nothing a kernel does panics or hangs the emulator: a fault is a [`Finding`], after which the block goes on as far as
//!   it can. A block that does not get on ends at [`Options::stall_limit`].
//! * Equal inputs and options give equal results, bit by bit, but for kernels whose blocks communicate while
//!   [`Options::parallel`] is set.
//!
//! # What it does not do
//!
//! * Copies and arrivals at mbarriers that reach another block of a cluster are refused at load.
//! * Lanes of a warp progress independently only as far as the structure of the control flow says: paths that parted run one
//!   after the other. A kernel in which one path waits for another of the same warp deadlocks here.
//! * f64 arithmetic, textures, calls, and the formats below 16 bits.
//! * Time: the profile counts, it does not measure.

mod error;
mod finding;
mod launch;
mod machine;
mod memory;
mod numeric;
mod options;
mod profile;
mod program;
mod syntax;
mod tensor_map;

pub use error::{LaunchError, LoadError};
pub use finding::{Finding, FindingKind, Party, SourceLine};
pub use launch::{Kernel, Launch, Module, Report};
pub use memory::{Buffer, GlobalMemory};
pub use options::{Landing, Options, OptionsError, Order};
pub use profile::{InstructionKind, InstructionProfile, LineProfile, Profile, Work};
pub use tensor_map::{Swizzle, TensorMap, TensorMapError};

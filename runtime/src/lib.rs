//! Attention kernels of your own, written once at tile level, compiled and tuned for the GPU at hand.
//!
//! | module | subject |
//! | --- | --- |
//! | [`device`] | `cpu`, `cuda:N` and `emulator` behind one handle |
//! | [`tensor`] | strided tensors in the memory of a device, lent or of another owner |
//! | [`language`] | the kernel language: every word, masks and what they derive, fifteen known variants |
//! | [`kernel`] | kernels: text, and text bound to types and constants |
//! | [`launch`] | arguments, their check, and kernels made ready for a device |
//! | [`lowering`] | a bound kernel and a schedule to compiled code |
//! | [`toolchain`] | finds or installs NVRTC, compiles, disassembles |
//! | [`tuner`] | finds the best schedule for a shape on a GPU |
//! | [`verify`] | the float64 oracle and the tolerance |
//! | [`conformance`] | one suite of launches for every device |
//! | [`client`] | for libraries that call kernels on tensors of their own |
//! | [`bundle`] | code compiled ahead of time: a directory for C and Rust |
//! | [`cache`] | keeps compiled code and tuning results between runs |
//! | [`files`] | files that a user names, written whole or not at all |
//! | [`macro_support`] | what `flash_kernel!` expands to; not for use by hand |
//!
//! ```
//! use flashtile::{Device, Tensor};
//! let device = Device::best();
//! let x = Tensor::<f32>::zeros(&device, &[4, 8])?;
//! assert_eq!(x.to_vec()?.len(), 32);
//! # Ok::<(), flashtile::Error>(())
//! ```

pub mod bundle;
pub mod cache;
pub mod client;
pub mod conformance;
pub mod device;
mod element;
mod error;
pub mod files;
pub mod kernel;
pub mod language;
pub mod launch;
mod location;
pub mod lowering;
#[doc(hidden)]
pub mod macro_support;
mod memory;
mod private;
pub mod tensor;
pub mod toolchain;
pub mod tuner;
pub mod verify;

pub use bundle::Bundle;
pub use device::{Device, DeviceInfo, LaunchOptions, Stream};
pub use element::{AnyBits, Element};
pub use error::{Error, Result};
pub use flashtile_codegen::{ARCHS, Arch, Facts, Reason, Schedule};
pub use flashtile_dsl::grad::Form;
pub use flashtile_dsl::ir::{Binding, Elem, SourceText};
pub use flashtile_emulator as emulator;
pub use flashtile_macros::flash_kernel;
pub use float8::{F8E4M3 as f8e4m3, F8E5M2 as f8e5m2};
pub use half::{bf16, f16};
pub use kernel::{BoundKernel, Gradient, Kernel};
pub use launch::{Argument, ArgumentForm, ArgumentValue, LoadedGradient, LoadedKernel, PreparedLaunch, Workspace};
pub use tensor::{AnyTensor, Loans, Tensor, lend};

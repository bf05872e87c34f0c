//! Compilers: NVRTC found or installed, programs compiled, machine code disassembled.

mod compiled;
mod disassembler;
mod error;
mod handle;
mod install;
mod locate;
mod nvrtc;
mod options;
mod ptxas;
mod wheels;

pub use compiled::{Compiled, PtxasReport};
pub use error::ToolchainError;
pub use handle::Toolchain;
pub use nvrtc::Nvrtc;
pub use options::{Progress, ToolchainOptions};

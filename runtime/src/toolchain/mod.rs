//! Compilers: NVRTC found or installed, programs compiled, machine code disassembled.

mod compiled;
mod disassembler;
mod error;
mod handle;
mod install;
mod locate;
mod nvrtc;
mod ptxas;
mod wheels;

pub use compiled::{Compiled, PtxasReport};
pub use error::ToolchainError;
pub use handle::{Progress, Toolchain, ToolchainOptions};
pub use nvrtc::Nvrtc;

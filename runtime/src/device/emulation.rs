//! What a launch on the emulator can be told.

use std::sync::Arc;

use flashtile_emulator::Options;

/// How the emulator executes launches. Other devices do not look at it.
#[derive(Clone, Debug, Default)]
pub struct Emulation {
    /// When asynchronous operations take effect and which warp goes on, what is looked for, whether
    /// to count.
    pub options: Options,
    /// Code to execute in place of what is generated, such as an edited one. It is called as what
    /// it replaces would be.
    pub code: Option<EmulatedCode>,
}

/// Code given to the emulator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EmulatedCode {
    /// CUDA C, which is compiled as generated code is.
    Cuda(Arc<str>),
    /// PTX.
    Ptx(Arc<str>),
}

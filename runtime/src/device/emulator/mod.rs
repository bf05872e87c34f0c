//! The emulator as a device: kernels are compiled to PTX, which is executed and checked on the
//! host. Needs no GPU.
//!
//! Invariant: a launch in which the emulator finds a fault is an error, whatever the kernel
//! computed.

mod backend;
mod handle;
mod memory;
mod variant;

pub(crate) use handle::Emulator;

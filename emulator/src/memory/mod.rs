//! Memories of the machine and the windows of its generic address space.

mod global;
mod shared;
pub(crate) mod windows;

pub use global::{Buffer, GlobalMemory};
pub(crate) use global::{Fault, Region};
pub(crate) use shared::{ALL, Accessor, MANY, Shared, Trouble, Writer};

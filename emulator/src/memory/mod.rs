//! Memories of the machine and the windows of its generic address space.

mod global;
mod known;
mod shared;
mod traces;
pub(crate) mod windows;

pub use global::{Buffer, GlobalMemory};
pub(crate) use global::{Fault, Region};
pub(crate) use known::{BlockClocks, Epoch, IN_FLIGHT, Known, Public, Scope, Strength};
pub(crate) use shared::{ALL, Accessor, MANY, Shared, Trouble, Writer};
pub(crate) use traces::{Conflict, Page, Traces, Visitor};

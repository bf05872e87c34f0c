//! The machine that executes a kernel: blocks, warps, barriers, copies and products.
//!
//! `state` is what a block is made of. `run` gives warps their turns, `stuck` tells why a block
//! does not end, `step` executes an instruction; the other files have the instructions, as methods
//! of a block or a warp.

mod access;
mod arithmetic;
mod barriers;
mod cluster;
mod copies;
mod exchange;
mod fragments;
mod global;
mod products;
mod registers;
mod run;
mod state;
mod step;
mod stuck;

pub(crate) use state::{Block, Counters, Launched, Progress};

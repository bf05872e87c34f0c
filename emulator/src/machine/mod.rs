//! The machine that executes a kernel: blocks, warps, barriers, copies and products.

mod access;
mod arithmetic;
mod barriers;
mod block;
mod clocks;
mod cluster;
mod copies;
mod exchange;
mod fragments;
mod global;
mod products;
mod profile;
mod progress;
mod record;
mod registers;
mod stuck;
mod warp;

pub(crate) use block::{Block, Launched};
pub(crate) use profile::Counters;
pub(crate) use progress::Progress;

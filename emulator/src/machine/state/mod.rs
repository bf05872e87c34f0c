//! What a block is made of while it runs. The files above execute instructions on it, and none of
//! these files knows them.
//!
//! | file | subject |
//! | --- | --- |
//! | `block` | a block, or the blocks of a cluster, with all of the below |
//! | `warp` | registers of a warp, and its paths through the code |
//! | `clocks` | what each warp and lane has seen of the others |
//! | `barriers`, `copies`, `products`, `registers` | what is waited for |
//! | `pace`, `progress` | how a block, and a launch, gets on |
//! | `record`, `counters` | what is found, and counted |

mod barriers;
mod block;
mod clocks;
mod copies;
mod counters;
mod pace;
mod products;
mod progress;
mod record;
mod registers;
mod warp;

pub(super) use barriers::Object;
pub(crate) use block::{Block, Launched};
pub(super) use block::{Next, Status};
pub(super) use clocks::Release;
pub(super) use copies::{Bulk, Pending, Piece, Unlanded};
pub(crate) use counters::Counters;
pub(super) use pace::SLICE;
pub(super) use products::Product;
pub(crate) use progress::Progress;
pub(super) use record::{At, Record};
pub(super) use warp::{FULL, Warp, lanes};

//! Lowers a kernel in tile IR, under a schedule, to CUDA C for an architecture.
//!
//! Architecture invariant: no file, device or clock is touched; a verified kernel with a legal schedule never panics here.

mod abi;
mod arch;
mod artifact;
mod blocks;
mod draw;
mod elementwise_tiles;
mod emit;
mod error;
mod generate;
mod given;
mod hints;
mod instance;
mod instruction;
mod interface;
mod launches;
pub mod layout;
mod legality;
mod lower;
mod model;
mod names;
mod ops;
mod parallel;
pub mod plan;
mod planning;
mod reason;
mod rewrite;
mod schedule;
mod space;

pub use abi::{Abi, Blocks, Field, FoldedRows, FoldedSizes, GridDim, Scratch, SizeTerm, TensorMap};
pub use arch::{ARCHS, Arch, CopyOp, TensorOp};
pub use artifact::{Generated, Launch, Legality, Limit, Resources};
pub use blocks::block as block_size;
pub use draw::{draw, drawn_values};
pub use error::Error;
pub use generate::generate;
pub use given::{generate_from, plans};
pub use hints::hints;
pub use instance::{Facts, Instance, wide_tensors};
pub use launches::{
    Folded, NotFolded, NotStaged, Sides, Staged, by_difference, copy_ahead, fold, folded_rows, interchange, precompute,
    pretranspose, split, summarise, terms_of_products, why_not_copy, why_not_differences, why_not_fold, why_not_folded,
    why_not_interchange, why_not_list, why_not_precompute, why_not_pretranspose, why_not_split, why_not_summarise, why_not_terms,
};
pub use model::{
    Constants, Integers, LaunchTerms, Machine, Prepared, Ranker, Ranking, StepTerms, TimeTerms, closest, default_schedule,
    knobs_set, predict, prepare, rank, says_all,
};
pub use planning::check;
pub use reason::{Mended, Reason, Resource, Summary};
pub use rewrite::{as_generated, in_passes, softmaxes_in_turn, with_row_axes};
pub use schedule::{
    BLayout, BlockKnobs, Differences, Edges, Exponential, Fixup, Fragments, KNOBS, Knob, LaunchKnobs, LoopOrder, OfBlock,
    OperandA, Overlap, Overrides, PackGqa, Persistent, PingPong, Precompute, Requires, RunningMax, SPACE_VERSION, Schedule,
    ScheduleError, Scope, SharedLayout, Terms, TileLoads, Walk, WorkOrder,
};
pub use space::{fallback, space, with_first_maximum};

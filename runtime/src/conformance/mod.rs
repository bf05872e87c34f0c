//! One suite for every device: a table of launches, each judged by the oracle.
//!
//! A [`Case`] fixes a kernel, its binding, sizes, scalars, the inputs' distribution, the layout in memory and a seed; it
//! has a stable name. [`Case::prepare`] makes its arguments, in memory full of NaN; a device runs them; [`Prepared::judge`]
//! says whether every output is right, every element was written, and nothing else was. [`run`] does it all for a
//! device, and [`run_with`] for anything that can run a kernel.
//!
//! | module | subject |
//! | --- | --- |
//! | [`case`] | what a case is, and its name |
//! | [`table`] | all cases |
//! | [`random`] | cases drawn at random |
//! | [`kernels`] | kernels of the suite that are not built in; those of one byte in `bytes`, of single elements in `gathers`, of states in `states`, their frame in `softmax` |
//! | [`data`] | inputs, and guarded memory |
//! | [`mod@compare`] | the same code on two devices, bit by bit |
//! | [`sample`] | cases with schedules drawn at random |
//! | [`report`] | running, judging, and the result |

mod bytes;
pub mod case;
pub mod compare;
pub mod data;
mod gathers;
pub mod kernels;
pub mod random;
pub mod report;
pub mod sample;
mod softmax;
mod states;
pub mod table;

pub use case::{Case, Layout, Values};
pub use compare::{Agreement, Comparison, compare};
pub use random::random_case;
pub use report::{CaseResult, Prepared, Report, run, run_watched, run_with};
pub use sample::{Sample, drawn_schedule, pairwise, run_samples, samples};
pub use table::cases;

//! Finds the best schedule of a kernel for a shape.
//!
//! | file | subject |
//! | --- | --- |
//! | `tune` | the entry: candidates, cache, search, result |
//! | `queue` | the order in which candidates are tried: one of each kind, then by corrected predictions |
//! | `search` | the search, free of devices: rounds of elimination, run-off |
//! | `bench` | what the search needs of the world |
//! | `measure` | times one kernel as launches run it, with its error |
//! | `chain` | judges kernels of which each reads what those before it store |
//! | `emulated` | candidates where there is no GPU: checked on the emulator, bank conflicts counted |
//! | `gpu`, `gate`, `inputs` | candidates on a GPU: measured; checked against the oracle; arguments for given sizes |

mod bench;
mod chain;
mod emulated;
mod gate;
mod gpu;
mod inputs;
mod joins;
mod measure;
mod options;
mod queue;
mod search;
#[cfg(test)]
mod search_tests;
mod sequence;
mod slopes;
mod tune;

pub use crate::error::TuneError;
pub use chain::Chain;
pub use flashtile_dsl::inputs::{DataError, Distribution, InputData, Values};
pub use gate::Trial;
pub use measure::{MeasureOptions, Measured, judge, judge_on, judge_steep, measure, steep_data};
pub use options::{Cancel, Event, OnEvent, TuneOptions};
pub use search::Stop;
pub use sequence::{MeasuredSequence, Part, PeakMemory, count_memory, count_scratch, measure_sequence};
pub use slopes::{Slope, Slopes, slopes};
pub use tune::{TuneReport, facts_of, integers_of, model_key, tune};

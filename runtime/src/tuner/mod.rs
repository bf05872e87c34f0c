//! Finds the best schedule of a kernel for a shape.
//!
//! | file | subject |
//! | --- | --- |
//! | `tune` | the entry: candidates, cache, search, result |
//! | `search` | the search, free of devices: rounds of elimination, run-off |
//! | `bench` | what the search needs of the world |
//! | `measure` | times one kernel as launches run it, with its error |
//! | `emulated` | candidates where there is no GPU: checked on the emulator, bank conflicts counted |
//! | `data` | what random inputs are like |
//! | `gpu`, `gate`, `inputs` | candidates on a GPU: measured; checked against the oracle; random inputs |

mod bench;
mod data;
mod emulated;
mod error;
mod gate;
mod gpu;
mod inputs;
mod measure;
mod options;
mod queue;
mod search;
#[cfg(test)]
mod search_tests;
mod sequence;
mod tune;

pub use data::{Distribution, InputData};
pub use error::TuneError;
pub use measure::{MeasureOptions, Measured, judge, measure};
pub use options::{Cancel, Event, OnEvent, TuneOptions};
pub use search::Stop;
pub use sequence::{MeasuredSequence, Part, PeakMemory, count_memory, count_scratch, measure_sequence};
pub use tune::{TuneReport, model_key, tune};

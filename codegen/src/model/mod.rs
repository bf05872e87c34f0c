//! The cost model: how long a schedule takes, from what the statements of its plan issue.
//!
//! | file | subject |
//! | --- | --- |
//! | `machine` | the device that a time is predicted for |
//! | `count` | what one iteration of a loop of a plan issues, in cycles of the units of a multiprocessor |
//! | `profile` | a launch without its sizes: counts, resources, the knobs that matter |
//! | `extent` | what sizes add: programs, trips of loops, bytes |
//! | `integers` | integers that bound loops: what is known of them, and what is taken for the others |
//! | `makespan` | when the last program ends, if programs differ in length |
//! | `constants` | the fitted numbers, and how they were fitted |
//! | `time` | seconds of a profile at given sizes |
//! | `terms` | what these seconds are made of |
//! | `rank` | the schedules of the space, best first |
//! | `closest` | the schedule that a few given knobs mean |
//!
//! A step of a block takes as long as the unit that is busiest over all resident blocks, made longer by the
//! others the less there is to overlap them with, and by a latency that more warps hide. What matters is the
//! order of candidates, more than the time. `tests/examples/model.rs` compares the model with measurements and
//! fits the constants on one half of them.

mod closest;
mod constants;
mod count;
mod extent;
mod integers;
mod machine;
mod makespan;
mod profile;
mod rank;
mod terms;
mod time;

pub use closest::{closest, knobs_set, says_all};
pub use constants::Constants;
pub use integers::Integers;
pub use machine::Machine;
pub use rank::{Ranker, Ranking, default_schedule, predict, rank};
pub use terms::{LaunchTerms, StepTerms, TimeTerms};
pub use time::{Prepared, prepare};

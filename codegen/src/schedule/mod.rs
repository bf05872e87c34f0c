//! The schedule: every choice about how a kernel is executed that its text does not make. Plain
//! data.
//!
//! A kernel becomes one launch or several ([`crate::launches`]). One of them is the main launch,
//! which does what the text is about; the others prepare its operands or end its work. A schedule
//! says which launches there are, and has the knobs of each of them.
//!
//! | file | subject |
//! | --- | --- |
//! | `knobs` | the table of knobs, and the types that hold them |
//! | `choice` | the values of knobs |
//! | `text` | the text form |

mod choice;
mod knobs;
mod text;

pub use choice::{
    BLayout, Differences, Edges, Exponential, Fixup, Fragments, LoopOrder, OperandA, Overlap, PackGqa, Persistent, PingPong,
    Precompute, RunningMax, SharedLayout, Summaries, Terms, TileLoads, Walk, WorkOrder,
};
pub use knobs::{BlockKnobs, KNOBS, Knob, LaunchKnobs, OfBlock, Overrides, Requires, SPACE_VERSION, Schedule, Scope};
pub use text::ScheduleError;

//! The page of `tune --html`: what was tried, what became of it, and what the winner does. One file
//! with no script, and with nothing from elsewhere.
//!
//! | file | subject |
//! | --- | --- |
//! | `tuning` | what the page tells of a kernel: derived from the result of tuning and the cost model |
//! | `evidence` | a candidate: its time, its place, what became of it in words |
//! | `markup`, `chart` | elements and text, escaped; scales, axes, points |
//! | `page`, `style.css` | the page around the sections |
//! | `roofline`, `candidates`, `errors`, `knobs`, `plan`, `layouts` | a section each |

mod candidates;
mod chart;
mod errors;
mod evidence;
mod knobs;
mod layouts;
mod markup;
mod page;
mod plan;
mod roofline;
#[cfg(test)]
mod tests;
mod tuning;

pub use evidence::{in_the_race, order};
pub use page::page;
pub use tuning::{Search, Tuning, ended};

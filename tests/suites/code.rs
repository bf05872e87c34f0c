//! Tests of compiled code on the emulator, and of what rewrites and launches make of a kernel.
//!
//! One program of several files, since each program links all libraries. `cargo test --release -p
//! flashtile-tests --test code alignment::` runs those of one file.

#[path = "../tests/alignment.rs"]
mod alignment;
#[path = "../tests/beside.rs"]
mod beside;
#[path = "../tests/bytes.rs"]
mod bytes;
#[path = "../tests/depths.rs"]
mod depths;
#[path = "../tests/differences.rs"]
mod differences;
#[path = "../tests/documents.rs"]
mod documents;
#[path = "../tests/elementwise.rs"]
mod elementwise;
#[path = "../tests/launches.rs"]
mod launches;
#[path = "../tests/lists.rs"]
mod lists;
#[path = "../tests/narrow.rs"]
mod narrow;
#[path = "../tests/rewrites.rs"]
mod rewrites;
#[path = "../tests/scores.rs"]
mod scores;
#[path = "../tests/terms.rs"]
mod terms;
#[path = "../tests/walks.rs"]
mod walks;
#[path = "../tests/wide_rows.rs"]
mod wide_rows;

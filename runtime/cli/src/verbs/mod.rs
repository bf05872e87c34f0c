//! A file per verb: its flags, and what it does with them.

pub mod bench;
pub mod bundle;
pub mod cache;
pub mod check;
pub mod completions;
pub mod demo;
pub mod doctor;
pub mod inspect;
pub mod list;
pub mod man;
pub mod playground;
pub mod repro;
pub mod run;
pub mod tune;
pub mod verify;

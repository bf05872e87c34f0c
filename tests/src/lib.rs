//! Shared pieces of the test suites.

pub mod evidence;
pub mod filetest;
pub mod functions;
pub mod modules;
pub mod mutants;
pub mod odd_names;
pub mod paged;
pub mod plan_mutants;
pub mod planted;
pub mod random;
pub mod sass;
pub mod sources;
pub mod turns;

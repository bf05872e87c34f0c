//! Shared pieces of the test suites.

pub mod filetest;
pub mod sass;

//! Finds the best schedule of a kernel for a shape.

mod error;

pub use error::TuneError;

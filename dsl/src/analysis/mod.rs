//! Analyses of the tile IR, each with its own printed form.

pub mod classes;
pub mod index;
pub mod mask;
pub mod nest;
pub mod predicate;
pub mod simplify;
pub mod unchanged;

#[cfg(test)]
mod mask_tests;
#[cfg(test)]
mod samples;

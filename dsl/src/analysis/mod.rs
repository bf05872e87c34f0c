//! Analyses of the tile IR, each with its own printed form.

pub mod classes;
pub mod cost;
pub mod dependence;
mod dependence_text;
mod expression;
pub mod index;
pub mod mask;
pub mod nest;
pub mod picture;
pub mod predicate;
pub mod simplify;
pub mod streaming;
pub mod unchanged;
pub mod visible;

#[cfg(test)]
mod dependence_tests;
#[cfg(test)]
mod mask_tests;
#[cfg(test)]
mod samples;

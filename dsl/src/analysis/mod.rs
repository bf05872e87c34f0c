//! Analyses of the tile IR, each with its own printed form.

pub mod classes;
pub mod index;
pub mod mask;
pub mod predicate;
pub mod simplify;
pub mod unchanged;

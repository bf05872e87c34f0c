//! Analyses of the tile IR, each with its own printed form.

pub mod index;
pub mod mask;

//! The kernel language of flashtile: its front end, its tile IR, and what the IR means.
//!
//! | module | subject |
//! | --- | --- |
//! | [`ir`] | the tile IR: entities, types, ops, kernels, text form, verifier |
//! | [`syntax`] | Rust-syntax kernel text to IR, with every error of a kernel reported at once |
//! | [`interpret`] | the meaning of the IR, in code |
//! | [`analysis`] | dependence, mask and cost analyses, each with a printed form |
//! | [`text`] | kernels as text, as rewrites have made them |
//! | [`inputs`] | values of arguments that nobody gave |
//! | [`grad`] | from a kernel to the kernels of its gradients |
//!
//! Architecture invariant: this crate touches no file, no device and no clock.

pub mod analysis;
pub mod grad;
pub mod inputs;
pub mod interpret;
pub mod ir;
pub mod syntax;
pub mod text;

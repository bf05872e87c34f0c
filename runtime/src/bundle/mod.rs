//! Code compiled ahead of time: a directory that C and Rust programs launch from with neither NVRTC
//! nor flashtile's cache.
//!
//! | file | subject |
//! | --- | --- |
//! | `contract` | what the JSON files say: the manifest, and a contract for each kernel |
//! | `build` | from kernels and shapes to code |
//! | `write` | the files and their hashes |
//! | `launcher/` | the C header and launcher |
//! | `load` | [`Bundle`]: launches from Rust |
//!
//! A launch from a bundle differs from any other in one thing: the variant is one of those that the
//! bundle has, where [`crate::device`] would compile the one for exactly these facts and sizes.
//! Checks of arguments, facts, grids, parameters and tensor maps are the same code in Rust; the C
//! launcher is compared with it.

mod build;
mod contract;
mod launcher;
mod load;
mod write;

#[cfg(test)]
mod tests;

pub use crate::device::{Carried, Variant};
pub use crate::error::BundleError;
pub use build::{BundleBuilder, BundleTarget, Wanted, code_of_launch};
pub use contract::{ArchContract, CodeContract, FileEntry, KernelContract, MANIFEST, Manifest, Parameter};
pub use load::{Bundle, BundledKernel};

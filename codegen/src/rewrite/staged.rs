//! What rewrites give that move work into launches ahead of a kernel ([`super::precompute`],
//! [`super::pretranspose`], [`super::copy_ahead`]). What a launch is, and its schedule,
//! `launches.rs` says.

use flashtile_dsl::ir::Kernel;

/// A kernel that reads what others, launched before it, have made.
#[derive(Clone, Debug)]
pub struct Staged {
    /// The kernels that are launched first, in order.
    pub ahead: Vec<Kernel>,
    /// The original, without the work that they do.
    pub main: Kernel,
    /// Names of the tensors between, outputs of `ahead` and inputs of `main`.
    pub between: Vec<String>,
}

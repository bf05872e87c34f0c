//! placeholder
use super::{Kernel, Span};
/// An error.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct VerifyError {
    /// span
    pub span: Span,
    /// message
    pub message: String,
}
/// verify
pub fn verify(_kernel: &Kernel) -> Result<(), Vec<VerifyError>> {
    Ok(())
}

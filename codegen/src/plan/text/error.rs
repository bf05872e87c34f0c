//! What is wrong with a text.

/// A text that is no plan.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct TextError {
    /// Line, from 1.
    pub line: u32,
    /// What is wrong.
    pub message: String,
}

//! Why PTX cannot be loaded or launched. What is wrong with a kernel that does run is a [`Finding`](crate::Finding).

/// Why a PTX text cannot be loaded.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The text is not PTX.
    #[error("line {line}: {what}")]
    Syntax {
        /// Line of the PTX text, from 1.
        line: u32,
        /// What was expected and found.
        what: String,
    },
    /// An instruction, or a form of it, that the emulator does not execute.
    #[error("line {line}: the emulator does not know the instruction `{instruction}`{}", if .why.is_empty() { String::new() } else { format!(": {why}") })]
    UnknownInstruction {
        /// Line of the PTX text, from 1.
        line: u32,
        /// The opcode with all its modifiers.
        instruction: String,
        /// The modifier or operand that is not known; empty if the whole opcode is not.
        why: String,
    },
    /// A name that is not declared.
    #[error("line {line}: `{name}` is not declared")]
    Undeclared {
        /// Line of the PTX text, from 1.
        line: u32,
        /// The name.
        name: String,
    },
    /// The text has no such kernel.
    #[error("no kernel `{name}`; there are: {}", kernels.join(", "))]
    NoKernel {
        /// The name that was asked for.
        name: String,
        /// Names of the kernels that are there.
        kernels: Vec<String>,
    },
}

/// Why a kernel cannot be launched.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// Too few or too many kernel parameters.
    #[error("the kernel takes {expected} parameters, {found} were given")]
    ParameterCount {
        /// Parameters of the kernel.
        expected: usize,
        /// Parameters given.
        found: usize,
    },
    /// A parameter of the wrong size.
    #[error("parameter {index} has {expected} bytes, {found} were given")]
    ParameterSize {
        /// Which one, from 0.
        index: usize,
        /// Bytes it has.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// A launch shape that no GPU takes.
    #[error("illegal launch: {0}")]
    Shape(String),
}

//! The kernels that come with the crate, all written in the kernel language.

/// A built-in kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Builtin {
    /// Name.
    pub name: &'static str,
    /// Name of its file under `kernels/`.
    pub file: &'static str,
    /// Its text.
    pub text: &'static str,
}

/// Every built-in kernel.
pub const BUILTINS: &[Builtin] = &[
    Builtin { name: "attention", file: "attention.rs", text: include_str!("../../kernels/attention.rs") },
    Builtin { name: "causal_attention", file: "causal_attention.rs", text: include_str!("../../kernels/causal_attention.rs") },
    Builtin {
        name: "causal_rope_attention",
        file: "causal_rope_attention.rs",
        text: include_str!("../../kernels/causal_rope_attention.rs"),
    },
    Builtin { name: "matmul_gelu", file: "matmul_gelu.rs", text: include_str!("../../kernels/matmul_gelu.rs") },
    Builtin { name: "rope_attention", file: "rope_attention.rs", text: include_str!("../../kernels/rope_attention.rs") },
    Builtin { name: "rotate", file: "rotate.rs", text: include_str!("../../kernels/rotate.rs") },
    Builtin { name: "row_softmax", file: "row_softmax.rs", text: include_str!("../../kernels/row_softmax.rs") },
];

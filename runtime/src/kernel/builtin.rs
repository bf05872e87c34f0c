//! The kernels that come with the crate, all written in the kernel language.

/// A built-in kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Builtin {
    /// Name.
    pub name: &'static str,
    /// What it is listed under.
    pub group: Group,
    /// Name of its file under `kernels/`.
    pub file: &'static str,
    /// Its text.
    pub text: &'static str,
}

/// What built-in kernels are listed under.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Group {
    /// Attention and its variants.
    Attention,
    /// Rotary position embedding, fused with attention or by itself.
    Rotary,
    /// Functions of rows.
    Rows,
    /// Products of matrices with what follows them.
    Products,
}

impl Group {
    /// Its name in a list.
    pub fn name(self) -> &'static str {
        match self {
            Group::Attention => "attention",
            Group::Rotary => "rotary",
            Group::Rows => "rows",
            Group::Products => "products",
        }
    }
}

macro_rules! builtins {
    ($($group:ident: $($name:literal),+;)+) => {
        /// Every built-in kernel, group by group.
        pub const BUILTINS: &[Builtin] = &[$($(Builtin {
            name: $name,
            group: Group::$group,
            file: concat!($name, ".rs"),
            text: include_str!(concat!("../../kernels/", $name, ".rs")),
        },)+)+];
    };
}

builtins! {
    Attention:
        "attention",
        "causal_attention",
        "sliding_window",
        "prefix_attention",
        "alibi_attention",
        "softcap_attention",
        "sink_attention",
        "document_attention",
        "bias_attention",
        "relative_attention",
        "block_attention",
        "tree_attention",
        "dropout_attention",
        "cross_attention",
        "mla_prefill",
        "mla_decode",
        "query_norm_attention",
        "sigmoid_attention",
        "differential_attention",
        "decode_attention";
    Rotary:
        "rope_attention",
        "causal_rope_attention",
        "rotate";
    Rows:
        "row_softmax",
        "row_argmax",
        "rms_norm",
        "layer_norm";
    Products:
        "matmul_gelu",
        "swiglu",
        "linear_cross_entropy";
}

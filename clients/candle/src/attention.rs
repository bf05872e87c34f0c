//! Attention in the layout of candle-flash-attn: queries `(B, M, H, D)`, keys and values
//! `(B, N, G, D)`, where `H` is a multiple of `G`. Heads are moved by strides, not by a copy. Masks
//! are aligned at the last query and the last key. All functions have gradients.

use std::sync::LazyLock;

use candle_core::{Result, Tensor, bail};
use flashtile::Kernel;

use crate::error::Error;
use crate::input::Input;
use crate::operator::Operator;

/// A built-in kernel whose only output is `o`, shared by all calls.
macro_rules! shared {
    ($($(#[$doc:meta])* $name:ident = $kernel:literal;)+) => {
        $($(#[$doc])* static $name: LazyLock<Operator> = LazyLock::new(|| {
            let kernel = Kernel::builtin($kernel).and_then(|kernel| kernel.without(&["lse"])).expect("a built-in kernel");
            Operator::new(kernel).with_layout("o", [0, 2, 1, 3])
        });)+
    };
}

shared! {
    FULL = "attention";
    CAUSAL = "causal_attention";
    WINDOW = "sliding_window";
    ALIBI = "alibi_attention";
    SOFTCAP = "softcap_attention";
}

/// Attention; `causal` hides keys behind the query.
///
/// # Errors
/// The tensors have another rank, types or devices that differ, or sizes that do not agree.
pub fn flash_attn(q: &Tensor, k: &Tensor, v: &Tensor, softmax_scale: f32, causal: bool) -> Result<Tensor> {
    run(if causal { &CAUSAL } else { &FULL }, [q, k, v], &[softmax_scale.into()])
}

/// Attention in which a query sees the `window_size_left` keys before its own position, and itself.
///
/// A window that is open to the left is [`flash_attn`], and so is one that no key is outside of.
/// `window_size_right` is `Some(0)`, as the built-in kernel is causal. Another window is a kernel of a few lines for
/// [`Operator::from_text`].
///
/// # Errors
/// As [`flash_attn`]; or the window reaches to the right.
pub fn flash_attn_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    match (window_size_left, window_size_right) {
        (left, None) if left.is_none() => flash_attn(q, k, v, softmax_scale, false),
        (None, Some(0)) => flash_attn(q, k, v, softmax_scale, true),
        (Some(left), Some(0)) if k.dims().get(1).is_some_and(|&keys| left >= keys) => flash_attn(q, k, v, softmax_scale, true),
        (Some(left), Some(0)) => {
            let window = i32::try_from(left).ok().and_then(|left| left.checked_add(1));
            let Some(window) = window else { bail!("a window of {left} keys is beyond 2^31") };
            run(&WINDOW, [q, k, v], &[softmax_scale.into(), window.into()])
        }
        (left, right) => bail!(
            "no built-in kernel has the window {left:?}, {right:?}; write its mask in a kernel text for Operator::from_text"
        ),
    }
}

/// Attention with linear biases: the score of a key loses the slope of the head times the distance.
/// `alibi_slopes` is `(H)` in f32.
///
/// # Errors
/// As [`flash_attn`]; or `causal` is not set, for which there is no built-in kernel.
pub fn flash_attn_alibi(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    if !causal {
        bail!("the built-in kernel with linear biases is causal; write another in a kernel text for Operator::from_text");
    }
    run(&ALIBI, [q, k, v], &[softmax_scale.into(), alibi_slopes.into()])
}

/// Causal attention whose scores are bounded smoothly: `softcap * tanh(score / softcap)`.
///
/// In candle-flash-attn the bound is a parameter of `flash_attn_alibi_windowed_softcap`.
///
/// # Errors
/// As [`flash_attn`].
pub fn flash_attn_softcap(q: &Tensor, k: &Tensor, v: &Tensor, softmax_scale: f32, softcap: f32) -> Result<Tensor> {
    run(&SOFTCAP, [q, k, v], &[softmax_scale.into(), softcap.into()])
}

fn run(operator: &Operator, [q, k, v]: [&Tensor; 3], others: &[Input<'_>]) -> Result<Tensor> {
    for (name, tensor) in [("q", q), ("k", k), ("v", v)] {
        if tensor.rank() != 4 {
            bail!("{name} has shape {:?}; attention takes (batch, positions, heads, head dim)", tensor.shape());
        }
    }
    let heads_first = |x: &Tensor| x.transpose(1, 2);
    let (q, k, v) = (heads_first(q)?, heads_first(k)?, heads_first(v)?);
    let (heads, groups) = (q.dim(1)?, k.dim(1)?);
    if groups == 0 || heads % groups != 0 {
        bail!("{heads} query heads are no multiple of {groups} key heads");
    }
    let inputs: Vec<Input<'_>> = [&q, &k, &v].map(Input::from).into_iter().chain(others.iter().copied()).collect();
    let outputs = operator.call(&inputs).map_err(|error: Error| candle_core::Error::from(error))?;
    outputs.into_first().transpose(1, 2)
}

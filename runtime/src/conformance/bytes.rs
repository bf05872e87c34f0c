//! Kernels of the suite that load elements of one byte: masks that are stored, and quantised keys
//! and values.

use super::softmax::softmax_attention;

/// A truth value for each score.
pub(super) const BOOLEAN_MASK: &str = softmax_attention!(
    "boolean_mask",
    keys: "T",
    parameters: "
    keep: &Tensor<bool, (B, H, M, N)>,
    scale: f32,",
    scores: "
        let s = dot(q_i, load(k, [b, g, j, ..]).t()) * scale;
        let s = mask(s, load(keep, [b, h, i, j]));",
    values: "load(v, [b, g, j, ..])",
);

/// A byte for each key, beside a causal mask: a key whose byte is 0 is padding.
pub(super) const KEEP_BITS: &str = softmax_attention!(
    "keep_bits",
    keys: "T",
    parameters: "
    keep: &Tensor<u8, (B, N)>,
    scale: f32,",
    scores: "
        let s = dot(q_i, load(k, [b, g, j, ..]).t()) * scale;
        let s = mask(s, pos(i) + N - M >= pos(j) && load(keep, [b, j]) != 0);",
    values: "load(v, [b, g, j, ..])",
);

/// Keys and values of `i8`, each row with a scale.
pub(super) const INT8_KEYS: &str = softmax_attention!(
    "int8_keys",
    keys: "i8",
    parameters: "
    k_step: &Tensor<f32, (B, G, N)>,
    v_step: &Tensor<f32, (B, G, N)>,
    scale: f32,",
    scores: "
        let k_j = (load(k, [b, g, j, ..]) * load(k_step, [b, g, j])).to::<T>();
        let v_j = (load(v, [b, g, j, ..]) * load(v_step, [b, g, j])).to::<T>();
        let s = dot(q_i, k_j.t()) * scale;",
    values: "v_j",
);

/// Keys and values of `u8`, each channel with a zero point, and with a scale of each type.
pub(super) const UINT8_KEYS: &str = softmax_attention!(
    "uint8_keys",
    keys: "u8",
    parameters: "
    kz: &Tensor<u8, (G, D)>,
    vz: &Tensor<f32, (G, D)>,
    k_step: &Tensor<f32, (G, D)>,
    v_step: f32,
    scale: f32,",
    scores: "
        let k_j = ((load(k, [b, g, j, ..]) - load(kz, [g, ..])) * load(k_step, [g, ..])).to::<T>();
        let v_j = ((load(v, [b, g, j, ..]) - load(vz, [g, ..])) * v_step).to::<T>();
        let s = mask(dot(q_i, k_j.t()) * scale, pos(i) + N - M >= pos(j));",
    values: "v_j",
);

/// Keys and values of `f8e4m3`, each head with a scale.
pub(super) const E4M3_KEYS: &str = softmax_attention!(
    "e4m3_keys",
    keys: "f8e4m3",
    parameters: "
    ks: &Tensor<f32, (G)>,
    vs: &Tensor<f32, (G)>,
    scale: f32,",
    scores: "
        let k_j = (load(k, [b, g, j, ..]) * load(ks, [g])).to::<T>();
        let v_j = (load(v, [b, g, j, ..]) * load(vs, [g])).to::<T>();
        let s = mask(dot(q_i, k_j.t()) * scale, pos(i) + N - M >= pos(j));",
    values: "v_j",
);

/// Keys and values of `f8e5m2`, each channel with a scale.
pub(super) const E5M2_KEYS: &str = softmax_attention!(
    "e5m2_keys",
    keys: "f8e5m2",
    parameters: "
    ks: &Tensor<f32, (G, D)>,
    vs: &Tensor<f32, (G, D)>,
    scale: f32,",
    scores: "
        let k_j = (load(k, [b, g, j, ..]) * load(ks, [g, ..])).to::<T>();
        let v_j = (load(v, [b, g, j, ..]) * load(vs, [g, ..])).to::<T>();
        let s = dot(q_i, k_j.t()) * scale;",
    values: "v_j",
);

/// What every byte is in every type: as a matrix, as a row, as a column, and as one element.
pub(super) const WIDENED: &str = "
pub fn widened(
    x: &Tensor<u8, (M, N)>,
    y: &Tensor<i8, (M, N)>,
    e: &Tensor<f8e4m3, (M, N)>,
    f: &Tensor<f8e5m2, (M, N)>,
    keep: &Tensor<bool, (M, N)>,
    rows: &Tensor<i8, (M)>,
    columns: &Tensor<f8e4m3, (N)>,
    one: &Tensor<f8e5m2, (B)>,
    all: &Tensor<bool, (B)>,
    integers: &mut Tensor<i32, (B, M, N)>,
    small: &mut Tensor<f32, (B, M, N)>,
    large: &mut Tensor<f32, (B, M, N)>,
    vectors: &mut Tensor<f32, (B, M, N)>,
) {
    let (b, i, j) = program(B, tiles(M), tiles(N));
    let kept = load(keep, [i, j]) || load(all, [b]);
    store(integers, [b, i, j], select(kept, load(x, [i, j]) * 256 + load(y, [i, j]), load(rows, [i])));
    store(small, [b, i, j], load(e, [i, j]));
    store(large, [b, i, j], load(f, [i, j]));
    store(vectors, [b, i, j], select(pos(i) % 2 == 0, load(columns, [j]), load(one, [b])));
}
";

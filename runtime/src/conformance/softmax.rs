//! The text that kernels of softmax attention have in common: the suite's differ in what they read,
//! and in how scores and values are made of it.

/// The text of a kernel of softmax attention.
///
/// - `keys`: the element type of keys and values;
/// - `parameters`: what stands between `v` and `o`, a line each;
/// - `scores`: the lines of the loop that define `s`, the scores of a tile, of which hidden ones
///   are `-INF`;
/// - `values`: the tile of values, of type `T`.
macro_rules! softmax_attention {
    (
        $name:literal,
        keys: $keys:literal,
        parameters: $parameters:literal,
        scores: $scores:literal,
        values: $values:literal $(,)?
    ) => {
        concat!(
            "\npub fn ",
            $name,
            "<T: Element, const D: usize>(\n    q: &Tensor<T, (B, H, M, D)>,\n    k: &Tensor<",
            $keys,
            ", (B, G, N, D)>,\n    v: &Tensor<",
            $keys,
            ", (B, G, N, D)>,",
            $parameters,
            "
    o: &mut Tensor<T, (B, H, M, D)>,
    lse: &mut Tensor<f32, (B, H, M)>,
) {
    let (b, h, i) = program(B, H, tiles(M));
    let g = h * G / H;
    let q_i = load(q, [b, h, i, ..]);
    let mut m = full(i, -INF);
    let mut l = zeros(i);
    let mut acc = zeros((i, D));
    for j in tiles(N) {",
            $scores,
            "
        let m_new = max(m, rowmax(s));
        let m_ref = visible_or_zero(m_new);
        let alpha = exp(m - m_ref);
        let p = exp(s - m_ref);
        l = l * alpha + rowsum(p);
        acc = acc * alpha + dot(p.to::<T>(), ",
            $values,
            ");
        m = m_new;
    }
    store(o, [b, h, i, ..], div_or_zero(acc, l));
    store(lse, [b, h, i], m + ln(l));
}
"
        )
    };
}

pub(super) use softmax_attention;

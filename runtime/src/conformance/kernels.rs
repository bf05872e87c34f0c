//! Kernels of the suite that are not built in: masks and shapes that a user may write.

use super::bytes;
use super::gathers;
use super::softmax::softmax_attention;
use super::states;

/// A kernel of the suite.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SuiteKernel {
    /// Name, as in the text.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
}

/// All of them.
pub const KERNELS: &[SuiteKernel] = &[
    SuiteKernel { name: "split_dims", text: SPLIT_DIMS },
    SuiteKernel { name: "computed_operands", text: COMPUTED_OPERANDS },
    SuiteKernel { name: "computed_transposed", text: COMPUTED_TRANSPOSED },
    SuiteKernel { name: "rotated_pairs", text: ROTATED_PAIRS },
    SuiteKernel { name: "appended_key", text: APPENDED_KEY },
    SuiteKernel { name: "weighted_rows", text: WEIGHTED_ROWS },
    SuiteKernel { name: "decayed_state", text: states::DECAYED_STATE },
    SuiteKernel { name: "continued_state", text: states::CONTINUED_STATE },
    SuiteKernel { name: "gram", text: states::GRAM },
    SuiteKernel { name: "linear_attention", text: LINEAR_ATTENTION },
    SuiteKernel { name: "late_sink_attention", text: LATE_SINK },
    SuiteKernel { name: "matmul_activations", text: ACTIVATIONS },
    SuiteKernel { name: "capped_after_mask", text: CAPPED_AFTER_MASK },
    SuiteKernel { name: "retention", text: RETENTION },
    SuiteKernel { name: "query_gradient", text: QUERY_GRADIENT },
    SuiteKernel { name: "key_gradients", text: KEY_GRADIENTS },
    SuiteKernel { name: "counted", text: COUNTED },
    SuiteKernel { name: "lengths", text: LENGTHS },
    SuiteKernel { name: "row_ranges", text: ROW_RANGES },
    SuiteKernel { name: "window_and_first", text: WINDOW_AND_FIRST },
    SuiteKernel { name: "blocks_of", text: BLOCKS_OF },
    SuiteKernel { name: "boolean_mask", text: bytes::BOOLEAN_MASK },
    SuiteKernel { name: "keep_bits", text: bytes::KEEP_BITS },
    SuiteKernel { name: "int8_keys", text: bytes::INT8_KEYS },
    SuiteKernel { name: "uint8_keys", text: bytes::UINT8_KEYS },
    SuiteKernel { name: "e4m3_keys", text: bytes::E4M3_KEYS },
    SuiteKernel { name: "e5m2_keys", text: bytes::E5M2_KEYS },
    SuiteKernel { name: "widened", text: bytes::WIDENED },
    SuiteKernel { name: "documents", text: DOCUMENTS },
    SuiteKernel { name: "gathered", text: gathers::GATHERED },
    SuiteKernel { name: "turned_bias", text: gathers::TURNED_BIAS },
    SuiteKernel { name: "scores_on_the_right", text: states::SCORES_ON_THE_RIGHT },
];

/// The cap of a hidden score is a number: a row maximum must not see it.
const CAPPED_AFTER_MASK: &str = softmax_attention!(
    "capped_after_mask",
    keys: "T",
    parameters: "
    scale: f32,",
    scores: "
        let s = dot(q_i, load(k, [b, g, j, ..]).t()) * scale;
        let s = tanh(mask(s, pos(i) + N - M >= pos(j))) * 3.0;",
    values: "load(v, [b, g, j, ..])",
);

/// What a hidden score is multiplied with is not known to be finite.
const RETENTION: &str = "
pub fn retention<T: Element, const D: usize>(
    q: &Tensor<T, (B, H, M, D)>,
    k: &Tensor<T, (B, G, N, D)>,
    v: &Tensor<T, (B, G, N, D)>,
    scale: f32,
    o: &mut Tensor<T, (B, H, M, D)>,
) {
    let (b, h, i) = program(B, H, tiles(M));
    let g = h * G / H;
    let q_i = load(q, [b, h, i, ..]);
    let mut acc = zeros((i, D));
    for j in tiles(N) {
        let s = dot(q_i, load(k, [b, g, j, ..]).t()) * scale;
        let w = exp(mask(-0.0625 * (pos(i) - pos(j)), pos(i) >= pos(j)));
        acc += dot((s * w).to::<T>(), load(v, [b, g, j, ..]));
    }
    store(o, [b, h, i, ..], acc);
}
";

/// The gradient of a query. The log of the sum of a row that sees nothing is -inf, as it is stored.
const QUERY_GRADIENT: &str = "
pub fn query_gradient<T: Element, const D: usize>(
    q: &Tensor<T, (B, H, M, D)>,
    k: &Tensor<T, (B, G, N, D)>,
    v: &Tensor<T, (B, G, N, D)>,
    go: &Tensor<T, (B, H, M, D)>,
    lse: &Tensor<f32, (B, H, M)>,
    delta: &Tensor<f32, (B, H, M)>,
    scale: f32,
    gq: &mut Tensor<T, (B, H, M, D)>,
) {
    let (b, h, i) = program(B, H, tiles(M));
    let g = h * G / H;
    let q_i = load(q, [b, h, i, ..]);
    let go_i = load(go, [b, h, i, ..]);
    let lse_i = load(lse, [b, h, i]);
    let delta_i = load(delta, [b, h, i]);
    let mut acc = zeros((i, D));
    for j in tiles(N) {
        let k_j = load(k, [b, g, j, ..]);
        let s = mask(dot(q_i, k_j.t()) * scale, pos(i) + N - M >= pos(j));
        let p = exp(s - lse_i);
        let dp = dot(go_i, load(v, [b, g, j, ..]).t());
        acc += dot((p * (dp - delta_i)).to::<T>(), k_j);
    }
    store(gq, [b, h, i, ..], acc * scale);
}
";

/// The gradients of a key and of its value: the loop walks the queries.
const KEY_GRADIENTS: &str = "
pub fn key_gradients<T: Element, const D: usize>(
    q: &Tensor<T, (B, H, M, D)>,
    k: &Tensor<T, (B, H, N, D)>,
    v: &Tensor<T, (B, H, N, D)>,
    go: &Tensor<T, (B, H, M, D)>,
    lse: &Tensor<f32, (B, H, M)>,
    delta: &Tensor<f32, (B, H, M)>,
    scale: f32,
    gk: &mut Tensor<T, (B, H, N, D)>,
    gv: &mut Tensor<T, (B, H, N, D)>,
) {
    let (b, h, j) = program(B, H, tiles(N));
    let k_j = load(k, [b, h, j, ..]);
    let v_j = load(v, [b, h, j, ..]);
    let mut dk = zeros((j, D));
    let mut dv = zeros((j, D));
    for i in tiles(M) {
        let q_i = load(q, [b, h, i, ..]);
        let go_i = load(go, [b, h, i, ..]);
        let st = mask(dot(k_j, q_i.t()) * scale, pos(i) + N - M >= pos(j));
        let pt = exp(st - load(lse, [b, h, i]));
        dv += dot(pt.to::<T>(), go_i);
        let dpt = dot(v_j, go_i.t());
        dk += dot((pt * (dpt - load(delta, [b, h, i]))).to::<T>(), q_i);
    }
    store(gk, [b, h, j, ..], dk * scale);
    store(gv, [b, h, j, ..], dv);
}
";

/// How many scores of a row are seen: what a hidden one holds is 1.
const COUNTED: &str = "
pub fn counted<T: Element, const D: usize>(
    q: &Tensor<T, (B, H, M, D)>,
    k: &Tensor<T, (B, G, N, D)>,
    v: &Tensor<T, (B, G, N, D)>,
    scale: f32,
    n: &mut Tensor<f32, (B, H, M)>,
    o: &mut Tensor<T, (B, H, M, D)>,
) {
    let (b, h, i) = program(B, H, tiles(M));
    let g = h * G / H;
    let q_i = load(q, [b, h, i, ..]);
    let mut count = zeros(i);
    let mut acc = zeros((i, D));
    for j in tiles(N) {
        let s = mask(dot(q_i, load(k, [b, g, j, ..]).t()) * scale, pos(i) + N - M >= pos(j));
        let one = exp(min(s, -1e30)) + 1.0;
        count += rowsum(one);
        acc += dot(one.to::<T>(), load(v, [b, g, j, ..]));
    }
    store(n, [b, h, i], count);
    store(o, [b, h, i, ..], acc);
}
";

/// Keys up to a length of each batch, with a window of each head: bounds of the loop are loaded.
const LENGTHS: &str = softmax_attention!(
    "lengths",
    keys: "T",
    parameters: "
    lens: &Tensor<i32, (B)>,
    windows: &Tensor<i32, (H)>,
    scale: f32,",
    scores: "
        let s = dot(q_i, load(k, [b, g, j, ..]).t()) * scale;
        let s = mask(s, pos(j) < load(lens, [b]) && abs(pos(i) - pos(j)) <= load(windows, [h]));",
    values: "load(v, [b, g, j, ..])",
);

/// Blocks of a size that is known at launch, causal from block to block, and the own block of each
/// head alone.
const BLOCKS_OF: &str = "
pub fn blocks_of<T: Element, const D: usize>(
    q: &Tensor<T, (B, H, M, D)>,
    k: &Tensor<T, (B, G, N, D)>,
    v: &Tensor<T, (B, G, N, D)>,
    sizes: &Tensor<i32, (H)>,
    scale: f32,
    s: i32,
    o: &mut Tensor<T, (B, H, M, D)>,
    lse: &mut Tensor<f32, (B, H, M)>,
) {
    let (b, h, i) = program(B, H, tiles(M));
    let g = h * G / H;
    let q_i = load(q, [b, h, i, ..]);
    let own = max(load(sizes, [h]), 1);
    let mut m = full(i, -INF);
    let mut l = zeros(i);
    let mut acc = zeros((i, D));
    for j in tiles(N) {
        let x = dot(q_i, load(k, [b, g, j, ..]).t()) * scale;
        let x = mask(x, pos(i) / s >= pos(j) / s && pos(i) - pos(i) % own <= pos(j));
        let m_new = max(m, rowmax(x));
        let m_ref = visible_or_zero(m_new);
        let alpha = exp(m - m_ref);
        let p = exp(x - m_ref);
        l = l * alpha + rowsum(p);
        acc = acc * alpha + dot(p.to::<T>(), load(v, [b, g, j, ..]));
        m = m_new;
    }
    store(o, [b, h, i, ..], div_or_zero(acc, l));
    store(lse, [b, h, i], m + ln(l));
}
";

/// A window, and the first keys of all: two runs of tiles.
const WINDOW_AND_FIRST: &str = softmax_attention!(
    "window_and_first",
    keys: "T",
    parameters: "
    scale: f32,
    window: i32,
    first: i32,",
    scores: "
        let s = dot(q_i, load(k, [b, g, j, ..]).t()) * scale;
        let s = mask(s, pos(i) + N - M >= pos(j) && (pos(j) < first || pos(i) + N - M < pos(j) + window));",
    values: "load(v, [b, g, j, ..])",
);

/// A range of keys for each row.
const ROW_RANGES: &str = softmax_attention!(
    "row_ranges",
    keys: "T",
    parameters: "
    begin: &Tensor<i32, (B, M)>,
    end: &Tensor<i32, (B, M)>,
    scale: f32,",
    scores: "
        let s = dot(q_i, load(k, [b, g, j, ..]).t()) * scale;
        let s = mask(s, pos(j) >= load(begin, [b, i]) && pos(j) < load(end, [b, i]));",
    values: "load(v, [b, g, j, ..])",
);

/// Keys of the query's own document, each from a step on: which tiles are walked follows from what
/// is loaded for each key.
const DOCUMENTS: &str = softmax_attention!(
    "documents",
    keys: "T",
    parameters: "
    query_document: &Tensor<i32, (B, M)>,
    key_document: &Tensor<i32, (B, N)>,
    since: &Tensor<i32, (B, N)>,
    scale: f32,",
    scores: "
        let s = dot(q_i, load(k, [b, g, j, ..]).t()) * scale;
        let same = load(query_document, [b, i]) == load(key_document, [b, j]);
        let s = mask(s, same && pos(i) >= load(since, [b, j]));",
    values: "load(v, [b, g, j, ..])",
);

/// The head dim of the values is not that of the keys.
const SPLIT_DIMS: &str = "
pub fn split_dims<T: Element, const D: usize, const E: usize>(
    q: &Tensor<T, (B, H, M, D)>,
    k: &Tensor<T, (B, G, N, D)>,
    v: &Tensor<T, (B, G, N, E)>,
    scale: f32,
    o: &mut Tensor<T, (B, H, M, E)>,
    lse: &mut Tensor<f32, (B, H, M)>,
) {
    let (b, h, i) = program(B, H, tiles(M));
    let g = h * G / H;
    let q_i = load(q, [b, h, i, ..]);
    let mut m = full(i, -INF);
    let mut l = zeros(i);
    let mut acc = zeros((i, E));
    for j in tiles(N) {
        let s = dot(q_i, load(k, [b, g, j, ..]).t()) * scale;
        let m_new = max(m, rowmax(s));
        let m_ref = visible_or_zero(m_new);
        let alpha = exp(m - m_ref);
        let p = exp(s - m_ref);
        l = l * alpha + rowsum(p);
        acc = acc * alpha + dot(p.to::<T>(), load(v, [b, g, j, ..]));
        m = m_new;
    }
    store(o, [b, h, i, ..], div_or_zero(acc, l));
    store(lse, [b, h, i], m + ln(l));
}
";

/// Both operands of the product are computed, from matrices, vectors and positions; what they are beyond the extents is not 0.
const COMPUTED_OPERANDS: &str = "
pub fn computed_operands<T: Element>(
    a: &Tensor<T, (M, K)>,
    b: &Tensor<T, (K, N)>,
    u: &Tensor<T, (K)>,
    w: &Tensor<T, (N)>,
    c: &mut Tensor<T, (M, N)>,
) {
    let (i, j) = program(tiles(M), tiles(N));
    let mut acc = zeros((i, j));
    for k in tiles(K) {
        let x = (1.0 - abs(load(a, [i, k]))).to::<T>();
        let b_kj = load(b, [k, j]);
        let y = b_kj * load(w, [j]) + load(u, [k]);
        let y = select((pos(k) > pos(j)).t(), y, exp(0.0 - y * y)).to::<T>();
        acc = acc + dot(x, y);
    }
    store(c, [i, j], acc);
}
";

/// Right operands that are computed transposed, one of them from a tile that another product reads as it is.
const COMPUTED_TRANSPOSED: &str = "
pub fn computed_transposed<T: Element, const D: usize>(
    q: &Tensor<T, (M, D)>,
    k: &Tensor<T, (N, D)>,
    w: &Tensor<T, (N, D)>,
    o: &mut Tensor<T, (M, D)>,
) {
    let i = program(tiles(M));
    let q_i = (load(q, [i, ..]) * 0.5).to::<T>();
    let mut acc = zeros((i, D));
    for j in tiles(N) {
        let k_j = load(k, [j, ..]);
        let turned = (k_j.t() * load(w, [j, ..]).t()).to::<T>();
        let s = dot(q_i, turned) + dot(q_i, k_j.t());
        let v_j = max(load(w, [j, ..]), 0.25).to::<T>();
        acc = acc + dot(s.to::<T>(), v_j);
    }
    store(o, [i, ..], acc);
}
";

/// Rotated pairs that lie side by side: columns of a load, and of a store, are every second element.
const ROTATED_PAIRS: &str = "
pub fn rotated_pairs<T: Element, const D: usize>(
    q: &Tensor<T, (H, M, D, 2)>,
    k: &Tensor<T, (H, N, D, 2)>,
    v: &Tensor<T, (H, N, D)>,
    cos_q: &Tensor<f32, (M, D)>,
    sin_q: &Tensor<f32, (M, D)>,
    cos_k: &Tensor<f32, (N, D)>,
    sin_k: &Tensor<f32, (N, D)>,
    o: &mut Tensor<T, (H, M, D, 2)>,
) {
    let (h, i) = program(H, tiles(M));
    let qx = load(q, [h, i, .., 0]);
    let qy = load(q, [h, i, .., 1]);
    let a = (qx * load(cos_q, [i, ..]) - qy * load(sin_q, [i, ..])).to::<T>();
    let b = (qx * load(sin_q, [i, ..]) + qy * load(cos_q, [i, ..])).to::<T>();
    let mut acc = zeros((i, D));
    for j in tiles(N) {
        let kx = load(k, [h, j, .., 0]);
        let ky = load(k, [h, j, .., 1]);
        let c = load(cos_k, [j, ..]);
        let s = load(sin_k, [j, ..]);
        let x = (kx * c - ky * s).to::<T>();
        let y = (kx * s + ky * c).to::<T>();
        let scores = dot(a, x.t()) + dot(b, y.t());
        acc = acc + dot(scores.to::<T>(), load(v, [h, j, ..]));
    }
    store(o, [h, i, .., 0], acc);
    store(o, [h, i, .., 1], acc * 0.5 + qy);
}
";

/// Attention to keys in memory and to one key more, whose score is a row sum: the tile of queries is
/// an operand of a product, and used elementwise.
const APPENDED_KEY: &str = "
pub fn appended_key<T: Element, const D: usize>(
    q: &Tensor<T, (B, H, M, D)>,
    k: &Tensor<T, (B, G, N, D)>,
    v: &Tensor<T, (B, G, N, D)>,
    own_k: &Tensor<T, (B, G, D)>,
    own_v: &Tensor<T, (B, G, D)>,
    scale: f32,
    o: &mut Tensor<T, (B, H, M, D)>,
) {
    let (b, h, i) = program(B, H, tiles(M));
    let g = h * G / H;
    let q_i = load(q, [b, h, i, ..]);
    let mut m = full(i, -INF);
    let mut l = zeros(i);
    let mut acc = zeros((i, D));
    for j in tiles(N) {
        let s = dot(q_i, load(k, [b, g, j, ..]).t()) * scale;
        let m_new = max(m, rowmax(s));
        let m_ref = visible_or_zero(m_new);
        let alpha = exp(m - m_ref);
        let p = exp(s - m_ref);
        l = l * alpha + rowsum(p);
        acc = acc * alpha + dot(p.to::<T>(), load(v, [b, g, j, ..]));
        m = m_new;
    }
    let own = rowsum(q_i * load(own_k, [b, g, ..])) * scale;
    let m_all = max(m, own);
    let (kept, p) = (exp(m - m_all), exp(own - m_all));
    store(o, [b, h, i, ..], (acc * kept + p * load(own_v, [b, g, ..])) / (l * kept + p));
}
";

/// Averages of rows with weights that are loaded: a tile that a loop streams is the left operand of
/// a product, and is summed along its rows.
const WEIGHTED_ROWS: &str = "
pub fn weighted_rows<T: Element, const D: usize>(
    w: &Tensor<T, (M, N)>,
    x: &Tensor<T, (N, D)>,
    y: &mut Tensor<f32, (M, D)>,
) {
    let i = program(tiles(M));
    let mut l = zeros(i);
    let mut acc = zeros((i, D));
    for j in tiles(N) {
        let w_j = load(w, [i, j]);
        l += rowsum(abs(w_j));
        acc += dot(w_j, load(x, [j, ..]));
    }
    store(y, [i, ..], div_or_zero(acc, l));
}
";

/// Causal attention without a softmax, and the largest score of each row. With small whole numbers every sum is exact, so that
/// all devices must agree on every bit.
const LINEAR_ATTENTION: &str = "
pub fn linear_attention<T: Element, const D: usize>(
    q: &Tensor<T, (B, H, M, D)>,
    k: &Tensor<T, (B, G, N, D)>,
    v: &Tensor<T, (B, G, N, D)>,
    o: &mut Tensor<T, (B, H, M, D)>,
    largest: &mut Tensor<f32, (B, H, M)>,
) {
    let (b, h, i) = program(B, H, tiles(M));
    let g = h * G / H;
    let q_i = load(q, [b, h, i, ..]);
    let mut m = full(i, -INF);
    let mut acc = zeros((i, D));
    for j in tiles(N) {
        let s = dot(q_i, load(k, [b, g, j, ..]).t());
        let seen = pos(i) + N - M >= pos(j);
        m = max(m, rowmax(mask(s, seen)));
        acc = acc + dot(select(seen, s, 0.0).to::<T>(), load(v, [b, g, j, ..]));
    }
    store(o, [b, h, i, ..], acc);
    store(largest, [b, h, i], m);
}
";

/// The sink of `sink_attention`, added after the loop.
const LATE_SINK: &str = "
pub fn late_sink_attention<T: Element, const D: usize>(
    q: &Tensor<T, (B, H, M, D)>,
    k: &Tensor<T, (B, G, N, D)>,
    v: &Tensor<T, (B, G, N, D)>,
    scale: f32,
    sinks: &Tensor<f32, (H)>,
    o: &mut Tensor<T, (B, H, M, D)>,
    lse: &mut Tensor<f32, (B, H, M)>,
) {
    let (b, h, i) = program(B, H, tiles(M));
    let g = h * G / H;
    let q_i = load(q, [b, h, i, ..]);
    let mut m = full(i, -INF);
    let mut l = zeros(i);
    let mut acc = zeros((i, D));
    for j in tiles(N) {
        let s = dot(q_i, load(k, [b, g, j, ..]).t()) * scale;
        let s = select(pos(i) + N - M < pos(j), -INF, s);
        let m_new = max(m, rowmax(s));
        let m_ref = visible_or_zero(m_new);
        let alpha = exp(m - m_ref);
        let p = exp(s - m_ref);
        l = l * alpha + rowsum(p);
        acc = acc * alpha + dot(p.to::<T>(), load(v, [b, g, j, ..]));
        m = m_new;
    }
    let m_all = max(m, load(sinks, [h]));
    let m_ref = visible_or_zero(m_all);
    let kept = exp(m - m_ref);
    let l_all = l * kept + exp(load(sinks, [h]) - m_ref);
    store(o, [b, h, i, ..], div_or_zero(acc * kept, l_all));
    store(lse, [b, h, i], m_all + ln(l_all));
}
";

/// A product and four activations of it, written out of `exp`, `ln`, `tanh` and quotients.
const ACTIVATIONS: &str = "
pub fn matmul_activations<T: Element>(
    a: &Tensor<T, (M, K)>,
    b: &Tensor<T, (K, N)>,
    sigmoid: &mut Tensor<T, (M, N)>,
    silu: &mut Tensor<T, (M, N)>,
    gelu: &mut Tensor<T, (M, N)>,
    softplus: &mut Tensor<T, (M, N)>,
) {
    let (i, j) = program(tiles(M), tiles(N));
    let mut acc = zeros((i, j));
    for k in tiles(K) {
        acc = acc + dot(load(a, [i, k]), load(b, [k, j]));
    }
    store(sigmoid, [i, j], 1.0 / (1.0 + exp(-acc)));
    store(silu, [i, j], acc / (1.0 + exp(-acc)));
    store(gelu, [i, j], 0.5 * acc * (1.0 + tanh(0.7978845608 * (acc + 0.044715 * acc * acc * acc))));
    store(softplus, [i, j], max(acc, 0.0) + ln(1.0 + exp(-abs(acc))));
}
";

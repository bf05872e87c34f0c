//! Kernels of the suite that load elements of one byte: masks that are stored, and quantised keys and values.

/// A truth value for each score.
pub(super) const BOOLEAN_MASK: &str = "
pub fn boolean_mask<T: Element, const D: usize>(
    q: &Tensor<T, (B, H, M, D)>,
    k: &Tensor<T, (B, G, N, D)>,
    v: &Tensor<T, (B, G, N, D)>,
    keep: &Tensor<bool, (B, H, M, N)>,
    scale: f32,
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
        let s = mask(s, load(keep, [b, h, i, j]));
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

/// A byte for each key, beside a causal mask: a key whose byte is 0 is padding.
pub(super) const KEEP_BITS: &str = "
pub fn keep_bits<T: Element, const D: usize>(
    q: &Tensor<T, (B, H, M, D)>,
    k: &Tensor<T, (B, G, N, D)>,
    v: &Tensor<T, (B, G, N, D)>,
    keep: &Tensor<u8, (B, N)>,
    scale: f32,
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
        let s = mask(s, pos(i) + N - M >= pos(j) && load(keep, [b, j]) != 0);
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

/// Keys and values of `i8`, each row with a scale.
pub(super) const INT8_KEYS: &str = "
pub fn int8_keys<T: Element, const D: usize>(
    q: &Tensor<T, (B, H, M, D)>,
    k: &Tensor<i8, (B, G, N, D)>,
    v: &Tensor<i8, (B, G, N, D)>,
    k_step: &Tensor<f32, (B, G, N)>,
    v_step: &Tensor<f32, (B, G, N)>,
    scale: f32,
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
        let k_j = (load(k, [b, g, j, ..]) * load(k_step, [b, g, j])).to::<T>();
        let v_j = (load(v, [b, g, j, ..]) * load(v_step, [b, g, j])).to::<T>();
        let s = dot(q_i, k_j.t()) * scale;
        let m_new = max(m, rowmax(s));
        let m_ref = visible_or_zero(m_new);
        let alpha = exp(m - m_ref);
        let p = exp(s - m_ref);
        l = l * alpha + rowsum(p);
        acc = acc * alpha + dot(p.to::<T>(), v_j);
        m = m_new;
    }
    store(o, [b, h, i, ..], div_or_zero(acc, l));
    store(lse, [b, h, i], m + ln(l));
}
";

/// Keys and values of `u8`, each channel with a zero point, and with a scale of each type.
pub(super) const UINT8_KEYS: &str = "
pub fn uint8_keys<T: Element, const D: usize>(
    q: &Tensor<T, (B, H, M, D)>,
    k: &Tensor<u8, (B, G, N, D)>,
    v: &Tensor<u8, (B, G, N, D)>,
    kz: &Tensor<u8, (G, D)>,
    vz: &Tensor<f32, (G, D)>,
    k_step: &Tensor<f32, (G, D)>,
    v_step: f32,
    scale: f32,
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
        let k_j = ((load(k, [b, g, j, ..]) - load(kz, [g, ..])) * load(k_step, [g, ..])).to::<T>();
        let v_j = ((load(v, [b, g, j, ..]) - load(vz, [g, ..])) * v_step).to::<T>();
        let s = mask(dot(q_i, k_j.t()) * scale, pos(i) + N - M >= pos(j));
        let m_new = max(m, rowmax(s));
        let m_ref = visible_or_zero(m_new);
        let alpha = exp(m - m_ref);
        let p = exp(s - m_ref);
        l = l * alpha + rowsum(p);
        acc = acc * alpha + dot(p.to::<T>(), v_j);
        m = m_new;
    }
    store(o, [b, h, i, ..], div_or_zero(acc, l));
    store(lse, [b, h, i], m + ln(l));
}
";

/// Keys and values of `f8e4m3`, each head with a scale.
pub(super) const E4M3_KEYS: &str = "
pub fn e4m3_keys<T: Element, const D: usize>(
    q: &Tensor<T, (B, H, M, D)>,
    k: &Tensor<f8e4m3, (B, G, N, D)>,
    v: &Tensor<f8e4m3, (B, G, N, D)>,
    ks: &Tensor<f32, (G)>,
    vs: &Tensor<f32, (G)>,
    scale: f32,
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
        let k_j = (load(k, [b, g, j, ..]) * load(ks, [g])).to::<T>();
        let v_j = (load(v, [b, g, j, ..]) * load(vs, [g])).to::<T>();
        let s = mask(dot(q_i, k_j.t()) * scale, pos(i) + N - M >= pos(j));
        let m_new = max(m, rowmax(s));
        let m_ref = visible_or_zero(m_new);
        let alpha = exp(m - m_ref);
        let p = exp(s - m_ref);
        l = l * alpha + rowsum(p);
        acc = acc * alpha + dot(p.to::<T>(), v_j);
        m = m_new;
    }
    store(o, [b, h, i, ..], div_or_zero(acc, l));
    store(lse, [b, h, i], m + ln(l));
}
";

/// Keys and values of `f8e5m2`, each channel with a scale.
pub(super) const E5M2_KEYS: &str = "
pub fn e5m2_keys<T: Element, const D: usize>(
    q: &Tensor<T, (B, H, M, D)>,
    k: &Tensor<f8e5m2, (B, G, N, D)>,
    v: &Tensor<f8e5m2, (B, G, N, D)>,
    ks: &Tensor<f32, (G, D)>,
    vs: &Tensor<f32, (G, D)>,
    scale: f32,
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
        let k_j = (load(k, [b, g, j, ..]) * load(ks, [g, ..])).to::<T>();
        let v_j = (load(v, [b, g, j, ..]) * load(vs, [g, ..])).to::<T>();
        let s = dot(q_i, k_j.t()) * scale;
        let m_new = max(m, rowmax(s));
        let m_ref = visible_or_zero(m_new);
        let alpha = exp(m - m_ref);
        let p = exp(s - m_ref);
        l = l * alpha + rowsum(p);
        acc = acc * alpha + dot(p.to::<T>(), v_j);
        m = m_new;
    }
    store(o, [b, h, i, ..], div_or_zero(acc, l));
    store(lse, [b, h, i], m + ln(l));
}
";

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

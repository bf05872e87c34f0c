// Attention as it is written without fusion: three kernels, with the scores S and the probabilities P in global memory.

/// S = scale * Q K^T.
pub fn naive_scores<T: Element, const D: usize>(
    q: &Tensor<T, (B, H, M, D)>,
    k: &Tensor<T, (B, G, N, D)>,
    scale: f32,
    s: &mut Tensor<T, (B, H, M, N)>,
) {
    let (b, h, i, j) = program(B, H, tiles(M), tiles(N));
    let g = h * G / H;
    store(s, [b, h, i, j], dot(load(q, [b, h, i, ..]), load(k, [b, g, j, ..]).t()) * scale);
}

/// P = softmax(S), row by row: one pass for the maximum and the sum, one for the quotients.
pub fn naive_softmax<T: Element>(s: &Tensor<T, (B, H, M, N)>, p: &mut Tensor<T, (B, H, M, N)>) {
    let (b, h, i) = program(B, H, tiles(M));
    let mut m = full(i, -INF);
    let mut l = zeros(i);
    for j in tiles(N) {
        let s_ij = load(s, [b, h, i, j]);
        let m_new = max(m, rowmax(s_ij));
        let m_ref = visible_or_zero(m_new);
        l = l * exp(m - m_ref) + rowsum(exp(s_ij - m_ref));
        m = m_new;
    }
    let m_ref = visible_or_zero(m);
    for j in tiles(N) {
        store(p, [b, h, i, j], div_or_zero(exp(load(s, [b, h, i, j]) - m_ref), l));
    }
}

/// O = P V.
pub fn naive_output<T: Element, const D: usize>(
    p: &Tensor<T, (B, H, M, N)>,
    v: &Tensor<T, (B, G, N, D)>,
    o: &mut Tensor<T, (B, H, M, D)>,
) {
    let (b, h, i) = program(B, H, tiles(M));
    let g = h * G / H;
    let mut acc = zeros((i, D));
    for j in tiles(N) {
        acc = acc + dot(load(p, [b, h, i, j]), load(v, [b, g, j, ..]));
    }
    store(o, [b, h, i, ..], acc);
}

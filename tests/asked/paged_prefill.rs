/// The last `M` tokens of each sequence over keys and values in pages of `S` positions, causal.
pub fn paged_prefill<T: Element, const D: usize, const S: usize>(
    q: &Tensor<T, (B, H, M, D)>,
    k: &Tensor<T, (P, G, S, D)>,
    v: &Tensor<T, (P, G, S, D)>,
    table: &Tensor<i32, (B, C)>,
    lens: &Tensor<i32, (B)>,
    scale: f32,
    o: &mut Tensor<T, (B, H, M, D)>,
) {
    let (b, h, i) = program(B, H, tiles(M));
    let g = h * G / H;
    let q_i = load(q, [b, h, i, ..]);
    let len = load(lens, [b]);
    let mut m = full(i, -INF);
    let mut l = zeros(i);
    let mut acc = zeros((i, D));
    for c in 0..C {
        let page = load(table, [b, c]);
        for j in tiles(S) {
            let s = dot(q_i, load(k, [page, g, j, ..]).t()) * scale;
            let s = mask(s, c * S + pos(j) <= len - M + pos(i));
            let m_new = max(m, rowmax(s));
            let m_ref = visible_or_zero(m_new);
            let alpha = exp(m - m_ref);
            let p = exp(s - m_ref);
            l = l * alpha + rowsum(p);
            acc = acc * alpha + dot(p.to::<T>(), load(v, [page, g, j, ..]));
            m = m_new;
        }
    }
    store(o, [b, h, i, ..], div_or_zero(acc, l));
}

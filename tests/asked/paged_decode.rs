/// Decode over keys and values in pages of `S` positions, by a table of pages.
pub fn paged_decode<T: Element, const D: usize, const S: usize>(
    q: &Tensor<T, (B, G, R, D)>,
    k: &Tensor<T, (P, G, S, D)>,
    v: &Tensor<T, (P, G, S, D)>,
    table: &Tensor<i32, (B, C)>,
    lens: &Tensor<i32, (B)>,
    scale: f32,
    o: &mut Tensor<T, (B, G, R, D)>,
) {
    let (b, g, i) = program(B, G, tiles(R));
    let q_i = load(q, [b, g, i, ..]);
    let len = load(lens, [b]);
    let mut m = full(i, -INF);
    let mut l = zeros(i);
    let mut acc = zeros((i, D));
    for c in 0..C {
        let page = load(table, [b, c]);
        for j in tiles(S) {
            let s = dot(q_i, load(k, [page, g, j, ..]).t()) * scale;
            let s = mask(s, c * S + pos(j) < len);
            let m_new = max(m, rowmax(s));
            let m_ref = visible_or_zero(m_new);
            let alpha = exp(m - m_ref);
            let p = exp(s - m_ref);
            l = l * alpha + rowsum(p);
            acc = acc * alpha + dot(p.to::<T>(), load(v, [page, g, j, ..]));
            m = m_new;
        }
    }
    store(o, [b, g, i, ..], div_or_zero(acc, l));
}

flash_kernel! {
    /// One new token over the cached ones, of which each sequence has so many. The `R` heads of a group are the rows of a tile.
    pub fn decode_attention<T: Element, const D: usize>(
        q: &Tensor<T, (B, G, R, D)>,
        k: &Tensor<T, (B, G, N, D)>,
        v: &Tensor<T, (B, G, N, D)>,
        lens: &Tensor<i32, (B)>,
        scale: f32,
        o: &mut Tensor<T, (B, G, R, D)>,
        lse: &mut Tensor<f32, (B, G, R)>,
    ) {
        let (b, g, i) = program(B, G, tiles(R));
        let q_i = load(q, [b, g, i, ..]);
        let mut m = full(i, -INF);
        let mut l = zeros(i);
        let mut acc = zeros((i, D));
        for j in tiles(N) {
            let s = dot(q_i, load(k, [b, g, j, ..]).t()) * scale;
            let s = mask(s, pos(j) < load(lens, [b]));
            let m_new = max(m, rowmax(s));
            let m_ref = visible_or_zero(m_new);
            let alpha = exp(m - m_ref);
            let p = exp(s - m_ref);
            l = l * alpha + rowsum(p);
            acc = acc * alpha + dot(p.to::<T>(), load(v, [b, g, j, ..]));
            m = m_new;
        }
        store(o, [b, g, i, ..], div_or_zero(acc, l));
        store(lse, [b, g, i], m + ln(l));
    }
}

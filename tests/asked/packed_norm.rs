flash_kernel! {
    /// Queries, keys and values in one tensor, and the weights of their norms in another.
    pub fn packed_norm<T: Element, const D: usize>(
        x: &Tensor<T, (B, N, 3, H, D)>, w: &Tensor<T, (2, D)>, scale: f32,
        o: &mut Tensor<T, (B, N, H, D)>,
    ) {
        let (b, h, i) = program(B, H, tiles(N));
        let q_0 = load(x, [b, i, 0, h, ..]).to::<f32>();
        let q_i = (q_0 * rsqrt(rowsum(q_0 * q_0) / D + 0.000001) * load(w, [0, ..])).to::<T>();
        let mut m = full(i, -INF);
        let mut l = zeros(i);
        let mut acc = zeros((i, D));
        for j in tiles(N) {
            let k_0 = load(x, [b, j, 1, h, ..]).to::<f32>();
            let k_j = (k_0 * rsqrt(rowsum(k_0 * k_0) / D + 0.000001) * load(w, [1, ..])).to::<T>();
            let s = mask(dot(q_i, k_j.t()) * scale, pos(i) >= pos(j));
            let m_new = max(m, rowmax(s));
            let m_ref = visible_or_zero(m_new);
            let alpha = exp(m - m_ref);
            let p = exp(s - m_ref);
            l = l * alpha + rowsum(p);
            acc = acc * alpha + dot(p.to::<T>(), load(x, [b, j, 2, h, ..]));
            m = m_new;
        }
        store(o, [b, i, h, ..], div_or_zero(acc, l));
    }
}

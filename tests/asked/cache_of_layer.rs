flash_kernel! {
    /// A cache of all layers: keys pass through a norm of the layer.
    pub fn cache_of_layer<T: Element, const D: usize>(
        q: &Tensor<T, (B, H, M, D)>,
        k: &Tensor<T, (L, B, H, N, D)>,
        v: &Tensor<T, (L, B, H, N, D)>,
        lens: &Tensor<i32, (L, B)>,
        w: &Tensor<T, (L, D)>,
        layer: i32,
        scale: f32,
        o: &mut Tensor<T, (B, H, M, D)>,
    ) {
        let (b, h, i) = program(B, H, tiles(M));
        let q_i = load(q, [b, h, i, ..]);
        let len = load(lens, [layer, b]);
        let mut m = full(i, -INF);
        let mut l = zeros(i);
        let mut acc = zeros((i, D));
        for j in tiles(N) {
            let k_0 = load(k, [layer, b, h, j, ..]).to::<f32>();
            let k_j = (k_0 * rsqrt(rowsum(k_0 * k_0) / D + 0.000001) * load(w, [layer, ..])).to::<T>();
            let s = mask(dot(q_i, k_j.t()) * scale, pos(j) < len && pos(i) + len - M >= pos(j));
            let m_new = max(m, rowmax(s));
            let m_ref = visible_or_zero(m_new);
            let alpha = exp(m - m_ref);
            let p = exp(s - m_ref);
            l = l * alpha + rowsum(p);
            acc = acc * alpha + dot(p.to::<T>(), load(v, [layer, b, h, j, ..]));
            m = m_new;
        }
        store(o, [b, h, i, ..], div_or_zero(acc, l));
    }
}

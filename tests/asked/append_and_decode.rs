flash_kernel! {
    /// One token, whose own key and value are not in the cache yet.
    pub fn append_decode<T: Element, const D: usize>(
        q: &Tensor<T, (B, G, R, D)>, k: &Tensor<T, (B, G, N, D)>, v: &Tensor<T, (B, G, N, D)>,
        kn: &Tensor<T, (B, G, D)>, vn: &Tensor<T, (B, G, D)>,
        lens: &Tensor<i32, (B)>, scale: f32, o: &mut Tensor<T, (B, G, R, D)>,
    ) {
        let (b, g, i) = program(B, G, tiles(R));
        let q_i = load(q, [b, g, i, ..]);
        let s0 = rowsum(q_i.to::<f32>() * load(kn, [b, g, ..]).to::<f32>()) * scale;
        let mut m = s0;
        let mut l = full(i, 1.0);
        let mut acc = full((i, D), 1.0) * load(vn, [b, g, ..]).to::<f32>();
        for j in tiles(N) {
            let s = mask(dot(q_i, load(k, [b, g, j, ..]).t()) * scale, pos(j) < load(lens, [b]));
            let m_new = max(m, rowmax(s));
            let m_ref = visible_or_zero(m_new);
            let alpha = exp(m - m_ref);
            let p = exp(s - m_ref);
            l = l * alpha + rowsum(p);
            acc = acc * alpha + dot(p.to::<T>(), load(v, [b, g, j, ..]));
            m = m_new;
        }
        store(o, [b, g, i, ..], div_or_zero(acc, l));
    }
}

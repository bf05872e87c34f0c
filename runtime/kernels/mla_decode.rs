flash_kernel! {
    /// Multi-head latent attention of one token, projections absorbed: all heads read the latent keys, whose first `C` columns are the values.
    pub fn mla_decode<T: Element, const C: usize, const R: usize>(
        q: &Tensor<T, (B, H, C + R)>,
        kv: &Tensor<T, (B, N, C + R)>,
        lens: &Tensor<i32, (B)>,
        scale: f32,
        o: &mut Tensor<T, (B, H, C)>,
        lse: &mut Tensor<f32, (B, H)>,
    ) {
        let (b, i) = program(B, tiles(H));
        let q_i = load(q, [b, i, ..]);
        let len = load(lens, [b]);
        let mut m = full(i, -INF);
        let mut l = zeros(i);
        let mut acc = zeros((i, C));
        for j in tiles(N) {
            let s = dot(q_i, load(kv, [b, j, ..]).t()) * scale;
            let s = mask(s, pos(j) < len);
            let m_new = max(m, rowmax(s));
            let m_ref = visible_or_zero(m_new);
            let alpha = exp(m - m_ref);
            let p = exp(s - m_ref);
            l = l * alpha + rowsum(p);
            acc = acc * alpha + dot(p.to::<T>(), load(kv, [b, j, ..C]));
            m = m_new;
        }
        store(o, [b, i, ..], div_or_zero(acc, l));
        store(lse, [b, i], m + ln(l));
    }
}

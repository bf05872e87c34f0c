flash_kernel! {
    /// Multi-head latent attention, keys and values decompressed, causal.
    pub fn mla_prefill<T: Element, const D: usize, const R: usize, const E: usize>(
        q: &Tensor<T, (B, H, M, D)>,
        q_rot: &Tensor<T, (B, H, M, R)>,
        k: &Tensor<T, (B, H, N, D)>,
        k_rot: &Tensor<T, (B, N, R)>,
        v: &Tensor<T, (B, H, N, E)>,
        scale: f32,
        o: &mut Tensor<T, (B, H, M, E)>,
        lse: &mut Tensor<f32, (B, H, M)>,
    ) {
        let (b, h, i) = program(B, H, tiles(M));
        let q_i = load(q, [b, h, i, ..]);
        let q_rot_i = load(q_rot, [b, h, i, ..]);
        let mut m = full(i, -INF);
        let mut l = zeros(i);
        let mut acc = zeros((i, E));
        for j in tiles(N) {
            let s = dot(q_i, load(k, [b, h, j, ..]).t()) + dot(q_rot_i, load(k_rot, [b, j, ..]).t());
            let s = mask(s * scale, pos(i) + N - M >= pos(j));
            let m_new = max(m, rowmax(s));
            let m_ref = visible_or_zero(m_new);
            let alpha = exp(m - m_ref);
            let p = exp(s - m_ref);
            l = l * alpha + rowsum(p);
            acc = acc * alpha + dot(p.to::<T>(), load(v, [b, h, j, ..]));
            m = m_new;
        }
        store(o, [b, h, i, ..], div_or_zero(acc, l));
        store(lse, [b, h, i], m + ln(l));
    }
}

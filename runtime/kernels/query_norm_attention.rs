flash_kernel! {
    /// Causal attention whose queries pass through an RMSNorm first; keys are stored behind theirs.
    pub fn query_norm_attention<T: Element, const D: usize>(
        q: &Tensor<T, (B, H, M, D)>,
        k: &Tensor<T, (B, G, N, D)>,
        v: &Tensor<T, (B, G, N, D)>,
        scale: f32,
        weight: &Tensor<f32, (D)>,
        eps: f32,
        o: &mut Tensor<T, (B, H, M, D)>,
        lse: &mut Tensor<f32, (B, H, M)>,
    ) {
        let (b, h, i) = program(B, H, tiles(M));
        let g = h * G / H;
        let q_i = load(q, [b, h, i, ..]).to::<f32>();
        let r = rsqrt(rowsum(q_i * q_i) / D + eps);
        let q_i = (q_i * r * load(weight, [..])).to::<T>();
        let mut m = full(i, -INF);
        let mut l = zeros(i);
        let mut acc = zeros((i, D));
        for j in tiles(N) {
            let s = dot(q_i, load(k, [b, g, j, ..]).t()) * scale;
            let s = mask(s, pos(i) + N - M >= pos(j));
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
}

flash_kernel! {
    /// Attention of heads that have keys of their own.
    pub fn full<T: Element, const D: usize>(
        q: &Tensor<T, (B, H, M, D)>, k: &Tensor<T, (B, H, N, D)>, v: &Tensor<T, (B, H, N, D)>, scale: f32,
        o: &mut Tensor<T, (B, H, M, D)>, lse: &mut Tensor<f32, (B, H, M)>,
    ) {
        let (b, h, i) = program(B, H, tiles(M));
        let q_i = load(q, [b, h, i, ..]);
        let mut m = full(i, -INF);
        let mut l = zeros(i);
        let mut acc = zeros((i, D));
        for j in tiles(N) {
            let s = dot(q_i, load(k, [b, h, j, ..]).t()) * scale;
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

    /// The same; a query sees the keys up to its own place.
    pub fn causal<T: Element, const D: usize>(
        q: &Tensor<T, (B, H, M, D)>, k: &Tensor<T, (B, H, N, D)>, v: &Tensor<T, (B, H, N, D)>, scale: f32,
        o: &mut Tensor<T, (B, H, M, D)>, lse: &mut Tensor<f32, (B, H, M)>,
    ) {
        let (b, h, i) = program(B, H, tiles(M));
        let q_i = load(q, [b, h, i, ..]);
        let mut m = full(i, -INF);
        let mut l = zeros(i);
        let mut acc = zeros((i, D));
        for j in tiles(N) {
            let s = mask(dot(q_i, load(k, [b, h, j, ..]).t()) * scale, pos(i) + N - M >= pos(j));
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

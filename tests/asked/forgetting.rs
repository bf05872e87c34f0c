flash_kernel! {
    /// Forget gates, summed up from the first position on: scores fall by what was forgotten since.
    pub fn forgetting<T: Element, const D: usize>(
        q: &Tensor<T, (B, H, M, D)>,
        k: &Tensor<T, (B, G, N, D)>,
        v: &Tensor<T, (B, G, N, D)>,
        scale: f32,
        of_rows: &Tensor<f32, (B, H, M)>,
        of_keys: &Tensor<f32, (B, H, N)>,
        o: &mut Tensor<T, (B, H, M, D)>,
        lse: &mut Tensor<f32, (B, H, M)>,
    ) {
        let (b, h, i) = program(B, H, tiles(M));
        let g = h * G / H;
        let q_i = load(q, [b, h, i, ..]);
        let mut m = full(i, -INF);
        let mut l = zeros(i);
        let mut acc = zeros((i, D));
        for j in tiles(N) {
            let s = dot(q_i, load(k, [b, g, j, ..]).t()) * scale + load(of_rows, [b, h, i]) - load(of_keys, [b, h, j]);
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

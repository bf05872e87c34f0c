flash_kernel! {
    /// The buckets of T5: a number for each range of differences.
    pub fn t5<T: Element, const D: usize>(
        q: &Tensor<T, (B, H, M, D)>,
        k: &Tensor<T, (B, G, N, D)>,
        v: &Tensor<T, (B, G, N, D)>,
        scale: f32,
        table: &Tensor<f32, (R, H)>,
        o: &mut Tensor<T, (B, H, M, D)>,
    ) {
        let (b, h, i) = program(B, H, tiles(M));
        let g = h * G / H;
        let q_i = load(q, [b, h, i, ..]);
        let mut m = full(i, -INF);
        let mut l = zeros(i);
        let mut acc = zeros((i, D));
        for j in tiles(N) {
            let s = dot(q_i, load(k, [b, g, j, ..]).t()) * scale;
            let back = pos(i) - pos(j);
            let far = abs(back);
            let log = 8 + (ln(max(far, 1).to::<f32>() / 8.0) * 2.885).to::<i32>();
            let bucket = select(far < 8, far, min(log, 15)) + select(back < 0, 16, 0);
            let s = s + load(table, [bucket, h]);
            let m_new = max(m, rowmax(s));
            let m_ref = visible_or_zero(m_new);
            let alpha = exp(m - m_ref);
            let p = exp(s - m_ref);
            l = l * alpha + rowsum(p);
            acc = acc * alpha + dot(p.to::<T>(), load(v, [b, g, j, ..]));
            m = m_new;
        }
        store(o, [b, h, i, ..], div_or_zero(acc, l));
    }
}

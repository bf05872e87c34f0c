flash_kernel! {
    /// A query sees the keys before the length of its sequence. Tiles behind it are skipped.
    pub fn padded_attention<T: Element, const D: usize>(
        q: &Tensor<T, (B, H, N, D)>,
        k: &Tensor<T, (B, H, N, D)>,
        v: &Tensor<T, (B, H, N, D)>,
        lens: &Tensor<i32, (B)>,
        scale: f32,
        o: &mut Tensor<T, (B, H, N, D)>,
    ) {
        let (b, h, i) = program(B, H, tiles(N));
        let q_i = load(q, [b, h, i, ..]);
        let mut m = full(i, -INF);
        let mut l = zeros(i);
        let mut acc = zeros((i, D));
        for j in tiles(N) {
            let s = dot(q_i, load(k, [b, h, j, ..]).t()) * scale;
            let s = mask(s, pos(j) < load(lens, [b]));
            let m_new = max(m, rowmax(s));
            let m_ref = visible_or_zero(m_new);
            let alpha = exp(m - m_ref);
            let p = exp(s - m_ref);
            l = l * alpha + rowsum(p);
            acc = acc * alpha + dot(p.to::<T>(), load(v, [b, h, j, ..]));
            m = m_new;
        }
        store(o, [b, h, i, ..], div_or_zero(acc, l));
    }
}

flash_kernel! {
    /// Queries, keys and values in one tensor.
    pub fn packed<T: Element, const D: usize>(
        qkv: &Tensor<T, (B, N, 3, H, D)>,
        scale: f32,
        o: &mut Tensor<T, (B, N, H, D)>,
    ) {
        let (b, h, i) = program(B, H, tiles(N));
        let q_i = load(qkv, [b, i, 0, h, ..]);
        let mut m = full(i, -INF);
        let mut l = zeros(i);
        let mut acc = zeros((i, D));
        for j in tiles(N) {
            let s = mask(dot(q_i, load(qkv, [b, j, 1, h, ..]).t()) * scale, pos(i) >= pos(j));
            let m_new = max(m, rowmax(s));
            let alpha = exp(m - m_new);
            let p = exp(s - m_new);
            l = l * alpha + rowsum(p);
            acc = acc * alpha + dot(p.to::<T>(), load(qkv, [b, j, 2, h, ..]));
            m = m_new;
        }
        store(o, [b, i, h, ..], acc / l);
    }
}

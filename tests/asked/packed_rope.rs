flash_kernel! {
    /// The same with rotations, whose cosines and sines are in one table.
    pub fn packed_rope<T: Element, const D: usize>(
        x: &Tensor<T, (B, N, 3, H, D)>, cos_: &Tensor<f32, (2, N, D / 2)>, scale: f32,
        o: &mut Tensor<T, (B, N, H, D)>,
    ) {
        let (b, h, i) = program(B, H, tiles(N));
        let (c_i, s_i) = (load(cos_, [0, i, ..]), load(cos_, [1, i, ..]));
        let (a, e) = (load(x, [b, i, 0, h, ..D / 2]), load(x, [b, i, 0, h, D / 2..]));
        let q1 = (a * c_i - e * s_i).to::<T>();
        let q2 = (a * s_i + e * c_i).to::<T>();
        let mut m = full(i, -INF);
        let mut l = zeros(i);
        let mut acc = zeros((i, D));
        for j in tiles(N) {
            let (c_j, s_j) = (load(cos_, [0, j, ..]), load(cos_, [1, j, ..]));
            let (c, d) = (load(x, [b, j, 1, h, ..D / 2]), load(x, [b, j, 1, h, D / 2..]));
            let k1 = (c * c_j - d * s_j).to::<T>();
            let k2 = (c * s_j + d * c_j).to::<T>();
            let s = mask((dot(q1, k1.t()) + dot(q2, k2.t())) * scale, pos(i) >= pos(j));
            let m_new = max(m, rowmax(s));
            let m_ref = visible_or_zero(m_new);
            let alpha = exp(m - m_ref);
            let p = exp(s - m_ref);
            l = l * alpha + rowsum(p);
            acc = acc * alpha + dot(p.to::<T>(), load(x, [b, j, 2, h, ..]));
            m = m_new;
        }
        store(o, [b, i, h, ..], div_or_zero(acc, l));
    }
}

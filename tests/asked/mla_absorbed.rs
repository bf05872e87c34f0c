flash_kernel! {
    /// MLA decode with absorbed projections: 576 wide keys, of which 512 columns are the values.
    pub fn mla<T: Element, const DQ: usize, const DV: usize>(
        q: &Tensor<T, (B, H, DQ)>,
        kv: &Tensor<T, (B, N, DQ)>,
        lens: &Tensor<i32, (B)>,
        scale: f32,
        o: &mut Tensor<T, (B, H, DV)>,
    ) {
        let (b, i) = program(B, tiles(H));
        let q_i = load(q, [b, i, ..]);
        let len = load(lens, [b]);
        let mut m = full(i, -INF);
        let mut l = zeros(i);
        let mut acc = zeros((i, DV));
        for j in tiles(N) {
            let s = dot(q_i, load(kv, [b, j, ..]).t()) * scale;
            let s = mask(s, pos(j) < len);
            let m_new = max(m, rowmax(s));
            let m_ref = visible_or_zero(m_new);
            let alpha = exp(m - m_ref);
            let p = exp(s - m_ref);
            l = l * alpha + rowsum(p);
            acc = acc * alpha + dot(p.to::<T>(), load(kv, [b, j, ..DV]));
            m = m_new;
        }
        store(o, [b, i, ..], div_or_zero(acc, l));
    }
}

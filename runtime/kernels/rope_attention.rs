flash_kernel! {
    /// Attention with rotary position embedding, fused: queries and keys are rotated inside the kernel.
    ///
    /// Element `c` of the first half of a head is rotated with element `c` of the second. `cos_q` and `sin_q` have a row for every
    /// query, `cos_k` and `sin_k` for every key: where queries and keys have the same positions, these are the same tensors, and
    /// otherwise rows of one table. Of their columns the first `D / 2` are read, so that a table with both halves serves too.
    pub fn rope_attention<T: Element, const D: usize>(
        q: &Tensor<T, (B, H, M, D)>,
        k: &Tensor<T, (B, G, N, D)>,
        v: &Tensor<T, (B, G, N, D)>,
        cos_q: &Tensor<T, (M, C)>,
        sin_q: &Tensor<T, (M, C)>,
        cos_k: &Tensor<T, (N, C)>,
        sin_k: &Tensor<T, (N, C)>,
        scale: f32,
        o: &mut Tensor<T, (B, H, M, D)>,
        lse: &mut Tensor<f32, (B, H, M)>,
    ) {
        let (b, h, i) = program(B, H, tiles(M)); // one program owns one tile of query rows
        let g = h * G / H; // grouped queries
        let q1 = load(q, [b, h, i, ..D / 2]);
        let q2 = load(q, [b, h, i, D / 2..]);
        let cos_i = load(cos_q, [i, ..D / 2]);
        let sin_i = load(sin_q, [i, ..D / 2]);
        let q_rot1 = (q1 * cos_i - q2 * sin_i).to::<T>();
        let q_rot2 = (q2 * cos_i + q1 * sin_i).to::<T>();
        let mut m = full(i, -INF);
        let mut l = zeros(i);
        let mut acc = zeros((i, D));
        for j in tiles(N) {
            let k1 = load(k, [b, g, j, ..D / 2]);
            let k2 = load(k, [b, g, j, D / 2..]);
            let cos_j = load(cos_k, [j, ..D / 2]);
            let sin_j = load(sin_k, [j, ..D / 2]);
            let k_rot1 = (k1 * cos_j - k2 * sin_j).to::<T>();
            let k_rot2 = (k2 * cos_j + k1 * sin_j).to::<T>();
            let s = (dot(q_rot1, k_rot1.t()) + dot(q_rot2, k_rot2.t())) * scale;
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

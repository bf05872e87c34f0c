flash_kernel! {
    /// One step of the streaming softmax: the next maximum, sum and mean, from the scores and values of a tile of keys.
    fn step<T: Element>(s: Tile, v: Tile, m: Tile, l: Tile, acc: Tile) -> (Tile, Tile, Tile) {
        let m_new = max(m, rowmax(s));
        let m_ref = visible_or_zero(m_new);
        let alpha = exp(m - m_ref);
        let p = exp(s - m_ref);
        (m_new, l * alpha + rowsum(p), acc * alpha + dot(p.to::<T>(), v))
    }

    /// `softmax(q1 k1) v - lambda softmax(q2 k2) v`, causal. The second maps are subtracted to cancel noise.
    pub fn differential_attention<T: Element, const D: usize, const E: usize>(
        q: &Tensor<T, (B, H, M, 2, D)>,
        k: &Tensor<T, (B, H, N, 2, D)>,
        v: &Tensor<T, (B, H, N, E)>,
        scale: f32,
        lambda: f32,
        o: &mut Tensor<T, (B, H, M, E)>,
    ) {
        let (b, h, i) = program(B, H, tiles(M));
        let (q1, q2) = (load(q, [b, h, i, 0, ..]), load(q, [b, h, i, 1, ..]));
        let (mut m1, mut l1, mut acc1) = (full(i, -INF), zeros(i), zeros((i, E)));
        let (mut m2, mut l2, mut acc2) = (full(i, -INF), zeros(i), zeros((i, E)));
        for j in tiles(N) {
            let v_j = load(v, [b, h, j, ..]);
            let s1 = mask(dot(q1, load(k, [b, h, j, 0, ..]).t()) * scale, pos(i) + N - M >= pos(j));
            (m1, l1, acc1) = step::<T>(s1, v_j, m1, l1, acc1);
            let s2 = mask(dot(q2, load(k, [b, h, j, 1, ..]).t()) * scale, pos(i) + N - M >= pos(j));
            (m2, l2, acc2) = step::<T>(s2, v_j, m2, l2, acc2);
        }
        store(o, [b, h, i, ..], div_or_zero(acc1, l1) - lambda * div_or_zero(acc2, l2));
    }
}

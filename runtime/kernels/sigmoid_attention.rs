flash_kernel! {
    /// Causal attention whose weights are sigmoids of the scores.
    pub fn sigmoid_attention<T: Element, const D: usize>(
        q: &Tensor<T, (B, H, M, D)>,
        k: &Tensor<T, (B, G, N, D)>,
        v: &Tensor<T, (B, G, N, D)>,
        scale: f32,
        offset: f32,
        o: &mut Tensor<T, (B, H, M, D)>,
    ) {
        let (b, h, i) = program(B, H, tiles(M));
        let g = h * G / H;
        let q_i = load(q, [b, h, i, ..]);
        let mut acc = zeros((i, D));
        for j in tiles(N) {
            let s = dot(q_i, load(k, [b, g, j, ..]).t()) * scale + offset;
            let p = 1.0 / (1.0 + exp(-mask(s, pos(i) + N - M >= pos(j))));
            acc += dot(p.to::<T>(), load(v, [b, g, j, ..]));
        }
        store(o, [b, h, i, ..], acc);
    }
}

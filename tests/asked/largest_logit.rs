flash_kernel! {
    /// The largest score of each row.
    pub fn maxlogit<T: Element, const D: usize>(
        q: &Tensor<T, (B, H, M, D)>,
        k: &Tensor<T, (B, G, N, D)>,
        scale: f32,
        rows: &mut Tensor<f32, (B, H, M)>,
    ) {
        let (b, h, i) = program(B, H, tiles(M));
        let q_i = load(q, [b, h, i, ..]);
        let mut m = full(i, -INF);
        for j in tiles(N) {
            m = max(m, rowmax(mask(dot(q_i, load(k, [b, h * G / H, j, ..]).t()) * scale, pos(i) + N - M >= pos(j))));
        }
        store(rows, [b, h, i], m);
    }

    /// The largest score of each head, from those of its rows.
    pub fn largest_of_head(rows: &Tensor<f32, (B, H, M)>, top: &mut Tensor<f32, (B, H)>) {
        let (b, h) = program(B, tiles(H));
        let mut m = full(h, -INF);
        for i in tiles(M) {
            m = max(m, rowmax(load(rows, [b, h, i])));
        }
        store(top, [b, h], m);
    }
}

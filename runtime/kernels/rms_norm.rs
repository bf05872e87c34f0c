flash_kernel! {
    /// `x / sqrt(mean(x * x) + eps) * w` of each row.
    pub fn rms_norm<T: Element>(
        x: &Tensor<T, (M, N)>,
        w: &Tensor<T, (N)>,
        eps: f32,
        y: &mut Tensor<T, (M, N)>,
    ) {
        let i = program(tiles(M));
        let mut squares = zeros(i);
        for j in tiles(N) {
            let x_ij = load(x, [i, j]).to::<f32>();
            squares += rowsum(x_ij * x_ij);
        }
        let r = rsqrt(squares / N + eps);
        for j in tiles(N) {
            store(y, [i, j], load(x, [i, j]) * r * load(w, [j]));
        }
    }
}

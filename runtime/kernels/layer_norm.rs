flash_kernel! {
    /// `(x - mean(x)) / sqrt(variance(x) + eps) * w + bias` of each row.
    pub fn layer_norm<T: Element>(
        x: &Tensor<T, (M, N)>,
        w: &Tensor<T, (N)>,
        bias: &Tensor<T, (N)>,
        eps: f32,
        y: &mut Tensor<T, (M, N)>,
    ) {
        let i = program(tiles(M));
        let mut sum = zeros(i);
        for j in tiles(N) {
            sum += rowsum(load(x, [i, j]));
        }
        let mean = sum / N;
        let mut squares = zeros(i);
        for j in tiles(N) {
            let d = load(x, [i, j]) - mean;
            squares += rowsum(d * d);
        }
        let r = rsqrt(squares / N + eps);
        for j in tiles(N) {
            store(y, [i, j], (load(x, [i, j]) - mean) * r * load(w, [j]) + load(bias, [j]));
        }
    }
}

flash_kernel! {
    /// `x / sqrt(mean(x * x) + eps) * w` of rows that are loaded whole.
    pub fn rms_norm<T: Element, const D: usize>(
        x: &Tensor<T, (M, D)>, w: &Tensor<T, (D)>, eps: f32, y: &mut Tensor<T, (M, D)>,
    ) {
        let i = program(tiles(M));
        let a = load(x, [i, ..]).to::<f32>();
        let n = rowsum(a * a) / D;
        store(y, [i, ..], (a / sqrt(n + eps) * load(w, [..])).to::<T>());
    }

    /// Softmax of rows that are loaded whole.
    pub fn softmax<T: Element, const D: usize>(x: &Tensor<T, (M, D)>, y: &mut Tensor<T, (M, D)>) {
        let i = program(tiles(M));
        let a = load(x, [i, ..]).to::<f32>();
        let p = exp(a - rowmax(a));
        store(y, [i, ..], (p / rowsum(p)).to::<T>());
    }

    /// `(x - mean(x)) / sqrt(variance(x) + eps) * w + c` of rows that are loaded whole.
    pub fn layer_norm<T: Element, const D: usize>(
        x: &Tensor<T, (M, D)>, w: &Tensor<T, (D)>, c: &Tensor<T, (D)>, eps: f32, y: &mut Tensor<T, (M, D)>,
    ) {
        let i = program(tiles(M));
        let a = load(x, [i, ..]).to::<f32>();
        let d = a - rowsum(a) / D;
        let r = rsqrt(rowsum(d * d) / D + eps);
        store(y, [i, ..], (d * r * load(w, [..]) + load(c, [..])).to::<T>());
    }

    /// `x * silu(g)`.
    pub fn gate<T: Element, const D: usize>(
        x: &Tensor<T, (M, D)>, g: &Tensor<T, (M, D)>, y: &mut Tensor<T, (M, D)>,
    ) {
        let i = program(tiles(M));
        let a = load(g, [i, ..]).to::<f32>();
        store(y, [i, ..], (load(x, [i, ..]) * a / (1.0 + exp(-a))).to::<T>());
    }
}

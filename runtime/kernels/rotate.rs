flash_kernel! {
    /// Rotary position embedding of one tensor, as the fused kernels apply it to queries and keys.
    ///
    /// `cos` and `sin` have a row for every position, of whose columns the first `D / 2` are read.
    pub fn rotate<T: Element, const D: usize>(
        x: &Tensor<T, (B, H, N, D)>,
        cos: &Tensor<T, (N, C)>,
        sin: &Tensor<T, (N, C)>,
        y: &mut Tensor<T, (B, H, N, D)>,
    ) {
        let (b, h, i) = program(B, H, tiles(N));
        let x1 = load(x, [b, h, i, ..D / 2]);
        let x2 = load(x, [b, h, i, D / 2..]);
        let cos_i = load(cos, [i, ..D / 2]);
        let sin_i = load(sin, [i, ..D / 2]);
        store(y, [b, h, i, ..D / 2], x1 * cos_i - x2 * sin_i);
        store(y, [b, h, i, D / 2..], x2 * cos_i + x1 * sin_i);
    }
}

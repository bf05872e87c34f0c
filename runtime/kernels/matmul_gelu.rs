flash_kernel! {
    /// `gelu(a b + bias)` with the tanh form of GELU, the activation fused into the product.
    pub fn matmul_gelu<T: Element>(
        a: &Tensor<T, (M, K)>,
        b: &Tensor<T, (K, N)>,
        bias: &Tensor<T, (N)>,
        c: &mut Tensor<T, (M, N)>,
    ) {
        let (i, j) = program(tiles(M), tiles(N));
        let mut acc = zeros((i, j));
        for k in tiles(K) {
            acc = acc + dot(load(a, [i, k]), load(b, [k, j]));
        }
        let x = acc + load(bias, [j]);
        let inner = 0.7978845608 * (x + 0.044715 * x * x * x);
        store(c, [i, j], 0.5 * x * (1.0 + tanh(inner)));
    }
}

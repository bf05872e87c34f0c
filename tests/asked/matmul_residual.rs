flash_kernel! {
    /// A matmul with a bias and a residual.
    pub fn mm<T: Element>(
        a: &Tensor<T, (M, K)>,
        w: &Tensor<T, (K, N)>,
        bias: &Tensor<T, (N)>,
        res: &Tensor<T, (M, N)>,
        y: &mut Tensor<T, (M, N)>,
    ) {
        let (i, j) = program(tiles(M), tiles(N));
        let mut acc = zeros((i, j));
        for k in tiles(K) { acc += dot(load(a, [i, k]), load(w, [k, j])); }
        store(y, [i, j], acc + load(bias, [j]) + load(res, [i, j]));
    }
}

flash_kernel! {
    /// `silu(x gate) * (x up)`, both products and the activation in one kernel.
    pub fn swiglu<T: Element>(
        x: &Tensor<T, (M, K)>,
        gate: &Tensor<T, (K, N)>,
        up: &Tensor<T, (K, N)>,
        y: &mut Tensor<T, (M, N)>,
    ) {
        let (i, j) = program(tiles(M), tiles(N));
        let mut a = zeros((i, j));
        let mut b = zeros((i, j));
        for k in tiles(K) {
            let x_ik = load(x, [i, k]);
            a += dot(x_ik, load(gate, [k, j]));
            b += dot(x_ik, load(up, [k, j]));
        }
        store(y, [i, j], a / (1.0 + exp(-a)) * b);
    }
}

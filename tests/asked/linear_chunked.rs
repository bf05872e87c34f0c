flash_kernel! {
    /// Linear attention that carries its state through the loop.
    pub fn chunked<T: Element, const D: usize>(
        q: &Tensor<T, (B, H, N, D)>,
        k: &Tensor<T, (B, H, N, D)>,
        v: &Tensor<T, (B, H, N, D)>,
        o: &mut Tensor<T, (B, H, N, D)>,
    ) {
        let (b, h) = program(B, H);
        let mut state = zeros((D, D));
        for j in tiles(N) {
            let q_j = load(q, [b, h, j, ..]);
            let k_j = load(k, [b, h, j, ..]);
            let v_j = load(v, [b, h, j, ..]);
            let inter = dot(q_j, state.to::<T>());
            store(o, [b, h, j, ..], inter);
            state += dot(k_j.t(), v_j);
        }
    }
}

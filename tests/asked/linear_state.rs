flash_kernel! {
    /// The state of linear attention, with a decay.
    pub fn decaystate<T: Element, const D: usize>(
        k: &Tensor<T, (B, H, N, D)>,
        v: &Tensor<T, (B, H, N, D)>,
        gamma: f32,
        st: &mut Tensor<f32, (B, H, D, D)>,
    ) {
        let (b, h) = program(B, H);
        let mut state = zeros((D, D));
        for j in tiles(N) {
            let w = exp2((N - 1 - pos(j)) * gamma);
            let k_j = (load(k, [b, h, j, ..]) * w).to::<T>();
            state = state + dot(k_j.t(), load(v, [b, h, j, ..]));
        }
        store(st, [b, h, .., ..], state);
    }
}

flash_kernel! {
    /// Causal linear attention in chunks of `S` positions: what chunks before have left in the state, and the products within.
    pub fn chunked<T: Element, const D: usize, const S: usize>(
        q: &Tensor<T, (B, H, C, S, D)>,
        k: &Tensor<T, (B, H, C, S, D)>,
        v: &Tensor<T, (B, H, C, S, D)>,
        causal: &Tensor<f32, (S, S)>,
        o: &mut Tensor<T, (B, H, C, S, D)>,
    ) {
        let (b, h) = program(B, H);
        let below = load(causal, [.., ..]);
        let mut state = zeros((D, D));
        for c in 0..C {
            let q_c = load(q, [b, h, c, .., ..]);
            let k_c = load(k, [b, h, c, .., ..]);
            let v_c = load(v, [b, h, c, .., ..]);
            let scores = dot(q_c, k_c.t()) * below;
            store(o, [b, h, c, .., ..], dot(scores.to::<T>(), v_c) + dot(q_c, state.to::<T>()));
            state += dot(k_c.t(), v_c);
        }
    }
}

flash_kernel! {
    /// Causal linear attention in its parallel form.
    pub fn linpar<T: Element, const D: usize>(
        q: &Tensor<T, (B, H, N, D)>,
        k: &Tensor<T, (B, H, N, D)>,
        v: &Tensor<T, (B, H, N, D)>,
        o: &mut Tensor<T, (B, H, N, D)>,
    ) {
        let (b, h, i) = program(B, H, tiles(N));
        let q_i = load(q, [b, h, i, ..]);
        let mut acc = zeros((i, D));
        for j in tiles(N) {
            let s = dot(q_i, load(k, [b, h, j, ..]).t());
            let p = select(pos(i) >= pos(j), s, 0.0);
            acc += dot(p.to::<T>(), load(v, [b, h, j, ..]));
        }
        store(o, [b, h, i, ..], acc);
    }
}

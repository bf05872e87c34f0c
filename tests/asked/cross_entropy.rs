flash_kernel! {
    /// The loss of each row of logits.
    pub fn ce<T: Element>(x: &Tensor<T, (M, V)>, target: &Tensor<i32, (M)>, loss: &mut Tensor<f32, (M)>) {
        let i = program(tiles(M));
        let t = load(target, [i]);
        let mut m = full(i, -INF);
        let mut l = zeros(i);
        let mut w = zeros(i);
        for j in tiles(V) {
            let s = load(x, [i, j]).to::<f32>();
            let m_new = max(m, rowmax(s));
            l = l * exp(m - m_new) + rowsum(exp(s - m_new));
            w += rowsum(select(t == pos(j), s, 0.0));
            m = m_new;
        }
        store(loss, [i], m + ln(l) - w);
    }
}

flash_kernel! {
    /// The same, with the logit of the target loaded by its number.
    pub fn ceg<T: Element>(x: &Tensor<T, (M, V)>, target: &Tensor<i32, (M)>, loss: &mut Tensor<f32, (M)>) {
        let i = program(tiles(M));
        let mut m = full(i, -INF);
        let mut l = zeros(i);
        for j in tiles(V) {
            let s = load(x, [i, j]).to::<f32>();
            let m_new = max(m, rowmax(s));
            l = l * exp(m - m_new) + rowsum(exp(s - m_new));
            m = m_new;
        }
        store(loss, [i], m + ln(l) - load(x, [i, load(target, [i])]));
    }
}

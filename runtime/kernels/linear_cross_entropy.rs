flash_kernel! {
    /// `ln(sum(exp(x w))) - (x w)[target]` of each row: the loss of a token of a vocabulary `V`, without storing the logits.
    pub fn linear_cross_entropy<T: Element, const D: usize>(
        x: &Tensor<T, (M, D)>,
        w: &Tensor<T, (V, D)>,
        target: &Tensor<i32, (M)>,
        loss: &mut Tensor<f32, (M)>,
    ) {
        let i = program(tiles(M));
        let x_i = load(x, [i, ..]);
        let target_i = load(target, [i]);
        let mut m = full(i, -INF);
        let mut l = zeros(i);
        let mut wanted = zeros(i);
        for j in tiles(V) {
            let s = dot(x_i, load(w, [j, ..]).t());
            let m_new = max(m, rowmax(s));
            l = l * exp(m - m_new) + rowsum(exp(s - m_new));
            wanted += rowsum(select(target_i == pos(j), s, 0.0));
            m = m_new;
        }
        store(loss, [i], m + ln(l) - wanted);
    }
}

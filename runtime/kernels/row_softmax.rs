flash_kernel! {
    /// Softmax of each row, in two passes over it.
    pub fn row_softmax<T: Element>(x: &Tensor<T, (M, N)>, y: &mut Tensor<T, (M, N)>) {
        let i = program(tiles(M));
        let mut m = full(i, -INF);
        let mut l = zeros(i);
        for j in tiles(N) {
            let x_ij = load(x, [i, j]);
            let m_new = max(m, rowmax(x_ij));
            let m_ref = visible_or_zero(m_new);
            l = l * exp(m - m_ref) + rowsum(exp(x_ij - m_ref));
            m = m_new;
        }
        let m_ref = visible_or_zero(m);
        for j in tiles(N) {
            let p = exp(load(x, [i, j]) - m_ref);
            store(y, [i, j], div_or_zero(p, l));
        }
    }
}

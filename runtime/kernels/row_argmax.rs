flash_kernel! {
    /// The position of the largest element of each row, of several the first. Exact for rows of up to 2^24 elements.
    pub fn row_argmax<T: Element>(x: &Tensor<T, (M, N)>, best: &mut Tensor<i32, (M)>) {
        let i = program(tiles(M));
        let mut m = full(i, -INF);
        let mut first = zeros(i);
        for j in tiles(N) {
            let x_ij = load(x, [i, j]).to::<f32>();
            let m_j = rowmax(x_ij);
            let first_j = -rowmax(select(x_ij == m_j, -pos(j).to::<f32>(), -INF));
            first = select(m_j > m, first_j, first);
            m = max(m, m_j);
        }
        store(best, [i], first.to::<i32>());
    }
}

/// The gradient of `x`, a program for each tile of rows: of `row_softmax`.
pub fn row_softmax_grad_rows<T: Element>(
    x: &Tensor<T, (M, N)>,
    m_reference: &Tensor<f32, (M)>,
    grad_y: &Tensor<T, (M, N)>,
    grad_x: &mut Tensor<T, (M, N)>,
) {
    let i = program(tiles(M));
    let t1 = load(m_reference, [i]);
    let t2 = visible_or_zero(t1);
    let m_ref = visible_or_zero(t1);
    let mut dl = zeros(i);
    for j in tiles(N) {
        let dp = load(grad_y, [i, j]);
        let x_ij = load(x, [i, j]);
        let p = exp(x_ij - m_ref);
        dl = dl + rowsum(-(dp * p));
    }
    for j2 in tiles(N) {
        let dp2 = load(grad_y, [i, j2]);
        let x_ij2 = load(x, [i, j2]);
        let p2 = exp(x_ij2 - m_ref);
        let dx_ij = dp2 * p2;
        let dx_ij2 = dx_ij + dl * exp(x_ij2 - t2);
        store(grad_x, [i, j2], dx_ij2);
    }
}

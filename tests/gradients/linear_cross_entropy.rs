/// The gradient of `x`, a program for each tile of rows: of `linear_cross_entropy`.
pub fn linear_cross_entropy_grad_rows<T: Element, const D: usize>(
    x: &Tensor<T, (M, D)>,
    w: &Tensor<T, (V, D)>,
    target: &Tensor<i32, (M)>,
    m_reference: &Tensor<f32, (M)>,
    grad_loss: &Tensor<f32, (M)>,
    grad_wanted: &mut Tensor<f32, (M)>,
    grad_x: &mut Tensor<T, (M, D)>,
) {
    let i = program(tiles(M));
    let t1 = visible_or_zero(load(m_reference, [i]));
    let dl = load(grad_loss, [i]);
    let dwanted = -dl;
    store(grad_wanted, [i], dwanted);
    let target_i = load(target, [i]);
    let x_i = load(x, [i, ..]);
    let mut dx = zeros((i, D));
    for j in tiles(V) {
        let ds = select(target_i == pos(j), zeros((i, j)) + dwanted, 0.0);
        let t2 = load(w, [j, ..]);
        let s = dot(x_i, t2.t());
        let ds2 = ds + dl * exp(s - t1);
        dx = dx + dot(ds2.to::<T>(), t2);
    }
    store(grad_x, [i, ..], dx);
}

/// The gradient of `w`, a program for each tile of columns: of `linear_cross_entropy`.
pub fn linear_cross_entropy_grad_columns<T: Element, const D: usize>(
    x: &Tensor<T, (M, D)>,
    w: &Tensor<T, (V, D)>,
    target: &Tensor<i32, (M)>,
    m_reference: &Tensor<f32, (M)>,
    grad_loss: &Tensor<f32, (M)>,
    grad_wanted: &Tensor<f32, (M)>,
    grad_w: &mut Tensor<T, (V, D)>,
) {
    let j = program(tiles(V));
    let t1 = load(w, [j, ..]);
    let mut dw = zeros((j, D));
    for i in tiles(M) {
        let target_i = load(target, [i]);
        let ds = select(target_i == pos(j), zeros((j, i)) + load(grad_wanted, [i]), 0.0);
        let x_i = load(x, [i, ..]);
        let s = dot(t1, x_i.t());
        let t2 = load(grad_loss, [i]) * exp(s - visible_or_zero(load(m_reference, [i])));
        let ds2 = ds + t2;
        dw = dw + dot(ds2.to::<T>(), x_i);
    }
    store(grad_w, [j, ..], dw);
}

/// What the gradients of columns need of rows: of `linear_cross_entropy`.
pub fn linear_cross_entropy_grad_rows<T: Element, const D: usize>(
    grad_loss: &Tensor<f32, (M)>,
    grad_wanted: &mut Tensor<f32, (M)>,
) {
    let i = program(tiles(M));
    let dl = load(grad_loss, [i]);
    let dwanted = -dl;
    store(grad_wanted, [i], dwanted);
}

/// `grad_s`, a program for each tile of pairs: of `linear_cross_entropy`.
pub fn linear_cross_entropy_grad_pairs<T: Element, const D: usize>(
    x: &Tensor<T, (M, D)>,
    w: &Tensor<T, (V, D)>,
    target: &Tensor<i32, (M)>,
    m_reference: &Tensor<f32, (M)>,
    grad_loss: &Tensor<f32, (M)>,
    grad_wanted: &Tensor<f32, (M)>,
    grad_s: &mut Tensor<T, (M, V)>,
) {
    let (i, j) = program(tiles(M), tiles(V));
    let target_i = load(target, [i]);
    let ds = select(target_i == pos(j), zeros((i, j)) + load(grad_wanted, [i]), 0.0);
    let x_i = load(x, [i, ..]);
    let s = dot(x_i, load(w, [j, ..]).t());
    let t1 = load(grad_loss, [i]) * exp(s - visible_or_zero(load(m_reference, [i])));
    let ds2 = ds + t1;
    store(grad_s, [i, j], ds2);
}

/// The gradient of `x`, a program for each tile of `x`: of `linear_cross_entropy`.
pub fn linear_cross_entropy_grad_x<T: Element, const D: usize>(
    w: &Tensor<T, (V, D)>,
    grad_s: &Tensor<T, (M, V)>,
    grad_x: &mut Tensor<T, (M, D)>,
) {
    let (i, c) = program(tiles(M), tiles(D));
    let mut dx = zeros((i, c));
    for j in tiles(V) {
        dx = dx + dot(load(grad_s, [i, j]), load(w, [j, c]));
    }
    store(grad_x, [i, c], dx);
}

/// The gradient of `w`, a program for each tile of `w`: of `linear_cross_entropy`.
pub fn linear_cross_entropy_grad_w<T: Element, const D: usize>(
    x: &Tensor<T, (M, D)>,
    grad_s: &Tensor<T, (M, V)>,
    grad_w: &mut Tensor<T, (V, D)>,
) {
    let (j, c) = program(tiles(V), tiles(D));
    let mut dw = zeros((j, c));
    for i in tiles(M) {
        dw = dw + dot(load(grad_s, [i, j]).t(), load(x, [i, c]));
    }
    store(grad_w, [j, c], dw);
}

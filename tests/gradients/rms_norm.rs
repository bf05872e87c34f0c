/// The gradient of `x`, a program for each tile of rows: of `rms_norm`.
pub fn rms_norm_grad_rows<T: Element>(
    x: &Tensor<T, (M, N)>,
    w: &Tensor<T, (N)>,
    eps: f32,
    squares_sum: &Tensor<f32, (M)>,
    grad_y: &Tensor<T, (M, N)>,
    grad_x: &mut Tensor<T, (M, N)>,
) {
    let i = program(tiles(M));
    let t1 = N.to::<f32>();
    let r = rsqrt(load(squares_sum, [i]) / t1 + eps);
    let mut dr = zeros(i);
    for j in tiles(N) {
        let t2 = rowsum(load(grad_y, [i, j]) * load(w, [j]) * load(x, [i, j]));
        dr = dr + t2;
    }
    let dsquares = dr * (r * r * r);
    let t3 = select(dsquares == 0.0, 0.0, dsquares * (-0.5 * (1.0 / t1)));
    for j2 in tiles(N) {
        let x_ij = load(x, [i, j2]).to::<f32>();
        let dx_ij = t3 * x_ij;
        let dx_ij2 = dx_ij + t3 * x_ij;
        store(grad_x, [i, j2], load(grad_y, [i, j2]) * load(w, [j2]) * r + dx_ij2);
    }
}

/// The gradient of `w`, a program for each tile of columns: of `rms_norm`.
pub fn rms_norm_grad_columns<T: Element>(
    x: &Tensor<T, (M, N)>,
    eps: f32,
    squares_sum: &Tensor<f32, (M)>,
    grad_y: &Tensor<T, (M, N)>,
    grad_w: &mut Tensor<T, (N)>,
) {
    let j = program(tiles(N));
    let t1 = N.to::<f32>();
    let mut dw = zeros(j);
    for i in tiles(M) {
        let r = rsqrt(load(squares_sum, [i]) / t1 + eps);
        let t2 = dw + rowsum(load(grad_y, [i, j]).t() * (load(x, [i, j]).t() * r));
        dw = t2;
    }
    store(grad_w, [j], dw);
}

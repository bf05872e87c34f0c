/// The gradient of `x`, a program for each tile of rows: of `layer_norm`.
pub fn layer_norm_grad_rows<T: Element>(
    x: &Tensor<T, (M, N)>,
    w: &Tensor<T, (N)>,
    eps: f32,
    sum_sum: &Tensor<f32, (M)>,
    squares_sum: &Tensor<f32, (M)>,
    grad_y: &Tensor<T, (M, N)>,
    grad_x: &mut Tensor<T, (M, N)>,
) {
    let i = program(tiles(M));
    let t1 = N.to::<f32>();
    let r = rsqrt(load(squares_sum, [i]) / t1 + eps);
    let t2 = N.to::<f32>();
    let mean = load(sum_sum, [i]) / t2;
    let mut dr = zeros(i);
    let mut dmean = zeros(i);
    for j in tiles(N) {
        let t3 = load(grad_y, [i, j]) * load(w, [j]);
        dr = dr + rowsum(t3 * (load(x, [i, j]) - mean));
        dmean = dmean + rowsum(-(t3 * r));
    }
    let dsquares = dr * (r * r * r);
    let t4 = select(dsquares == 0.0, 0.0, dsquares * (-0.5 * (1.0 / t1)));
    let mut dmean2 = zeros(i);
    for j2 in tiles(N) {
        let d = load(x, [i, j2]) - mean;
        let dd = t4 * d;
        let dd2 = dd + t4 * d;
        dmean2 = dmean2 + rowsum(-dd2);
    }
    let dmean3 = dmean + dmean2;
    let t5 = select(dmean3 == 0.0, 0.0, dmean3 * (1.0 / t2));
    for j3 in tiles(N) {
        let d2 = load(x, [i, j3]) - mean;
        let dd3 = t4 * d2;
        let dd4 = dd3 + t4 * d2;
        store(grad_x, [i, j3], load(grad_y, [i, j3]) * load(w, [j3]) * r + dd4 + t5);
    }
}

/// Gradients of `w`, `bias`, a program for each tile of columns: of `layer_norm`.
pub fn layer_norm_grad_columns<T: Element>(
    x: &Tensor<T, (M, N)>,
    eps: f32,
    sum_sum: &Tensor<f32, (M)>,
    squares_sum: &Tensor<f32, (M)>,
    grad_y: &Tensor<T, (M, N)>,
    grad_w: &mut Tensor<T, (N)>,
    grad_bias: &mut Tensor<T, (N)>,
) {
    let j = program(tiles(N));
    let t1 = N.to::<f32>();
    let t2 = N.to::<f32>();
    let mut dbias = zeros(j);
    let mut dw = zeros(j);
    for i in tiles(M) {
        let t3 = load(grad_y, [i, j]).t();
        let mean = load(sum_sum, [i]) / t1;
        let r = rsqrt(load(squares_sum, [i]) / t2 + eps);
        dbias = dbias + rowsum(t3);
        dw = dw + rowsum(t3 * ((load(x, [i, j]).t() - mean) * r));
    }
    store(grad_w, [j], dw);
    store(grad_bias, [j], dbias);
}

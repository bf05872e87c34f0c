/// The gradients of the sums, a program for each tile of the outputs: of `swiglu`.
pub fn swiglu_grad_pairs<T: Element>(
    a_sum: &Tensor<f32, (M, N)>,
    b_sum: &Tensor<f32, (M, N)>,
    grad_y: &Tensor<T, (M, N)>,
    grad_a: &mut Tensor<T, (M, N)>,
    grad_b: &mut Tensor<T, (M, N)>,
) {
    let (i, j) = program(tiles(M), tiles(N));
    let t1 = load(a_sum, [i, j]);
    let t2 = load(grad_y, [i, j]);
    let t3 = t2 * load(b_sum, [i, j]);
    let t4 = 1.0 + exp(-t1);
    let t5 = t1 / t4;
    let db = t2 * t5;
    let da = t3 / t4;
    let da2 = da + -(-(t3 * t5) * (1.0 - 1.0 / t4));
    store(grad_a, [i, j], da2);
    store(grad_b, [i, j], db);
}

/// The gradient of `x`, a program for each tile of `x`: of `swiglu`.
pub fn swiglu_grad_x<T: Element>(
    gate: &Tensor<T, (K, N)>,
    up: &Tensor<T, (K, N)>,
    grad_a: &Tensor<T, (M, N)>,
    grad_b: &Tensor<T, (M, N)>,
    grad_x: &mut Tensor<T, (M, K)>,
) {
    let (i, k) = program(tiles(M), tiles(K));
    let mut dx = zeros((i, k));
    for j in tiles(N) {
        let t1 = dx + dot(load(grad_b, [i, j]), load(up, [k, j]).t()) + dot(load(grad_a, [i, j]), load(gate, [k, j]).t());
        dx = t1;
    }
    store(grad_x, [i, k], dx);
}

/// The gradient of `gate`, a program for each tile of `gate`: of `swiglu`.
pub fn swiglu_grad_gate<T: Element>(
    x: &Tensor<T, (M, K)>,
    grad_a: &Tensor<T, (M, N)>,
    grad_gate: &mut Tensor<T, (K, N)>,
) {
    let (k, j) = program(tiles(K), tiles(N));
    let mut dgate = zeros((k, j));
    for i in tiles(M) {
        let x_ik = load(x, [i, k]);
        dgate = dgate + dot(x_ik.t(), load(grad_a, [i, j]));
    }
    store(grad_gate, [k, j], dgate);
}

/// The gradient of `up`, a program for each tile of `up`: of `swiglu`.
pub fn swiglu_grad_up<T: Element>(
    x: &Tensor<T, (M, K)>,
    grad_b: &Tensor<T, (M, N)>,
    grad_up: &mut Tensor<T, (K, N)>,
) {
    let (k, j) = program(tiles(K), tiles(N));
    let mut dup = zeros((k, j));
    for i in tiles(M) {
        let x_ik = load(x, [i, k]);
        dup = dup + dot(x_ik.t(), load(grad_b, [i, j]));
    }
    store(grad_up, [k, j], dup);
}

/// The gradients of the sums, a program for each tile of the outputs: of `matmul_gelu`.
pub fn matmul_gelu_grad_pairs<T: Element>(
    bias: &Tensor<T, (N)>,
    acc_sum: &Tensor<f32, (M, N)>,
    grad_c: &Tensor<T, (M, N)>,
    grad_acc: &mut Tensor<T, (M, N)>,
) {
    let (i, j) = program(tiles(M), tiles(N));
    let t1 = load(grad_c, [i, j]);
    let x = load(acc_sum, [i, j]) + load(bias, [j]);
    let t2 = 0.044715 * x;
    let t3 = t2 * x;
    let inner = 0.7978845608 * (x + t3 * x);
    let t4 = tanh(inner);
    let dx = t1 * (1.0 + t4);
    let dinner = t1 * (0.5 * x) * (1.0 - t4 * t4);
    let dx2 = dx * 0.5 + dinner * 0.7978845608;
    let t5 = dinner * x;
    let dx3 = dx2 + dinner * t3 * 0.7978845608;
    let dx4 = dx3 + t5 * t2 * 0.7978845608;
    let dx5 = dx4 + t5 * x * (0.7978845608 * 0.044715);
    store(grad_acc, [i, j], dx5);
}

/// The gradient of `a`, a program for each tile of `a`: of `matmul_gelu`.
pub fn matmul_gelu_grad_a<T: Element>(
    b: &Tensor<T, (K, N)>,
    grad_acc: &Tensor<T, (M, N)>,
    grad_a: &mut Tensor<T, (M, K)>,
) {
    let (i, k) = program(tiles(M), tiles(K));
    let mut da = zeros((i, k));
    for j in tiles(N) {
        da = da + dot(load(grad_acc, [i, j]), load(b, [k, j]).t());
    }
    store(grad_a, [i, k], da);
}

/// The gradient of `b`, a program for each tile of `b`: of `matmul_gelu`.
pub fn matmul_gelu_grad_b<T: Element>(
    a: &Tensor<T, (M, K)>,
    grad_acc: &Tensor<T, (M, N)>,
    grad_b: &mut Tensor<T, (K, N)>,
) {
    let (k, j) = program(tiles(K), tiles(N));
    let mut db = zeros((k, j));
    for i in tiles(M) {
        db = db + dot(load(a, [i, k]).t(), load(grad_acc, [i, j]));
    }
    store(grad_b, [k, j], db);
}

/// The gradient of `bias`: the sum of the shares of all programs of `matmul_gelu`.
pub fn matmul_gelu_grad_bias<T: Element>(
    grad_acc: &Tensor<T, (M, N)>,
    grad_bias: &mut Tensor<T, (N)>,
) {
    let j = program(tiles(N));
    let mut total = zeros(j);
    for i in tiles(M) {
        total = total + rowsum(load(grad_acc, [i, j]).t());
    }
    store(grad_bias, [j], total);
}

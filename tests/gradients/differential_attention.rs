/// The gradient of `q`, a program for each tile of rows: of `differential_attention`.
pub fn differential_attention_grad_rows<T: Element, const D: usize, const E: usize>(
    q: &Tensor<T, (B, H, M, 2, D)>,
    k: &Tensor<T, (B, H, N, 2, D)>,
    v: &Tensor<T, (B, H, N, E)>,
    scale: f32,
    lambda: f32,
    m1_reference: &Tensor<f32, (B, H, M)>,
    m2_reference: &Tensor<f32, (B, H, M)>,
    acc1_mean: &Tensor<T, (B, H, M, E)>,
    acc2_mean: &Tensor<T, (B, H, M, E)>,
    grad_o: &Tensor<T, (B, H, M, E)>,
    grad_l1: &mut Tensor<f32, (B, H, M)>,
    grad_l2: &mut Tensor<f32, (B, H, M)>,
    grad_acc2: &mut Tensor<T, (B, H, M, E)>,
    grad_q: &mut Tensor<T, (B, H, M, 2, D)>,
) {
    let (b, h, i) = program(B, H, tiles(M));
    let t1 = visible_or_zero(load(m1_reference, [b, h, i]));
    let t2 = visible_or_zero(load(m2_reference, [b, h, i]));
    let dacc1 = load(grad_o, [b, h, i, ..]);
    let dacc2 = (-dacc1).to::<T>();
    let dl2 = rowsum(-(dacc2 * load(acc2_mean, [b, h, i, ..])));
    let dl1 = rowsum(-(dacc1 * load(acc1_mean, [b, h, i, ..])));
    store(grad_l1, [b, h, i], dl1);
    let t3 = dl2 * lambda;
    store(grad_l2, [b, h, i], t3);
    let t4 = dacc2 * lambda;
    store(grad_acc2, [b, h, i, ..], t4);
    let t5 = t4.to::<T>();
    let q2 = load(q, [b, h, i, 1, ..]);
    let t6 = pos(i) + N - M;
    let q1 = load(q, [b, h, i, 0, ..]);
    let t7 = pos(i) + N - M;
    let mut dq = zeros((i, D));
    let mut dq2 = zeros((i, D));
    for j in tiles(N) {
        let v_j = load(v, [b, h, j, ..]);
        let dp = dot(t5, v_j.t());
        let dp2 = dp + t3;
        let t8 = load(k, [b, h, j, 1, ..]);
        let s2 = mask(dot(q2, t8.t()) * scale, t6 >= pos(j));
        let p = exp(s2 - t2);
        let ds2 = dp2 * p;
        let dp3 = dot(dacc1, v_j.t());
        let dp4 = dp3 + dl1;
        let t9 = load(k, [b, h, j, 0, ..]);
        let s1 = mask(dot(q1, t9.t()) * scale, t7 >= pos(j));
        let p2 = exp(s1 - t1);
        let ds1 = dp4 * p2;
        dq = dq + dot(ds2.to::<T>(), t8);
        dq2 = dq2 + dot(ds1.to::<T>(), t9);
    }
    store(grad_q, [b, h, i, 0, ..], dq2 * scale);
    store(grad_q, [b, h, i, 1, ..], dq * scale);
}

/// Gradients of `k`, `v`, a program for each tile of columns: of `differential_attention`.
pub fn differential_attention_grad_columns<T: Element, const D: usize, const E: usize>(
    q: &Tensor<T, (B, H, M, 2, D)>,
    k: &Tensor<T, (B, H, N, 2, D)>,
    v: &Tensor<T, (B, H, N, E)>,
    scale: f32,
    m1_reference: &Tensor<f32, (B, H, M)>,
    m2_reference: &Tensor<f32, (B, H, M)>,
    grad_l1: &Tensor<f32, (B, H, M)>,
    grad_o: &Tensor<T, (B, H, M, E)>,
    grad_l2: &Tensor<f32, (B, H, M)>,
    grad_acc2: &Tensor<T, (B, H, M, E)>,
    grad_v: &mut Tensor<T, (B, H, N, E)>,
    grad_k: &mut Tensor<T, (B, H, N, 2, D)>,
) {
    let (b, h, j) = program(B, H, tiles(N));
    let v_j = load(v, [b, h, j, ..]);
    let t1 = load(k, [b, h, j, 1, ..]);
    let t2 = load(k, [b, h, j, 0, ..]);
    let mut dv = zeros((j, E));
    let mut dk = zeros((j, D));
    let mut dk2 = zeros((j, D));
    for i in tiles(M) {
        let t3 = load(grad_o, [b, h, i, ..]);
        let t4 = load(grad_acc2, [b, h, i, ..]);
        let dp = dot(v_j, t4.t());
        let q2 = load(q, [b, h, i, 1, ..]);
        let s2 = mask(dot(t1, q2.t()) * scale, pos(i) + N - M >= pos(j));
        let p = exp(s2 - visible_or_zero(load(m2_reference, [b, h, i])));
        let dp2 = dp + load(grad_l2, [b, h, i]);
        let ds2 = dp2 * p;
        let dp3 = dot(v_j, t3.t());
        let q1 = load(q, [b, h, i, 0, ..]);
        let s1 = mask(dot(t2, q1.t()) * scale, pos(i) + N - M >= pos(j));
        let p2 = exp(s1 - visible_or_zero(load(m1_reference, [b, h, i])));
        let dp4 = dp3 + load(grad_l1, [b, h, i]);
        let ds1 = dp4 * p2;
        let t5 = dv + dot(p.to::<T>(), t4) + dot(p2.to::<T>(), t3);
        dv = t5;
        dk = dk + dot(ds2.to::<T>(), q2);
        dk2 = dk2 + dot(ds1.to::<T>(), q1);
    }
    store(grad_v, [b, h, j, ..], dv);
    store(grad_k, [b, h, j, 0, ..], dk2 * scale);
    store(grad_k, [b, h, j, 1, ..], dk * scale);
}

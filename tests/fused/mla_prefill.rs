/// What the gradients of columns need of rows: of `mla_prefill`.
pub fn mla_prefill_grad_rows<T: Element, const D: usize, const R: usize, const E: usize>(
    o: &Tensor<T, (B, H, M, E)>,
    grad_o: &Tensor<T, (B, H, M, E)>,
    grad_l: &mut Tensor<f32, (B, H, M)>,
) {
    let (b, h, i) = program(B, H, tiles(M));
    let dacc = load(grad_o, [b, h, i, ..]);
    let dl = rowsum(-(dacc * load(o, [b, h, i, ..])));
    store(grad_l, [b, h, i], dl);
}

/// Gradients of `q`, `q_rot`, `k`, `v`, a program for each tile of columns: of `mla_prefill`.
pub fn mla_prefill_grad_columns<T: Element, const D: usize, const R: usize, const E: usize>(
    q: &Tensor<T, (B, H, M, D)>,
    q_rot: &Tensor<T, (B, H, M, R)>,
    k: &Tensor<T, (B, H, N, D)>,
    k_rot: &Tensor<T, (B, N, R)>,
    v: &Tensor<T, (B, H, N, E)>,
    scale: f32,
    lse: &Tensor<f32, (B, H, M)>,
    grad_l: &Tensor<f32, (B, H, M)>,
    grad_o: &Tensor<T, (B, H, M, E)>,
    grad_q_sum: &mut Tensor<f32, (B, H, M, D)>,
    grad_q_rot_sum: &mut Tensor<f32, (B, H, M, R)>,
    grad_k: &mut Tensor<T, (B, H, N, D)>,
    grad_v: &mut Tensor<T, (B, H, N, E)>,
) {
    let (b, h, j) = program(B, H, tiles(N));
    let t1 = load(v, [b, h, j, ..]);
    let t2 = load(k, [b, h, j, ..]);
    let t3 = load(k_rot, [b, j, ..]);
    let mut dv = zeros((j, E));
    let mut dk = zeros((j, D));
    for i in tiles(M) {
        let t4 = load(grad_o, [b, h, i, ..]);
        let dp = dot(t1, t4.t());
        let q_i = load(q, [b, h, i, ..]);
        let q_rot_i = load(q_rot, [b, h, i, ..]);
        let s = dot(t2, q_i.t()) + dot(t3, q_rot_i.t());
        let s2 = mask(s * scale, pos(i) + N - M >= pos(j));
        let p = exp(s2 - visible_or_zero(load(lse, [b, h, i])));
        let dp2 = dp + load(grad_l, [b, h, i]);
        let ds = dp2 * p;
        let dq_rot_i = dot(ds.to::<T>().t(), t3);
        let dq_i = dot(ds.to::<T>().t(), t2);
        add(grad_q_sum, [b, h, i, ..], dq_i);
        add(grad_q_rot_sum, [b, h, i, ..], dq_rot_i);
        dv = dv + dot(p.to::<T>(), t4);
        dk = dk + dot(ds.to::<T>(), q_i);
    }
    store(grad_k, [b, h, j, ..], dk * scale);
    store(grad_v, [b, h, j, ..], dv);
}

/// The gradient of `k_rot`, a program for each tile of columns: of `mla_prefill`.
pub fn mla_prefill_grad_columns2<T: Element, const D: usize, const R: usize, const E: usize>(
    q: &Tensor<T, (B, H, M, D)>,
    q_rot: &Tensor<T, (B, H, M, R)>,
    k: &Tensor<T, (B, H, N, D)>,
    k_rot: &Tensor<T, (B, N, R)>,
    v: &Tensor<T, (B, H, N, E)>,
    scale: f32,
    lse: &Tensor<f32, (B, H, M)>,
    grad_l: &Tensor<f32, (B, H, M)>,
    grad_o: &Tensor<T, (B, H, M, E)>,
    grad_k_rot: &mut Tensor<T, (B, N, R)>,
) {
    let (b, j) = program(B, tiles(N));
    let t1 = load(k_rot, [b, j, ..]);
    let mut dk_rot = zeros((j, R));
    for h in 0..H {
        let t2 = load(v, [b, h, j, ..]);
        let t3 = load(k, [b, h, j, ..]);
        let mut dk_rot2 = dk_rot;
        for i in tiles(M) {
            let dp = dot(t2, load(grad_o, [b, h, i, ..]).t());
            let dp2 = dp + load(grad_l, [b, h, i]);
            let q_i = load(q, [b, h, i, ..]);
            let q_rot_i = load(q_rot, [b, h, i, ..]);
            let s = dot(t3, q_i.t()) + dot(t1, q_rot_i.t());
            let s2 = mask(s * scale, pos(i) + N - M >= pos(j));
            let p = exp(s2 - visible_or_zero(load(lse, [b, h, i])));
            let ds = dp2 * p;
            dk_rot2 = dk_rot2 + dot(ds.to::<T>(), q_rot_i);
        }
        dk_rot = dk_rot2;
    }
    store(grad_k_rot, [b, j, ..], dk_rot * scale);
}

/// Gradients of `q`, `q_rot`, a program for each tile of rows: of `mla_prefill`.
pub fn mla_prefill_grad_sums<T: Element, const D: usize, const R: usize, const E: usize>(
    scale: f32,
    grad_q_sum: &Tensor<f32, (B, H, M, D)>,
    grad_q_rot_sum: &Tensor<f32, (B, H, M, R)>,
    grad_q: &mut Tensor<T, (B, H, M, D)>,
    grad_q_rot: &mut Tensor<T, (B, H, M, R)>,
) {
    let (b, h, i) = program(B, H, tiles(M));
    let dq_i = load(grad_q_sum, [b, h, i, ..]);
    let dq_rot_i = load(grad_q_rot_sum, [b, h, i, ..]);
    store(grad_q, [b, h, i, ..], dq_i * scale);
    store(grad_q_rot, [b, h, i, ..], dq_rot_i * scale);
}

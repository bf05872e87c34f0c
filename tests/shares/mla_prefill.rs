/// Gradients of `k`, `k_rot`, `v`, a program for each tile of columns: of `mla_prefill`.
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
    grad_k: &mut Tensor<T, (B, H, N, D)>,
    grad_v: &mut Tensor<T, (B, H, N, E)>,
    grad_k_rot_shares: &mut Tensor<f32, (B, H, N, R)>,
) {
    let (b, h, j) = program(B, H, tiles(N));
    let t1 = load(v, [b, h, j, ..]);
    let t2 = load(k, [b, h, j, ..]);
    let t3 = load(k_rot, [b, j, ..]);
    let mut dv = zeros((j, E));
    let mut dk_rot = zeros((j, R));
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
        dv = dv + dot(p.to::<T>(), t4);
        dk_rot = dk_rot + dot(ds.to::<T>(), q_rot_i);
        dk = dk + dot(ds.to::<T>(), q_i);
    }
    store(grad_k, [b, h, j, ..], dk * scale);
    store(grad_v, [b, h, j, ..], dv);
    store(grad_k_rot_shares, [b, h, j, ..], dk_rot * scale);
}

/// The sum of the shares in the gradient of `k_rot`: of `mla_prefill`.
pub fn mla_prefill_grad_shares<T: Element, const D: usize, const R: usize, const E: usize>(
    grad_k_rot_shares: &Tensor<f32, (B, H, N, R)>,
    grad_k_rot: &mut Tensor<T, (B, N, R)>,
) {
    let (b, j, c) = program(B, tiles(N), tiles(R));
    let mut dk_rot = zeros((j, c));
    for h in 0..H {
        dk_rot = dk_rot + load(grad_k_rot_shares, [b, h, j, c]);
    }
    store(grad_k_rot, [b, j, c], dk_rot);
}

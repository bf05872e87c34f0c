/// Gradients of `k`, `v`, a program for each tile of columns: of `sliding_window`.
pub fn sliding_window_grad_columns<T: Element, const D: usize>(
    q: &Tensor<T, (B, H, M, D)>,
    k: &Tensor<T, (B, G, N, D)>,
    v: &Tensor<T, (B, G, N, D)>,
    scale: f32,
    window: i32,
    lse: &Tensor<f32, (B, H, M)>,
    grad_l: &Tensor<f32, (B, H, M)>,
    grad_o: &Tensor<T, (B, H, M, D)>,
    grad_k_shares: &mut Tensor<f32, (B, H, N, D)>,
    grad_v_shares: &mut Tensor<f32, (B, H, N, D)>,
) {
    let (b, h, j) = program(B, H, tiles(N));
    let g = h * G / H;
    let t1 = load(v, [b, g, j, ..]);
    let t2 = load(k, [b, g, j, ..]);
    let t3 = pos(j) + window;
    let mut dv = zeros((j, D));
    let mut dk = zeros((j, D));
    for i in tiles(M) {
        let t4 = load(grad_o, [b, h, i, ..]);
        let dp = dot(t1, t4.t());
        let q_i = load(q, [b, h, i, ..]);
        let s = dot(t2, q_i.t()) * scale;
        let s2 = mask(s, pos(i) + N - M >= pos(j) && pos(i) + N - M < t3);
        let p = exp(s2 - visible_or_zero(load(lse, [b, h, i])));
        let dp2 = dp + load(grad_l, [b, h, i]);
        let ds = dp2 * p;
        dv = dv + dot(p.to::<T>(), t4);
        dk = dk + dot(ds.to::<T>(), q_i);
    }
    store(grad_k_shares, [b, h, j, ..], dk * scale);
    store(grad_v_shares, [b, h, j, ..], dv);
}

/// The sum of the shares in the gradient of `k`: of `sliding_window`.
pub fn sliding_window_grad_shares<T: Element, const D: usize>(
    grad_k_shares: &Tensor<f32, (B, H, N, D)>,
    grad_k: &mut Tensor<T, (B, G, N, D)>,
) {
    let (b, g, j, c) = program(B, G, tiles(N), tiles(D));
    let mut dk = zeros((j, c));
    for h in 0..H {
        let g2 = h * G / H;
        dk = dk + select(g2 == g, load(grad_k_shares, [b, h, j, c]), 0.0);
    }
    store(grad_k, [b, g, j, c], dk);
}

/// The sum of the shares in the gradient of `v`: of `sliding_window`.
pub fn sliding_window_grad_shares2<T: Element, const D: usize>(
    grad_v_shares: &Tensor<f32, (B, H, N, D)>,
    grad_v: &mut Tensor<T, (B, G, N, D)>,
) {
    let (b, g, j, c) = program(B, G, tiles(N), tiles(D));
    let mut dv = zeros((j, c));
    for h in 0..H {
        let g2 = h * G / H;
        dv = dv + select(g2 == g, load(grad_v_shares, [b, h, j, c]), 0.0);
    }
    store(grad_v, [b, g, j, c], dv);
}

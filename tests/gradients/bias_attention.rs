/// The gradient of `q`, a program for each tile of rows: of `bias_attention`.
pub fn bias_attention_grad_rows<T: Element, const D: usize>(
    q: &Tensor<T, (B, H, M, D)>,
    k: &Tensor<T, (B, G, N, D)>,
    v: &Tensor<T, (B, G, N, D)>,
    scale: f32,
    bias: &Tensor<T, (H, M, N)>,
    o: &Tensor<T, (B, H, M, D)>,
    lse: &Tensor<f32, (B, H, M)>,
    grad_o: &Tensor<T, (B, H, M, D)>,
    grad_l: &mut Tensor<f32, (B, H, M)>,
    grad_q: &mut Tensor<T, (B, H, M, D)>,
) {
    let (b, h, i) = program(B, H, tiles(M));
    let t1 = visible_or_zero(load(lse, [b, h, i]));
    let dacc = load(grad_o, [b, h, i, ..]);
    let dl = rowsum(-(dacc * load(o, [b, h, i, ..])));
    store(grad_l, [b, h, i], dl);
    let g = h * G / H;
    let q_i = load(q, [b, h, i, ..]);
    let mut dq = zeros((i, D));
    for j in tiles(N) {
        let dp = dot(dacc, load(v, [b, g, j, ..]).t());
        let dp2 = dp + dl;
        let t2 = load(k, [b, g, j, ..]);
        let s = dot(q_i, t2.t()) * scale;
        let s2 = s + load(bias, [h, i, j]);
        let p = exp(s2 - t1);
        let ds = dp2 * p;
        dq = dq + dot(ds.to::<T>(), t2);
    }
    store(grad_q, [b, h, i, ..], dq * scale);
}

/// Gradients of `k`, `v`, a program for each tile of columns: of `bias_attention`.
pub fn bias_attention_grad_columns<T: Element, const D: usize>(
    q: &Tensor<T, (B, H, M, D)>,
    k: &Tensor<T, (B, G, N, D)>,
    v: &Tensor<T, (B, G, N, D)>,
    scale: f32,
    bias: &Tensor<T, (H, M, N)>,
    lse: &Tensor<f32, (B, H, M)>,
    grad_l: &Tensor<f32, (B, H, M)>,
    grad_o: &Tensor<T, (B, H, M, D)>,
    grad_k: &mut Tensor<T, (B, G, N, D)>,
    grad_v: &mut Tensor<T, (B, G, N, D)>,
) {
    let (b, g, j) = program(B, G, tiles(N));
    let t1 = load(v, [b, g, j, ..]);
    let t2 = load(k, [b, g, j, ..]);
    let mut dv = zeros((j, D));
    let mut dk = zeros((j, D));
    for h in 0..H {
        let g2 = h * G / H;
        let t3 = g2 == g;
        let mut dv2 = dv;
        let mut dk2 = dk;
        for i in tiles(M) {
            let t4 = load(grad_o, [b, h, i, ..]);
            let dp = dot(t1, t4.t());
            let q_i = load(q, [b, h, i, ..]);
            let s = mask(dot(t2, q_i.t()), t3) * scale;
            let s2 = s + load(bias, [h, i, j]).t();
            let p = exp(s2 - visible_or_zero(load(lse, [b, h, i])));
            let dp2 = dp + load(grad_l, [b, h, i]);
            let ds = dp2 * p;
            dv2 = dv2 + dot(p.to::<T>(), t4);
            dk2 = dk2 + dot(ds.to::<T>(), q_i);
        }
        dv = dv2;
        dk = dk2;
    }
    store(grad_k, [b, g, j, ..], dk * scale);
    store(grad_v, [b, g, j, ..], dv);
}

/// `grad_bias`, a program for each tile of pairs: of `bias_attention`.
pub fn bias_attention_grad_pairs<T: Element, const D: usize>(
    q: &Tensor<T, (B, H, M, D)>,
    k: &Tensor<T, (B, G, N, D)>,
    v: &Tensor<T, (B, G, N, D)>,
    scale: f32,
    bias: &Tensor<T, (H, M, N)>,
    lse: &Tensor<f32, (B, H, M)>,
    grad_l: &Tensor<f32, (B, H, M)>,
    grad_o: &Tensor<T, (B, H, M, D)>,
    grad_bias: &mut Tensor<T, (H, M, N)>,
) {
    let (h, i, j) = program(H, tiles(M), tiles(N));
    let g = h * G / H;
    let t1 = load(bias, [h, i, j]);
    let mut dbias = zeros((i, j));
    for b in 0..B {
        let dp = dot(load(grad_o, [b, h, i, ..]), load(v, [b, g, j, ..]).t());
        let dp2 = dp + load(grad_l, [b, h, i]);
        let q_i = load(q, [b, h, i, ..]);
        let s = dot(q_i, load(k, [b, g, j, ..]).t()) * scale;
        let s2 = s + t1;
        let p = exp(s2 - visible_or_zero(load(lse, [b, h, i])));
        let ds = dp2 * p;
        dbias = dbias + ds;
    }
    store(grad_bias, [h, i, j], dbias);
}

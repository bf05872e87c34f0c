/// Gradients of `q`, `weight`, a program for each tile of rows: of `query_norm_attention`.
pub fn query_norm_attention_grad_rows<T: Element, const D: usize>(
    q: &Tensor<T, (B, H, M, D)>,
    k: &Tensor<T, (B, G, N, D)>,
    v: &Tensor<T, (B, G, N, D)>,
    scale: f32,
    weight: &Tensor<f32, (D)>,
    eps: f32,
    o: &Tensor<T, (B, H, M, D)>,
    lse: &Tensor<f32, (B, H, M)>,
    grad_o: &Tensor<T, (B, H, M, D)>,
    grad_l: &mut Tensor<f32, (B, H, M)>,
    grad_q: &mut Tensor<T, (B, H, M, D)>,
    grad_weight_shares: &mut Tensor<f32, (B, H, M, D)>,
) {
    let (b, h, i) = program(B, H, tiles(M));
    let t1 = visible_or_zero(load(lse, [b, h, i]));
    let dacc = load(grad_o, [b, h, i, ..]);
    let dl = rowsum(-(dacc * load(o, [b, h, i, ..])));
    store(grad_l, [b, h, i], dl);
    let g = h * G / H;
    let q_i = load(q, [b, h, i, ..]).to::<f32>();
    let t2 = D.to::<f32>();
    let r = rsqrt(rowsum(q_i * q_i) / t2 + eps);
    let t3 = q_i * r;
    let t4 = load(weight, [..]);
    let q_i2 = (t3 * t4).to::<T>();
    let t5 = pos(i) + N - M;
    let mut dq_i = zeros((i, D));
    for j in tiles(N) {
        let dp = dot(dacc, load(v, [b, g, j, ..]).t());
        let dp2 = dp + dl;
        let t6 = load(k, [b, g, j, ..]);
        let s = dot(q_i2, t6.t()) * scale;
        let s2 = mask(s, t5 >= pos(j));
        let p = exp(s2 - t1);
        let ds = dp2 * p;
        dq_i = dq_i + dot(ds.to::<T>(), t6);
    }
    let t7 = dq_i * t4;
    let dq_i2 = t7 * r;
    let dr = rowsum(t7 * q_i);
    let t8 = dr * (r * r * r);
    let t9 = scale * -0.5 * (1.0 / t2);
    let dq_i3 = dq_i2 * scale + t8 * q_i * t9;
    let dq_i4 = dq_i3 + t8 * q_i * t9;
    store(grad_q, [b, h, i, ..], dq_i4);
    store(grad_weight_shares, [b, h, i, ..], dq_i * t3 * scale);
}

/// Gradients of `k`, `v`, a program for each tile of columns: of `query_norm_attention`.
pub fn query_norm_attention_grad_columns<T: Element, const D: usize>(
    q: &Tensor<T, (B, H, M, D)>,
    k: &Tensor<T, (B, G, N, D)>,
    v: &Tensor<T, (B, G, N, D)>,
    scale: f32,
    weight: &Tensor<f32, (D)>,
    eps: f32,
    lse: &Tensor<f32, (B, H, M)>,
    grad_l: &Tensor<f32, (B, H, M)>,
    grad_o: &Tensor<T, (B, H, M, D)>,
    grad_k: &mut Tensor<T, (B, G, N, D)>,
    grad_v: &mut Tensor<T, (B, G, N, D)>,
) {
    let (b, g, j) = program(B, G, tiles(N));
    let t1 = load(v, [b, g, j, ..]);
    let t2 = D.to::<f32>();
    let t3 = load(weight, [..]);
    let t4 = load(k, [b, g, j, ..]);
    let mut dv = zeros((j, D));
    let mut dk = zeros((j, D));
    for h in 0..H {
        let g2 = h * G / H;
        let t5 = g2 == g;
        let mut dv2 = dv;
        let mut dk2 = dk;
        for i in tiles(M) {
            let t6 = load(grad_o, [b, h, i, ..]);
            let dp = dot(t1, t6.t());
            let q_i = load(q, [b, h, i, ..]).to::<f32>();
            let r = rsqrt(rowsum(q_i * q_i) / t2 + eps);
            let q_i2 = (q_i * r * t3).to::<T>();
            let s = mask(dot(t4, q_i2.t()), t5) * scale;
            let s2 = mask(s, pos(i) + N - M >= pos(j));
            let p = exp(s2 - visible_or_zero(load(lse, [b, h, i])));
            let dp2 = dp + load(grad_l, [b, h, i]);
            let ds = dp2 * p;
            dv2 = dv2 + dot(p.to::<T>(), t6);
            dk2 = dk2 + dot(ds.to::<T>(), q_i2);
        }
        dv = dv2;
        dk = dk2;
    }
    store(grad_k, [b, g, j, ..], dk * scale);
    store(grad_v, [b, g, j, ..], dv);
}

/// The gradient of `weight`: the sum of the shares of all programs of `query_norm_attention`.
pub fn query_norm_attention_grad_weight<T: Element, const D: usize>(
    grad_weight_shares: &Tensor<f32, (B, H, M, D)>,
    grad_weight: &mut Tensor<f32, (D)>,
) {
    let d0 = program(tiles(D));
    let mut total = zeros(d0);
    for b in 0..B {
        let mut total2 = total;
        for h in 0..H {
            let mut total3 = total2;
            for i in tiles(M) {
                total3 = total3 + rowsum(load(grad_weight_shares, [b, h, i, d0]).t());
            }
            total2 = total3;
        }
        total = total2;
    }
    store(grad_weight, [d0], total);
}

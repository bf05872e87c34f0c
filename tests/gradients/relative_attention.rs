/// Gradients of `q`, `table`, a program for each tile of rows: of `relative_attention`.
pub fn relative_attention_grad_rows<T: Element, const D: usize>(
    q: &Tensor<T, (B, H, M, D)>,
    k: &Tensor<T, (B, G, N, D)>,
    v: &Tensor<T, (B, G, N, D)>,
    scale: f32,
    table: &Tensor<f32, (H, 2 * R + 1)>,
    o: &Tensor<T, (B, H, M, D)>,
    lse: &Tensor<f32, (B, H, M)>,
    grad_o: &Tensor<T, (B, H, M, D)>,
    grad_l: &mut Tensor<f32, (B, H, M)>,
    grad_table: &mut Tensor<f32, (H, 2 * R + 1)>,
    grad_q: &mut Tensor<T, (B, H, M, D)>,
) {
    let (b, h, i) = program(B, H, tiles(M));
    let t1 = visible_or_zero(load(lse, [b, h, i]));
    let dacc = load(grad_o, [b, h, i, ..]);
    let dl = rowsum(-(dacc * load(o, [b, h, i, ..])));
    store(grad_l, [b, h, i], dl);
    let g = h * G / H;
    let q_i = load(q, [b, h, i, ..]);
    let t2 = pos(i) + N - M;
    let mut dq = zeros((i, D));
    for j in tiles(N) {
        let dp = dot(dacc, load(v, [b, g, j, ..]).t());
        let dp2 = dp + dl;
        let t3 = load(k, [b, g, j, ..]);
        let s = dot(q_i, t3.t()) * scale;
        let t4 = pos(j) - t2 + R;
        let s2 = s + load(table, [h, t4]);
        let p = exp(s2 - t1);
        let ds = dp2 * p;
        add(grad_table, [h, t4], ds);
        dq = dq + dot(ds.to::<T>(), t3);
    }
    store(grad_q, [b, h, i, ..], dq * scale);
}

/// Gradients of `k`, `v`, a program for each tile of columns: of `relative_attention`.
pub fn relative_attention_grad_columns<T: Element, const D: usize>(
    q: &Tensor<T, (B, H, M, D)>,
    k: &Tensor<T, (B, G, N, D)>,
    v: &Tensor<T, (B, G, N, D)>,
    scale: f32,
    table: &Tensor<f32, (H, 2 * R + 1)>,
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
            let s2 = s + load(table, [h, pos(j) - (pos(i) + N - M) + R]);
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

/// What the gradients of columns need of rows: of `decode_attention`.
pub fn decode_attention_grad_rows<T: Element, const D: usize>(
    o: &Tensor<T, (B, G, R, D)>,
    grad_o: &Tensor<T, (B, G, R, D)>,
    grad_l: &mut Tensor<f32, (B, G, R)>,
) {
    let (b, g, i) = program(B, G, tiles(R));
    let dacc = load(grad_o, [b, g, i, ..]);
    let dl = rowsum(-(dacc * load(o, [b, g, i, ..])));
    store(grad_l, [b, g, i], dl);
}

/// Gradients of `q`, `k`, `v`, a program for each tile of columns: of `decode_attention`.
pub fn decode_attention_grad_columns<T: Element, const D: usize>(
    q: &Tensor<T, (B, G, R, D)>,
    k: &Tensor<T, (B, G, N, D)>,
    v: &Tensor<T, (B, G, N, D)>,
    lens: &Tensor<i32, (B)>,
    scale: f32,
    lse: &Tensor<f32, (B, G, R)>,
    grad_l: &Tensor<f32, (B, G, R)>,
    grad_o: &Tensor<T, (B, G, R, D)>,
    grad_q_sum: &mut Tensor<f32, (B, G, R, D)>,
    grad_k: &mut Tensor<T, (B, G, N, D)>,
    grad_v: &mut Tensor<T, (B, G, N, D)>,
) {
    let (b, g, j) = program(B, G, tiles(N));
    let t1 = load(v, [b, g, j, ..]);
    let t2 = load(k, [b, g, j, ..]);
    let t3 = pos(j) < load(lens, [b]);
    let mut dv = zeros((j, D));
    let mut dk = zeros((j, D));
    for i in tiles(R) {
        let t4 = load(grad_o, [b, g, i, ..]);
        let dp = dot(t1, t4.t());
        let q_i = load(q, [b, g, i, ..]);
        let s = dot(t2, q_i.t()) * scale;
        let s2 = mask(s, t3);
        let p = exp(s2 - visible_or_zero(load(lse, [b, g, i])));
        let dp2 = dp + load(grad_l, [b, g, i]);
        let ds = dp2 * p;
        let dq_i = dot(ds.to::<T>().t(), t2);
        add(grad_q_sum, [b, g, i, ..], dq_i);
        dv = dv + dot(p.to::<T>(), t4);
        dk = dk + dot(ds.to::<T>(), q_i);
    }
    store(grad_k, [b, g, j, ..], dk * scale);
    store(grad_v, [b, g, j, ..], dv);
}

/// The gradient of `q`, a program for each tile of rows: of `decode_attention`.
pub fn decode_attention_grad_sums<T: Element, const D: usize>(
    scale: f32,
    grad_q_sum: &Tensor<f32, (B, G, R, D)>,
    grad_q: &mut Tensor<T, (B, G, R, D)>,
) {
    let (b, g, i) = program(B, G, tiles(R));
    let dq_i = load(grad_q_sum, [b, g, i, ..]);
    store(grad_q, [b, g, i, ..], dq_i * scale);
}

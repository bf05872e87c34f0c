/// The gradient of `q`, a program for each tile of rows: of `sigmoid_attention`.
pub fn sigmoid_attention_grad_rows<T: Element, const D: usize>(
    q: &Tensor<T, (B, H, M, D)>,
    k: &Tensor<T, (B, G, N, D)>,
    v: &Tensor<T, (B, G, N, D)>,
    scale: f32,
    offset: f32,
    grad_o: &Tensor<T, (B, H, M, D)>,
    grad_q: &mut Tensor<T, (B, H, M, D)>,
) {
    let (b, h, i) = program(B, H, tiles(M));
    let dacc = load(grad_o, [b, h, i, ..]);
    let g = h * G / H;
    let q_i = load(q, [b, h, i, ..]);
    let t1 = pos(i) + N - M;
    let mut dq = zeros((i, D));
    for j in tiles(N) {
        let dp = dot(dacc, load(v, [b, g, j, ..]).t());
        let t2 = load(k, [b, g, j, ..]);
        let s = dot(q_i, t2.t()) * scale + offset;
        let t3 = 1.0 + exp(-mask(s, t1 >= pos(j)));
        let p = 1.0 / t3;
        let ds = -(-(dp * p) * (1.0 - 1.0 / t3));
        dq = dq + dot(ds.to::<T>(), t2);
    }
    store(grad_q, [b, h, i, ..], dq * scale);
}

/// Gradients of `k`, `v`, a program for each tile of columns: of `sigmoid_attention`.
pub fn sigmoid_attention_grad_columns<T: Element, const D: usize>(
    q: &Tensor<T, (B, H, M, D)>,
    k: &Tensor<T, (B, G, N, D)>,
    v: &Tensor<T, (B, G, N, D)>,
    scale: f32,
    offset: f32,
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
            let s = mask(dot(t2, q_i.t()), t3) * scale + offset;
            let t5 = 1.0 + exp(-mask(s, pos(i) + N - M >= pos(j)));
            let p = 1.0 / t5;
            let ds = -(-(dp * p) * (1.0 - 1.0 / t5));
            dv2 = dv2 + dot(p.to::<T>(), t4);
            dk2 = dk2 + dot(ds.to::<T>(), q_i);
        }
        dv = dv2;
        dk = dk2;
    }
    store(grad_k, [b, g, j, ..], dk * scale);
    store(grad_v, [b, g, j, ..], dv);
}

/// What the gradients of columns need of rows: of `rope_attention`.
pub fn rope_attention_grad_rows<T: Element, const D: usize>(
    o: &Tensor<T, (B, H, M, D)>,
    grad_o: &Tensor<T, (B, H, M, D)>,
    grad_l: &mut Tensor<f32, (B, H, M)>,
) {
    let (b, h, i) = program(B, H, tiles(M));
    let dacc = load(grad_o, [b, h, i, ..]);
    let dl = rowsum(-(dacc * load(o, [b, h, i, ..])));
    store(grad_l, [b, h, i], dl);
}

/// Gradients of `q`, `k`, `v`, a program for each tile of columns: of `rope_attention`.
pub fn rope_attention_grad_columns<T: Element, const D: usize>(
    q: &Tensor<T, (B, H, M, D)>,
    k: &Tensor<T, (B, G, N, D)>,
    v: &Tensor<T, (B, G, N, D)>,
    cos_q: &Tensor<T, (M, C)>,
    sin_q: &Tensor<T, (M, C)>,
    cos_k: &Tensor<T, (N, C)>,
    sin_k: &Tensor<T, (N, C)>,
    scale: f32,
    lse: &Tensor<f32, (B, H, M)>,
    grad_l: &Tensor<f32, (B, H, M)>,
    grad_o: &Tensor<T, (B, H, M, D)>,
    grad_q_rot1_sum: &mut Tensor<f32, (B, H, M, D / 2)>,
    grad_q_rot2_sum: &mut Tensor<f32, (B, H, M, D / 2)>,
    grad_k: &mut Tensor<T, (B, G, N, D)>,
    grad_v: &mut Tensor<T, (B, G, N, D)>,
) {
    let (b, g, j) = program(B, G, tiles(N));
    let t1 = load(v, [b, g, j, ..]);
    let k1 = load(k, [b, g, j, ..D / 2]);
    let cos_j = load(cos_k, [j, ..D / 2]);
    let k2 = load(k, [b, g, j, D / 2..]);
    let sin_j = load(sin_k, [j, ..D / 2]);
    let k_rot1 = (k1 * cos_j - k2 * sin_j).to::<T>();
    let k_rot2 = (k2 * cos_j + k1 * sin_j).to::<T>();
    let mut dv = zeros((j, D));
    let mut dk_rot2 = zeros((j, D / 2));
    let mut dk_rot1 = zeros((j, D / 2));
    for h in 0..H {
        let g2 = h * G / H;
        let t2 = g2 == g;
        let mut dv2 = dv;
        let mut dk_rot22 = dk_rot2;
        let mut dk_rot12 = dk_rot1;
        for i in tiles(M) {
            let t3 = load(grad_o, [b, h, i, ..]);
            let dp = dot(t1, t3.t());
            let q1 = load(q, [b, h, i, ..D / 2]);
            let cos_i = load(cos_q, [i, ..D / 2]);
            let q2 = load(q, [b, h, i, D / 2..]);
            let sin_i = load(sin_q, [i, ..D / 2]);
            let q_rot1 = (q1 * cos_i - q2 * sin_i).to::<T>();
            let q_rot2 = (q2 * cos_i + q1 * sin_i).to::<T>();
            let t4 = mask(dot(k_rot1, q_rot1.t()), t2) + mask(dot(k_rot2, q_rot2.t()), t2);
            let s = t4 * scale;
            let p = exp(s - visible_or_zero(load(lse, [b, h, i])));
            let dp2 = dp + load(grad_l, [b, h, i]);
            let ds = dp2 * p;
            let dq_rot2 = dot(ds.to::<T>().t(), k_rot2);
            let dq_rot1 = dot(ds.to::<T>().t(), k_rot1);
            add(grad_q_rot1_sum, [b, h, i, ..], dq_rot1);
            add(grad_q_rot2_sum, [b, h, i, ..], dq_rot2);
            dv2 = dv2 + dot(p.to::<T>(), t3);
            dk_rot22 = dk_rot22 + dot(ds.to::<T>(), q_rot2);
            dk_rot12 = dk_rot12 + dot(ds.to::<T>(), q_rot1);
        }
        dv = dv2;
        dk_rot2 = dk_rot22;
        dk_rot1 = dk_rot12;
    }
    let dk1 = dk_rot2 * sin_j;
    let dk2 = dk_rot2 * cos_j;
    let dk22 = dk2 + -dk_rot1 * sin_j;
    let dk12 = dk1 + dk_rot1 * cos_j;
    store(grad_k, [b, g, j, ..D / 2], dk12 * scale);
    store(grad_k, [b, g, j, D / 2..], dk22 * scale);
    store(grad_v, [b, g, j, ..], dv);
}

/// The gradient of `q`, a program for each tile of rows: of `rope_attention`.
pub fn rope_attention_grad_sums<T: Element, const D: usize>(
    cos_q: &Tensor<T, (M, C)>,
    sin_q: &Tensor<T, (M, C)>,
    scale: f32,
    grad_q_rot1_sum: &Tensor<f32, (B, H, M, D / 2)>,
    grad_q_rot2_sum: &Tensor<f32, (B, H, M, D / 2)>,
    grad_q: &mut Tensor<T, (B, H, M, D)>,
) {
    let (b, h, i) = program(B, H, tiles(M));
    let dq_rot1 = load(grad_q_rot1_sum, [b, h, i, ..]);
    let dq_rot2 = load(grad_q_rot2_sum, [b, h, i, ..]);
    let sin_i = load(sin_q, [i, ..D / 2]);
    let dq1 = dq_rot2 * sin_i;
    let cos_i = load(cos_q, [i, ..D / 2]);
    let dq2 = dq_rot2 * cos_i;
    let dq22 = dq2 + -dq_rot1 * sin_i;
    let dq12 = dq1 + dq_rot1 * cos_i;
    store(grad_q, [b, h, i, ..D / 2], dq12 * scale);
    store(grad_q, [b, h, i, D / 2..], dq22 * scale);
}

/// What the gradients of columns need of rows: of `dropout_attention`.
pub fn dropout_attention_grad_rows<T: Element, const D: usize>(
    o: &Tensor<T, (B, H, M, D)>,
    grad_o: &Tensor<T, (B, H, M, D)>,
    grad_l: &mut Tensor<f32, (B, H, M)>,
) {
    let (b, h, i) = program(B, H, tiles(M));
    let dacc = load(grad_o, [b, h, i, ..]);
    let dl = rowsum(-(dacc * load(o, [b, h, i, ..])));
    store(grad_l, [b, h, i], dl);
}

/// Gradients of `q`, `k`, `v`, a program for each tile of columns: of `dropout_attention`.
pub fn dropout_attention_grad_columns<T: Element, const D: usize>(
    q: &Tensor<T, (B, H, M, D)>,
    k: &Tensor<T, (B, G, N, D)>,
    v: &Tensor<T, (B, G, N, D)>,
    scale: f32,
    dropped: f32,
    seed: i32,
    offset: i32,
    lse: &Tensor<f32, (B, H, M)>,
    grad_l: &Tensor<f32, (B, H, M)>,
    grad_o: &Tensor<T, (B, H, M, D)>,
    grad_q_sum: &mut Tensor<f32, (B, H, M, D)>,
    grad_k: &mut Tensor<T, (B, G, N, D)>,
    grad_v: &mut Tensor<T, (B, G, N, D)>,
) {
    let (b, g, j) = program(B, G, tiles(N));
    let t1 = load(v, [b, g, j, ..]);
    let t2 = load(k, [b, g, j, ..]);
    let before = pos(j) / 8 % 2 == 0;
    let t3 = b * H;
    let t4 = pos(j) / 16 * 4 + pos(j) % 8 / 2;
    let d = t4 * -766435501;
    let c = mul_hi(t4, -766435501) ^ offset ^ 0;
    let b2 = c * -845247145;
    let t5 = seed + 1013904242;
    let t6 = mul_hi(c, -845247145);
    let t7 = seed - 1640531527;
    let t8 = seed + 2027808484;
    let t9 = seed - 626627285;
    let t10 = seed - 1253254570;
    let t11 = seed + 387276957;
    let t12 = pos(j) % 2 * 16;
    let left_out = (dropped * 65536.0 + 0.5).to::<i32>();
    let weight = 65536.0 / (65536.0 - left_out.to::<f32>());
    let mut dv = zeros((j, D));
    let mut dk = zeros((j, D));
    for h in 0..H {
        let g2 = h * G / H;
        let t13 = g2 == g;
        let t14 = mul_hi((t3 + h), -845247145);
        let b3 = (t3 + h) * -845247145;
        let a = t6 ^ b3 ^ t7;
        let d2 = a * -766435501;
        let t15 = mul_hi(a, -766435501);
        let mut dv2 = dv;
        let mut dk2 = dk;
        for i in tiles(M) {
            let t16 = load(grad_o, [b, h, i, ..]);
            let dp = dot(t1, t16.t());
            let q_i = load(q, [b, h, i, ..]);
            let s = mask(dot(t2, q_i.t()), t13) * scale;
            let s2 = mask(s, pos(i) + N - M >= pos(j));
            let p = exp(s2 - visible_or_zero(load(lse, [b, h, i])));
            let above = pos(i) / 8 % 2 == 0;
            let a2 = t14 ^ pos(i) / 16 * 8 + pos(i) % 8 ^ seed;
            let c2 = mul_hi(a2, -766435501) ^ d ^ -1150833019;
            let a3 = mul_hi(c2, -845247145) ^ b2 ^ t5;
            let c3 = mul_hi(a3, -766435501) ^ d2 ^ 842468239;
            let d3 = a2 * -766435501;
            let c4 = t15 ^ d3 ^ 1993301258;
            let b4 = c4 * -845247145;
            let a4 = mul_hi(c3, -845247145) ^ b4 ^ t8;
            let b5 = c2 * -845247145;
            let a5 = mul_hi(c4, -845247145) ^ b5 ^ t9;
            let d4 = a5 * -766435501;
            let c5 = mul_hi(a4, -766435501) ^ d4 ^ -1459197799;
            let d5 = a3 * -766435501;
            let c6 = mul_hi(a5, -766435501) ^ d5 ^ -308364780;
            let b6 = c6 * -845247145;
            let x = mul_hi(c5, -845247145) ^ b6 ^ t10;
            let y = c5 * -845247145;
            let b7 = c3 * -845247145;
            let a6 = mul_hi(c6, -845247145) ^ b7 ^ t11;
            let d6 = a4 * -766435501;
            let z = mul_hi(a6, -766435501) ^ d6 ^ 1684936478;
            let w = a6 * -766435501;
            let word = select(above, select(before, x, y), select(before, z, w));
            let kept = select(word >> t12 & 65535 < left_out, 0.0, weight);
            let p2 = p * kept;
            let dp2 = dp * kept;
            let dp3 = dp2 + load(grad_l, [b, h, i]);
            let ds = dp3 * p;
            let dq_i = dot(ds.to::<T>().t(), t2);
            add(grad_q_sum, [b, h, i, ..], dq_i);
            dv2 = dv2 + dot(p2.to::<T>(), t16);
            dk2 = dk2 + dot(ds.to::<T>(), q_i);
        }
        dv = dv2;
        dk = dk2;
    }
    store(grad_k, [b, g, j, ..], dk * scale);
    store(grad_v, [b, g, j, ..], dv);
}

/// The gradient of `q`, a program for each tile of rows: of `dropout_attention`.
pub fn dropout_attention_grad_sums<T: Element, const D: usize>(
    scale: f32,
    grad_q_sum: &Tensor<f32, (B, H, M, D)>,
    grad_q: &mut Tensor<T, (B, H, M, D)>,
) {
    let (b, h, i) = program(B, H, tiles(M));
    let dq_i = load(grad_q_sum, [b, h, i, ..]);
    store(grad_q, [b, h, i, ..], dq_i * scale);
}

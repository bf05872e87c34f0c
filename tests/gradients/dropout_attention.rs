/// The gradient of `q`, a program for each tile of rows: of `dropout_attention`.
pub fn dropout_attention_grad_rows<T: Element, const D: usize>(
    q: &Tensor<T, (B, H, M, D)>,
    k: &Tensor<T, (B, G, N, D)>,
    v: &Tensor<T, (B, G, N, D)>,
    scale: f32,
    dropped: f32,
    seed: i32,
    offset: i32,
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
    let above = pos(i) / 8 % 2 == 0;
    let t2 = mul_hi((b * H + h), -845247145) ^ pos(i) / 16 * 8 + pos(i) % 8;
    let a = t2 ^ seed;
    let t3 = mul_hi(a, -766435501);
    let t4 = seed + 1013904242;
    let b2 = (b * H + h) * -845247145;
    let t5 = seed - 1640531527;
    let d = a * -766435501;
    let t6 = seed + 2027808484;
    let t7 = seed - 626627285;
    let t8 = seed - 1253254570;
    let t9 = seed + 387276957;
    let left_out = (dropped * 65536.0 + 0.5).to::<i32>();
    let weight = 65536.0 / (65536.0 - left_out.to::<f32>());
    let q_i = load(q, [b, h, i, ..]);
    let t10 = pos(i) + N - M;
    let mut dq = zeros((i, D));
    for j in tiles(N) {
        let dp = dot(dacc, load(v, [b, g, j, ..]).t());
        let before = pos(j) / 8 % 2 == 0;
        let t11 = pos(j) / 16 * 4 + pos(j) % 8 / 2;
        let d2 = t11 * -766435501;
        let c = t3 ^ d2 ^ -1150833019;
        let c2 = mul_hi(t11, -766435501) ^ offset ^ 0;
        let b3 = c2 * -845247145;
        let a2 = mul_hi(c, -845247145) ^ b3 ^ t4;
        let a3 = mul_hi(c2, -845247145) ^ b2 ^ t5;
        let d3 = a3 * -766435501;
        let c3 = mul_hi(a2, -766435501) ^ d3 ^ 842468239;
        let c4 = mul_hi(a3, -766435501) ^ d ^ 1993301258;
        let b4 = c4 * -845247145;
        let a4 = mul_hi(c3, -845247145) ^ b4 ^ t6;
        let b5 = c * -845247145;
        let a5 = mul_hi(c4, -845247145) ^ b5 ^ t7;
        let d4 = a5 * -766435501;
        let c5 = mul_hi(a4, -766435501) ^ d4 ^ -1459197799;
        let d5 = a2 * -766435501;
        let c6 = mul_hi(a5, -766435501) ^ d5 ^ -308364780;
        let b6 = c6 * -845247145;
        let x = mul_hi(c5, -845247145) ^ b6 ^ t8;
        let y = c5 * -845247145;
        let b7 = c3 * -845247145;
        let a6 = mul_hi(c6, -845247145) ^ b7 ^ t9;
        let d6 = a4 * -766435501;
        let z = mul_hi(a6, -766435501) ^ d6 ^ 1684936478;
        let w = a6 * -766435501;
        let word = select(above, select(before, x, y), select(before, z, w));
        let kept = select(word >> pos(j) % 2 * 16 & 65535 < left_out, 0.0, weight);
        let dp2 = dp * kept;
        let dp3 = dp2 + dl;
        let t12 = load(k, [b, g, j, ..]);
        let s = dot(q_i, t12.t()) * scale;
        let s2 = mask(s, t10 >= pos(j));
        let p = exp(s2 - t1);
        let ds = dp3 * p;
        dq = dq + dot(ds.to::<T>(), t12);
    }
    store(grad_q, [b, h, i, ..], dq * scale);
}

/// Gradients of `k`, `v`, a program for each tile of columns: of `dropout_attention`.
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
            dv2 = dv2 + dot(p2.to::<T>(), t16);
            dk2 = dk2 + dot(ds.to::<T>(), q_i);
        }
        dv = dv2;
        dk = dk2;
    }
    store(grad_k, [b, g, j, ..], dk * scale);
    store(grad_v, [b, g, j, ..], dv);
}

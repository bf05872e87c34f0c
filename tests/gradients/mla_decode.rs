/// The gradient of `q`, a program for each tile of rows: of `mla_decode`.
pub fn mla_decode_grad_rows<T: Element, const C: usize, const R: usize>(
    q: &Tensor<T, (B, H, C + R)>,
    kv: &Tensor<T, (B, N, C + R)>,
    lens: &Tensor<i32, (B)>,
    scale: f32,
    o: &Tensor<T, (B, H, C)>,
    lse: &Tensor<f32, (B, H)>,
    grad_o: &Tensor<T, (B, H, C)>,
    grad_l: &mut Tensor<f32, (B, H)>,
    grad_q: &mut Tensor<T, (B, H, C + R)>,
) {
    let (b, i) = program(B, tiles(H));
    let t1 = visible_or_zero(load(lse, [b, i]));
    let dacc = load(grad_o, [b, i, ..]);
    let dl = rowsum(-(dacc * load(o, [b, i, ..])));
    store(grad_l, [b, i], dl);
    let t2 = load(q, [b, i, ..C]);
    let t3 = load(q, [b, i, C..]);
    let len = load(lens, [b]);
    let mut dq = zeros((i, R));
    let mut dq2 = zeros((i, C));
    for j in tiles(N) {
        let t4 = load(kv, [b, j, ..C]);
        let dp = dot(dacc, t4.t());
        let dp2 = dp + dl;
        let t5 = load(kv, [b, j, C..]);
        let s = (dot(t2, t4.t()) + dot(t3, t5.t())) * scale;
        let s2 = mask(s, pos(j) < len);
        let p = exp(s2 - t1);
        let ds = dp2 * p;
        dq = dq + dot(ds.to::<T>(), t5);
        dq2 = dq2 + dot(ds.to::<T>(), t4);
    }
    store(grad_q, [b, i, ..C], dq2 * scale);
    store(grad_q, [b, i, C..], dq * scale);
}

/// The gradient of `kv`, a program for each tile of columns: of `mla_decode`.
pub fn mla_decode_grad_columns<T: Element, const C: usize, const R: usize>(
    q: &Tensor<T, (B, H, C + R)>,
    kv: &Tensor<T, (B, N, C + R)>,
    lens: &Tensor<i32, (B)>,
    scale: f32,
    lse: &Tensor<f32, (B, H)>,
    grad_l: &Tensor<f32, (B, H)>,
    grad_o: &Tensor<T, (B, H, C)>,
    grad_kv: &mut Tensor<T, (B, N, C + R)>,
) {
    let (b, j) = program(B, tiles(N));
    let t1 = load(kv, [b, j, ..C]);
    let t2 = load(kv, [b, j, C..]);
    let len = load(lens, [b]);
    let t3 = pos(j) < len;
    let mut dkv = zeros((j, C));
    let mut dkv2 = zeros((j, R));
    for i in tiles(H) {
        let t4 = load(grad_o, [b, i, ..]);
        let dp = dot(t1, t4.t());
        let t5 = load(q, [b, i, ..C]);
        let t6 = load(q, [b, i, C..]);
        let s = (dot(t1, t5.t()) + dot(t2, t6.t())) * scale;
        let s2 = mask(s, t3);
        let p = exp(s2 - visible_or_zero(load(lse, [b, i])));
        let dp2 = dp + load(grad_l, [b, i]);
        let ds = dp2 * p;
        let t7 = dkv + dot(p.to::<T>(), t4) + dot((ds * scale).to::<T>(), t5);
        dkv = t7;
        dkv2 = dkv2 + dot(ds.to::<T>(), t6);
    }
    store(grad_kv, [b, j, ..C], dkv);
    store(grad_kv, [b, j, C..], dkv2 * scale);
}

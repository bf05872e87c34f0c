/// Causal attention with rotary position embedding whose pairs lie side by side, as GPT-J has them.
pub fn rope_pairs<T: Element, const E: usize>(
    q: &Tensor<T, (B, H, M, E, 2)>,
    k: &Tensor<T, (B, G, N, E, 2)>,
    v: &Tensor<T, (B, G, N, 2 * E)>,
    cos_q: &Tensor<f32, (M, E)>,
    sin_q: &Tensor<f32, (M, E)>,
    cos_k: &Tensor<f32, (N, E)>,
    sin_k: &Tensor<f32, (N, E)>,
    scale: f32,
    o: &mut Tensor<T, (B, H, M, 2 * E)>,
) {
    let (b, h, i) = program(B, H, tiles(M));
    let g = h * G / H;
    let qx = load(q, [b, h, i, .., 0]);
    let qy = load(q, [b, h, i, .., 1]);
    let c = load(cos_q, [i, ..]);
    let s = load(sin_q, [i, ..]);
    let q1 = (qx * c - qy * s).to::<T>();
    let q2 = (qx * s + qy * c).to::<T>();
    let mut m = full(i, -INF);
    let mut l = zeros(i);
    let mut acc = zeros((i, 2 * E));
    for j in tiles(N) {
        let kx = load(k, [b, g, j, .., 0]);
        let ky = load(k, [b, g, j, .., 1]);
        let cj = load(cos_k, [j, ..]);
        let sj = load(sin_k, [j, ..]);
        let k1 = (kx * cj - ky * sj).to::<T>();
        let k2 = (kx * sj + ky * cj).to::<T>();
        let s = (dot(q1, k1.t()) + dot(q2, k2.t())) * scale;
        let s = mask(s, pos(i) + N - M >= pos(j));
        let m_new = max(m, rowmax(s));
        let m_ref = visible_or_zero(m_new);
        let alpha = exp(m - m_ref);
        let p = exp(s - m_ref);
        l = l * alpha + rowsum(p);
        acc = acc * alpha + dot(p.to::<T>(), load(v, [b, g, j, ..]));
        m = m_new;
    }
    store(o, [b, h, i, ..], div_or_zero(acc, l));
}

// The update of the published statements S6, S7 and S10 on tiles: the accumulator is divided in
// every step.

/// S10 as published: the accumulator so far is not rescaled to the new maximum.
pub fn update_as_published<T: Element, const D: usize>(
    q: &Tensor<T, (B, H, M, D)>,
    k: &Tensor<T, (B, G, N, D)>,
    v: &Tensor<T, (B, G, N, D)>,
    scale: f32,
    o: &mut Tensor<T, (B, H, M, D)>,
    lse: &mut Tensor<f32, (B, H, M)>,
) {
    let (b, h, i) = program(B, H, tiles(M));
    let g = h * G / H;
    let q_i = load(q, [b, h, i, ..]);
    let mut m = full(i, -INF);
    let mut l = zeros(i);
    let mut o_i = zeros((i, D));
    for j in tiles(N) {
        let s = dot(q_i, load(k, [b, g, j, ..]).t()) * scale;
        let m_new = max(m, rowmax(s));
        let m_ref = visible_or_zero(m_new);
        let p = exp(s - m_ref);
        let l_new = l * exp(m - m_ref) + rowsum(p);
        o_i = div_or_zero(o_i * l + dot(p.to::<T>(), load(v, [b, g, j, ..])), l_new);
        l = l_new;
        m = m_new;
    }
    store(o, [b, h, i, ..], o_i);
    store(lse, [b, h, i], m + ln(l));
}

/// The same with the factor `exp(m - m_new)` that S7 has.
pub fn update_with_factor<T: Element, const D: usize>(
    q: &Tensor<T, (B, H, M, D)>,
    k: &Tensor<T, (B, G, N, D)>,
    v: &Tensor<T, (B, G, N, D)>,
    scale: f32,
    o: &mut Tensor<T, (B, H, M, D)>,
    lse: &mut Tensor<f32, (B, H, M)>,
) {
    let (b, h, i) = program(B, H, tiles(M));
    let g = h * G / H;
    let q_i = load(q, [b, h, i, ..]);
    let mut m = full(i, -INF);
    let mut l = zeros(i);
    let mut o_i = zeros((i, D));
    for j in tiles(N) {
        let s = dot(q_i, load(k, [b, g, j, ..]).t()) * scale;
        let m_new = max(m, rowmax(s));
        let m_ref = visible_or_zero(m_new);
        let alpha = exp(m - m_ref);
        let p = exp(s - m_ref);
        let l_new = l * alpha + rowsum(p);
        o_i = div_or_zero(o_i * (l * alpha) + dot(p.to::<T>(), load(v, [b, g, j, ..])), l_new);
        l = l_new;
        m = m_new;
    }
    store(o, [b, h, i, ..], o_i);
    store(lse, [b, h, i], m + ln(l));
}

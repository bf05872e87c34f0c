// Faults that were made in published kernels, planted here: `flashtile verify` must find them.

/// The correction factor is computed before the maximum is updated: it is that of the step before.
pub fn factor_of_the_step_before<T: Element, const D: usize>(
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
    let mut m_before = full(i, -INF);
    let mut m = full(i, -INF);
    let mut l = zeros(i);
    let mut acc = zeros((i, D));
    for j in tiles(N) {
        let s = dot(q_i, load(k, [b, g, j, ..]).t()) * scale;
        let alpha = exp(m_before - visible_or_zero(m));
        let m_new = max(m, rowmax(s));
        let p = exp(s - visible_or_zero(m_new));
        l = l * alpha + rowsum(p);
        acc = acc * alpha + dot(p.to::<T>(), load(v, [b, g, j, ..]));
        m_before = m;
        m = m_new;
    }
    store(o, [b, h, i, ..], div_or_zero(acc, l));
    store(lse, [b, h, i], m + ln(l));
}

/// The mask is applied after the maximum: scores that are hidden take part in it.
pub fn mask_after_maximum<T: Element, const D: usize>(
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
    let mut acc = zeros((i, D));
    for j in tiles(N) {
        let s = dot(q_i, load(k, [b, g, j, ..]).t()) * scale;
        let m_new = max(m, rowmax(s));
        let s = mask(s, pos(i) + N - M >= pos(j));
        let m_ref = visible_or_zero(m_new);
        let alpha = exp(m - m_ref);
        let p = exp(s - m_ref);
        l = l * alpha + rowsum(p);
        acc = acc * alpha + dot(p.to::<T>(), load(v, [b, g, j, ..]));
        m = m_new;
    }
    store(o, [b, h, i, ..], div_or_zero(acc, l));
    store(lse, [b, h, i], m + ln(l));
}

/// The same text without either.
pub fn neither_fault<T: Element, const D: usize>(
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
    let mut acc = zeros((i, D));
    for j in tiles(N) {
        let s = dot(q_i, load(k, [b, g, j, ..]).t()) * scale;
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
    store(lse, [b, h, i], m + ln(l));
}

//! Kernel text of attention over pages of keys, by a table: two loops that are one walk. Tests say
//! what it starts from, what a query sees, and what is done once a page.

/// A row starts from nothing seen.
pub const NOTHING_SEEN: &str = "let mut m = full(i, -INF);\n let mut l = zeros(i);";

/// A row starts from its attention sink.
pub const SINKS: &str = "let mut m = load(sinks, [i]);\n let mut l = full(i, 1.0);";

/// `H` pages of `K`, of `N` keys each. `start` defines `m` and `l`; `seen` is the condition of a mask
/// over the page `c` and its key `j`, of `len` keys; `once` stands behind the loop over a page, and may
/// change `pages`, which begins at 0.
pub fn pages(start: &str, seen: &str, once: &str) -> String {
    format!(
        "pub fn pages<T: Element, const D: usize>(
    q: &Tensor<T, (M, D)>, k: &Tensor<T, (K, N, D)>, v: &Tensor<T, (K, N, D)>, table: &Tensor<i32, (H)>,
    sinks: &Tensor<f32, (M)>, len: i32, o: &mut Tensor<T, (M, D)>, count: &mut Tensor<f32, (M)>,
) {{
    let i = program(tiles(M));
    let q_i = load(q, [i, ..]);
    {start}
    let mut acc = zeros((i, D));
    let mut pages = zeros(i);
    for c in 0..H {{
        let page = load(table, [c]);
        for j in tiles(N) {{
            let s = dot(q_i, load(k, [page, j, ..]).t());
            let s = mask(s, {seen});
            let m_new = max(m, rowmax(s));
            let m_ref = visible_or_zero(m_new);
            let alpha = exp(m - m_ref);
            let p = exp(s - m_ref);
            l = l * alpha + rowsum(p);
            acc = acc * alpha + dot(p.to::<T>(), load(v, [page, j, ..]));
            m = m_new;
        }}
        {once}
    }}
    store(o, [i, ..], div_or_zero(acc, l));
    store(count, [i], pages + load(sinks, [i]));
}}"
    )
}

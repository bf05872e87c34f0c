"""Texts of attention kernels: what their scores are goes into a frame that they have in common."""

from __future__ import annotations

from collections.abc import Sequence

PHILOX = """\
/// One round of Philox-4x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3").
fn philox_round(a: Tile, b: Tile, c: Tile, d: Tile, key: i32, key_2: i32) -> (Tile, Tile, Tile, Tile) {
    let (by_a, by_c) = (-0x2DAEE0AD, -0x326172A9);
    (mul_hi(c, by_c) ^ b ^ key, c * by_c, mul_hi(a, by_a) ^ d ^ key_2, a * by_a)
}

/// Philox-4x32-7 of the counter `(a, b, c, d)` and the key `(seed, 0)`.
fn philox(a: Tile, b: Tile, c: Tile, d: Tile, seed: i32) -> (Tile, Tile, Tile, Tile) {
    let (a, b, c, d) = philox_round(a, b, c, d, seed, 0);
    let (a, b, c, d) = philox_round(a, b, c, d, seed - 0x61C88647, -0x4498517B);
    let (a, b, c, d) = philox_round(a, b, c, d, seed + 0x3C6EF372, 0x76CF5D0A);
    let (a, b, c, d) = philox_round(a, b, c, d, seed - 0x255992D5, 0x32370B8F);
    let (a, b, c, d) = philox_round(a, b, c, d, seed + 0x78DDE6E4, -0x126145EC);
    let (a, b, c, d) = philox_round(a, b, c, d, seed + 0x1715609D, -0x56F99767);
    philox_round(a, b, c, d, seed - 0x4AB325AA, 0x646E171E)
}

/// A number from 0 to 65535 for a query and a key: half a word. The words of a counter are those of eight
/// pairs, 8 queries and 1 or 8 keys apart: a thread of a GPU that has one of them has others.
fn random(i: Tile, j: Tile, head: Tile, seed: i32, offset: i32) -> Tile {
    let (x, y, z, w) = philox(j / 16 * 4 + j % 8 / 2, i / 16 * 8 + i % 8, head, offset, seed);
    let (above, before) = (i / 8 % 2 == 0, j / 8 % 2 == 0);
    let word = select(above, select(before, x, y), select(before, z, w));
    word >> j % 2 * 16 & 0xFFFF
}

"""

# Weights that are left out. The sum of a row counts all of them, as the softmax comes first.
DROPOUT = (
    "let left_out = (dropped * 65536.0 + 0.5).to::<i32>();",
    "let number = random(pos(i), pos(j), b * H + h, load(seed, [1]), load(seed, [0]));",
    "let weight = 65536.0 / (65536.0 - left_out.to::<f32>());",
    "let p = p * select(number < left_out, 0.0, weight);",
)


def attention(
    name: str,
    doc: str,
    *,
    generics: Sequence[str] = (),
    params: Sequence[str] = (),
    before: Sequence[str] = (),
    scores: Sequence[str] = (),
    dropout: bool = False,
    lse: bool = False,
    grouped: bool = False,
) -> str:
    """The text of a kernel of attention: `scores` are statements that make `s` of `s`, in the loop over keys.

    With `lse` the kernel stores the logarithms of the sums too. Gradients add what they read of the forward kernel. Heads share
    keys if it is `grouped`; if not, gradients of keys need no loop over heads.
    """
    name, head, group = (f"{name}_gqa", "G", "g") if grouped else (name, "H", "h")
    params = [*params, *(["dropped: f32", "seed: &Tensor<i32, (2)>"] if dropout else [])]
    generics = ", ".join(["T: Element", *generics, "const D: usize", "const E: usize"])
    lines = [
        f"/// {doc}",
        f"pub fn {name}<{generics}>(",
        "    q: &Tensor<T, (B, H, M, D)>,",
        f"    k: &Tensor<T, (B, {head}, N, D)>,",
        f"    v: &Tensor<T, (B, {head}, N, E)>,",
        "    scale: f32,",
        *(f"    {param}," for param in params),
        "    o: &mut Tensor<T, (B, H, M, E)>,",
        *(["    lse: &mut Tensor<f32, (B, H, M)>,"] if lse else []),
        ") {",
        "    let (b, h, i) = program(B, H, tiles(M));",
        *(["    let g = h * G / H;"] if grouped else []),
        "    let q_i = load(q, [b, h, i, ..]);",
        *(f"    {line}" for line in before),
        "    let mut m = full(i, -INF);",
        "    let mut l = zeros(i);",
        "    let mut acc = zeros((i, E));",
        "    for j in tiles(N) {",
        f"        let s = dot(q_i, load(k, [b, {group}, j, ..]).t()) * scale;",
        *(f"        {line}" for line in scores),
        "        let m_new = max(m, rowmax(s));",
        "        let m_ref = visible_or_zero(m_new);",
        "        let alpha = exp(m - m_ref);",
        "        let p = exp(s - m_ref);",
        "        l = l * alpha + rowsum(p);",
        *(f"        {line}" for line in (DROPOUT if dropout else ())),
        f"        acc = acc * alpha + dot(p.to::<T>(), load(v, [b, {group}, j, ..]));",
        "        m = m_new;",
        "    }",
        "    store(o, [b, h, i, ..], div_or_zero(acc, l));",
        *(["    store(lse, [b, h, i], m + ln(l));"] if lse else []),
        "}",
        "",
    ]
    return (PHILOX if dropout else "") + "\n".join(lines)

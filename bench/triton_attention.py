"""Attention in Triton, tuned over a few tiles: what a careful user of Triton gets."""

import math

import triton
import triton.language as tl


@triton.jit
def walk(acc, l, m, q, k_rows, v_rows, stride_k, stride_v, lo, hi, rows, length, scale, MASKED: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr):
    dims = tl.arange(0, D)
    for start in range(lo, hi, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        k = tl.load(k_rows + columns[:, None] * stride_k + dims[None], mask=columns[:, None] < length, other=0.0)
        s = tl.dot(q, k.T) * scale
        if MASKED:
            s = tl.where((rows[:, None] >= columns[None]) & (columns[None] < length), s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        p = tl.exp2(s - m_new[:, None])
        alpha = tl.exp2(m - m_new)
        l = l * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None]
        v = tl.load(v_rows + columns[:, None] * stride_v + dims[None], mask=columns[:, None] < length, other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc)
        m = m_new
    return acc, l, m


@triton.autotune(
    [
        triton.Config({"BLOCK_M": m, "BLOCK_N": n}, num_warps=w, num_stages=s)
        for m, n, w, s in ((64, 64, 4, 3), (128, 64, 4, 3), (128, 64, 8, 3), (128, 128, 8, 2), (128, 128, 8, 3))
    ],
    key=["length", "D", "CAUSAL"],
)
@triton.jit
def kernel(q, k, v, o, stride_batch, stride_head, stride_row, heads, length, scale, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr):
    tile = tl.program_id(0)
    if CAUSAL:
        tile = tl.num_programs(0) - 1 - tile
    base = (tl.program_id(1) // heads).to(tl.int64) * stride_batch + (tl.program_id(1) % heads).to(tl.int64) * stride_head
    rows, dims = tile * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, D)
    inside = rows[:, None] < length
    q_tile = tl.load(q + base + rows[:, None] * stride_row + dims[None], mask=inside, other=0.0)
    acc = tl.zeros((BLOCK_M, D), tl.float32)
    l, m = tl.zeros((BLOCK_M,), tl.float32), tl.full((BLOCK_M,), float("-inf"), tl.float32)
    whole = length // BLOCK_N * BLOCK_N
    end = length
    if CAUSAL:
        whole = tl.minimum(whole, tile * BLOCK_M // BLOCK_N * BLOCK_N)
        end = tl.minimum(length, (tile + 1) * BLOCK_M)
    k_rows, v_rows = k + base, v + base
    acc, l, m = walk(acc, l, m, q_tile, k_rows, v_rows, stride_row, stride_row, 0, whole, rows, length, scale, False, BLOCK_N, D)
    if CAUSAL:
        acc, l, m = walk(acc, l, m, q_tile, k_rows, v_rows, stride_row, stride_row, whole, end, rows, length, scale, True, BLOCK_N, D)
    elif whole < length:
        last = tl.full((BLOCK_M,), 1 << 30, tl.int32)
        acc, l, m = walk(acc, l, m, q_tile, k_rows, v_rows, stride_row, stride_row, whole, end, last, length, scale, True, BLOCK_N, D)
    tl.store(o + base + rows[:, None] * stride_row + dims[None], (acc / l[:, None]).to(o.dtype.element_ty), mask=inside)


def attention(torch, q, k, v, causal):
    """A function that runs once."""
    q, k, v = (x.contiguous() for x in (q, k, v))
    o = torch.empty_like(q)
    batch, heads, length, head_dim = q.shape
    scale = math.log2(math.e) / math.sqrt(head_dim)

    def run():
        def blocks(meta):
            return (triton.cdiv(length, meta["BLOCK_M"]), batch * heads)

        kernel[blocks](q, k, v, o, q.stride(0), q.stride(1), q.stride(2), heads, length, scale, CAUSAL=causal, D=head_dim)

    return run

"""Variants of attention: kernel, further arguments, visible scores, the formula of the check, and what FlexAttention is told.

Each is a built-in kernel of `flashtile list`. Queries and keys are equally many, and `i` and `j` are their positions.
"""

import dataclasses
import functools
import math
import random
from typing import Callable

WINDOW = 1024
CAP = 30.0
DOCUMENTS = 12
REACH = 512  # of a table of relative positions, either way
BLOCK = 128  # positions of a block that is listed
LISTED = 0.25  # share of the blocks


def no_tensors(torch, cell):
    return {}


def no_scalars(cell):
    return {}


def plain(scores, i, j, data, batch, head):
    return scores


@dataclasses.dataclass(frozen=True)
class Variant:
    """`seen(i, j, ids)` is true where query i sees key j; `ids` are the documents of a batch."""

    kernel: str
    seen: Callable
    visible: Callable  # of a cell: pairs of a head that are seen, in all batches
    scalars: Callable = no_scalars
    tensors: Callable = no_tensors
    score: Callable = plain  # float64 scores of some rows
    data: tuple = ()  # what `flashtile tune` is told of its inputs
    sinks: bool = False
    further_sizes: Callable = no_scalars  # sizes and constants beside those of every cell


def causal(i, j, ids):
    return i >= j


def window(i, j, ids):
    return (i >= j) & (i - j < WINDOW)


def prefix_of(cell):
    return cell.length // 4


def lengths(cell, batch):
    """Lengths of the documents of a batch."""
    drawn = random.Random(batch)
    ends = sorted(drawn.sample(range(1, cell.length), DOCUMENTS - 1))
    return [b - a for a, b in zip([0, *ends], [*ends, cell.length])]


def triangle(n):
    return n * (n + 1) // 2


def slopes(torch, cell):
    heads = torch.arange(1, cell.heads + 1, device="cuda", dtype=torch.float32)
    return {"slopes": torch.exp2(-8.0 * heads / cell.heads)}


def sinks(torch, cell):
    return {"sinks": torch.randn(cell.heads, device="cuda")}


def bias(torch, cell):
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[cell.dtype]
    return {"bias": torch.randn(cell.heads, cell.length, cell.length, device="cuda", dtype=dtype)}


def document(torch, cell):
    ids = [[n for n, length in enumerate(lengths(cell, b)) for _ in range(length)] for b in range(cell.batch)]
    return {"document": torch.tensor(ids, device="cuda", dtype=torch.int32)}


def table(torch, cell):
    return {"table": torch.randn(cell.heads, 2 * REACH + 1, device="cuda")}


@functools.cache
def is_listed(length):
    """Which blocks of keys a block of queries sees, in every head: its own, and others at random."""
    count, drawn = -(-length // BLOCK), random.Random(length)
    return [[r == c or drawn.random() < LISTED for c in range(count)] for r in range(count)]


def blocks(torch, cell):
    listed = torch.tensor(is_listed(cell.length), device="cuda")
    return {"blocks": listed.expand(cell.heads, *listed.shape).contiguous()}


def in_listed_blocks(cell):
    def end(n):
        return min((n + 1) * BLOCK, cell.length) - n * BLOCK

    return sum(end(r) * end(c) for r, row in enumerate(is_listed(cell.length)) for c, kept in enumerate(row) if kept)


def everywhere(count):
    """Pairs of one sequence, in all batches."""
    return lambda cell: cell.batch * count(cell)


VARIANTS = {
    "window": Variant(
        "sliding_window",
        window,
        everywhere(lambda cell: triangle(min(WINDOW, cell.length)) + max(cell.length - WINDOW, 0) * WINDOW),
        scalars=lambda cell: {"window": WINDOW},
    ),
    "softcap": Variant(
        "softcap_attention",
        causal,
        everywhere(lambda cell: triangle(cell.length)),
        scalars=lambda cell: {"cap": CAP},
        score=lambda scores, i, j, data, batch, head: CAP * (scores / CAP).tanh(),
    ),
    "alibi": Variant(
        "alibi_attention",
        causal,
        everywhere(lambda cell: triangle(cell.length)),
        tensors=slopes,
        # What a tuner draws by itself is so small that distances change scores by 1.
        data=("slopes:range=0.0039..0.7072",),
        score=lambda scores, i, j, data, batch, head: scores - data["slopes"][head].double() * (i - j),
    ),
    "prefix": Variant(
        "prefix_attention",
        None,
        everywhere(lambda cell: triangle(cell.length) + triangle(prefix_of(cell) - 1)),
        scalars=lambda cell: {"prefix": prefix_of(cell)},
    ),
    "document": Variant(
        "document_attention",
        lambda i, j, ids: (ids[i] == ids[j]) & (i >= j),
        lambda cell: sum(triangle(length) for batch in range(cell.batch) for length in lengths(cell, batch)),
        tensors=document,
        data=(f"document:sorted-ids={DOCUMENTS}",),
    ),
    "bias": Variant(
        "bias_attention",
        lambda i, j, ids: i == i,
        everywhere(lambda cell: cell.length**2),
        tensors=bias,
        score=lambda scores, i, j, data, batch, head: scores + data["bias"][head, i.squeeze(-1)].double(),
    ),
    "relative": Variant(
        "relative_attention",
        lambda i, j, ids: i == i,
        everywhere(lambda cell: cell.length**2),
        tensors=table,
        score=lambda scores, i, j, data, batch, head: (
            scores + data["table"][head].double()[(j - i + REACH).clamp(0, 2 * REACH)]
        ),
        further_sizes=lambda cell: {"R": REACH},
    ),
    "block": Variant(
        "block_attention",
        None,
        everywhere(in_listed_blocks),
        tensors=blocks,
        data=(f"blocks:bits={LISTED}",),
        further_sizes=lambda cell: {"S": BLOCK, "R": -(-cell.length // BLOCK), "C": -(-cell.length // BLOCK)},
    ),
    "sinks": Variant(
        "sink_attention", causal, everywhere(lambda cell: triangle(cell.length)), tensors=sinks, sinks=True
    ),
}


def seen(cell):
    """The predicate of a cell's variant."""
    if cell.variant == "prefix":
        first = prefix_of(cell)
        return lambda i, j, ids: (i >= j) | (j < first)
    if cell.variant == "block":
        listed = is_listed(cell.length)
        return lambda i, j, ids: listed[i // BLOCK][j // BLOCK]
    return VARIANTS[cell.variant].seen


def exact_rows(torch, cell, data, batch, head, picked, scores):
    """The softmax of float64 scores of the rows `picked`, as the variant has it."""
    variant = VARIANTS[cell.variant]
    i, j = picked[:, None], torch.arange(cell.length, device=picked.device)[None]
    ids = data["document"][batch].long() if "document" in data else None
    scores = variant.score(scores, i, j, data, batch, head)
    if "blocks" in data:
        kept = data["blocks"][head][i // BLOCK, j // BLOCK]
    else:
        kept = seen(cell)(i, j, ids)
    scores = scores.masked_fill(~kept, -math.inf)
    if not variant.sinks:
        return torch.softmax(scores, -1)
    sink = data["sinks"][head].double().expand(len(picked), 1)
    return torch.softmax(torch.cat([scores, sink], -1), -1)[:, :-1]


def flex(torch, cell, data):
    """What FlexAttention is told: the functions of scores and masks, either of them None."""
    predicate = seen(cell)
    ids = data.get("document")

    def keep(b, h, i, j):
        if "blocks" in data:
            return data["blocks"][h, i // BLOCK, j // BLOCK]
        if ids is None:
            return predicate(i, j, None)
        return (ids[b, i] == ids[b, j]) & (i >= j)

    score = {
        "softcap": lambda s, b, h, i, j: CAP * torch.tanh(s / CAP),
        "alibi": lambda s, b, h, i, j: s - data["slopes"][h] * (i - j),
        "bias": lambda s, b, h, i, j: s + data["bias"][h, i, j],
        "relative": lambda s, b, h, i, j: s + data["table"][h, torch.clamp(j - i + REACH, 0, 2 * REACH)],
    }
    return score.get(cell.variant), None if cell.variant in ("bias", "relative") else keep

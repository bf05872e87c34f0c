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
DROPPED, SEED, OFFSET = 0.1, 1234567, 42  # share of the weights that are left out, and the random numbers that say which


def nothing(*_):
    return {}


def same(x, i, j, data, batch, head):
    return x


def everything(cell, data):
    return None


@dataclasses.dataclass(frozen=True)
class Variant:
    """`keep` makes, of a cell and its data, the function that says whether query `i` sees key `j`; none if all are seen.

    The function takes a batch, a head, and two positions, as FlexAttention's functions do. `data` holds the tensors of
    the cell, of which those of `tables` are nested lists first, with their type.
    """

    kernel: str
    visible: Callable  # of a cell: pairs of a head that are seen, in all batches
    keep: Callable = everything
    scalars: Callable = nothing
    tables: Callable = nothing  # of a cell: what `keep` reads
    tensors: Callable = nothing  # other tensors
    score: Callable = same  # float64 scores of some rows
    weight: Callable = same  # float64 weights of some rows, behind the softmax
    data: Callable = lambda cell: ()  # what `flashtile tune` is told of its inputs
    sinks: bool = False
    per_batch: bool = False  # whether what is seen differs between batches
    further_sizes: Callable = nothing  # sizes and constants beside those of every cell
    queries: int = 0  # tokens over cached keys, where queries and keys are not equally many

    def tensors_of(self, torch, cell):
        """Tensors of the kernel beside queries, keys and values."""
        tables = self.tables(cell).items()
        made = {name: torch.tensor(rows, dtype=getattr(torch, kind), device="cuda") for name, (kind, rows) in tables}
        return made | self.tensors(torch, cell)


def causal(cell, data):
    return lambda b, h, i, j: i >= j


def window(cell, data):
    return lambda b, h, i, j: (i >= j) & (i - j < WINDOW)


def prefix(cell, data):
    first = prefix_of(cell)
    return lambda b, h, i, j: (i >= j) | (j < first)


def same_document(cell, data):
    ids = data["document"]
    return lambda b, h, i, j: (ids[b, i] == ids[b, j]) & (i >= j)


def in_block(cell, data):
    blocks = data["blocks"]
    return lambda b, h, i, j: blocks[h, i // BLOCK, j // BLOCK]


def above(cell, data):
    """All keys before the draft, and those of its tokens that the tree has above a token, itself among them."""
    tree, first = data["tree"], cell.length - cell.rows
    # A position before the draft reads the tree's first column, which no answer needs then.
    return lambda b, h, i, j: (j < first) | tree[b, i, (j - first) * (j >= first)]


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


def documents(cell):
    ids = [[n for n, length in enumerate(lengths(cell, b)) for _ in range(length)] for b in range(cell.batch)]
    return {"document": ("int32", ids)}


def table(torch, cell):
    return {"table": torch.randn(cell.heads, 2 * REACH + 1, device="cuda")}


@functools.cache
def is_listed(length):
    """Which blocks of keys a block of queries sees, in every head: its own, and others at random."""
    count, drawn = -(-length // BLOCK), random.Random(length)
    return [[r == c or drawn.random() < LISTED for c in range(count)] for r in range(count)]


def blocks(cell):
    return {"blocks": ("bool", [is_listed(cell.length)] * cell.heads)}


@functools.cache
def tree_of(tokens, seed):
    """For each token of a draft, which are above it: each but the first is below one that is drawn."""
    drawn, rows = random.Random(seed), []
    for token in range(tokens):
        row = list(rows[drawn.randrange(token)]) if token else [False] * tokens
        row[token] = True
        rows.append(row)
    return rows


def trees(cell):
    return {"tree": ("bool", [tree_of(cell.rows, batch) for batch in range(cell.batch)])}


def before(torch, cell):
    return {"before": torch.full((cell.batch,), cell.length - cell.rows, device="cuda", dtype=torch.int32)}


def in_tree(cell):
    drafts = sum(sum(map(sum, tree_of(cell.rows, batch))) for batch in range(cell.batch))
    return cell.batch * cell.rows * (cell.length - cell.rows) + drafts


def philox(a, b, c, d, seed):
    """Two words of Philox-4x32-7 of a counter and the key `(seed, 0)`, as tensors of 64-bit integers."""
    low = 0xFFFFFFFF
    key = [seed & low, 0]
    for _ in range(7):
        # Products of two numbers below 2^32, by halves: they do not fit 63 bits.
        by_c, by_a = ((c >> 16) * 0xCD9E8D57, (c & 0xFFFF) * 0xCD9E8D57), ((a >> 16) * 0xD2511F53, (a & 0xFFFF) * 0xD2511F53)
        high = [(upper + (lower >> 16)) >> 16 for upper, lower in (by_c, by_a)]
        least = [((upper << 16) + lower) & low for upper, lower in (by_c, by_a)]
        a, b, c, d = high[0] ^ b ^ key[0], least[0], high[1] ^ d ^ key[1], least[1]
        key = [(key[0] + 0x9E3779B9) & low, (key[1] + 0xBB67AE85) & low]
    return a, b


def dropped(weights, i, j, data, batch, head):
    """A share of the weights is 0, the others are larger by as much."""
    i, j = i + 0 * j, j + 0 * i
    row, offset = 0 * i + batch * data["q"].shape[1] + head, 0 * i + OFFSET
    even, odd = philox(j // 2, i, row, offset, SEED)
    random = (even.where(j % 2 == 0, odd) >> 8).double() / 2**24
    # The kernel compares with the share in f32.
    return (weights / (1 - DROPPED)).masked_fill(random < weights.new_tensor(DROPPED).float().double(), 0.0)


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
        everywhere(lambda cell: triangle(min(WINDOW, cell.length)) + max(cell.length - WINDOW, 0) * WINDOW),
        window,
        scalars=lambda cell: {"window": WINDOW},
    ),
    "softcap": Variant(
        "softcap_attention",
        everywhere(lambda cell: triangle(cell.length)),
        causal,
        scalars=lambda cell: {"cap": CAP},
        score=lambda scores, i, j, data, batch, head: CAP * (scores / CAP).tanh(),
    ),
    "alibi": Variant(
        "alibi_attention",
        everywhere(lambda cell: triangle(cell.length)),
        causal,
        tensors=slopes,
        # What a tuner draws by itself is so small that distances change scores by 1.
        data=lambda cell: ("slopes:range=0.0039..0.7072",),
        score=lambda scores, i, j, data, batch, head: scores - data["slopes"][head].double() * (i - j),
    ),
    "prefix": Variant(
        "prefix_attention",
        everywhere(lambda cell: triangle(cell.length) + triangle(prefix_of(cell) - 1)),
        prefix,
        scalars=lambda cell: {"prefix": prefix_of(cell)},
    ),
    "document": Variant(
        "document_attention",
        lambda cell: sum(triangle(length) for batch in range(cell.batch) for length in lengths(cell, batch)),
        same_document,
        tables=documents,
        data=lambda cell: (f"document:sorted-ids={DOCUMENTS}",),
        per_batch=True,
    ),
    "bias": Variant(
        "bias_attention",
        everywhere(lambda cell: cell.length**2),
        tensors=bias,
        score=lambda scores, i, j, data, batch, head: scores + data["bias"][head, i.squeeze(-1)].double(),
    ),
    "relative": Variant(
        "relative_attention",
        everywhere(lambda cell: cell.length**2),
        tensors=table,
        score=lambda scores, i, j, data, batch, head: (
            scores + data["table"][head].double()[(j - i + REACH).clamp(0, 2 * REACH)]
        ),
        further_sizes=lambda cell: {"R": REACH},
    ),
    "block": Variant(
        "block_attention",
        everywhere(in_listed_blocks),
        in_block,
        tables=blocks,
        data=lambda cell: (f"blocks:bits={LISTED}",),
        further_sizes=lambda cell: {"S": BLOCK, "R": -(-cell.length // BLOCK), "C": -(-cell.length // BLOCK)},
    ),
    "sinks": Variant(
        "sink_attention", everywhere(lambda cell: triangle(cell.length)), causal, tensors=sinks, sinks=True
    ),
    "tree": Variant(
        "tree_attention",
        in_tree,
        above,
        tables=trees,
        tensors=before,
        data=lambda cell: (f"before:constant={cell.length - cell.rows}", "tree:bits=0.1"),
        per_batch=True,
        queries=64,
    ),
    "dropout": Variant(
        "dropout_attention",
        everywhere(lambda cell: triangle(cell.length)),
        causal,
        scalars=lambda cell: {"dropped": DROPPED, "seed": SEED, "offset": OFFSET},
        weight=dropped,
    ),
}


def exact_rows(torch, cell, data, batch, head, picked, scores):
    """The weights of float64 scores of the rows `picked`, as the variant has them."""
    variant = VARIANTS[cell.variant]
    i, j = picked[:, None], torch.arange(cell.length, device=picked.device)[None]
    scores = variant.score(scores, i, j, data, batch, head)
    keep = variant.keep(cell, data)
    if keep is not None:
        scores = scores.masked_fill(~keep(batch, head, i, j), -math.inf)
    if variant.sinks:
        sink = data["sinks"][head].double().expand(len(picked), 1)
        return torch.softmax(torch.cat([scores, sink], -1), -1)[:, :-1]
    return variant.weight(torch.softmax(scores, -1), i, j, data, batch, head)


def flex(torch, cell, data):
    """What FlexAttention is told: the functions of scores and masks, either of them None."""
    variant = VARIANTS[cell.variant]
    if variant.weight is not same:
        raise RuntimeError("FlexAttention changes no weights behind the softmax")
    score = {
        "softcap": lambda s, b, h, i, j: CAP * torch.tanh(s / CAP),
        "alibi": lambda s, b, h, i, j: s - data["slopes"][h] * (i - j),
        "bias": lambda s, b, h, i, j: s + data["bias"][h, i, j],
        "relative": lambda s, b, h, i, j: s + data["table"][h, torch.clamp(j - i + REACH, 0, 2 * REACH)],
    }
    return score.get(cell.variant), variant.keep(cell, data)

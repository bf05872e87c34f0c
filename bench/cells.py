"""What is measured: cells, their tables, and their data."""

import dataclasses
import math
import random

from variants import VARIANTS, exact_rows

TOKENS = 16384  # B * N of the grid
WIDTH = 2048  # H * D of the grid
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
KERNELS = {False: "attention", True: "causal_attention"}


@dataclasses.dataclass(frozen=True)
class Cell:
    """One problem: shapes, element type, mask."""

    table: str
    causal: bool
    dtype: str
    head_dim: int
    length: int
    batch: int
    heads: int
    key_heads: int
    variant: str = ""  # a key of variants.VARIANTS, or none
    queries: int = 0  # rows of q where these are not as many as keys: new tokens over cached ones

    @property
    def kernel(self):
        return VARIANTS[self.variant].kernel if self.variant else KERNELS[self.causal]

    @property
    def group(self):
        """Cells of one panel of the plot: all but the length."""
        mask = self.variant or ("causal" if self.causal else "full")
        return f"{self.table}/{mask}/{self.dtype}/d{self.head_dim}"

    @property
    def name(self):
        name = f"{self.group}/{self.length}"
        heads = f"b{self.batch}h{self.heads}g{self.key_heads}"
        if self.queries and not self.variant:
            return f"{name}/{heads}m{self.queries}"
        return f"{name}/{heads}" if self.table == "odd" else name

    @property
    def rows(self):
        """Rows of q."""
        return self.queries or self.length

    @property
    def sizes(self):
        sizes = {"B": self.batch, "H": self.heads, "G": self.key_heads, "M": self.rows, "N": self.length}
        if self.variant == "document":
            del sizes["M"]
        return sizes | (VARIANTS[self.variant].further_sizes(self) if self.variant else {})

    @property
    def scalars(self):
        """Scalars of the kernel."""
        further = VARIANTS[self.variant].scalars(self) if self.variant else {}
        return {"scale": 1 / math.sqrt(self.head_dim), **further}

    @property
    def flops(self):
        """4 B H M N D, and half of that for a causal mask. Of a variant those of the scores that are seen."""
        if self.variant:
            return 4 * self.heads * self.head_dim * VARIANTS[self.variant].visible(self)
        full = 4 * self.batch * self.heads * self.rows * self.length * self.head_dim
        return full / 2 if self.causal else full


def grid(dtypes, head_dims, lengths, table="grid"):
    for causal in (False, True):
        for dtype in dtypes:
            for head_dim in head_dims:
                for length in lengths:
                    heads = max(1, WIDTH // head_dim)
                    yield Cell(table, causal, dtype, head_dim, length, max(1, TOKENS // length), heads, heads)


def ragged():
    """Odd lengths, each beside the next multiple of 128."""
    for length in (1000, 3000, 5555, 12345):
        for cell in grid(("bf16",), (64, 128), (length, -(-length // 128) * 128), "ragged"):
            yield dataclasses.replace(cell, batch=max(1, TOKENS // (-(-length // 128) * 128)))


def odd(seed):
    """Cells that nothing was fitted to: head dims, lengths, heads and groups are drawn."""
    drawn = random.Random(seed)
    for number in range(32):
        head_dim = 8 * drawn.randint(8, 32) if number % 2 else drawn.choice((64, 96, 128, 192, 256))
        key_heads, group = drawn.randint(1, 12), drawn.choice((1, 1, 1, 2, 4, 5, 7, 12))
        length = drawn.randint(700, 12000)
        # At most about 2 TFLOP, and enough programs that splitting the keys is no question.
        heads = key_heads * group
        fits = int(2e12 / (4 * length * length * head_dim * heads)) or 1
        batch = max(1, min(drawn.randint(1, 8), fits), -(-200 * 128 // (heads * length)))
        yield Cell("odd", number % 3 != 0, "bf16", head_dim, length, batch, heads, key_heads)


def decode():
    """One token or a few over cached keys: what bounds the time is reading the keys."""
    for batch, heads, key_heads, length, head_dim, queries in (
        (1, 32, 8, 8192, 128, 1),
        (1, 32, 8, 65536, 128, 1),
        (8, 32, 8, 8192, 128, 1),
        (8, 32, 8, 8192, 128, 4),
        (16, 64, 8, 4096, 128, 1),
        (32, 16, 16, 2048, 128, 1),
        (64, 32, 8, 1500, 64, 1),
        (128, 32, 8, 1024, 128, 1),
    ):
        yield Cell("decode", False, "bf16", head_dim, length, batch, heads, key_heads, queries=queries)


def variants():
    """Each variant at two head dims. A bias is as large as all scores of a batch, so that it has no long ones;
    drafts of few tokens come from 16 sequences."""
    for variant in VARIANTS:
        for head_dim in (64, 128):
            for length in (4096,) if variant == "bias" else (4096, 8192, 16384):
                heads, queries = WIDTH // head_dim, VARIANTS[variant].queries
                batch = 16 if queries else max(1, TOKENS // length)
                yield Cell("variants", False, "bf16", head_dim, length, batch, heads, heads, variant, queries)


TABLES = {
    "grid": lambda: grid(("bf16", "f16"), (64, 128, 256), LENGTHS),
    "small": lambda: (Cell("small", True, "f16", 64, n, 2, 16, 16) for n in (512, 1024, 2048, 4096, 8192)),
    "gqa": lambda: (
        Cell("gqa", causal, "bf16", 128, n, 1, 64, 8) for causal in (False, True) for n in (2048, 4096, 8192, 16384, 32768)
    ),
    "ragged": ragged,
    "odd": lambda: odd(2026),
    "decode": decode,
    "variants": lambda: variants(),
    "dims": lambda: grid(("bf16",), (80, 96, 160, 192), (2048, 8192), "dims"),
}


def asked(name, only):
    """Whether a name contains all of one of the texts, whose parts are apart by `+`; without texts every name does."""
    return not only or any(all(part in name for part in text.split("+")) for text in only)


def cells(tables, only):
    """The cells of the tables that `only` asks for."""
    return [cell for table in tables for cell in TABLES[table]() if asked(cell.name, only)]


def tensors(torch, cell, scores, growth):
    """Inputs of a cell: scores of standard deviation `scores`, keys that grow linearly from a tenth to `growth` along the sequence.

    Where `growth` is negative keys fall from its amount to a tenth.
    """
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[cell.dtype]
    torch.manual_seed(0)

    def normal(heads, rows=cell.length):
        return torch.randn(cell.batch, heads, rows, cell.head_dim, device="cuda", dtype=dtype)

    q, k, v = normal(cell.heads, cell.rows), normal(cell.key_heads), normal(cell.key_heads)
    if scores != 1:
        q *= scores
    if growth:
        ends = (0.1, growth) if growth > 0 else (-growth, 0.1)
        k *= torch.linspace(*ends, cell.length, device="cuda", dtype=dtype)[:, None]
    # Rows of 16 bytes each, but where few rows of several heads make a tile together.
    padded = cell.rows if cell.queries else -(-cell.rows // 4) * 4
    lse = torch.empty(cell.batch, cell.heads, padded, device="cuda")[..., : cell.rows]
    further = VARIANTS[cell.variant].tensors_of(torch, cell) if cell.variant else {}
    return {"q": q, "k": k, "v": v, "o": torch.empty_like(q), "lse": lse, **further}


def error_of_rows(torch, cell, data, rows=64):
    """The largest error of some rows of `o` against float64, in units of what rounding to the element type explains."""
    q, k, v, o = (data[name] for name in ("q", "k", "v", "o"))
    picked = torch.linspace(0, cell.rows - 1, min(rows, cell.rows), device="cuda").long().unique()
    group = cell.heads // cell.key_heads
    worst = 0.0
    for batch, head in {(0, 0), (cell.batch - 1, cell.heads - 1)}:
        keys, values = k[batch, head // group].double(), v[batch, head // group].double()
        scores = q[batch, head, picked].double() @ keys.T / math.sqrt(cell.head_dim)
        if cell.causal:
            scores.masked_fill_(torch.arange(cell.length, device="cuda")[None] > picked[:, None], -math.inf)
        weights = exact_rows(torch, cell, data, batch, head, picked, scores) if cell.variant else torch.softmax(scores, -1)
        exact = weights @ values
        got = o[batch, head, picked].double()
        if got.isnan().any():
            return math.inf
        unit = torch.finfo(o.dtype).eps * max(exact.abs().max().item(), values.abs().mean().item())
        worst = max(worst, (got - exact).abs().max().item() / unit)
    return worst

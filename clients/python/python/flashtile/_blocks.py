"""The lists of a ``BlockMask``: blocks of keys that queries see in part, and those seen as a whole.

A kernel reads them as two tables with a truth value for each block, which are filled from the
lists: work of the number of blocks, not of the number of scores.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch

from ._flashtile import ArgumentError, BlockState, KeptBlocks
from ._host import is_traced

LISTS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")


class Blocks(NamedTuple):
    """What a kernel knows of a `BlockMask` ahead."""

    #: Those of "BH" that the tables have, besides the blocks of queries and of keys.
    dims: str
    #: Queries and keys of a block.
    sizes: tuple[int, int]

    @property
    def shape(self) -> str:
        """The shape of a table, as text."""
        return f"({', '.join((*self.dims, 'BLOCKS_M', 'BLOCKS_N'))})"

    @property
    def place(self) -> str:
        """The entries of a load of a table, as text."""
        entries = [{"B": "b", "H": "h"}[dim] for dim in self.dims]
        return ", ".join((*entries, *(f"pos({axis}) / {size}" for axis, size in zip("ij", self.sizes))))


def _lists(block_mask: Any) -> list[torch.Tensor | None]:
    """The four lists, those of indices as `(B, H, rows, columns)`.

    There is one batch and one head where a list lacks these.
    """
    found = [getattr(block_mask, name) for name in LISTS]
    return [x if x is None else x[(None,) * (3 + at % 2 - x.dim())] for at, x in enumerate(found)]


def blocks_of(block_mask: Any, batch: int, heads: int, queries: int, keys: int) -> Blocks:
    """What a kernel knows of a `BlockMask`, for a call of these sizes.

    Raises :class:`ArgumentError` for lists that do not fit the call.
    """
    sizes = tuple(block_mask.BLOCK_SIZE)
    if tuple(block_mask.seq_lengths) != (queries, keys):
        raise ArgumentError(
            f"block_mask is of {block_mask.seq_lengths[0]} queries and {block_mask.seq_lengths[1]} keys, "
            f"but there are {queries} and {keys}; make one of these lengths, "
            "or crop one that is longer to whole blocks with block_mask._adjust(queries, keys)"
        )
    if len(sizes) != 2 or not all(isinstance(size, int) and 0 < size < 2**31 for size in sizes):
        raise ArgumentError(f"block_mask has BLOCK_SIZE {sizes}; it must be two numbers above 0, of queries and of keys")
    for at, name in enumerate(LISTS):
        x = getattr(block_mask, name)
        if x is None:
            continue
        rank = 3 + at % 2
        if x.dim() > rank or x.dim() < rank - 2:
            raise ArgumentError(f"block_mask.{name} has shape {tuple(x.shape)}; it must have {rank} dimensions, or fewer by up to 2")
        if x.dtype not in (torch.int32, torch.int64):
            raise ArgumentError(f"block_mask.{name} holds {x.dtype}; it must hold torch.int32 or torch.int64")
    lists = _lists(block_mask)
    rows = -(-queries // sizes[0])
    lead = (1, 1)
    for counts, indices, name in zip(lists[::2], lists[1::2], LISTS[1::2]):
        if indices is None:
            continue
        if counts.shape != indices.shape[:3]:
            raise ArgumentError(f"block_mask.{name} of shape {tuple(indices.shape)} does not go with counts of shape {tuple(counts.shape)}")
        if indices.shape[2] < rows:
            raise ArgumentError(f"block_mask.{name} has {indices.shape[2]} rows; {queries} queries are {rows} blocks of {sizes[0]}")
        if any(extent not in (1, full) for extent, full in zip(indices.shape, (batch, heads))):
            raise ArgumentError(
                f"block_mask.{name} is of {indices.shape[0]} batches and {indices.shape[1]} heads; "
                f"there are {batch} and {heads}, and 1 stands for all"
            )
        lead = tuple(max(pair) for pair in zip(lead, indices.shape))
    return Blocks("".join(dim for dim, extent in zip("BH", lead) if extent != 1), sizes)


def _table(counts: torch.Tensor, indices: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Whether each block is listed.

    What is behind the count of a row, or is the number of no block, is not.
    """
    counts, indices = counts[:, :, :rows], indices[:, :, :rows]
    at = torch.arange(indices.shape[-1], dtype=counts.dtype, device=counts.device)
    is_block = (at < counts.unsqueeze(-1)) & (indices >= 0) & (indices < columns)
    # What is none goes to a column more.
    place = torch.where(is_block, indices, columns).to(torch.int64)
    table = torch.zeros((*indices.shape[:-1], columns + 1), dtype=torch.bool, device=indices.device)
    # Of a truth value `torch.jit.trace` makes no graph.
    return table.scatter(-1, place, 1)[..., :columns]


def tables(block_mask: Any, queries: int, keys: int) -> list[torch.Tensor]:
    """Whether each block is listed at all, and whether it is listed as full.

    The tables have the dimensions of :class:`Blocks`.
    """
    rows, columns = (-(-length // size) for length, size in zip((queries, keys), block_mask.BLOCK_SIZE))
    counts, indices, full_counts, full_indices = _lists(block_mask)
    listed = _table(counts, indices, rows, columns)
    if full_counts is None:
        full = torch.zeros((1, 1, rows, columns), dtype=torch.bool, device=listed.device)
    else:
        full = _table(full_counts, full_indices, rows, columns)
    # All tables of a kernel have the same shape; one that is repeated is read where it lies.
    listed, full = torch.broadcast_tensors(listed | full, full)
    return [x[tuple(0 if extent == 1 else slice(None) for extent in x.shape[:2])] for x in (listed, full)]


# What the last call with a `BlockMask` had, by the identity of the mask.
KEPT: dict[int, KeptBlocks] = {}


def of_call(block_mask: Any, queries: torch.Size, keys: torch.Size) -> tuple[Blocks, list[torch.Tensor]]:
    """What a kernel knows of a `BlockMask` ahead, and the :func:`tables`, for queries and keys of these shapes.

    Both are made anew if a list has changed, on another stream, and in a capture, whose replays
    read the lists.
    """
    batch, heads, rows, _ = queries
    state = None
    if not is_traced():
        known = KEPT.get(id(block_mask))
        found = None if known is None else known.tables_now(block_mask, queries, keys)
        if found is not None:
            (dims, sizes), made = found
            return Blocks(dims, sizes), made
        # Before the tables are made of the lists.
        state = BlockState.of(block_mask, queries, keys)
    blocks, made = blocks_of(block_mask, batch, heads, rows, keys[2]), tables(block_mask, rows, keys[2])
    if state is not None:
        key = id(block_mask)
        KEPT[key] = KeptBlocks(weakref.ref(block_mask, lambda _: KEPT.pop(key, None)), state, blocks, made)
    return blocks, made

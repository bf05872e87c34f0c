"""`flashtile.flex` with the lists of a `BlockMask`, beside PyTorch's `flex_attention`.

PyTorch's eager `flex_attention` asks the `mask_mod` of a `BlockMask` and does not look at its lists,
as its compiled one does. So the lists are given to it as a mask.
"""

import pytest
import reference
import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention, noop_mask

import flashtile

B, H, G, M, N, D = 2, 4, 2, 70, 90, 8
SIZES = (16, 32)
R, C = 5, 3
DOCUMENTS = torch.arange(N) // 23


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def document(b, h, q_idx, kv_idx):
    return DOCUMENTS[q_idx] == DOCUMENTS[kv_idx]


def qkv(dtype=torch.float32, grad=False):
    torch.manual_seed(1)
    return [torch.randn(B, heads, length, D, dtype=dtype, requires_grad=grad) for heads, length in ((H, M), (G, N), (G, N))]


def random_lists(batch, heads, seed=0, rows=R, columns=C):
    """Lists of which each block is in none, in that of blocks seen in part, or in that of full ones.

    What is behind the count of a row says nothing.
    """
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.randint(0, 3, (batch, heads, rows, columns), generator=generator)
    lists = []
    for kind in (1, 2):
        listed = kinds == kind
        indices = torch.argsort((~listed).to(torch.int8), dim=-1, stable=True).to(torch.int32)
        lists += [listed.sum(-1).to(torch.int32), indices]
    return lists


def block_mask_of(lists, mask_mod, sizes=SIZES, lengths=(M, N), **more):
    return BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=sizes, mask_mod=mask_mod, seq_lengths=lengths, **more)


def meaning(block_mask, columns=C):
    """What a `BlockMask` says, as a mask: by its definition, block after block."""
    lists = [block_mask.kv_num_blocks, block_mask.kv_indices, block_mask.full_kv_num_blocks, block_mask.full_kv_indices]
    tables = []
    for counts, indices in (lists[:2], lists[2:]):
        table = torch.zeros(B, H, R, columns, dtype=torch.bool)
        for b in range(B if counts is not None else 0):
            for h in range(H):
                for r in range(R):
                    own = (b % counts.shape[0], h % counts.shape[1], r)
                    for at in range(int(counts[own])):
                        table[b, h, r, int(indices[own][at])] = True
        tables.append(table)
    partial, full = tables
    rows, keys = block_mask.BLOCK_SIZE

    def mask_mod(b, h, q_idx, kv_idx):
        place = (b, h, q_idx // rows, kv_idx // keys)
        return full[place] | (partial[place] & block_mask.mask_mod(b, h, q_idx, kv_idx))

    return mask_mod


def expected_of(block_mask, inputs, score_mod=None, **more):
    mask = create_block_mask(meaning(block_mask), B, H, M, N, device="cpu")
    return flex_attention(*inputs, score_mod, mask, enable_gqa=True, **more)


@pytest.mark.parametrize("mask_mod", [causal, document, noop_mask, None])
@pytest.mark.parametrize("batch, heads", [(1, 1), (B, 1), (1, H), (B, H)])
def test_lists_are_taken_as_they_are(mask_mod, batch, heads):
    block_mask = block_mask_of(random_lists(batch, heads), mask_mod)
    inputs = qkv()
    found = flashtile.flex(*inputs, block_mask=block_mask, enable_gqa=True, return_lse=True)
    for ours, theirs in zip(found, expected_of(block_mask, inputs, return_lse=True)):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_with_a_score_mod_and_other_types():
    slopes = torch.linspace(0.1, 0.5, H)

    def alibi(score, b, h, q_idx, kv_idx):
        return score - slopes[h] * (q_idx - kv_idx)

    block_mask = block_mask_of(random_lists(1, H, 3), causal)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        inputs = qkv(dtype)
        found = flashtile.flex(*inputs, alibi, block_mask, enable_gqa=True)
        torch.testing.assert_close(found, expected_of(block_mask, inputs, alibi), atol=tolerance, rtol=tolerance)


def test_a_block_mask_of_pytorch_says_what_its_function_says():
    q, k, v = qkv()
    for sizes in (16, 128, (32, 64)):
        block_mask = create_block_mask(document, None, None, M, N, device="cpu", BLOCK_SIZE=sizes)
        found = flashtile.flex(q, k, v, block_mask=block_mask, enable_gqa=True)
        torch.testing.assert_close(found, flashtile.flex(q, k, v, mask_mod=document, enable_gqa=True), atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(found, flex_attention(q, k, v, block_mask=block_mask, enable_gqa=True), atol=1e-5, rtol=1e-5)


def without(lists, which):
    """The lists without the first block of the first row that has one."""
    lists = [x.clone() for x in lists]
    counts, indices = lists[which : which + 2]
    b, h, r = next(tuple(place) for place in counts.nonzero().tolist())
    indices[b, h, r] = indices[b, h, r].roll(-1)
    counts[b, h, r] -= 1
    return lists, (b, h, r)


@pytest.mark.parametrize("which", [0, 2])
def test_a_block_out_of_a_list_changes_its_rows_alone(which):
    lists = random_lists(B, H, 5)
    changed, (b, h, r) = without(lists, which)
    # Each block is seen in part where it is listed so.
    block_mask, other = (block_mask_of(x, lambda b, h, q, kv: (q + kv) % 2 == 0) for x in (lists, changed))
    inputs = qkv()
    before, after = (flashtile.flex(*inputs, block_mask=x, enable_gqa=True) for x in (block_mask, other))
    differs = (before != after).any(-1)
    rows = torch.zeros_like(differs)
    rows[b, h, r * SIZES[0] : (r + 1) * SIZES[0]] = True
    assert differs.any() and not (differs & ~rows).any()
    torch.testing.assert_close(after, expected_of(other, inputs), atol=1e-5, rtol=1e-5)


def test_a_full_block_does_not_ask_the_function_and_one_seen_in_part_does():
    every = torch.arange(C, dtype=torch.int32).expand(1, 1, R, C).contiguous()
    some, none = torch.full((1, 1, R), C, dtype=torch.int32), torch.zeros(1, 1, R, dtype=torch.int32)
    inputs = qkv()
    full = flashtile.flex(*inputs, block_mask=block_mask_of([none, every, some, every], causal), enable_gqa=True)
    part = flashtile.flex(*inputs, block_mask=block_mask_of([some, every, none, every], causal), enable_gqa=True)
    assert torch.equal(full, flashtile.flex(*inputs, enable_gqa=True))
    torch.testing.assert_close(part, flashtile.flex(*inputs, mask_mod=causal, enable_gqa=True), atol=1e-6, rtol=1e-6)
    # In both lists: it counts once, as full.
    both = flashtile.flex(*inputs, block_mask=block_mask_of([some, every, some, every], causal), enable_gqa=True)
    assert torch.equal(both, full)
    nothing = flashtile.flex(*inputs, block_mask=block_mask_of([none, every, none, every], causal), enable_gqa=True)
    assert not nothing.any()


def test_lists_that_change_are_read_anew():
    lists = random_lists(1, 1, 7)
    block_mask = block_mask_of(lists, causal)
    inputs = qkv()
    first = flashtile.flex(*inputs, block_mask=block_mask, enable_gqa=True)
    assert torch.equal(first, flashtile.flex(*inputs, block_mask=block_mask, enable_gqa=True))
    block_mask.kv_num_blocks.zero_()
    changed = flashtile.flex(*inputs, block_mask=block_mask, enable_gqa=True)
    assert not torch.equal(first, changed)
    torch.testing.assert_close(changed, expected_of(block_mask, inputs), atol=1e-5, rtol=1e-5)
    block_mask.full_kv_num_blocks = torch.zeros_like(block_mask.full_kv_num_blocks)
    assert not flashtile.flex(*inputs, block_mask=block_mask, enable_gqa=True).any()


def test_without_lists_of_full_blocks_and_in_fewer_dimensions():
    counts, indices = random_lists(1, 1, 9)[:2]
    inputs = qkv()
    for mask_mod in (causal, None):
        block_mask = block_mask_of([counts, indices], mask_mod)
        found = flashtile.flex(*inputs, block_mask=block_mask, enable_gqa=True)
        torch.testing.assert_close(found, expected_of(block_mask, inputs), atol=1e-5, rtol=1e-5)
        flat = block_mask_of([counts[0, 0].long(), indices[0, 0].long()], mask_mod, compute_q_blocks=False)
        assert torch.equal(found, flashtile.flex(*inputs, block_mask=flat, enable_gqa=True))


def test_numbers_of_no_block_are_none():
    counts, indices = torch.full((1, 1, R), 2, dtype=torch.int32), torch.tensor([1, 2, 0], dtype=torch.int32).repeat(1, 1, R, 1)
    inputs = qkv()
    expected = flashtile.flex(*inputs, block_mask=block_mask_of([counts, indices], None), enable_gqa=True)
    beyond = torch.tensor([1, 2, 0, 7, -1], dtype=torch.int32).repeat(1, 1, R, 1)
    beyond[..., [2, 3]] = beyond[..., [3, 2]]  # 1, 2, 7, 0, -1, of which three count
    block_mask = block_mask_of([counts + 1, beyond], None, compute_q_blocks=False)
    assert torch.equal(expected, flashtile.flex(*inputs, block_mask=block_mask, enable_gqa=True))


def test_gradients():
    block_mask = block_mask_of(random_lists(1, H, 11), causal)
    inputs = qkv(grad=True)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    found = flashtile.flex(*inputs, block_mask=block_mask, enable_gqa=True)
    expected, _ = reference.flex(*exact, None, meaning(block_mask))
    grad = torch.randn_like(found)
    ours = torch.autograd.grad(found, inputs, grad)
    theirs = torch.autograd.grad(expected, exact, grad.double())
    for name, x, y in zip("qkv", ours, theirs):
        torch.testing.assert_close(x.double(), y, atol=2e-4, rtol=2e-4, msg=name)
    lists = [block_mask.kv_num_blocks, block_mask.kv_indices, block_mask.full_kv_num_blocks, block_mask.full_kv_indices]
    other = block_mask_of(without(lists, 2)[0], causal)
    changed = torch.autograd.grad(flashtile.flex(*inputs, block_mask=other, enable_gqa=True), inputs, grad)
    assert not any(torch.equal(x, y) for x, y in zip(ours, changed))


def test_compiled():
    lists = random_lists(B, 1, 13)
    attend = flashtile.flex_kernel(block_mask=block_mask_of(lists, causal), enable_gqa=True)
    compiled = torch.compile(lambda q, k, v: attend(q, k, v) * 2, fullgraph=True, backend="aot_eager")
    inputs = qkv()
    torch.testing.assert_close(compiled(*inputs), attend(*inputs) * 2)
    lists[2].zero_()  # an input of the graph
    torch.testing.assert_close(compiled(*inputs), attend(*inputs) * 2)


def test_what_is_refused():
    q, k, v = qkv()
    counts, indices = random_lists(1, 1)[:2]

    def refused(match, lists=(counts, indices), error=flashtile.ArgumentError, mask_mod=None, **more):
        block_mask = block_mask_of(lists, mask_mod, compute_q_blocks=False, **more)
        with pytest.raises(error, match=match):
            flashtile.flex(q, k, v, block_mask=block_mask, enable_gqa=True)

    refused("70 queries and 64 keys", lengths=(M, 64))
    refused("3 batches and 1 heads", (counts.expand(3, -1, -1), indices.expand(3, -1, -1, -1)))
    refused("has 4 rows; 70 queries are 5 blocks of 16", (counts[:, :, :4], indices[:, :, :4]))
    refused("does not go with counts", (counts[:, :, :4], indices))
    refused("kv_num_blocks holds torch.float32", (counts.float(), indices))
    refused("BLOCK_SIZE", sizes=(0, 32))
    # A function that is asked in some blocks must have words.
    refused("cannot trace `erf`", error=flashtile.TraceError, mask_mod=lambda b, h, q, kv: torch.erf(q * 1.0) > 0)
    with pytest.raises(flashtile.ArgumentError, match="both given"):
        flashtile.flex(q, k, v, block_mask=block_mask_of((counts, indices), None), mask_mod=causal, enable_gqa=True)

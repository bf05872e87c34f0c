"""`flashtile.flex` with published functions, beside their definition in float64 and PyTorch's FlexAttention."""

import contextlib
import copy
import enum
import functools
import itertools
import math
import pickle
import types

import numpy
import pytest
import reference
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention.flex_attention import and_masks, create_block_mask, flex_attention, noop_mask, or_masks

import flashtile

B, H, G, M, N, D = 2, 4, 2, 40, 40, 8
DOCUMENTS = torch.tensor([0] * 13 + [1] * 20 + [2] * 7)
OFFSETS = torch.tensor([0, 13, 33])
WIDTH = 8


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def sliding_window(b, h, q_idx, kv_idx):
    return q_idx - kv_idx <= 7


def prefix(b, h, q_idx, kv_idx):
    return kv_idx <= 11


def document(b, h, q_idx, kv_idx):
    return DOCUMENTS[q_idx] == DOCUMENTS[kv_idx]


def document_of_batch(ids):
    def mask_mod(b, h, q_idx, kv_idx):
        return ids[b, q_idx] == ids[b][kv_idx]

    return mask_mod


def document_causal(inner):
    """A function for each document, with positions in the document."""

    def mask_mod(b, h, q_idx, kv_idx):
        q_logical = q_idx - OFFSETS[DOCUMENTS[q_idx]]
        kv_logical = kv_idx - OFFSETS[DOCUMENTS[kv_idx]]
        return (DOCUMENTS[q_idx] == DOCUMENTS[kv_idx]) & inner(b, h, q_logical, kv_logical)

    return mask_mod


def natten(canvas_w, canvas_h, kernel):
    def get_x_y(idx):
        return idx // canvas_w, idx % canvas_w

    def mask_mod(b, h, q_idx, kv_idx):
        q_x, q_y = get_x_y(q_idx)
        kv_x, kv_y = get_x_y(kv_idx)
        center_x = q_x.clamp(kernel // 2, (canvas_h - 1) - kernel // 2)
        center_y = q_y.clamp(kernel // 2, (canvas_w - 1) - kernel // 2)
        return ((center_x - kv_x).abs() <= kernel // 2) & ((center_y - kv_y).abs() <= kernel // 2)

    return mask_mod


def dilated(b, h, q_idx, kv_idx):
    return (q_idx >= kv_idx) & (q_idx - kv_idx <= 12) & ((q_idx - kv_idx) % 3 == 0)


def strided(b, h, q_idx, kv_idx):
    return (q_idx >= kv_idx) & (((q_idx - kv_idx) < 4) | (kv_idx % 8 == 7))


def of_heads(b, h, q_idx, kv_idx):
    return torch.where(h % 2 == 0, q_idx >= kv_idx, True)


def nothing_for_some(b, h, q_idx, kv_idx):
    return (h < 2) & (kv_idx < 8) | (q_idx == 5) & ~(kv_idx != 4)


def alibi(heads):
    def score_mod(score, b, h, q_idx, kv_idx):
        scale = torch.exp2(-((h + 1) * 8.0 / heads))
        return score + (kv_idx - q_idx) * scale

    return score_mod


def tanh_softcap(cap):
    def score_mod(score, b, h, q_idx, kv_idx):
        return cap * torch.tanh(score / cap)

    return score_mod


def checkerboard(score, b, h, q_idx, kv_idx):
    score = torch.where(torch.abs(kv_idx - q_idx) % 2 == 1, score * 0.5, score)
    return torch.where(torch.abs(kv_idx - q_idx) % 2 == 0, score * 2.0, score)


def relative(score, b, h, q_idx, kv_idx):
    return score + (q_idx - kv_idx)


def inverse_causal(score, b, h, q_idx, kv_idx):
    return torch.where(q_idx <= kv_idx, score, -float("inf"))


SLOPES, TABLE = torch.linspace(0.1, 0.9, H), torch.sin(torch.arange(H * (2 * N - 1)).float()).reshape(H, 2 * N - 1)
BIAS, LONG = torch.cos(torch.arange(B * H * M * N).float()).reshape(B, H, M, N), torch.sin(torch.arange(64.0 * 70)).reshape(64, 70)
TEMPERATURE = torch.tensor(1.5)

MASKS = {
    "causal": causal,
    "sliding_window": and_masks(causal, sliding_window),
    "prefix_lm": or_masks(prefix, causal),
    "document": and_masks(causal, document),
    "document_of_batch": document_of_batch(torch.stack([DOCUMENTS, DOCUMENTS.flip(0)])),
    "document_causal": document_causal(causal),
    "natten": natten(WIDTH, N // WIDTH, 3),
    "dilated": dilated,
    "strided": strided,
    "of_heads": of_heads,
    "nothing_for_some": nothing_for_some,
    "noop": noop_mask,
    "partial": functools.partial(lambda width, b, h, q, kv: (q - kv).abs() < width, 5),
    "of_tensor": lambda b, h, q, kv: BIAS[b, h, q, kv] > 0,
}
SCORES = {
    "alibi": alibi(H),
    "slopes": lambda score, b, h, q, kv: score - SLOPES[h] * (q - kv),
    "softcap": tanh_softcap(5),
    "relative": relative,
    "checkerboard": checkerboard,
    "inverse_causal": inverse_causal,
    "bias": lambda score, b, h, q, kv: score + BIAS[b, h, q, kv],
    "longer_bias": lambda score, b, h, q, kv: score + LONG[q, kv],
    "transposed_bias": lambda score, b, h, q, kv: score + LONG[kv, q],
    "relative_bias": lambda score, b, h, q, kv: score + TABLE[h, (q - kv) + N - 1],
    "from_the_end": lambda score, b, h, q, kv: score + TABLE[h][q - kv],
    "temperature": lambda score, b, h, q, kv: score * TEMPERATURE,
    "of_words": lambda score, b, h, q, kv: torch.where(
        torch.logical_and(q >= kv, ~(kv == 3)), torch.sigmoid(score) + b / 2 - (h + 1) ** 2 * 1e-2, torch.tensor(-0.5)
    ),
    "of_floats": lambda score, b, h, q, kv: score.clamp(-1, 1) + torch.floor(q * 0.3) % 2 + torch.sqrt(kv.float()) - (kv // 3).to(torch.float32) ** 0.5,
}


def qkv(dtype=torch.float32, grad=False, m=M, n=N):
    shapes = [(B, H, m, D), (B, G, n, D), (B, G, n, D)]
    return [torch.randn(shape).to(dtype).requires_grad_(grad) for shape in shapes]


def compare(score_mod=None, mask_mod=None, dtype=torch.float32, grads=True, **sizes):
    at_most = {torch.float32: 3e-5, torch.float16: 8e-3, torch.bfloat16: 6e-2}[dtype]
    inputs = qkv(dtype, grads, **sizes)
    found, lse = flashtile.flex(*inputs, score_mod, mask_mod=mask_mod, enable_gqa=True, return_lse=True)
    exact = [x.detach().double().requires_grad_(grads) for x in inputs]
    expected, expected_lse = reference.flex(*exact, score_mod, mask_mod)
    torch.testing.assert_close(found.double(), expected, atol=at_most, rtol=at_most)
    torch.testing.assert_close(lse.double(), expected_lse, atol=1e-3 if dtype != torch.float32 else 3e-5, rtol=1e-4)
    if grads:
        grad = torch.randn_like(found)
        for x, y in zip(torch.autograd.grad(found, inputs, grad), torch.autograd.grad(expected, exact, grad.double())):
            torch.testing.assert_close(x.double(), y, atol=4 * at_most, rtol=4 * at_most)


@pytest.mark.parametrize("name", MASKS)
def test_masks(name):
    compare(mask_mod=MASKS[name])


@pytest.mark.parametrize("name", SCORES)
def test_scores(name):
    compare(SCORES[name])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_types(dtype):
    compare(alibi(H), MASKS["document"], dtype)


def test_scores_and_masks_of_other_lengths():
    compare(SCORES["softcap"], causal, m=19, n=33)
    compare(SCORES["longer_bias"], MASKS["sliding_window"], m=33, n=19)


@pytest.mark.parametrize("name", ["causal", "document", "natten", "of_heads"])
def test_beside_flex_attention(name):
    inputs, mask_mod = qkv(), MASKS[name]
    block_mask = create_block_mask(mask_mod, B, H, M, N, device="cpu")
    expected, lse = flex_attention(*inputs, alibi(H), block_mask, enable_gqa=True, return_lse=True)
    found = flashtile.flex(*inputs, alibi(H), block_mask, enable_gqa=True, return_lse=True)
    torch.testing.assert_close(found[0], expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found[1], lse, atol=1e-5, rtol=1e-5)


def test_block_masks():
    block_mask = create_block_mask(causal, None, None, M, N, device="cpu")
    q, k, v = qkv()
    with pytest.raises(flashtile.ArgumentError, match="40 queries.*block_mask._adjust"):
        flashtile.flex(q[:, :, :7], k, v, block_mask=block_mask, enable_gqa=True)
    with pytest.raises(flashtile.ArgumentError, match="both given"):
        flashtile.flex(q, k, v, block_mask=block_mask, mask_mod=causal, enable_gqa=True)
    full = create_block_mask(noop_mask, None, None, M, N, device="cpu")
    assert torch.equal(flashtile.flex(q, k, v, block_mask=full, enable_gqa=True), flashtile.flex(q, k, v, enable_gqa=True))


def test_gradients_of_tensors_that_functions_hold():
    kinds = torch.arange(N, dtype=torch.int32) * 5 % 7
    cases = (
        ("slopes", SLOPES, "h"),
        ("bias", BIAS, "bhqk"),
        ("distances", TABLE, "hd"),
        ("kinds", torch.randn(7), "k"),
        ("temperature", torch.tensor(0.7), ""),
    )
    for name, x, of in cases:
        learned = x.clone().requires_grad_()
        score_mods = {
            "h": lambda score, b, h, q, kv: score - learned[h] * (q - kv),
            "bhqk": lambda score, b, h, q, kv: score + learned[b, h, q, kv],
            "hd": lambda score, b, h, q, kv: score + learned[h, q - kv + N - 1],
            "k": lambda score, b, h, q, kv: score * torch.exp(learned[kinds[kv]] * 0.5),
            "": lambda score, b, h, q, kv: torch.tanh(score * learned),
        }
        inputs = qkv()
        found = flashtile.flex(*inputs, score_mods[of], mask_mod=causal, enable_gqa=True)
        exact = learned.detach().double().requires_grad_()
        doubles = {
            "h": lambda score, b, h, q, kv: score - exact[h] * (q - kv),
            "bhqk": lambda score, b, h, q, kv: score + exact[b, h, q, kv],
            "hd": lambda score, b, h, q, kv: score + exact[h, q - kv + N - 1],
            "k": lambda score, b, h, q, kv: score * torch.exp(exact[kinds[kv]] * 0.5),
            "": lambda score, b, h, q, kv: torch.tanh(score * exact),
        }
        expected, _ = reference.flex(*inputs, doubles[of], causal)
        grad = torch.randn_like(found)
        ours = torch.autograd.grad(found, learned, grad)[0]
        theirs = torch.autograd.grad(expected, exact, grad.double())[0]
        torch.testing.assert_close(ours.double(), theirs, atol=2e-4, rtol=2e-4, msg=name)


def learned_scores(name, w):
    """A score of `w`, in the precision of `w`, and the shape that it has."""
    return {
        "two columns": ((H, 2), lambda s, b, h, q, k: s - torch.exp(w[h, 0]) * torch.log(1 + torch.exp(w[h, 1]) * (q - k).abs())),
        "by group": ((H // 2,), lambda s, b, h, q, k: s * w[h // 2]),
        "one batch for all": ((1, H, M, N), lambda s, b, h, q, k: s + w[0, h, q, k]),
        "by key position": ((H,), lambda s, b, h, q, k: s - w[h] * k),
        "longer than heads": ((9,), lambda s, b, h, q, k: s * w[h]),
        "diagonal": ((H, H), lambda s, b, h, q, k: s + w[h, h]),
        "of queries and of keys": ((M,), lambda s, b, h, q, k: s + w[q] - torch.tanh(w[k])),
        "instead of scores": ((H,), lambda s, b, h, q, k: w[h]),
        "of keys, instead of scores": ((N,), lambda s, b, h, q, k: w[k]),
        "compared alone": ((N,), lambda s, b, h, q, k: torch.where(w[k] > 0, s, -s)),
        "rounded down": ((N,), lambda s, b, h, q, k: s + torch.floor(w[k])),
    }[name]


@pytest.mark.parametrize(
    "name",
    [
        "two columns",
        "by group",
        "one batch for all",
        "by key position",
        "longer than heads",
        "diagonal",
        "of queries and of keys",
        "instead of scores",
        "of keys, instead of scores",
        "compared alone",
        "rounded down",
    ],
)
def test_gradients_of_learned_tables(name):
    shape, _ = learned_scores(name, None)
    learned = (torch.randn(shape) * 0.3).requires_grad_()
    exact = learned.detach().double().requires_grad_()
    inputs = qkv()
    found = flashtile.flex(*inputs, learned_scores(name, learned)[1], mask_mod=causal, enable_gqa=True)
    expected, _ = reference.flex(*inputs, learned_scores(name, exact)[1], causal)
    torch.testing.assert_close(found.double(), expected, atol=2e-5, rtol=2e-5)
    grad = torch.randn_like(found)
    ours = torch.autograd.grad(found, learned, grad)[0]
    # A function that only compares has no gradient.
    theirs = torch.autograd.grad(expected, exact, grad.double())[0] if expected.requires_grad else torch.zeros_like(exact)
    torch.testing.assert_close(ours.double(), theirs, atol=2e-4, rtol=2e-4)


def test_gradients_of_the_lse():
    inputs = qkv(grad=True)
    o, lse = flashtile.flex(*inputs, alibi(H), mask_mod=causal, enable_gqa=True, return_lse=True)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    expected, expected_lse = reference.flex(*exact, alibi(H), causal)
    (o.square().sum() + lse.square().sum()).backward()
    (expected.square().sum() + expected_lse.square().sum()).backward()
    for x, y in zip(inputs, exact):
        torch.testing.assert_close(x.grad.double(), y.grad, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("of", ["o", "lse"])
def test_gradients_of_one_of_two_outputs(of):
    inputs = qkv(grad=True)
    made = dict(zip(("o", "lse"), flashtile.flex(*inputs, alibi(H), mask_mod=causal, enable_gqa=True, return_lse=True)))
    exact = [x.detach().double().requires_grad_() for x in inputs]
    expected = dict(zip(("o", "lse"), reference.flex(*exact, alibi(H), causal)))
    ours = torch.autograd.grad(made[of].square().sum(), inputs, allow_unused=True)
    theirs = torch.autograd.grad(expected[of].square().sum(), exact, allow_unused=True)
    for x, y in zip(ours, theirs):
        torch.testing.assert_close(x.double(), torch.zeros_like(x, dtype=torch.float64) if y is None else y, atol=1e-3, rtol=1e-3)


# What is traced

def test_texts():
    assert "let s = mask(s, pos(i) >= pos(j));" in flashtile.flex_text(mask_mod=causal)
    text = flashtile.flex_text(mask_mod=MASKS["document"], queries=M, keys=N)
    assert "mask(s, pos(i) >= pos(j) && t1 == load(documents_2, [j]))" in text and "let t1 = load(documents, [i]);" in text
    assert "load(bias, [b, h, i, j])" in flashtile.flex_text(SCORES["bias"], batch=B, heads=H, queries=M, keys=N)
    text = flashtile.flex_text(SCORES["relative_bias"], batch=B, heads=H, queries=M, keys=N)
    assert "load(table, [h, pos(i) - pos(j) + 39])" in text
    text = flashtile.flex_text(SCORES["from_the_end"], batch=B, heads=H, queries=M, keys=N)
    assert "select(t1 < 0, t1 + X1, t1)" in text
    assert "load(long, [j, i]).t()" in flashtile.flex_text(SCORES["transposed_bias"], queries=M, keys=N)


def test_functions_are_traced_once():
    from flashtile import _flex

    calls = []

    def counted(width):
        def mask_mod(b, h, q_idx, kv_idx):
            calls.append(width)
            return q_idx - kv_idx < width

        return mask_mod

    inputs = qkv()
    for width in (3, 3, 4):
        # `calls` grows, so that it is part of what the function depends on.
        flashtile.flex(*inputs, mask_mod=counted(width), enable_gqa=True)
    assert calls == [3, 3, 4]
    _flex._PLANS.clear()
    for ids in (DOCUMENTS, DOCUMENTS.flip(0), DOCUMENTS // 2):
        found = flashtile.flex(*inputs, mask_mod=document_of_batch(torch.stack([ids, ids])), enable_gqa=True)
        expected, _ = reference.flex(*inputs, None, document_of_batch(torch.stack([ids, ids])))
        torch.testing.assert_close(found.double(), expected, atol=3e-5, rtol=3e-5)
    assert len(_flex._PLANS) == 1, "other tensors of the same shape need no new trace"


def annealed(cap, window, shift):
    """Functions whose numbers change: floats and integers, one of them twice, one below 0."""

    def score_mod(score, b, h, q_idx, kv_idx):
        return cap * torch.tanh(score / cap) + shift * (kv_idx - q_idx)

    def mask_mod(b, h, q_idx, kv_idx):
        return (q_idx - kv_idx < window) & (kv_idx <= q_idx)

    return score_mod, mask_mod


def test_numbers_that_change_become_arguments():
    from flashtile import _flex

    _flex._ALIKE.clear()
    made = _flex._kernel_of.cache_info
    inputs = qkv(grad=True)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    values = [(1.5, 5, -0.1), (2.0, 5, -0.1), (2.5, 7, -0.1), (3.0, 9, -0.1), (4.0, 3, -0.1), (1.5, 5, -0.1)]
    values += [(5.0, 11, 0.2), (6.5, 40, -0.3)]
    kernels = []
    for value in values:
        score_mod, mask_mod = annealed(*value)
        for _ in range(2):  # the second call is launched by the native module
            found, lse = flashtile.flex(*inputs, score_mod, mask_mod=mask_mod, enable_gqa=True, return_lse=True)
            expected, expected_lse = reference.flex(*exact, score_mod, mask_mod)
            torch.testing.assert_close(found.double(), expected, atol=3e-5, rtol=3e-5)
            torch.testing.assert_close(lse.double(), expected_lse, atol=3e-5, rtol=1e-4)
        g = torch.randn_like(found)
        for x, y in zip(torch.autograd.grad(found, inputs, g), torch.autograd.grad(expected, exact, g.double())):
            torch.testing.assert_close(x.double(), y, atol=1e-4, rtol=1e-4)
        kernels.append(made().currsize)
    # Three of their own; one with the numbers that had changed by then, and one with all three.
    new = [after - before for before, after in zip(kernels, kernels[1:])]
    assert new == [1, 1, 1, 0, 0, 1, 0]
    # Under torch.no_grad() calls are launched by the native module.
    with torch.no_grad():
        plain = [x.detach() for x in inputs]
        for value in values:
            score_mod, mask_mod = annealed(*value)
            expected, _ = reference.flex(*[x.double() for x in plain], score_mod, mask_mod)
            found, _ = flashtile.flex(*plain, score_mod, mask_mod=mask_mod, enable_gqa=True, return_lse=True)
            torch.testing.assert_close(found.double(), expected, atol=3e-5, rtol=3e-5)
        assert made().currsize == kernels[-1]


def test_numbers_that_are_divided_by_stay_literals():
    from flashtile import _flex

    _flex._ALIKE.clear()

    def blocks(size):
        return lambda b, h, q_idx, kv_idx: q_idx // size == kv_idx // size

    inputs = qkv()
    before = _flex._kernel_of.cache_info().currsize
    for size in (2, 3, 5, 7, 11):
        found = flashtile.flex(*inputs, mask_mod=blocks(size), enable_gqa=True)
        expected, _ = reference.flex(*[x.double() for x in inputs], None, blocks(size))
        torch.testing.assert_close(found.double(), expected, atol=3e-5, rtol=3e-5)
    assert _flex._kernel_of.cache_info().currsize == before + 5


def test_tensors_that_change_in_place_are_read_anew():
    ids = DOCUMENTS.clone()
    mask_mod, inputs = document_of_batch(torch.stack([ids, ids])), qkv()
    ids_of = mask_mod.__closure__[0].cell_contents
    before = flashtile.flex(*inputs, mask_mod=mask_mod, enable_gqa=True)
    ids_of.zero_()
    after = flashtile.flex(*inputs, mask_mod=mask_mod, enable_gqa=True)
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, flashtile.flex(*inputs, enable_gqa=True))
    doubled = lambda score, b, h, q, kv: score + (SLOPES_HERE * 2)[h]  # noqa: E731
    globals()["SLOPES_HERE"] = torch.ones(H)
    first = flashtile.flex(*inputs, doubled, mask_mod=causal, enable_gqa=True, return_lse=True)[1]
    SLOPES_HERE.mul_(2)
    second = flashtile.flex(*inputs, doubled, mask_mod=causal, enable_gqa=True, return_lse=True)[1]
    torch.testing.assert_close(second, first + 2)


class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.slopes = torch.nn.Parameter(SLOPES.clone())

    def score_mod(self, score, b, h, q_idx, kv_idx):
        return score - self.slopes[h] * (q_idx - kv_idx)


def test_functions_of_objects():
    module, inputs = Module(), qkv()
    found = flashtile.flex(*inputs, module.score_mod, mask_mod=causal, enable_gqa=True)
    torch.testing.assert_close(found.double(), reference.flex(*inputs, SCORES["slopes"], causal)[0], atol=3e-5, rtol=3e-5)
    found.sum().backward()
    assert module.slopes.grad.abs().min() > 0


# What PyTorch's values are

INF = float("inf")


def decay(score, b, h, q_idx, kv_idx):
    return score * torch.exp(torch.where(q_idx >= kv_idx, (kv_idx - q_idx) * 0.1, -INF))


def kept(score, q_idx, kv_idx):
    return torch.where(q_idx >= kv_idx, score, -INF)


# -inf that does not reach the score by what keeps it hides nothing.
INFINITE = {
    "decay": decay,
    "union": lambda s, b, h, q, k: torch.maximum(kept(s, q, k), torch.where(k < 5, s, -INF)),
    "softcap": lambda s, b, h, q, k: 5 * torch.tanh(kept(s, q, k) / 5),
    "clamped": lambda s, b, h, q, k: kept(s, q, k).clamp(-5, 5),
    "compared": lambda s, b, h, q, k: torch.where(kept(s, q, k) == -INF, s * 0.5, s),
    "reciprocal": lambda s, b, h, q, k: s + 1 / torch.where(q > k, (q - k).float(), -INF),
    "negated": lambda s, b, h, q, k: s + torch.relu(-torch.where(k > q, s, -INF).clamp(min=-3)),
    "subtracted": lambda s, b, h, q, k: s - torch.exp(torch.where(h > 1, s, -INF)),
    "hidden": lambda s, b, h, q, k: torch.where(q >= k, -INF, s).exp() * 0.1 + s,
    "named": lambda s, b, h, q, k: kept(s, q, k) + torch.where(kept(s, q, k) == -INF, 1.0, torch.sigmoid(kept(s, q, k))),
    "either": lambda s, b, h, q, k: torch.where(h % 2 == 0, kept(s, q, k), torch.where(k < 20, s * 2, -INF)),
}


@pytest.mark.parametrize("name", INFINITE)
def test_infinities_inside_of_expressions(name):
    compare(INFINITE[name])


def test_infinities_inside_of_masks():
    compare(mask_mod=lambda b, h, q, k: torch.exp(torch.where(q >= k, (k - q) * 0.1, -INF)) < 0.5)


def test_selects_of_scores_stay_masks():
    scores = {
        "alone": lambda s, b, h, q, k: kept(s, q, k),
        "sum": lambda s, b, h, q, k: 0.5 * (kept(s, q, k) + SLOPES[h]) / 2 - 1,
        "rounded": lambda s, b, h, q, k: kept(s, q, k).to(torch.bfloat16),
        "branches": lambda s, b, h, q, k: torch.where(h == 0, kept(s, q, k), kept(s * 2, q, k)),
        "filled": lambda s, b, h, q, k: s.masked_fill(q < k, -INF),
    }
    for name, score_mod in scores.items():
        assert "-INF" in (text := flashtile.flex_text(score_mod, heads=H).split("scale;")[1]) and "ln(0.0)" not in text, name
    text = flashtile.flex_text(INFINITE["softcap"]).split("scale;")[1]
    assert "ln(0.0)" in text and "-INF" not in text.split("m_new")[0]


NARROW = torch.arange(N)
VALUES = {
    "where": lambda s, b, h, q, k: s.where(q >= k, s * 0.5),
    "where_of_tensor": lambda s, b, h, q, k: SLOPES[h].where(q >= k, s),
    "bool_sum": lambda s, b, h, q, k: s + 2.0 * ((q == k) + (q >= k)) * ((q > 3) * (k > 3)),
    "bool_maximum": lambda s, b, h, q, k: s + 2.0 * torch.maximum(q == k, q > 3),
    "rsub": lambda s, b, h, q, k: torch.rsub(s, k, alpha=0.5) * 0.1,
    "power_of_two": lambda s, b, h, q, k: s + (2**h == 4) + (1 << h) * 0.1,
    "shifts": lambda s, b, h, q, k: s + (q >> k) + (k - 20 >> 40) + (q << 2 >> 1) * 0.01,
    "pow": lambda s, b, h, q, k: s.pow(exponent=2) + torch.pow(s, exponent=3) * 0.1,
    "numpy": lambda s, b, h, q, k: s * NUMPY[0] + (k < NUMPY[1]),
    "enum": lambda s, b, h, q, k: s * (q < Width.WIDE),
    "types": lambda s, b, h, q, k: s * TEMPERATURE.type_as(s) + TEMPERATURE.to(s),
    "round": lambda s, b, h, q, k: s + torch.round(q * 0.25) + torch.round(s * 3) + (-k * 0.5).round(),
    "looks": lambda s, b, h, q, k: s * (1 + s.ndim + q.is_floating_point()) * s.is_floating_point(),
    "filled_bool": lambda s, b, h, q, k: s + (q > k).masked_fill(q == k, 2) + (q * 2).masked_fill(q == k, 2.5) * 0.1,
    "apart": lambda s, b, h, q, k: s + BIAS[b, h, 0][(q - k).clamp(-9, 9) + 9] + BIAS[b, h, 1][q - k],
    "filled": lambda s, b, h, q, k: s.masked_fill(q < k, -2.0).masked_fill(mask=q == k, value=1.0),
    "diagonal": lambda s, b, h, q, k: s + LONG[q, q] - LONG[k, k],
    "ellipsis": lambda s, b, h, q, k: s + BIAS[b, h, ...][q, k] + SLOPES[..., h],
    "before": lambda s, b, h, q, k: s * SLOPES[h - 1] + SLOPES[-h],
    "within": lambda s, b, h, q, k: s * SLOPES[:2][h // 2] + SLOPES[:2][h % 2] + SLOPES[h % 8] + SLOPES[:2][h & 1],
    "reserved": lambda s, b, h, q, k: s + u8[h] + box[h] + grad_q[h],
    "narrow_floats": lambda s, b, h, q, k: s + BYTES[k] * -0.15 + torch.where(BYTES[k] < 300.5, BYTES[k] * 300.5, -1.5) * 1e-3,
    "unused": lambda s, b, h, q, k: (SLOPES[h] * s, s + BIAS[b, h, q, k])[1],
    "narrow": lambda s, b, h, q, k: s + torch.where(BYTES[q].int() - BYTES[k].int() < 3, BYTES[k], 1) + (BYTES[q] & 3) + BYTES[q] // 2,
}  # fmt: skip
BYTES = (torch.arange(N) % 9).to(torch.uint8)
NUMPY = (numpy.float64(0.3), numpy.int64(7))
u8, box, grad_q = torch.cos(torch.arange(3 * H).float()).reshape(3, H)


class Width(enum.IntEnum):
    WIDE = 9


@pytest.mark.parametrize("name", VALUES)
def test_values_are_those_of_pytorch(name):
    compare(VALUES[name], mask_mod=causal, grads=name not in ("round", "looks"))


def test_relu_has_no_gradient_at_0():
    for values in (torch.zeros(H), torch.tensor([-1.0, 0.0, 0.5, 2.0])):
        w = values.clone().requires_grad_()
        exact = values.double().requires_grad_()
        inputs = qkv()
        found = flashtile.flex(*inputs, lambda s, b, h, q, k: s + torch.relu(w[h]) * (q - k), enable_gqa=True)
        expected, _ = reference.flex(*inputs, lambda s, b, h, q, k: s + torch.relu(exact[h]) * (q - k))
        grad = torch.randn_like(found)
        (found,), (expected,) = torch.autograd.grad(found, w, grad), torch.autograd.grad(expected, exact, grad.double())
        torch.testing.assert_close(found.double(), expected, atol=1e-3, rtol=1e-4)
        assert (found[values <= 0] == 0).all()


def test_sigmoids_have_gradients_everywhere():
    compare(lambda s, b, h, q, k: s + torch.sigmoid(s - 90))
    compare(lambda s, b, h, q, k: s * torch.sigmoid(200 * s) + torch.sigmoid(s - s))
    text = flashtile.flex_text(lambda s, b, h, q, k: torch.sigmoid(s))
    assert "1.0 + " in text
    gate = torch.tensor([-100.0, 0, 1, 100], requires_grad=True)
    flashtile.flex(*qkv(), lambda s, b, h, q, k: s * torch.sigmoid(gate[h]), enable_gqa=True).sum().backward()
    assert gate.grad.isfinite().all()


class Changing:
    """Holds what functions read by a name."""

    width = 3

    @staticmethod
    def mask_mod(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (q_idx - kv_idx < Changing.width)


def by_attribute(b, h, q_idx, kv_idx):
    return (q_idx >= kv_idx) & (q_idx - kv_idx < by_attribute.width)


def stale():
    module, held, number, window = types.ModuleType("config"), {"width": 3}, torch.tensor(3), torch.tensor([3])
    flag, get, table = torch.tensor(True), held.get, torch.zeros(9, 9)
    ticks = itertools.cycle([3, 3, 9, 9])
    module.width = by_attribute.width = Changing.width = 3
    exec("def inner(q, k): return q - k < width", module.__dict__)
    return {
        "module": (lambda b, h, q, k: q - k < module.width, lambda: setattr(module, "width", 9)),
        "function_of_module": (lambda b, h, q, k: module.inner(q, k), lambda: setattr(module, "width", 9)),
        "class": (lambda b, h, q, k: q - k < Changing.width, lambda: setattr(Changing, "width", 9)),
        "static": (Changing.mask_mod, lambda: setattr(Changing, "width", 9)),
        "attribute": (by_attribute, lambda: setattr(by_attribute, "width", 9)),
        "item": (lambda b, h, q, k: q - k < number.item(), lambda: number.fill_(9)),
        "int": (lambda b, h, q, k: q - k < int(window), lambda: window.fill_(9)),
        "if": (lambda b, h, q, k: q >= k if flag else q <= k, lambda: flag.fill_(False)),
        "list": (lambda b, h, q, k: q - k < window.tolist()[0], lambda: window.fill_(9)),
        "equal": (lambda b, h, q, k: q - k < (3 if torch.equal(number, window[0]) else 9), lambda: window.fill_(9)),
        "bound": (lambda b, h, q, k: q - k < get("width"), lambda: held.update(width=9)),
        "clock": (lambda b, h, q, k: q - k < ticks.__next__(), lambda: None),
        "stride": (lambda b, h, q, k: q - k < table.stride(0), lambda: table.t_()),
        "globals": (lambda b, h, q, k: q - k < globals()["GLOBAL"], lambda: globals().update(GLOBAL=9)),
    }


GLOBAL = 3


@pytest.mark.parametrize("name", stale())
def test_what_functions_read_is_read_anew(name):
    globals()["GLOBAL"] = 3
    mask_mod, change = stale()[name]
    for _ in range(2):
        compare(mask_mod=mask_mod, grads=False)
        change()
    compare(mask_mod=mask_mod, grads=False)


class Kind(enum.Enum):
    NEAR = 4.5


class Labelled(enum.Enum):
    MEMBER = 1


def test_attributes_of_members_of_enumerations_are_not_kept():
    inputs = qkv()
    for reads in (lambda s, b, h, q, k: s * Labelled.MEMBER.factor, lambda s, b, h, q, k, of=Labelled.MEMBER: s * of.factor):
        for factor in (1.0, 4.0, 0.5):
            Labelled.MEMBER.factor = factor
            expected = flashtile.flex(*inputs, lambda s, b, h, q, k: s * factor, enable_gqa=True)
            torch.testing.assert_close(flashtile.flex(*inputs, reads, enable_gqa=True), expected)


MODES = {
    "grad": (torch.is_grad_enabled, lambda: torch.is_grad_enabled(), (torch.no_grad, torch.enable_grad, torch.inference_mode)),
    "inference": (
        torch.is_inference_mode_enabled,
        lambda: torch.is_inference_mode_enabled(),
        (torch.inference_mode, torch.enable_grad),
    ),
    "deterministic": (
        torch.are_deterministic_algorithms_enabled,
        lambda: torch.are_deterministic_algorithms_enabled(),
        (reference.deterministic, contextlib.nullcontext),
    ),
}


@pytest.mark.parametrize("name", MODES)
def test_modes_of_pytorch_are_those_of_the_call(name):
    inputs = qkv()
    function, by_its_name, modes = MODES[name]
    for reads in (function, by_its_name):

        def score_mod(s, b, h, q, k):
            return s * (2 if reads() else 3)

        for mode in (*modes, *modes):
            with mode():
                factor = 2 if function() else 3
                found = flashtile.flex(*inputs, score_mod, enable_gqa=True)
                expected = flashtile.flex(*inputs, lambda s, b, h, q, k: s * factor, enable_gqa=True)
            torch.testing.assert_close(found, expected)


def test_functions_of_modules_keep_their_plans(monkeypatch):
    """Only what cannot be followed is traced in each call."""
    from flashtile import _flex

    planned, plan = [], _flex._plan
    monkeypatch.setattr(_flex, "_plan", lambda *call: planned.append(call) or plan(*call))
    inputs = qkv()
    config = types.ModuleType("config")
    config.width = 3
    for mask_mod in (
        lambda b, h, q, k: torch.logical_and(q >= k, q - k < config.width),
        lambda b, h, q, k: torch.where(h == 0, q - k < Changing.width, q > k),
        Changing.mask_mod,
        and_masks(causal, sliding_window),
        lambda b, h, q, k: q - k < math.floor(Kind.NEAR.value),
    ):
        planned.clear()
        first = flashtile.flex(*inputs, mask_mod=mask_mod, enable_gqa=True)
        assert torch.equal(first, flashtile.flex(*inputs, mask_mod=mask_mod, enable_gqa=True))
        assert len(planned) == 1


def holding(**held):
    """A function that holds something in each place where functions hold things."""
    of = {"cell": 1.0, "default": 1.0, "named": 1.0, "attribute": 1.0, "listed": [1.0], "partial": 1.0} | held
    cell, listed = of["cell"], of["listed"]

    def score_mod(factor, s, b, h, q_idx, kv_idx, default=of["default"], *, named=of["named"]):
        return s * factor * default * named * score_mod.attribute * cell * listed[0]

    score_mod.attribute = of["attribute"]
    return functools.partial(score_mod, of["partial"])


@pytest.mark.parametrize("place", ["cell", "default", "named", "attribute", "listed", "partial"])
def test_what_functions_hold_is_a_key(place):
    from flashtile import _flex

    def key(x):
        found = _flex._held((holding(**{place: [x] if place == "listed" else x}), None)).key
        assert found is not None
        return found

    for x in (2, 2.0, True, -0.0, float("nan"), "two", 2**70, torch.int32, torch.ones(3), None, (2, [3, math]), Kind.NEAR):
        assert key(x) == key(x) and hash(key(x)) == hash(key(x)), x
        assert key(x) != key(1.0), x
    different = [2, 2.0, True, 1, 0.0, -0.0, (2, 3), [2, 3], (2, (3,)), ((2,), 3), (), None, torch.ones(3), torch.ones(4), torch.ones(3, 1)]
    for at, x in enumerate(different):
        assert all(key(x) != key(y) for y in different[:at]), x
    assert key(torch.ones(4, 4)) == key(torch.zeros(4, 4).t()), "other tensors of a shape take its place"
    one, other = torch.ones(3), torch.ones(3)
    assert key((one, one)) != key((one, other)), "two tensors are not one"
    assert key(lambda: one) != key(lambda: other), "code is its own"
    assert _flex._held((holding(**{place: [Changing()] if place == "listed" else Changing()}), None)).key is None


def test_what_a_function_that_is_called_has_of_its_own():
    def mask_mod(b, h, q_idx, kv_idx, width=3, *, least=0):
        return (q_idx - kv_idx < width * mask_mod.factor) & (kv_idx >= least)

    def other(b, h, q_idx, kv_idx):
        return mask_mod(b, h, q_idx, kv_idx) | (q_idx - kv_idx == other.factor)

    mask_mod.factor, other.factor = 1, 9
    for change in (
        lambda: setattr(mask_mod, "factor", 2),
        lambda: setattr(mask_mod, "__defaults__", (5,)),
        lambda: setattr(mask_mod, "__kwdefaults__", {"least": 7}),
        lambda: setattr(other, "factor", 11),
        lambda: None,
    ):
        for function in (mask_mod, other):
            for _ in range(2):
                compare(mask_mod=function, grads=False)
        change()


def test_a_function_that_holds_itself_has_a_key():
    from flashtile import _flex

    def mask_mod(b, h, q_idx, kv_idx):
        return q_idx >= kv_idx if mask_mod else kv_idx >= q_idx

    assert _flex._held((None, mask_mod)).key == _flex._held((None, mask_mod)).key != _flex._held((mask_mod, None)).key
    compare(mask_mod=mask_mod)


def test_a_tensor_is_read_as_the_kernel_takes_it():
    """Where it lies if it can be: a part of it, without dimensions, with gaps between its numbers, of another type."""
    ids, number = torch.arange(2 * N) // 9, torch.tensor(4)
    gaps = (torch.arange(4 * N) // 20)[::2]
    for of in (ids, ids.int(), gaps, gaps.int()):
        for _ in range(2):
            compare(mask_mod=lambda b, h, q, k: (of[q] == of[k]) & (q - k < number), grads=False)
        of.add_(torch.arange(len(of)) // 4)
    slopes = torch.linspace(1, 2, H).requires_grad_()
    for score_mod in (lambda s, b, h, q, k: s * slopes[h], lambda s, b, h, q, k: s * slopes.detach()[h]):
        for _ in range(2):
            slopes.grad = None
            flashtile.flex(*qkv(), score_mod, enable_gqa=True)
            compare(score_mod, grads=False)


def test_windows_of_other_tensors_are_their_own():
    def window(width):
        return lambda b, h, q, k: q - k < width.item()

    for width in (3, 9):
        compare(mask_mod=window(torch.tensor(width)), grads=False)


def test_integers_beyond_32_bits_are_refused():
    inputs = qkv()
    wide = torch.arange(N) // 5 * 2**32
    of = {
        "ids": lambda b, h, q, k: wide[q] == wide[k],
        "number": lambda b, h, q, k: wide[-1] > k,
    }
    for mask_mod in of.values():
        with pytest.raises(flashtile.ArgumentError, match="torch.unique"):
            flashtile.flex(*inputs, mask_mod=mask_mod, enable_gqa=True)
    unsigned = torch.full((N,), 2**31 + 5).to(torch.uint32)
    with pytest.raises(flashtile.ArgumentError, match="uint32 .* beyond int32"):
        flashtile.flex(*inputs, mask_mod=lambda b, h, q, k: unsigned[k] > q, enable_gqa=True)
    ids = wide >> 32
    compare(mask_mod=lambda b, h, q, k: ids[q] == ids[k], grads=False)
    ids[3] = 2**40  # what fitted before is looked at again
    with pytest.raises(flashtile.ArgumentError, match="beyond int32"):
        flashtile.flex(*inputs, mask_mod=lambda b, h, q, k: ids[q] == ids[k], enable_gqa=True)


def test_expressions_that_grow_in_each_step():
    def doubled(s, b, h, q, k):
        i = h
        for _ in range(28):
            s, i = (s + s.detach() * SLOPES[i]) * 0.5, i // 2 + i // 2
        return torch.tanh(s)

    with torch.no_grad():
        flashtile.flex(*qkv(), doubled, enable_gqa=True)


def test_integers_on_gpus_are_looked_at_once(monkeypatch):
    """By tensors of the CPU that say they are on a GPU: looking at values there is waiting for them."""
    from flashtile import _flex

    looked, equal, capturing = [], torch.equal, False
    monkeypatch.setattr(torch, "equal", lambda a, b: looked.append(len(a)) or equal(a, b))
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda x: True))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    known, ids = len(_flex._FITTING), torch.arange(9)
    for _ in range(3):
        _flex._int32(ids), _flex._int32(ids[:5])
    assert looked == [9, 5] and len(_flex._FITTING) == known + 2
    ids.add_(1)
    _flex._int32(ids), _flex._int32(ids)
    assert looked == [9, 5, 9]
    with torch.inference_mode():
        constant = torch.arange(7)
        _flex._int32(constant), _flex._int32(constant)
    assert looked == [9, 5, 9, 7]
    ids[3] = 2**40
    capturing = True
    _flex._int32(ids)
    capturing = False
    with pytest.raises(flashtile.ArgumentError, match="beyond int32"):
        _flex._int32(ids)
    del ids, constant
    assert len(_flex._FITTING) == known


def test_gradients_that_functions_stop():
    w = torch.linspace(0.5, 1.5, H).requires_grad_()
    inputs, exact = qkv(grad=True), torch.linspace(0.5, 1.5, H).double().requires_grad_()
    score_mod = lambda of: lambda s, b, h, q, k: s * of[h].detach() + of[h] * (q - k) * 0.1  # noqa: E731
    found = flashtile.flex(*inputs, score_mod(w), mask_mod=causal, enable_gqa=True)
    doubles = [x.detach().double().requires_grad_() for x in inputs]
    expected, _ = reference.flex(*doubles, score_mod(exact), causal)
    grad = torch.randn_like(found)
    ours = torch.autograd.grad(found, [*inputs, w], grad)
    theirs = torch.autograd.grad(expected, [*doubles, exact], grad.double())
    for x, y in zip(ours, theirs):
        torch.testing.assert_close(x.double(), y, atol=1e-3, rtol=1e-3)
    alone = flashtile.flex(*qkv(), lambda s, b, h, q, k: s + torch.exp(w[h]).detach() * k, enable_gqa=True)
    assert not alone.requires_grad
    # A kernel has no word that stops the gradient of its score.
    gated = lambda s, b, h, q, k: s * torch.sigmoid(s.detach())  # noqa: E731
    for _ in range(2):
        with pytest.raises(flashtile.GradientError, match="detaches the score"):
            flashtile.flex(*inputs, gated, enable_gqa=True)
    with pytest.raises(flashtile.GradientError, match="detaches the score"):
        flashtile.flex_kernel(gated, enable_gqa=True)(*inputs)
    torch._dynamo.reset()
    prepared = flashtile.flex_kernel(gated, enable_gqa=True)
    compiled = torch.compile(lambda q, k, v: prepared(q, k, v), backend="aot_eager")
    with pytest.raises(Exception, match="detaches the score"):
        compiled(*inputs)
    with torch.no_grad():
        found = flashtile.flex(*inputs, gated, enable_gqa=True)
        torch.testing.assert_close(compiled(*inputs), found)
    torch.testing.assert_close(found.double(), reference.flex(*inputs, gated)[0].detach(), atol=3e-5, rtol=3e-5)
    # No gradient flows through a comparison.
    compare(lambda s, b, h, q, k: torch.where(s.detach() > 0, s, s * 0.5))


def quiet(s, b, h, q, k):
    with torch.no_grad():
        gate = torch.sigmoid(s)
    return s * gate


@torch.no_grad()
def quiet_mask(b, h, q, k):
    return (q - k) * 0.5 < 3


def test_masks_have_no_gradients():
    compare(mask_mod=quiet_mask)


def changed_in_place(s, b, h, q, k):
    factor = torch.tensor(0.0)
    factor += 2
    return s * factor


def filled_in_place(s, b, h, q, k):
    factor = torch.zeros(())
    torch.add(factor, 2, out=factor)
    return s * factor


COMPLEX, SHORTS = torch.ones(H) * 1j, torch.arange(N).to(torch.int16)


OF_POSITIONS = torch.arange(float(N))
WRONG = {
    "erf": (lambda s, b, h, q, k: torch.erf(s), "cannot trace `erf`"),
    "cumsum": (lambda s, b, h, q, k: s.cumsum(0), "cannot trace `cumsum`"),
    "if": (lambda s, b, h, q, k: s if q > 3 else -s, "torch.where"),
    "and": (lambda s, b, h, q, k: torch.where(q > 3 and k > 3, s, -s), "use torch.where, &"),
    "integer": (lambda s, b, h, q, k: s * range(5)[q], "Python integer"),
    "whole": (lambda s, b, h, q, k: s + SLOPES, r"shape \(4,\) is used whole"),
    "partly": (lambda s, b, h, q, k: s + BIAS[b, h], "indexed by 2 values"),
    "too_often": (lambda s, b, h, q, k: s + SLOPES[h, q], "indexed by 2 values"),
    "float": (lambda s, b, h, q, k: s + SLOPES[s], "indexed by a float"),
    "slice": (lambda s, b, h, q, k: s + BIAS[b, :, q, k], "indexed by slice"),
    "short": (lambda s, b, h, q, k: s + SLOPES[q], "4 positions, but there are 40 query positions"),
    "beyond": (lambda s, b, h, q, k: s + BIAS[9, h, q, k], "index 9 is beyond"),
    "nan": (lambda s, b, h, q, k: s * float("nan"), "NaN"),
    "string": (lambda s, b, h, q, k: "score", "result of score_mod.*str"),
    "power": (lambda s, b, h, q, k: s**s, "power"),
    "truncated": (lambda s, b, h, q, k: s + torch.div(q - k, 2, rounding_mode="trunc"), "rounded towards zero"),
    "no_grad": (quiet, "use .detach()"),
    "in_place": (changed_in_place, "changed in place"),
    "out": (filled_in_place, "changed in place"),
    "complex": (lambda s, b, h, q, k: s * COMPLEX[h], "real numbers"),
    "complex_constant": (lambda s, b, h, q, k: s * torch.tensor(1j), "a constant is a complex"),
    "narrow": (lambda s, b, h, q, k: s + (BYTES[q] - BYTES[k]), r"torch.uint8 may wrap.*\.to\(torch.int32\)"),
    "narrow_range": (lambda s, b, h, q, k: s + BYTES[q].clamp(-3, 4), "torch.uint8 and -3, which is no such number"),
    "narrow_compared": (lambda s, b, h, q, k: torch.where(BYTES[q] < 300, s, -s), "torch.uint8 and 300, which is no such number"),
    "narrow_number": (lambda s, b, h, q, k: s + BYTES[q] * 200, "torch.uint8 may wrap"),
    "narrow_short": (lambda s, b, h, q, k: s + SHORTS[q] * SHORTS[k], "torch.int16 may wrap"),
    "inverted": (lambda s, b, h, q, k: s + ~BYTES[q], "has no sign"),
    "to_narrow": (lambda s, b, h, q, k: s + (q - k).to(torch.uint8), "may wrap; convert to torch.int32"),
    "to_complex": (lambda s, b, h, q, k: s.to(torch.complex64), "conversion to torch.complex64"),
    "bool_difference": (lambda s, b, h, q, k: s + ((q > k) - (q < k)), "PyTorch refuses"),
    "integer_power": (lambda s, b, h, q, k: s * (3**h), "write 3.0"),
    "hash": (lambda s, b, h, q, k: s + (q * 738560930 ^ k * 193496630), "reaches 28803876270, which is beyond 32 bits"),
    "shift": (lambda s, b, h, q, k: s + (q << 40), "by 40, which is beyond 32 bits"),
    "wide_constant": (lambda s, b, h, q, k: torch.where(q < 2**40, s, 0.0), "beyond 32 bits"),
    "wide_float": (lambda s, b, h, q, k: torch.where(q < k, s, torch.finfo(torch.float64).min), "beyond float32"),
    "far_behind": (lambda s, b, h, q, k: s + SLOPES[h + 1], "index of `slopes` is from 1 to 4, but the dimension has 4"),
    "far_before": (lambda s, b, h, q, k: s + SLOPES[h - 9], "index of `slopes` is from -9 to -6, but the dimension has 4"),
    "position_behind": (lambda s, b, h, q, k: s + OF_POSITIONS[q + 1], "index of `of_positions` is from 1 to 40, but the dimension has 40"),
    "positions_apart": (lambda s, b, h, q, k: s + SLOPES[q - k], "index of `slopes` is from -39 to 39, but the dimension has 4"),
    "positions_capped": (lambda s, b, h, q, k: s + SLOPES[(q - k).clamp(0, 4)], "index of `slopes` is from 0 to 4, but the dimension has 4"),
    "divmod": (lambda s, b, h, q, k: s + divmod(q, 4)[0], "write x // y"),
    "decimals": (lambda s, b, h, q, k: torch.round(s, decimals=2), "more than one argument"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_traced_is_named(name):
    score_mod, message = WRONG[name]
    with pytest.raises(flashtile.TraceError, match=message):
        flashtile.flex(*qkv(), score_mod, enable_gqa=True)


def test_wrong_arguments():
    q, k, v = qkv()
    wrong = [((q, k, v), "enable_gqa=True"), ((q[0], k, v), "batch, heads"), ((q, q[:, :, :, :4], q), "`k`"), ((q[:1], q, q), "batches")]
    wrong += [((q, k, None), "value is a NoneType"), ((q, k, v[..., :0]), "head dim of 0"), ((q[..., :0], k[..., :0], v), "head dim of 0")]
    wrong += [((q, k, v, 3), "score_mod is a int"), ((q, k, v, None, None, q), "mask_mod is a Tensor")]
    wrong += [((q, k, v, None, q > 0), "block_mask is a Tensor; give a BlockMask"), ((q, k, v, None, (q, k)), "block_mask is a tuple")]
    for args, message in wrong:
        with pytest.raises(flashtile.ArgumentError, match=message):
            flashtile.flex(*args)
    with pytest.raises(flashtile.ArgumentError, match="mask_mod is a Tensor"):
        flashtile.flex_kernel(mask_mod=q)
    with pytest.raises(flashtile.ArgumentError, match="score_mod is a int"):
        flashtile.flex_text(3)
    with pytest.raises(NameError, match="later"):
        flashtile.flex(q, k, v, mask_mod=lambda b, h, q, k: q - k < later, enable_gqa=True)
    later = 3
    assert flashtile.flex(q, k, v, mask_mod=lambda b, h, q, k: q - k < later, enable_gqa=True).shape == q.shape


def test_indices_that_are_loaded_count_from_the_end():
    for dtype in (torch.int32, torch.int64, torch.int8):
        of_batch = torch.tensor([-1, 2], dtype=dtype)
        compare(lambda s, b, h, q, k: s * SLOPES[of_batch[b].long()])


def test_one_batch_of_keys():
    q, k, v = qkv()
    found = flashtile.flex(q, k[:1], v[:1], mask_mod=causal, enable_gqa=True)
    expected = flashtile.flex(q, k[:1].repeat(B, 1, 1, 1), v[:1].repeat(B, 1, 1, 1), mask_mod=causal, enable_gqa=True)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled(backend):
    torch._dynamo.reset()
    attend = flashtile.flex_kernel(SCORES["slopes"], mask_mod=MASKS["document"], enable_gqa=True)
    other = flashtile.flex_kernel(mask_mod=causal, enable_gqa=True, return_lse=True)

    def function(q, k, v):
        return attend(q, k, v) * 2 + other(q, k, v)[0]

    inputs = qkv(grad=True)
    expected = function(*inputs)
    found = torch.compile(function, fullgraph=True, backend=backend)(*inputs)
    torch.testing.assert_close(found, expected)
    grad = torch.randn_like(found)
    for x, y in zip(torch.autograd.grad(found, inputs, grad), torch.autograd.grad(expected, inputs, grad)):
        torch.testing.assert_close(x, y)
    with pytest.raises(Exception, match="flashtile.flex_kernel"):
        torch.compile(lambda q, k, v: flashtile.flex(q, k, v, enable_gqa=True), fullgraph=True, backend=backend)(*inputs)


@pytest.mark.parametrize("dynamic", [None, True])
def test_compiled_for_several_sizes(dynamic):
    torch._dynamo.reset()
    attend = flashtile.flex_kernel(SCORES["slopes"], mask_mod=MASKS["document"], enable_gqa=True)
    compiled = torch.compile(lambda q, k, v: attend(q, k, v), fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for batch, queries, keys, groups in ((1, 20, 20, 4), (1, 33, 33, 4), (2, 33, 40, 4), (3, 20, 20, 2)):
        q, k, v = (torch.randn(batch, heads, length, D) for heads, length in ((H, queries), (groups, keys), (groups, keys)))
        q.requires_grad_()
        found, expected = compiled(q, k, v), attend(q, k, v)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.autograd.grad(found.sum(), q), torch.autograd.grad(expected.sum(), q))


class Attend(torch.nn.Module):
    def __init__(self):
        super().__init__()
        slopes = self.slopes = torch.nn.Parameter(SLOPES.clone())
        self.attend = flashtile.flex_kernel(lambda s, b, h, q, k: s - slopes[h] * (q - k), mask_mod=causal, enable_gqa=True)

    def forward(self, q, k, v):
        return self.attend(q, k, v)


def test_exported_sizes_are_fixed():
    torch._dynamo.reset()
    length = torch.export.Dim("length")
    with pytest.raises(Exception, match="specialized it to be a constant"):
        torch.export.export(Attend(), tuple(qkv()), dynamic_shapes=({2: length},) * 3)


OF_GLOBAL = 0


def by_global(x):
    return x + OF_GLOBAL


def test_compiled_code_has_what_functions_hold():
    torch._dynamo.reset()
    factors = torch.ones(H)
    attend = flashtile.flex_kernel(lambda s, b, h, q, k: s * factors[h], enable_gqa=True)
    factors = torch.full((H,), 3.0)  # another tensor, before the first call
    compiled = torch.compile(lambda q, k, v: attend(q, k, v), fullgraph=True, backend="aot_eager")
    inputs = qkv()
    torch.testing.assert_close(compiled(*inputs), attend(*inputs))
    factors.mul_(2)
    torch.testing.assert_close(compiled(*inputs), attend(*inputs))
    factors = torch.full((H,), 0.5)
    torch.testing.assert_close(compiled(*inputs), attend(*inputs))
    width, share = 3, 0.5
    window = lambda b, h, q, k: q - k < width + by_global(0)  # noqa: E731
    both = flashtile.flex_kernel(lambda s, b, h, q, k: s * share * factors[h], mask_mod=and_masks(window, causal), enable_gqa=True)
    compiled = torch.compile(lambda q, k, v: both(q, k, v), fullgraph=True, backend="aot_eager")
    for width, share, of_global in ((3, 0.5, 0), (9, 0.5, 0), (11, 0.25, 2), (3, 0.125, 2), (1, 1.5, 4), (-1, 1.5, 0)):
        globals()["OF_GLOBAL"] = of_global
        torch.testing.assert_close(compiled(*inputs), both(*inputs), msg=str((width, share)))
    reads = flashtile.flex_kernel(mask_mod=lambda b, h, q, k: k < factors[0].item(), enable_gqa=True)
    with pytest.raises(Exception, match="read values of tensors into Python"):
        torch.compile(lambda q, k, v: reads(q, k, v), fullgraph=True, backend="aot_eager")(*inputs)


def given_by_global(x):
    if GIVEN is None:
        return x
    if isinstance(GIVEN, enum.Enum):
        return x * GIVEN.value
    return x * (0.5 if isinstance(GIVEN, float) and math.isnan(GIVEN) else GIVEN)


class Factor(enum.Enum):
    TWO = 2
    THREE = 3


GIVEN = None
# What a closure and a global hold, one after the other.
HELD = {
    "none": [None, 2.0, None, torch.tensor(0.5), None],
    "enum": [Factor.TWO, Factor.THREE, None, Factor.TWO],
    "nan": [math.nan, 1.0, math.nan, 2.0],
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", HELD)
def test_compiled_code_sees_other_values(name, backend, monkeypatch):
    torch._dynamo.reset()
    inputs, dtype, given = qkv(), torch.float32, HELD[name][0]
    monkeypatch.setitem(globals(), "GIVEN", given)

    def by_closure(s, b, h, q, k):
        is_number = isinstance(given, float) and not math.isnan(given)
        return s.to(dtype) + 2.0 * (q - k < (given if is_number else 1))

    attend = flashtile.flex_kernel(lambda s, b, h, q, k: given_by_global(by_closure(s, b, h, q, k)), enable_gqa=True)
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(lambda *inputs: attend(*inputs), fullgraph=True, backend=counter)
    for given in HELD[name]:
        monkeypatch.setitem(globals(), "GIVEN", given)
        torch.testing.assert_close(compiled(*inputs), attend(*inputs), msg=str(given))
    if backend == "eager" and name != "none":  # what was seen before is not compiled again, but for tensors
        assert counter.frame_count == len({str(x) for x in HELD[name]})
    dtype = torch.float16
    torch.testing.assert_close(compiled(*inputs), attend(*inputs))


def test_compiled_code_refuses_numbers_of_numpy():
    torch._dynamo.reset()
    inputs, width = qkv(), numpy.int64(3)
    attend = flashtile.flex_kernel(mask_mod=lambda b, h, q, k: q - k < width, enable_gqa=True)
    compiled = torch.compile(lambda *inputs: attend(*inputs), fullgraph=True, backend="eager")
    with pytest.raises(Exception, match=r"the number np.int64\(3\) of NumPy.*x.item\(\)"):
        compiled(*inputs)
    width = width.item()
    torch.testing.assert_close(compiled(*inputs), attend(*inputs))


class Copied(Module):
    def __init__(self):
        super().__init__()
        self.attend = flashtile.flex_kernel(self.score_mod, mask_mod=causal, enable_gqa=True)
        self.scaled = flashtile.flex_kernel(functools.partial(self.times, 2.0), enable_gqa=True)

    def times(self, factor, score, b, h, q_idx, kv_idx):
        return score * factor + self.slopes[h]

    def forward(self, q, k, v):
        return self.attend(q, k, v) + self.scaled(q, k, v)

    def expected(self, q, k, v):
        scaled = functools.partial(self.times, 2.0)
        return flashtile.flex(q, k, v, self.score_mod, mask_mod=causal, enable_gqa=True) + flashtile.flex(q, k, v, scaled, enable_gqa=True)


def test_copies_of_modules_call_methods_of_their_own():
    module, inputs = Copied(), qkv()
    copied, pickled = copy.deepcopy(module), pickle.loads(pickle.dumps(module))
    averaged = torch.optim.swa_utils.AveragedModel(module)
    with torch.no_grad():
        for number, other in enumerate((copied, pickled, averaged.module)):
            other.slopes.fill_(number + 2.0)
    for other in (module, copied, pickled, averaged.module):
        torch.testing.assert_close(other(*inputs), other.expected(*inputs))
    copied(*inputs).square().sum().backward()
    assert module.slopes.grad is None and copied.slopes.grad.abs().max() > 0
    # What holds itself is copied once, whichever is copied first.
    attend = copy.deepcopy(module.attend)
    assert attend._given[0].__self__ is not module and attend._given[0].__self__.attend is attend
    blocks = flashtile.flex_kernel(block_mask=create_block_mask(causal, None, None, M, N, device="cpu"), enable_gqa=True)
    torch.testing.assert_close(copy.deepcopy(blocks)(*inputs), blocks(*inputs))


def test_copies_of_modules_call_the_same_functions():
    torch._dynamo.reset()
    module = Attend()
    copied = copy.deepcopy(module)
    with torch.no_grad():
        module.slopes.fill_(0.3)
    inputs = qkv()
    expected = module(*inputs)
    torch.testing.assert_close(copied(*inputs), expected)
    torch.testing.assert_close(torch.compile(copied, fullgraph=True, backend="aot_eager")(*inputs), expected)
    prepared = pickle.loads(pickle.dumps(flashtile.flex_kernel(mask_mod=causal, enable_gqa=True)))
    torch.testing.assert_close(prepared(*inputs), flashtile.flex(*inputs, mask_mod=causal, enable_gqa=True))


def test_functions_without_tensors_are_launched_at_once():
    """A second call of a kind needs no trace and no checks in Python; what differs is another kind."""
    width = 3

    def window(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (q_idx - kv_idx < width)

    def expected(q, k, v):
        i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, (i >= j) & (i - j < width))

    prepared = flashtile.flex_kernel(mask_mod=window)
    for length in (7, 7, 9, 7):
        for width in (3, 3, 5, 3):
            q, k, v = (torch.randn(2, 3, length, 8) for _ in range(3))
            for call in (prepared, lambda q, k, v: flashtile.flex(q, k, v, mask_mod=window)):
                torch.testing.assert_close(call(q, k, v), expected(q, k, v), atol=1e-5, rtol=1e-5)
    q, k, v = (torch.randn(2, 3, 7, 8, requires_grad=True) for _ in range(3))
    grads = torch.autograd.grad(prepared(q, k, v).sum(), (q, k, v))
    for found, exact in zip(grads, torch.autograd.grad(expected(q, k, v).sum(), (q, k, v))):
        torch.testing.assert_close(found, exact, atol=1e-5, rtol=1e-5)
    with pytest.raises(flashtile.ArgumentError, match="differ; pass enable_gqa=True"):
        prepared(q, k[:, :1], v[:, :1])
    assert prepared(q, k[:1], v[:1]).shape == q.shape  # one batch of keys for all


def test_functions_that_compute_are_traced_in_each_call():
    held = [1]

    def shifted(score, b, h, q_idx, kv_idx):
        return score + float(torch.tensor(held).sum()) * (kv_idx % 2)

    q, k, v = (torch.randn(1, 1, 5, 8) for _ in range(3))
    for shift in (1, 4):
        held[0] = shift
        bias = shift * (torch.arange(5) % 2).float()
        exact = torch.nn.functional.scaled_dot_product_attention(q, k, v, bias[None].expand(5, 5))
        torch.testing.assert_close(flashtile.flex(q, k, v, shifted), exact, atol=1e-5, rtol=1e-5)

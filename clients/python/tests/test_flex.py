"""`flashtile.flex` with published functions, beside their definition in float64 and PyTorch's FlexAttention."""

import functools

import pytest
import reference
import torch
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
    with pytest.raises(flashtile.ArgumentError, match="40 queries"):
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
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_traced_is_named(name):
    score_mod, message = WRONG[name]
    with pytest.raises(flashtile.TraceError, match=message):
        flashtile.flex(*qkv(), score_mod, enable_gqa=True)


def test_wrong_arguments():
    q, k, v = qkv()
    wrong = [((q, k, v), "enable_gqa=True"), ((q[0], k, v), "batch, heads"), ((q, q[:, :, :, :4], q), "`k`"), ((q[:1], q, q), "batches")]
    for args, message in wrong:
        with pytest.raises(flashtile.ArgumentError, match=message):
            flashtile.flex(*args)


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

"""`flashtile.sdpa` beside PyTorch's own, in float64."""

import itertools

import numpy
import pytest
import torch
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

import flashtile
from flashtile import _operator

SDPA = torch.nn.functional.scaled_dot_product_attention
# What a result may differ by: the elements are rounded once, and the weights once.
AT_MOST = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def inputs(b, h, g, m, n, d, e, dtype=torch.float32, grad=False):
    shapes = [(b, h, m, d), (b, g, n, d), (b, g, n, e)]
    return [torch.randn(shape).to(dtype).requires_grad_(grad) for shape in shapes]


def compare(qkv, dtype=torch.float32, mask=None, **options):
    """Compares results, and gradients of all that needs some."""
    found = flashtile.sdpa(*qkv, attn_mask=mask, **options)
    exact = [x.detach().double().requires_grad_(x.requires_grad) for x in qkv]
    is_added = mask is not None and mask.dtype != torch.bool
    exact_mask = mask.detach().double().requires_grad_(mask.requires_grad) if is_added else mask
    # PyTorch's formula in float64 takes masks of two dimensions and more.
    of_two = exact_mask[None] if mask is not None and mask.dim() == 1 else exact_mask
    expected = SDPA(*exact, attn_mask=of_two, **options)
    assert found.shape == expected.shape and found.dtype == dtype
    at_most = AT_MOST[dtype]
    torch.testing.assert_close(found.double(), expected, atol=at_most, rtol=at_most)
    of = [(x, y) for x, y in zip([*qkv, mask], [*exact, exact_mask]) if isinstance(x, torch.Tensor) and x.requires_grad]
    if of:
        grad = torch.randn_like(expected)
        ours = torch.autograd.grad(found, [x for x, _ in of], grad.to(dtype))
        theirs = torch.autograd.grad(expected, [y for _, y in of], grad.to(dtype).double())
        for x, y in zip(ours, theirs):
            assert x.shape == y.shape
            torch.testing.assert_close(x.double(), y, atol=4 * at_most, rtol=4 * at_most)


SHAPES = {
    "square": (2, 2, 2, 16, 16, 8, 8),
    "ragged": (1, 2, 2, 33, 17, 8, 8),
    "few_queries": (2, 2, 2, 3, 37, 8, 8),
    "many_queries": (1, 2, 2, 37, 3, 8, 8),
    "groups": (2, 6, 2, 19, 23, 8, 8),
    "one_key_head": (2, 4, 1, 9, 9, 8, 8),
    "wide_values": (1, 2, 2, 9, 11, 8, 24),
}


@pytest.mark.parametrize("dtype", list(AT_MOST), ids=str)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_and_types(shape, is_causal, dtype):
    b, h, g, m, n, d, e = SHAPES[shape]
    compare(inputs(b, h, g, m, n, d, e, dtype, grad=True), dtype, is_causal=is_causal, enable_gqa=h != g)


MASKS = [shape for shape in itertools.product((1, 2), (1, 4), (1, 11), (1, 13))] + [(11, 13), (4, 11, 13), (13,), (1, 13), (11, 1)]


@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_masks_that_keep(shape):
    mask = torch.rand(shape) > 0.4
    compare(inputs(2, 4, 2, 11, 13, 8, 8, grad=True), mask=mask, enable_gqa=True)


@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_masks_that_are_added(shape):
    mask = torch.randn(shape)
    if len(shape) > 1 and shape[-1] > 1:
        mask = mask.masked_fill(torch.rand(shape) > 0.8, -torch.inf)
    compare(inputs(2, 4, 2, 11, 13, 8, 8, grad=True), mask=mask, enable_gqa=True)


@pytest.mark.parametrize("shape", [(11, 13), (4, 11, 13), (2, 1, 11, 13), (2, 4, 11, 13), (2, 1, 1, 13), (13,)], ids=str)
def test_gradients_of_masks(shape):
    compare(inputs(2, 4, 2, 11, 13, 8, 8, grad=True), mask=torch.randn(shape, requires_grad=True), enable_gqa=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_masks_of_other_types(dtype):
    qkv = inputs(2, 4, 2, 11, 13, 8, 8, dtype)
    for mask in (torch.randn(11, 13), torch.randn(11, 13).to(dtype), torch.rand(11, 13) > 0.5):
        found = flashtile.sdpa(*qkv, attn_mask=mask, enable_gqa=True)
        exact = mask if mask.dtype == torch.bool else mask.double()
        expected = SDPA(*(x.double() for x in qkv), attn_mask=exact, enable_gqa=True)
        torch.testing.assert_close(found.double(), expected, atol=AT_MOST[dtype], rtol=AT_MOST[dtype])
    with pytest.raises(flashtile.ArgumentError, match="torch.float64"):
        flashtile.sdpa(*qkv, attn_mask=torch.randn(11, 13, dtype=torch.float64), enable_gqa=True)


@pytest.mark.parametrize("is_added", [False, True])
def test_rows_that_see_nothing_give_0(is_added):
    qkv = inputs(1, 2, 2, 6, 7, 8, 8, grad=True)
    mask = torch.rand(6, 7) > 0.3
    mask[2] = False
    mask = torch.zeros(6, 7).masked_fill(~mask, -torch.inf) if is_added else mask
    o = flashtile.sdpa(*qkv, attn_mask=mask)
    assert o[:, :, 2].abs().max() == 0 and torch.isfinite(o).all()
    for grad in torch.autograd.grad(o.square().sum(), qkv):
        assert torch.isfinite(grad).all()
    compare(qkv, mask=mask)


def test_no_keys():
    q, k, v = inputs(1, 2, 2, 6, 0, 8, 8)
    assert torch.equal(flashtile.sdpa(q, k, v), torch.zeros(1, 2, 6, 8))


def test_views():
    packed = torch.randn(2, 9, 3, 4, 8, requires_grad=True)
    compare([x.transpose(1, 2) for x in packed.unbind(2)], is_causal=True)
    q, k, v = inputs(2, 4, 4, 9, 9, 8, 8)
    compare([q.mT.contiguous().mT, k[:, :, ::1], v.flip(2)], is_causal=True)
    wide = torch.randn(2, 4, 9, 16)
    compare([wide[..., 3:11], wide[..., ::2], wide[..., 8:]])


def test_ranks_and_batches_that_broadcast():
    for lead in ((), (3,), (2, 3), (2, 2, 3)):
        compare([torch.randn(*lead, 5, 8), torch.randn(*lead, 7, 8), torch.randn(*lead, 7, 4)])
    compare([torch.randn(2, 3, 5, 8), torch.randn(1, 3, 7, 8), torch.randn(1, 3, 7, 8)])
    compare([torch.randn(2, 1, 5, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 8)])
    compare([torch.randn(2, 2, 3, 5, 8)] + [torch.randn(2, 2, 3, 7, 8)] * 2, mask=torch.rand(2, 2, 1, 5, 7) > 0.3)


def test_calls_that_differ_from_the_call_before():
    """What is kept of a call is taken for a call of the same kind alone."""
    wide = torch.randn(3, 2, 4, 21, 16)
    odd = torch.randn(3, 2 * 4 * 21 * 8 + 1)[:, 1:].view(3, 2, 4, 21, 8)  # not aligned to more than an element
    calls = [
        wide,
        wide[..., :8],
        wide[..., 3:11],
        wide[:, :, :2],
        wide[:, :1],
        wide[:, :, :, :20],
        wide.transpose(2, 3).contiguous().transpose(2, 3),
        wide.bfloat16(),
        wide.half(),
        odd,
    ]
    for _ in range(2):
        for q, k, v in calls:
            for is_causal in (False, True):
                found = flashtile.sdpa(q, k, v, is_causal=is_causal)
                expected = SDPA(q.double(), k.double(), v.double(), is_causal=is_causal)
                assert found.dtype == q.dtype and found.is_contiguous()
                torch.testing.assert_close(found.double(), expected, atol=AT_MOST[q.dtype], rtol=AT_MOST[q.dtype])
    q, k, v = wide
    learned = q.clone().requires_grad_()
    assert flashtile.sdpa(learned, k, v).requires_grad and not flashtile.sdpa(q, k, v).requires_grad
    with torch.no_grad():
        assert not flashtile.sdpa(learned, k, v).requires_grad
    with pytest.raises(flashtile.ArgumentError):
        flashtile.sdpa(q, k, v, scale=1e300)


def test_scales():
    qkv = inputs(1, 2, 2, 5, 5, 8, 8)
    for scale in (None, 0.0, -0.7, 3):
        compare(qkv, scale=scale)


def test_dropout_is_linear_in_values_and_leaves_out_its_share():
    """With one seed the weights are the same in each pass, so that the result is linear in the values."""
    q, k, v = inputs(2, 4, 4, 33, 65, 8, 65, grad=True)
    ones = torch.eye(65).expand(2, 4, 65, 65).contiguous()

    def weights(seed):
        torch.manual_seed(seed)
        return flashtile.sdpa(q, k, ones, dropout_p=0.3)

    kept = weights(1)
    plain = flashtile.sdpa(q, k, ones)
    share = (kept == 0).float().mean().item()
    assert abs(share - 0.3) < 0.02
    left = kept != 0
    torch.testing.assert_close(kept[left], plain[left] / 0.7, atol=1e-5, rtol=1e-5)
    assert torch.equal(weights(1), kept) and not torch.equal(weights(2), kept)
    torch.manual_seed(1)
    o = flashtile.sdpa(q, k, v, dropout_p=0.3)
    torch.testing.assert_close(o, kept @ v, atol=1e-5, rtol=1e-5)
    grad = torch.randn_like(o)
    # The backward pass draws the same numbers: against the formula with the weights that were kept.
    factor = (left.double() / 0.7).detach()
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    scores = exact[0] @ exact[1].mT / 8**0.5
    expected = (scores.softmax(-1) * factor) @ exact[2]
    for x, y in zip(torch.autograd.grad(o, (q, k, v), grad), torch.autograd.grad(expected, exact, grad.double())):
        torch.testing.assert_close(x.double(), y, atol=1e-4, rtol=1e-4)
    assert flashtile.sdpa(q, k, v, dropout_p=1.0).abs().max() == 0


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled(backend):
    mask, bias = torch.rand(9, 11) > 0.3, torch.randn(2, 1, 1, 11)
    torch._dynamo.reset()

    def function(q, k, v):
        one = flashtile.sdpa(q, k, v, is_causal=True, enable_gqa=True)
        two = flashtile.sdpa(q, k, v, attn_mask=mask, enable_gqa=True)
        return one + two * flashtile.sdpa(q, k, v, attn_mask=bias, enable_gqa=True, dropout_p=0.0)

    qkv = inputs(2, 4, 2, 9, 11, 8, 8, grad=True)
    expected = function(*qkv)
    found = torch.compile(function, fullgraph=True, backend=backend)(*qkv)
    torch.testing.assert_close(found, expected)
    grad = torch.randn_like(found)
    for x, y in zip(torch.autograd.grad(found, qkv, grad), torch.autograd.grad(expected, qkv, grad)):
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_shares_of_dropout_may_vary_in_compiled_code(backend):
    torch._dynamo.reset()
    q, k, v = inputs(1, 2, 2, 5, 7, 8, 8)
    compiled = torch.compile(lambda q, k, v, share: flashtile.sdpa(q, k, v, dropout_p=share), fullgraph=True, backend=backend)
    for share in (0.1, 0.2, 0.7):
        torch.manual_seed(1)
        found = compiled(q, k, v, share)
        torch.manual_seed(1)
        torch.testing.assert_close(found, flashtile.sdpa(q, k, v, dropout_p=share))
    torch.testing.assert_close(compiled(q, k, v, 0.0), flashtile.sdpa(q, k, v))
    assert compiled(q, k, v, 1.0).abs().max() == 0
    torch._dynamo.reset()
    itself = torch.compile(flashtile.sdpa, dynamic=True, fullgraph=True, backend=backend)
    torch.testing.assert_close(itself(q, k, v, is_causal=True), flashtile.sdpa(q, k, v, is_causal=True))


@pytest.mark.parametrize("dynamic", [True, None])
def test_numbers_of_heads_may_vary_in_compiled_code(dynamic):
    compiled = torch.compile(
        lambda q, k: flashtile.sdpa(q, k, k, enable_gqa=True), fullgraph=True, backend="aot_eager", dynamic=dynamic
    )
    for heads, groups in ((2, 2), (3, 3), (4, 2), (6, 2)):
        q, k, _ = inputs(1, heads, groups, 5, 7, 8, 8)
        torch.testing.assert_close(compiled(q, k), flashtile.sdpa(q, k, k, enable_gqa=True))


def test_what_cannot_be_done():
    q, k, v = inputs(1, 4, 2, 5, 5, 8, 8)
    mask = torch.rand(5, 5) > 0.5
    wrong = [
        ((q, k, v), {}, "enable_gqa=True"),
        ((q[:, :3], k, v), {"enable_gqa": True}, "3 query heads are no multiple of 2"),
        ((q, q, q), {"attn_mask": mask, "is_causal": True}, "both given"),
        ((q, q, q), {"dropout_p": 1.5}, "dropout_p is 1.5"),
        ((q, q, q), {"dropout_p": None}, "dropout_p is None; it is a number"),
        ((q, q, q), {"dropout_p": torch.tensor(0.5)}, "dropout_p is tensor"),
        ((q, q, q), {"scale": "x"}, "scale is 'x'; give a number"),
        ((q, q, q), {"scale": "0.3"}, "scale is '0.3'; give a number"),
        ((3, k, v), {"enable_gqa": True}, "query is a int"),
        ((q, q, q), {"attn_mask": mask[:3]}, "does not broadcast"),
        ((q.double(), q.double(), q.double()), {}, "torch.float32"),
        ((q, k, v[:, :1]), {"enable_gqa": True}, "must have the same"),
        ((q, q[..., :4], q), {}, "`k`"),
    ]
    for args, options, message in wrong:
        with pytest.raises(flashtile.ArgumentError, match=message):
            flashtile.sdpa(*args, **options)


def test_tensors_are_no_scales():
    """The gradient of a scale that is learned would be lost without a word."""
    qkv = inputs(1, 2, 2, 5, 5, 8, 8)
    for scale in (torch.nn.Parameter(torch.tensor(0.3)), torch.tensor(0.3), torch.tensor([0.3])):
        for call in (flashtile.sdpa, flashtile.flex):
            for with_gradients in (False, True):
                tensors = [x.clone().requires_grad_(with_gradients) for x in qkv]
                with pytest.raises(flashtile.ArgumentError, match="gradient would be lost.*multiply the queries"):
                    call(*tensors, scale=scale)
        with pytest.raises(flashtile.ArgumentError, match="multiply the queries"):
            flashtile.flex_kernel(scale=scale)
    for scale in (numpy.float32(0.5), numpy.float64(0.5), numpy.array(0.5)):
        assert torch.equal(flashtile.sdpa(*qkv, scale=scale), flashtile.sdpa(*qkv, scale=0.5))
        assert torch.equal(flashtile.flex(*qkv, scale=scale), flashtile.sdpa(*qkv, scale=0.5))


@pytest.mark.filterwarnings("ignore:Lower right causal bias")
@pytest.mark.parametrize("make", [causal_lower_right, causal_upper_left])
@pytest.mark.parametrize("m, n", [(5, 5), (3, 6), (6, 3)])
def test_causal_biases_of_pytorch(make, m, n):
    torch._dynamo.reset()
    q, k, v = qkv = inputs(2, 4, 2, m, n, 8, 8, grad=True)
    bias = make(m, n)
    found = flashtile.sdpa(*qkv, attn_mask=bias, enable_gqa=True)
    offset = n - m if make is causal_lower_right else 0
    expected = flashtile.sdpa(*qkv, attn_mask=torch.ones(m, n, dtype=torch.bool).tril(offset), enable_gqa=True)
    torch.testing.assert_close(found, expected)
    grad = torch.randn_like(found)
    for x, y in zip(torch.autograd.grad(found, qkv, grad), torch.autograd.grad(expected, qkv, grad)):
        torch.testing.assert_close(x, y)
    compiled = torch.compile(lambda *qkv: flashtile.sdpa(*qkv, attn_mask=bias, enable_gqa=True), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*qkv), expected)
    torch.manual_seed(1)
    dropped = flashtile.sdpa(*qkv, attn_mask=bias, enable_gqa=True, dropout_p=0.5)
    torch.manual_seed(1)
    mask = torch.ones(m, n, dtype=torch.bool).tril(offset)
    torch.testing.assert_close(dropped, flashtile.sdpa(*qkv, attn_mask=mask, enable_gqa=True, dropout_p=0.5))
    with pytest.raises(flashtile.ArgumentError, match=f"a CausalBias of {m} queries and {n} keys, but there are {m - 1} and {n}"):
        flashtile.sdpa(q[:, :, 1:], k, v, attn_mask=bias, enable_gqa=True)
    with pytest.raises(flashtile.ArgumentError, match="both given"):
        flashtile.sdpa(*qkv, attn_mask=bias, enable_gqa=True, is_causal=True)


class Subclass(torch.Tensor):
    pass


def test_tensors_that_are_refused():
    q, k, v = inputs(1, 2, 2, 6, 7, 8, 8)
    nested = torch.nested.nested_tensor([torch.randn(3, 8), torch.randn(4, 8)], layout=torch.jagged)
    wrong = [
        ((q, k, v, torch.randn(1, 1, 2, 6, 7)), r"\(1, 1, 2, 6, 7\) does not broadcast to \(1, 2, 6, 7\)"),
        ((q[..., :0], k[..., :0], v), "query .* has a head dim of 0"),
        ((q, k, v[..., :0]), "value .* has a head dim of 0"),
        ((nested, nested, nested), "query is nested"),
        ((q.as_subclass(Subclass), k, v), "as_subclass"),
        ((q, k, 3), "value is a int"),
        ((q, k, v, 3), "attn_mask is a int"),
    ]
    for args, message in wrong:
        with pytest.raises(flashtile.ArgumentError, match=message):
            flashtile.sdpa(*args)


def test_batches_of_gradients():
    qkv = inputs(1, 2, 2, 6, 7, 8, 8, grad=True)
    o = flashtile.sdpa(*qkv, is_causal=True)
    grads = torch.randn(3, *o.shape)
    found = torch.autograd.grad(o, qkv, grads, retain_graph=True, is_grads_batched=True)
    one_by_one = [torch.autograd.grad(o, qkv, grad, retain_graph=True) for grad in grads]
    for x, of in zip(found, zip(*one_by_one)):
        torch.testing.assert_close(x, torch.stack(of))


def test_texts():
    assert "load(keep, [b, i, j])" in flashtile.sdpa_text("bool", "BMN")
    assert "philox" in flashtile.sdpa_text("causal", dropout=True)
    assert "pos(i) + N - M >= pos(j)" in flashtile.sdpa_text("lower_right")
    with pytest.raises(flashtile.ArgumentError, match="masked is 'zz'; it is one of no, causal"):
        flashtile.sdpa_text("zz")
    with pytest.raises(flashtile.ArgumentError, match="letters of BHMN"):
        flashtile.sdpa_text("bool", "X")


class Forms:
    """Sees which form a backward pass takes.

    The plain form is predicted to take two seconds, the fused one one, and shares `of_shares` of it.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, of_shares: float = 1.0):
        self.taken: list[str] = []

        def seconds(made: _operator.Gradient, *_) -> float:
            return (1.0 if self.is_fused(made) else 2.0) * (of_shares if self.has_shares(made) else 1.0)

        monkeypatch.setattr(_operator.Gradient, "seconds", seconds)
        choose = _operator.Operator._in_best_form

        def noted(op, *args):
            made = choose(op, *args)
            self.taken.append(("fused" if self.is_fused(made) else "plain") + ("-shares" if self.has_shares(made) else ""))
            return made

        monkeypatch.setattr(_operator.Operator, "_in_best_form", noted)
        for op in _operator._OPERATORS.values():
            monkeypatch.setattr(op, "_kept", {})

    @staticmethod
    def is_fused(made: _operator.Gradient) -> bool:
        return any(step.native.name.endswith("_grad_sums") for step in made.steps)

    @staticmethod
    def has_shares(made: _operator.Gradient) -> bool:
        return any("_grad_shares" in step.native.name for step in made.steps)


@pytest.mark.parametrize("is_causal", [False, True])
def test_the_fused_form_of_a_gradient_where_it_is_faster(monkeypatch, is_causal):
    forms = Forms(monkeypatch)
    compare(inputs(2, 4, 4, 21, 33, 8, 8, grad=True), is_causal=is_causal)
    assert forms.taken == ["fused"]
    monkeypatch.setattr(_operator.Gradient, "seconds", lambda made, *_: 0.99 if forms.is_fused(made) else 1.0)
    compare(inputs(2, 4, 4, 21, 34, 8, 8, grad=True), is_causal=is_causal)
    assert forms.taken == ["fused", "plain"]  # for 1% the same bits in each launch are not given up


def test_the_same_bits_in_deterministic_mode(monkeypatch):
    forms = Forms(monkeypatch)
    torch.use_deterministic_algorithms(True)
    try:
        compare(inputs(2, 4, 4, 21, 33, 8, 8, grad=True))
    finally:
        torch.use_deterministic_algorithms(False)
    assert forms.taken == ["plain"]


@pytest.mark.parametrize("deterministic, taken", [(False, "fused-shares"), (True, "plain-shares")])
def test_heads_that_share_keys_have_programs_each_where_that_is_faster(monkeypatch, deterministic, taken):
    forms = Forms(monkeypatch, of_shares=0.5)
    torch.use_deterministic_algorithms(deterministic)
    try:
        compare(inputs(2, 6, 2, 21, 33, 8, 8, grad=True), enable_gqa=True)
        compare(inputs(1, 5, 1, 9, 9, 8, 8, grad=True), is_causal=True, enable_gqa=True)
        # Keys of their own have one program each.
        compare(inputs(2, 4, 4, 21, 33, 8, 8, grad=True))
    finally:
        torch.use_deterministic_algorithms(False)
    assert forms.taken == [taken, taken, taken.removesuffix("-shares")]


@pytest.mark.parametrize("shape", [(9, 9), (2, 9, 9), (1, 2, 1, 9)])
def test_the_fused_form_with_the_gradient_of_an_added_mask(monkeypatch, shape):
    forms = Forms(monkeypatch)
    compare(inputs(1, 2, 2, 9, 9, 8, 8, grad=True), mask=torch.randn(shape, requires_grad=True))
    assert forms.taken == ["fused"]


def test_a_fused_form_that_is_not_built(monkeypatch):
    forms = Forms(monkeypatch)
    # Rows of a norm have no walk over columns that a gradient could share.
    x, weight = torch.randn(5, 8, requires_grad=True), torch.randn(8, requires_grad=True)
    y = flashtile.builtin("rms_norm")(x, weight, 1e-6)
    expected = torch.nn.functional.rms_norm(x, (8,), weight, 1e-6)
    grad = torch.randn_like(y)
    for found, exact in zip(torch.autograd.grad(y, (x, weight), grad), torch.autograd.grad(expected, (x, weight), grad)):
        torch.testing.assert_close(found, exact, atol=1e-5, rtol=1e-5)
    assert forms.taken == ["plain"]


def test_the_fused_form_in_a_compiled_function(monkeypatch):
    forms = Forms(monkeypatch)
    qkv = inputs(1, 2, 2, 9, 12, 8, 8, grad=True)
    o = torch.compile(lambda q, k, v: flashtile.sdpa(q, k, v), backend="aot_eager", fullgraph=True)(*qkv)
    expected = torch.nn.functional.scaled_dot_product_attention(*qkv)
    grad = torch.randn_like(o)
    for found, exact in zip(torch.autograd.grad(o, qkv, grad), torch.autograd.grad(expected, qkv, grad)):
        torch.testing.assert_close(found, exact, atol=1e-5, rtol=1e-5)
    assert forms.taken == ["fused"]


def test_the_cpu_takes_the_plain_form():
    qkv = inputs(1, 2, 2, 9, 9, 8, 8, grad=True)
    made = flashtile.sdpa(*qkv).grad_fn.op.differentiate(("q", "k", "v"))
    assert made.seconds(torch.device("cpu"), {"T": torch.float32}, {"B": 1}) is None


@pytest.mark.parametrize("shape", [(0, 2, 3, 16), (2, 2, 0, 16), (2, 0, 3, 16)])
def test_tensors_without_elements_have_gradients(shape):
    """A sum gives its gradient with strides of 0, and what has no elements is contiguous all the same."""
    q, k, v = (torch.randn(shape, requires_grad=True) for _ in range(3))
    flashtile.sdpa(q, k, v).sum().backward()
    assert all(x.grad.shape == shape for x in (q, k, v))
    turned = torch.randn(*shape[:2], shape[3], shape[2]).transpose(-1, -2)
    assert flashtile.sdpa(turned, turned, turned).shape == shape
    assert flashtile.flex(turned, turned, turned).shape == shape


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_no_query_heads_have_gradients(dtype, is_compiled):
    torch._dynamo.reset()
    calls = [lambda q, k, v: flashtile.sdpa(q, k, v, enable_gqa=True), flashtile.flex_kernel(enable_gqa=True)]
    for call in calls:
        call = torch.compile(call, backend="aot_eager") if is_compiled else call
        qkv = inputs(2, 0, 1, 3, 5, 8, 4, dtype, grad=True)
        found = torch.autograd.grad(call(*qkv).sum(), qkv)
        for x, of in zip(found, qkv):
            assert x.shape == of.shape and x.dtype == dtype and not x.any()


def test_gradients_read_numbers_that_are_negated():
    q, k = (torch.randn(1, 1, n, 4, requires_grad=True) for n in (3, 5))
    v = torch.randn(1, 1, 5, 1, dtype=torch.complex64).conj().imag
    assert v.is_neg()
    given = torch._neg_view(torch.randn(1, 1, 3, 1))
    found = torch.autograd.grad(flashtile.sdpa(q, k, v), (q, k), given)
    expected = torch.autograd.grad(torch.nn.functional.scaled_dot_product_attention(q, k, v), (q, k), given)
    for one, other in zip(found, expected):
        torch.testing.assert_close(one, other)


def test_sparse_gradients_are_refused():
    q = torch.randn(1, 1, 3, 4, requires_grad=True)
    o = flashtile.sdpa(q, q, q)
    with pytest.raises(flashtile.ArgumentError, match="nested or sparse; make it dense"):
        o.backward(torch.ones_like(o).to_sparse())

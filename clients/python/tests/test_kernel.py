"""Kernels as functions on tensors, as operators of PyTorch, and their gradients."""

import copy
import io
import pathlib
import pickle
import re
import subprocess
import sys
import threading

import numpy
import pytest
import torch

import flashtile

ROW_SUMS = """
/// Twice the sum of each row.
pub fn row_sums<T: Element>(x: &Tensor<T, (M, N)>, by: f32, y: &mut Tensor<f32, (M)>) {
    let i = program(tiles(M));
    let mut sum = zeros(i);
    for j in tiles(N) {
        sum += rowsum(load(x, [i, j]));
    }
    store(y, [i], by * sum);
}
"""


def qkv(b=2, h=4, g=2, m=9, n=13, d=8, dtype=torch.float32, grad=False):
    shapes = [(b, h, m, d), (b, g, n, d), (b, g, n, d)]
    return [torch.randn(shape).to(dtype).requires_grad_(grad) for shape in shapes]


def causal(q, k, v, scale):
    """Bottom-right aligned, in float64."""
    group = q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    m, n = q.shape[2], k.shape[2]
    keep = torch.arange(m)[:, None] + n - m >= torch.arange(n)
    scores = (q @ k.mT * scale).masked_fill(~keep, -torch.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def close(found, expected, dtype=torch.float32):
    at_most = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    torch.testing.assert_close(found.double(), expected.double(), atol=at_most, rtol=at_most)


def test_inputs_in_order_and_by_name():
    attention = flashtile.builtin("causal_attention")
    q, k, v = qkv()
    o, lse = attention(q, k, v, 0.3)
    expected, expected_lse = causal(q, k, v, 0.3)
    close(o, expected)
    close(lse, expected_lse)
    named = attention(q, k, scale=0.3, v=v)
    assert torch.equal(named.o, o) and torch.equal(named.lse, lse)
    assert attention.inputs == ("q", "k", "v", "scale") and attention.outputs == ("o", "lse")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_element_types_follow_from_inputs(dtype):
    q, k, v = qkv(dtype=dtype)
    o, lse = flashtile.builtin("causal_attention")(q, k, v, 0.3)
    assert (o.dtype, lse.dtype) == (dtype, torch.float32)
    close(o, causal(q, k, v, 0.3)[0], dtype)


def test_texts_and_files(tmp_path: pathlib.Path):
    x = torch.randn(5, 7)
    close(flashtile.kernel(ROW_SUMS)(x, 2.0), 2 * x.sum(1))
    path = tmp_path / "sums.rs"
    path.write_text(ROW_SUMS + ROW_SUMS.replace("row_sums", "other_sums"))
    close(flashtile.kernel(path, "other_sums")(x, 3), 3 * x.sum(1))
    close(flashtile.kernel(str(path), name="row_sums")(x, 3.0), 3 * x.sum(1))
    with pytest.raises(flashtile.KernelError, match="name one as"):
        flashtile.kernel(path)
    with pytest.raises(flashtile.KernelError, match="no kernel `mine`.*row_sums, other_sums"):
        flashtile.kernel(path, "mine")


def test_errors_of_a_text_have_a_place():
    with pytest.raises(flashtile.KernelError, match=r"kernel text:7:16"):
        flashtile.kernel(ROW_SUMS.replace("rowsum(load", "rowsums(load"))


def test_views_are_read_where_they_lie():
    attention = flashtile.builtin("causal_attention")
    packed = torch.randn(2, 9, 3, 4, 8)
    q, k, v = (x.transpose(1, 2) for x in packed.unbind(2))
    close(attention(q, k, v, 0.3).o, causal(q, k, v, 0.3)[0])
    shared = k[:1].expand(2, -1, -1, -1)
    close(attention(q, shared, v, 0.3).o, causal(q, shared, v, 0.3)[0])
    with pytest.raises(flashtile.ArgumentError, match="`k`.*contiguous"):
        attention(q, k.mT.contiguous().mT, v, 0.3)


def test_numbers_that_are_negated_when_they_are_read():
    x = torch.complex(torch.randn(5, 7), torch.randn(5, 7))
    negated = x.conj().imag
    assert negated.is_neg()
    close(flashtile.kernel(ROW_SUMS)(negated.contiguous(), 1.0), -x.imag.sum(1))
    y = torch._neg_view(torch.randn(5, 7))
    close(flashtile.kernel(ROW_SUMS)(y, 1.0), y.sum(1))


def test_outputs_of_the_caller():
    attention = flashtile.builtin("causal_attention")
    q, k, v = qkv()
    o, lse = torch.empty(2, 9, 4, 8).transpose(1, 2), torch.empty(2, 4, 9)
    made = attention(q, k, v, 0.3, out=(o, lse))
    assert made.o is o and made.lse is lse
    close(o, causal(q, k, v, 0.3)[0])
    with pytest.raises(flashtile.ArgumentError, match="2 outputs"):
        attention(q, k, v, 0.3, out=o)
    with pytest.raises(flashtile.ArgumentError, match="`lse`"):
        attention(q, k, v, 0.3, out=(o, lse[..., :-1]))
    with pytest.raises(flashtile.ArgumentError, match="`q`|`o`"):
        attention(q, k, v, 0.3, out=(q, lse))
    q.requires_grad_()
    with pytest.raises(flashtile.ArgumentError, match="no gradients"):
        attention(q, k, v, 0.3, out=(o, lse))
    with torch.no_grad():
        attention(q, k, v, 0.3, out=(o, lse))


def test_copies_of_modules_share_kernels():
    row_sums = flashtile.kernel(ROW_SUMS)
    assert copy.deepcopy({"kernel": row_sums})["kernel"] is row_sums


def test_kernels_and_their_results_can_be_pickled():
    x = torch.randn(5, 7)
    two = ROW_SUMS + ROW_SUMS.replace("row_sums", "other_sums").replace("by * sum", "2.0 * by * sum")
    for kernel in (flashtile.kernel(two, "other_sums"), flashtile.kernel(two, "other_sums", sizes={"N": 7}, types={"T": "f32"})):
        again = pickle.loads(pickle.dumps(kernel))
        assert again is not kernel and again._operator(()) is kernel._operator(())
        assert torch.equal(again(x, 1.0), kernel(x, 1.0))
    inputs = qkv(grad=True)
    attention = flashtile.builtin("causal_attention", grad_from=["o", "lse"])
    saved = io.BytesIO()
    torch.save({"kernel": attention, "made": attention(*[y.detach() for y in inputs], 0.3)}, saved)
    saved.seek(0)
    loaded = torch.load(saved, weights_only=False)
    made = loaded["kernel"](*inputs, 0.3)
    assert made.lse.requires_grad and torch.equal(loaded["made"].lse, made.lse) and torch.equal(loaded["made"].o, made.o)
    assert type(loaded["made"]) is type(made)


def test_tensors_that_are_written_to_have_changed():
    row_sums, weights, x = flashtile.kernel(ROW_SUMS), torch.randn(5, requires_grad=True), torch.zeros(5)
    y = (weights * x).sum()
    row_sums(torch.randn(5, 9), 1.0, out=x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
    with pytest.raises(flashtile.ArgumentError, match="requires a gradient"):
        row_sums(torch.randn(5, 9), 1.0, out=weights)
    with torch.no_grad():
        row_sums(torch.ones(5, 9), 1.0, out=weights)
    assert torch.equal(weights.detach(), torch.full((5,), 9.0)) and weights._version == 1
    with torch.inference_mode():
        assert torch.equal(row_sums(torch.ones(5, 9), 1.0, out=torch.empty(5)), torch.full((5,), 9.0))


FORKED = """
import os
import torch
import flashtile

kernel = flashtile.builtin("row_softmax")
x = torch.randn(2, 3)


def child(*calls):
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    for call in calls:
        try:
            call()
        except flashtile.DeviceError as error:
            assert "spawn" in str(error)
        else:
            os._exit(1)
    os._exit(0)


kept = kernel(x.requires_grad_()).sum()
x = x.detach()
attend = lambda: flashtile.sdpa(*[torch.randn(1, 1, 2, 8)] * 3)
attend()
calls = [lambda: kernel(x), lambda: kernel(x, out=torch.empty(2, 3)), attend, kept.backward, lambda: flashtile.tune(kernel, x)]
assert child(*calls) == 0
kernel(x)
"""


def test_children_of_fork_do_not_wait_without_end():
    made = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60)
    assert made.returncode == 0, made.stderr
    # A process that has run nothing before may fork.
    first = FORKED.split("kept =")[0] + "assert child(lambda: kernel(x)) == 1"
    made = subprocess.run([sys.executable, "-c", first], capture_output=True, text=True, timeout=60)
    assert made.returncode == 0, made.stderr


def test_sizes_that_are_fixed_are_those_of_every_call():
    text = """
    pub fn sums<T: Element>(x: &Tensor<T, (M, N)>, y: &mut Tensor<f32, (M)>) {
        let i = program(tiles(M));
        let mut l = zeros(i);
        for j in tiles(N) { l += rowsum(load(x, [i, j])); }
        store(y, [i], l);
    }"""
    kernel = flashtile.kernel(text, sizes={"N": 4})
    assert kernel(torch.ones(3, 4)).tolist() == [4, 4, 4]
    wanted = re.escape("`x`: dimension 1 must be N = 4 (fixed before the call), but is ")
    for columns in (1, 5):
        x = torch.ones(3, columns, requires_grad=True)
        for call in (kernel, torch.compile(lambda x: kernel(x), backend="aot_eager", fullgraph=True)):
            with pytest.raises(Exception, match=wanted):
                call(x)


def test_wrong_arguments():
    attention = flashtile.builtin("causal_attention")
    q, k, v = qkv()
    wrong = [
        ((q, k, v), {}, "takes 4 inputs .q, k, v, scale., but 3"),
        ((q, k, v, 0.3), {"width": 2}, "`width`"),
        ((q, k, v), {"q": q}, "`q` is none, or given twice"),
        ((q, k, v.half(), 0.3), {}, "`v`"),
        ((q.double(), k, v, 0.3), {}, "torch.float64.*torch.float32"),
        ((q[0], k, v, 0.3), {}, "`q` must have 4 dimensions"),
        ((q, k[:1], v, 0.3), {}, "`k`"),
        ((q, k, v, torch.tensor(0.3)), {}, r"`scale`.*\.item\(\)"),
        ((q, k, v, True), {}, "`scale`"),
        ((q, k, v, 1e300), {}, "beyond f32"),
        ((q, k, 3, 0.3), {}, "`v` must be a tensor, not int"),
        ((q.to("meta"), k, v, 0.3), {}, "meta"),
    ]
    for args, named, message in wrong:
        with pytest.raises(flashtile.ArgumentError, match=message):
            attention(*args, **named)
    window = flashtile.builtin("sliding_window")
    with pytest.raises(flashtile.ArgumentError, match="`window` must be an int"):
        window(q, k, v, 0.3, 2.5)
    with pytest.raises(flashtile.ArgumentError, match="32 bits"):
        window(q, k, v, 0.3, 2**40)
    with pytest.raises(flashtile.KernelError, match="no kernel `attn`"):
        flashtile.builtin("attn")
    assert issubclass(flashtile.ArgumentError, flashtile.FlashtileError)


def test_what_no_input_tells_is_fixed():
    ones = "pub fn ones<T: Element, const D: usize>(x: &Tensor<i32, (M)>, y: &mut Tensor<T, (M, D)>) {\n"
    ones += "    let i = program(tiles(M));\n    store(y, [i, ..], zeros((i, D)) + load(x, [i]).to::<f32>());\n}\n"
    x = torch.arange(3, dtype=torch.int32)
    with pytest.raises(flashtile.ArgumentError):
        flashtile.kernel(ones)(x)
    y = flashtile.kernel(ones, types={"T": torch.bfloat16}, sizes={"D": numpy.int64(4)})(x)
    assert y.dtype == torch.bfloat16 and y.shape == (3, 4) and y[:, 0].tolist() == [0, 1, 2]
    compiled = torch.compile(flashtile.kernel(ones, types={"T": "f16"}, sizes={"D": 4}), fullgraph=True, backend="eager")
    assert compiled(x).dtype == torch.float16
    with pytest.raises(flashtile.ArgumentError, match="no size `E`"):
        flashtile.kernel(ones, sizes={"E": 4})


def test_masks_of_bytes():
    text = "pub fn kept<const D: usize>(x: &Tensor<f32, (M, D)>, keep: &Tensor<bool, (M)>, y: &mut Tensor<f32, (M, D)>) {\n"
    text += "    let i = program(tiles(M));\n    store(y, [i, ..], select(load(keep, [i]), load(x, [i, ..]), 0.0));\n}\n"
    x, keep = torch.randn(4, 3), torch.tensor([True, False, True, False])
    for mask in (keep, keep.to(torch.uint8), keep.to(torch.int8)):
        assert torch.equal(flashtile.kernel(text)(x, mask), x * keep[:, None])


def test_empty_tensors():
    q, k, v = qkv(m=0)
    o, lse = flashtile.builtin("causal_attention")(q, k, v, 0.3)
    assert o.shape == (2, 4, 0, 8) and lse.shape == (2, 4, 0)
    q, k, v = qkv(n=0)
    o, lse = flashtile.builtin("causal_attention")(q, k, v, 0.3)
    assert o.abs().max() == 0 and torch.isneginf(lse).all()


# Gradients

@pytest.mark.parametrize("of", [("q",), ("k",), ("v",), ("q", "v"), ("q", "k", "v")])
def test_gradients_of_what_needs_them(of):
    attention = flashtile.builtin("causal_attention")
    inputs = dict(zip("qkv", qkv()))
    exact = {name: x.detach().double().requires_grad_(name in of) for name, x in inputs.items()}
    for name in of:
        inputs[name].requires_grad_()
    o = attention(**inputs, scale=0.3).o
    expected = causal(*exact.values(), 0.3)[0]
    grad = torch.randn_like(o)
    found = torch.autograd.grad(o, [inputs[name] for name in of], grad)
    for x, y in zip(found, torch.autograd.grad(expected, [exact[name] for name in of], grad.double())):
        close(x, y)


def test_gradients_that_arrive_without_memory_of_their_own():
    q, k, v = qkv(grad=True)
    flashtile.builtin("causal_attention")(q, k, v, 0.3).o.sum().backward()
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    causal(*exact, 0.3)[0].sum().backward()
    for x, y in zip((q, k, v), exact):
        close(x.grad, y.grad)


def test_gradients_of_several_outputs():
    attention = flashtile.builtin("causal_attention", grad_from=["o", "lse"])
    q, k, v = qkv(n=9, m=9, grad=True)
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    weights = torch.randn(2, 4, 9)
    o, lse = attention(q, k, v, 0.3)
    (o.square().sum() + (lse * weights).sum()).backward()
    o, lse = causal(*exact, 0.3)
    (o.square().sum() + (lse * weights).sum()).backward()
    for x, y in zip((q, k, v), exact):
        close(x.grad, y.grad)
    with pytest.raises(flashtile.ArgumentError, match="no output `m`"):
        flashtile.builtin("causal_attention", grad_from=["m"])


def test_outputs_without_gradients_need_none():
    o, lse = flashtile.builtin("causal_attention")(*qkv(grad=True), 0.3)
    assert o.requires_grad and not lse.requires_grad
    assert not flashtile.builtin("row_argmax")(torch.randn(3, 4, requires_grad=True)).requires_grad


def test_kernels_whose_gradients_need_outputs_more():
    x, w = torch.randn(5, 7, requires_grad=True), torch.randn(7, requires_grad=True)
    y = flashtile.builtin("rms_norm")(x, w, 1e-3)
    exact = [t.detach().double().requires_grad_() for t in (x, w)]
    expected = torch.nn.functional.rms_norm(exact[0], (7,), exact[1], 1e-3)
    grad = torch.randn(5, 7)
    for found, wanted in zip(torch.autograd.grad(y, (x, w), grad), torch.autograd.grad(expected, exact, grad.double())):
        close(found, wanted)
    # The operator itself has a gradient too: it runs the forward kernel with more outputs again.
    rms = flashtile.builtin("rms_norm")._operator(())
    again = torch.autograd.grad(rms.op(x, w, 1e-3), (x, w), grad)
    expected = torch.nn.functional.rms_norm(exact[0], (7,), exact[1], 1e-3)
    for found, wanted in zip(again, torch.autograd.grad(expected, exact, grad.double())):
        close(found, wanted)


def test_kernels_whose_gradients_are_stored_in_parts():
    """The tables of a rotation are wider than the kernel reads: what it does not read has the gradient 0."""
    rotate = flashtile.builtin("rotate")
    x = torch.randn(2, 3, 5, 8, requires_grad=True)
    cos, sin = torch.randn(5, 6, requires_grad=True), torch.randn(5, 6, requires_grad=True)
    y = rotate(x, cos, sin)
    c, s = cos[:, :4], sin[:, :4]
    first, second = x[..., :4], x[..., 4:]
    expected = torch.cat([first * c - second * s, second * c + first * s], -1)
    close(y, expected)
    grad = torch.randn_like(y)
    for found, wanted in zip(torch.autograd.grad(y, (x, cos, sin), grad), torch.autograd.grad(expected, (x, cos, sin), grad)):
        close(found, wanted)
    assert torch.autograd.grad(rotate(x, cos, sin), cos, grad)[0][:, 4:].abs().max() == 0


def gradients(monkeypatch, launch, through_dispatcher):
    """The gradients that `launch` gives, by one call or by an operator of PyTorch for each kernel."""
    with monkeypatch.context() as patched:
        calls = []

        def counted(*args, whole=flashtile._operator.Gradient.chain):
            calls.append(args)
            return whole(*args)

        patched.setattr(flashtile._operator.Gradient, "chain", counted)
        if through_dispatcher:
            patched.setattr(flashtile._operator, "is_traced", lambda: True)
        found = launch()
        assert len(calls) == (0 if through_dispatcher else 1)
    return found


def test_the_kernels_of_a_gradient_are_launched_by_one_call(monkeypatch):
    q, k, v = qkv(grad=True)
    x, w = torch.randn(5, 7, requires_grad=True), torch.randn(7, requires_grad=True)
    t, cos, sin = torch.randn(2, 3, 5, 8), torch.randn(5, 6, requires_grad=True), torch.randn(5, 6)
    kernels = {
        # Three kernels, with what lies between them in one workspace.
        "causal_attention": ((q, k, v, 0.3), (q, k, v)),
        # The same where not all gradients are asked for.
        "attention": ((q, k.detach(), v, 0.3), (v, q)),
        # The forward kernel again, for outputs that the operator has not.
        "rms_norm": ((x, w, 1e-3), (x, w)),
        # Kernels that store to parts of one output, and sizes that no input of theirs tells.
        "rotate": ((t, cos, sin), (cos,)),
    }
    for name, (args, of) in kernels.items():
        made = flashtile.builtin(name)(*args)
        o = made if isinstance(made, torch.Tensor) else made[0]
        grad = torch.randn_like(o)

        def launch(o=o, of=of, grad=grad):
            return torch.autograd.grad(o, of, grad, retain_graph=True)

        once, steps = (gradients(monkeypatch, launch, by_steps) for by_steps in (False, True))
        assert all(torch.equal(a, b) for a, b in zip(once, steps, strict=True)), name


def test_a_chain_says_what_is_missing():
    from flashtile._flashtile import Chain

    row_sums = flashtile.kernel(ROW_SUMS)._native
    with pytest.raises(ValueError, match="nothing gives `by` of kernel `row_sums`"):
        Chain([(row_sums, [], [])], ["x"], ["y"])
    with pytest.raises(ValueError, match="no kernel makes `z`"):
        Chain([(row_sums, [], [])], ["x", "by"], ["z"])
    chain = Chain([(row_sums, [], [])], ["x", "unused", "by"], ["y"])
    x = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(chain.call((x, None, 2.0))[0], torch.tensor([6.0, 24.0]))
    with pytest.raises(flashtile.ArgumentError, match="`by` must be a float"):
        chain.call((x, None, "2"))
    with pytest.raises(ValueError, match="takes 3 values, and was given 2"):
        chain.call((x, None))
    assert chain.call((torch.complex(x, x).conj().imag, None, 2.0)) is None


def test_gradients_of_a_table_of_distances():
    relative = flashtile.builtin("relative_attention")
    q, k, v = qkv(grad=True)
    table = torch.randn(4, 7, requires_grad=True)

    def launch():
        return torch.autograd.grad(relative(q, k, v, 0.3, table).o, (q, k, v, table), grad)

    grad = torch.randn_like(q)
    ours = launch()
    rows, columns = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None]
    at = (columns - (rows + k.shape[2] - q.shape[2]) + 3).clamp(0, 6)
    per_group = q.shape[1] // k.shape[1]
    scores = torch.einsum("bhmd,bhnd->bhmn", q, k.repeat_interleave(per_group, 1)) * 0.3 + table[:, at]
    expected = scores.softmax(-1) @ v.repeat_interleave(per_group, 1)
    for found, wanted in zip(ours, torch.autograd.grad(expected, (q, k, v, table), grad)):
        close(found, wanted)
    # Elements are added in any order.
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(flashtile.GradientError, match="`grad_table` in any order"):
            launch()
        torch.use_deterministic_algorithms(True, warn_only=True)
        with pytest.warns(UserWarning, match="`grad_table` in any order"):
            close(launch()[3], ours[3])
        table.requires_grad_(False)
        torch.use_deterministic_algorithms(True)
        torch.autograd.grad(relative(q, k, v, 0.3, table).o.sum(), q)
    finally:
        torch.use_deterministic_algorithms(False)


def test_gradients_that_do_not_exist_say_why_and_where():
    text = flashtile.builtin("attention").text
    assert "acc * alpha" in text
    decaying = flashtile.kernel(text.replace("acc * alpha", "acc * (alpha * 0.5)"))
    q, k, v = qkv()
    o = decaying(q.clone().requires_grad_(), k, v, 0.3).o
    with pytest.raises(flashtile.GradientError, match=r"no streaming reduction(.|\n)*:\d+:\d+"):
        o.sum().backward()
    with pytest.raises(flashtile.GradientError, match="no output of floats"):
        x = torch.randn(3, 4, requires_grad=True)
        argmax = flashtile.builtin("row_argmax")
        argmax._differentiate(("x",))
        del x
    q.requires_grad_()
    first = torch.autograd.grad(flashtile.builtin("attention")(q, k, v, 0.3).o.sum(), q, create_graph=True)[0]
    with pytest.raises(flashtile.GradientError, match="second derivatives"):
        first.sum().backward()


def test_texts_of_gradients():
    text = flashtile.builtin("causal_attention").gradient_text("q", "k", "v")
    assert "causal_attention_grad_rows" in text and "causal_attention_grad_columns" in text


# Operators

def samples():
    q, k, v = qkv(grad=True)
    yield flashtile.builtin("causal_attention"), (q, k, v, 0.3)
    yield flashtile.builtin("sliding_window"), (q, k, v, 0.3, 4)
    yield flashtile.builtin("bias_attention"), (q, k, v, 0.3, torch.randn(4, 9, 13, requires_grad=True))
    yield flashtile.builtin("rms_norm"), (torch.randn(5, 7, requires_grad=True), torch.randn(7), 1e-3)
    yield flashtile.builtin("row_argmax"), (torch.randn(5, 7),)


@pytest.mark.parametrize("place", range(5))
def test_operators_pass_the_checks_of_pytorch(place):
    kernel, args = list(samples())[place]
    of = tuple(at for at, x in enumerate(args) if isinstance(x, torch.Tensor) and x.requires_grad)
    found = torch.library.opcheck(kernel._operator(of).op, args)
    assert set(found.values()) == {"SUCCESS"}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("place", range(5))
def test_compiled_functions_have_no_graph_break(backend, place):
    kernel, args = list(samples())[place]

    torch._dynamo.reset()  # each parameter of the test is another kernel in one function

    def function(*args):
        made = kernel(*args)
        return (made if isinstance(made, torch.Tensor) else made[0]) * 2

    expected = function(*args)
    found = torch.compile(function, fullgraph=True, backend=backend)(*args)
    assert torch.equal(found, expected)
    if found.requires_grad:
        of = [x for x in args if isinstance(x, torch.Tensor) and x.requires_grad]
        grad = torch.randn_like(found)
        for x, y in zip(torch.autograd.grad(found, of, grad), torch.autograd.grad(expected, of, grad)):
            close(x, y)


def test_compiled_functions_with_sizes_that_vary():
    attention = flashtile.builtin("causal_attention")
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda q, k, v: attention(q, k, v, 0.3).o, fullgraph=True, backend=counter, dynamic=True)
    for m, n in ((9, 13), (17, 21), (5, 30)):
        q, k, v = qkv(m=m, n=n)
        close(compiled(q, k, v), causal(q, k, v, 0.3)[0])
    assert counter.frame_count == 1


def test_equal_texts_share_an_operator():
    one, other = flashtile.kernel(ROW_SUMS), flashtile.kernel(ROW_SUMS)
    assert one._operator(()) is other._operator(())
    changed = flashtile.kernel(ROW_SUMS.replace("by * sum", "sum"  " * by"))
    assert changed._operator(()).name != one._operator(()).name
    fixed = flashtile.kernel(ROW_SUMS, sizes={"N": 7})
    assert fixed._operator(()).name != one._operator(()).name


def test_fake_tensors_take_the_shapes_of_outputs():
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        o, lse = flashtile.builtin("causal_attention")(*qkv(dtype=torch.bfloat16), 0.3)
    assert (o.shape, o.dtype, lse.shape, lse.dtype) == ((2, 4, 9, 8), torch.bfloat16, (2, 4, 9), torch.float32)


def test_calls_beside_pytorch_s_own_machinery():
    """Functions that transform calls see an operator; a tensor of another class goes through its own dispatch."""
    attention = flashtile.builtin("attention")
    q, k, v = qkv(grad=True)
    o = attention(q, k, v, 0.3).o
    seen = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Watch():
        again = attention(q, k, v, 0.3).o
        flashtile.sdpa(q, k, v, scale=0.3, enable_gqa=True)
    kernels = [name.split("_")[0] for name in seen if name.startswith("flashtile.")]
    assert torch.equal(again, o) and kernels == ["flashtile.attention", "flashtile.sdpa"]
    grad = torch.randn_like(o)
    at_once = torch.autograd.grad(o, (q, k, v), grad)
    for x, y in zip(at_once, torch.autograd.grad(again, (q, k, v), grad)):
        assert torch.equal(x, y)
    rerun = torch.utils.checkpoint.checkpoint(lambda *x: attention(*x, 0.3).o, q, k, v, use_reentrant=False)
    for x, y in zip(at_once, torch.autograd.grad(rerun, (q, k, v), grad)):
        assert torch.equal(x, y)


def test_a_call_allocates_its_outputs_and_no_more():
    q, k, v = (torch.randn(1, 2, 24, 16) for _ in range(3))
    attention = flashtile.builtin("attention")
    o, lse = 4 * 2 * 24 * 16, 4 * 2 * 24
    calls = [
        (lambda: attention(q, k, v, 0.25), [lse, o]),
        (lambda: flashtile.sdpa(q, k, v), [o]),
        (lambda: flashtile.sdpa(q, k, v, is_causal=True), [o]),
        (lambda: flashtile.flex(q, k, v, mask_mod=lambda b, h, i, j: i >= j), [o]),
        (lambda: flashtile.flex(q, k, v, return_lse=True), [lse, o]),
    ]
    for call, expected in calls:
        call()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            kept = call()
        found = [event.nbytes() for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
        assert sorted(size for size in found if size > 0) == expected, found
        del kept


def test_tensors_are_read_alike_with_and_without_the_exchange(tmp_path):
    """Versions of PyTorch without DLPack's exchange functions are read through Python attributes."""
    program = """
import torch
if {without}:
    del torch.Tensor.__dlpack_c_exchange_api__
import flashtile
torch.manual_seed(3)
x = torch.randn(2, 4, 9, 3, 16).bfloat16()
q, k, v = x.unbind(3)
print(flashtile.sdpa(q, k, v, is_causal=True).float().sum().item(), flashtile.sdpa(q[:, :, 1:], k, v).float().sum().item())
try:
    flashtile.sdpa(q.long(), k, v)
except flashtile.ArgumentError as error:
    print(error)
"""
    found = []
    for without in (True, False):
        path = tmp_path / "program.py"
        path.write_text(program.replace("{without}", str(without)))
        found.append(subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True).stdout)
    assert found[0] == found[1] and "torch.int64" in found[0]


def test_what_transforms_of_pytorch_do():
    q, k, v = (torch.randn(3, 1, 2, 5, 8) for _ in range(3))
    expected = torch.stack([flashtile.sdpa(*x) for x in zip(q, k, v)])
    assert torch.equal(torch.vmap(flashtile.sdpa)(q, k, v), expected)
    of = lambda x: flashtile.sdpa(x, k[0], v[0])  # noqa: E731
    with pytest.raises(flashtile.GradientError, match="forward-mode"):
        torch.func.jvp(of, (q[0],), (q[0],))
    with torch.autograd.forward_ad.dual_level(), pytest.raises(flashtile.GradientError, match="`q` has a forward-mode"):
        of(torch.autograd.forward_ad.make_dual(q[0], q[0]))
    with torch.autograd.forward_ad.dual_level():
        assert torch.equal(of(q[0]), expected[0])
    for x in (torch.nested.nested_tensor([torch.randn(2, 5, 8), torch.randn(2, 3, 8)]), torch.eye(5).to_sparse()):
        with pytest.raises(flashtile.ArgumentError, match="nested or sparse"):
            flashtile.builtin("row_argmax")(x)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", ["kernel", "sdpa", "flex"])
def test_compiled_code_has_no_forward_mode_derivatives(name, backend):
    torch._dynamo.reset()
    q, k, v, tangent = (torch.randn(1, 2, 5, 8) for _ in range(4))
    attention, prepared = flashtile.builtin("attention"), flashtile.flex_kernel(mask_mod=lambda b, h, i, j: i >= j)
    calls = {
        "kernel": lambda q: attention(q, k, v, 0.3).o,
        "sdpa": lambda q: flashtile.sdpa(q, k, v),
        "flex": lambda q: prepared(q, k, v),
    }
    call = calls[name]
    transformed = [
        lambda q: torch.func.jvp(call, (q,), (tangent,))[1],
        lambda q: torch.func.jacfwd(lambda q: call(q).sum())(q),
    ]
    for function in transformed:
        with pytest.raises(flashtile.GradientError, match="`q` has a forward-mode"):
            torch.compile(function, backend=backend)(q)
        torch._dynamo.reset()
        with pytest.raises(Exception, match="`q` has a forward-mode"):
            torch.compile(function, backend=backend, fullgraph=True)(q)
        torch._dynamo.reset()
    forward_ad = torch.autograd.forward_ad
    compiled = torch.compile(call, backend=backend, fullgraph=True)
    expected = compiled(q)
    with forward_ad.dual_level():
        with pytest.raises(flashtile.GradientError, match="`q` has a forward-mode"):
            compiled(forward_ad.make_dual(q, tangent))
        assert torch.equal(compiled(q), expected)


class Traced(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 24)
        self.slopes = torch.nn.Parameter(torch.ones(2))
        self.attention = flashtile.builtin("attention")
        self.prepared = flashtile.flex_kernel(self.score_mod, mask_mod=lambda b, h, i, j: i >= j)

    def score_mod(self, score, b, h, i, j):
        return score - self.slopes[h] * (i - j)

    def forward(self, x):
        q, k, v = self.linear(x).chunk(3, -1)
        mask = torch.ones(5, 5, dtype=torch.bool).tril()
        o = self.attention(q, k, v, 0.3).o + flashtile.sdpa(q, k, v, is_causal=True) + flashtile.sdpa(q, k, v, attn_mask=mask)
        return o + self.prepared(q, k, v) + flashtile.flex(q, k, v, self.score_mod)


@pytest.mark.filterwarnings("ignore:Converting a tensor", "ignore::DeprecationWarning")
def test_traces_of_torch_jit_call_kernels():
    """What is traced computes with its own inputs, not with those of the example."""
    softmax = flashtile.builtin("row_softmax")
    traced = torch.jit.trace(lambda x: softmax(x) + 1, torch.ones(2, 3))
    x = torch.randn(2, 3)
    assert torch.equal(traced(x), softmax(x) + 1)
    module, x, other = Traced(), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)
    parameters = list(module.parameters())
    for with_gradients in (True, False):
        with torch.set_grad_enabled(with_gradients):
            traced = torch.jit.trace(module, x)
            found, expected = traced(other), module(other)
        close(found, expected)
        if with_gradients:
            found = torch.autograd.grad(found.square().sum(), parameters)
            for x_grad, y_grad in zip(found, torch.autograd.grad(expected.square().sum(), parameters)):
                torch.testing.assert_close(x_grad, y_grad, atol=1e-4, rtol=1e-4)
    saved = io.BytesIO()
    torch.jit.save(traced, saved)
    saved.seek(0)
    close(torch.jit.load(saved)(other), module(other))


class Stop(torch.autograd.Function):
    """Gives no gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return None


@pytest.mark.filterwarnings("ignore:Input #")
def test_backward_passes_that_get_no_gradient():
    q, k, v = (torch.randn(1, 2, 5, 8, requires_grad=True) for _ in range(3))
    attention = flashtile.builtin("attention", grad_from=["o", "lse"])
    for call in (lambda: flashtile.sdpa(q, k, v), lambda: sum(x.sum() for x in attention(q, k, v, 0.3))):
        assert torch.autograd.grad(Stop.apply(call()).sum(), (q, k, v), allow_unused=True) == (None, None, None)
    assert torch.autograd.gradcheck(flashtile.sdpa, (q, k, v), eps=1e-2, atol=1e-2, rtol=1e-1)


def test_threads_that_ask_for_one_gradient_at_once_get_it():
    text = """pub fn centred(x: &Tensor<f32, (M, N)>, y: &mut Tensor<f32, (M, N)>) {
        let i = program(tiles(M));
        let mut s = zeros(i);
        for j in tiles(N) { s += rowsum(load(x, [i, j])); }
        for j in tiles(N) { store(y, [i, j], load(x, [i, j]) * NUMBER - s / N); }
    }"""
    # Each text is new to the process, so that each has an operator to register.
    for number in range(1, 4):
        own = flashtile.kernel(text.replace("NUMBER", f"{number}.25"))
        x = torch.randn(3, 5)
        together, found = threading.Barrier(6), [None] * 6

        def work(at):
            leaf = x.clone().requires_grad_()
            together.wait()
            own(leaf)[:, 0].sum().backward()
            found[at] = leaf.grad

        threads = [threading.Thread(target=work, args=(at,)) for at in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        expected = torch.full((3, 5), -1 / 5)
        expected[:, 0] += number + 0.25
        for grad in found:
            torch.testing.assert_close(grad, expected)


def test_sinks_have_their_gradient_where_nothing_else_has():
    q, k, v = (torch.randn(1, 2, 9, 8) for _ in range(3))
    sinks = torch.randn(2, requires_grad=True)
    flashtile.builtin("sink_attention")(q, k, v, 0.5, sinks).o.sum().backward()
    alone = sinks.grad.clone()
    sinks.grad = None
    flashtile.builtin("sink_attention")(q.requires_grad_(), k, v, 0.5, sinks).o.sum().backward()
    torch.testing.assert_close(alone, sinks.grad)
    assert alone.abs().min() > 1e-3


@pytest.mark.parametrize("backend", ["aot_eager", "eager"])
def test_compiled_calls_write_to_given_tensors(backend):
    softmax = flashtile.builtin("row_softmax")
    x, out = torch.randn(3, 4), torch.empty(3, 4)
    torch.compile(lambda x, out: softmax(x, out=out), fullgraph=True, backend=backend)(x, out)
    torch.testing.assert_close(out, x.softmax(-1))


def test_what_no_kernel_takes_is_an_error_of_flashtile():
    softmax = flashtile.builtin("row_softmax")
    with pytest.raises(flashtile.ArgumentError, match="torch.float64, which no tensor"):
        flashtile.builtin("row_softmax", types={"T": torch.float64})
    with pytest.raises(flashtile.ArgumentError, match="sequence of tensors, not int"):
        softmax(torch.randn(3, 4), out=3)
    wrong = [
        (lambda: flashtile.kernel(None), "a text or a path, not of a NoneType"),
        (lambda: flashtile.kernel(ROW_SUMS, 3), "name of a kernel is a str, not a int"),
        (lambda: flashtile.builtin(None), "is a str, not a NoneType; flashtile.BUILTINS"),
        (lambda: flashtile.builtin("attention", grad_from=3), "grad_from is a int"),
        (lambda: flashtile.kernel(ROW_SUMS, sizes={"N": 2.5}), "size `N` is 2.5"),
        (lambda: flashtile.kernel(ROW_SUMS, sizes={"N": -3}), "size `N` is -3"),
        (lambda: flashtile.kernel(ROW_SUMS, sizes={"N": 2**63}), "from 0 on"),
        (lambda: flashtile.kernel(ROW_SUMS, sizes=3), "`sizes` is a int"),
        (lambda: flashtile.kernel(ROW_SUMS, types={3: "f32"}), "a name that is no str"),
    ]
    for call, message in wrong:
        with pytest.raises(flashtile.ArgumentError, match=message):
            call()
    with pytest.raises(flashtile.FlashtileError, match="expected"):
        flashtile.kernel("pub fn lost(x: &Tensor<f32, (N)>)\n  let n = program(N);\n")


REWARD = """
pub fn reward<T: Element, const D: usize>(
    x: &Tensor<T, (M, D)>, w: &Tensor<T, (V, D)>, worth: &Tensor<f32, (V)>, y: &mut Tensor<f32, (M)>,
) {
    let i = program(tiles(M));
    let x_i = load(x, [i, ..]);
    let (mut m, mut num, mut den) = (full(i, -INF), zeros(i), zeros(i));
    for j in tiles(V) {
        let s = dot(x_i, load(w, [j, ..]).t());
        let m_new = max(m, rowmax(s));
        let alpha = exp(m - m_new);
        let p = exp(s - m_new);
        num = num * alpha + rowsum(p * load(worth, [j]));
        den = den * alpha + rowsum(p);
        m = m_new;
    }
    store(y, [i], num / den);
}"""


@pytest.mark.parametrize("worth", [0.0, 1.0, -1.0])
def test_sums_of_any_sign_have_gradients(worth):
    """The sum that stands first is 0 or negative, and is no divisor of the others."""
    kernel = flashtile.kernel(REWARD, grad_from=["y"])
    torch.manual_seed(0)
    x, w, r = torch.randn(9, 16), torch.randn(13, 16), worth * torch.rand(13)
    given = [t.clone().requires_grad_() for t in (x, w, r)]
    kernel(*given).sum().backward()
    expected = [t.double().requires_grad_() for t in (x, w, r)]
    (torch.softmax(expected[0] @ expected[1].T, -1) @ expected[2]).sum().backward()
    for own, other in zip(given, expected):
        torch.testing.assert_close(own.grad.double(), other.grad, atol=1e-5, rtol=1e-4)


TABLE = """
pub fn table<T: Element, const D: usize>(
    q: &Tensor<T, (M, D)>, t: &Tensor<T, (M + N - 1)>, w: &Tensor<f32, (N)>, kv: &Tensor<T, (M + N, 3, D)>,
    o: &mut Tensor<T, (M, D)>,
) {
    let i = program(tiles(M));
    let q_i = load(q, [i, ..]);
    let mut acc = zeros((i, D));
    for j in tiles(M + N) {
        let s = dot(q_i, load(kv, [j, 0, ..]).t()) + load(t, [pos(j) % N + pos(i)]) * load(w, [pos(j) % N]);
        acc += dot(s.to::<T>(), load(kv, [j, 2, ..]));
    }
    store(o, [i, ..], acc);
}"""


def test_tensors_whose_extents_need_two_sizes_have_gradients():
    """Kernels that round, or write zeros, know no `M` and no `N`."""
    torch.manual_seed(0)
    shapes = [(5, 16), (11,), (7,), (12, 3, 16)]
    given = [torch.randn(shape).requires_grad_() for shape in shapes]
    q, t, w, kv = [x.detach().double().requires_grad_() for x in given]
    flashtile.kernel(TABLE)(*given).square().sum().backward()
    at = torch.arange(12)[None, :] % 7
    s = q @ kv[:, 0].T + t[at + torch.arange(5)[:, None]] * w[at]
    (s @ kv[:, 2]).square().sum().backward()
    for mine, other in zip(given, (q, t, w, kv)):
        torch.testing.assert_close(mine.grad.double(), other.grad, atol=1e-3, rtol=1e-4)


def test_a_size_that_no_input_tells_is_named():
    text = """
    pub fn sums<T: Element>(x: &Tensor<T, (M)>, y: &mut Tensor<f32, (K, M)>) {
        let (k, i) = program(K, tiles(M));
        store(y, [k, i], load(x, [i]).to::<f32>() * 2.0);
    }"""
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(flashtile.ArgumentError, match="`K`"):
        flashtile.kernel(text, grad_from=["y"])(x)
    y = flashtile.kernel(text, grad_from=["y"], sizes={"K": 4})(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, torch.full((3,), 8.0))

"""Kernels through tvm-ffi: NumPy, PyTorch and JAX. On a GPU also CuPy: `bench/ffi.py`."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import flashtile
import flashtile_ffi

DOUBLE = """
pub fn double<T: Element, const N: usize>(x: &Tensor<T, (M, N)>, by: f32, shift: i32, y: &mut Tensor<T, (M, N)>) {
    let i = program(tiles(M));
    let t = load(x, [i, ..]);
    store(y, [i, ..], t * by + shift);
}
"""


def qkv(make=np.asarray, dtype=np.float32):
    random = np.random.default_rng(0)
    return [make(random.standard_normal((2, 4, n, 16)).astype(dtype)) for n in (9, 13, 13)]


def expected(q, k, v, scale):
    scores = np.einsum("bhmd,bhnd->bhmn", *(np.asarray(x, np.float64) for x in (q, k))) * scale
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    sums = weights.sum(-1, keepdims=True)
    lse = np.log(sums[..., 0]) + scores.max(-1)
    return np.einsum("bhmn,bhnd->bhmd", weights / sums, np.asarray(v, np.float64)), lse


FORKED = """
import os, signal
import numpy as np, flashtile_ffi
attention = flashtile_ffi.builtin("attention")
q, lse = np.ones((1, 1, 9, 8), "f4"), np.empty((1, 1, 9), "f4")
o = np.empty_like(q)
call = lambda: attention(q, q, q, 0.3, o, lse)
BEFORE
process = os.fork()
if process:
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
signal.alarm(20)
try:
    call()
except Exception as error:
    os._exit(3 if "spawn" in str(error) else 4)
os._exit(0)
"""


@pytest.mark.parametrize("before, wanted", [("call()", 3), ("pass", 0)])
def test_children_of_fork_do_not_wait_without_end(before, wanted):
    made = subprocess.run([sys.executable, "-c", FORKED.replace("BEFORE", before)], timeout=60)
    assert made.returncode == wanted


def test_numpy():
    attention = flashtile_ffi.builtin("attention")
    q, k, v = qkv()
    o, lse = np.zeros_like(q), np.zeros(q.shape[:3], np.float32)
    # The order of the parameters, and numbers last.
    for arguments in ((q, k, v, 0.25, o, lse), (q, k, v, o, lse, 0.25)):
        o[:], lse[:] = np.nan, np.nan
        attention(*arguments)
        for found, exact in zip((o, lse), expected(q, k, v, 0.25)):
            np.testing.assert_allclose(found, exact, atol=1e-5)


def test_strides_and_element_types():
    double = flashtile_ffi.kernel(DOUBLE)
    x = torch.arange(30, dtype=torch.float16).reshape(5, 6)[:, :4]
    y = torch.zeros(5, 4, dtype=torch.float16)
    double(x, 2, -3, y)
    torch.testing.assert_close(y, x * 2 - 3)
    double(x.to(torch.bfloat16), 0.5, 1, z := torch.zeros(5, 4, dtype=torch.bfloat16))
    torch.testing.assert_close(z, (x.float() * 0.5 + 1).to(torch.bfloat16))


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ((1, 2), TypeError, "`double` takes x, by, shift and then, to write to, y; 2 arguments were given"),
        (("x", 2.0, 1, "y"), TypeError, "neither a tensor nor a number"),
        ((2.0, 2.0, 1, "y"), TypeError, "must be an integer, not 2"),
        (("x", 2.0, 2**31, "y"), ValueError, "no integer of 32 bits"),
        (("x", 1e39, 1, "y"), ValueError, "beyond f32"),
        (("float64", 1.0, 1, "y"), ValueError, "element type that kernels do not read"),
        (("x", 1.0, 1, "short"), RuntimeError, "`y`"),
    ],
)
def test_what_cannot_be_called_says_why(arguments, kind, message):
    double = flashtile_ffi.kernel(DOUBLE)
    x = np.ones((3, 4), np.float32)
    known = {"x": x, "y": np.zeros_like(x), "short": np.zeros((2, 4), np.float32), "float64": np.ones((3, 4))}
    first = arguments[0]
    given = [known.get(a, a) if isinstance(a, str) else a for a in arguments]
    if message.startswith("neither"):
        given[0] = "text"
    with pytest.raises(kind, match=message):
        double(*given)
    assert first is arguments[0]
    # The next call is answered.
    double(x, 3.0, 0, known["y"])
    np.testing.assert_array_equal(known["y"], 3 * x)


def test_texts_that_are_no_kernel():
    with pytest.raises(RuntimeError, match="no built-in kernel|attn"):
        flashtile_ffi.builtin("attn")
    with pytest.raises(RuntimeError, match="rowmix"):
        flashtile_ffi.kernel(DOUBLE.replace("t * by", "rowmix(t)"))
    two = DOUBLE + DOUBLE.replace("double", "triple")
    with pytest.raises(RuntimeError, match="double, triple"):
        flashtile_ffi.kernel(two)
    triple = flashtile_ffi.kernel(two, "triple")
    triple(np.ones((1, 2), np.float32), 3.0, 0, y := np.zeros((1, 2), np.float32))
    assert y.tolist() == [[3.0, 3.0]]


def test_jax():
    jax = pytest.importorskip("jax", reason="jax is not installed")
    import jax.numpy as jnp

    attention = flashtile_ffi.jax_call(flashtile_ffi.builtin("attention"), "flashtile_attention", ["scale"], ["cpu"])
    q, k, v = qkv(jnp.asarray)
    out = (jax.ShapeDtypeStruct(q.shape, q.dtype), jax.ShapeDtypeStruct(q.shape[:3], jnp.float32))

    @jax.jit
    def model(q, k, v):
        o, lse = attention(q * 2, k, v, out=out, scale=0.25)
        return o + 1, lse

    for found, exact in zip(model(q, k, v), expected(np.asarray(q) * 2, k, v, 0.25)):
        np.testing.assert_allclose(np.asarray(found) - (1 if found.ndim == 4 else 0), exact, atol=1e-5)
    with pytest.raises(TypeError, match="takes the scalars scale, not none"):
        attention(q, k, v, out=out)
    with pytest.raises(Exception, match="lse"):
        jax.block_until_ready(attention(q, k, v, out=(out[0], jax.ShapeDtypeStruct((2, 4, 8), jnp.float32)), scale=0.25))


def test_scalars_of_jax_are_those_of_the_kernel():
    pytest.importorskip("jax", reason="jax is not installed")
    sigmoid, softmax = flashtile_ffi.builtin("sigmoid_attention"), flashtile_ffi.builtin("row_softmax")
    assert flashtile_ffi.scalars_of(sigmoid) == ("scale", "offset") and flashtile_ffi.scalars_of(softmax) == ()
    assert flashtile_ffi.scalars_of(flashtile_ffi.kernel(DOUBLE)) == ("by", "shift")
    for wrong in (["offset", "scale"], ["scale"], ["scale", "bias"], []):
        with pytest.raises(ValueError, match=r"those of the kernel are \['scale', 'offset'\], in this order"):
            flashtile_ffi.jax_call(sigmoid, "never_registered", wrong, ["cpu"])
    flashtile_ffi.jax_call(sigmoid, "flashtile_sigmoid", ["scale", "offset"], ["cpu"])
    with pytest.raises(TypeError, match="neither a tensor nor a number|arguments were given"):
        sigmoid("scale")


def test_scalars_of_jax_have_the_type_of_the_parameter():
    jax = pytest.importorskip("jax", reason="jax is not installed")
    import jax.numpy as jnp

    double = flashtile_ffi.jax_call(flashtile_ffi.kernel(DOUBLE), "flashtile_double", ["by", "shift"], ["cpu"])
    x = jnp.arange(6, dtype=jnp.float32).reshape(2, 3)

    def call(by, shift):
        return double(x, out=jax.ShapeDtypeStruct(x.shape, x.dtype), by=by, shift=shift)

    # JAX takes 1 and 1.0 for the same: what came before does not matter.
    for by, shift in ((1, 2), (1.0, 2), (2.0, np.int8(2)), (2, 3), (np.float32(0.5), 1), (jnp.float32(0.5), 2)):
        np.testing.assert_array_equal(np.asarray(call(by, shift)), np.asarray(x) * float(by) + int(shift))
        for wrong in (None, "1", b"1", True, 1.0, 2**31, np.uint64(2**63), np.ones(1)):
            with pytest.raises(TypeError, match="`shift` is .*; it is an integer of 32 bits"):
                call(1, wrong)
        for wrong in (None, "1", b"1", True, np.bool_(True), 1j, np.ones(1)):
            with pytest.raises(TypeError, match="`by` is .*; it is a number"):
                call(wrong, 1)
    with pytest.raises(TypeError, match="beyond f32"):
        call(10**400, 1)


def test_negative_strides_are_named():
    double, x = flashtile_ffi.kernel(DOUBLE), np.ones((3, 4), np.float32)
    with pytest.raises(ValueError, match="`x` has negative strides; give a copy"):
        double(x[::-1], 2.0, 1, np.zeros_like(x))
    with pytest.raises(ValueError, match="`y` has negative strides"):
        double(x, 2.0, 1, np.zeros_like(x)[:, ::-1])


def test_pytorch_is_not_imported():
    program = "import sys, numpy, flashtile_ffi; flashtile_ffi.builtin('attention'); assert 'torch' not in sys.modules"
    # tvm-ffi itself looks for PyTorch unless it is told not to.
    subprocess.run([sys.executable, "-c", "import sys; sys.modules['torch'] = None; " + program.replace("'torch' not in sys.modules", "sys.modules['torch'] is None")], check=True)


def test_sdpa_and_the_same_kernel_by_tvm_ffi_agree():
    q, k, v = (torch.from_numpy(x) for x in qkv())
    text = flashtile.sdpa_text("no")
    flashtile_ffi.kernel(text)(q, k, v, 0.25, o := torch.empty_like(q))
    assert torch.equal(o, flashtile.sdpa(q, k, v, scale=0.25))

"""Kernels through tvm-ffi on a GPU, from JAX, CuPy and PyTorch: results against float64, and microseconds of a call on the host.

A library that is not installed is named. The program fails if a result is wrong, or if no library was there.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable

import numpy as np
import tvm_ffi

import flashtile_ffi

B, H, M, N, D = 2, 4, 300, 500, 64


def inputs() -> list[np.ndarray]:
    random = np.random.default_rng(1)
    return [random.standard_normal((B, H, n, D)).astype(np.float16) for n in (M, N, N)]


def exact(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float) -> np.ndarray:
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = np.einsum("bhmd,bhnd->bhmn", q, k) * scale
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhmn,bhnd->bhmd", weights / weights.sum(-1, keepdims=True), v)


def microseconds(call: Callable[[], object], sync: Callable[[], object], seconds: float) -> float:
    call()
    sync()
    rounds = []
    while sum(rounds) < seconds or len(rounds) < 5:
        start = time.perf_counter()
        for _ in range(100):
            call()
        rounds.append(time.perf_counter() - start)
        sync()
    return sorted(rounds)[len(rounds) // 2] / 100 * 1e6


def of_jax(seconds: float) -> tuple[np.ndarray, str]:
    import jax
    import jax.numpy as jnp

    attend = flashtile_ffi.jax_call(flashtile_ffi.builtin("attention"), "attention", ["scale"], ["gpu"])
    q, k, v = (jnp.asarray(x) for x in inputs())

    @jax.jit
    def layer(q, k, v):
        out = jax.ShapeDtypeStruct(q.shape, q.dtype), jax.ShapeDtypeStruct(q.shape[:3], jnp.float32)
        # Work of XLA before and after shows whether the launch is in its order.
        return attend(q * 2, k, v, out=out, scale=0.0625)[0] * 3

    @jax.jit
    def without(q, k, v):
        return ((q * 2)[:, :, :1] + k[:, :, :1] + v[:, :, :1]) * 3

    o = np.asarray(layer(q, k, v), np.float64) / 3
    took, alone = (
        microseconds(lambda: function(q, k, v), lambda: jax.block_until_ready(function(q, k, v)), seconds)
        for function in (layer, without)
    )
    return o, f"{took:.1f} us of a jitted function, {alone:.1f} of one without the kernel"


def of_cupy(seconds: float) -> tuple[np.ndarray, str]:
    import cupy

    attention = flashtile_ffi.builtin("attention")
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream, tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), stream.ptr):
        q, k, v = (cupy.asarray(x) for x in inputs())
        o, lse = cupy.full_like(q, cupy.nan), cupy.empty(q.shape[:3], cupy.float32)
        attention(q, k, v, 0.125, o, lse)
        found = cupy.asnumpy(o).astype(np.float64)
        took = microseconds(lambda: attention(q, k, v, 0.125, o, lse), stream.synchronize, seconds)
        # The same memory, handed over once.
        views = [tvm_ffi.from_dlpack(array) for array in (q, k, v, o, lse)]
        o.fill(cupy.nan)
        attention(*views[:3], 0.125, *views[3:])
        again = cupy.asnumpy(o).astype(np.float64)
        if not np.array_equal(found, again):
            sys.exit("cupy: arrays that are handed over once give another result")
        once = microseconds(lambda: attention(*views[:3], 0.125, *views[3:]), stream.synchronize, seconds)
    return found, f"{took:.1f} us, {once:.1f} with arrays that are handed over once"


def of_torch(seconds: float) -> tuple[np.ndarray, str]:
    import torch

    attention = flashtile_ffi.builtin("attention")
    q, k, v = (torch.from_numpy(x).cuda() for x in inputs())
    o, lse = torch.full_like(q, torch.nan), torch.empty(q.shape[:3], device="cuda")
    attention(q, k, v, 0.125, o, lse)
    found = o.double().cpu().numpy()
    took = microseconds(lambda: attention(q, k, v, 0.125, o, lse), torch.cuda.synchronize, seconds)
    return found, f"{took:.1f} us"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.5, help="of timing each")
    options = parser.parse_args()
    expected, ran = exact(*inputs(), 0.125), 0
    for library, run in (("jax", of_jax), ("cupy", of_cupy), ("torch", of_torch)):
        if importlib.util.find_spec(library) is None:
            print(f"{library}: not installed")
            continue
        found, words = run(options.seconds)
        error = float(np.abs(found - expected).max())
        print(f"{library}: error {error:.1e}, {words}")
        if not error < 2e-3:
            sys.exit(f"{library}: wrong results")
        ran += 1
    if not ran:
        sys.exit("neither jax, cupy nor torch is installed")


main()

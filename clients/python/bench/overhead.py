"""Microseconds of the host for a call, layer by layer.

With CUDA, calls on tensors so small that the host is the slower side, the launch included. Without, calls on tensors of
no elements, where the launch ends at once: what is left are the layers above it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch.nn.attention.flex_attention import create_block_mask

import flashtile
from flashtile import _host, _sdpa

ROUNDS = 15
SDPA = torch.nn.functional.scaled_dot_product_attention


def microseconds(call: Callable[[], object], seconds: float, sync: Callable[[], None]) -> tuple[float, float]:
    """The median and the least over rounds of the time of a call.

    The GPU's work is not waited for inside of a round.
    """
    for _ in range(10):
        call()
    sync()
    start = time.perf_counter()
    call()
    count = max(20, min(2000, int(seconds / ROUNDS / max(time.perf_counter() - start, 1e-6))))
    rounds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(count):
            call()
        rounds.append((time.perf_counter() - start) / count * 1e6)
        sync()
    return statistics.median(rounds), min(rounds)


def backward(function: Callable, inputs: list[torch.Tensor]) -> Callable[[], object]:
    def call() -> object:
        o = function(*inputs)
        return torch.autograd.grad(o, inputs, o)

    return call


def rows(device: str) -> list[tuple[str, Callable[[], object]]]:
    batch = 1 if device == "cuda" else 0
    dtype = torch.float16 if device == "cuda" else torch.float32
    q, k, v = (torch.randn(batch, 2, 64, 64, device=device, dtype=dtype) for _ in range(3))
    o, lse = torch.empty_like(q), torch.empty(batch, 2, 64, device=device)
    learned = [x.clone().requires_grad_() for x in (q, k, v)]
    attention = flashtile.builtin("attention")
    native = attention._native

    def causal(b, h, q_idx, kv_idx):
        return q_idx >= kv_idx

    slopes, documents = torch.ones(2, device=device), torch.zeros(64, device=device, dtype=torch.int32)

    def alibi(score, b, h, q_idx, kv_idx):
        return score - slopes[h] * (q_idx - kv_idx)

    def document(b, h, q_idx, kv_idx):
        return documents[q_idx] == documents[kv_idx]

    prepared = flashtile.flex_kernel(mask_mod=causal)
    blocks = create_block_mask(causal, None, None, 64, 64, device=device, BLOCK_SIZE=64)
    empty = (_host._empty_at_once() or (None, None))[device == "cuda"]
    return [
        ("flashtile.sdpa", lambda: flashtile.sdpa(q, k, v)),
        ("F.scaled_dot_product_attention", lambda: SDPA(q, k, v)),
        ("flashtile.sdpa, is_causal", lambda: flashtile.sdpa(q, k, v, is_causal=True)),
        ("a kernel: attention(q, k, v, scale)", lambda: attention(q, k, v, 0.125)),
        ("the same, out=", lambda: attention(q, k, v, 0.125, out=(o, lse))),
        ("flashtile.flex, mask_mod", lambda: flashtile.flex(q, k, v, mask_mod=causal)),
        ("flex_kernel(mask_mod)", lambda: prepared(q, k, v)),
        ("flashtile.flex, functions with tensors", lambda: flashtile.flex(q, k, v, alibi, mask_mod=document)),
        ("flashtile.flex, mask_mod, lse", lambda: flashtile.flex(q, k, v, mask_mod=causal, return_lse=True)),
        ("flashtile.flex, block_mask", lambda: flashtile.flex(q, k, v, block_mask=blocks)),
        ("flashtile.sdpa, forward and backward", backward(flashtile.sdpa, learned)),
        ("F.scaled_dot_product_attention, both", backward(SDPA, learned)),
        ("-- layers", lambda: None),
        ("what else looks at a call", _host.is_traced),
        ("checks of shapes in Python", lambda: _sdpa._aligned(q, k, v, False)),
        ("native call, from three tensors", lambda: native.attend(q, k, v, 0.125, False)),
        ("native call, outputs given", lambda: native.call((q, k, v, 0.125), (o, lse), False)),
        ("native call that declines", lambda: native.attend(q, k, None, 0.125, False)),
        ("torch.empty_like(q)", lambda: torch.empty_like(q)),
        ("torch.empty_strided(lse)", lambda: torch.empty_strided((batch, 2, 64), (128, 64, 1), dtype=torch.float32, device=device)),
        *([("the same, as it is allocated here", lambda: empty((batch, 2, 64), (128, 64, 1), torch.float32))] if empty else []),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each row (default 2)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sync = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    name = torch.cuda.get_device_name() if options.device == "cuda" else "the CPU, tensors of no elements"
    print(f"PyTorch {torch.__version__}, {name}; microseconds of a call: the median of {ROUNDS} rounds, and the least")
    for label, call in rows(options.device):
        if label.startswith("--"):
            print(label)
            continue
        median, least = microseconds(call, options.seconds, sync)
        print(f"{label:40} {median:8.2f} {least:8.2f}", flush=True)


if __name__ == "__main__":
    main()

"""Backward passes of flashtile.sdpa beside PyTorch's on a GPU: ms, their ratio and difference."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

import flashtile

SDPA = torch.nn.functional.scaled_dot_product_attention
# Batches, heads, heads of keys, positions, head dim, and whether keys behind the query are hidden.
SHAPES = [
    (32, 32, 32, 512, 64, False),
    (32, 32, 32, 512, 64, True),
    (8, 32, 32, 2048, 64, False),
    (8, 32, 8, 2048, 64, True),
    (2, 16, 16, 4096, 128, True),
    (4, 16, 4, 1000, 128, True),
    (8, 12, 12, 1024, 64, True),
    (2, 8, 8, 2048, 256, True),
    (4, 24, 24, 1500, 96, False),
]


def milliseconds(run: Callable[[], object], repeats: int) -> float:
    """The median of 5 times of so many runs, by events of the GPU."""
    run()
    run()
    times = []
    for _ in range(5):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(repeats):
            run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / repeats)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20, help="runs that are timed together")
    options = parser.parse_args()
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}; bf16, nothing tuned")
    for batch, heads, groups, length, width, causal in SHAPES:

        def tensor(count: int) -> torch.Tensor:
            return torch.randn(batch, count, length, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)

        inputs = q, k, v = tensor(heads), tensor(groups), tensor(groups)
        grad = torch.randn_like(q)
        named = {"is_causal": causal, "enable_gqa": groups != heads}
        runs = []
        begin = time.perf_counter()
        for attend in (flashtile.sdpa, SDPA):
            o = attend(q, k, v, **named)
            runs.append(lambda o=o: torch.autograd.grad(o, inputs, grad, retain_graph=True))
            if attend is flashtile.sdpa:
                runs[0]()
                torch.cuda.synchronize()
                first = time.perf_counter() - begin
        apart = max(float((x - y).abs().max()) for x, y in zip(runs[0](), runs[1]()))
        ours, theirs = (milliseconds(run, options.repeats) for run in runs)
        shape = f"{batch}, {heads}, {groups}, {length}, {width}{', causal' if causal else ''}"
        print(f"{shape:30} {ours:.3f} {theirs:.3f} {theirs / ours:.2f}, apart {apart:.3f}, first {first:.1f} s")


main()

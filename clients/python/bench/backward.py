"""Backward passes of flashtile.sdpa beside PyTorch's on a GPU: the form taken, ms of each, ratios.

Nothing is tuned. The contestants run in turns; a visit is so many runs that are timed together, and
a time is the median of the visits. `x best` is what the fastest of PyTorch's takes, over ours.
Gradients are compared with those of the first.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import flashtile
from flashtile import _operator

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
#: What PyTorch takes by itself, and what it is told to take.
BACKENDS = {"PyTorch": None, "cuDNN": SDPBackend.CUDNN_ATTENTION, "FA2": SDPBackend.FLASH_ATTENTION}


def milliseconds(run: Callable[[], object], repeats: int) -> float:
    """So many runs, timed together by events of the GPU."""
    run()
    run()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeats):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / repeats


def captured(run: Callable[[], object]) -> Callable[[], None]:
    """Replays of a run, in which the host has no part."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        run()
    return graph.replay


def shape(text: str) -> tuple[int, int, int, int, int, bool]:
    """`2,32,8,4096,128,causal`, without the last word where all keys are seen."""
    *sizes, last = text.split(",")
    causal = last == "causal"
    numbers = [int(size) for size in (sizes if causal else [*sizes, last])]
    if len(numbers) != 5:
        raise argparse.ArgumentTypeError(f"{text}: five sizes, B,H,G,N,D, and `,causal` behind")
    return (*numbers, causal)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", type=shape, help="B,H,G,N,D or B,H,G,N,D,causal; else some of all kinds")
    parser.add_argument("--beside", nargs="+", choices=list(BACKENDS), default=["PyTorch"])
    parser.add_argument("--repeats", type=int, default=20, help="runs of a visit")
    parser.add_argument("--visits", type=int, default=5)
    parser.add_argument("--graph", action="store_true", help="time replays of captured graphs, without the host")
    options = parser.parse_args()
    if options.graph:
        torch.cuda.set_stream(torch.cuda.Stream())
    taken: list[str] = []

    def chosen(predicted: list, choose: Callable = _operator.fastest_form) -> str:
        taken[:] = [choose(predicted)]
        return taken[0]

    _operator.fastest_form = chosen
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}; bf16, nothing tuned")
    for batch, heads, groups, length, width, causal in options.shapes or SHAPES:

        def tensor(count: int) -> torch.Tensor:
            return torch.randn(batch, count, length, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)

        inputs = q, k, v = tensor(heads), tensor(groups), tensor(groups)
        grad = torch.randn_like(q)
        named = {"is_causal": causal, "enable_gqa": groups != heads}
        begin, first = time.perf_counter(), 0.0
        taken[:] = ["plain"]
        runs: dict[str, Callable[[], tuple]] = {}
        for name in ("flashtile", *options.beside):
            backend = BACKENDS.get(name)
            with sdpa_kernel(backend) if backend else nullcontext():
                o = (flashtile.sdpa if name == "flashtile" else SDPA)(q, k, v, **named)
            runs[name] = lambda o=o: torch.autograd.grad(o, inputs, grad, retain_graph=True)
            if name == "flashtile":
                runs[name]()
                torch.cuda.synchronize()
                first = time.perf_counter() - begin
        ours, theirs = (runs[name]() for name in ("flashtile", options.beside[0]))
        apart = max(((x - y).float().norm() / y.float().norm()).item() for x, y in zip(ours, theirs))
        del ours, theirs
        if options.graph:
            runs = {name: captured(run) for name, run in runs.items()}
        times: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(options.visits):
            for name, run in runs.items():
                times[name].append(milliseconds(run, options.repeats))
        medians = {name: statistics.median(found) for name, found in times.items()}
        best = min(medians[name] for name in options.beside)
        row = f"{batch}, {heads}, {groups}, {length}, {width}{', causal' if causal else ''}"
        each = " ".join(f"{name} {found:.3f}" for name, found in medians.items())
        print(
            f"{row:30} {taken[0]:12} {each}, x best {best / medians['flashtile']:.2f}, "
            f"apart {apart:.1e}, first {first:.1f} s",
            flush=True,
        )
        if not apart < 1e-2:
            raise SystemExit("wrong: gradients differ")


main()

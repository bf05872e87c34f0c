"""Kernels of rows beside PyTorch's functions: those of rows.rs, which load rows whole, and the built-in ones.

Ours by `flashtile bench`, nothing tuned; PyTorch's, and compiled, as replays of a CUDA graph of five calls, medians of
seven. Milliseconds, bf16. Needs PyTorch with CUDA.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import subprocess
from collections.abc import Callable

import torch

SHAPES = ["8192x4096", "8192x1024", "65536x768"]
CALLS = 5


def milliseconds(call: Callable[[], object]) -> float:
    for _ in range(3):
        call()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(CALLS):
            call()
    found = []
    for _ in range(7):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) / CALLS)
    return statistics.median(found)


def ours(command: str, kernel: str, sizes: str) -> float:
    done = subprocess.run([command, "bench", kernel, "--shape", sizes, "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{kernel} {sizes}: {done.stderr}")
    found = json.loads(done.stdout)
    return (found[0] if isinstance(found, list) else found.get("kernels", [found])[0])["median_ms"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=SHAPES, help="rows x columns, such as 8192x4096")
    parser.add_argument("--flashtile", default="target/release/flashtile", help="the command")
    options = parser.parse_args()
    texts = pathlib.Path(__file__).with_name("rows.rs")
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}; bf16, nothing tuned, ms")
    for shape in options.shapes:
        rows, columns = (int(size) for size in shape.split("x"))
        x, g = (torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        w = torch.randn(columns, device="cuda", dtype=torch.bfloat16)
        kernels: dict[str, tuple[str | None, Callable[[], torch.Tensor]]] = {
            "rms_norm": ("rms_norm", lambda: torch.nn.functional.rms_norm(x, (columns,), w, 1e-5)),
            "softmax": ("row_softmax", lambda: x.softmax(-1)),
            "layer_norm": ("layer_norm", lambda: torch.nn.functional.layer_norm(x, (columns,), w, w, 1e-5)),
            "gate": (None, lambda: x * torch.nn.functional.silu(g)),
        }
        for name, (builtin, call) in kernels.items():
            torch._dynamo.reset()
            whole = ours(options.flashtile, f"{texts}:{name}", f"M={rows},D={columns}")
            walked = f"{ours(options.flashtile, builtin, f'M={rows},N={columns}'):.4f}" if builtin else "-"
            theirs, compiled = milliseconds(call), milliseconds(torch.compile(call, dynamic=False))
            print(f"{shape:12} {name:11} whole {whole:.4f} built-in {walked:7} PyTorch {theirs:.4f} compiled {compiled:.4f}", flush=True)


if __name__ == "__main__":
    main()

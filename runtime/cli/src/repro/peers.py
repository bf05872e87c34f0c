"""Times what PyTorch offers for the cells of an experiment.

Reads one JSON object from standard input: {"repetitions": N, "budget_s": S, "cells": [{"id", "what", "b", "h", "g", "m", "n",
"d", "causal", "dtype"}]}. Prints one JSON object a line: first {"torch", "device"} or {"absent": why}, then
{"id", "ms", "min_ms", "mib"} or {"id", "absent": why} for each cell. Times are medians of events around one call, with the L2
cache flushed before each, after calls that are not counted; memory is the peak beyond the inputs.
"""

import json
import math
import statistics
import sys
import time


def say(**fields):
    print(json.dumps(fields), flush=True)


def fused(torch, backend):
    def make(q, k, v, cell):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        grouped = cell["h"] != cell["g"]

        def run():
            with sdpa_kernel(getattr(SDPBackend, backend)):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=cell["causal"], enable_gqa=grouped)

        return run

    return make


def chosen(torch):
    """Whatever backend PyTorch prefers."""

    def make(q, k, v, cell):
        grouped = cell["h"] != cell["g"]
        attention = torch.nn.functional.scaled_dot_product_attention
        return lambda: attention(q, k, v, is_causal=cell["causal"], enable_gqa=grouped)

    return make


def naive(torch):
    """Three calls, with S and P in memory."""

    def make(q, k, v, cell):
        groups = cell["h"] // cell["g"]
        k, v = (x.repeat_interleave(groups, 1) if groups > 1 else x for x in (k, v))
        scale = 1 / math.sqrt(cell["d"])
        hidden = None
        if cell["causal"]:
            hidden = torch.ones(cell["m"], cell["n"], device="cuda", dtype=torch.bool).triu(1 + cell["n"] - cell["m"])

        def run():
            s = q @ k.transpose(-2, -1) * scale
            if hidden is not None:
                s = s.masked_fill(hidden, -math.inf)
            p = torch.softmax(s, -1)
            return p @ v

        return run

    return make


def rotated(torch, attends):
    """Rotary embedding of q and k outside of attention, as it is written in PyTorch; tables of shape (N, D / 2). With the
    attention after it, or alone."""

    def make(q, k, v, cell):
        half = cell["d"] // 2
        speeds = 10000.0 ** (-torch.arange(half, device="cuda") / half)
        angles = torch.arange(max(cell["m"], cell["n"]), device="cuda")[:, None] * speeds
        cos, sin = angles.cos().to(q.dtype), angles.sin().to(q.dtype)

        def rotate(x, length):
            x1, x2 = x[..., :half], x[..., half:]
            c, s = cos[:length], sin[:length]
            return torch.cat([x1 * c - x2 * s, x2 * c + x1 * s], -1)

        if not attends:
            return lambda: (rotate(q, cell["m"]), rotate(k, cell["n"]))
        attention = torch.nn.functional.scaled_dot_product_attention
        return lambda: attention(rotate(q, cell["m"]), rotate(k, cell["n"]), v, is_causal=cell["causal"])

    return make


def milliseconds(torch, run, flush, repetitions, budget):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def once():
        flush.zero_()
        start.record()
        run()
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    # The first calls of a process load code and choose algorithms: 3 calls at least, and 50 ms of them.
    began, calls = time.monotonic(), 0
    while calls < 3 or time.monotonic() - began < 0.05:
        once()
        calls += 1
    began, samples = time.monotonic(), [once()]
    while len(samples) < repetitions and time.monotonic() - began < budget:
        samples.append(once())
    return statistics.median(samples), min(samples)


def measure(torch, makers, cell, flush, task):
    dtype = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}[cell["dtype"]]
    torch.manual_seed(0)

    def normal(heads, length):
        return torch.randn(cell["b"], heads, length, cell["d"], device="cuda", dtype=dtype)

    q, k, v = normal(cell["h"], cell["m"]), normal(cell["g"], cell["n"]), normal(cell["g"], cell["n"])
    run = makers[cell["what"]](q, k, v, cell)
    run()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    base = torch.cuda.memory_allocated()
    out = run()
    torch.cuda.synchronize()
    mib = (torch.cuda.max_memory_allocated() - base) / 2**20
    del out
    median, least = milliseconds(torch, run, flush, task["repetitions"], task["budget_s"])
    return {"ms": median, "min_ms": least, "mib": mib}


def main():
    task = json.load(sys.stdin)
    try:
        import torch
    except ImportError as reason:
        return say(absent=f"PyTorch cannot be imported: {reason}")
    if not torch.cuda.is_available():
        return say(absent=f"PyTorch {torch.__version__} sees no GPU")
    say(torch=torch.__version__, device=torch.cuda.get_device_name())
    l2 = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0)
    flush = torch.empty(2 * max(l2, 32 << 20), device="cuda", dtype=torch.int8)
    makers = {
        "fa2": fused(torch, "FLASH_ATTENTION"),
        "sdpa": chosen(torch),
        "naive": naive(torch),
        "rotate": rotated(torch, attends=False),
        "rotate_sdpa": rotated(torch, attends=True),
    }
    for cell in task["cells"]:
        try:
            say(id=cell["id"], **measure(torch, makers, cell, flush, task))
        except Exception as reason:  # a library may fail in any way, and is then not measured
            say(id=cell["id"], absent=f"{type(reason).__name__}: {reason}".splitlines()[0][:200])
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""A random search for kernels and sizes of which the untuned choice is slow: each cell is timed as a launch takes it, then tuned.

    python3 bench/choices.py --flashtile target/release/flashtile --seed 1 --seconds 300 --json choices.jsonl

A cell draws a built-in kernel, or its gradients, an element type and sizes. A line tells the time of the
untuned choice over that of the schedule that `flashtile tune` found, and both in us; where it is large, both
schedules. Every cell has a cache of its own, so that nothing tuned before decides; `FLASHTILE_NVRTC` should name a
folder with NVRTC, which is not looked for in each then. Needs a GPU, and no PyTorch.
"""

import argparse
import json
import os
import pathlib
import random
import subprocess
import tempfile
import time

ATTENTION = ("attention", "causal_attention", "sliding_window", "prefix_attention", "alibi_attention", "softcap_attention",
             "sink_attention", "document_attention", "bias_attention", "query_norm_attention", "sigmoid_attention",
             "dropout_attention", "rope_attention", "causal_rope_attention")
OTHERS = ("matmul_gelu", "swiglu", "linear_cross_entropy", "mla_prefill", "mla_decode", "decode_attention",
          "differential_attention")
WITH_GRADIENTS = ("attention", "causal_attention", "sliding_window", "prefix_attention", "alibi_attention", "softcap_attention",
                  "document_attention", "bias_attention", "sigmoid_attention")
HEAD_DIMS = (32, 40, 48, 64, 64, 72, 80, 96, 104, 112, 128, 128, 136, 160, 176, 192, 224, 256)
MOST_FLOP = 3e12
MOST_ELEMENTS = 3e8
SLOW = 1.12


def power(rng, low, high):
    return int(2 ** rng.uniform(low, high))


def attention(rng, kernel):
    """Sizes, scalars and data of a kernel of attention."""
    heads = rng.choice((4, 6, 8, 12, 16, 24, 32, 40))
    groups = rng.choice([g for g in range(1, heads + 1) if heads % g == 0] + [heads] * 3)
    while True:
        batch, keys, dim = rng.choice((1, 1, 2, 3, 4, 8, 16)), power(rng, 8, 14), rng.choice(HEAD_DIMS)
        rows = keys if kernel == "document_attention" or rng.random() < 0.75 else power(rng, 4, 13)
        pairs = batch * heads * rows * keys
        if 4 * pairs * dim < MOST_FLOP and batch * heads * (rows + keys) * dim < MOST_ELEMENTS and pairs / batch < 5e8:
            break
    sizes = {"B": batch, "H": heads, "G": groups, "M": rows, "N": keys, "D": dim}
    given = {"sliding_window": [f"window={rng.choice((64, 200, 512, 1024))}"], "prefix_attention": [f"prefix={rng.randrange(1, keys)}"]}
    data = []
    if kernel == "document_attention":
        del sizes["M"]
        data = [f"document:even-ids={rng.choice((2, 5, 12))}"]
    if "rope" in kernel:
        sizes["C"] = dim // 2
    return sizes, given.get(kernel, []), data


def other(rng, kernel):
    """The same of the other kernels."""
    keys = power(rng, 10, 15)
    lengths = [f"lens:constant={keys}"] if kernel in ("mla_decode", "decode_attention") else []
    batch, length, dim = rng.choice((1, 4, 16, 48)), power(rng, 9, 12.5), rng.choice((32, 64, 96, 128))
    sizes = {
        "matmul_gelu": {"M": power(rng, 5, 13), "N": rng.choice((1024, 1536, 4096, 5000, 11008)), "K": rng.choice((512, 1024, 2880, 4096))},
        "swiglu": {"M": power(rng, 5, 13), "N": rng.choice((1024, 1536, 4096, 5000, 11008)), "K": rng.choice((512, 1024, 2880, 4096))},
        "linear_cross_entropy": {"M": power(rng, 8, 13), "V": rng.choice((8000, 32000, 50257)), "D": rng.choice((256, 512, 768, 1024, 2048))},
        "mla_prefill": {"B": 2, "H": 16, "M": length, "N": length, "D": 128, "R": 64, "E": 128},
        "mla_decode": {"B": batch, "H": rng.choice((8, 16, 32, 128)), "N": keys, "C": 512, "R": 64},
        "decode_attention": {"B": batch, "G": rng.choice((1, 2, 4, 8)), "R": rng.choice((1, 4, 5, 8)), "N": keys, "D": 2 * dim},
        "differential_attention": {"B": 2, "H": 8, "M": length, "N": length, "D": dim, "E": rng.choice((64, 128, 160))},
    }
    return sizes[kernel], [], lengths


def draw(rng):
    """The arguments of a cell, and whether they are about gradients."""
    kernel = rng.choice(ATTENTION * 2 + OTHERS * 2)
    sizes, scalars, data = (attention if kernel in ATTENTION else other)(rng, kernel)
    flop = 4 * sizes.get("B", 1) * sizes.get("H", 1) * sizes.get("M", sizes.get("N", 1)) * sizes.get("N", 1) * sizes.get("D", 1)
    with_gradients = kernel in WITH_GRADIENTS and rng.random() < 0.4 and flop < 1e12
    shape = ",".join(f"{name}={size}" for name, size in sizes.items())
    arguments = [kernel, "--dtype", rng.choice(("bf16", "f16")), "--shape", shape]
    for flag, values in (("--set", scalars), ("--data", data)):
        arguments += [word for value in values for word in (flag, value)]
    return arguments + (["--grad", "q,k,v"] if with_gradients else []), with_gradients


def call(options, verb, arguments, budget, cache):
    """The lines of JSON that the command prints, by kernel; the reason if it fails."""
    command = [options.flashtile, verb, *arguments, "--budget", budget, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "XDG_CACHE_HOME": cache})
    if done.returncode:
        raise RuntimeError(f"{verb}: {done.stderr.strip()[-300:]}")
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line["kernel"]: line for line in lines if line.get("median_ms") and "kernel" in line}


def time_cell(options, arguments, with_gradients):
    with tempfile.TemporaryDirectory() as cache:
        untuned = call(options, "bench", arguments, "120ms", cache)
        tuned = call(options, "tune", arguments, "9s" if with_gradients else "5s", cache)
    for kernel, best in tuned.items():
        if kernel not in untuned:
            continue
        chosen, factor = untuned[kernel], untuned[kernel]["median_ms"] / best["median_ms"]
        print(f"{factor:.2f} {kernel} {' '.join(arguments[1:])}: {chosen['median_ms'] * 1e3:.1f} {best['median_ms'] * 1e3:.1f}", flush=True)
        if factor > SLOW:
            print(f"     untuned {chosen['schedule']}\n     tuned   {best['schedule']}", flush=True)
        yield {"kernel": kernel, "arguments": arguments, "factor": factor, "untuned": chosen["schedule"], "tuned": best["schedule"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flashtile", default="flashtile", help="the command")
    parser.add_argument("--seed", type=int, default=1, help="of the cells that are drawn")
    parser.add_argument("--seconds", type=float, default=300.0, help="after which no further cell is drawn")
    parser.add_argument("--json", default="choices.jsonl", help="file that lines of JSON are added to")
    options = parser.parse_args()
    rng, end = random.Random(options.seed), time.monotonic() + options.seconds
    while time.monotonic() < end:
        arguments, with_gradients = draw(rng)
        try:
            rows = list(time_cell(options, arguments, with_gradients))
        except RuntimeError as reason:
            print(f"{' '.join(arguments)}: {reason}", flush=True)
            rows = [{"arguments": arguments, "error": str(reason)}]
        with pathlib.Path(options.json).open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()

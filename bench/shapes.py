#!/usr/bin/env python3
"""A random search for shapes that are slow: `flashtile.sdpa`, nothing tuned, beside PyTorch's functions, forward and backward.

Each cell draws sizes, a mask, an element type, and how tensors lie in memory. Passes are captured into
CUDA graphs and replayed in turns. Results are compared with those of the fastest peer. Needs PyTorch with
CUDA and the Python package of `clients/python`.
"""

import argparse
import json
import random
import statistics
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import flashtile

PEERS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "FA2": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION}
KINDS = ("full", "causal", "cross", "few", "bias", "bool", "padding")
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
VISITS = 4
VISIT_SECONDS = 0.004
MOST_FLOP = 4e12
MOST_BYTES = 2 << 30
# What two results of 16 bits may differ by, of the largest magnitude: both are rounded, and so are probabilities.
TOLERANCE = 0.03


def draw(rng):
    """A cell, small enough to take milliseconds."""
    while True:
        kind = rng.choice(KINDS)
        heads = rng.choice((1, 2, 4, 6, 8, 12, 16, 20, 24, 32, 40, 64))
        groups = rng.choice([g for g in range(1, heads + 1) if heads % g == 0] + [heads] * 3)
        length = int(2 ** rng.uniform(6, 14))
        rows = length
        if kind == "cross":
            rows = int(2 ** rng.uniform(6, 14))
        if kind == "few":
            rows = rng.choice((1, 1, 2, 4, 8, 16, 33, 64, 100))
        cell = {
            "B": rng.choice((1, 1, 2, 3, 4, 8, 16, 32)), "H": heads, "G": groups, "M": rows, "N": length,
            "D": rng.choice((32, 40, 64, 64, 72, 80, 96, 104, 112, 128, 128, 128, 144, 160, 192, 208, 256)),
            "kind": kind, "dtype": rng.choice(tuple(DTYPES)), "backward": rng.random() < 0.45, "heads_inside": rng.random() < 0.5,
        }
        flop = 4 * cell["B"] * heads * rows * length * cell["D"]
        held = 2 * cell["B"] * heads * (rows + length) * cell["D"] + 2 * rows * length
        if flop * (3.5 if cell["backward"] else 1) <= MOST_FLOP and held <= MOST_BYTES:
            return cell


def tensors(cell):
    """q, k, v, what is given to attn_mask, and the gradient of the output."""
    dtype = DTYPES[cell["dtype"]]

    def tensor(heads, rows):
        shape = (cell["B"], rows, heads, cell["D"]) if cell["heads_inside"] else (cell["B"], heads, rows, cell["D"])
        made = torch.randn(shape, device="cuda", dtype=dtype)
        made = made.transpose(1, 2) if cell["heads_inside"] else made
        return made.requires_grad_(cell["backward"])

    q, k, v = tensor(cell["H"], cell["M"]), tensor(cell["G"], cell["N"]), tensor(cell["G"], cell["N"])
    mask = None
    if cell["kind"] == "bias":
        mask = torch.randn(cell["M"], cell["N"], device="cuda", dtype=dtype)
    if cell["kind"] == "bool":
        mask = torch.rand(cell["M"], cell["N"], device="cuda") < 0.7
    if cell["kind"] == "padding":
        lengths = torch.randint(1, cell["N"] + 1, (cell["B"], 1, 1, 1), device="cuda")
        mask = torch.arange(cell["N"], device="cuda").view(1, 1, 1, -1) < lengths
    return q, k, v, mask, torch.randn_like(q)


def passes(cell, data, attention):
    """A function that runs the pass once, and what it gives."""
    q, k, v, mask, grad_o = data
    asked = {"attn_mask": mask, "is_causal": cell["kind"] == "causal", "enable_gqa": cell["H"] != cell["G"]}
    if not cell["backward"]:
        return lambda: (attention(q, k, v, **asked),)
    o = attention(q, k, v, **asked)
    return lambda: torch.autograd.grad(o, (q, k, v), grad_o, retain_graph=True)


def captured(run):
    """Replays of the pass in a CUDA graph, its results, and what they are computed from, which has to stay."""
    for _ in range(2):
        run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        results = run()
    graph.replay()
    torch.cuda.synchronize()
    return graph.replay, results, run


def seconds(replay, count):
    """Time of one replay."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(count):
        replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3 / count


def difference(ours, theirs):
    """The largest difference of results, as a share of the largest magnitude; more than 1 where either is not finite."""
    worst = 0.0
    for a, b in zip(ours, theirs):
        a, b = a.float(), b.float()
        if not bool(torch.isfinite(a).all()) or not bool(torch.isfinite(b).all()):
            return float("inf")
        worst = max(worst, ((a - b).abs().max() / b.abs().max().clamp_min(1e-6)).item())
    return worst


def measure(cell, seed):
    """The cell with the times of all, and how far our results are from those of the best peer."""
    torch.manual_seed(seed)
    data = tensors(cell)
    contestants = {"ours": captured(passes(cell, data, flashtile.sdpa))}
    refused = {}
    for name, backend in PEERS.items():
        try:
            with sdpa_kernel(backend):
                contestants[name] = captured(passes(cell, data, scaled_dot_product_attention))
        except RuntimeError as error:
            refused[name] = str(error).splitlines()[0][:80]
    times = {name: [] for name in contestants}
    counts = {name: max(1, round(VISIT_SECONDS / seconds(replay, 3))) for name, (replay, *_) in contestants.items()}
    for _ in range(VISITS):
        for name, (replay, *_) in contestants.items():
            times[name].append(seconds(replay, counts[name]))
    us = {name: round(statistics.median(found) * 1e6, 1) for name, found in times.items()}
    peers = {name: time for name, time in us.items() if name != "ours"}
    found = {**cell, "us": us, "refused": refused}
    if peers:
        best = min(peers, key=peers.get)
        found |= {"best": best, "ratio": round(peers[best] / us["ours"], 3)}
        found["difference"] = difference(contestants["ours"][1], contestants[best][1])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cells", type=int, default=60, help="how many shapes to draw")
    parser.add_argument("--seconds", type=float, default=600, help="no cell begins after this time")
    parser.add_argument("--cell", action="append", help="a cell as JSON, as --json writes it, in place of drawn ones; may be repeated")
    parser.add_argument("--json", help="write cells with their times to this file")
    options = parser.parse_args()
    rng, begin, results = random.Random(options.seed), time.time(), []
    # Gradients run on the stream of their forward pass, and the default stream cannot be captured.
    torch.cuda.set_stream(torch.cuda.Stream())
    cells = [json.loads(cell) for cell in options.cell or []] or [draw(rng) for _ in range(options.cells)]
    for number, cell in enumerate(cells):
        if time.time() - begin > options.seconds:
            print(f"{len(cells) - number} cells were not measured: the time is spent")
            break
        name = " ".join(f"{value}" for value in cell.values())
        try:
            found = measure(cell, options.seed + number)
        except Exception as error:  # a cell that fails is a finding; the others are measured all the same
            found = {**cell, "error": f"{type(error).__name__}: {error}"[:400]}
            print(f"FAILED {name}: {found['error']}", flush=True)
        else:
            wrong = "  DIFFERS" if found.get("difference", 0) > TOLERANCE else ""
            print(f"{found.get('ratio', 'no peer'):>7} {name}: {found['us']} {found.get('difference', 0):.3f}{wrong}", flush=True)
        results.append(found)
        torch.cuda.empty_cache()
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)
    ratios = sorted(found["ratio"] for found in results if "ratio" in found)
    if ratios:
        mean = statistics.geometric_mean(ratios)
        print(f"{len(ratios)} cells, {mean:.3f} of the best peer in the mean, lowest {ratios[:6]}, below 1.0: {sum(r < 1 for r in ratios)}")


if __name__ == "__main__":
    main()

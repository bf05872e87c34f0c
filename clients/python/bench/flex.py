"""Functions of FlexAttention with flashtile.flex beside torch.compile(flex_attention): errors, times and their ratio.

The functions are in the form in which they are published. Both sides run in turns; times are medians. The error of each
side is that against float64 on a part of the rows. On the CPU, small sizes are compared with PyTorch's eager formula.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention.flex_attention import and_masks, create_block_mask, flex_attention, or_masks

import flashtile

# Masks


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def sliding_window(width):
    def window(b, h, q_idx, kv_idx):
        return q_idx - kv_idx <= width

    return and_masks(causal, window)


def prefix_lm(length):
    def prefix(b, h, q_idx, kv_idx):
        return kv_idx <= length

    return or_masks(prefix, causal)


def document(ids):
    def mask_mod(b, h, q_idx, kv_idx):
        return ids[q_idx] == ids[kv_idx]

    return mask_mod


def natten(canvas, kernel):
    def x_y(idx):
        return idx // canvas, idx % canvas

    def mask_mod(b, h, q_idx, kv_idx):
        q_x, q_y = x_y(q_idx)
        kv_x, kv_y = x_y(kv_idx)
        center_x = q_x.clamp(kernel // 2, (canvas - 1) - kernel // 2)
        center_y = q_y.clamp(kernel // 2, (canvas - 1) - kernel // 2)
        return ((center_x - kv_x).abs() <= kernel // 2) & ((center_y - kv_y).abs() <= kernel // 2)

    return mask_mod


def dilated(width, step):
    def mask_mod(b, h, q_idx, kv_idx):
        distance = q_idx - kv_idx
        return (distance >= 0) & (distance <= width * step) & (distance % step == 0)

    return mask_mod


# Scores


def alibi(heads):
    def score_mod(score, b, h, q_idx, kv_idx):
        scale = torch.exp2(-((h + 1) * 8.0 / heads))
        return score + (kv_idx - q_idx) * scale

    return score_mod


def alibi_of(slopes):
    def score_mod(score, b, h, q_idx, kv_idx):
        return score - slopes[h] * (q_idx - kv_idx)

    return score_mod


def softcap(cap):
    def score_mod(score, b, h, q_idx, kv_idx):
        return cap * torch.tanh(score / cap)

    return score_mod


def relative(score, b, h, q_idx, kv_idx):
    return score + (q_idx - kv_idx) * 1e-3


def relative_table(table, length):
    def score_mod(score, b, h, q_idx, kv_idx):
        return score + table[h, q_idx - kv_idx + length - 1]

    return score_mod


def bias_of(bias, places):
    """Adds a number that lies at the dimensions of `places`, such as "hmn"."""

    def of_heads_and_pairs(score, b, h, q_idx, kv_idx):
        return score + bias[h, q_idx, kv_idx]

    def of_pairs(score, b, h, q_idx, kv_idx):
        return score + bias[q_idx, kv_idx]

    def of_heads_and_keys(score, b, h, q_idx, kv_idx):
        return score + bias[h, kv_idx]

    return {"hmn": of_heads_and_pairs, "mn": of_pairs, "hn": of_heads_and_keys}[places]


Example = tuple[Callable | None, Callable | None]


def examples(heads: int, length: int, device: str) -> dict[str, Callable[[], Example]]:
    """What makes a `score_mod` and a `mask_mod`, for each name."""
    sizes = {"h": heads, "m": length, "n": length}

    def learned_bias(places: str, mask_mod: Callable | None = None) -> Callable[[], Example]:
        shape = [sizes[place] for place in places]
        return lambda: (bias_of(torch.randn(shape, device=device).requires_grad_(), places), mask_mod)

    ends = torch.tensor([0.07, 0.1, 0.31, 0.42, 0.75, 0.8, 1.0]) * length
    ids = torch.bucketize(torch.arange(length), ends.int(), right=True).int().to(device)
    slopes = torch.linspace(0.02, 0.5, heads, device=device)
    table = torch.randn(heads, 2 * length - 1, device=device)
    learned_table = table.clone().requires_grad_()
    unit = max(1, length // 64)
    made: dict[str, Callable[[], Example]] = {
        "full": lambda: (None, None),
        "causal": lambda: (None, causal),
        "sliding window": lambda: (None, sliding_window(length // 16)),
        "prefix": lambda: (None, prefix_lm(length // 4)),
        "document": lambda: (None, document(ids)),
        "document, causal": lambda: (None, and_masks(causal, document(ids))),
        "dilated": lambda: (None, dilated(unit, 4)),
        "ALiBi, causal": lambda: (alibi(heads), causal),
        "ALiBi of slopes, causal": lambda: (alibi_of(slopes), causal),
        "tanh softcap": lambda: (softcap(20.0), None),
        "tanh softcap, causal": lambda: (softcap(20.0), causal),
        "relative position": lambda: (relative, None),
        "relative table, causal": lambda: (relative_table(table, length), causal),
        "learned table, causal": lambda: (relative_table(learned_table, length), causal),
        "learned bias": learned_bias("mn"),
        "learned bias, causal": learned_bias("mn", causal),
        "learned bias of heads": learned_bias("hmn"),
        "learned bias of heads, causal": learned_bias("hmn", causal),
        "learned bias of keys": learned_bias("hn"),
        "learned bias of keys, causal": learned_bias("hn", causal),
    }
    canvas = math.isqrt(length)
    if canvas**2 == length:
        made["NATTEN"] = lambda: (None, natten(canvas, 2 * max(1, canvas // 10) + 1))
    return made


# Comparison


def exact(inputs: list[torch.Tensor], score_mod: Callable | None, mask_mod: Callable | None, rows: torch.Tensor) -> torch.Tensor:
    """The rows of the result, in float64, of the first batch."""
    q, k, v = (x[:1].double() for x in inputs)
    scores = q[:, :, rows] @ k.mT / q.shape[-1] ** 0.5
    places = [torch.zeros(1, device=q.device, dtype=torch.int32), torch.arange(q.shape[1], device=q.device, dtype=torch.int32)]
    places += [rows.int(), torch.arange(k.shape[2], device=q.device, dtype=torch.int32)]

    def apply(function: Callable, *given: Any) -> torch.Tensor:
        for at in range(3, -1, -1):
            function = torch.vmap(function, in_dims=(*(0 for _ in given), *(0 if place == at else None for place in range(4))))
        return function(*given, *places)

    if score_mod is not None:
        scores = apply(score_mod, scores)
    if mask_mod is not None:
        scores = scores.masked_fill(~apply(mask_mod), -torch.inf)
    return scores.softmax(-1).nan_to_num() @ v


def times(calls: list[Callable[[], object]], rounds: int) -> list[float]:
    """Medians of milliseconds, in turns."""
    for call in calls * 3:
        call()
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, kept in zip(calls, found):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            start.record()
            for _ in range(5):
                call()
            end.record()
            end.synchronize()
            kept.append(start.elapsed_time(end) / 5)
    return [statistics.median(kept) for kept in found]


def captured(function: Callable | None) -> list[torch.Tensor]:
    """The tensors that a function holds and whose gradients are asked for."""
    cells = getattr(function, "__closure__", None) or ()
    held = (cell.cell_contents for cell in cells)
    return [x for x in held if isinstance(x, torch.Tensor) and x.requires_grad]


def backward(
    call: Callable[..., torch.Tensor], inputs: list[torch.Tensor], also: list[torch.Tensor], grad: torch.Tensor
) -> Callable[[], object]:
    """The backward pass alone, of one forward pass, with this gradient of its output, to the inputs and `also`."""
    o = call(*inputs)
    return lambda: torch.autograd.grad(o, [*inputs, *also], grad, retain_graph=True)


def why_not(call: Callable[[], object]) -> str | None:
    """Why FlexAttention has no code for a call; `None` if it has."""
    try:
        call()
    except torch._inductor.exc.InductorError as error:
        return str(error).splitlines()[0]
    return None


def row(name: str, errors: list[float], found: list[float], without: str | None) -> str:
    """A line: errors, milliseconds and their ratio; of us alone if the other side has no code."""
    line = f"{name:30}" + "".join(f"{error:10.2e}" for error in errors).ljust(20)
    if without:
        return f"{line}{found[0]:9.3f}  theirs: {without}" if found else line
    return line + (f"{found[0]:9.3f}{found[1]:9.3f}{found[1] / found[0]:7.2f}" if found else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", nargs="*", help="names of examples")
    parser.add_argument("--batch", type=int, help="2 on a GPU, 1 on the CPU")
    parser.add_argument("--heads", type=int, help="16 on a GPU, 2 on the CPU")
    parser.add_argument("--length", type=int, help="4096 on a GPU, 64 on the CPU; NATTEN needs a square")
    parser.add_argument("--head-dim", type=int, help="128 on a GPU, 16 on the CPU")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--block-masks", action="store_true", help="walk the lists of FlexAttention's BlockMask")
    parser.add_argument("--backward", action="store_true", help="time the backward pass too")
    parser.add_argument("--theirs", type=json.loads, metavar="JSON", help="`kernel_options` of FlexAttention")
    parser.add_argument("--tune", type=float, metavar="SECONDS", help="tune each kernel for so long before it is timed")
    options = parser.parse_args()
    on_cpu = options.device == "cpu"
    for name, cuda, cpu in (("batch", 2, 1), ("heads", 16, 2), ("length", 4096, 64), ("head_dim", 128, 16)):
        if getattr(options, name) is None:
            setattr(options, name, cpu if on_cpu else cuda)
    warnings.filterwarnings("ignore", message="flex_attention called without")
    torch.manual_seed(0)
    length = options.length
    shape = (options.batch, options.heads, length, options.head_dim)
    dtype = torch.float32 if on_cpu else torch.bfloat16
    inputs = [torch.randn(shape, device=options.device, dtype=dtype) for _ in range(3)]
    rows = torch.arange(0, length, max(1, length // 64), device=options.device)
    print(f"{shape}, {dtype}, PyTorch {torch.__version__}")
    print(f"{'':30}{'error':>10}{'theirs':>10}" + ("" if on_cpu else f"{'ms':>9}{'theirs':>9}{'ratio':>7}"))
    wrong = []
    made = examples(options.heads, length, options.device)
    if unknown := [name for name in options.only or [] if name not in made]:
        parser.error(f"no example {', '.join(unknown)} of this length; there are {', '.join(made)}")
    if not options.only and "NATTEN" not in made:
        print(f"NATTEN is left out: the length {length} is no square")
    for name in options.only or made:
        score_mod, mask_mod = made[name]()
        block_mask = create_block_mask(mask_mod, None, None, length, length, device=options.device) if mask_mod else None
        torch._dynamo.reset()
        compiled = flex_attention if on_cpu else torch.compile(flex_attention, dynamic=False)

        def ours(q, k, v):
            if options.block_masks:
                return flashtile.flex(q, k, v, score_mod, block_mask)
            return flashtile.flex(q, k, v, score_mod, mask_mod=mask_mod)

        def theirs(q, k, v):
            return compiled(q, k, v, score_mod, block_mask, kernel_options=options.theirs)

        if options.tune:
            flashtile.tune(ours, *inputs, budget=options.tune)
        with torch.no_grad():
            expected = exact(inputs, score_mod, mask_mod, rows)
            without = why_not(lambda: theirs(*inputs))
            calls = [ours] if without else [ours, theirs]
            errors = [(call(*inputs)[:1, :, rows].double() - expected).abs().max().item() for call in calls]
            found = [] if on_cpu else times([lambda call=call: call(*inputs) for call in calls], options.rounds)
        if not errors[0] <= max(2 * errors[-1] if not without else 1e-2, 1e-5 if on_cpu else 1e-3):
            wrong.append(name)
        print(row(name, errors, found, without), flush=True)
        if not options.backward or on_cpu:
            continue
        learned = [x.clone().requires_grad_() for x in inputs]
        if options.tune:
            flashtile.tune(ours, *learned, budget=options.tune)
        grad = torch.randn_like(learned[0])
        passes = [backward(ours, learned, captured(score_mod), grad)]
        without = without or why_not(lambda: passes.append(backward(theirs, learned, captured(score_mod), grad)))
        without = without or why_not(passes[1])
        if without:
            print(row("  backward, not compared", [], times(passes[:1], options.rounds), without), flush=True)
            continue
        gaps = [((x - y).float().norm() / y.float().norm()).item() for x, y in zip(*(step() for step in passes))]
        print(row("  backward, differ by", [max(gaps)], times(passes, options.rounds), None), flush=True)
        # Both round to the type of the inputs, and what is summed up.
        if not max(gaps) <= 2e-2:
            wrong.append(f"{name}, backward")
    if wrong:
        raise SystemExit(f"wrong: {', '.join(wrong)}")


if __name__ == "__main__":
    main()

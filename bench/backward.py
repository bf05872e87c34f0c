#!/usr/bin/env python3
"""Times derived gradients of attention beside those of cuDNN, FlashAttention-2 and -4.

    python3 bench/backward.py prepare --flashtile target/release/flashtile --out gradients
    python3 bench/backward.py run --gradients gradients --json results.json --markdown results.md

`prepare` needs no GPU. It derives the gradients of the two kernels of bench/mha.rs in both forms,
and compiles the kernels of each with the cost model's choice for --length, and the kernel of
columns with the schedules of a JSON file too, `{"fused/causal/d64": ["block_m=128,..", ..]}`.
`tune` takes what `flashtile tune` finds on this GPU, for each cell.

Method. All contestants run in one process on the same tensors. In a cell they are visited in random
order, round after round; a visit is so many runs of all kernels of a gradient for --window
milliseconds untimed, then as many timed. The time is the median over rounds. Of ours the fastest
chain counts, and all are in the JSON. Before it is timed each chain is checked on two heads against
float64, its outputs and what its kernels leave each other filled with NaN. A chain that is wrong is
reported and not timed. `o` and `lse` are those of PyTorch's FlashAttention-2. FlashAttention-4
(`--peers FA4`, its path for sm_90; README.md names the wheels) has the same numbers in its own
layout, (B, N, H, D). TFLOP/s count 10 B H N N D, half of that for causal.
"""

import argparse
import dataclasses
import itertools
import json
import math
import pathlib
import random
import statistics
import sys

from bench import AS_LAUNCHED, call, geometric_mean, machine
from cells import TOKENS, WIDTH, asked
from kernels import Cuda, Kernel

LENGTHS = (512, 2048, 8192, 16384)
HEAD_DIMS = (64, 96, 128, 192, 256)
FORMS = {"plain": ("rows", "columns"), "fused": ("rows", "columns", "sums")}
PEERS = ("cuDNN", "FA2", "FA4")
BACKENDS = {"cuDNN": "CUDNN_ATTENTION", "FA2": "FLASH_ATTENTION"}
TOLERANCE = 1.5  # of the error of the first peer
ROWS = 2048  # of a head, at a time, in float64


@dataclasses.dataclass(frozen=True)
class Cell:
    """One problem."""

    causal: bool
    head_dim: int
    length: int

    @property
    def mask(self):
        return "causal" if self.causal else "full"

    @property
    def name(self):
        return f"{self.mask}/d{self.head_dim}/{self.length}"

    @property
    def sizes(self):
        return {"B": max(1, TOKENS // self.length), "H": WIDTH // self.head_dim, "M": self.length, "N": self.length}

    @property
    def flops(self):
        sizes = self.sizes
        return 10 * sizes["B"] * sizes["H"] * self.length**2 * self.head_dim / (2 if self.causal else 1)


def cells(options):
    found = itertools.starmap(Cell, itertools.product((False, True), HEAD_DIMS, LENGTHS))
    return [cell for cell in found if asked(cell.name, options.only)]


def command(options, *arguments):
    """What `flashtile` prints, or None and the reason on standard error."""
    done = call([options.flashtile, *arguments], is_untuned=AS_LAUNCHED in arguments)
    if done.returncode:
        print(f"{' '.join(arguments)}: {done.stderr.strip()}", file=sys.stderr)
        return None
    return done.stdout


def derive(options, form, mask):
    """A file with the kernels of a gradient."""
    text = pathlib.Path(options.out) / f"{form}_{mask}.rs"
    text.parent.mkdir(parents=True, exist_ok=True)
    source = f"{pathlib.Path(__file__).with_name('mha.rs')}:{mask}"
    command(options, "inspect", source, "--grad", "q,k,v", "--grad-form", form, "--emit", "text", "--out", str(text))
    return text


def size_list(cell, form, part):
    """The sizes of a cell as text; rows and sums of the fused form know none of the keys."""
    sizes = {**cell.sizes, "D": cell.head_dim}
    if form == "fused" and part != "columns":
        del sizes["N"]
    return ",".join(f"{name}={size}" for name, size in sizes.items())


def compile_kernel(options, text, cell, form, part, kind, extra):
    """The code of a kernel; false and the reason on standard error if there is none."""
    kernel, label, of = f"{cell.mask}_grad_{part}", f"{form}.{kind}", size_list(cell, form, part)
    out = pathlib.Path(options.out) / cell.mask / f"d{cell.head_dim}" / label
    code = ["--json", "--emit", "cubin", "--out", str(out), "--shape", of, "--arch", options.arch]
    made = command(options, "inspect", f"{text}:{kernel}", *code, *extra)
    if made is None:
        return False
    report = json.loads(made.splitlines()[0])["report"]
    spills = report["spill_stores"] + report["spill_loads"]
    print(f"{out}/{kernel}: {report['registers']} registers, {spills} bytes of spills", flush=True)
    return True


def prepare(options):
    """Makes the code of every mask and head dim that a launch takes where nothing is tuned, or that a file chooses."""
    wanted = json.loads(pathlib.Path(options.schedules).read_text()) if options.schedules else {}
    missing = 0
    for form, causal in itertools.product(FORMS, (False, True)):
        text = derive(options, form, "causal" if causal else "full")
        for head_dim in HEAD_DIMS:
            cell = Cell(causal, head_dim, options.length)
            if not asked(cell.name, options.only):
                continue
            for part in FORMS[form]:
                chosen = [None] + (wanted.get(f"{form}/{cell.mask}/d{head_dim}", []) if part == "columns" else [])
                for index, schedule in enumerate(chosen):
                    kind, extra = ("model", [AS_LAUNCHED]) if schedule is None else (str(index), ["--schedule", schedule])
                    missing += not compile_kernel(options, text, cell, form, part, kind, extra)
    return 1 if missing else 0


def tune(options):
    """Tunes the kernels of both forms in every cell, and keeps the winners' code."""
    missing = 0
    for form, cell in itertools.product(FORMS, cells(options)):
        text = derive(options, form, cell.mask)
        for part in FORMS[form]:
            kernel, of = f"{text}:{cell.mask}_grad_{part}", size_list(cell, form, part)
            tuned = command(options, "tune", kernel, "--json", "--shape", of, "--budget", options.budget)
            kind = f"tuned{cell.length}"
            missing += tuned is None or not compile_kernel(options, text, cell, form, part, kind, ["--tuned"])
    return 1 if missing else 0


class Contestant:
    """Something that is timed, so many runs a visit."""

    def __init__(self, torch, run, window):
        self.torch, self.run, self.samples = torch, run, []
        run()
        once = self.milliseconds(3)
        self.runs = max(2, min(100, round(window / max(once, 1e-3))))

    def milliseconds(self, runs):
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(runs):
            self.run()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / runs

    def visit(self):
        for _ in range(self.runs):
            self.run()
        self.samples.append(self.milliseconds(self.runs))


def tensors(torch, cell):
    """Inputs and outputs of all kernels of a gradient."""
    torch.manual_seed(0)
    batch, heads = cell.sizes["B"], cell.sizes["H"]

    def normal():
        return torch.randn(batch, heads, cell.length, cell.head_dim, device="cuda", dtype=torch.bfloat16)

    data = {name: normal() for name in ("q", "k", "v", "grad_o")}
    forward = torch.ops.aten._scaled_dot_product_flash_attention
    data["o"], data["lse"] = forward(data["q"], data["k"], data["v"], 0.0, cell.causal)[:2]
    data |= {f"grad_{name}": torch.empty_like(data[name]) for name in ("q", "k", "v")}
    data["grad_l"] = torch.empty_like(data["lse"])
    data["grad_q_sum"] = torch.empty(data["q"].shape, device="cuda", dtype=torch.float32)
    return data


def exact(torch, cell, data, head):
    """Gradients of a head in float64."""
    q, k, v, grad = (data[name][head].double() for name in ("q", "k", "v", "grad_o"))
    scale = 1 / math.sqrt(cell.head_dim)
    found = [torch.zeros_like(q) for _ in range(3)]
    for at in range(0, cell.length, ROWS):
        rows = slice(at, min(at + ROWS, cell.length))
        scores = q[rows] @ k.T * scale
        if cell.causal:
            index = torch.arange(cell.length, device="cuda")
            scores.masked_fill_(index[None] > index[rows, None], -math.inf)
        weights = torch.softmax(scores, -1)
        delta = (grad[rows] * (weights @ v)).sum(-1, keepdim=True)
        change = weights * (grad[rows] @ v.T - delta) * scale
        found[0][rows] = change @ k
        found[1] += change.T @ q[rows]
        found[2] += weights.T @ grad[rows]
    return found


def errors(torch, cell, data, reference):
    """The relative errors of the gradients of q, k, v: the largest over heads."""
    worst = [0.0] * 3
    for head, expected in reference.items():
        for number, (name, want) in enumerate(zip("qkv", expected)):
            got = data[f"grad_{name}"][head].double()
            error = ((got - want).norm() / want.norm()).item()
            worst[number] = max(worst[number], error if math.isfinite(error) else math.inf)
    return worst


def peer(torch, cell, data, name):
    """A function that runs the backward pass of a peer once: gradients of q, k and v, heads one behind the other."""
    if name == "FA4":
        from flash_attn.cute import flash_attn_func

        inputs = [data[name].transpose(1, 2).contiguous().requires_grad_() for name in "qkv"]
        given = data["grad_o"].transpose(1, 2).contiguous()
        o = flash_attn_func(*inputs, causal=cell.causal)[0]
    else:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        inputs, given = [data[name].detach().clone().requires_grad_() for name in "qkv"], data["grad_o"]
        with sdpa_kernel(getattr(SDPBackend, BACKENDS[name])):
            o = torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=cell.causal)

    def run():
        grads = torch.autograd.grad(o, inputs, given, retain_graph=True)
        return [grad.transpose(1, 2) for grad in grads] if name == "FA4" else grads

    return run


def chains(cuda, torch, options, cell, data):
    """Our gradients: a label, the schedule of columns and a function that queues all kernels."""
    root = pathlib.Path(options.gradients) / cell.mask / f"d{cell.head_dim}"
    scalars = {"scale": 1 / math.sqrt(cell.head_dim)}
    for directory in sorted(root.glob("*.*")):
        form, kind = directory.name.split(".")
        of_another = kind.startswith("tuned") and kind != f"tuned{cell.length}"
        if of_another or not (directory / f"{cell.mask}_grad_columns.json").exists():
            continue
        launches, schedule = [], None
        for part in FORMS[form]:
            file = f"{cell.mask}_grad_{part}.json"
            own = directory / file
            kernel = Kernel(cuda, torch, own if own.exists() else root / f"{form}.model" / file)
            schedule = kernel.meta["schedule"] if part == "columns" else schedule
            launches.append(kernel.launcher(data, cell.sizes, scalars))
        yield directory.name, schedule, lambda launches=launches: [launch() for launch in launches]


def time_cell(torch, cuda, cell, options):
    data = tensors(torch, cell)
    heads = {(0, 0), (cell.sizes["B"] - 1, cell.sizes["H"] - 1)}
    reference = {head: exact(torch, cell, data, head) for head in heads}
    found, ours, absent, wrong = {}, {}, {}, {}
    allowed = None
    for name in options.peers:
        try:
            run = peer(torch, cell, data, name)
            data |= {f"grad_{x}": grad for x, grad in zip("qkv", run())}
            error = errors(torch, cell, data, reference)
            data |= {f"grad_{x}": torch.empty_like(data[x]) for x in "qkv"}
            if allowed is None:
                allowed = [TOLERANCE * e for e in error]
            if any(e > a for e, a in zip(error, allowed)):
                wrong[name] = f"wrong: errors {error}, allowed {allowed}"
                continue
            found[name] = Contestant(torch, run, options.window)
        except (ImportError, RuntimeError) as reason:
            absent[name] = str(reason).splitlines()[0][:200]
    if allowed is None:
        raise SystemExit(f"{cell.name}: no peer runs, and nothing says what error is right: {absent}")
    for label, schedule, run in chains(cuda, torch, options, cell, data):
        for name in ("grad_q", "grad_k", "grad_v", "grad_l", "grad_q_sum"):
            data[name].fill_(math.nan)
        run()
        error = errors(torch, cell, data, reference)
        if any(e > a for e, a in zip(error, allowed)):
            wrong[label] = f"wrong: errors {error}, allowed {allowed}"
            continue
        ours[label] = schedule
        found[label] = Contestant(torch, run, options.window)
    order = list(found)
    for _ in range(options.rounds):
        random.shuffle(order)
        for name in order:
            found[name].visit()
    times = {name: statistics.median(contestant.samples) for name, contestant in found.items()}
    row = {"cell": cell.name, "milliseconds": times, "schedules": ours, "absent": absent, "wrong": wrong, "flops": cell.flops}
    print(f"{cell.name}: " + ", ".join(f"{n} {t:.3f}" for n, t in sorted(times.items(), key=lambda x: x[1])), flush=True)
    for label, why in [*wrong.items(), *absent.items()]:
        print(f"{cell.name} {label}: not timed: {why}", file=sys.stderr)
    return row


def run(options):
    """Times every cell."""
    import torch

    torch.zeros(1, device="cuda")  # makes the context that kernels are loaded into
    cuda = Cuda()
    rows = [time_cell(torch, cuda, cell, options) for cell in cells(options)]
    report = {**machine(torch), "command": " ".join(["backward.py", *sys.argv[1:]]), "rows": rows}
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(report, indent=1) + "\n")
    table = markdown(report, options.peers)
    if options.markdown:
        pathlib.Path(options.markdown).write_text(table)
    print(table)
    return 1 if any(set(row["wrong"]) - set(PEERS) or not row["schedules"] for row in rows) else 0


def markdown(report, peers):
    """A row per cell: our best in TFLOP/s, its factor on each peer and on the best of them."""
    head = f"{report['device']}, driver {report['driver']}, PyTorch {report['torch']}; `{report['command']}`\n\n"
    head += "| cell | ms | TFLOP/s | " + " | ".join(f"x {name}" for name in peers) + " | x best peer | form |\n"
    head += "| --- " * (len(peers) + 5) + "|\n"
    factors, lines = [], []
    for row in report["rows"]:
        times = row["milliseconds"]
        if not row["schedules"]:
            lines.append(f"| {row['cell']} | - |\n")
            continue
        best = min(row["schedules"], key=times.get)
        rivals = [times[name] for name in peers if name in times]
        each = [f"{times[name] / times[best]:.2f}" if name in times else "-" for name in peers]
        factors.append(min(rivals) / times[best])
        shown = [row["cell"], f"{times[best]:.3f}", f"{row['flops'] / times[best] / 1e9:.0f}", *each, f"{factors[-1]:.2f}", best]
        lines.append(f"| {' | '.join(shown)} |\n")
    mean, lowest = geometric_mean(factors), min(factors, default=math.nan)
    return head + "".join(lines) + f"\ngeometric mean {mean:.3f} of the best peer, lowest {lowest:.2f}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)

    def verb(name, do, text):
        made = verbs.add_parser(name, help=text)
        made.add_argument("--only", action="append", help="only cells whose name contains this; a+b asks for both")
        made.set_defaults(do=do)
        return made

    for made in (verb("tune", tune, "tune on this GPU"), verb("prepare", prepare, "take the model's choice, and given schedules")):
        made.add_argument("--flashtile", default="flashtile", help="the command")
        made.add_argument("--out", default="gradients", help="directory to write into")
        made.add_argument("--arch", default="sm_90a", help="architecture of the code")
        made.add_argument("--schedules", help="JSON file of schedules of columns")
        made.add_argument("--length", type=int, default=8192, help="length that the model chooses for")
        made.add_argument("--budget", default="10s", help="time to tune a kernel")
    made = verb("run", run, "time gradients beside the peers")
    made.add_argument("--gradients", default="gradients", help="directory that tune or prepare has filled")
    made.add_argument("--peers", nargs="+", choices=PEERS, default=["cuDNN", "FA2"], help="peers")
    made.add_argument("--rounds", type=int, default=5, help="visits of each contestant")
    made.add_argument("--window", type=float, default=15.0, help="milliseconds of a visit that are timed")
    made.add_argument("--json", help="file to write every result into")
    made.add_argument("--markdown", help="file to write the table into")
    options = parser.parse_args()
    return options.do(options)


if __name__ == "__main__":
    sys.exit(main())

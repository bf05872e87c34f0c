#!/usr/bin/env python3
"""Times flashtile beside cuDNN, FlashAttention-2 and -3, Triton and FlexAttention: same process, same GPU, same tensors.

Needs PyTorch with CUDA. Kernels are made before by the `flashtile` command:

    python3 bench/bench.py tune --flashtile target/release/flashtile --out kernels --tables grid
    python3 bench/bench.py run --kernels kernels --tables grid --json results.json --markdown results.md
    python3 bench/plot.py results.json plots

`tune` needs the GPU: for every cell it calls `flashtile tune`, then `flashtile inspect --tuned --emit cubin`. `prepare` needs
none: it takes what a launch takes where nothing is tuned (`inspect --as-launched`), or schedules from a JSON file,
`{"causal/bf16/d128": ["block_m=128,..", ..], "*": [..]}`, where the longest key whose parts are all parts of the cell's name is
taken. Both may write into one directory: a cell may have several kernels, the fastest counts, and all are in the JSON.

Method. In a cell all contestants are visited in random order, round after round. A visit is replays of a CUDA graph for
--window milliseconds untimed, then as many timed, so that each is timed in its own steady state of clock and power; its
time is the median over rounds. L2 is not flushed: the tensors of a cell are larger. Every kernel of ours is checked against
float64 on rows of the very inputs it is timed on, with `o` poisoned before; one that is wrong is reported and not timed.
TFLOP/s count 4 B H M N D, half of that for causal. The rate of a bf16 matmul of 8192 is measured before and after. Beside each
rate is the clock of a multiprocessor in its visits: under the power limit it differs from contestant to contestant, and the share of
what the tensor cores can do at that clock says how good the code is.

Peers that are missing are named with the reason. `--peer NAME=FILE:FUNCTION` adds one: FUNCTION(torch, cell, data, options)
gives a function that runs once.
"""

import argparse
import importlib.util
import json
import math
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

from cells import TABLES, cells, error_of_rows, tensors
from clock import Clock
from kernels import Cuda, Kernel
from peers import PEERS, VARIANT_PEERS
from variants import VARIANTS

TOLERANCE = 4.0  # units of rounding, see cells.error_of_rows
MATMUL = 8192
AS_LAUNCHED = "--as-launched"  # the schedule that a launch takes


def directory(root, cell):
    return pathlib.Path(root) / cell.name.replace("/", "_")


def call(arguments, is_untuned=False):
    """Runs a command; `is_untuned`: with an empty cache, so that nothing counts that was tuned here."""
    if not is_untuned:
        return subprocess.run(arguments, capture_output=True, text=True)
    with tempfile.TemporaryDirectory() as empty:
        return subprocess.run(arguments, capture_output=True, text=True, env=os.environ | {"FLASHTILE_CACHE": empty})


def flashtile(options, verb, cell, extra):
    """Calls the command for a cell; its JSON, or None and the reason on standard error."""
    shape = ",".join(f"{name}={size}" for name, size in cell.sizes.items())
    command = [options.flashtile, verb, cell.kernel, "--json", "--dtype", cell.dtype, "--set", f"D={cell.head_dim}"]
    if verb == "tune" and cell.variant:
        # Scalars are timed at the values that they have here; without a variant `scale` has its default.
        further = [text for name, value in VARIANTS[cell.variant].scalars(cell).items() for text in ("--set", f"{name}={value}")]
        command += further + [text for said in VARIANTS[cell.variant].data(cell) for text in ("--data", said)]
    done = call([*command, "--shape", shape, *extra], is_untuned=AS_LAUNCHED in extra)
    if done.returncode:
        print(f"{cell.name}: {verb} ended with {done.returncode}: {done.stderr.strip() or done.stdout.strip()}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[0])


def report_made(cell, label, made):
    report = made["report"]
    spills = report["spill_stores"] + report["spill_loads"]
    print(f"{cell.name} {label}: {report['registers']} registers, {spills} bytes of spills", flush=True)


def tune(options):
    """Tunes every cell and keeps the winner's code."""
    missing = 0
    data = (["--data", f"q:scale={options.scores}"] if options.scores != 1 else []) + (
        ["--data", f"k:growth={options.growth}"] if options.growth else []
    )
    for cell in cells(options.tables, options.only):
        tuned = flashtile(options, "tune", cell, ["--budget", options.budget, *data])
        out = directory(options.out, cell) / "tuned"
        made = tuned and flashtile(options, "inspect", cell, ["--emit", "cubin", "--tuned", "--out", str(out)])
        if made is None:
            missing += 1
            continue
        (out / "tuning.json").write_text(json.dumps(tuned) + "\n")
        report_made(cell, f"{tuned['seconds']:.1f} s", made)
    return 1 if missing else 0


def prepare(options):
    """Makes the code of every cell that a launch takes where nothing is tuned, or that a file chooses."""
    wanted = json.loads(pathlib.Path(options.schedules).read_text()) if options.schedules else {}
    missing = 0
    for cell in cells(options.tables, options.only):
        parts = set(cell.name.split("/"))
        keys = [key for key in wanted if key == "*" or set(key.split("/")) <= parts]
        chosen = wanted[max(keys, key=lambda key: 0 if key == "*" else len(key.split("/")))] if keys else [None]
        for index, schedule in enumerate(chosen):
            label = "model" if schedule is None else str(index)
            extra = ["--emit", "cubin", "--arch", options.arch, "--out", str(directory(options.out, cell) / label)]
            made = flashtile(options, "inspect", cell, extra + (["--schedule", schedule] if schedule else [AS_LAUNCHED]))
            if made is None:
                missing += 1
            else:
                report_made(cell, label, made)
    return 1 if missing else 0


class Contestant:
    """Something that is timed: a graph of so many runs."""

    def __init__(self, torch, run, window):
        self.torch = torch
        self.run = run  # a graph does not keep the tensors of its launches
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            run()
            torch.cuda.synchronize()
            once = self.milliseconds(lambda: [run(), run()]) / 2
            self.runs = max(1, min(200, round(window / max(once, 1e-3))))
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=stream):
                for _ in range(self.runs):
                    run()
        self.samples, self.clocks = [], []

    def milliseconds(self, work):
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    def visit(self, clock):
        self.graph.replay()
        clock.mark(0)
        self.samples.append(self.milliseconds(self.graph.replay) / self.runs)
        clock.mark(1)
        self.clocks.append(clock.megahertz())

    def megahertz(self):
        """The median over visits; None if no visit told."""
        told = [clock for clock in self.clocks if clock]
        return statistics.median(told) if told else None


def contestants(torch, cuda, cell, data, options):
    """Everything that runs in a cell, and why the rest does not."""
    found, described, absent = {}, {}, {}
    scalars = cell.scalars
    for description in sorted(directory(options.kernels, cell).glob(f"*/{cell.kernel}.json")):
        label = f"flashtile {description.parent.name}"
        try:
            kernel = Kernel(cuda, torch, description)
            launch = kernel.launcher(data, cell.sizes, scalars)
            data["o"].fill_(math.nan)
            launch()
            torch.cuda.synchronize()
            error = error_of_rows(torch, cell, data)
            if error > TOLERANCE:
                raise RuntimeError(f"wrong: its error is {error:.1f} units of rounding, {TOLERANCE} are allowed")
            found[label] = Contestant(torch, launch, options.window)
            described[label] = {"schedule": kernel.meta["schedule"], "report": kernel.meta["report"], "error": error}
        except RuntimeError as reason:
            absent[label] = str(reason)
    for name in options.peers:
        try:
            if cell.variant and name in PEERS and name not in VARIANT_PEERS:
                raise RuntimeError("this peer is not told of variants here")
            found[name] = Contestant(torch, options.makers[name](torch, cell, data, options), options.window)
        except Exception as reason:  # a peer may fail in any way, and is then not measured
            absent[name] = f"{type(reason).__name__}: {reason}".splitlines()[0][:200]
    return found, described, absent


def matmul_rate(torch, clock):
    """TFLOP/s of a bf16 matmul."""
    a, b = (torch.randn(MATMUL, MATMUL, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    contestant = Contestant(torch, lambda: a @ b, 20)
    for _ in range(5):
        contestant.visit(clock)
    return 2 * MATMUL**3 / statistics.median(contestant.samples) / 1e9


def time_cell(torch, cuda, clock, cell, options):
    data = tensors(torch, cell, options.scores, options.growth)
    found, described, absent = contestants(torch, cuda, cell, data, options)
    order = list(found)
    for _ in range(options.rounds):
        random.shuffle(order)
        for name in order:
            found[name].visit(clock)
    rates = {name: cell.flops / statistics.median(c.samples) / 1e9 for name, c in found.items()}
    ours = {name: rate for name, rate in rates.items() if name in described}
    clocks = {name: c.megahertz() for name, c in found.items()}
    row = {"cell": cell.name, "group": cell.group, "length": cell.length, "tflops": rates, "megahertz": clocks}
    row |= {"kernels": described, "absent": absent}
    if ours:
        row["best"] = max(ours, key=ours.get)
    print(f"{cell.name}: " + ", ".join(f"{n} {r:.0f}" for n, r in sorted(rates.items(), key=lambda x: -x[1])), flush=True)
    return row


def run(options):
    """Times every cell."""
    import torch

    options.makers = dict(PEERS)
    for text in options.peer:
        name, place = text.split("=", 1)
        file, function = place.rsplit(":", 1)
        spec = importlib.util.spec_from_file_location(name, file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        options.makers[name] = getattr(module, function)
        options.peers.append(name)
    torch.zeros(1, device="cuda")  # makes the context that kernels are loaded into
    cuda = Cuda()
    clock = Clock(cuda, torch)
    before = matmul_rate(torch, clock)
    rows = [time_cell(torch, cuda, clock, cell, options) for cell in cells(options.tables, options.only)]
    report = {
        **machine(torch),
        "flops_per_clock": tensor_flops_per_clock(torch),
        "command": " ".join(["bench.py", *sys.argv[1:]]),
        "scores": options.scores,
        "growth": options.growth,
        "matmul_tflops": [before, matmul_rate(torch, clock)],
        "rows": rows,
    }
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(report, indent=1) + "\n")
    table = markdown(report, options.peers)
    if options.markdown:
        pathlib.Path(options.markdown).write_text(table)
    print(table)
    wrong = [row["cell"] for row in rows if "best" not in row]
    for cell in wrong:
        print(f"no kernel of flashtile was timed in {cell}", file=sys.stderr)
    return 1 if wrong else 0


def machine(torch):
    """What a report says of the machine."""
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    return {"device": torch.cuda.get_device_name(), "driver": driver, "torch": torch.__version__}


def tensor_flops_per_clock(torch):
    """Dense 16-bit FLOPs of all tensor cores in a clock; None for GPUs that are not in the table."""
    each = {(8, 0): 2048, (9, 0): 4096}.get(torch.cuda.get_device_capability())
    return each and each * torch.cuda.get_device_properties(0).multi_processor_count


def share_of_peak(report, row, name):
    """What a contestant reaches of what the tensor cores can do at its clock, as text."""
    clock, flops = row["megahertz"].get(name), report["flops_per_clock"]
    return f"{row['tflops'][name] * 1e6 / clock / flops:.2f}" if clock and flops else "-"


def geometric_mean(values):
    return math.exp(statistics.fmean(math.log(v) for v in values)) if values else math.nan


def markdown(report, peers):
    """A row per cell: our best, its ratio to each peer and to the best of them, its share of the matmul rate; its clock, and what it
    and the best peer reach of the peak at their clocks."""
    matmul = statistics.fmean(report["matmul_tflops"])
    head = f"{report['device']}, driver {report['driver']}, PyTorch {report['torch']}; `{report['command']}`; "
    head += f"bf16 matmul {matmul:.0f} TFLOP/s\n\n"
    shown = [peer for peer in peers if any(peer in row["tflops"] for row in report["rows"])]
    head += "| cell | TFLOP/s | " + " | ".join(f"x {peer}" for peer in shown) + " | x best peer | of matmul | MHz | of peak | best peer's | registers | spills | schedule |\n"
    head += "| --- " * (len(shown) + 10) + "|\n"
    ratios = {peer: [] for peer in [*shown, "best"]}
    lines = []
    for row in report["rows"]:
        if "best" not in row:
            continue
        rate, kernel = row["tflops"][row["best"]], row["kernels"][row["best"]]
        columns = []
        for peer in shown:
            if peer in row["tflops"]:
                ratios[peer].append(rate / row["tflops"][peer])
                columns.append(f"{ratios[peer][-1]:.2f}")
            else:
                columns.append("-")
        rivals = [peer for peer in peers if peer in PEERS and peer in row["tflops"]]
        rival = max(rivals, key=row["tflops"].get, default=None)
        best = rate / row["tflops"][rival] if rival else math.nan
        clock = row["megahertz"][row["best"]]
        shares = [share_of_peak(report, row, name) if name else "-" for name in (row["best"], rival)]
        ratios["best"] += [best] if rival else []
        spills = kernel["report"]["spill_stores"] + kernel["report"]["spill_loads"]
        numbers = [row["cell"], f"{rate:.0f}", *columns, f"{best:.2f}", f"{rate / matmul:.2f}", f"{clock:.0f}" if clock else "-", *shares]
        numbers += [str(kernel["report"]["registers"]), str(spills)]
        lines.append(f"| {' | '.join(numbers)} | `{short(kernel['schedule'])}` |\n")
    means = [f"{geometric_mean(ratios[name]):.3f}" for name in [*shown, "best"]]
    lines.append(f"| geometric mean | | {' | '.join(means)} | | | | | | | |\n")
    return head + "".join(lines)


# Knobs that are the same in every schedule of a table say nothing.
SHOWN = ("block_m", "block_n", "stages", "running_max", "ping_pong", "persistent", "section", "outer_stages", "min_blocks", "producer_registers")


def short(schedule):
    knobs = dict(item.split("=") for item in schedule.split(",") if "=" in item)
    return ",".join(f"{name}={knobs[name]}" for name in SHOWN if name in knobs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)

    def verb(name, do, text):
        made = verbs.add_parser(name, help=text)
        made.add_argument("--tables", nargs="+", choices=list(TABLES), default=["grid"], help="which cells")
        made.add_argument("--only", action="append", help="only cells whose name contains this; a+b asks for both")
        made.set_defaults(do=do)
        return made

    def inputs(made):
        made.add_argument("--scores", type=float, default=1.0, help="standard deviation of scores")
        made.add_argument("--growth", type=float, default=0.0, help="keys grow from a tenth to this along the sequence; negative: they fall")

    for made in (verb("tune", tune, "tune on this GPU"), verb("prepare", prepare, "take what a launch takes untuned, or given schedules")):
        made.add_argument("--flashtile", default="flashtile", help="the command")
        made.add_argument("--out", default="kernels", help="directory to write into")
        made.add_argument("--arch", default="sm_90a", help="architecture of the code")
        made.add_argument("--schedules", help="JSON file of schedules")
        made.add_argument("--budget", default="60s", help="time to tune a cell")
        inputs(made)
    made = verb("run", run, "time kernels beside the peers")
    inputs(made)
    made.add_argument("--kernels", default="kernels", help="directory that tune or prepare has filled")
    made.add_argument("--peers", nargs="*", choices=list(PEERS), default=["cuDNN", "FA2", "FA3", "Triton"], help="peers")
    made.add_argument("--peer", action="append", default=[], help="another one: NAME=FILE:FUNCTION")
    made.add_argument("--fa3", help="directory with the wheel fa3-fwd, unpacked")
    made.add_argument("--rounds", type=int, default=3, help="visits of each contestant")
    made.add_argument("--window", type=float, default=8.0, help="milliseconds of a visit that are timed")
    made.add_argument("--json", help="file to write every result into")
    made.add_argument("--markdown", help="file to write the table into")
    options = parser.parse_args()
    return options.do(options)


if __name__ == "__main__":
    sys.exit(main())

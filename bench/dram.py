"""Profiles the steps of `flashtile repro archaeology` with Nsight Compute, as the post does.

    python3 bench/dram.py --flashtile target/release/flashtile --out dram.json

The steps, with every knob of their schedules, are those that `flashtile repro archaeology --json` names; each is run at the shape of
the post. The printed table (Markdown) has, for each step: bytes read from DRAM and written to it, the time, theoretical and achieved
occupancy, the wavefronts of a load from shared memory and of a store to it ("n-way" in Nsight Compute's words), and what warps wait for:
the cycles between two instructions of a warp, those of them that it is stalled for the queue of memory instructions (MIO throttle), for
shared memory (short scoreboard), for global memory (long scoreboard), for a barrier and for a fixed latency (wait), and the warps that could
issue, per cycle. A schedule that makes several launches has its bytes and its time summed over them; all else is that of the launch that
takes longest. Nsight Compute flushes caches before each launch, so that nothing that one launch leaves to the next is in L2; its time is at the
base clock. Needs a GPU, `ncu`, NVRTC and the permission to read performance counters, but no Python package.
"""

import argparse
import csv
import io
import json
import re
import subprocess
import sys

READ, WRITTEN, TIME = "dram__bytes_read.sum", "dram__bytes_write.sum", "gpu__time_duration.sum"
THEORETICAL = "sm__maximum_warps_per_active_cycle_pct"
ACHIEVED = "sm__warps_active.avg.pct_of_peak_sustained_active"
# Loads by `ldmatrix` (LDSM) are counted apart from the others.
LOADS = ["smsp__sass_inst_executed_op_shared_ld.sum", "smsp__inst_executed_op_ldsm.sum"]
STORES = ["smsp__sass_inst_executed_op_shared_st.sum"]
LOAD_WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"
STORE_WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum"
LOAD_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum"
STORE_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum"
# Cycles per issued instruction, as in Nsight Compute's section on the states of warps.
BETWEEN, ELIGIBLE = "smsp__average_warp_latency_per_inst_issued.ratio", "smsp__warps_eligible.avg.per_cycle_active"
STALLS = {
    name: f"smsp__average_warps_issue_stalled_{name}_per_issue_active.ratio"
    for name in ("mio_throttle", "short_scoreboard", "long_scoreboard", "barrier", "wait")
}
METRICS = [READ, WRITTEN, TIME, THEORETICAL, ACHIEVED, *LOADS, *STORES, BETWEEN, ELIGIBLE, *STALLS.values()]
METRICS += [LOAD_WAVEFRONTS, STORE_WAVEFRONTS, LOAD_CONFLICTS, STORE_CONFLICTS]

# Launches that are profiled: as many as the schedule with most of them makes for one call.
LAUNCHES = 3
SIZES = {"B": 10, "H": 64, "G": 64, "M": 1024, "N": 1024}


def steps(flashtile, arch):
    """Name, kernel, element type, shape and schedule of each step."""
    command = [flashtile, "repro", "archaeology", "--device", "cpu", "--json"] + (["--arch", arch] if arch else [])
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for line in text.splitlines():
        cell = json.loads(line)
        if not cell.get("schedules"):
            continue  # a library, or what is not a cell
        # The CPU ran a small shape: its head dim is that of the step.
        dim = re.search(r"\bD=(\d+)", cell["shape"]).group(1)
        shape = ",".join(f"{name}={size}" for name, size in SIZES.items()) + f",D={dim}"
        yield {"step": f"{cell['row']} {cell['table']}", "kernel": cell["kernels"], "dtype": cell["dtype"], "shape": shape,
               "schedule": cell["schedules"]}


def profiled(ncu, flashtile, arch, step):
    """The metrics of each launch by its name; of one that ran more than once, those of the first run."""
    command = [ncu, "--csv", "--page", "raw", "--print-units", "base", "--metrics", ",".join(METRICS)]
    command += ["-k", f"regex:^{step['kernel']}", "-c", str(LAUNCHES)]
    command += [flashtile, "bench", step["kernel"], "--device", "cuda:0", "--dtype", step["dtype"], "--shape", step["shape"]]
    command += ["--schedule", step["schedule"], "--repetitions", "1"] + (["--arch", arch] if arch else [])
    ran = subprocess.run(command, capture_output=True, text=True)
    if '"ID"' not in ran.stdout:
        raise RuntimeError(f"{' '.join(command)}\n{ran.stdout}{ran.stderr}")
    table = "\n".join(line for line in ran.stdout[ran.stdout.index('"ID"'):].splitlines() if line.startswith('"'))
    launches = {}
    for row in csv.DictReader(io.StringIO(table)):
        if not row["ID"]:
            continue  # the units
        name = row["Kernel Name"].split("(")[0]
        launches.setdefault(name, {metric: number(row.get(metric)) for metric in METRICS})
    return launches


def number(text):
    """A number of a table, `None` for a metric that the GPU does not have."""
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None


def total(launches, metric):
    values = [launch[metric] for launch in launches.values()]
    return None if None in values else sum(values)


def ways(launch, wavefronts, requests):
    """Wavefronts of a request."""
    counted = [launch[metric] for metric in requests if launch[metric] is not None]
    return launch[wavefronts] / sum(counted) if launch[wavefronts] is not None and sum(counted) > 0 else None


def summary(launches):
    longest = max(launches.values(), key=lambda launch: launch[TIME] or 0)
    return {
        "launches": len(launches),
        "read": total(launches, READ),
        "written": total(launches, WRITTEN),
        "ms": None if total(launches, TIME) is None else total(launches, TIME) / 1e6,
        "theoretical": longest[THEORETICAL],
        "achieved": longest[ACHIEVED],
        "load": ways(longest, LOAD_WAVEFRONTS, LOADS),
        "store": ways(longest, STORE_WAVEFRONTS, STORES),
        "load_conflicts": longest[LOAD_CONFLICTS],
        "store_conflicts": longest[STORE_CONFLICTS],
        "between": longest[BETWEEN],
        "eligible": longest[ELIGIBLE],
        **{name: longest[metric] for name, metric in STALLS.items()},
    }


def text_of(value, form):
    return "-" if value is None else form(value)


def size(n):
    return f"{n / 1e9:.2f} GB" if n >= 1e9 else f"{n / 1e6:.1f} MB"


COLUMNS = [
    ("launches", "launches", str),
    ("DRAM read", "read", size),
    ("DRAM written", "written", size),
    ("ms", "ms", "{:.3f}".format),
    ("occupancy, theoretical", "theoretical", "{:.0f} %".format),
    ("achieved", "achieved", "{:.0f} %".format),
    ("wavefronts of a shared load", "load", "{:.2f}".format),
    ("of a store", "store", "{:.2f}".format),
    ("load conflicts", "load_conflicts", "{:.0f}".format),
    ("store conflicts", "store_conflicts", "{:.0f}".format),
    ("cycles between instructions of a warp", "between", "{:.1f}".format),
    *[(name.replace("_", " "), name, "{:.2f}".format) for name in STALLS],
    ("eligible warps", "eligible", "{:.2f}".format),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flashtile", default="target/release/flashtile")
    parser.add_argument("--ncu", default="ncu")
    parser.add_argument("--arch", help="generate code for this architecture; by default that of the GPU")
    parser.add_argument("--only", help="only steps whose name contains this, such as v1 or f32")
    parser.add_argument("--out", help="write the numbers here, as JSON")
    flags = parser.parse_args()
    results, failed = [], 0
    print("| step | " + " | ".join(head for head, _, _ in COLUMNS) + " |")
    print("| --- " * (len(COLUMNS) + 1) + "|")
    for step in steps(flags.flashtile, flags.arch):
        if flags.only and flags.only not in step["step"]:
            continue
        try:
            launches = profiled(flags.ncu, flags.flashtile, flags.arch, step)
        except RuntimeError as error:
            failed += 1
            print(f"{step['step']} failed:\n{error}", file=sys.stderr)
            continue
        found = summary(launches)
        results.append({**step, **found, "by_launch": launches})
        cells = [text_of(found[key], form) for _, key, form in COLUMNS]
        print(f"| {step['step']} | " + " | ".join(cells) + " |", flush=True)
    if flags.out:
        with open(flags.out, "w") as file:
            json.dump(results, file, indent=1)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

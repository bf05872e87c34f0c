"""Compares the bank conflicts that the emulator counts with those that Nsight Compute counts on a GPU.

    python3 bench/conflicts.py --flashtile target/release/flashtile --out conflicts.json

Each configuration is a kernel, a shape and a schedule. The emulator's profile is summed by opcode; Nsight Compute's source
counters are summed by the machine instruction that the opcode becomes. The printed table has the instructions and wavefronts of
both; the exit status is 1 if any differ. Copies by `cp.async` (LDGSTS) are shown but not held against the emulator: they write
when data arrive, in pieces that addresses alone do not tell. Needs a GPU, `ncu` and NVRTC, but no Python package.
"""

import argparse
import csv
import io
import json
import re
import subprocess
import sys

# Machine instructions by the start of the PTX opcode that becomes them.
KINDS = [
    ("ldmatrix", "LDSM"),
    ("stmatrix", "STSM"),
    ("cp.async.c", "LDGSTS"),
    ("ld.shared", "LDS"),
    ("st.shared", "STS"),
]

# Every knob is given, so that both sides run the same code.
REST = (
    "block_k=32,fragments=paired,operand_a=shared,batch_m=on,exponential=exp2,running_max=exact,early_stop=on,edges=split,"
    "order=grid,section=16,min_blocks=0,overlap=off,ping_pong=off,persistent=off,outer_stages=1,producer_registers=0"
)
MMA = f"{REST},tensor_op=mma_m16n8k16,block_m=64,block_n=64,warps=4"
FFMA = f"{REST},tensor_op=ffma,block_m=64,block_n=32,warps=4"


def configurations():
    for kernel, dtype, d, base, copies in [
        ("attention", "f16", 64, MMA, ["sync", "cp_async"]),
        ("attention", "bf16", 128, MMA, ["cp_async"]),
        ("causal_attention", "f16", 32, MMA, ["cp_async"]),
        ("attention", "f16", 80, MMA, ["cp_async"]),
        ("attention", "f32", 32, FFMA, ["sync", "cp_async"]),
        ("attention", "f32", 64, FFMA, ["cp_async"]),
    ]:
        for copy in copies:
            for swizzle in ["off", "padded", "xor"]:
                yield {
                    "kernel": kernel,
                    "dtype": dtype,
                    "shape": f"B=1,H=2,G=2,M=200,N=200,D={d}",
                    "schedule": f"{base},copy={copy},stages={2 if copy == 'cp_async' else 1},swizzle={swizzle}",
                }


def emulated(flashtile, c):
    """Instructions of warps and wavefronts by machine instruction."""
    command = [flashtile, "inspect", c["kernel"], "--emit", "profile", "--json", "--arch", "sm_90a"]
    command += ["--dtype", c["dtype"], "--shape", c["shape"], "--schedule", c["schedule"]]
    profile = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    found = {}
    for i in profile["instructions"]:
        work = i["work"]
        if work["shared_requests"] == 0:
            continue
        kind = next((k for start, k in KINDS if i["instruction"].startswith(start)), i["instruction"])
        total = found.setdefault(kind, [0, 0])
        total[0] += work["shared_requests"]
        total[1] += work["wavefronts"]
    return found


def measured(flashtile, c):
    command = ["ncu", "--section", "SourceCounters", "--import-source", "no", "--page", "source", "--csv"]
    command += ["--print-units", "base", "-k", f"regex:^{c['kernel']}$", "-c", "1"]
    command += [flashtile, "verify", c["kernel"], "--device", "cuda:0", "--dtype", c["dtype"], "--shape", c["shape"]]
    command += ["--schedule", c["schedule"]]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    start = text.index('"Address"')
    rows = csv.DictReader(io.StringIO(text[start:]))
    found = {}
    for row in rows:
        number = lambda name: int(float(row.get(name) or 0))
        wavefronts = number("L1 Wavefronts Shared")
        if wavefronts == 0:
            continue
        opcode = re.sub(r"^@!?U?P\w+\s+", "", row["Source"].strip()).split()[0]
        kind = opcode.split(".")[0]
        total = found.setdefault(kind, [0, 0])
        total[0] += number("Instructions Executed")
        total[1] += wavefronts
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flashtile", default="target/release/flashtile")
    parser.add_argument("--out", help="write the numbers here, as JSON")
    flags = parser.parse_args()
    results, differing = [], 0
    print(f"{'configuration':62} {'':8} {'emulator':>22} {'Nsight Compute':>22}")
    for c in configurations():
        ours, theirs = emulated(flags.flashtile, c), measured(flags.flashtile, c)
        results.append({**c, "emulator": ours, "ncu": theirs})
        name = f"{c['kernel']} {c['dtype']} {c['shape'].split(',')[-1]} {','.join(c['schedule'].split(',')[-3:])}"
        for kind in sorted(set(ours) | set(theirs)):
            a, b = ours.get(kind), theirs.get(kind)
            differs = a != b and kind != "LDGSTS"
            differing += differs
            print(f"{name:62} {kind:8} {str(a):>22} {str(b):>22}{'  differ' if differs else ''}")
    if flags.out:
        with open(flags.out, "w") as file:
            json.dump(results, file, indent=1)
    print(f"{differing} differ")
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main()

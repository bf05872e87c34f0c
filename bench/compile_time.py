"""Times the compiler itself, without a GPU: every `--emit` of a kernel, and the ranking of a space.

    python3 bench/compile_time.py target/release/flashtile [OTHER ..]

Each command line runs in turns for all programs, `--rounds` times, and the medians are printed as a
table in Markdown: milliseconds of CPU time, all threads together, which depend little on what else
runs on the machine. A row is a whole process, so that the start of a program is in all of them.
`ranked` has no schedule: the cost model ranks the whole space of the architecture. PTX, machine code
and the emulator are left out: NVRTC's time is not the compiler's.
"""

import argparse
import json
import resource
import statistics
import subprocess

# The largest built-in kernel, and a schedule for each way to lower it.
KERNEL = "causal_rope_attention"
WARP = "block_m=128,block_n=64,warps=4,tensor_op=mma_m16n8k16,copy=cp_async,stages=2"
WGMMA = (
    "block_m=128,block_n=128,warps=8,tensor_op=wgmma,copy=tma,stages=2,overlap=on,running_max=optimistic,"
    "precompute=ab,persistent=static,min_blocks=1,producer_registers=40"
)
REST = (
    "block_k=64,fragments=paired,operand_a=shared,batch_m=on,exponential=exp2,early_stop=on,edges=split,order=grid,section=16,"
    "min_blocks=0,ping_pong=off,persistent=off,outer_stages=1,producer_registers=0,b_layout=as_given,loop_order=as_written,"
    "walk=ascending,running_max=max_first,overlap=off"
)
EMITS = ["ir", "normal", "deps", "mask", "cost", "plan", "cuda", "abi", "layout"]


def rows():
    for name, arch, knobs in [("mma", "sm_80", WARP), ("wgmma", "sm_90a", WGMMA)]:
        for emit in EMITS:
            if emit not in ("ir", "deps") or name == "mma":
                yield f"{emit}, {name}" if emit not in ("ir", "deps") else emit, arch, emit, knobs
    yield "ranked, sm_80", "sm_80", "abi", None
    yield "ranked, sm_90a", "sm_90a", "abi", None


def seconds(program, arch, emit, knobs):
    command = [program, "inspect", KERNEL, "--set", "D=128", "--dtype", "bf16", "--emit", emit, "--arch", arch]
    if knobs is not None:
        command += ["--schedule", whole(program, knobs)]
    begin = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    return end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime


KNOWN = {}


def whole(program, knobs):
    """A schedule that names every knob of the program, so that nothing is ranked."""
    if program not in KNOWN:
        listed = subprocess.run([program, "list", "--knobs", "--json"], capture_output=True, text=True, check=True).stdout
        KNOWN[program] = [json.loads(line)["knob"] for line in listed.splitlines()]
    given = dict(item.split("=") for item in f"{REST},{knobs}".split(","))
    earlier = {
        "precompute": "off", "swizzle": "xor", "shared": "xor", "split_k": "1", "splits": "1", "fixup": "kernel",
        "combine": "kernel", "pack_gqa": "off", "fold": "off", "v_stages": "0",
    }
    return ",".join(f"{name}={given.get(name, earlier.get(name))}" for name in KNOWN[program])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="+", help="the `flashtile` commands to compare")
    parser.add_argument("--rounds", type=int, default=9, help="runs of each command line")
    options = parser.parse_args()
    print(f"| CPU ms, median of {options.rounds} | {' | '.join(options.programs)} | last / first |")
    print("| --- |" + " --- |" * (len(options.programs) + 1))
    for name, *what in rows():
        times = {program: [] for program in options.programs}
        for _ in range(options.rounds):
            for program in options.programs:
                times[program].append(seconds(program, *what))
        medians = [1e3 * statistics.median(of) for of in times.values()]
        print(f"| {name} | {' | '.join(f'{median:.1f}' for median in medians)} | {medians[-1] / medians[0]:.2f} |", flush=True)


if __name__ == "__main__":
    main()

"""Times plans of one kernel in turns, and tells how far their outputs differ from the first plan's.

    flashtile inspect KERNEL.rs --emit plan --shape S > a.plan     # then edit a copy of it
    python3 bench/plans.py --flashtile target/release/flashtile --kernel KERNEL.rs --shape S a.plan b.plan

Needs PyTorch with CUDA. Scalars that --set does not give are 1 / sqrt(D) for `scale`, else 1.
"""

import argparse
import math
import pathlib
import random
import re
import statistics
import subprocess
import tempfile

from bench import Contestant
from clock import Clock
from kernels import Cuda, Kernel


def tensors(torch, text, sizes, dtype):
    """Random inputs and empty outputs, as the signature in the kernel's text has them."""
    dtypes = {"T": getattr(torch, dtype), "f32": torch.float32}
    inputs, outputs = {}, {}
    for name, written, elem, dims in re.findall(r"(\w+): &(mut )?Tensor<(\w+), \(([^)]*)\)>", text):
        shape = [sizes[dim.strip()] for dim in dims.split(",") if dim.strip()]
        made = torch.randn(shape, device="cuda").to(dtypes[elem])
        (outputs if written else inputs)[name] = made
    return inputs, outputs


def pairs(text, kind):
    return {name: kind(value) for name, value in (item.split("=") for item in text.split(",") if item)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plans", nargs="+", help="files that `inspect --plan` takes; times are told beside the first")
    parser.add_argument("--flashtile", required=True)
    parser.add_argument("--kernel", required=True, help="file with the text of the kernel")
    parser.add_argument("--shape", required=True, help="NAME=SIZE,.. with the constants")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16"])
    parser.add_argument("--set", default="", help="scalars, NAME=VALUE,..")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    import torch

    torch.manual_seed(options.seed)
    random.seed(options.seed)
    torch.zeros(1, device="cuda")
    cuda = Cuda()
    clock = Clock(cuda, torch)
    sizes, text = pairs(options.shape, int), pathlib.Path(options.kernel).read_text()
    inputs, outputs = tensors(torch, text, sizes, options.dtype)
    scalars = {"scale": 1 / math.sqrt(sizes.get("D", 1)), **pairs(options.set, float)}
    scalars = {name: scalars.get(name, 1.0) for name in re.findall(r"(\w+): f32", text)}
    short = {"bfloat16": "bf16", "float16": "f16"}[options.dtype]
    found, first = {}, None
    with tempfile.TemporaryDirectory() as folder:
        for number, plan in enumerate(options.plans):
            out = pathlib.Path(folder) / str(number)
            command = [options.flashtile, "inspect", options.kernel, "--plan", plan, "--shape", options.shape]
            subprocess.run([*command, "--dtype", short, "--emit", "cubin", "--out", str(out)], check=True, stdout=subprocess.DEVNULL)
            kernel = Kernel(cuda, torch, next(iter(sorted(out.glob("*.json")))))
            launch = kernel.launcher({**inputs, **outputs}, sizes, scalars)
            for output in outputs.values():
                output.fill_(math.nan)
            launch()
            torch.cuda.synchronize()
            results = {name: output.double().clone() for name, output in outputs.items()}
            first = first or results
            differ = {name: (results[name] - first[name]).abs().max().item() for name in results}
            report = kernel.meta["report"]
            found[plan] = (Contestant(torch, launch, 8), differ, report["registers"], report["spill_stores"])
    for _ in range(options.rounds):
        for plan in random.sample(options.plans, len(options.plans)):
            found[plan][0].visit(clock)
    times = {plan: statistics.median(row[0].samples) for plan, row in found.items()}
    print(f"{torch.cuda.get_device_name()}, {options.shape}, {options.rounds} rounds in turns")
    print("| plan | us | x first | largest difference | registers | bytes spilled |\n| --- | --- | --- | --- | --- | --- |")
    for plan, (_, differ, registers, spilled) in found.items():
        largest = ", ".join(f"{name} {value:.1e}" for name, value in differ.items())
        speed = times[options.plans[0]] / times[plan]
        print(f"| {pathlib.Path(plan).name} | {1e3 * times[plan]:.1f} | {speed:.3f} | {largest} | {registers} | {spilled} |")


if __name__ == "__main__":
    main()

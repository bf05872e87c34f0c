#!/usr/bin/env python3
"""Times flashtile beside PyTorch's FlashAttention-2 backend: same process, same GPU, same tensors, in turns.

Needs PyTorch with CUDA and nothing else of Python, and kernels made before by the `flashtile` command, on this machine or
another one:

    python3 bench/bench.py prepare --flashtile target/release/flashtile --out kernels [--schedules FILE]
    python3 bench/bench.py run --kernels kernels --json results.json --markdown results.md

`prepare` calls `flashtile inspect --emit cubin` for every head dim, element type, mask and schedule. Without --schedules
that is the cost model's choice, or with --tuned what `flashtile tune` found and the cache holds; FILE is JSON, `{"causal/bf16/d128": ["block_m=128,...", ...], "*": [...]}`: the most exact
key that matches a cell is taken, and the parts of a key are mask (full or causal), element type and head dim.

`run` takes every kernel it finds in the directory (one subdirectory each, with KERNEL.cubin and KERNEL.json), checks it
against float64 on ragged shapes, and times those that are right. In a cell all kernels and the peer are run in random
order, round after round; before every timed launch the L2 cache is flushed; a time is the median of CUDA-event times.
TFLOP/s count 4 B H N^2 D, and half of that for causal. Of several schedules in a cell the fastest counts, and all are kept
in the JSON.

The parameter block of a kernel is laid out as `flashtile_codegen::Abi` says: fields in order, each at the next multiple of
its size, the whole padded to 8 bytes. Tensor maps are not filled here: a kernel that has them is refused.
"""

import argparse
import ctypes
import itertools
import json
import math
import pathlib
import random
import statistics
import struct
import subprocess
import sys

HEAD_DIMS = (64, 128, 256)
DTYPES = ("bf16", "f16")
MASKS = {"full": "attention", "causal": "causal_attention"}
LENGTHS = (2048, 8192, 16384)
TOKENS = 16384  # B * N
WIDTH = 2048  # H * D
MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
# (B, H, G, M, N): ragged, grouped, M != N, rows that see no key.
CHECKS = ((1, 2, 2, 128, 128), (2, 4, 2, 333, 333), (1, 2, 1, 1, 257), (1, 2, 2, 200, 77), (1, 3, 1, 77, 1000))


def cell_name(mask, dtype, head_dim):
    return f"{mask}/{dtype}/d{head_dim}"


def cells():
    return itertools.product(MASKS, DTYPES, HEAD_DIMS)


def prepare(options):
    """Makes the kernels of every cell with the flashtile command."""
    wanted = json.loads(pathlib.Path(options.schedules).read_text()) if options.schedules else {}
    out = pathlib.Path(options.out)
    made = refused = 0
    for mask, dtype, head_dim in cells():
        cell = cell_name(mask, dtype, head_dim)
        if options.only and not any(text in cell for text in options.only):
            continue
        keys = (cell, f"{mask}/d{head_dim}", f"{dtype}/d{head_dim}", f"d{head_dim}", mask, "*")
        schedules = next((wanted[key] for key in keys if key in wanted), [None])
        for index, schedule in enumerate(schedules):
            directory = out / cell.replace("/", "_") / str(index)
            shape = f"B={TOKENS // 8192},H={WIDTH // head_dim},G={WIDTH // head_dim},M=8192,N=8192"
            command = [options.flashtile, "inspect", MASKS[mask], "--emit", "cubin", "--out", str(directory), "--json"]
            command += ["--dtype", dtype, "--set", f"D={head_dim}", "--shape", shape, "--arch", options.arch]
            command += ["--schedule", schedule] if schedule else []
            command += ["--tuned"] if options.tuned and not schedule else []
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode == 0:
                made += 1
                report = json.loads(done.stdout)["report"]
                spills = report["spill_stores"] + report["spill_loads"]
                print(f"{cell} {index}: {report['registers']} registers, {spills} bytes of spills")
            else:
                refused += 1
                print(f"{cell} {index}: refused with exit code {done.returncode}: {done.stderr.strip()}", file=sys.stderr)
    print(f"{made} kernels made in {out}, {refused} refused")
    return 0 if made else 1


class Cuda:
    """The few functions of the driver that are needed."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")

    def __getattr__(self, name):
        function = getattr(self.library, name)

        def call(*arguments):
            status = function(*arguments)
            if status:
                raise RuntimeError(f"{name} failed with {status}")

        return call


class Kernel:
    """A compiled kernel, loaded into the context of PyTorch."""

    def __init__(self, cuda, torch, description):
        self.torch, self.cuda = torch, cuda
        self.meta = json.loads(description.read_text())
        self.abi = self.meta["abi"]
        self.name = str(description.parent)
        if self.abi["tensor_maps"] or self.abi["cluster"] != 1:
            raise RuntimeError("tensor maps and clusters are not launched by this script")
        module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        cuda.cuModuleLoadData(ctypes.byref(module), description.with_suffix(".cubin").read_bytes())
        cuda.cuModuleGetFunction(ctypes.byref(self.function), module, self.abi["entry"].encode())
        cuda.cuFuncSetAttribute(self.function, MAX_DYNAMIC_SHARED, self.abi["shared_bytes"])
        self.workspaces = []

    def launcher(self, tensors, sizes, scalars):
        """A function that queues one launch on PyTorch's current stream; everything is packed beforehand."""
        block = ctypes.create_string_buffer(self.pack(tensors, sizes, scalars))
        parameters = (ctypes.c_void_p * 1)(ctypes.cast(block, ctypes.c_void_p))
        blocks, threads, shared = self.blocks(sizes), self.abi["threads"], self.abi["shared_bytes"]

        def launch():
            stream = ctypes.c_void_p(self.torch.cuda.current_stream().cuda_stream)
            self.cuda.cuLaunchKernel(self.function, blocks, 1, 1, threads, 1, 1, shared, stream, parameters, None)

        return launch

    def pack(self, tensors, sizes, scalars):
        out = bytearray()

        def put(code, value):
            width = struct.calcsize(code)
            out.extend(b"\0" * (-len(out) % width))
            out.extend(struct.pack("<" + code, value))

        for field in self.abi["fields"]:
            ((kind, value),) = field.items()
            if kind == "pointer":
                put("Q", tensors[value].data_ptr())
            elif kind == "stride":
                put("q", tensors[value[0]].stride(value[1]))
            elif kind == "size":
                put("i", sizes[value])
            elif kind == "scalar":
                put("f", scalars[value])
            elif kind == "workspace":
                self.workspaces.append(self.torch.zeros(value, dtype=self.torch.uint8, device="cuda"))
                put("Q", self.workspaces[-1].data_ptr())
            else:
                raise RuntimeError(f"unknown field {kind}")
        out.extend(b"\0" * (-len(out) % 8))
        return bytes(out)

    def blocks(self, sizes):
        def value(term):
            return (sum(c * sizes[name] for name, c in term["terms"]) + term["constant"]) // term["divisor"]

        programs = 1
        for dim in self.abi["grid"]:
            ((kind, term),) = dim.items()
            programs *= value(term) if kind == "each" else -(-value(term[0]) // term[1])
        blocks = self.abi["blocks"]
        if blocks == "per_program":
            return programs
        sms = self.torch.cuda.get_device_properties(0).multi_processor_count
        return min(programs, sms * blocks["persistent"])


def reference(torch, q, k, v, scale, causal):
    """Attention in float64: o and lse."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    scores = q.double() @ k.transpose(-1, -2) * scale
    if causal:
        scores = scores.masked_fill(hidden(torch, *scores.shape[-2:]), -math.inf)
    return torch.softmax(scores, -1).nan_to_num(0.0) @ v, torch.logsumexp(scores, -1)


def check(torch, kernel, dtype, head_dim, causal):
    """The largest error of a kernel over the shapes, relative to the plain 16-bit computation's; infinite for a stray NaN."""
    torch.manual_seed(0)
    worst = 0.0
    scale = head_dim**-0.5
    for b, h, g, m, n in CHECKS:
        q = torch.randn(b, h, m, head_dim, device="cuda", dtype=dtype)
        k, v = (torch.randn(b, g, n, head_dim, device="cuda", dtype=dtype) for _ in range(2))
        o = torch.full_like(q, math.nan)
        # Rows of the LSE begin at multiples of 16 bytes, as the code was promised of every tensor.
        lse = torch.full((b, h, -(-m // 4) * 4), math.nan, device="cuda")[..., :m]
        tensors = {"q": q, "k": k, "v": v, "o": o, "lse": lse}
        kernel.launcher(tensors, {"B": b, "H": h, "G": g, "M": m, "N": n}, {"scale": scale})()
        torch.cuda.synchronize()
        exact, exact_lse = reference(torch, q, k, v, scale, causal)
        scores = (q @ k.repeat_interleave(h // g, 1).transpose(-1, -2)) * scale
        if causal:
            scores = scores.masked_fill(hidden(torch, m, n), -math.inf)
        plain = torch.softmax(scores.float(), -1).nan_to_num(0.0).to(dtype) @ v.repeat_interleave(h // g, 1)
        baseline = max((plain.double() - exact).abs().max().item(), torch.finfo(dtype).eps / 4 * exact.abs().max().item())
        error = (o.double() - exact).abs().max().item()
        dead = torch.isinf(exact_lse)
        sound = not o.isnan().any() and torch.equal(torch.isinf(lse), dead)
        sound = sound and (dead.all() or (lse.double() - exact_lse)[~dead].abs().max().item() < 1e-3)
        worst = max(worst, error / baseline if sound else math.inf)
    return worst


def hidden(torch, m, n):
    """Where a causal mask, aligned at the last key, hides."""
    return torch.arange(m, device="cuda")[:, None] + n - m < torch.arange(n, device="cuda")[None]


def flash_attention_2(torch, q, k, v, causal):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def run():
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return run


def time_in_turns(torch, functions, rounds, flush):
    """Median milliseconds of each function, run in random order round after round with a cold L2 cache."""
    for function in functions.values():
        for _ in range(3):
            function()
    torch.cuda.synchronize()
    times = {name: [] for name in functions}
    order = list(functions)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            flush.zero_()
            start.record()
            functions[name]()
            end.record()
            end.synchronize()
            times[name].append(start.elapsed_time(end))
    return {name: statistics.median(samples) for name, samples in times.items()}


def run(options):
    """Checks and times every kernel of the directory beside the peer."""
    import torch

    dtypes = {"bf16": torch.bfloat16, "f16": torch.float16}
    torch.zeros(1, device="cuda")  # makes the context that kernels are loaded into
    cuda = Cuda()
    l2 = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 64 << 20)
    flush = torch.empty(2 * max(l2, 32 << 20), dtype=torch.uint8, device="cuda")
    results, faults = [], []
    for mask, dtype, head_dim in cells():
        cell = cell_name(mask, dtype, head_dim)
        if options.only and not any(text in cell for text in options.only):
            continue
        kernels = {}
        for description in sorted(pathlib.Path(options.kernels).glob(f"{cell.replace('/', '_')}/*/{MASKS[mask]}.json")):
            try:
                kernel = Kernel(cuda, torch, description)
                error = check(torch, kernel, dtypes[dtype], head_dim, mask == "causal")
                if error > 2.0:
                    raise RuntimeError(f"its error is {error:.2f} times that of the plain 16-bit computation; 2 is allowed")
                kernels[kernel.name] = (kernel, error)
            except RuntimeError as error:
                faults.append({"cell": cell, "kernel": str(description.parent), "reason": str(error)})
                print(f"refused {description.parent}: {error}", file=sys.stderr)
        for length in options.lengths:
            results += time_cell(torch, cell, mask, dtypes[dtype], head_dim, length, kernels, options.rounds, flush)
    report = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "command": " ".join(sys.argv),
        "rounds": options.rounds,
        "results": results,
        "refused": faults,
    }
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(report, indent=1) + "\n")
    table = markdown(report)
    if options.markdown:
        pathlib.Path(options.markdown).write_text(table)
    print(table)
    if not results:
        print(f"no kernel in {options.kernels} could be timed; run `bench.py prepare` first", file=sys.stderr)
    return 1 if faults or not results else 0


def time_cell(torch, cell, mask, dtype, head_dim, length, kernels, rounds, flush):
    batch, heads = TOKENS // length, WIDTH // head_dim
    torch.manual_seed(0)
    q, k, v = (torch.randn(batch, heads, length, head_dim, device="cuda", dtype=dtype) for _ in range(3))
    tensors = {"q": q, "k": k, "v": v, "o": torch.empty_like(q), "lse": torch.empty(batch, heads, length, device="cuda")}
    sizes = {"B": batch, "H": heads, "G": heads, "M": length, "N": length}
    scalars = {"scale": head_dim**-0.5}
    functions = {name: kernel.launcher(tensors, sizes, scalars) for name, (kernel, _) in kernels.items()}
    if not functions:
        return []
    functions["FA2"] = flash_attention_2(torch, q, k, v, mask == "causal")
    times = time_in_turns(torch, functions, rounds, flush)
    flops = 4 * batch * heads * length * length * head_dim * (0.5 if mask == "causal" else 1)
    rows = []
    for name, (kernel, error) in kernels.items():
        rows.append(
            {
                "cell": cell,
                "length": length,
                "kernel": name,
                "schedule": kernel.meta["schedule"],
                "arch": kernel.meta["arch"],
                "median_ms": times[name],
                "tflops": flops / times[name] / 1e9,
                "peer_median_ms": times["FA2"],
                "peer_tflops": flops / times["FA2"] / 1e9,
                "ratio": times["FA2"] / times[name],
                "error_to_plain": error,
            }
        )
        print(f"{cell} N={length} {rows[-1]['tflops']:.1f} TFLOP/s, {rows[-1]['ratio']:.3f} of FA2: {name}", flush=True)
    return rows


def markdown(report):
    """One row per cell and length: the fastest schedule."""
    head = f"{report['device']}, PyTorch {report['torch']}, CUDA {report['cuda']}; `{report['command']}`\n\n"
    head += "| mask | dtype | d | N | flashtile TFLOP/s | FA2 TFLOP/s | ratio | schedule |\n"
    head += "| --- | --- | --- | --- | --- | --- | --- | --- |\n"
    best = {}
    for row in report["results"]:
        key = (row["cell"], row["length"])
        if key not in best or row["tflops"] > best[key]["tflops"]:
            best[key] = row
    lines = []
    for (cell, length), row in best.items():
        mask, dtype, head_dim = cell.split("/")
        numbers = f"{row['tflops']:.1f} | {row['peer_tflops']:.1f} | {row['ratio']:.2f}"
        lines.append(f"| {mask} | {dtype} | {head_dim[1:]} | {length} | {numbers} | `{row['schedule']}` |\n")
    return head + "".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    verb = verbs.add_parser("prepare", help="make kernels with the flashtile command")
    verb.add_argument("--flashtile", default="flashtile", help="the command")
    verb.add_argument("--out", default="kernels", help="directory to write into")
    verb.add_argument("--arch", default="sm_90a", help="architecture of the code")
    verb.add_argument("--schedules", help="JSON file of schedules per cell")
    verb.add_argument("--tuned", action="store_true", help="where no schedule is given, the tuned one of the cache")
    verb.add_argument("--only", action="append", help="only cells whose name contains this, such as causal or d128")
    verb.set_defaults(do=prepare)
    verb = verbs.add_parser("run", help="check and time kernels beside the peer")
    verb.add_argument("--kernels", default="kernels", help="directory that prepare has filled")
    verb.add_argument("--only", action="append", help="only cells whose name contains this, such as causal or d128")
    verb.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS), help="sequence lengths")
    verb.add_argument("--rounds", type=int, default=30, help="timed runs of each kernel")
    verb.add_argument("--json", help="file to write every result into")
    verb.add_argument("--markdown", help="file to write the table into")
    verb.set_defaults(do=run)
    options = parser.parse_args()
    return options.do(options)


if __name__ == "__main__":
    sys.exit(main())

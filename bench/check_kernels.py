#!/usr/bin/env python3
"""Packs the launches of kernels as `kernels.py` does, with a driver and tensors that only write down what they are asked for.

    flashtile inspect attention --emit cubin --json --out DIR > /dev/null
    python3 bench/check_kernels.py DIR/attention.json B=1,H=2,G=2,M=64,N=64,D=64
    python3 bench/check_kernels.py --fields
    python3 bench/check_kernels.py --variants

Prints a line per launch: its entry, blocks, threads, shared memory, tensor maps and the bytes of its parameters. Needs neither a GPU
nor PyTorch: it says whether the script and the description that the command writes still fit each other. `--fields` packs one field
of each kind, scalars of each type among them, and compares the bytes with those that generated code reads. `--variants` counts the
scores that each variant of `variants.py` sees, and compares the number with that which its rate is computed from.
"""

import ctypes
import math
import pathlib
import struct
import sys

from cells import TABLES, Cell
from kernels import Kernel, Launch
from variants import VARIANTS


class Tensor:
    """A packed tensor that is nowhere."""

    def __init__(self, shape, dtype):
        self.shape, self.dtype = shape, dtype

    def data_ptr(self):
        return 4096

    def stride(self, dimension):
        return math.prod(self.shape[dimension + 1 :])

    def element_size(self):
        return {"torch.float32": 4, "torch.int32": 4, "torch.uint8": 1}.get(self.dtype, 2)


class Torch:
    """What of PyTorch the script uses."""

    float16, bfloat16, float32 = "torch.float16", "torch.bfloat16", "torch.float32"
    int32, uint8 = "torch.int32", "torch.uint8"

    def empty(self, shape, dtype, device):
        return Tensor(list(shape), dtype)

    def zeros(self, size, dtype, device):
        return Tensor([size], dtype)

    class cuda:
        class Stream:
            cuda_stream = 0

        class Properties:
            multi_processor_count = 132

        @staticmethod
        def current_stream():
            return Torch.cuda.Stream

        @staticmethod
        def get_device_properties(_):
            return Torch.cuda.Properties


class Driver:
    """Writes down calls."""

    def __init__(self):
        self.maps, self.launched = 0, []

    def __getattr__(self, name):
        def call(*arguments):
            if name == "cuTensorMapEncodeTiled":
                self.maps += 1
            elif name == "cuLaunchKernel":
                self.launched.append((arguments[1], arguments[4], arguments[7]))
            elif name == "cuLaunchKernelEx":
                config = arguments[0]._obj
                self.launched.append((config.grid[0], config.block[0], config.shared))

        return call


def check_fields():
    """One field of each kind."""
    fields = [{"size": "N"}, {"pointer": "x"}, {"scalar": "window"}, {"scalar": "scale"}, {"stride": ["x", 0]}, {"scalar": "last"}]
    abi = {"entry": "f", "shared_bytes": 0, "fields": fields, "grid": [], "tensor_maps": []}
    launch = Launch(Driver(), Torch(), ctypes.c_void_p(), abi, {"window": "i32", "scale": "f32", "last": "i32"})
    scalars = {"window": 1 << 30, "scale": 0.5, "last": -1}
    packed = launch.pack({"x": Tensor([3, 7], Torch.float16)}, {"N": 5}, scalars)
    expected = struct.pack("<i4xQifqi4x", 5, 4096, 1 << 30, 0.5, 7, -1)
    if packed != expected:
        sys.exit(f"packed {packed.hex()}, expected {expected.hex()}")
    print("fields", len(packed), "bytes")


class Table:
    """Nested lists, read as a tensor is."""

    def __init__(self, rows):
        self.rows = rows

    def __getitem__(self, at):
        found = self.rows
        for index in at:
            found = found[index]
        return found


def check_variants():
    """The closed form of each variant's visible scores, against its predicate."""
    for name, variant in VARIANTS.items():
        for length in (40, 1100):
            queries = min(variant.queries, length // 2)
            cell = Cell("variants", False, "bf16", 64, length, 2, 2, 2, name, queries=queries)
            keep = variant.keep(cell, {name: Table(rows) for name, (_, rows) in variant.tables(cell).items()})
            counted = sum(
                keep is None or bool(keep(batch, 1, i, j))
                for batch in range(cell.batch)
                for i in range(cell.rows)
                for j in range(length)
            )
            if counted != variant.visible(cell):
                sys.exit(f"{name} at {length}: {variant.visible(cell)} scores are said to be seen, {counted} are")
    names = [cell.name for cell in TABLES["variants"]()]
    if len(set(names)) != len(names):
        sys.exit("two cells of the variants have one name")
    print("variants", len(VARIANTS), "in", len(names), "cells")


def main():
    if sys.argv[1:] == ["--variants"]:
        check_variants()
        return
    if sys.argv[1:] == ["--fields"]:
        check_fields()
        return
    description, given = pathlib.Path(sys.argv[1]), dict(item.split("=") for item in sys.argv[2].split(","))
    sizes = {name: int(size) for name, size in given.items()}
    b, h, g, m, n, d = (sizes[name] for name in "BHGMND")
    shapes = {"q": [b, h, m, d], "k": [b, g, n, d], "v": [b, g, n, d], "o": [b, h, m, d]}
    tensors = {name: Tensor(shape, Torch.bfloat16) for name, shape in shapes.items()}
    tensors["lse"] = Tensor([b, h, m], Torch.float32)
    driver = Driver()
    kernel = Kernel(driver, Torch(), description)
    kernel.launcher(tensors, sizes, {"scale": 1.0})()
    for launch, (blocks, threads, shared) in zip(kernel.launches, driver.launched, strict=True):
        print(launch.abi["entry"], blocks, threads, shared, sum(t.shape[0] for t in launch.workspaces))
    print("maps", driver.maps)


if __name__ == "__main__":
    main()

"""Loading and launching of compiled kernels through the CUDA driver, as their ABI says."""

import ctypes
import json
import struct

MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
DATA_TYPES = {"torch.bfloat16": 9, "torch.float16": 6}  # CUtensorMapDataType
SWIZZLE_128B, PROMOTION_L2_256B = 3, 3
MAP_BYTES = 128


class Cuda:
    """The driver; a status other than success is an error that names the call."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")

    def __getattr__(self, name):
        function = getattr(self.library, name)

        def call(*arguments):
            status = function(*arguments)
            if status:
                raise RuntimeError(f"{name} failed with {status}")

        return call


def tensor_map(cuda, tensor, order, tile):
    """A TMA tensor map: dimensions in this order, innermost first, 128-byte swizzle, zeros out of bounds."""
    raw = ctypes.create_string_buffer(2 * MAP_BYTES)
    address = (ctypes.addressof(raw) + MAP_BYTES - 1) // MAP_BYTES * MAP_BYTES
    rank = len(order)
    extents = (ctypes.c_uint64 * rank)(*[tensor.shape[d] for d in order])
    strides = (ctypes.c_uint64 * (rank - 1))(*[tensor.stride(d) * tensor.element_size() for d in order[1:]])
    box, ones = (ctypes.c_uint32 * rank)(*tile), (ctypes.c_uint32 * rank)(*[1] * rank)
    kind, pointer = DATA_TYPES[str(tensor.dtype)], ctypes.c_void_p(tensor.data_ptr())
    into = ctypes.c_void_p(address)
    cuda.cuTensorMapEncodeTiled(into, kind, rank, pointer, extents, strides, box, ones, 0, SWIZZLE_128B, PROMOTION_L2_256B, 0)
    return ctypes.create_string_buffer(ctypes.string_at(address, MAP_BYTES), MAP_BYTES)


class Kernel:
    """A compiled kernel, loaded into the context of PyTorch."""

    def __init__(self, cuda, torch, description):
        self.torch, self.cuda = torch, cuda
        self.meta = json.loads(description.read_text())
        self.abi = self.meta["abi"]
        if self.abi["cluster"] != 1:
            raise RuntimeError("clusters are not launched by this script")
        module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        cuda.cuModuleLoadData(ctypes.byref(module), description.with_suffix(".cubin").read_bytes())
        cuda.cuModuleGetFunction(ctypes.byref(self.function), module, self.abi["entry"].encode())
        cuda.cuFuncSetAttribute(self.function, MAX_DYNAMIC_SHARED, self.abi["shared_bytes"])
        self.workspaces = []

    def launcher(self, tensors, sizes, scalars):
        """A function that queues one launch on PyTorch's current stream; everything is packed beforehand."""
        maps = [tensor_map(self.cuda, tensors[m["tensor"]], m["order"], m["tile"]) for m in self.abi["tensor_maps"]]
        block = self.pack(tensors, sizes, scalars)
        buffers = [*maps, ctypes.create_string_buffer(block, len(block))]
        parameters = (ctypes.c_void_p * len(buffers))(*[ctypes.addressof(b) for b in buffers])
        blocks, threads, shared = self.blocks(sizes), self.abi["threads"], self.abi["shared_bytes"]

        def launch():
            stream = ctypes.c_void_p(self.torch.cuda.current_stream().cuda_stream)
            self.cuda.cuLaunchKernel(self.function, blocks, 1, 1, threads, 1, 1, shared, stream, parameters, None)

        launch.keeps = (buffers, tensors)
        return launch

    def pack(self, tensors, sizes, scalars):
        """The parameter block: each field at the next multiple of its size, the whole padded to 8 bytes."""
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
        """Blocks of a launch."""

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

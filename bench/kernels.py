"""Loading and launching of compiled kernels through the CUDA driver, as their ABI says."""

import ctypes
import json
import math
import struct

MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
DATA_TYPES = {"torch.bfloat16": 9, "torch.float16": 6, "torch.float32": 7}  # CUtensorMapDataType
SWIZZLES = {16: 0, 64: 2, 128: 3}  # CUtensorMapSwizzle by bytes of a box's row
PROMOTION_L2_128B = 2
MAP_BYTES = 128
DTYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "i32": "int32"}
BYTES = {"f16": 2, "bf16": 2, "f32": 4, "i32": 4}
SCALARS = {"f32": "f", "i32": "i"}  # of the struct module


PROGRAMMATIC_STREAM_SERIALIZATION = 6  # CUlaunchAttributeID


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute: its value is a union of 64 bytes, of which a number is the first."""

    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int * 16)]


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("count", ctypes.c_uint),
    ]


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
    """A TMA tensor map: dimensions in this order, innermost first, swizzled over a row of the box, zeros out of bounds.

    A last dimension that comes twice is split into parts of a row of the box.
    """
    raw = ctypes.create_string_buffer(2 * MAP_BYTES)
    address = (ctypes.addressof(raw) + MAP_BYTES - 1) // MAP_BYTES * MAP_BYTES
    rank = len(order)
    sizes, steps = [tensor.shape[d] for d in order], [tensor.stride(d) for d in order[1:]]
    if order[0] == order[1]:
        sizes[:2], steps[0] = [tile[0], sizes[1] // tile[0]], tile[0]
    extents = (ctypes.c_uint64 * rank)(*sizes)
    strides = (ctypes.c_uint64 * (rank - 1))(*[step * tensor.element_size() for step in steps])
    box, ones = (ctypes.c_uint32 * rank)(*tile), (ctypes.c_uint32 * rank)(*[1] * rank)
    kind, pointer = DATA_TYPES[str(tensor.dtype)], ctypes.c_void_p(tensor.data_ptr())
    into, swizzle = ctypes.c_void_p(address), SWIZZLES[tile[0] * tensor.element_size()]
    cuda.cuTensorMapEncodeTiled(into, kind, rank, pointer, extents, strides, box, ones, 0, swizzle, PROMOTION_L2_128B, 0)
    return ctypes.create_string_buffer(ctypes.string_at(address, MAP_BYTES), MAP_BYTES)


def value(term, sizes):
    """A size term."""
    return (sum(c * sizes[name] for name, c in term["terms"]) + term["constant"]) // term["divisor"]


class View:
    """A tensor with other extents and strides."""

    def __init__(self, tensor, shape, strides):
        self.tensor, self.shape, self.strides, self.dtype = tensor, shape, strides, tensor.dtype

    def data_ptr(self):
        return self.tensor.data_ptr()

    def stride(self, dimension):
        return self.strides[dimension]

    def element_size(self):
        return self.tensor.element_size()


def fold(rows, tensors, sizes):
    """Tensors and sizes as launches with folded rows see them: the rows of all heads of a group as rows of one."""
    heads, groups, count = (value(rows[name], sizes) for name in ("heads", "groups", "rows"))
    if groups < 1 or heads < 1 or heads % groups:
        raise RuntimeError(f"{heads} heads are not as many in each of {groups} groups")
    share, seen = heads // groups, dict(tensors)
    for name, at in rows["tensors"]:
        tensor = tensors[name]
        shape, strides = list(tensor.shape), [tensor.stride(d) for d in range(len(tensor.shape))]
        head, row = strides[at : at + 2]
        step = head if count == 1 else row
        if share > 1 and count > 0:
            if count * step != head or (at + 2 == len(shape) and step != 1):
                raise RuntimeError(f"heads of {name} do not follow each other, {count} rows apart")
            strides[at : at + 2] = [share * head, step]
        shape[at : at + 2] = [groups, share * count]
        seen[name] = View(tensor, shape, strides)
    return seen, {**sizes, rows["size"]: share * count}


def padded(row, size):
    """Elements of `size` bytes from row to row of scratch memory: rows begin at multiples of the next power of two, of 16 to 128
    bytes."""
    alignment = min(max(1 << max(row * size - 1, 0).bit_length(), 16), 128) // size
    return -(-row // alignment) * alignment


class Kernel:
    """A compiled kernel, loaded into the context of PyTorch: one launch, or several with scratch tensors between them."""

    def __init__(self, cuda, torch, description):
        self.torch = torch
        self.meta = json.loads(description.read_text())
        module = ctypes.c_void_p()
        cuda.cuModuleLoadData(ctypes.byref(module), description.with_suffix(".cubin").read_bytes())
        self.launches = [Launch(cuda, torch, module, abi, self.meta["scalars"]) for abi in self.meta["launches"]]

    def launcher(self, tensors, sizes, scalars):
        """A function that queues all launches on PyTorch's current stream; everything is packed beforehand."""
        if self.meta["folded"]:
            tensors, sizes = fold(self.meta["folded"], tensors, sizes)
        scratch = {}
        for t in self.meta["scratch"]:
            shape, elem = [value(extent, sizes) for extent in t["shape"]], t["elem"].lower()
            whole = [*shape[:-1], padded(shape[-1], BYTES[elem])]
            memory = self.torch.empty(whole, dtype=getattr(self.torch, DTYPES[elem]), device="cuda")
            strides = [math.prod(whole[dimension + 1 :]) for dimension in range(len(whole))]
            scratch[t["name"]] = View(memory, shape, strides)
        launches = [launch.launcher({**tensors, **scratch}, sizes, scalars) for launch in self.launches]

        def launch():
            for one in launches:
                one()

        return launch


class Launch:
    """One launch of a kernel, whose scalars have these types."""

    def __init__(self, cuda, torch, module, abi, types):
        self.torch, self.cuda, self.abi, self.types = torch, cuda, abi, types
        self.function = ctypes.c_void_p()
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

        if self.abi["early"]:
            launch = self.early(blocks, threads, shared, parameters)
        launch.keeps = (buffers, tensors)
        return launch

    def early(self, blocks, threads, shared, parameters):
        """A function that queues the launch so that it may begin while the one before it ends."""
        attribute = LaunchAttribute(id=PROGRAMMATIC_STREAM_SERIALIZATION)
        attribute.value[0] = 1
        config = LaunchConfig(grid=(blocks, 1, 1), block=(threads, 1, 1), shared=shared, attributes=ctypes.pointer(attribute), count=1)

        def launch():
            config.stream = self.torch.cuda.current_stream().cuda_stream
            self.cuda.cuLaunchKernelEx(ctypes.byref(config), self.function, parameters, None)

        return launch

    def pack(self, tensors, sizes, scalars):
        """The parameter block: each field at the next multiple of its size, the whole padded to 8 bytes."""
        out = bytearray()

        def put(code, value):
            width = struct.calcsize(code)
            out.extend(b"\0" * (-len(out) % width))
            out.extend(struct.pack("<" + code, value))

        for field in self.abi["fields"]:
            ((kind, what),) = field.items()
            if kind == "pointer":
                put("Q", tensors[what].data_ptr())
            elif kind == "stride":
                put("q", tensors[what[0]].stride(what[1]))
            elif kind == "size":
                put("i", sizes[what])
            elif kind == "scalar":
                put(SCALARS[self.types[what]], scalars[what])
            elif kind == "workspace":
                size = what["bytes"] + what["per_program"] * self.programs(sizes)
                self.workspaces.append(self.torch.zeros(size, dtype=self.torch.uint8, device="cuda"))
                put("Q", self.workspaces[-1].data_ptr())
            else:
                raise RuntimeError(f"unknown field {kind}")
        out.extend(b"\0" * (-len(out) % 8))
        return bytes(out)

    def programs(self, sizes):
        """Programs of a launch."""
        programs = 1
        for dim in self.abi["grid"]:
            ((kind, term),) = dim.items()
            programs *= value(term, sizes) if kind == "each" else -(-value(term[0], sizes) // term[1])
        return programs

    def blocks(self, sizes):
        """Blocks of a launch. A source with clusters says their size itself."""
        blocks, programs = self.abi["blocks"], self.programs(sizes)
        if blocks == "per_program":
            return programs
        sms = self.torch.cuda.get_device_properties(0).multi_processor_count
        return min(programs, sms * blocks["persistent"])

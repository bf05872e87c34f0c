"""Hands over to the native module what it needs of PyTorch."""

from __future__ import annotations

import importlib.util
import pathlib

import torch
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from . import _flashtile

# Element types by PyTorch's types. Kernels read no others.
DTYPES = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int32: "i32",
    torch.bool: "bool",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.float8_e4m3fn: "f8e4m3",
    torch.float8_e5m2: "f8e5m2",
}

# PyTorch's types by element type.
OF_NAME = {name: dtype for dtype, name in DTYPES.items()}


def nvrtc_of_torch() -> pathlib.Path | None:
    """The folder with the NVRTC that PyTorch was installed with, if it came as wheels."""
    spec = importlib.util.find_spec("nvidia")
    for packages in (spec.submodule_search_locations or []) if spec else []:
        for folder in ("cu13/lib", "cuda_nvrtc/lib"):
            found = pathlib.Path(packages) / folder
            if any(found.glob("libnvrtc.so*")):
                return found
    return None


def _raw_stream(gpu: int) -> int:
    return torch.cuda.current_stream(gpu).cuda_stream


#: The handle of the current stream of a GPU, by its number.
raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", _raw_stream)


def _empty_at_once() -> tuple | None:
    """The functions that compiled code of PyTorch allocates with, if it has them.

    One is for the CPU, one for the current GPU.
    """
    functions = getattr(torch._C._dynamo, "guards", None)
    found = [getattr(functions, name, None) for name in ("_empty_strided_cpu", "_empty_strided_cuda")]
    return None if None in found else tuple(found)


def hand_over() -> None:
    """Called once, when the package is imported."""
    several = torch.cuda.device_count() > 1
    _flashtile.set_host(
        types=list(_PLAIN),
        dtypes=list(DTYPES.items()),
        empty=torch.empty_strided,
        empty_at_once=_empty_at_once(),
        stream=raw_stream,
        current=(torch.cuda.current_device, torch.cuda.set_device) if several else None,
        nvrtc=nvrtc_of_torch(),
        exchange=getattr(torch.Tensor, "__dlpack_c_exchange_api__", None),
    )


is_grad_enabled = torch.is_grad_enabled
_dispatch_modes = torch._C._len_torch_dispatch_stack
_functorch_level = torch._C._functorch.maybe_current_level
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def is_traced() -> bool:
    """Whether calls go through PyTorch's dispatcher, since something else than a launch may come of them."""
    return is_compiling() or _dispatch_modes() > 0 or _functorch_level() is not None or forward_ad._current_level >= 0


def is_plain(x: torch.Tensor) -> bool:
    """Whether a tensor is plain memory: no subclass, and no numbers that are negated when they are read."""
    return type(x) in _PLAIN and not x.is_neg()

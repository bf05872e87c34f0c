"""Hands over to the native module what it needs of PyTorch."""

from __future__ import annotations

import importlib.util
import os
import pathlib
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.compiler import is_compiling, is_dynamo_compiling

from . import _flashtile
from ._flashtile import DeviceError

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


class _Threads:
    """Those that run kernels on the CPU."""

    #: Whether there are some.
    are_started = False
    #: Whether they are of the process that this one was forked from, and do not run here.
    are_lost = False

    @classmethod
    def forked(cls) -> None:
        cls.are_lost = cls.are_started


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_Threads.forked)


def needs_threads() -> None:
    """Called before threads of the CPU run something.

    Raises :class:`DeviceError` where they would be waited for without end.
    """
    if _Threads.are_lost:
        raise DeviceError(
            "this process was forked from one that had run kernels on the CPU, whose threads do not run here; "
            "start processes by spawn: multiprocessing.get_context('spawn'), or DataLoader(.., multiprocessing_context='spawn')"
        )
    if not _Threads.are_started:
        # Once: a class whose attributes change is looked up anew by what comes next.
        _Threads.are_started = True


def _empty(shape: tuple, strides: tuple, **options: Any) -> torch.Tensor:
    if torch.device(options["device"]).type == "cpu":
        needs_threads()
    return torch.empty_strided(shape, strides, **options)


def _empty_for_calls() -> tuple | None:
    """The functions of :func:`_empty_at_once`. An output on the CPU is where a call there begins."""
    found = _empty_at_once()
    if found is None:
        return None
    at_once, of_gpu = found

    def of_cpu(shape: tuple, strides: tuple, dtype: torch.dtype) -> torch.Tensor:
        needs_threads()
        return at_once(shape, strides, dtype)

    return of_cpu, of_gpu


def hand_over() -> None:
    """Called once, when the package is imported."""
    several = torch.cuda.device_count() > 1
    _flashtile.set_host(
        types=list(_PLAIN),
        dtypes=list(DTYPES.items()),
        empty=_empty,
        empty_at_once=_empty_for_calls(),
        stream=raw_stream,
        capturing=getattr(torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing),
        modes=(_dispatch_modes, _functorch_level, forward_ad, is_grad_enabled, _is_tracing),
        current=(torch.cuda.current_device, torch.cuda.set_device) if several else None,
        nvrtc=nvrtc_of_torch(),
        exchange=getattr(torch.Tensor, "__dlpack_c_exchange_api__", None),
    )


is_grad_enabled = torch.is_grad_enabled
_dispatch_modes = torch._C._len_torch_dispatch_stack
_functorch_level = torch._C._functorch.maybe_current_level
# Whether `torch.jit.trace` makes a trace.
_is_tracing = torch._C._is_tracing
_PLAIN = (torch.Tensor, torch.nn.Parameter)


# Whether `torch.compile` looks at a call. It costs less than `is_compiling`, which exports without a look at the code
# answer too: their tensors, or their modes, are nothing that the native module launches.
is_looked_at = is_dynamo_compiling


def is_traced() -> bool:
    """Whether calls go through PyTorch's dispatcher, since something else than a launch may come of them."""
    return (
        is_compiling()
        or _dispatch_modes() > 0
        or _functorch_level() is not None
        or forward_ad._current_level >= 0
        or _is_tracing()
    )


def is_plain_type(x: torch.Tensor) -> bool:
    """Whether a tensor is of no subclass that dispatches in its own way."""
    return type(x) in _PLAIN


def is_plain(x: torch.Tensor) -> bool:
    """Whether a tensor is plain memory: no subclass, and no numbers that are negated when they are read."""
    return is_plain_type(x) and not x.is_neg()

"""Attention kernels of your own for JAX, CuPy, NumPy and any library that calls through tvm-ffi. PyTorch is not needed.

=================  ==================================================================================
``kernel``         a kernel of a text in the kernel language, or of a file, as a ``tvm_ffi.Function``
``builtin``        a built-in kernel, likewise
``jax_call``       the same as a function of JAX arrays
``scalars_of``     the names of the scalars of a kernel
=================  ==================================================================================

A function takes what the kernel reads and then what it writes to, each in the order of the parameters; scalars may stand
where the parameters have them, or last. It runs on the device of its tensors: on the CPU in the interpreter, on a GPU on the
stream that tvm-ffi knows, and the host does not wait. Tensors are read where they lie.
"""

from __future__ import annotations

import functools
import importlib.util
import numbers
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm_ffi

__all__ = ["builtin", "jax_call", "kernel", "scalars_of"]


def _folders(package: str) -> list[pathlib.Path]:
    spec = importlib.util.find_spec(package)
    return [pathlib.Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []


def _nvrtc() -> str | None:
    """The folder of the NVRTC that CUDA's wheels have installed, if they did."""
    for packages in _folders("nvidia"):
        for folder in ("cu13/lib", "cuda_nvrtc/lib"):
            if any((packages / folder).glob("libnvrtc.so*")):
                return str(packages / folder)
    return None


@functools.cache
def _module() -> tvm_ffi.Module:
    # The package is not imported: it needs PyTorch.
    for folder in _folders("flashtile"):
        for library in folder.glob("_flashtile*.so"):
            return tvm_ffi.load_module(str(library))
    raise ImportError("the library of the package `flashtile` is not installed; `pip install --no-deps flashtile` installs it")


def kernel(text_or_path: str | os.PathLike, name: str | None = None) -> tvm_ffi.Function:
    """The kernel of a text in the kernel language, or of a file (a path, or a string without ``{``).

    ``name`` chooses one of several.
    """
    if isinstance(text_or_path, str) and "{" in text_or_path:
        text, place = text_or_path, "kernel text"
    else:
        place = os.fspath(text_or_path)
        text = pathlib.Path(place).read_text(encoding="utf-8")
    return _module().kernel(text, place, name, _nvrtc())


def builtin(name: str) -> tvm_ffi.Function:
    """The built-in kernel of this name; ``flashtile list`` prints the names."""
    return _module().builtin(name, _nvrtc())


def scalars_of(function: tvm_ffi.Function) -> tuple[str, ...]:
    """The names of the scalars of a kernel, in their order."""
    names = function("scalars")
    return tuple(names.split(",")) if names else ()


def jax_call(function: tvm_ffi.Function, name: str, scalars: Sequence[str] = (), platforms: Sequence[str] = ("cpu", "gpu")) -> Callable:
    """A kernel as a function of JAX arrays, to be called in and out of ``jax.jit``; needs the package ``jax-tvm-ffi``.

    ``name`` is that of the custom call, of which a process has one. ``scalars`` are the names of the kernel's scalars, in
    their order, as :func:`scalars_of` has them. The result is called as ``f(*inputs, out=.., scale=..)``: ``out`` are ``jax.ShapeDtypeStruct``, one or a
    tuple in the order of the kernel's outputs, and scalars are numbers that are known when JAX traces. JAX differentiates
    it where ``jax.custom_vjp`` says how: ``flashtile inspect KERNEL --grad`` prints the kernels.
    """
    import jax
    import jax_tvm_ffi
    import numpy

    own = scalars_of(function)
    if tuple(scalars) != own:
        raise ValueError(f"`{name}`: scalars is {list(scalars)}, but those of the kernel are {list(own)}, in this order")
    spec = ["args", "rets", *(f"attrs.{scalar}" for scalar in scalars)]
    for platform in platforms:
        jax_tvm_ffi.register_ffi_target(name, function, spec, platform=platform, allow_cuda_graph=True)

    kinds = dict(zip(own, function("types of scalars").split(",")))

    def number(scalar: str, x: Any) -> Any:
        # By the type of the parameter: JAX takes equal numbers of two types for the same call.
        found = x.item() if getattr(x, "ndim", None) == 0 else x
        is_whole = isinstance(found, numbers.Integral) and not isinstance(found, bool)
        if kinds[scalar] == "i32":
            if not is_whole or not -(2**31) <= found < 2**31:
                raise TypeError(f"`{name}`: `{scalar}` is {x!r}; it is an integer of 32 bits")
            return numpy.int64(found)
        if not isinstance(found, numbers.Real) or isinstance(found, bool):
            raise TypeError(f"`{name}`: `{scalar}` is {x!r}; it is a number")
        try:
            return numpy.float64(float(found))
        except OverflowError:
            raise TypeError(f"`{name}`: `{scalar}` is {x!r}, which is beyond f32") from None

    def call(*inputs: Any, out: Any, **given: float) -> Any:
        if given.keys() != set(scalars):
            raise TypeError(f"`{name}` takes the scalars {', '.join(scalars) or 'none'}, not {', '.join(given) or 'none'}")
        attributes: Mapping[str, Any] = {scalar: number(scalar, x) for scalar, x in given.items()}
        return jax.ffi.ffi_call(name, out)(*inputs, **attributes)

    return call

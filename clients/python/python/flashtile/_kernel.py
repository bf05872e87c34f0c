"""Kernels that are called on tensors of PyTorch."""

from __future__ import annotations

import collections
import functools
import operator as operators
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version

from ._flashtile import ArgumentError, GradientError
from ._flashtile import Kernel as Native
from ._host import DTYPES, is_plain, is_traced, needs_threads
from ._operator import Differentiate, Operator, differentiated, no_forward_mode, operator

# Kernels by handle: `torch.compile` keeps the handle, and asks for operators by it. A handle is a string, since
# `torch.compile` takes integers that differ between kernels for sizes.
_KERNELS: dict[str, "Kernel"] = {}


@torch.compiler.assume_constant_result
def _operator_of(handle: str, of: tuple[int, ...]) -> str:
    """Name of the operator that runs a kernel where the inputs of these numbers need gradients."""
    return _KERNELS[handle]._operator(of).name


@torch.compiler.assume_constant_result
def _places_of(handle: str, of: tuple[int, ...]) -> tuple[int, ...] | None:
    """Where the outputs of a kernel are among those of its operator; `None` if that has one."""
    outputs = _KERNELS[handle]._operator(of).outputs
    return tuple(outputs.index(name) for name in _KERNELS[handle].outputs) if len(outputs) > 1 else None


def kernel_of(handle: str) -> "Kernel":
    """The kernel of a handle."""
    return _KERNELS[handle]


@torch.compiler.assume_constant_result
def _is_forward_mode() -> bool:
    """Whether there may be forward-mode derivatives."""
    return forward_ad._current_level >= 0


@torch.compiler.assume_constant_result
def _no_forward_mode(handle: str, at: int) -> str:
    """What is wrong with an input that has a forward-mode derivative."""
    return no_forward_mode(_KERNELS[handle].name, _KERNELS[handle].inputs[at])


def _refuse_tangents(handle: str, args: Sequence[Any]) -> None:
    """Raises the error for a tensor with a forward-mode derivative, which operators take for 0."""
    if not _is_forward_mode():
        return
    for at, x in enumerate(args):
        # The level is given: it is a global, which `torch.compile` would watch.
        if isinstance(x, torch.Tensor) and forward_ad.unpack_dual(x, level=0).tangent is not None:
            raise GradientError(_no_forward_mode(handle, at))


def through_dispatcher(handle: str, args: Sequence[Any]) -> list[torch.Tensor]:
    """Calls the kernel of a handle as an operator of PyTorch; `torch.compile` traces this function."""
    _refuse_tangents(handle, args)
    of: tuple[int, ...] = ()
    # PyTorch checks a trace of `torch.jit` without gradients: it has the operator without outputs
    # more in both modes. That has a gradient too.
    if torch.is_grad_enabled() and not torch.jit.is_tracing():
        of = tuple([at for at, x in enumerate(args) if isinstance(x, torch.Tensor) and x.requires_grad])
    made = getattr(torch.ops.flashtile, _operator_of(handle, of))(*args)
    places = _places_of(handle, of)
    return [made] if places is None else [made[place] for place in places]


@functools.cache
def _results(name: str, outputs: tuple[str, ...]) -> type:
    """The type of the results of a kernel with several outputs: a named tuple that is pickled."""
    made = collections.namedtuple(f"{name}_outputs", outputs, rename=True)
    made.__reduce__ = lambda results: (_result, (name, outputs, tuple(results)))
    return made


def _result(name: str, outputs: tuple[str, ...], values: tuple) -> Any:
    """Results, of a pickle."""
    return _results(name, outputs)._make(values)


class Kernel:
    """A kernel that is called on tensors, made by :func:`kernel`, :func:`builtin` or a bundle.

    Inputs are given in the order of the kernel's parameters, or by name; scalars are Python numbers.
    Element types, constants and the shapes of outputs follow from them. Returns the output, or a named
    tuple of the outputs. ``out=`` gives tensors to write to, one or a sequence, in place of new ones.

    CPU tensors run in the interpreter, CUDA tensors on the GPU, on PyTorch's current stream, and the
    host does not wait. Tensors are read where they lie; the last dimension must be contiguous.
    """

    def __init__(self, native: Native, grad_from: Sequence[str] | None = None, made_by: tuple[Callable, tuple] | None = None):
        self._native = native
        if grad_from is not None and not isinstance(grad_from, Iterable):
            raise ArgumentError(f"grad_from is a {type(grad_from).__name__}; give names of outputs")
        grad_from = (grad_from,) if isinstance(grad_from, str) else tuple(grad_from or ())
        known = native.known_types, native.known_sizes
        #: A function that makes it again, and the arguments of the function.
        self._made_by = made_by or (_again, (native.text, native.name, *known, grad_from))
        params = native.params()
        self._inputs = tuple(param["name"] for param in params if not param["written"])
        self._is_tensor = tuple(param["tensor"] for param in params if not param["written"])
        self._outputs = tuple(param["name"] for param in params if param["written"])
        self._count = len(self._inputs)
        self._single = len(self._outputs) == 1
        for name in grad_from:
            if name not in self._outputs:
                raise ArgumentError(f"kernel `{native.name}` has no output `{name}`; it has {', '.join(self._outputs)}")
        self._differentiate = Differentiate(native, grad_from or differentiated(native))
        self._result = _results(native.name, self._outputs)
        self._operators: dict[tuple[int, ...], Operator] = {}
        #: Its name among the kernels of the process.
        self.handle = f"{native.name}#{len(_KERNELS)}"
        _KERNELS[self.handle] = self

    @property
    def name(self) -> str:
        """Name in the text."""
        return self._native.name

    @property
    def text(self) -> str:
        """Text in the kernel language."""
        return self._native.text

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs, in the order of a call."""
        return self._inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs, in the order of the result."""
        return self._outputs

    def gradient_text(self, *of: str) -> str:
        """The texts of the backward kernels that give the gradients of these inputs."""
        _, steps = self._native.gradient(list(of), list(self._differentiate.from_))
        return "\n".join(step.text for step in steps)

    def __deepcopy__(self, memo: dict) -> "Kernel":
        """Itself: a kernel does not change."""
        return self

    def __copy__(self) -> "Kernel":
        return self

    def __reduce__(self) -> tuple:
        """What it was made of: code is compiled where it is loaded."""
        return self._made_by

    def __repr__(self) -> str:
        return f"flashtile.Kernel({self.name}: {', '.join(self._inputs)} -> {', '.join(self._outputs)})"

    def __call__(self, *args: Any, out: Any = None, **named: Any) -> Any:
        if named or len(args) != self._count:
            args = self._in_order(args, named)
        if is_traced():
            return self._through_dispatcher(args, out)
        if out is not None:
            out = self._given(out)
        made = self._native.call(args, out, torch.is_grad_enabled())
        if out is not None and made is not None:
            # So that a backward pass that has kept one of them sees that it has changed.
            increment_version(out)
        if made is None:
            tensors = [(at, x) for at, x in enumerate(args) if isinstance(x, torch.Tensor)]
            if out is not None or not all([is_plain(x) for _, x in tensors]):
                return self._through_dispatcher(args, out)
            # Something needs a gradient.
            of = tuple([at for at, x in tensors if x.requires_grad])
            op = self._operator(of)
            made = op.differentiable(args)
            if len(op.outputs) != len(self._outputs):
                made = [made[op.outputs.index(name)] for name in self._outputs]
        return made[0] if self._single else self._result._make(made)

    def _in_order(self, args: tuple, named: Mapping[str, Any]) -> tuple:
        """Arguments in the order of the parameters."""
        given = dict(zip(self._inputs, args))
        wrong = [name for name in named if name not in self._inputs or name in given]
        if len(args) > self._count or wrong or len(args) + len(named) != self._count:
            what = f"; `{wrong[0]}` is none, or given twice" if wrong else ""
            raise ArgumentError(
                f"kernel `{self.name}` takes {self._count} inputs ({', '.join(self._inputs)}), "
                f"but {len(args) + len(named)} were given{what}"
            )
        given.update(named)
        return tuple(given[name] for name in self._inputs)

    def _given(self, out: Any) -> tuple:
        if not isinstance(out, (torch.Tensor, Sequence)):
            kind = type(out).__name__
            raise ArgumentError(f"kernel `{self.name}`: `out` must be a tensor or a sequence of tensors, not {kind}")
        out = (out,) if isinstance(out, torch.Tensor) else tuple(out)
        if len(out) != len(self._outputs):
            raise ArgumentError(
                f"kernel `{self.name}` has {len(self._outputs)} outputs ({', '.join(self._outputs)}), "
                f"but `out` has {len(out)} tensors"
            )
        for x in out:
            # A compiled graph asks where its operator runs.
            if getattr(x, "is_cpu", False) and not torch.compiler.is_compiling():
                needs_threads()
            if getattr(x, "requires_grad", False) and torch.is_grad_enabled():
                raise ArgumentError(
                    f"kernel `{self.name}`: a tensor of `out` requires a gradient; give one that does not, or call it in torch.no_grad()"
                )
        return out

    def _through_dispatcher(self, args: tuple, out: Any) -> Any:
        if out is not None and torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in args):
            raise ArgumentError(f"kernel `{self.name}`: `out` takes no gradients; leave it out, or call it in torch.no_grad()")
        made = through_dispatcher(self.handle, args)
        if out is not None:
            out = self._given(out)
            for given, new in zip(out, made):
                given.copy_(new)
            made = out
        return made[0] if self._single else self._result(*made)

    def _operator(self, of: tuple[int, ...]) -> Operator:
        """The operator of the kernel; of the forward kernel with outputs more, where the gradients of `of` read them."""
        if of not in self._operators:
            self._operators[of] = self._operator_with(of)
        return self._operators[of]

    def _operator_with(self, of: tuple[int, ...]) -> Operator:
        plain = operator(self._native, self._differentiate)
        if not of:
            return plain
        try:
            forward = self._differentiate(tuple(self._inputs[at] for at in of)).forward
        except GradientError:  # the backward pass raises it
            return plain
        return plain if forward.native.text == self._native.text else forward


def _fixed(native: Native, types: Mapping[str, Any] | None, sizes: Mapping[str, int] | None) -> Native:
    for what, given in (("types", types), ("sizes", sizes)):
        if given is not None and not isinstance(given, Mapping):
            raise ArgumentError(f"`{what}` is a {type(given).__name__}; give a dict of names and {what}")
        if not all(isinstance(name, str) for name in given or ()):
            raise ArgumentError(f"`{what}` has a name that is no str")
    if not types and not sizes:
        return native
    names = {name: _element(name, elem) for name, elem in (types or {}).items()}
    return native.fixed(names, {name: _extent(name, size) for name, size in (sizes or {}).items()})


def _extent(name: str, size: Any) -> int:
    """The number that a size is fixed to."""
    try:
        made = operators.index(size)
    except TypeError:
        made = -1
    if not 0 <= made < 2**63:
        raise ArgumentError(f"size `{name}` is {size!r}; it is an int, from 0 on")
    return made


def _element(name: str, elem: Any) -> str:
    """The element type that a type parameter is fixed to."""
    if not isinstance(elem, torch.dtype):
        return str(elem)
    if elem not in DTYPES:
        known = ", ".join(str(dtype) for dtype in DTYPES)
        raise ArgumentError(f"type `{name}` is {elem}, which no tensor of a kernel has; those are {known}")
    return DTYPES[elem]


def kernel(
    text_or_path: str | os.PathLike,
    name: str | None = None,
    *,
    types: Mapping[str, Any] | None = None,
    sizes: Mapping[str, int] | None = None,
    grad_from: Sequence[str] | None = None,
) -> Kernel:
    """The kernel of a text in the kernel language, or of a file (a path, or a string of one line without ``{``).

    ``name`` chooses one of several. ``types`` and ``sizes`` fix type parameters and sizes that no input
    tells. ``grad_from`` names the outputs whose gradients are given; without it, those of a type
    parameter, else those of ``f32``.
    """
    if not isinstance(text_or_path, (str, os.PathLike)):
        raise ArgumentError(f"a kernel is made of a text or a path, not of a {type(text_or_path).__name__}")
    if name is not None and not isinstance(name, str):
        raise ArgumentError(f"the name of a kernel is a str, not a {type(name).__name__}")
    if isinstance(text_or_path, str) and ("{" in text_or_path or "\n" in text_or_path.strip()):
        text, place = text_or_path, "kernel text"
    else:
        place = os.fspath(text_or_path)
        text = pathlib.Path(place).read_text(encoding="utf-8")
    return Kernel(_fixed(Native.from_text(text, place, name), types, sizes), grad_from)


def builtin(
    name: str,
    *,
    types: Mapping[str, Any] | None = None,
    sizes: Mapping[str, int] | None = None,
    grad_from: Sequence[str] | None = None,
) -> Kernel:
    """The built-in kernel of this name; ``flashtile.BUILTINS`` has the names."""
    if not isinstance(name, str):
        raise ArgumentError(f"the name of a built-in kernel is a str, not a {type(name).__name__}; flashtile.BUILTINS has the names")
    return Kernel(_fixed(Native.builtin(name), types, sizes), grad_from)


def _again(text: str, name: str, types: dict[str, str], sizes: dict[str, int], grad_from: tuple[str, ...]) -> Kernel:
    """A kernel of a pickle."""
    return Kernel(_fixed(Native.from_text(text, "kernel text", name), types, sizes), grad_from)

"""What is done ahead of launches: tuning, and bundles of compiled code."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from . import _flashtile
from ._flashtile import Bundle as Native
from ._flashtile import ArgumentError, TuneError
from ._host import needs_threads
from ._kernel import Kernel


class Tuned(NamedTuple):
    """What tuning found for one kernel and its sizes."""

    #: Name of the kernel.
    kernel: str
    #: Its sizes by name.
    sizes: Mapping[str, int]
    #: The best schedule.
    schedule: str
    #: Seconds of a launch: measured, or where there is no GPU predicted.
    seconds: float
    #: Whether `seconds` was predicted.
    is_predicted: bool
    #: The largest error against the float64 oracle, as a share of the tolerance; `None` if it was not executed.
    error: float | None
    #: Whether the cache had the result.
    is_from_cache: bool
    #: How many schedules there were.
    candidates: int
    #: Why the search ended.
    stopped_because: str


def _tensors(x: Any) -> Iterator[torch.Tensor]:
    if isinstance(x, torch.Tensor):
        yield x
    elif isinstance(x, Mapping):
        yield from _tensors(list(x.values()))
    elif dataclasses.is_dataclass(x) and not isinstance(x, type):
        yield from _tensors([getattr(x, field.name) for field in dataclasses.fields(x)])
    elif isinstance(x, (tuple, list)):
        for y in x:
            yield from _tensors(y)


def _learned(made: Sequence[torch.Tensor], given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors whose gradients the backward pass of results gives.

    These are those that were given, and parameters behind them.
    """
    found = {id(x): x for x in given}
    # What was computed before the call is not differentiated.
    seen = {x.grad_fn for x in given if x.grad_fn is not None}
    left = [torch.autograd.graph.get_gradient_edge(x).node for x in made]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        # The end of the graph at a leaf.
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, torch.Tensor):
            found[id(leaf)] = leaf
        left += [before for before, _ in node.next_functions]
    return list(found.values())


def _launches(function: Callable, args: tuple, named: Mapping[str, Any]) -> list:
    """The launches that a call makes, with those of its backward pass if results have one.

    Launches of other threads count, which the function may have started, unless these note launches of their own.
    """
    if not callable(function):
        raise ArgumentError(f"a {type(function).__name__} is given for the function whose launches are noted; give one that is called")
    needs_threads()
    number = _flashtile.begin_noting()
    try:
        made = [x for x in _tensors(function(*args, **named)) if x.requires_grad]
        of = _learned(made, [x for x in _tensors((*args, *named.values())) if x.requires_grad])
        if made and of:
            # Gradients are returned: `.grad` stays as it is.
            torch.autograd.grad(made, of, [torch.zeros_like(x) for x in made], retain_graph=True, allow_unused=True)
    finally:
        launches = _flashtile.end_noting(number)
    if not launches:
        raise TuneError("the function launched no kernel of flashtile; inside of torch.compile, launches are made by compiled code")
    return launches


def tune(
    function: Callable,
    *args: Any,
    budget: float = 60.0,
    arch: str | None = None,
    max_candidates: int | None = None,
    afresh: bool = False,
    **named: Any,
) -> list[Tuned]:
    """Finds the best schedule for each kernel that ``function(*args, **named)`` launches, with these sizes.

    The function is called once: a kernel, :func:`sdpa`, :func:`flex`, a model, or any other. If a result needs a
    gradient, of an argument or of a parameter, the kernels of its backward pass are tuned too. ``budget`` is in
    seconds, for each kernel. Every schedule is checked against float64 before it is timed. Results are kept in the
    cache; calls from now on take them.

    Without a GPU, ``arch`` such as ``"sm_90a"`` says what to compile for; schedules are then ranked by the cost model,
    for bundles. ``max_candidates`` tries no more schedules than that, and ``afresh`` forgets what the cache knows.
    """
    launches = _launches(function, args, named)
    for launch in launches:
        if launch.is_bundled:
            raise TuneError(f"kernel `{launch.kernel}` is of a bundle, whose schedules are fixed; tune before it is written")
    options = {"budget": budget, "arch": arch, "max_candidates": max_candidates, "afresh": afresh}
    return [Tuned(kernel=x.kernel, sizes=x.sizes, **x.tune(**options)) for x in launches]


def write_bundle(
    directory: str | os.PathLike,
    function: Callable,
    *args: Any,
    arch: str | Sequence[str] = "sm_90a",
    general: bool = True,
    **named: Any,
) -> list[str]:
    """Compiles each kernel that ``function(*args, **named)`` launches, and writes a bundle of them; returns their names.

    The function is called once. Launches of other threads count too, as those of backward passes, unless these threads
    note launches of their own. Schedules are those that were tuned, else the cost model's choice. ``arch`` names one
    architecture or several. ``general`` adds code for arguments that are not aligned, or of any sign.
    """
    if not isinstance(general, bool):
        raise ArgumentError(f"general is {general!r}; it is True or False")
    return _flashtile.write_bundle(_directory(directory), _launches(function, args, named), _archs(arch), general)


def _archs(arch: Any) -> list[str]:
    archs = [arch] if isinstance(arch, str) else list(arch) if isinstance(arch, Iterable) else []
    if not archs or not all(isinstance(name, str) for name in archs):
        raise ArgumentError(f"arch is {arch!r}; give an architecture, such as 'sm_90a', or several")
    return archs


def _directory(x: Any) -> str:
    if not isinstance(x, (str, os.PathLike)):
        raise ArgumentError(f"the directory of a bundle is a {type(x).__name__}; give a path")
    return os.fspath(x)


class Bundle:
    """Kernels that were compiled ahead, by :func:`write_bundle` or ``flashtile bundle``; ``bundle[name]`` is a :class:`Kernel`.

    Launches need the driver alone: neither NVRTC nor the cache. Kernels of a bundle run on GPUs, and give no gradients.
    """

    def __init__(self, directory: str | os.PathLike):
        self._native = Native(_directory(directory))
        #: For pickles, which may be loaded elsewhere.
        self._directory = os.path.abspath(directory)
        self._kernels: dict[str, Kernel] = {}

    def __reduce__(self) -> tuple:
        return Bundle, (self._directory,)

    @property
    def names(self) -> list[str]:
        """Names of its kernels, such as ``attention_bf16_d128``."""
        return self._native.names

    def __getitem__(self, name: str) -> Kernel:
        if not isinstance(name, str):
            raise ArgumentError(f"a kernel of a bundle is found by its name, not by {name!r}; the names are {', '.join(self.names)}")
        if name not in self._kernels:
            self._kernels[name] = Kernel(self._native.kernel(name), made_by=(_bundled, (self._directory, name)))
        return self._kernels[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"flashtile.Bundle({', '.join(self.names)})"


def _bundled(directory: str, name: str) -> Kernel:
    """A kernel of a pickle, which has the directory of its bundle."""
    return Bundle(directory)[name]

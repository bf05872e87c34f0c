"""Sizes and output shapes of a call, for tensors whose extents may be symbols of `torch.compile`.

Launches deduce their sizes in the native module; this is the same on symbols.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ._flashtile import ArgumentError


def solve(params: Iterable[Mapping[str, Any]], shapes: Mapping[str, tuple], known: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes that follow from the shapes of inputs, by name. `known` holds what is known before."""
    sizes = dict(known)
    read = [(param, shapes[param["name"]]) for param in params if param["name"] in shapes]
    for param, shape in read:
        if len(shape) != len(param["shape"]):
            declared = ", ".join(text for *_, text in param["shape"])
            raise ArgumentError(
                f"argument `{param['name']}` must have {len(param['shape'])} dimensions ({declared}), "
                f"but has shape {list(shape)}"
            )
        for dimension, ((terms, constant, divisor, text), extent) in enumerate(zip(param["shape"], shape)):
            if terms and all(name in known for name in terms):
                wanted = _extent(terms, constant, divisor, known)
                if extent != wanted:
                    raise ArgumentError(
                        f"argument `{param['name']}`: dimension {dimension} must be {text} = {wanted} "
                        f"(fixed before the call), but is {extent}"
                    )
    before = -1
    while before != len(sizes):
        before = len(sizes)
        for param, shape in read:
            for (terms, constant, divisor, _), extent in zip(param["shape"], shape):
                unknown = [name for name in terms if name not in sizes]
                if len(unknown) == 1:
                    name = unknown[0]
                    others = sum(by * sizes[other] for other, by in terms.items() if other != name)
                    sizes[name] = (extent * divisor - constant - others) // terms[name]
    return sizes


def _extent(terms: Mapping[str, int], constant: int, divisor: int, sizes: Mapping[str, Any]) -> Any:
    return (sum(by * sizes[name] for name, by in terms.items()) + constant) // divisor


def determined(params: Iterable[Mapping[str, Any]], known: Iterable[str]) -> set[str]:
    """Names of the sizes that follow from the shapes of a kernel's inputs."""
    found = set(known)
    before = -1
    dimensions = [terms for param in params if param["tensor"] and param["read"] for terms, *_ in param["shape"]]
    while before != len(found):
        before = len(found)
        for terms in dimensions:
            unknown = [name for name in terms if name not in found]
            if len(unknown) == 1:
                found.add(unknown[0])
    return found


def extents(param: Mapping[str, Any], sizes: Mapping[str, Any]) -> list:
    """The shape of an output."""
    shape = []
    for terms, constant, divisor, text in param["shape"]:
        missing = [name for name in terms if name not in sizes]
        if missing:
            raise ArgumentError(f"the extent {text} of `{param['name']}` follows from no input; fix {missing[0]} with `sizes`")
        shape.append(_extent(terms, constant, divisor, sizes))
    return shape

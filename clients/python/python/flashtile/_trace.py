"""Traces FlexAttention's functions into expressions of the kernel language.

``score_mod`` and ``mask_mod`` are called once with :class:`Traced` values, which note what is done with them. Equal
expressions become one. What has no word in the language is a :class:`TraceError` that names it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from ._flashtile import FlashtileError


class TraceError(FlashtileError):
    """A ``score_mod`` or ``mask_mod`` does something that cannot become kernel text; the message names it."""


# How tightly operators bind, as in Rust.
_ATOM, _UNARY, _PRODUCT, _SUM, _SHIFT, _AND, _XOR, _OR, _COMPARE, _BOTH, _EITHER = range(11, 0, -1)
_BINDS = {
    "*": _PRODUCT, "/": _PRODUCT, "%": _PRODUCT, "+": _SUM, "-": _SUM, "<<": _SHIFT, ">>": _SHIFT, "&": _AND, "^": _XOR,
    "|": _OR, "==": _COMPARE, "!=": _COMPARE, "<": _COMPARE, "<=": _COMPARE, ">": _COMPARE, ">=": _COMPARE,
    "&&": _BOTH, "||": _EITHER,
}  # fmt: skip

# Names that the frame of a kernel has.
RESERVED = frozenset(
    "q k v scale o lse b h g i j m l s p q_i acc alpha m_new m_ref dropped seed left_out number weight random".split()
    + "philox philox_round".split()
    + "as break const continue crate else enum extern false fn for if impl in let loop match mod move mut pub ref".split()
    + "return self static struct super trait true type unsafe use where while async await dyn program tiles pos".split()
    + "load store add full zeros dot mask select exp exp2 ln log2 tanh sqrt rsqrt sin cos floor abs max min".split()
    + "rowsum rowmax mul_hi visible_or_zero div_or_zero listed_blocks full_blocks".split()
    + "f32 f16 bf16 i32 u8 i8 f8e4m3 f8e5m2 usize".split()
    + "abstract become box do final gen macro override priv try typeof unsized virtual yield".split()
)


class Node:
    """An expression. Equal expressions of a trace are one node."""

    __slots__ = ("op", "args", "kind", "dims", "bounds")

    def __init__(self, op: str, args: tuple, kind: str, dims: frozenset, bounds: tuple[float, float]):
        #: `op` is an operator, a function, `leaf`, `literal`, `load` or `cast`.
        self.op, self.args = op, args
        #: `bool`, `int` or `float`.
        self.kind = kind
        #: The axes along which it differs: `i` and `j`.
        self.dims = dims
        #: The least and the largest value of an integer in calls of these sizes.
        self.bounds = bounds


class Capture:
    """A tensor that a function reads, as a parameter of the kernel."""

    def __init__(self, tensor: torch.Tensor, name: str, extents: list[str], cuts: list[tuple[int, str]], is_detached: bool):
        self.tensor, self.name, self.extents = tensor, name, extents
        #: Dimensions of which the first `M` or `N` positions are read.
        self.cuts = cuts
        #: Whether no gradient of it is asked for.
        self.is_detached = is_detached

    @property
    def elem(self) -> str:
        return _ELEMS.get(self.tensor.dtype, "i32" if not self.tensor.dtype.is_floating_point else "f32")


_ELEMS = {
    torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.int32: "i32", torch.bool: "bool",
    torch.uint8: "u8", torch.int8: "i8",
}  # fmt: skip

# Integers of fewer than 32 bits. PyTorch computes in these, where sums wrap; kernels compute in i32.
_NARROW = (torch.uint8, torch.int8, torch.int16, torch.uint16)


class Trace(TorchFunctionMode):
    """One trace: its expressions, and the tensors that they read."""

    def __init__(self, sizes: dict[str, int], device: torch.device, names: dict[int, str]):
        super().__init__()
        self.sizes, self.device = sizes, device
        self._names = names
        self._nodes: dict[tuple, Node] = {}
        self.captures: dict[tuple, Capture] = {}
        self._by_name: dict[str, Capture] = {}
        self._taken = set(RESERVED)
        self._extents = 0
        self._constants: dict[int, _Constant] = {}
        #: Whether tensors were computed from others while tracing, or read by Python: what comes of it
        #: is of this call alone.
        self.computed = False
        #: Whether gradients flow through what is traced now.
        self.is_differentiated = False

    # Expressions

    def node(
        self, op: str, args: tuple, kind: str, dims: frozenset = frozenset(), bounds: tuple[float, float] = (-math.inf, math.inf)
    ) -> "Traced":
        if kind == "float" and self.is_differentiated and not torch.is_grad_enabled():
            raise TraceError("cannot trace torch.no_grad() inside of a function; use .detach() on what takes no gradient")
        key = (op, *((id(a) if isinstance(a, Node) else (type(a).__name__, repr(a))) for a in args))
        if key not in self._nodes:
            self._nodes[key] = Node(op, args, kind, dims, bounds)
        return Traced(self, self._nodes[key])

    def leaf(self, text: str, kind: str, dims: str = "", size: float = math.inf) -> "Traced":
        """A word of the frame; of an integer, which is below `size`."""
        return self.node("leaf", (text,), kind, frozenset(dims), (0, max(size - 1, 0)))

    def literal(self, value: Any) -> "Traced":
        for of, kind in ((bool, "bool"), (int, "int"), (float, "float")):
            if isinstance(value, of):
                value = of(value)
                break
        else:
            raise TraceError(f"a constant is a {type(value).__name__}; numbers of kernels are real")
        if kind == "float" and math.isnan(value):
            raise TraceError("a constant is NaN, which has no word in the kernel language")
        return self.node("literal", (value,), kind, bounds=(value, value))

    def value(self, x: Any, what: str) -> "Traced":
        """An operand as an expression."""
        if isinstance(x, Traced):
            return x
        if isinstance(x, Indexed):
            raise TraceError(f"{what}: a tensor of {x.tensor.dim()} dimensions is indexed by {len(x.entries)} values; index all")
        if isinstance(x, (bool, int, float)):
            return self.literal(x)
        if type(x).__module__ == "numpy" and hasattr(x, "item") and getattr(x, "shape", None) == ():
            return self.literal(x.item())
        if isinstance(x, torch.Tensor):
            constant = self._constants.get(id(x))
            if constant is not None:
                if constant.version != _version(x):
                    raise TraceError(_IN_PLACE)
                return self.literal(constant.value)
            if x.dim() == 0:
                return Indexed(self, x, ()).load()
            shape = tuple(x.shape)
            raise TraceError(f"{what}: a tensor of shape {shape} is used whole; index it by b, h, q_idx or kv_idx")
        raise TraceError(f"{what}: an operand is a {type(x).__name__}")

    def number(self, x: "Traced") -> "Traced":
        """A truth value as 0 or 1."""
        if x.node.kind != "bool":
            return x
        if x.is_literal:
            return self.literal(int(x.literal))
        made = self.node("select", (x.node, self.literal(1).node, self.literal(0).node), "int", x.node.dims, (0, 1))
        return Traced(self, made.node, torch.bool)

    def float(self, x: "Traced") -> "Traced":
        x = self.number(x)
        if x.is_literal:
            return self.literal(float(x.literal))
        return x if x.node.kind == "float" else self.node("cast", (x.node, "f32"), "float", x.node.dims)

    def alike(self, a: "Traced", b: "Traced") -> tuple["Traced", "Traced"]:
        """Two numbers of one type."""
        a, b = self.number(a), self.number(b)
        return (self.float(a), self.float(b)) if "float" in (a.node.kind, b.node.kind) else (a, b)

    def truth(self, x: "Traced") -> "Traced":
        if x.node.kind == "bool":
            return x
        if x.is_literal:
            return self.literal(bool(x.literal))
        zero = self.literal(0.0 if x.node.kind == "float" else 0)
        return self.node("!=", (x.node, zero.node), "bool", x.node.dims)

    def binary(self, op: str, a: "Traced", b: "Traced") -> "Traced":
        if op in ("&&", "||"):
            return self._logic(op, self.truth(a), self.truth(b))
        return self.fitting(self._binary(op, a, b), op, a, b)

    def fitting(self, made: "Traced", what: str, *operands: "Traced") -> "Traced":
        """A result that holds the same number as PyTorch's, whose integers are of the type of the operands."""
        narrow = _narrow(operands)
        for x in operands if narrow is not None else ():
            if x.is_literal and not torch.iinfo(narrow).min <= x.literal <= torch.iinfo(narrow).max:
                raise TraceError(f"`{what}` of {narrow} and {x.literal}, which is no such number; convert with .to(torch.int32) first")
        if made.node.kind != "int" or made.is_literal:
            return made
        low, high = made.node.bounds
        if narrow is None:
            if -math.inf < low < -(2**31) or 2**31 <= high < math.inf:
                reached = int(low if -math.inf < low < -(2**31) else high)
                raise TraceError(f"`{what}` of integers reaches {reached}, which is beyond 32 bits; kernels compute in int32")
            return made
        info = torch.iinfo(narrow)
        if what not in ("&", "|", "^") and not info.min <= low <= high <= info.max:
            raise TraceError(f"`{what}` of {narrow} may wrap in PyTorch, and kernels compute in int32; convert with .to(torch.int32) first")
        return Traced(self, made.node, narrow)

    def _binary(self, op: str, a: "Traced", b: "Traced") -> "Traced":
        a, b = self.alike(a, b)
        if a.is_literal and b.is_literal:
            return self.literal(_folded(op, a.literal, b.literal))
        if a.node.kind == "int" and op in ("+", "-"):
            a, b, op = self._folded(op, a, b)
        if op in ("+", "-") and b.is_literal and b.literal == 0 and a.node.kind == "int":
            return a
        kind = "bool" if _BINDS[op] == _COMPARE else a.node.kind
        bounds = _bounds(op, a.node.bounds, b.node.bounds) if kind == "int" else (-math.inf, math.inf)
        return self.node(op, (a.node, b.node), kind, a.node.dims | b.node.dims, bounds)

    def _folded(self, op: str, a: "Traced", b: "Traced") -> tuple["Traced", "Traced", str]:
        """`x + 40 - 1` as `x + 39`."""
        inner = a.node
        if b.is_literal and inner.op in ("+", "-") and inner.args[1].op == "literal":
            sum_of = inner.args[1].args[0] * (1 if inner.op == "+" else -1) + b.literal * (1 if op == "+" else -1)
            return Traced(self, inner.args[0]), self.literal(abs(sum_of)), "+" if sum_of >= 0 else "-"
        return a, b, op

    def _logic(self, op: str, a: "Traced", b: "Traced") -> "Traced":
        for one, other in ((a, b), (b, a)):
            if one.is_literal:
                return other if one.literal == (op == "&&") else one
        return self.node(op, (a.node, b.node), "bool", a.node.dims | b.node.dims)

    def call(
        self, word: str, *args: "Traced", kind: str = "float", bounds: tuple[float, float] = (-math.inf, math.inf)
    ) -> "Traced":
        dims = frozenset().union(*(arg.node.dims for arg in args))
        return self.node(word, tuple(arg.node for arg in args), kind, dims, bounds)

    # Tensors

    def capture(
        self, tensor: torch.Tensor, extents: list[str | None], cuts: list[tuple[int, str]], is_detached: bool = False
    ) -> Capture:
        """The parameter for a tensor whose dimensions have these names; `None` is a name of its own."""
        key = (id(tensor), tuple(extents), tuple(cuts), is_detached)
        if key in self.captures:
            return self.captures[key]
        named = []
        for extent in extents:
            if extent is None:
                self._extents += 1
                extent = f"X{self._extents}"
            named.append(extent)
        wanted = self._names.get(id(tensor), "x")
        wanted = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in wanted).lower().strip("_") or "x"
        # Names of gradients begin with `grad_`, those of numbers that are arguments with `NUMBER`.
        is_free = wanted[0].isalpha() and not wanted.startswith(("grad_", NUMBER))
        wanted = wanted if is_free else f"x_{wanted}".replace("__", "_")
        name, number = wanted, 1
        while name in self._taken or (name[0] == "t" and name[1:].isdigit()):
            number += 1
            name = f"{wanted}_{number}"
        self._taken.add(name)
        self.captures[key] = self._by_name[name] = Capture(tensor, name, named, cuts, is_detached)
        return self.captures[key]

    def keep_captures(self, roots: Sequence[Node]) -> None:
        """Drops the tensors that no expression of these loads: functions may compute what they do not return."""
        loaded: set[str] = set()
        seen: set[Node] = set()
        left = list(roots)
        while left:
            node = left.pop()
            if node not in seen:
                seen.add(node)
                loaded |= {node.args[0]} if node.op == "load" else set()
                left += [x for x in node.args if isinstance(x, Node)]
        self.captures = {key: capture for key, capture in self.captures.items() if capture.name in loaded}

    # Gradients that are stopped

    def detached(self, node: Node) -> Node:
        """An expression of the same value, of whose tensors no gradients are asked. The score stands in a `detach`."""

        def change(node: Node, args: tuple) -> Node | None:
            if node.op == "leaf" and node.args == ("s",):
                return self.node("detach", (node,), node.kind, node.dims, node.bounds).node
            if node.op != "load" or not self._by_name[node.args[0]].tensor.is_floating_point():
                return None
            capture = self._by_name[node.args[0]]
            capture = self.capture(capture.tensor, capture.extents, capture.cuts, True)
            return self.node("load", (capture.name, *args[1:]), node.kind, node.dims, node.bounds).node

        return self._changed(node, change, {})

    def attached(self, node: Node) -> Node:
        """The expression without its `detach`."""
        return self._changed(node, lambda node, args: args[0] if node.op == "detach" else None, {})

    def _changed(self, node: Node, change: Callable[[Node, tuple], Node | None], made: dict[Node, Node]) -> Node:
        """The expression, each node as `change` makes it of the node and its changed operands; `None` changes nothing else."""
        if node not in made:
            args = tuple(self._changed(x, change, made) if isinstance(x, Node) else x for x in node.args)
            new = change(node, args)
            if new is None:
                new = node if args == node.args else self.node(node.op, args, node.kind, node.dims, node.bounds).node
            made[node] = new
        return made[node]

    # PyTorch's functions

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if _has_traced(args) or _has_traced(tuple(kwargs.values())):
            return self.function(func, args, kwargs)
        name = getattr(func, "__name__", "")
        if args and id(args[0]) in self._constants and _is_in_place(name):
            raise TraceError(_IN_PLACE)
        made = func(*args, **kwargs)
        reads = any(isinstance(x, torch.Tensor) and id(x) not in self._constants for x in _flat((*args, *kwargs.values())))
        if isinstance(made, torch.Tensor) and made.dim() == 0 and not reads and name in _FACTORIES:
            # Kept alive, so that no other tensor has its id.
            self._constants[id(made)] = _Constant(made, made.item(), _version(made))
        elif (reads or isinstance(made, torch.Tensor)) and name not in _LOOKS:
            self.computed = True
        return made

    def function(self, func: Callable, args: tuple, kwargs: dict) -> Any:
        name = getattr(func, "__name__", None) or str(func)
        if func is torch.Tensor.where:
            args = (*args[1:2], args[0], *args[2:])
        name = {"__get__": "attribute"}.get(name, name)
        if name == "__getitem__" and isinstance(args[0], (torch.Tensor, Indexed)):
            return self.index(args[0], args[1])
        rule = _RULES.get(name.strip("_") if name.startswith("__") else name)
        if rule is None:
            raise TraceError(_unknown(name))
        return rule(self, name, args, kwargs)

    def index(self, tensor: Any, entries: Any) -> Any:
        entries = entries if isinstance(entries, tuple) else (entries,)
        indexed = tensor if isinstance(tensor, Indexed) else Indexed(self, tensor, ())
        return indexed[entries]


class _Constant(NamedTuple):
    """A tensor of one element that a function makes of a number."""

    tensor: torch.Tensor
    value: Any
    #: Of the tensor when it was made.
    version: int | None


_IN_PLACE = "a tensor that the function makes of a number is changed in place; make one of the final number"


def _version(x: torch.Tensor) -> int | None:
    return None if x.is_inference() else x._version


def _is_in_place(name: str) -> bool:
    return (name.endswith("_") and not name.endswith("__")) or name in _IN_PLACE_OPERATORS


_IN_PLACE_OPERATORS = {f"__i{name}__" for name in "add sub mul truediv floordiv mod pow and or xor lshift rshift".split()} | {"__setitem__"}


def _flat(values: Sequence[Any]) -> Iterator[Any]:
    for x in values:
        if isinstance(x, (tuple, list)):
            yield from _flat(x)
        else:
            yield x


def _narrow(operands: Sequence["Traced"]) -> torch.dtype | None:
    """The type of fewer than 32 bits that PyTorch gives a result of these operands; numbers and truth values take any."""
    found = None
    for x in operands:
        if x.narrow is torch.bool:
            continue
        if x.narrow is not None:
            found = x.narrow if found is None else torch.promote_types(found, x.narrow)
        elif x.node.kind == "float" or (x.node.kind != "bool" and not x.is_literal):
            return None
    return found if found in _NARROW else None


def _folded(op: str, a: Any, b: Any) -> Any:
    """The result of two numbers, of which a quotient by 0 is infinite, as of floats."""
    try:
        return _FOLD[op](a, b)
    except ZeroDivisionError:
        if isinstance(a, float) and a != 0 and op == "/":
            return math.copysign(math.inf, a) * math.copysign(1.0, b)
    except (OverflowError, ValueError):
        pass
    raise TraceError(f"cannot trace `{op}` of the constants {a!r} and {b!r}")


def _bounds(op: str, a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    """What an operation makes of integers between bounds."""
    if op == "+":
        return (a[0] + b[0], a[1] + b[1])
    if op == "-":
        return (a[0] - b[1], a[1] - b[0])
    if op == "*":
        corners = [0 if 0 in (x, y) else x * y for x in a for y in b]
        return (min(corners), max(corners))
    if op == "/" and b[0] > 0:
        return (0 if a[0] >= 0 else a[0], a[1] if a[1] >= 0 else 0)
    if op == "%" and b[0] > 0:
        return (0, b[1] - 1)
    if op == "&" and a[0] >= 0 and b[0] >= 0:
        return (0, min(a[1], b[1]))
    if op in ("|", "^") and a[0] >= 0 and b[0] >= 0:
        return (0, math.inf)
    if op == "<<" and 0 <= b[0] and b[1] <= 64:
        return _bounds("*", a, (2 ** int(b[0]), 2 ** int(b[1])))
    if op == ">>" and b[0] >= 0:
        return (min(a[0], 0), a[1] if a[1] >= 0 else -1)
    return (-math.inf, math.inf)


def _has_traced(args: Any) -> bool:
    return any(
        isinstance(x, (Traced, Indexed)) or (isinstance(x, (tuple, list)) and _has_traced(x)) for x in args
    )


def _unknown(name: str) -> str:
    return f"cannot trace `{name}`; the functions that can be traced are {', '.join(sorted(_WORDS))}"


# Tensors of one element that these make are constants.
_FACTORIES = {"tensor", "scalar_tensor", "full", "zeros", "ones", "as_tensor", "empty"} - {"empty"}
# These compute nothing.
_LOOKS = {
    "__get__", "dim", "size", "numel", "nelement", "ndimension", "element_size", "__len__", "is_floating_point", "is_complex", "is_signed",
}  # fmt: skip

_FOLD: dict[str, Callable] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b,
    "/": lambda a, b: a // b if isinstance(a, int) else a / b, "%": lambda a, b: a % b,
    "<<": lambda a, b: a << b, ">>": lambda a, b: a >> b, "&": lambda a, b: a & b, "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b, "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
}  # fmt: skip


# Operations that reach the least and the greatest value of their bounds, if no operand is in them twice.
_REACHING = ("leaf", "literal", "+", "-", "*", "neg", "min", "max")


class Indexed:
    """A tensor of which some dimensions are indexed."""

    def __init__(self, trace: Trace, tensor: torch.Tensor, entries: tuple):
        self.trace, self.tensor, self.entries = trace, tensor, entries

    @classmethod
    def __torch_function__(cls, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return _trace_of(args, kwargs).function(func, args, kwargs or {})

    def __getitem__(self, entries: Any) -> Any:
        entries = entries if isinstance(entries, tuple) else (entries,)
        whole = len(self.entries) + len(entries) - 1
        if any(entry is Ellipsis for entry in entries) and (entries[-1] is Ellipsis or whole == self.tensor.dim()):
            # It stands for what is indexed later, or for nothing.
            entries = tuple(entry for entry in entries if entry is not Ellipsis)
        made = Indexed(self.trace, self.tensor, (*self.entries, *entries))
        if len(made.entries) > self.tensor.dim():
            raise TraceError(f"a tensor of {self.tensor.dim()} dimensions is indexed by {len(made.entries)} values")
        return made.load() if len(made.entries) == self.tensor.dim() else made

    def __getattr__(self, name: str) -> Any:
        raise TraceError(f"`.{name}` of a tensor that is indexed by {len(self.entries)} of {self.tensor.dim()} values; index all")

    def load(self) -> "Traced":
        trace, tensor = self.trace, self.tensor
        if tensor.dtype.is_complex:
            raise TraceError(f"a tensor of {tensor.dtype} is read; kernels compute in real numbers: use .real and .imag outside")
        kind = "bool" if tensor.dtype == torch.bool else "float" if tensor.dtype.is_floating_point else "int"
        narrow = tensor.dtype if tensor.dtype in _NARROW else None
        bounds = (torch.iinfo(narrow).min, torch.iinfo(narrow).max) if narrow else (-math.inf, math.inf)
        if tensor.dim() == 0:
            capture = trace.capture(tensor, ["1"], [])
            return Traced(trace, trace.node("load", (capture.name, "0"), kind, bounds=bounds).node, narrow)
        entries = [self._entry(at, entry) for at, entry in enumerate(self.entries)]
        for at, (extent, entry) in enumerate(entries):
            # A coordinate that is there before becomes a position: tiles have each axis once.
            if isinstance(entry, str) and any(isinstance(before, str) and entry == before for _, before in entries[:at]):
                size = trace.sizes[extent]
                entries[at] = (None, trace.leaf(f"pos({entry})", "int", entry, size))
        extents = [extent for extent, _ in entries]
        cuts = [(at, extent) for at, extent in enumerate(extents) if extent in ("M", "N")]
        capture = trace.capture(tensor, extents, cuts)
        args, dims, order = [], frozenset(), []
        for (extent, entry), named in zip(entries, capture.extents):
            if isinstance(entry, str):
                args.append(entry)
                order.append(entry)
                dims |= {entry}
            elif isinstance(entry, int):
                args.append(str(entry) if entry >= 0 else f"{named} - {-entry}")
            else:
                wrapped = self._wrapped(entry, named, capture)
                args.append(wrapped.node)
                dims |= wrapped.node.dims
        loaded = trace.node("load", (capture.name, *args), kind, dims, bounds)
        if order == ["j", "i"]:  # keys are the rows of what is loaded
            loaded = trace.node("transposed", (loaded.node,), kind, dims, bounds)
        return Traced(trace, loaded.node, narrow)

    def _entry(self, at: int, entry: Any) -> tuple[str | None, Any]:
        """The name of the extent, and the index: a number, an expression, or a coordinate."""
        trace, extent = self.trace, self.tensor.shape[at]
        if isinstance(entry, slice) or entry is None or entry is Ellipsis:
            raise TraceError(f"dimension {at} of a tensor is indexed by {entry}; index it by one value")
        if isinstance(entry, torch.Tensor) and entry.dim() > 0:
            raise TraceError(f"dimension {at} of a tensor is indexed by a whole tensor; index that by q_idx or kv_idx first")
        if isinstance(entry, int) and not isinstance(entry, bool):
            if not -extent <= entry < extent:
                raise TraceError(f"index {entry} is beyond dimension {at} of {extent} positions")
            return None, entry
        index = trace.value(entry, "an index")
        if index.node.kind != "int":
            raise TraceError(f"dimension {at} of a tensor is indexed by a {index.node.kind}; convert it with .to(torch.int32)")
        if index.is_literal:
            return self._entry(at, index.literal)
        plain = {"pos(i)": ("M", "i"), "pos(j)": ("N", "j")}.get(index.node.args[0] if index.node.op == "leaf" else "")
        if plain:
            size, coordinate = plain
            if extent < trace.sizes[size]:
                what = {"M": "query", "N": "key"}[size]
                raise TraceError(f"dimension {at} of a tensor has {extent} positions, but there are {trace.sizes[size]} {what} positions")
            return size, coordinate
        size = {"b": "B", "h": "H"}.get(index.node.args[0] if index.node.op == "leaf" else "")
        return (size if size and trace.sizes[size] == extent else None), index

    def _wrapped(self, index: "Traced", extent: str, capture: Capture) -> "Traced":
        """As PyTorch does, positions below 0 count from the end."""
        low, high = index.node.bounds
        nodes, is_tree = _nodes(index.node)
        length = self.tensor.shape[capture.extents.index(extent)]
        is_of_program = not index.node.dims and all(node.op != "load" for node in nodes)
        if not -length <= low <= high < length:
            # Bounds are reached where each leaf occurs once, if there are positions at all.
            has_positions = is_of_program or all(self.trace.sizes.values())
            if is_tree and has_positions and all(node.op in _REACHING for node in nodes):
                raise TraceError(f"an index of `{capture.name}` is from {low} to {high}, but the dimension has {length} positions")
            if is_of_program:  # it is checked before a launch
                return index
        if low >= 0:
            return index
        trace, size = self.trace, self.trace.leaf(extent, "int")
        if is_of_program:
            return trace.binary("%", index, size)
        return trace.call("select", trace.binary("<", index, trace.literal(0)), trace.binary("+", index, size), index, kind="int")


def _nodes(root: Node) -> tuple[list[Node], bool]:
    """The nodes of an expression, without indices of tensors that it loads, and whether each but literals occurs once."""
    found: dict[Node, None] = {}
    left, is_tree = [root], True
    while left:
        node = left.pop()
        if node in found:
            is_tree = is_tree and node.op == "literal"
            continue
        found[node] = None
        left += [x for x in node.args if isinstance(x, Node)] if node.op != "load" else []
    return list(found), is_tree


def _trace_of(args: Any, kwargs: Any) -> Trace:
    def find(values: Any) -> Trace | None:
        for x in values:
            if isinstance(x, (Traced, Indexed)):
                return x.trace
            if isinstance(x, (tuple, list)) and (found := find(x)):
                return found
        return None

    return find((*args, *(kwargs or {}).values()))


class Traced:
    """A value that notes what is done with it. It stands for one number, as FlexAttention's functions expect."""

    def __init__(self, trace: Trace, node: Node, narrow: torch.dtype | None = None):
        self.trace, self.node = trace, node
        #: A type of fewer than 32 bits, in which PyTorch computes with an integer. That of truth values takes any other.
        self.narrow = narrow

    @classmethod
    def __torch_function__(cls, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return _trace_of(args, kwargs).function(func, args, kwargs or {})

    @property
    def is_literal(self) -> bool:
        return self.node.op == "literal"

    @property
    def literal(self) -> Any:
        return self.node.args[0]

    @property
    def dtype(self) -> torch.dtype:
        return self.narrow if self.narrow in _NARROW else {"bool": torch.bool, "int": torch.int32, "float": torch.float32}[self.node.kind]

    @property
    def device(self) -> torch.device:
        return self.trace.device

    @property
    def shape(self) -> torch.Size:
        return torch.Size(())

    @property
    def ndim(self) -> int:
        return 0

    def dim(self) -> int:
        return 0

    def is_floating_point(self) -> bool:
        return self.node.kind == "float"

    def where(self, condition: Any, other: Any) -> "Traced":
        return _where(self.trace, "where", (condition, self, other), {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in _RULES:
            raise TraceError(_unknown(name)) if not name.startswith("__") else AttributeError(name)
        return lambda *args, **kwargs: _RULES[name](self.trace, name, (self, *args), kwargs)

    def __bool__(self) -> bool:
        if self.is_literal:
            return bool(self.literal)
        raise TraceError("cannot trace `if`, `and`, `or`, `not`, `min` or `max` of a traced value; use torch.where, &, |, ~, torch.minimum")

    def __index__(self) -> int:
        raise TraceError("cannot trace the use of a traced value as a Python integer")

    __int__ = __float__ = __len__ = __iter__ = __index__
    __hash__ = object.__hash__


# What PyTorch's functions become


def _operands(trace: Trace, name: str, args: Sequence[Any]) -> list[Traced]:
    return [trace.value(x, f"`{name}`") for x in args]


def _binary(op: str, swapped: bool = False) -> Callable:
    def rule(trace: Trace, name: str, args: tuple, kwargs: dict) -> Traced:
        a, b = _operands(trace, name, [*args, *(kwargs[key] for key in ("other",) if key in kwargs)])
        a, b = (b, a) if swapped else (a, b)
        if kwargs.get("alpha", 1) != 1:
            # The factor of what is added or subtracted.
            b = trace.binary("*", b, trace.value(kwargs["alpha"], f"`alpha` of `{name}`"))
        if a.node.kind == b.node.kind == "bool":
            if op == "-":
                raise TraceError("cannot trace `-` of two truth values, which PyTorch refuses too; use ^ or convert with .to(torch.int32)")
            return trace.binary("||" if op == "+" else "&&", a, b)
        return trace.binary(op, a, b)

    return rule


def _shift(op: str, swapped: bool = False) -> Callable:
    """By 32 bits and more as of integers without end."""

    def rule(trace: Trace, name: str, args: tuple, kwargs: dict) -> Traced:
        operands = _operands(trace, name, [*args, *(kwargs[key] for key in ("other",) if key in kwargs)])
        a, b = (trace.number(x) for x in (reversed(operands) if swapped else operands))
        if "float" in (a.node.kind, b.node.kind):
            raise TraceError(f"cannot trace `{op}` of floats")
        if b.is_literal and b.literal < 0:
            raise TraceError(f"cannot trace `{op}` by {b.literal}, which is below 0")
        if op == ">>" and b.node.bounds[1] > 31 and not a.is_literal:
            b = _extreme("min")(trace, name, (b, 31), {})
        if op == "<<" and b.is_literal and b.literal > 31 and not a.is_literal:
            raise TraceError(f"cannot trace `<<` by {b.literal}, which is beyond 32 bits; kernels compute in int32")
        return trace.binary(op, a, b)

    return rule


def _divide(swapped: bool = False) -> Callable:
    def rule(trace: Trace, name: str, args: tuple, kwargs: dict) -> Traced:
        a, b = _operands(trace, name, args)
        a, b = (b, a) if swapped else (a, b)
        mode = kwargs.get("rounding_mode")
        if mode == "floor":
            return _floor_divide()(trace, name, (a, b), {})
        if mode == "trunc":
            if a.node.kind == b.node.kind == "int" and min(a.node.bounds[0], b.node.bounds[0]) >= 0:
                return trace.binary("/", a, b)
            raise TraceError("cannot trace a division that is rounded towards zero; use // or rounding_mode='floor'")
        return trace.binary("/", trace.float(a), trace.float(b))

    return rule


def _floor_divide(swapped: bool = False) -> Callable:
    def rule(trace: Trace, name: str, args: tuple, kwargs: dict) -> Traced:
        a, b = trace.alike(*_operands(trace, name, args))
        a, b = (b, a) if swapped else (a, b)
        quotient = trace.binary("/", a, b)
        return trace.call("floor", quotient) if quotient.node.kind == "float" and not quotient.is_literal else _floored(trace, quotient)

    return rule


def _divmod(trace: Trace, name: str, args: tuple, kwargs: dict) -> Traced:
    raise TraceError("cannot trace `divmod`, which PyTorch does not know either; write x // y and x % y")


def _floored(trace: Trace, x: Traced) -> Traced:
    return trace.literal(float(math.floor(x.literal))) if x.is_literal and x.node.kind == "float" else x


def _remainder(swapped: bool = False) -> Callable:
    def rule(trace: Trace, name: str, args: tuple, kwargs: dict) -> Traced:
        a, b = trace.alike(*_operands(trace, name, args))
        a, b = (b, a) if swapped else (a, b)
        if a.node.kind == "int" or (a.is_literal and b.is_literal):
            return trace.binary("%", a, b)
        return trace.binary("-", a, trace.binary("*", trace.call("floor", trace.binary("/", a, b)), b))

    return rule


def _bits(op: str, logic: str) -> Callable:
    def rule(trace: Trace, name: str, args: tuple, kwargs: dict) -> Traced:
        a, b = _operands(trace, name, args)
        if a.node.kind == b.node.kind == "bool":
            return trace.binary(logic, a, b) if logic != "!=" else _differ(trace, a, b)
        a, b = trace.alike(a, b)
        if a.node.kind == "float":
            raise TraceError(f"cannot trace `{op}` of floats")
        return trace.binary(op, a, b)

    return rule


def _differ(trace: Trace, a: Traced, b: Traced) -> Traced:
    """Exclusive or of truth values, for which the language has no word."""
    return trace.binary("||", trace.binary("&&", a, _not(trace, b)), trace.binary("&&", _not(trace, a), b))


def _not(trace: Trace, x: Traced) -> Traced:
    x = trace.truth(x)
    if x.is_literal:
        return trace.literal(not x.literal)
    if x.node.op == "!":
        return Traced(trace, x.node.args[0])
    return trace.node("!", (x.node,), "bool", x.node.dims)


def _invert(trace: Trace, name: str, args: tuple, kwargs: dict) -> Traced:
    (x,) = _operands(trace, name, args)
    if x.node.kind == "bool":
        return _not(trace, x)
    if x.node.kind == "float":
        raise TraceError("cannot trace `~` of floats")
    if x.narrow is not None and not x.narrow.is_signed:
        raise TraceError(f"cannot trace `~` of {x.narrow}, which has no sign; convert with .to(torch.int32) first")
    return trace.binary("-", trace.literal(-1), x)


def _compare(op: str) -> Callable:
    def rule(trace: Trace, name: str, args: tuple, kwargs: dict) -> Traced:
        a, b = _operands(trace, name, args)
        if a.node.kind == b.node.kind == "bool" and op in ("==", "!="):
            return _differ(trace, a, b) if op == "!=" else _not(trace, _differ(trace, a, b))
        return trace.binary(op, a, b)

    return rule


def _logical(op: str) -> Callable:
    def rule(trace: Trace, name: str, args: tuple, kwargs: dict) -> Traced:
        a, b = (trace.truth(x) for x in _operands(trace, name, args))
        return _differ(trace, a, b) if op == "!=" else trace.binary(op, a, b)

    return rule


def _word(word: str, fold: Callable[[float], float]) -> Callable:
    """A function of floats."""

    def rule(trace: Trace, name: str, args: tuple, kwargs: dict) -> Traced:
        (x,) = _operands(trace, name, args[:1])
        if len(args) > 1 or kwargs:
            raise TraceError(f"cannot trace `{name}` with more than one argument")
        x = trace.float(x)
        if not x.is_literal:
            return trace.call(word, x)
        try:
            return trace.literal(float(fold(x.literal)))
        except (OverflowError, ValueError, ZeroDivisionError):
            raise TraceError(f"cannot trace `{name}` of the constant {x.literal!r}") from None

    return rule


def _abs(trace: Trace, name: str, args: tuple, kwargs: dict) -> Traced:
    (x,) = _operands(trace, name, args)
    if x.node.kind == "bool":
        return x
    if x.is_literal:
        return trace.literal(abs(x.literal))
    low, high = x.node.bounds
    if x.node.kind == "int" and low >= 0:
        return x
    return trace.fitting(trace.call("abs", x, kind=x.node.kind, bounds=(max(low, -high, 0), max(-low, high))), name, x)


def _negative(trace: Trace, name: str, args: tuple, kwargs: dict) -> Traced:
    (x,) = _operands(trace, name, args)
    if x.node.kind == "bool":
        raise TraceError("cannot trace `-` of a truth value, which PyTorch refuses too; use ~ or convert with .to(torch.int32)")
    if x.is_literal:
        return trace.literal(-x.literal)
    made = trace.node("neg", (x.node,), x.node.kind, x.node.dims, (-x.node.bounds[1], -x.node.bounds[0]))
    return trace.fitting(made, "-", x)


def _extreme(word: str) -> Callable:
    def rule(trace: Trace, name: str, args: tuple, kwargs: dict) -> Traced:
        if len(args) != 2 or kwargs:
            raise TraceError(f"cannot trace `{name}` of {len(args)} arguments; it takes two values")
        a, b = _operands(trace, name, args)
        if a.node.kind == b.node.kind == "bool":
            return trace.binary("||" if word == "max" else "&&", a, b)
        a, b = trace.alike(a, b)
        if a.is_literal and b.is_literal:
            return trace.literal({"max": max, "min": min}[word](a.literal, b.literal))
        choose = {"max": max, "min": min}[word]
        bounds = tuple(choose(x, y) for x, y in zip(a.node.bounds, b.node.bounds))
        return trace.fitting(trace.call(word, a, b, kind=a.node.kind, bounds=bounds), name, a, b)

    return rule


def _clamp(trace: Trace, name: str, args: tuple, kwargs: dict) -> Traced:
    x, low, high = (*args, None, None)[:3]
    low, high = kwargs.get("min", low), kwargs.get("max", high)
    if low is not None:
        x = _extreme("max")(trace, name, (x, low), {})
    return x if high is None else _extreme("min")(trace, name, (x, high), {})


def _where(trace: Trace, name: str, args: tuple, kwargs: dict) -> Traced:
    args = (*(kwargs[key] for key in ("condition",) if key in kwargs), *args)
    args = (*args, *(kwargs[key] for key in ("input", "other") if key in kwargs))
    if len(args) != 3:
        raise TraceError("cannot trace `where` without the two values")
    if name == "where" and not isinstance(args[0], (Traced, torch.Tensor, bool)):
        raise TraceError("cannot trace `where` of a condition that is no truth value")
    condition, a, b = _operands(trace, name, args)
    condition = trace.truth(condition)
    if a.node.kind == b.node.kind == "bool":
        return trace.binary("||", trace.binary("&&", condition, a), trace.binary("&&", _not(trace, condition), b))
    a, b = trace.alike(a, b)
    if condition.is_literal:
        return a if condition.literal else b
    bounds = (min(a.node.bounds[0], b.node.bounds[0]), max(a.node.bounds[1], b.node.bounds[1]))
    return trace.fitting(trace.call("select", condition, a, b, kind=a.node.kind, bounds=bounds), name, a, b)


def _masked_fill(trace: Trace, name: str, args: tuple, kwargs: dict) -> Traced:
    x, mask, value = _operands(trace, name, (*args, *(kwargs[key] for key in ("mask", "value") if key in kwargs)))
    # The result has the type of what is filled.
    return _where(trace, name, (mask, _cast(trace, value, x.dtype), x), {})


def _relu(trace: Trace, name: str, args: tuple, kwargs: dict) -> Traced:
    (x,) = _operands(trace, name, args)
    if x.node.kind != "float" or x.is_literal:
        return _extreme("max")(trace, name, (x, 0), {})
    # Its gradient is 0 at 0, where that of a maximum is shared, and NaN stays NaN.
    zero = trace.literal(0.0)
    return _where(trace, "where", (trace.binary("<=", x, zero), zero, x), {})


def _power(trace: Trace, name: str, args: tuple, kwargs: dict) -> Traced:
    a, b = _operands(trace, name, (*args, *(kwargs[key] for key in ("self", "input", "exponent") if key in kwargs)))
    a, b = (trace.number(x) for x in ((b, a) if name in ("__rpow__", "rpow") else (a, b)))
    if a.is_literal and b.is_literal:
        try:
            return trace.literal(a.literal**b.literal)
        except (OverflowError, ZeroDivisionError):
            raise TraceError(f"cannot trace the power of {a.literal!r} to {b.literal!r}") from None
    if b.is_literal and 0 <= b.literal <= 8 and b.literal == int(b.literal):
        made = trace.float(trace.literal(1)) if isinstance(b.literal, float) else trace.literal(1)
        for _ in range(int(b.literal)):
            made = a if made.is_literal else trace.binary("*", made, a)
        return trace.float(made) if isinstance(b.literal, float) else made
    if b.is_literal and b.literal in (0.5, -0.5):
        return trace.call("sqrt" if b.literal > 0 else "rsqrt", trace.float(a))
    if a.is_literal and a.node.kind == b.node.kind == "int":
        if a.literal == 2 and b.node.bounds[0] >= 0:
            return trace.binary("<<", trace.literal(1), b)
        raise TraceError(f"cannot trace the power of the integer {a.literal} to an integer; write {float(a.literal)} for one of floats")
    if a.is_literal and a.literal > 0:
        by = math.log2(a.literal)
        exponent = trace.float(b) if by == 1.0 else trace.binary("*", trace.float(b), trace.literal(by))
        return trace.call("exp2", exponent)
    raise TraceError("cannot trace a power but of a positive constant, or to a constant of 0 to 8, 0.5 or -0.5")


def _composed(make: Callable[[Trace, Traced], Traced]) -> Callable:
    def rule(trace: Trace, name: str, args: tuple, kwargs: dict) -> Traced:
        (x,) = _operands(trace, name, args[:1])
        if len(args) > 1 or kwargs:
            raise TraceError(f"cannot trace `{name}` with more than one argument")
        return make(trace, x)

    return rule


def _sigmoid(trace: Trace, x: Traced) -> Traced:
    one = trace.literal(1.0)
    return trace.binary("/", one, trace.binary("+", one, trace.call("exp", _negative(trace, "neg", (trace.float(x),), {}))))


def _round(trace: Trace, x: Traced) -> Traced:
    """To the nearest integer, ties to even."""
    x = trace.number(x)
    if x.node.kind == "int":
        return x
    if x.is_literal:
        return trace.literal(float(round(x.literal)) if math.isfinite(x.literal) else x.literal)
    below, one = trace.call("floor", x), trace.literal(1.0)
    part = trace.binary("-", x, below)
    halves = trace.binary("*", below, trace.literal(0.5))
    is_odd = trace.binary("!=", trace.call("floor", halves), halves)
    half = trace.literal(0.5)
    is_above = trace.binary("&&", trace.binary("==", part, half), is_odd)
    is_above = trace.binary("||", trace.binary(">", part, half), is_above)
    return _where(trace, "where", (is_above, trace.binary("+", below, one), below), {})


def _ceil(trace: Trace, x: Traced) -> Traced:
    if x.node.kind == "int":
        return x
    return _negative(trace, "neg", (trace.call("floor", _negative(trace, "neg", (x,), {})),), {})


def _floor(trace: Trace, x: Traced) -> Traced:
    return x if x.node.kind == "int" else trace.call("floor", trace.float(x))


def _cast(trace: Trace, x: Traced, dtype: torch.dtype) -> Traced:
    if dtype == torch.bool:
        return trace.truth(x)
    if dtype in (torch.float32, torch.float64):
        return trace.float(x)
    if dtype in (torch.float16, torch.bfloat16):
        x = trace.float(x)
        if x.is_literal:
            return trace.literal(float(torch.tensor(x.literal, dtype=dtype)))
        elem = {torch.float16: "f16", torch.bfloat16: "bf16"}[dtype]
        rounded = trace.node("cast", (x.node, elem), "float", x.node.dims)
        return trace.node("cast", (rounded.node, "f32"), "float", x.node.dims)
    x = trace.number(x)
    if dtype in _NARROW:
        info, (low, high) = torch.iinfo(dtype), x.node.bounds
        if x.node.kind != "int" or not info.min <= low <= high <= info.max:
            raise TraceError(f"cannot trace a conversion to {dtype}, which may wrap; convert to torch.int32")
        return Traced(trace, x.node, dtype)
    if dtype not in (torch.int32, torch.int64):
        raise TraceError(f"cannot trace a conversion to {dtype}; convert to torch.int32 or torch.float32")
    if x.is_literal:
        if isinstance(x.literal, float) and not math.isfinite(x.literal):
            raise TraceError(f"cannot trace a conversion of {x.literal} to {dtype}")
        return trace.literal(int(x.literal))
    if x.node.kind == "int":
        return Traced(trace, x.node)
    return trace.node("cast", (x.node, "i32"), "int", x.node.dims)


def _to(trace: Trace, name: str, args: tuple, kwargs: dict) -> Traced:
    given = [x for x in (*args[1:], *kwargs.values()) if isinstance(x, torch.dtype)]
    given += [x.dtype for x in (*args[1:], *kwargs.values()) if isinstance(x, (Traced, torch.Tensor))]
    x = trace.value(args[0], f"`{name}`")
    return _cast(trace, x, given[0]) if given else x


def _as(dtype: torch.dtype) -> Callable:
    return lambda trace, name, args, kwargs: _cast(trace, _operands(trace, name, args)[0], dtype)


def _filled(value: Any) -> Callable:
    """`new_ones`, `zeros_like` and others, of one element."""

    def rule(trace: Trace, name: str, args: tuple, kwargs: dict) -> Traced:
        x = args[0]
        shape = kwargs.get("size", args[1] if name.startswith("new_") and len(args) > 1 else ())
        if isinstance(shape, (tuple, list)) and len(shape) or isinstance(shape, int):
            raise TraceError(f"cannot trace `{name}` of a shape; values are single numbers")
        filled = value
        if filled is None:
            filled = kwargs.get("fill_value", args[-1] if len(args) > 1 else None)
        filled = trace.value(filled, f"`{name}`")
        dtype = kwargs.get("dtype") or x.dtype
        return _cast(trace, filled, dtype)

    return rule


def _same(trace: Trace, name: str, args: tuple, kwargs: dict) -> Any:
    return args[0]


def _detach(trace: Trace, name: str, args: tuple, kwargs: dict) -> Traced:
    (x,) = _operands(trace, name, args)
    return Traced(trace, trace.detached(x.node), x.narrow) if x.node.kind == "float" else x


def _log(base: float) -> Callable:
    return lambda x: math.log(x, base) if x > 0 else -math.inf


_RULES: dict[str, Callable] = {
    "abs": _abs, "absolute": _abs, "neg": _negative, "negative": _negative, "pos": _same, "positive": _same,
    "add": _binary("+"), "radd": _binary("+", True), "sub": _binary("-"), "subtract": _binary("-"), "rsub": _binary("-", True),
    "mul": _binary("*"), "multiply": _binary("*"), "rmul": _binary("*", True),
    "div": _divide(), "divide": _divide(), "true_divide": _divide(), "truediv": _divide(), "rtruediv": _divide(True), "rdiv": _divide(True),
    "floordiv": _floor_divide(), "rfloordiv": _floor_divide(True), "floor_divide": _floor_divide(),
    "mod": _remainder(), "rmod": _remainder(True), "remainder": _remainder(),
    "divmod": _divmod, "rdivmod": _divmod,
    "pow": _power, "rpow": _power, "square": _composed(lambda trace, x: trace.binary("*", x, x)),
    "and": _bits("&", "&&"), "rand": _bits("&", "&&"), "bitwise_and": _bits("&", "&&"),
    "or": _bits("|", "||"), "ror": _bits("|", "||"), "bitwise_or": _bits("|", "||"),
    "xor": _bits("^", "!="), "rxor": _bits("^", "!="), "bitwise_xor": _bits("^", "!="),
    "lshift": _shift("<<"), "rlshift": _shift("<<", True), "bitwise_left_shift": _shift("<<"),
    "rshift": _shift(">>"), "rrshift": _shift(">>", True), "bitwise_right_shift": _shift(">>"),
    "invert": _invert, "bitwise_not": _invert,
    "logical_not": lambda trace, name, args, kwargs: _not(trace, _operands(trace, name, args)[0]),
    "logical_and": _logical("&&"), "logical_or": _logical("||"), "logical_xor": _logical("!="),
    "eq": _compare("=="), "ne": _compare("!="), "not_equal": _compare("!="), "lt": _compare("<"), "less": _compare("<"),
    "le": _compare("<="), "less_equal": _compare("<="), "gt": _compare(">"), "greater": _compare(">"),
    "ge": _compare(">="), "greater_equal": _compare(">="),
    "maximum": _extreme("max"), "max": _extreme("max"), "minimum": _extreme("min"), "min": _extreme("min"),
    "clamp": _clamp, "clip": _clamp,
    "clamp_min": lambda trace, name, args, kwargs: _clamp(trace, name, (args[0], kwargs.get("min", *args[1:2])), {}),
    "clamp_max": lambda trace, name, args, kwargs: _clamp(trace, name, (args[0], None, kwargs.get("max", *args[1:2])), {}),
    "where": _where,
    "exp": _word("exp", math.exp), "exp2": _word("exp2", lambda x: 2.0**x), "log": _word("ln", _log(math.e)),
    "log2": _word("log2", _log(2.0)), "tanh": _word("tanh", math.tanh), "sqrt": _word("sqrt", math.sqrt),
    "rsqrt": _word("rsqrt", lambda x: 1.0 / math.sqrt(x)), "sin": _word("sin", math.sin), "cos": _word("cos", math.cos),
    "floor": _composed(_floor), "ceil": _composed(_ceil), "sigmoid": _composed(_sigmoid),
    "relu": _relu,
    "reciprocal": lambda trace, name, args, kwargs: _divide()(trace, name, (1.0, args[0]), {}),
    "to": _to, "type_as": _to, "float": _as(torch.float32), "double": _as(torch.float64), "half": _as(torch.float16),
    "bfloat16": _as(torch.bfloat16), "int": _as(torch.int32), "long": _as(torch.int32), "bool": _as(torch.bool),
    "new_ones": _filled(1), "new_zeros": _filled(0), "new_full": _filled(None), "ones_like": _filled(1), "zeros_like": _filled(0),
    "full_like": _filled(None), "new_tensor": _filled(None),
    "contiguous": _same, "clone": _same, "detach": _detach, "squeeze": _same,
    "masked_fill": _masked_fill, "round": _composed(_round),
    "is_floating_point": lambda trace, name, args, kwargs: args[0].is_floating_point(),
}  # fmt: skip
# In an error, the words that a user would write.
_WORDS = {name for name in _RULES if not name.startswith(("r", "new_")) or name in ("rsqrt", "remainder", "relu", "reciprocal", "round")}
_WORDS -= {"divmod"}

for _name in "add sub mul truediv floordiv mod divmod pow and or xor lshift rshift eq ne lt le gt ge".split():
    for _prefix in ("", "r") if _name not in "eq ne lt le gt ge".split() else ("",):
        setattr(
            Traced,
            f"__{_prefix}{_name}__",
            lambda self, other, key=_prefix + _name: _RULES[key](self.trace, key, (self, other), {}),
        )
for _name in "neg pos abs invert".split():
    setattr(Traced, f"__{_name}__", lambda self, key=_name: _RULES[key](self.trace, key, (self,), {}))


# -inf in a select that is no mask: the language takes `select(keep, x, -INF)` for one.
_NO_MASK = "ln(0.0)"


def _is_negative_infinity(node: Node) -> bool:
    return node.op == "literal" and node.args[0] == -math.inf


def detaches(score: Node) -> bool:
    """Whether a gradient of the result would flow to a score that is detached."""
    seen: set[Node] = set()
    left = [score]
    while left:
        node = left.pop()
        if node in seen or node.kind != "float" or node.op in ("load", "floor"):
            continue
        if node.op == "detach":
            return True
        seen.add(node)
        left += [x for x in node.args if isinstance(x, Node)]
    return False


def _is_positive(node: Node) -> bool:
    return node.op == "literal" and 0 < node.args[0] < math.inf


def _masks(score: Node | None, roots: Sequence[Node]) -> set[Node]:
    """The selects with -inf that may be written as masks.

    What a mask hides is absent, and so is all that is computed of it. PyTorch computes with -inf.
    The two agree where -inf reaches the score through operations that keep it.
    """
    keep: set[Node] = set()
    others: set[Node] = set()
    seen: set[tuple[Node, bool]] = set()
    left = [(score, True)] if score is not None else []
    left += [(root, False) for root in roots if root is not score]
    while left:
        node, keeps = left.pop()
        if (node, keeps) in seen:
            continue
        seen.add((node, keeps))
        if node.op == "select" and any(_is_negative_infinity(x) for x in node.args[1:]):
            (keep if keeps else others).add(node)
        kept = _keeping(node) if keeps else ()
        left += [(x, at in kept) for at, x in enumerate(node.args) if isinstance(x, Node)]
    return keep - others


def _keeping(node: Node) -> tuple[int, ...]:
    """The operands of which -inf makes a result of -inf, whatever finite number the others are."""
    if node.op == "+":
        return (0, 1)
    if node.op in ("-", "cast"):
        return (0,)
    if node.op in ("*", "/") and _is_positive(node.args[1]):
        return (0,)
    if node.op == "*" and _is_positive(node.args[0]):
        return (1,)
    return (1, 2) if node.op == "select" else ()


class Writer:
    """Writes expressions as text. What is used several times, or does not differ between keys, gets a name.

    `score` is the root that becomes the score, if one does. Numbers at `places` among all that are
    written are arguments of the kernel in place of literals.
    """

    def __init__(self, roots: Sequence[Node], score: Node | None = None, places: Container[int] = ()):
        self._masks = _masks(score, roots)
        self._places = places
        #: The finite numbers that were written, in order.
        self.numbers: list[int | float] = []
        self.before: list[str] = []
        self.inside: list[str] = []
        self._names: dict[Node, str] = {}
        self._uses: dict[Node, int] = {}
        for root in roots:
            self._count(root)

    def _count(self, node: Node) -> None:
        self._uses[node] = self._uses.get(node, 0) + 1
        if self._uses[node] == 1:
            for arg in node.args:
                if isinstance(arg, Node):
                    self._count(arg)

    def text(self, node: Node, binds: int = 0, inside: bool = True) -> str:
        """The text of an expression, in parentheses where what is around it binds tighter."""
        if node in self._names:
            return self._names[node]
        text, own = self._written(node)
        if self._is_named(node, inside):
            name = f"t{len(self._names) + 1}"
            self._names[node] = name
            (self.inside if "j" in node.dims else self.before).append(f"let {name} = {text};")
            return name
        return f"({text})" if own < binds else text

    def _is_named(self, node: Node, inside: bool) -> bool:
        """Whether an expression gets a name; `inside` says that what is around it differs between keys."""
        if node.op in ("leaf", "literal"):
            return False
        hoisted = inside and "j" not in node.dims and (node.kind == "float" or node.op == "load")
        return self._uses[node] > 1 or hoisted

    def _written(self, node: Node) -> tuple[str, int]:
        args, inside = node.args, "j" in node.dims
        if node.op == "leaf":
            return args[0], _ATOM
        if node.op == "literal":
            return self._number(args[0])
        if node.op == "load":
            entries = ", ".join(self._constant_or(x, 0, inside) if isinstance(x, Node) else x for x in args[1:])
            return f"load({args[0]}, [{entries}])", _ATOM
        if node.op == "transposed":
            return f"{self.text(args[0], _ATOM, inside)}.t()", _ATOM
        if node.op == "cast":
            return f"{self.text(args[0], _ATOM, inside)}.to::<{args[1]}>()", _ATOM
        if node.op in ("neg", "!"):
            return f"{'-' if node.op == 'neg' else '!'}{self.text(args[0], _UNARY, inside)}", _UNARY
        if node.op in _BINDS:
            binds = _BINDS[node.op]
            # Comparisons do not chain, and what is mixed of `&&` and `||` reads better in parentheses.
            left = binds + (1 if binds == _COMPARE else 0)
            write = self._constant_or if node.op in _BY_CONSTANTS else self.text
            sides = [self.text(args[0], left, inside), write(args[1], binds + 1, inside)]
            if binds == _EITHER:
                sides = [f"({side})" if arg.op == "&&" and arg not in self._names else side for arg, side in zip(args, sides)]
            return f"{sides[0]} {node.op} {sides[1]}", binds
        words = [self.text(arg, 0, inside) for arg in args]
        if node.op == "select" and node not in self._masks:
            words = [_NO_MASK if _is_negative_infinity(arg) else word for arg, word in zip(args, words)]
        return f"{node.op}({', '.join(words)})", _ATOM


    def _constant_or(self, node: Node, binds: int, inside: bool) -> str:
        """The text of an index or a divisor: a known integer stays a literal, for analyses of masks."""
        if node.op == "literal" and node.kind == "int":
            text, own = _literal(node.args[0])
            return f"({text})" if own < binds else text
        return self.text(node, binds, inside)

    def _number(self, value: Any) -> tuple[str, int]:
        text = _literal(value)
        if isinstance(value, bool) or not math.isfinite(value):
            return text
        self.numbers.append(value)
        place = len(self.numbers) - 1
        return (f"{NUMBER}{place}", _ATOM) if place in self._places else text


# Operators whose right operand stays a literal, if it is an integer that is known.
_BY_CONSTANTS = ("/", "%", "<<", ">>")

# With it begin the names of numbers that are arguments.
NUMBER = "number_"

# The largest number of f32.
_MOST = torch.finfo(torch.float32).max


def _literal(value: Any) -> tuple[str, int]:
    if isinstance(value, bool):
        return ("pos(j) >= 0" if value else "pos(j) < 0"), _COMPARE
    if isinstance(value, int):
        if not -(2**31) <= value < 2**31:
            raise TraceError(f"the integer {value} is beyond 32 bits")
        return str(value), _ATOM if value >= 0 else _UNARY
    if math.isinf(value):
        return ("INF", _ATOM) if value > 0 else ("-INF", _UNARY)
    if abs(value) > _MOST:
        raise TraceError(f"the constant {value!r} is beyond float32; use torch.finfo(torch.float32), or an infinity")
    return repr(value), _ATOM if value >= 0 else _UNARY

"""FlexAttention: attention whose scores and mask are Python functions, traced into a kernel."""

from __future__ import annotations

import collections
import contextlib
import copy
import dis
import enum
import functools
import itertools
import types
import weakref
from collections.abc import Callable, Container, Iterator
from typing import Any, NamedTuple

import torch

from . import _blocks, _texts
from ._blocks import Blocks
from ._flashtile import ArgumentError, FlexCalls, GradientError, KernelError
from ._host import is_compiling, is_looked_at, is_traced
from ._kernel import Kernel, kernel, kernel_of, through_dispatcher
from ._sdpa import default_scale, number_of, refuse, rows
from ._trace import NUMBER, Node, Trace, Traced, TraceError, Writer, detaches

# Traces that are kept; the least recently used is dropped.
_KEPT = 256


class Read(NamedTuple):
    """How a kernel reads a tensor of a function."""

    #: Its number among the tensors that the functions hold.
    number: int
    #: Dimensions, and how many positions of them are read.
    cuts: tuple[tuple[int, int], ...]
    #: The type that it is converted to, if kernels do not read its own.
    dtype: torch.dtype | None
    #: Whether it has no dimensions, for which a kernel takes one.
    is_number: bool
    #: Whether no gradient of it is asked for.
    is_detached: bool


# The tables of a `BlockMask`, as kernels name them.
_TABLES = ("listed_blocks", "full_blocks")


class Plan(NamedTuple):
    """What comes of a trace."""

    handle: str
    reads: tuple[Read, ...]
    #: Which tables of a `BlockMask` it reads, before those.
    tables: tuple[int, ...]
    #: Numbers that it takes, behind those.
    numbers: tuple[int | float, ...]
    #: Whether it serves later calls too: nothing was computed that could be something else then.
    is_kept: bool
    #: Whether the score is detached where a gradient would flow to it, which no kernel can stop.
    is_detached: bool


@functools.cache
def _kernel_of(text: str, return_lse: bool) -> Kernel:
    try:
        return kernel(text, grad_from=("o", "lse") if return_lse else ("o",))
    except KernelError as error:
        raise TraceError(f"the functions were traced into a text that is no kernel:\n{error}\n{text}") from error


# What the functions hold


# Modules whose names are taken to mean the same for as long as the process runs.
_LIBRARIES = frozenset("torch numpy math cmath operator builtins functools itertools typing types collections enum".split())


def _is_of_library(name: str | None) -> bool:
    return name is not None and name.partition(".")[0] in _LIBRARIES


class _Known(NamedTuple):
    """What is known of the code of a function."""

    #: Held, so that its identity stays its own.
    code: types.CodeType
    #: Names of globals that the function, or one inside of it, may read, each once, with the attributes
    #: that it reads of each, and whether it does something else with it too.
    names: tuple[tuple[str, tuple[str, ...], bool], ...]
    #: Whether it may read what its names do not tell.
    is_opaque: bool
    #: The same of what each cell of its closure holds.
    cells: tuple[tuple[tuple[str, ...], bool], ...]


class _Held(NamedTuple):
    """What functions hold."""

    #: What a trace depends on; `None` if one of them is traced at each call.
    key: Any
    #: The tensors, each once.
    tensors: list[torch.Tensor]


# By the identity of code.
_KNOWN: dict[int, _Known] = {}


# Functions of PyTorch that tell its state, which is another one in each call.
_STATE = [
    getattr(torch, name)
    for name in (
        "initial_seed get_rng_state get_default_dtype get_default_device is_grad_enabled is_inference_mode_enabled "
        "is_autocast_enabled is_autocast_cpu_enabled get_autocast_dtype get_autocast_cpu_dtype get_autocast_gpu_dtype "
        "are_deterministic_algorithms_enabled get_deterministic_debug_mode is_deterministic_algorithms_warn_only_enabled "
        "get_float32_matmul_precision get_num_threads get_num_interop_threads is_anomaly_enabled"
    ).split()
    if hasattr(torch, name)
]

# By these a function reads anything, or what is another thing in each call.
_ANYTHING = frozenset(
    "globals locals vars eval exec getattr __import__ open input dir __dict__ __globals__ __closure__ __builtins__ __code__ "
    "random rand randn randint default_rng current_device current_stream".split()
) | {function.__name__ for function in _STATE}


def _known(code: types.CodeType, scope: dict[str, Any]) -> _Known:
    """What is known of code whose globals these are."""
    kept = _KNOWN.get(id(code))
    if kept is not None:
        return kept
    reads: dict[str, set[str]] = {}
    #: Names with which something else is done.
    others: set[str] = set()
    is_opaque = False
    if _is_of_library(scope.get("__name__")):  # of which only what the closure holds can differ
        reads, others = {name: set() for name in code.co_freevars}, set(code.co_freevars)
    else:
        is_opaque = _look(code, reads, others)
    of_names = {name: (tuple(sorted(of)), name in others) for name, of in sorted(reads.items())}
    cells = tuple(of_names.get(name, ((), False)) for name in code.co_freevars)
    names = tuple((name, *of) for name, of in of_names.items() if name not in code.co_freevars)
    if len(_KNOWN) >= _KEPT:
        _KNOWN.clear()
    return _KNOWN.setdefault(id(code), _Known(code, names, is_opaque, cells))


def _look(code: types.CodeType, reads: dict[str, set[str]], others: set[str]) -> bool:
    """Adds the attributes that code reads of each name, and the names with which it does something else.

    It says whether the code may read what its names do not tell.
    """
    is_opaque = not _ANYTHING.isdisjoint(code.co_names)
    before: str | None = None
    for step in dis.get_instructions(code):
        if step.opname in ("EXTENDED_ARG", "CACHE"):
            continue
        if before is not None:
            is_attribute = step.opname in ("LOAD_ATTR", "LOAD_METHOD")
            of = reads.setdefault(before, set())
            if is_attribute:
                of.add(step.argval)
            else:
                others.add(before)
        is_read = step.opname.startswith(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR"))
        before = step.argval if is_read else None
        if step.opname == "IMPORT_NAME" and not _is_of_library(step.argval):
            is_opaque = True
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            is_opaque |= _look(inner, reads, others)
    return is_opaque


def _contents(cell: types.CellType) -> Iterator[Any]:
    try:
        yield cell.cell_contents
    except ValueError:  # it is empty
        return


def _tensor_names(functions: tuple) -> dict[int, str]:
    """Names of the tensors that functions hold, for readable texts."""
    found: dict[int, str] = {}

    def look(x: Any, depth: int) -> None:
        if isinstance(x, (tuple, list)) and depth <= 8:
            for y in x:
                look(y, depth + 1)
        if isinstance(x, functools.partial):
            look(x.func, depth + 1)
        if not isinstance(x, types.FunctionType) or depth > 8:
            return
        held = [(name, y) for name, cell in zip(x.__code__.co_freevars, x.__closure__ or ()) for y in _contents(cell)]
        known = _known(x.__code__, x.__globals__)
        held += [(name, x.__globals__[name]) for name, _, _ in known.names if name in x.__globals__]
        for name, y in held:
            if isinstance(y, torch.Tensor):
                found.setdefault(id(y), name)
            else:
                look(y, depth + 1)

    for function in functions:
        look(function, 0)
    return found


class _Places(NamedTuple):
    """Where functions, and those that they call, hold tensors and numbers."""

    cells: list[types.CellType]
    #: Globals by their names.
    scopes: list[tuple[dict[str, Any], str]]


def _places(functions: tuple) -> _Places:
    places, seen = _Places([], []), []

    def look(x: Any) -> None:
        if isinstance(x, functools.partial):
            x = x.func
        if isinstance(x, (tuple, list)):
            for y in x:
                look(y)
        if not isinstance(x, types.FunctionType) or any(x is other for other in seen):
            return
        seen.append(x)
        for cell in x.__closure__ or ():
            for held in _contents(cell):
                places.cells.extend([cell] if _is_watched(held) else [])
                look(held)
        for name, _, _ in _known(x.__code__, x.__globals__).names:
            if name in x.__globals__:
                held = x.__globals__[name]
                places.scopes.extend([(x.__globals__, name)] if _is_watched(held) else [])
                look(held)

    look(functions)
    return places


def _is_watched(x: Any) -> bool:
    """Whether `torch.compile` looks at it again in each call: at a tensor, and at a single value."""
    return x is None or isinstance(x, (torch.Tensor, torch.dtype, torch.device, enum.Enum)) or _is_literal(x) or _is_of_numpy(x)


def _is_literal(x: Any) -> bool:
    return type(x) in (bool, int, float, str)


def _is_of_numpy(x: Any) -> bool:
    """Whether it is a number of NumPy."""
    return type(x).__module__ == "numpy" and getattr(x, "shape", None) == () and hasattr(x, "item")


def _has_changed(found: Any, literal: Any, was_none: bool) -> bool:
    """Whether a function holds another value than when it was compiled.

    `torch.compile` traces this: it compiles anew for any other value than one that is looked at here,
    whatever the question. Numbers may be symbols, of which the comparison makes constants.
    """
    if literal is None:
        return (found is None) != was_none
    # NaN is the same as itself.
    return found != literal and found == found


# Traces


class _Sizes(NamedTuple):
    """The sizes of a call that a trace looks at."""

    B: int
    H: int
    M: int
    N: int


class _Expressions(NamedTuple):
    """What functions make of a score."""

    trace: Trace
    score: Node
    keep: Node
    #: Whether the score is another one, and whether one may be hidden.
    changes: bool
    hides: bool
    #: Whether the score is detached.
    is_detached: bool


def _traced(functions: tuple, sizes: _Sizes, device: torch.device, is_of_call: bool = False) -> _Expressions:
    """Traces two functions; `is_of_call`: for one call, whose mode of gradients they may read."""
    score_mod, mask_mod = functions
    trace = Trace(sizes._asdict(), device, _tensor_names(functions))
    words = zip(("b", "h", "pos(i)", "pos(j)"), ("", "", "i", "j"), sizes)
    places = [trace.leaf(word, "int", dims, size) for word, dims, size in words]
    s = trace.leaf("s", "float", "ij")
    # Another call may record gradients where this one does not.
    with trace, contextlib.nullcontext() if is_of_call else torch.enable_grad():
        trace.is_differentiated = torch.is_grad_enabled()
        score = trace.value(score_mod(s, *places), "the result of score_mod") if score_mod else s
        trace.is_differentiated = False
        keep = trace.value(mask_mod(*places), "the result of mask_mod") if mask_mod else trace.literal(True)
    score, keep = trace.float(score), trace.truth(keep)
    is_detached = detaches(score.node)
    score, keep = (Traced(trace, trace.attached(x.node)) for x in (score, keep))
    trace.keep_captures([score.node, keep.node])
    changes, hides = score.node is not s.node, not (keep.is_literal and keep.literal)
    return _Expressions(trace, score.node, keep.node, changes, hides, is_detached)


def _text(
    made: _Expressions, blocks: Blocks | None, return_lse: bool, grouped: bool, places: Container[int] = ()
) -> tuple[str, tuple[int | float, ...]]:
    """The text of the kernel of expressions and the lists of a `BlockMask`, and the numbers in it.

    Numbers at `places` among these are its last arguments.
    """
    trace, score, keep, changes, hides, _ = made
    params = []
    writer = Writer([*([score] if changes else []), *([keep] if hides else [])], score if changes else None, places)
    scores = []
    if changes:
        text = writer.text(score)
        # A score that is one number for all keys still is one for each.
        text = text if score.dims == {"i", "j"} else f"zeros((i, j)) + {text}"
        scores, writer.inside = [*writer.inside, f"let s = {text};"], []
    if hides:
        text = writer.text(keep)
        scores += writer.inside
    if blocks is not None:
        # Blocks that are not listed hide, and full ones do not ask the function.
        listed, full = f"load(listed_blocks, [{blocks.place}])", f"load(full_blocks, [{blocks.place}])"
        text = f"{listed} && ({full} || ({text}))" if hides else listed
        params = [f"{name}: &Tensor<bool, {blocks.shape}>" for name in _TABLES[: 2 if hides else 1]]
    if hides or blocks is not None:
        scores.append(f"let s = mask(s, {text});")
    params += [f"{c.name}: &Tensor<{c.elem}, ({', '.join(c.extents)})>" for c in trace.captures.values()]
    numbers = enumerate(writer.numbers)
    params += [f"{NUMBER}{n}: {'i32' if isinstance(number, int) else 'f32'}" for n, number in numbers if n in places]
    name = "flex" + ("_scored" if changes else "") + ("_masked" if hides else "") + ("_blocks" if blocks else "")
    doc = "Attention of traced functions: a score_mod, a mask_mod, or both."
    if blocks is not None:
        doc = "Attention of the blocks that a BlockMask lists, with traced functions."
    text = _texts.attention(name, doc, params=params, before=writer.before, scores=scores, lse=return_lse, grouped=grouped)
    return text, tuple(writer.numbers)


# Numbers that change


class _Alike:
    """Texts that are alike but for numbers: those of functions that hold a number which changes."""

    #: So many have kernels of their own, in which numbers are literals. Others have arguments.
    APART = 3

    def __init__(self) -> None:
        #: The numbers of those with kernels of their own.
        self.apart: list[tuple] = []
        #: Places of numbers that are arguments.
        self.places: frozenset[int] = frozenset()

    def places_of(self, numbers: tuple) -> frozenset[int]:
        """Places of the numbers that are arguments in the text with these."""
        if numbers not in self.apart:
            if len(self.apart) == self.APART:
                columns = enumerate(zip(numbers, *self.apart))
                self.places |= {place for place, column in columns if any(x != column[0] for x in column)}
                return self.places
            self.apart.append(numbers)
        return frozenset()


# By the text in which each number is an argument.
_ALIKE: collections.OrderedDict[str, _Alike] = collections.OrderedDict()


def _kernel_for(
    made: _Expressions, blocks: Blocks | None, return_lse: bool, grouped: bool
) -> tuple[Kernel, tuple[int | float, ...]]:
    """The kernel of expressions, and the numbers that are its last arguments.

    A number is a literal of the kernel, from which what the compiler knows of it follows. Where it
    changes from call to call, it is an argument, so that no kernel is compiled for each number.
    """
    text, numbers = _text(made, blocks, return_lse, grouped)
    if not numbers:
        return _kernel_of(text, return_lse), ()
    alike_as, _ = _text(made, blocks, return_lse, grouped, range(len(numbers)))
    alike = _ALIKE.setdefault(alike_as, _Alike())
    _ALIKE.move_to_end(alike_as)
    if len(_ALIKE) > _KEPT:
        _ALIKE.popitem(last=False)
    places = alike.places_of(numbers)
    if places:
        text, _ = _text(made, blocks, return_lse, grouped, places)
    return _kernel_of(text, return_lse), tuple(numbers[place] for place in sorted(places))


# Plans of functions with fingerprints.
_PLANS: collections.OrderedDict[Any, Plan] = collections.OrderedDict()


def _plan(
    functions: tuple,
    held: _Held,
    blocks: Blocks | None,
    sizes: tuple,
    device: torch.device,
    return_lse: bool,
    grouped: bool,
) -> Plan:
    """How to run functions, for ``(B, H, M, N)``; tensors that they compute join what they hold."""
    tensors = held.tensors
    key = None if held.key is None else (held.key, blocks, sizes, return_lse, grouped)
    plan = _PLANS.get(key)
    if plan is not None:
        _PLANS.move_to_end(key)
        return plan
    sizes = _Sizes(*sizes)
    expressions = _traced(functions, sizes, device, key is None)
    trace, reads = expressions.trace, []
    for capture in trace.captures.values():
        x = capture.tensor
        number = next((at for at, known in enumerate(tensors) if known is x), None)
        if number is None:  # not held by the functions in a way that is followed: of this call alone
            number, key = len(tensors), None
            tensors.append(x)
        dtype = {"f32": torch.float32, "i32": torch.int32}.get(capture.elem)
        cuts = tuple((at, getattr(sizes, size)) for at, size in capture.cuts)
        reads.append(Read(number, cuts, dtype if dtype != x.dtype else None, x.dim() == 0, capture.is_detached))
    made, numbers = _kernel_for(expressions, blocks, return_lse, grouped)
    tables = tuple(_TABLES.index(name) for name in made.inputs if name in _TABLES)
    is_kept = key is not None and not trace.computed
    plan = Plan(made.handle, tuple(reads), tables, numbers, is_kept, expressions.is_detached)
    if plan.is_kept:
        _PLANS[key] = plan
        if len(_PLANS) > _KEPT:
            _PLANS.popitem(last=False)
    return plan


def _read(read: Read, tensors: list[torch.Tensor]) -> torch.Tensor:
    """A tensor of a function as a kernel takes it."""
    number, cuts, dtype, is_number, is_detached = read
    x = tensors[number]
    for at, extent in cuts:
        if x.shape[at] != extent:
            x = x.narrow(at, 0, extent)
    if is_detached:
        x = x.detach()
    if dtype is not None:
        x = _int32(x) if dtype is torch.int32 else x.to(dtype)
    return x.reshape(1) if is_number else rows(x)


# Views of tensors on GPUs whose values are known to be within 32 bits, and the version of the tensor.
_FITTING: dict[tuple, tuple[weakref.ref, int]] = {}


def _int32(x: torch.Tensor) -> torch.Tensor:
    """The integers as int32; an error if one is beyond that.

    On a GPU this waits for the values, so that it is done once for each version of a tensor, and not in a capture.
    """
    made = x.to(torch.int32)
    if torch.iinfo(x.dtype).bits < 32 or is_traced():
        return made
    key = None
    if x.is_cuda:
        if torch.cuda.is_current_stream_capturing():
            return made
        base = x if x._base is None else x._base
        # Tensors of inference mode have no version.
        version = 0 if x.is_inference() else x._version
        key = (id(base), x.storage_offset(), x.shape, x.stride())
        held, known = _FITTING.get(key, (None, None))
        if held is not None and held() is base and known == version:
            return made
    # Of an unsigned type, a number that became negative comes back too.
    if not torch.equal(made.to(x.dtype), x) or (not x.dtype.is_signed and bool((made < 0).any())):
        raise ArgumentError(
            f"a tensor of {x.dtype} that a function reads holds a value beyond int32, in which kernels compute; "
            "give ranks of the values: torch.unique(x, return_inverse=True)[1]"
        )
    if key is not None:
        _FITTING[key] = (weakref.ref(base, lambda _: _FITTING.pop(key, None)), version)
    return made


# Calls


def _what_is_known(code: types.CodeType, scope: dict[str, Any]) -> tuple:
    """What the native module needs of :class:`_Known`."""
    known = _known(code, scope)
    return known.names, known.is_opaque, known.cells


# Launches calls of known kinds, and says what functions hold.
_CALLS = FlexCalls(
    look=_what_is_known,
    read=_read,
    kept=_blocks.KEPT,
    function=types.FunctionType,
    builtin=types.BuiltinFunctionType,
    module=types.ModuleType,
    partial=functools.partial,
    enumeration=enum.Enum,
    tensor=torch.Tensor,
    values=(torch.dtype, torch.device),
    libraries=sorted(_LIBRARIES),
    state=_STATE,
)


_launch = _CALLS.launch


def _held(functions: tuple) -> _Held:
    return _Held(*_CALLS.held(*functions))


def _functions(score_mod: Callable | None, block_mask: Any, mask_mod: Callable | None) -> tuple:
    """The functions of a call.

    The `mask_mod` of a `BlockMask` is asked in blocks that are listed, and not as full.
    """
    if block_mask is None:
        return (score_mod, mask_mod)
    if isinstance(block_mask, (torch.Tensor, tuple, list)) or not hasattr(block_mask, "kv_indices"):
        raise ArgumentError(
            f"block_mask is a {type(block_mask).__name__}; give a BlockMask, of create_block_mask or BlockMask.from_kv_blocks, "
            "or a function as mask_mod"
        )
    if mask_mod is not None:
        raise ArgumentError("block_mask and mask_mod are both given; a BlockMask has a mask_mod of its own")
    return (score_mod, block_mask.mask_mod)


def _refuse_uncallable(functions: tuple) -> None:
    for name, function in zip(("score_mod", "mask_mod"), functions):
        if function is not None and not callable(function):
            raise ArgumentError(f"{name} is a {type(function).__name__}; give a function that is called with positions")


def _checked(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, enable_gqa: bool
) -> tuple[tuple[int, int, int, int], bool]:
    """``(B, H, M, N)`` of a call, and whether heads share keys."""
    refuse(query=q, key=k, value=v)
    shapes = q_shape, k_shape, v_shape = q.shape, k.shape, v.shape
    for name, shape in zip(("query", "key", "value"), shapes):
        if len(shape) != 4:
            raise ArgumentError(f"{name} has shape {tuple(shape)}; flex takes (batch, heads, positions, head dim)")
    (batch, heads, queries, _), (batches, groups, keys, _) = q_shape, k_shape
    if (batches != batch and batches != 1) or v_shape[0] != batches:
        raise ArgumentError(f"batches of query, key and value are {batch}, {batches} and {v_shape[0]}")
    if enable_gqa and (groups == 0 or heads % groups != 0):
        raise ArgumentError(f"{heads} query heads are no multiple of {groups} key heads")
    if not enable_gqa and heads != groups:
        raise ArgumentError(f"{heads} query heads and {groups} key heads differ; pass enable_gqa=True")
    return (batch, heads, queries, keys), heads != groups


def _inputs(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: int, scale: float | None) -> list:
    """The inputs that all kernels have."""
    if k.shape[0] != batch:
        k, v = k.expand(batch, -1, -1, -1), v.expand(batch, -1, -1, -1)
    return [rows(q), rows(k), rows(v), default_scale(q, scale)]


def _call(
    score_mod: Callable | None,
    block_mask: Any,
    mask_mod: Callable | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float | None,
    enable_gqa: bool,
    return_lse: bool,
) -> Any:
    """A call that the native module does not launch by itself, outside of ``torch.compile``."""
    functions = _functions(score_mod, block_mask, mask_mod)
    _refuse_uncallable(functions)
    sizes, grouped = _checked(q, k, v, enable_gqa)
    sizes = tuple([int(size) for size in sizes])  # those of `torch.jit.trace` are tensors
    inputs = _inputs(q, k, v, sizes[0], scale)
    blocks, tables = (None, []) if block_mask is None else _blocks.of_call(block_mask, q.shape, k.shape)
    held = _held(functions)
    plan = _plan(functions, held, blocks, sizes, q.device, return_lse, grouped)
    inputs += [tables[at] for at in plan.tables]
    inputs += [_read(read, held.tensors) for read in plan.reads]
    inputs += plan.numbers
    _refuse_detached(plan.is_detached, q, k)
    kernel = kernel_of(plan.handle)
    made = kernel(*inputs)
    if held.key is not None and plan.is_kept and not plan.is_detached and not is_traced():
        how = (q.shape, k.shape), enable_gqa, return_lse
        _CALLS.keep(held.key, blocks, *how, kernel._native, plan.tables, plan.reads, plan.numbers)
    return tuple(made) if return_lse else made


def _refuse_detached(is_detached: bool, q: torch.Tensor, k: torch.Tensor) -> None:
    if is_detached and torch.is_grad_enabled() and (q.requires_grad or k.requires_grad):
        _no_detached_score()


@torch.compiler.assume_constant_result
def _no_detached_score() -> None:
    """Raises the error while `torch.compile` looks at a call, too."""
    raise GradientError(
        "score_mod detaches the score, but a kernel cannot stop the gradient of its score; leave .detach() out, call it "
        "in torch.no_grad(), or give a query and a key that need no gradients"
    )


class FlexKernel:
    """Functions of FlexAttention, ready to be called on queries, keys and values; see :func:`flex_kernel`."""

    def __init__(self, score_mod: Any, block_mask: Any, mask_mod: Any, scale: float | None, enable_gqa: bool, return_lse: bool):
        self._given, self._block_mask = (score_mod, block_mask, mask_mod), block_mask
        self._functions = _functions(*self._given)
        _refuse_uncallable(self._functions)
        self._scale = None if scale is None else number_of("scale", scale)
        self._enable_gqa, self._return_lse = enable_gqa, return_lse
        #: Of the latest compilation.
        self._held, self._places = _Held(None, []), _Places([], [])
        self._handle = f"flex#{next(_NUMBERS)}"
        _FLEX[self._handle] = self

    def __deepcopy__(self, memo: dict) -> "FlexKernel":
        """Of copies of the functions: methods of a module that is copied become those of the copy.

        Functions that are no methods are not copied, nor what they hold: as `copy.deepcopy` has it.
        """
        made = memo[id(self)] = FlexKernel.__new__(FlexKernel)
        made.__init__(*copy.deepcopy(self._given, memo), self._scale, self._enable_gqa, self._return_lse)
        return made

    def __reduce__(self) -> tuple:
        return flex_kernel, (*self._given, self._scale, self._enable_gqa, self._return_lse)

    def __call__(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
        if not is_looked_at():
            scale, enable_gqa, return_lse = self._scale, self._enable_gqa, self._return_lse
            made = _launch(*self._given, query, key, value, scale, enable_gqa, return_lse)
            if made is not None:
                return made
            if not is_compiling():
                return _call(*self._given, query, key, value, scale, enable_gqa, return_lse)
        sizes, _ = _checked(query, key, value, self._enable_gqa)
        # A trace looks at sizes. A range has a length that `torch.compile` guards: other sizes compile anew.
        sizes = tuple([len(range(size)) for size in sizes])
        grouped = sizes[1] != len(range(key.shape[1]))
        inputs = _inputs(query, key, value, sizes[0], self._scale)
        handle, reads, which, numbers, is_detached, watched = _constant_plan(self._handle, grouped, *sizes)
        if is_detached:
            _refuse_detached(is_detached, query, key)
        # Other numbers compile anew, and a tensor that replaces another one is read in its place.
        tensors = list(self._held.tensors)
        held = [cell.cell_contents for cell in self._places.cells] + [scope[name] for scope, name in self._places.scopes]
        for (number, literal, was_none), found in zip(watched, held):
            if number is not None:
                tensors[number] = found
            elif _has_changed(found, literal, was_none):
                raise TraceError("a function holds another value than when it was compiled")
        if self._block_mask is not None:
            tables = _blocks.tables(self._block_mask, sizes[2], sizes[3])
            inputs += [tables[at] for at in which]
        inputs += [_read(Read(*read), tensors) for read in reads]
        inputs += numbers
        made = through_dispatcher(handle, inputs)
        return tuple(made) if self._return_lse else made[0]


# Prepared functions by handle: `torch.compile` asks for their plans by it.
_FLEX: weakref.WeakValueDictionary[str, FlexKernel] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()


@torch.compiler.assume_constant_result
def _constant_plan(handle: str, grouped: bool, *sizes: int) -> tuple:
    flex = _FLEX[handle]
    # The compiled code reads these tensors: those of now, as the plan.
    held = flex._held = _held(flex._functions)
    flex._places = _places(flex._functions)
    if held.key is None:
        raise TraceError("torch.compile needs functions whose tensors are in closures or globals, not in attributes of objects")
    blocks = _blocks.blocks_of(flex._block_mask, *sizes) if flex._block_mask is not None else None
    plan = _plan(flex._functions, held, blocks, sizes, torch.device("cpu"), flex._return_lse, grouped)
    if not plan.is_kept:
        raise TraceError(
            "the functions compute tensors while they are traced, or read values of tensors into Python; "
            "do so before, outside of torch.compile"
        )
    found = [cell.cell_contents for cell in flex._places.cells] + [scope[name] for scope, name in flex._places.scopes]
    watched = []
    for x in found:
        number = next((at for at, known in enumerate(held.tensors) if known is x), None)
        if _is_of_numpy(x):
            raise TraceError(
                f"a function holds the number {x!r} of NumPy, and torch.compile does not see whether it changes; "
                "hold a number of Python: x.item()"
            )
        watched.append((number, x if _is_literal(x) else None, x is None))
    reads = tuple(tuple(read) for read in plan.reads)
    return plan.handle, reads, plan.tables, plan.numbers, plan.is_detached, tuple(watched)


def flex_kernel(
    score_mod: Callable | None = None,
    block_mask: Any = None,
    mask_mod: Callable | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
) -> FlexKernel:
    """:func:`flex` with its functions given ahead: call the result as ``f(query, key, value)``.

    Make it outside of a function that ``torch.compile`` compiles, and call it inside. Tensors that the functions
    hold become inputs of the compiled graph. Other sizes are compiled anew, and so are other numbers in closures and
    globals. What functions read elsewhere, such as in lists, modules and defaults, is that of the time of compilation.
    """
    return FlexKernel(score_mod, block_mask, mask_mod, scale, enable_gqa, return_lse)


def flex(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Callable | None = None,
    block_mask: Any = None,
    mask_mod: Callable | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
) -> Any:
    """Attention with the functions of FlexAttention (``torch.nn.attention.flex_attention``).

    ``query`` is ``(B, H, M, D)``, ``key`` ``(B, G, N, D)``, ``value`` ``(B, G, N, E)``; the result is
    ``(B, H, M, E)``, and with ``return_lse`` also ``(B, H, M)``, natural logarithms.
    ``score_mod(score, b, h, q_idx, kv_idx)`` changes a score, ``mask_mod(b, h, q_idx, kv_idx)`` says
    which count. Tiles that the mask hides are skipped: which ones is derived from the function, so
    that no ``BlockMask`` is needed. The lists of a ``block_mask`` are taken as they are: blocks that
    ``kv_indices`` has are visited with its ``mask_mod``, those that ``full_kv_indices`` has without
    it, and no others.

    Functions are traced. :class:`TraceError` names what has no word in the kernel language.
    :func:`flex_text` is the text that comes of them.
    """
    if not is_looked_at():
        made = _launch(score_mod, block_mask, mask_mod, query, key, value, scale, enable_gqa, return_lse)
        if made is not None:
            return made
    if is_compiling():
        raise TraceError("inside of torch.compile call a flashtile.flex_kernel(..) that was made outside of it")
    return _call(score_mod, block_mask, mask_mod, query, key, value, scale, enable_gqa, return_lse)


def flex_text(
    score_mod: Callable | None = None,
    block_mask: Any = None,
    mask_mod: Callable | None = None,
    *,
    batch: int = 1,
    heads: int = 1,
    queries: int = 0,
    keys: int = 0,
    return_lse: bool = False,
    grouped: bool = False,
) -> str:
    """The kernel text of functions of :func:`flex`, for calls of these sizes. Heads share keys if it is ``grouped``.

    Sizes matter for tensors that the functions index: a dimension that is indexed by ``q_idx`` has at least
    ``queries`` positions.
    """
    functions = _functions(score_mod, block_mask, mask_mod)
    _refuse_uncallable(functions)
    if block_mask is not None:
        queries, keys = queries or block_mask.seq_lengths[0], keys or block_mask.seq_lengths[1]
        found = [x.shape for x in (block_mask.kv_indices, block_mask.full_kv_indices) if x is not None]
        lead = [max(shape[at] if len(shape) == 4 else 1 for shape in found) for at in (0, 1)]
        batch, heads = (own if given == 1 else given for given, own in zip((batch, heads), lead))
    sizes = _Sizes(batch, heads, queries, keys)
    blocks = _blocks.blocks_of(block_mask, *sizes) if block_mask is not None else None
    return _text(_traced(functions, sizes, torch.device("cpu")), blocks, return_lse, grouped)[0]

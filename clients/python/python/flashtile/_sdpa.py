"""``scaled_dot_product_attention`` of PyTorch, as kernels of the language."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from . import _texts
from ._flashtile import ArgumentError, KernelError
from ._host import is_compiling, is_looked_at
from ._kernel import Kernel, kernel, through_dispatcher

# How a mask is loaded, by the dimensions that it has: those of one element are left out.
_ENTRIES = {"B": "b", "H": "h", "M": "i", "N": "j"}

# What a text may be of.
_MASKED = ("no", "causal", "lower_right", "bool", "float")


def sdpa_text(masked: str, dims: str = "", dropout: bool = False, grouped: bool = False) -> str:
    """The text of a kernel of :func:`sdpa`.

    ``masked`` is ``"no"``, ``"causal"``, ``"lower_right"`` (causal, aligned at the last query and the
    last key), ``"bool"`` or ``"float"``; ``dims`` are the dimensions of a mask, of ``"BHMN"``. Heads
    share keys if it is ``grouped``.
    """
    if masked not in _MASKED:
        raise ArgumentError(f"masked is {masked!r}; it is one of {', '.join(_MASKED)}")
    if not isinstance(dims, str) or any(dim not in _ENTRIES for dim in dims):
        raise ArgumentError(f"dims is {dims!r}; it is a str of letters of BHMN")
    entries = ", ".join(_ENTRIES[dim] for dim in dims)
    shape = f"({', '.join(dims)})"
    generics, params, scores, name = [], [], [], "sdpa"
    doc = "Attention, every query with every key."
    if masked == "causal":
        doc = "Causal attention, aligned at the first query and the first key."
        scores = ["let s = mask(s, pos(i) >= pos(j));"]
    elif masked == "lower_right":
        doc = "Causal attention, aligned at the last query and the last key."
        scores = ["let s = mask(s, pos(i) + N - M >= pos(j));"]
    elif masked == "bool":
        doc = "Attention of the queries and keys that a mask keeps."
        params, scores = [f"keep: &Tensor<bool, {shape}>"], [f"let s = mask(s, load(keep, [{entries}]));"]
    elif masked == "float":
        doc = "Attention with a mask that is added to the scores."
        generics = ["S: Element"]
        params, scores = [f"bias: &Tensor<S, {shape}>"], [f"let s = s + load(bias, [{entries}]);"]
    suffixes = {"no": "", "bool": f"_keep_{dims.lower()}", "float": f"_bias_{dims.lower()}"}
    name += suffixes.get(masked, f"_{masked}") + ("_dropout" if dropout else "")
    doc += " A share of the weights is left out, by random numbers of a seed." if dropout else ""
    return _texts.attention(name, doc, generics=generics, params=params, scores=scores, dropout=dropout, grouped=grouped)


@functools.cache
def _kernel_of(masked: str, dims: str, dropout: bool, grouped: bool) -> Kernel:
    return kernel(sdpa_text(masked, dims, dropout, grouped))


# Launches of the kernels without a mask in memory, by whether they are causal and whether heads
# share keys.
_ATTEND: dict[tuple[bool, bool], Callable] = {}


def _attend(is_causal: bool, grouped: bool) -> Callable:
    attend = _kernel_of("causal" if is_causal else "no", "", False, grouped)._native.attend
    return _ATTEND.setdefault((is_causal, grouped), attend)


@torch.compiler.assume_constant_result
def _handle_of(masked: str, dims: str, dropout: bool, grouped: bool) -> str:
    return _kernel_of(masked, dims, dropout, grouped).handle


def rows(x: torch.Tensor) -> torch.Tensor:
    """The tensor, its last dimension without gaps."""
    return x if x.stride(-1) == 1 or x.shape[-1] <= 1 else x.contiguous()


def refuse(**tensors: Any) -> None:
    """Says what is no tensor that could be attended with."""
    for name, x in tensors.items():
        if not isinstance(x, torch.Tensor):
            raise ArgumentError(f"{name} is a {type(x).__name__}; give a torch.Tensor")
        if x.is_nested or x.layout is not torch.strided:
            raise ArgumentError(f"{name} is nested or sparse; give it as a dense tensor, by `.to_padded_tensor` or `.to_dense`")
        if x.dim() > 0 and x.shape[-1] == 0 and name in ("query", "key", "value"):
            raise ArgumentError(f"{name} of shape {tuple(x.shape)} has a head dim of 0, of which there is no kernel")


def number_of(name: str, x: Any) -> float:
    """A number that a kernel takes. Tensors are refused: their gradient would be lost."""
    if isinstance(x, torch.Tensor) and not torch.jit.is_tracing():  # a trace has tensors of sizes
        raise ArgumentError(
            f"{name} is a {type(x).__name__}, whose gradient would be lost; give a number: float(x), or x.item(). "
            "To learn a scale, multiply the queries by it: (query * x, .., scale=1.0)"
        )
    try:
        # Texts are converted by `float`, too.
        made = None if isinstance(x, (str, bytes)) else float(x)
    except (OverflowError, TypeError, ValueError):
        made = None
    if made is None:
        raise ArgumentError(f"{name} is {x!r}; give a number")
    return made


def default_scale(q: torch.Tensor, scale: float | None) -> float:
    return 1.0 / math.sqrt(q.shape[-1]) if scale is None else number_of("scale", scale)


def _four(x: torch.Tensor) -> torch.Tensor:
    """With one batch and one head where these are missing."""
    return x if x.dim() == 4 else x[(None,) * (4 - x.dim())]


def _aligned(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, enable_gqa: bool) -> tuple:
    """The tensors with four dimensions, of one batch, and the dimensions of the batch; nothing is copied but a batch of several."""
    if q.dim() == k.dim() == v.dim() == 4:
        (batch, heads), of_keys = q.shape[:2], k.shape[:2]
        is_shared = enable_gqa and of_keys[1] > 0 and heads % of_keys[1] == 0
        if of_keys == v.shape[:2] and batch == of_keys[0] and (heads == of_keys[1] or is_shared):
            return q, k, v, (batch,)
    if min(q.dim(), k.dim(), v.dim()) < 2:
        raise ArgumentError("query, key and value have at least two dimensions: positions, and the head dim")
    q, k, v = _four(q), _four(k), _four(v)
    heads, groups = q.shape[-3], k.shape[-3]
    if v.shape[-3] != groups:
        raise ArgumentError(f"key has {groups} heads, value {v.shape[-3]}; they must have the same")
    if enable_gqa and (groups == 0 or heads % groups != 0):
        raise ArgumentError(f"{heads} query heads are no multiple of {groups} key heads")
    if not enable_gqa and heads != groups and 1 not in (heads, groups):
        raise ArgumentError(f"{heads} query heads and {groups} key heads differ; pass enable_gqa=True where heads share keys")
    try:
        batch = tuple(torch.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3]))
    except RuntimeError as error:
        raise ArgumentError(f"the batches of query, key and value do not broadcast: {error}") from error
    heads = heads if enable_gqa else max(heads, groups)
    q = q.expand(*batch, heads, *q.shape[-2:])
    k, v = k.expand(*batch, *k.shape[-3:]), v.expand(*batch, *v.shape[-3:])
    if len(batch) > 1:
        q, k, v = (x.reshape(-1, *x.shape[-3:]) for x in (q, k, v))
    return q, k, v, batch


def _is_causal_bias(mask: Any) -> bool:
    """Whether a mask is PyTorch's ``CausalBias``, whose memory holds no mask.

    It is told by its module, which is slow to import.
    """
    return type(mask).__module__ == "torch.nn.attention.bias"


def _causal_bias(bias: Any, m: int, n: int) -> str:
    """Which kernel has the mask of a ``CausalBias``."""
    queries, keys = bias.seq_len_q, bias.seq_len_kv
    if queries != m or keys != n:
        raise ArgumentError(f"attn_mask is a CausalBias of {queries} queries and {keys} keys, but there are {m} and {n}")
    return "causal" if bias.variant.name == "UPPER_LEFT" or m == n else "lower_right"


def _mask(mask: torch.Tensor, q: torch.Tensor, lead: tuple, m: int, n: int) -> tuple[torch.Tensor, str]:
    """A mask without the dimensions that have one element, and the letters of those that it has."""
    if mask.dtype != torch.bool and mask.dtype not in (q.dtype, torch.float32):
        raise ArgumentError(f"attn_mask holds {mask.dtype}; it must hold torch.bool, {q.dtype} or torch.float32")
    if mask.dim() > 4 or len(lead) > 2:
        try:
            mask = mask.expand(*lead, m, n).reshape(-1, lead[-1], m, n)
        except RuntimeError:
            raise ArgumentError(f"attn_mask of shape {tuple(mask.shape)} does not broadcast to {(*lead, m, n)}") from None
    mask = _four(mask)
    wanted = (math.prod(lead[:-1]), lead[-1], m, n)
    fits = all(extent in (1, full) for extent, full in zip(mask.shape, wanted))
    if not fits:
        raise ArgumentError(f"attn_mask of shape {tuple(mask.shape)} does not broadcast to {wanted}")
    if mask.shape[3] != n:
        mask = mask.expand(*mask.shape[:3], n)
    dims = "".join(letter for letter, extent in zip("BHM", mask.shape) if extent != 1) + "N"
    mask = mask[tuple(slice(None) if letter in dims else 0 for letter in "BHMN")]
    return rows(mask), dims


def sdpa(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """As ``torch.nn.functional.scaled_dot_product_attention``, in f32, f16 and bf16.

    ``query`` is ``(.., H, M, D)``, ``key`` ``(.., G, N, D)`` and ``value`` ``(.., G, N, E)``; the result is
    ``(.., H, M, E)``. ``is_causal`` aligns the first query with the first key. A mask of ``bool`` keeps where it is
    true, another one is added to the scores; it broadcasts to ``(.., H, M, N)``. A row that sees nothing gives 0.
    Heads that share keys (``enable_gqa``) and masks that broadcast are read where they lie. PyTorch's
    ``causal_upper_left`` and ``causal_lower_right`` are masks too.
    """
    if attn_mask is None and not is_looked_at() and type(dropout_p) in (float, int) and dropout_p == 0:
        # What is as the kernels take it is launched at once, by one call.
        is_causal = bool(is_causal)
        try:
            grouped = enable_gqa and query.shape[1:2] != key.shape[1:2]
            attend = _ATTEND.get((is_causal, grouped)) or _attend(is_causal, grouped)
            o = attend(query, key, value, scale, grouped)
        except (AttributeError, KernelError):
            refuse(query=query, key=key, value=value)
            raise
        if o is not None:
            return o
    try:
        return _prepared(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    except (AttributeError, KernelError, RuntimeError, TypeError, ZeroDivisionError):
        refuse(query=query, key=key, value=value, **({} if attn_mask is None else {"attn_mask": attn_mask}))
        raise


def _drops(dropout_p: float) -> bool:
    """Whether weights are left out, as a constant: `torch.compile` may have a symbol for the share."""
    try:
        is_share = not isinstance(dropout_p, torch.Tensor) and 0.0 <= dropout_p <= 1.0
    except TypeError:  # it is no number
        is_share = False
    if not is_share:
        raise ArgumentError(f"dropout_p is {dropout_p!r}; it is a number, a share from 0 to 1")
    return True if dropout_p > 0.0 else False


def _prepared(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> torch.Tensor:
    """As :func:`sdpa`, of what is made ready for kernels first."""
    if attn_mask is not None and is_causal:
        raise ArgumentError("attn_mask and is_causal=True are both given; put the causal mask into attn_mask")
    drops = _drops(dropout_p)
    q, k, v, batch = _aligned(query, key, value, enable_gqa)
    q, k, v = rows(q), rows(k), rows(v)
    m, n = q.shape[2], k.shape[2]
    inputs, masked, dims = [q, k, v, default_scale(q, scale)], "causal" if is_causal else "no", ""
    if _is_causal_bias(attn_mask):
        masked = _causal_bias(attn_mask, m, n)
    elif attn_mask is not None:
        mask, dims = _mask(attn_mask, q, (*batch, q.shape[1]), m, n)
        masked = "bool" if mask.dtype == torch.bool else "float"
        inputs.append(mask)
    if drops:
        # On the device, so that neither a captured graph nor a compiled one holds the numbers of one call.
        seed = torch.randint(-(2**31), 2**31 - 1, (2,), dtype=torch.int32, device=q.device)
        inputs += [float(dropout_p), seed]
    # A compiled graph may not know the numbers of heads, but has to know the kernel: a branch makes
    # a constant of the comparison.
    is_grouped = True if q.shape[1] != k.shape[1] else False
    which = (masked, dims, drops, is_grouped)
    o = through_dispatcher(_handle_of(*which), inputs)[0] if is_compiling() else _kernel_of(*which)(*inputs)
    if len(batch) > 1:
        o = o.reshape(*batch, *o.shape[-3:])
    rank = max(query.dim(), key.dim(), value.dim())
    return o if rank >= 4 else o[(0,) * (4 - rank)]

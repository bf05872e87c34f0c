"""FlexAttention in float64, dense, from its definition: each function sees single numbers."""

import contextlib

import torch


def apply(fn, score, shape):
    """`fn(score?, b, h, q_idx, kv_idx)` of all elements."""
    dims = [torch.arange(n) for n in shape]
    with_score = score is not None
    for place in range(3, -1, -1):
        ins = [0 if with_score else None] if with_score else []
        ins += [0 if at == place else None for at in range(4)]
        fn = torch.vmap(fn, in_dims=tuple(ins), out_dims=0)
    return fn(score, *dims) if with_score else fn(*dims)


def attend(scores, v):
    """Softmax attention of scores; rows that see nothing give 0. Returns the result and the LSE."""
    lse = torch.logsumexp(scores, -1)
    seen = torch.isfinite(lse)
    weights = torch.exp(scores - torch.where(seen, lse, torch.zeros_like(lse))[..., None])
    return weights @ v, lse


def flex(q, k, v, score_mod=None, mask_mod=None, scale=None):
    q, k, v = q.double(), k.double(), v.double()
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if score_mod is not None:
        scores = apply(score_mod, scores, scores.shape)
    if mask_mod is not None:
        keep = apply(mask_mod, None, scores.shape)
        scores = torch.where(keep, scores, torch.full_like(scores, -torch.inf))
    return attend(scores, v)


@contextlib.contextmanager
def deterministic():
    """PyTorch's deterministic mode."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)

"""The implementations that flashtile is measured against. Each gives a function that runs once, or a reason why not."""

import sys

import variants


def expanded(cell, data):
    """q, k, v with as many key heads as query heads, for peers without grouped heads."""
    group = cell.heads // cell.key_heads
    q, k, v = data["q"], data["k"], data["v"]
    return (q, k, v) if group == 1 else (q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1))


def sdpa(backend):
    def make(torch, cell, data, options):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        q, k, v = data["q"], data["k"], data["v"]
        grouped = cell.heads != cell.key_heads

        def run():
            with sdpa_kernel(getattr(SDPBackend, backend)):
                torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=cell.causal, enable_gqa=grouped)

        return run

    return make


def flash_attention_3(torch, cell, data, options):
    """The wheel `fa3-fwd`: bf16, layout (batch, length, heads, head dim)."""
    if cell.dtype != "bf16":
        raise RuntimeError("the wheel has bf16 only")
    if options.fa3 and options.fa3 not in sys.path:
        sys.path.insert(0, options.fa3)
    from fa3_fwd_interface import flash_attn_func, flash_attn_with_kvcache

    q, k, v = (data[name].transpose(1, 2).contiguous() for name in ("q", "k", "v"))
    if cell.queries:
        # Its function for decoding, which chooses how many parts the keys have.
        return lambda: flash_attn_with_kvcache(q, k, v, causal=cell.causal, num_splits=0)
    return lambda: flash_attn_func(q, k, v, causal=cell.causal)


def triton(torch, cell, data, options):
    import triton_attention

    q, k, v = expanded(cell, data)
    if cell.head_dim & (cell.head_dim - 1):
        raise RuntimeError("head dims that are powers of two only")
    return triton_attention.attention(torch, q, k, v, cell.causal)


def flex_attention(backend=None):
    """FlexAttention; `backend` is its Triton backend, or "FLASH"."""

    def make(torch, cell, data, options):
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        # Each cell is a shape and a mask of its own, which the compiler takes for one function compiled too
        # often. It would go on with code for any shape, which is slower than code for the shape of a cell.
        torch._dynamo.config.recompile_limit = 1000
        compiled = FLEX.setdefault("function", torch.compile(flex_attention, dynamic=False))
        score, keep = None, (lambda b, h, i, j: i >= j) if cell.causal else None
        if cell.variant:
            score, keep = variants.flex(torch, cell, data)
        per_batch = cell.batch if cell.variant and variants.VARIANTS[cell.variant].per_batch else None
        mask = None
        if keep is not None:
            mask = create_block_mask(keep, per_batch, None, cell.rows, cell.length, device="cuda")
        q, k, v = data["q"], data["k"], data["v"]
        asked = {"enable_gqa": cell.heads != cell.key_heads, "block_mask": mask, "score_mod": score}
        if backend:
            asked["kernel_options"] = {"BACKEND": backend}
        if not (cell.variant and variants.VARIANTS[cell.variant].sinks):
            return lambda: compiled(q, k, v, **asked)

        def with_sinks():
            o, lse = compiled(q, k, v, return_lse=True, **asked)
            return o * torch.sigmoid(lse - data["sinks"][:, None])[..., None].to(o.dtype)

        return torch.compile(with_sinks, dynamic=False)

    return make


FLEX = {}
PEERS = {
    "cuDNN": sdpa("CUDNN_ATTENTION"),
    "FA2": sdpa("FLASH_ATTENTION"),
    "FA3": flash_attention_3,
    "Triton": triton,
    "Flex": flex_attention(),
    "FlexFlash": flex_attention("FLASH"),
}
# Those that know the variants of variants.py.
VARIANT_PEERS = ("Flex", "FlexFlash")

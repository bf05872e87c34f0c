"""The implementations that flashtile is measured against. Each gives a function that runs once, or a reason why not."""

import sys


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
    from fa3_fwd_interface import flash_attn_func

    q, k, v = (data[name].transpose(1, 2).contiguous() for name in ("q", "k", "v"))
    return lambda: flash_attn_func(q, k, v, causal=cell.causal)


def triton(torch, cell, data, options):
    import triton_attention

    q, k, v = expanded(cell, data)
    if cell.head_dim & (cell.head_dim - 1):
        raise RuntimeError("head dims that are powers of two only")
    return triton_attention.attention(torch, q, k, v, cell.causal)


def flex_attention(torch, cell, data, options):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled = FLEX.setdefault("function", torch.compile(flex_attention))
    mask = None
    if cell.causal:
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, cell.length, cell.length, device="cuda")
    q, k, v = data["q"], data["k"], data["v"]
    grouped = cell.heads != cell.key_heads
    return lambda: compiled(q, k, v, block_mask=mask, enable_gqa=grouped)


FLEX = {}
PEERS = {
    "cuDNN": sdpa("CUDNN_ATTENTION"),
    "FA2": sdpa("FLASH_ATTENTION"),
    "FA3": flash_attention_3,
    "Triton": triton,
    "Flex": flex_attention,
}

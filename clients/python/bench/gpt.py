"""Trains a small GPT with flashtile.sdpa and with PyTorch's, from the same seeds, and compares the losses.

The data are sentences that a small grammar makes, so that a model learns letters, words and what follows them.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import flashtile

Attend = Callable[..., torch.Tensor]

SUBJECTS = ["the tile", "a warp", "the kernel", "one thread", "the cache", "a barrier"]
VERBS = ["waits for", "loads", "stores", "skips", "divides", "follows"]
ENDS = ["twice", "in order", "without a copy", "behind the loop", "at last"]


def text(characters: int) -> str:
    """Sentences of a grammar in which the verb depends on the subject, and the number on both."""
    draw = random.Random(7)
    parts, length = [], 0
    while length < characters:
        subject, other = draw.randrange(6), draw.randrange(6)
        verb = (subject * 5 + other) % 6
        parts.append(f"{SUBJECTS[subject]} {VERBS[verb]} {SUBJECTS[other]} {ENDS[(subject + verb) % 5]}, {subject * 6 + other}.\n")
        length += len(parts[-1])
    return "".join(parts)[:characters]


class Block(torch.nn.Module):
    def __init__(self, width: int, heads: int, attend: Attend):
        super().__init__()
        self.heads, self.attend = heads, attend
        self.norm, self.norm_2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        o = self.attend(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(o)
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Gpt(torch.nn.Module):
    def __init__(self, letters: int, length: int, width: int, heads: int, layers: int, attend: Attend):
        super().__init__()
        self.letters, self.places = torch.nn.Embedding(letters, width), torch.nn.Embedding(length, width)
        self.blocks = torch.nn.Sequential(*(Block(width, heads, attend) for _ in range(layers)))
        self.norm, self.head = torch.nn.LayerNorm(width), torch.nn.Linear(width, letters, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.letters(x) + self.places.weight[: x.shape[1]]
        return self.head(self.norm(self.blocks(x))).float()


def train(attend: Attend, options: argparse.Namespace) -> tuple[list[float], float]:
    """The losses of all steps, and seconds."""
    corpus = text(200_000)
    alphabet = sorted(set(corpus))
    data = torch.tensor([alphabet.index(letter) for letter in corpus])
    torch.manual_seed(options.seed)
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[options.dtype]
    model = Gpt(len(alphabet), options.length, options.width, options.heads, options.layers, attend)
    model = model.to(options.device, dtype)
    adam = torch.optim.AdamW(model.parameters(), lr=options.rate)
    draw = torch.Generator().manual_seed(options.seed)
    losses = []
    start = time.perf_counter()
    for step in range(options.steps):
        at = torch.randint(len(data) - options.length - 1, (options.batch,), generator=draw)
        batch = torch.stack([data[i : i + options.length + 1] for i in at]).to(options.device)
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        adam.zero_grad()
        loss.backward()
        for group in adam.param_groups:
            group["lr"] = options.rate * min(1.0, (step + 1) / 20) * 0.5 * (1 + math.cos(math.pi * step / options.steps))
        adam.step()
        losses.append(loss.detach())
    losses = [loss.item() for loss in losses]
    return losses, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--dtype", choices=["f32", "bf16"], help="bf16 on a GPU, f32 on the CPU")
    for name, cuda, cpu in (("length", 512, 24), ("width", 512, 32), ("heads", 8, 2), ("layers", 6, 2), ("batch", 32, 2)):
        parser.add_argument(f"--{name}", type=int, help=f"{cuda} on a GPU, {cpu} on the CPU")
        parser.set_defaults(**{f"{name}_of": (cuda, cpu)})
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    most = "differences of a loss beyond this, and beyond twice those of PyTorch's two kernels, are an error"
    parser.add_argument("--most", type=float, default=0.02, help=most)
    options = parser.parse_args()
    on_cpu = options.device == "cpu"
    for name in ("length", "width", "heads", "layers", "batch"):
        if getattr(options, name) is None:
            setattr(options, name, getattr(options, f"{name}_of")[on_cpu])
    options.dtype = options.dtype or ("f32" if on_cpu else "bf16")
    ours, seconds = train(flashtile.sdpa, options)
    theirs, their_seconds = train(F.scaled_dot_product_attention, options)
    # Another of PyTorch's own kernels: what rounding alone makes of the losses.
    other = SDPBackend.MATH if on_cpu else SDPBackend.EFFICIENT_ATTENTION

    def others(*tensors: torch.Tensor, **named: bool) -> torch.Tensor:
        with sdpa_kernel(other):
            return F.scaled_dot_product_attention(*tensors, **named)

    control, _ = train(others, options)
    print(f"{'step':>6} {'flashtile':>10} {'PyTorch':>10} {'PyTorch, ' + other.name:>30}")
    for step in sorted({*range(0, options.steps, max(1, options.steps // 20)), options.steps - 1}):
        print(f"{step:6} {ours[step]:10.4f} {theirs[step]:10.4f} {control[step]:30.4f}")
    most, noise = (max(abs(x - y) for x, y in zip(losses, theirs)) for losses in (ours, control))
    print(f"largest difference of a loss {most:.3g}, of PyTorch's two kernels {noise:.3g}")
    print(f"seconds {seconds:.1f} and {their_seconds:.1f}")
    if not most <= max(options.most, 2 * noise):
        raise SystemExit(f"losses differ by {most:.3g}, more than {options.most} and twice the noise")
    if not ours[-1] < ours[0]:
        raise SystemExit("nothing was learned")


if __name__ == "__main__":
    main()

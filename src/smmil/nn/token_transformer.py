"""A small transformer over a fixed number of tokens per bag, led by a class token, that can show its working."""

from typing import NamedTuple

from torch import Tensor, nn


class BlockTrace(NamedTuple):
    """What one block computed on the way from x to out; queries, keys, values and maps per head."""

    x: Tensor
    read: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    attention: Tensor
    mixed: Tensor
    heard: Tensor
    middle: Tensor
    reread: Tensor
    hidden: Tensor
    thought: Tensor
    out: Tensor


class Trace(NamedTuple):
    """What the transformer computed: one trace per block, the class token behind the last norm, and the logits."""

    blocks: list[BlockTrace]
    z: Tensor
    logits: Tensor


class TokenBlock(nn.Module):
    """Tokens (b, t, dim) look at each other, then think for themselves; both are added to what they were."""

    def __init__(self, dim: int, heads: int, hidden: int):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.merge = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.expand = nn.Linear(dim, hidden)
        self.contract = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.trace(x).out

    def trace(self, x: Tensor) -> BlockTrace:
        read = self.norm1(x)
        q, k, v = (split_heads(part, self.heads) for part in self.qkv(read).chunk(3, dim=-1))
        attention = ((q @ k.mT) * q.shape[-1] ** -0.5).softmax(-1)
        mixed = join_heads(attention @ v)
        heard = self.merge(mixed)
        middle = x + heard
        reread = self.norm2(middle)
        hidden = nn.functional.gelu(self.expand(reread))
        thought = self.contract(hidden)
        return BlockTrace(x, read, q, k, v, attention, mixed, heard, middle, reread, hidden, thought, middle + thought)


class TokenTransformer(nn.Module):
    """Blocks, a last LayerNorm, and a linear classifier that reads the first token of every bag."""

    def __init__(self, dim: int, n_classes: int, *, layers: int, heads: int, hidden: int):
        super().__init__()
        self.blocks = nn.ModuleList(TokenBlock(dim, heads, hidden) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, n_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.trace(tokens).logits

    def trace(self, tokens: Tensor) -> Trace:
        seen: list[BlockTrace] = []
        for block in self.blocks:
            seen.append(block.trace(seen[-1].out if seen else tokens))  # type: ignore[operator]
        z = self.norm(seen[-1].out[:, 0])
        return Trace(seen, z, self.head(z))


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(b, t, heads·d) as (b, heads, t, d)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """(b, heads, t, d) as (b, t, heads·d)."""
    return x.transpose(1, 2).flatten(2)

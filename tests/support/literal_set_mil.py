"""SETMIL from its equations: a dense feature map, unfolded windows, all pairs of tokens; one bag, float64, slow."""

import itertools
import math

import torch

from smmil.bag import Bag, BagBatch
from smmil.frame import Frame
from smmil.models import create_model
from support.bags import STEP, grid_bag

SIZES = (1, 2, 3, 7, 16, 40)
SMALL = {"size": 6, "reduced": 6, "level_dim": 4, "depth": 3, "heads": 2}


def feature_map(x, spots, size):
    """The map (S, S, d) of patches at (row, column) spots from 0 on: centred, S the larger of size and bounding box.

    Also the cell of every patch.
    """
    height, width = (max(s[i] for s in spots) + 1 for i in (0, 1))
    side = max(size, height, width)
    top, left = (side - height) // 2, (side - width) // 2
    cells = [(r + top, c + left) for r, c in spots]
    shown = torch.zeros(side, side, x.shape[1], dtype=x.dtype)
    for cell in set(cells):
        shown[cell] = torch.stack([row for row, at in zip(x, cells, strict=True) if at == cell]).mean(0)
    return shown, cells


def grid_spots(coords, step):
    x0, y0 = coords.min(0).values.tolist()
    return [(round((y - y0) / step), round((x - x0) / step)) for x, y in coords.tolist()]


def gather_spots(n):
    side = math.ceil(math.sqrt(n))
    return [(i // side, i % side) for i in range(n)]


def layer_norm(norm, x):
    centred = x - x.mean(1, keepdim=True)
    return centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt() * norm.weight + norm.bias


def mlp(layers, x):
    hidden = x @ layers[0].weight.T + layers[0].bias
    return hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2 @ layers[3].weight.T + layers[3].bias


def window_tokens(net, shown, kernel, stride):
    """One token per stride-th cell of a map (S, S, d): what its window shows, channel by channel."""
    side, rim, rows = shown.shape[0], kernel // 2, []
    for r, c in itertools.product(range(0, side, stride), repeat=2):
        window = torch.zeros(shown.shape[2], kernel, kernel, dtype=shown.dtype)
        for i, j in itertools.product(range(kernel), repeat=2):
            at = (r + i - rim, c + j - rim)
            if min(at) >= 0 and max(at) < side:
                window[:, i, j] = shown[at]
        rows.append(window.flatten())
    x = torch.stack(rows)
    q, k, v = (layer_norm(net.norm1, x) @ net.qkv.weight.T).chunk(3, dim=1)
    attended = (q @ k.T / math.sqrt(x.shape[1])).softmax(1) @ v
    y = v + attended @ net.out.weight.T + net.out.bias
    return y + mlp(net.mlp, layer_norm(net.norm2, y))


def bucket(i, j, side):
    if i == 0 or j == 0:
        return 7
    d = round(math.dist(divmod(i - 1, side), divmod(j - 1, side)))
    if d > 1.9:
        d = int(min(round(1.9 + math.log(d / 1.9) / math.log(15.2 / 1.9) * 1.9), 3.8))
    return 3 + d


def block(b, x, side):
    t, width = len(x), x.shape[1] // b.heads
    buckets = torch.tensor([[bucket(i, j, side) for j in range(t)] for i in range(t)])
    q, k, v = (layer_norm(b.norm1, x) @ b.qkv.weight.T).chunk(3, dim=1)
    maps, mixed = [], []
    for h in range(b.heads):
        own = slice(h * width, (h + 1) * width)
        maps.append((q[:, own] @ k[:, own].T / math.sqrt(width) + b.table[h][buckets]).softmax(1))
        mixed.append(maps[-1] @ v[:, own])
    x = x + torch.cat(mixed, dim=1) @ b.out.weight.T + b.out.bias
    return x + mlp(b.mlp, layer_norm(b.norm2, x)), torch.stack(maps)


def sinusoid(position, channel, dim):
    angle = position / 10000 ** (2 * (channel // 2) / dim)
    return math.cos(angle) if channel % 2 else math.sin(angle)


def literal(model, shown):
    """Logits (1, C) and what the class token takes from each cell (S, S)."""
    side = shown.shape[0]
    half = math.ceil(side / 2)
    tokens = window_tokens(model.reduce, shown, 5, 2).reshape(half, half, -1)
    levels = [window_tokens(net, tokens, k, 1) for net, k in zip(model.levels, (3, 5, 7), strict=True)]
    x = torch.cat([model.token, torch.cat(levels, dim=1)])
    t, dim = x.shape
    x = x + torch.tensor([[sinusoid(p, c, dim) for c in range(dim)] for p in range(t)], dtype=x.dtype)
    for b in model.blocks:
        x, maps = block(b, x, half)
    taken = maps.mean(0)[0, 1:].reshape(half, half)
    cells = torch.stack([torch.stack([taken[r // 2, c // 2] for c in range(side)]) for r in range(side)])
    return layer_norm(model.norm, x[:1]) @ model.head.weight.T + model.head.bias, cells


def build(seed=0, n_classes=1, **options):
    """A small model whose weights are all far from their start, so that every one of them matters."""
    torch.manual_seed(seed)
    model = create_model("set_mil", 5, n_classes, **{**SMALL, "dropout": 0.0, **options}).double()
    for name, p in model.named_parameters():
        torch.nn.init.normal_(p, mean=float("norm" in name and "weight" in name), std=0.4)
    return model


def bags(sizes=SIZES, make=grid_bag):
    return [make(n, dim=5, seed=n, dtype=torch.float64) for n in sizes]


def pack(*some):
    return BagBatch.pack(some)


def expected(model, bag, spots, size=6):
    shown, cells = feature_map(bag.x, spots, size)
    logits, taken = literal(model, shown)
    return logits, torch.stack([taken[cell] for cell in cells])[:, None]


def assert_is(out, truth, atol=1e-10):
    assert torch.allclose(out.logits, torch.cat([t[0] for t in truth]), atol=atol)
    assert torch.allclose(out.scores, torch.cat([t[1] for t in truth]), atol=atol)


def full_square(side, seed=0):
    x = torch.randn(side * side, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    coords = torch.stack([columns.flatten(), rows.flatten()], 1) * STEP
    return Bag("square", x, coords, Frame((STEP, STEP)), y=1)

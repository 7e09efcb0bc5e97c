"""IIB-MIL read literally from its equations: dense matrices, loops over bags, heads, instances and prototypes."""

import itertools
import math

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from smmil.bag import BagBatch
from smmil.models import create_model
from support.bags import grid_bag

SIZES = (1, 2, 3, 11, 23, 41)
SMALL = {"dim": 8, "depth": 2, "queries": 3, "hidden": 12, "dropout": 0.0, "warmup": 1}


def make(n_classes=1, seed=0, **options):
    """A small model with every weight away from its start, so that biases and norms count."""
    torch.manual_seed(seed)
    model = create_model("iib_mil", 16, n_classes, **{**SMALL, **options}).double()
    shake(model, seed)
    return model


@torch.no_grad()
def shake(model, seed, size=0.2):
    """Move all weights, as a step of an optimiser would."""
    g = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.add_(size * torch.randn(p.shape, generator=g, dtype=p.dtype))


def make_batch(n_classes=1, sizes=SIZES, make_bag=grid_bag):
    labels = itertools.cycle(range(max(2, n_classes)))
    return BagBatch.pack([make_bag(n, seed=n, y=y, dtype=torch.float64) for n, y in zip(sizes, labels, strict=False)])


class Literal:
    """Shares nothing with the model but its weights; keeps prototypes and beliefs of its own."""

    def __init__(self, model, *, negatives="both", warmup=1, label_ema=0.99, prototype_ema=0.99, instance_weight=1.0):
        self.model = model
        self.negatives, self.warmup, self.instance_weight = negatives, warmup, instance_weight
        self.label_ema, self.prototype_ema = label_ema, prototype_ema
        self.classes = max(2, model.head.out_features)
        self.prototypes = [torch.zeros(model.memory.prototypes.shape[1]).double() for _ in range(self.classes)]
        self.q, self.visits = {}, {}

    def affine(self, x, where):
        w = dict(self.model.named_parameters())
        return x @ w[f"{where}.weight"].T + w[f"{where}.bias"]

    def norm(self, x, where):
        w = dict(self.model.named_parameters())
        centred = x - x.mean(1, keepdim=True)
        return (
            centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt() * w[f"{where}.weight"] + w[f"{where}.bias"]
        )

    def attention(self, x, y, where, heads):
        """Rows x look at rows y."""
        dim = x.shape[1]
        q = self.affine(x, f"{where}.qkv")[:, :dim]
        k, v = self.affine(y, f"{where}.qkv")[:, dim:].split(dim, 1)
        width, mixed = dim // heads, []
        for head in range(heads):
            cut = slice(head * width, (head + 1) * width)
            e = torch.exp(q[:, cut] @ k[:, cut].T / math.sqrt(width))
            mixed.append(e / e.sum(1, keepdim=True) @ v[:, cut])
        return self.affine(torch.cat(mixed, 1), f"{where}.merge")

    def feed(self, x, where):
        thought = self.affine(self.affine(x, f"{where}.expand").clamp(min=0), f"{where}.contract")
        return self.norm(x + thought, f"{where}.norm")

    def encode(self, x):
        h = x
        for i in range(len(self.model.blocks)):
            for step in range(5):
                h = torch.tanh(self.affine(h, f"blocks.{i}.mlp.{3 * step}"))
                h = self.norm(h, f"blocks.{i}.mlp.{3 * step + 2}")
            h = self.norm(h + self.attention(h, h, f"blocks.{i}.layer.attention", 2), f"blocks.{i}.layer.norm")
            h = self.feed(h, f"blocks.{i}.layer.feed")
            h = h + self.affine(x, f"blocks.{i}.raw").clamp(min=0)
        return h

    def read(self, h):
        t = self.model.decoder.queries
        for i in range(2):
            t = self.norm(t + self.attention(t, t, f"decoder.layers.{i}.among", 4), f"decoder.layers.{i}.norm_among")
            t = self.norm(t + self.attention(t, h, f"decoder.layers.{i}.across", 4), f"decoder.layers.{i}.norm_across")
            t = self.feed(t, f"decoder.layers.{i}.feed")
        return self.affine(torch.cat(list(t))[None], "head")[0]

    def bag(self, x):
        """Embedded instances, their probabilities of every class, and the bag's logits."""
        h = self.encode(x)
        judged = self.affine(self.norm(h, "instance_head.0"), "instance_head.1")
        if judged.shape[1] == 1:
            judged = torch.cat([torch.zeros_like(judged), judged], 1)
        e = torch.exp(judged)
        return h, e / e.sum(1, keepdim=True), self.read(h)

    def use(self, batch):
        """Logits and scores."""
        found = [self.bag(x) for x in batch.split(batch.x)]
        p = torch.cat([p for _, p, _ in found])
        odds = torch.log(p / (1 - p))
        one = self.model.head.out_features == 1
        return torch.stack([logits for _, _, logits in found]), odds[:, 1:] if one else odds

    def belief(self, name, label, h):
        """Of the instances of one bag, at this visit."""
        wrong = 1e-6 / (self.classes - 1)
        first = [[1 - 1e-6 if c == label else wrong for c in range(self.classes)]] * len(h)
        q = self.q.get(name, torch.tensor(first, dtype=torch.float64))
        if self.visits.get(name, 0) < self.warmup:
            return q
        keep = self.label_ema
        if keep == "falling":
            keep = 0.95 - 0.15 * min(self.visits[name], 200) / 200
        moved = []
        for row, old in zip(h, q, strict=True):
            allowed = [0] if label == 0 and self.negatives == "zero" else list(range(self.classes))
            likeness = {c: float(row @ self.prototypes[c]) for c in allowed}
            chosen = max(allowed, key=lambda c: likeness[c])
            moved.append(torch.stack([keep * old[c] + (1 - keep) * (c == chosen) for c in range(self.classes)]))
        return torch.stack(moved)

    def loss(self, batch):
        """The instance loss of a batch, and what it saw."""
        total, seen = 0, []
        for name, x, y in zip(batch.ids, batch.split(batch.x), batch.y.tolist(), strict=True):
            h, p, _ = self.bag(x)
            q = self.belief(name, y, h.detach())
            parts = [-(q[n, c] * torch.log(p[n, c])) for n in range(len(h)) for c in range(self.classes)]
            total = total + sum(parts) / len(h)
            seen.append((name, y, h.detach(), p.detach(), q))
        return self.instance_weight * total / len(batch), seen

    def step(self, seen):
        """Prototypes and beliefs after the batches of one step."""
        for c in range(self.classes):
            mine = [(float(p[n, c]), h[n]) for _, y, h, p, _ in seen if y == c for n in range(len(h))]
            if not mine:
                continue
            momentum = 1 - (1 - self.prototype_ema) * len(seen) / sum(y == c for _, y, *_ in seen)
            for _, row in sorted(mine, key=lambda pair: -pair[0])[: max(1, len(mine) // 10)]:
                self.prototypes[c] = momentum * self.prototypes[c] + (1 - momentum) * row
        for name, _, _, _, q in seen:
            self.q[name] = q
            self.visits[name] = self.visits.get(name, 0) + 1


def loss_of(logits, y):
    if logits.shape[1] == 1:
        return binary_cross_entropy_with_logits(logits[:, 0], y.to(logits.dtype))
    return cross_entropy(logits, y)

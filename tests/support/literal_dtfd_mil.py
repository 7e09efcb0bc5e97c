"""DTFD-MIL read literally from its equations: loops over instances, pseudo-bags and bags."""

import itertools
import math

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from smmil.bag import BagBatch
from smmil.models import create_model
from support.bags import grid_bag

SIZES = (1, 2, 3, 5, 18, 41)
SMALL = {"dim": 10, "att_dim": 6}


def make(n_classes=1, seed=0, **options):
    torch.manual_seed(seed)
    return create_model("dtfd_mil", 16, n_classes, **{**SMALL, **options}).double()


def make_batch(n_classes=1, sizes=SIZES, make_bag=grid_bag):
    labels = itertools.cycle(range(max(2, n_classes)))
    return BagBatch.pack([make_bag(n, seed=n, y=y, dtype=torch.float64) for n, y in zip(sizes, labels, strict=False)])


class Literal:
    """The equations with loops over instances, pseudo-bags and bags; shares nothing with the model but its weights."""

    def __init__(self, model):
        self.w = dict(model.named_parameters())
        self.model = model

    def embed(self, x):
        h = torch.clamp(self.w["embed.0.weight"] @ x, min=0)
        block = 2
        while f"embed.{block}.inner.weight" in self.w:
            inner = torch.clamp(self.w[f"embed.{block}.inner.weight"] @ h, min=0)
            h = h + torch.clamp(self.w[f"embed.{block}.outer.weight"] @ inner, min=0)
            block += 1
        return h

    def attention(self, h, where):
        left = torch.tanh(self.affine(h, f"{where}.project"))
        right = 1 / (1 + torch.exp(-self.affine(h, f"{where}.gate")))
        return self.affine(left * right, f"{where}.score")[0]

    def pool(self, rows, where):
        e = [torch.exp(self.attention(h, where)) for h in rows]
        a = [v / sum(e) for v in e]
        return a, sum(v * h for v, h in zip(a, rows, strict=True))

    def affine(self, z, where):
        return self.w[f"{where}.weight"] @ z + self.w[f"{where}.bias"]

    def probability(self, a, h):
        """Of the last class, from the class activation of one instance."""
        r = [float((w_c @ (a * h)).detach()) for w_c in self.w["classifier.weight"]]
        r = [0.0, *r] if len(r) == 1 else r
        return math.exp(r[-1]) / sum(math.exp(v) for v in r)

    def distilled(self, rows, a, z):
        kind, k = self.model.distill, self.model.k
        if kind == "afs":
            return [z]
        signal = a if kind == "mas" else [self.probability(v, h) for v, h in zip(a, rows, strict=True)]
        ranked = sorted(range(len(rows)), key=lambda n: -float(torch.as_tensor(signal[n]).detach()))
        chosen = ranked[:k] + (ranked[-k:] if kind == "maxmins" else [])
        return [rows[n] for n in chosen]

    def bag(self, x, order):
        """Logits of tier 2 and of each pseudo-bag for one bag, its instances shuffled by `order`."""
        h = [self.embed(row) for row in x]
        tokens, pseudo = [], []
        for chunk in np.array_split(order.numpy(), min(self.model.pseudo_bags, len(h))):
            rows = [h[n] for n in chunk]
            a, z = self.pool(rows, "attention")
            pseudo.append(self.affine(z, "classifier"))
            tokens += self.distilled(rows, a, z)
        return self.affine(self.pool(tokens, "tier2.attention")[1], "tier2.classifier"), pseudo

    def scores(self, x):
        h = [self.embed(row) for row in x]
        a, _ = self.pool(h, "attention")
        if self.model.score == "instance":
            a = [1 / len(h)] * len(h)
        return torch.stack([len(h) * v * self.contrast() @ row for v, row in zip(a, h, strict=True)])

    def contrast(self):
        w = self.w["classifier.weight"]
        others = [[k for k in range(len(w)) if k != c] for c in range(len(w))]
        return torch.stack([w[c] - (sum(w[k] for k in o) / len(o) if o else 0) for c, o in enumerate(others)])

    def training(self, batch):
        """Bag logits and tier-1 loss with the cuts torch's global generator would give."""
        logits, losses = [], []
        for x, y in zip(batch.split(batch.x), batch.y.tolist(), strict=True):
            one, pseudo = self.bag(x, torch.randperm(len(x)))
            logits.append(one)
            losses.append(sum(loss_of(g[None], y) for g in pseudo) / len(pseudo))
        return torch.stack(logits), sum(losses) / len(losses)

    def use(self, batch):
        found = []
        for x in batch.split(batch.x):
            generator = torch.Generator().manual_seed(len(x))
            orders = [torch.randperm(len(x), generator=generator) for _ in range(self.model.splits)]
            logits = torch.stack([self.bag(x, order)[0] for order in orders])
            found.append((logits.sigmoid() if logits.shape[1] == 1 else logits.softmax(1)).mean(0))
        return torch.stack(found)


def loss_of(logits, y):
    y = torch.as_tensor(y).reshape(-1)
    if logits.shape[1] == 1:
        return binary_cross_entropy_with_logits(logits[:, 0], y.to(logits.dtype))
    return cross_entropy(logits, y)


def gradients(loss, model):
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True, materialize_grads=True)
    return dict(zip(names, found, strict=True))

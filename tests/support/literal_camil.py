"""CAMIL read literally: dense matrices, one bag, loops where the equations have sums. No code of smmil."""

import itertools
import math

import torch


def layer_norm(norm, x):
    centred = x - x.mean(1, keepdim=True)
    return centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt() * norm.weight + norm.bias


def attention(layer, x, heads, m, iterations, conv):
    """Nyström attention over the sequence padded in front with zero rows."""
    n, dim = x.shape
    width = dim // heads
    x = torch.cat([x.new_zeros((-n) % m, dim), x])
    total = len(x)
    q, k, v = (x @ layer.qkv.weight.T).reshape(total, 3, heads, width).permute(1, 2, 0, 3)
    q = q / math.sqrt(width)
    marks_q, marks_k = (t.reshape(heads, m, total // m, width).mean(2) for t in (q, k))
    s1, s2, s3 = ((a @ b.mT).softmax(2) for a, b in ((q, marks_k), (marks_q, marks_k), (marks_q, k)))
    z = s2.mT / (s2.sum(2).max() * s2.sum(1).max())
    one = torch.eye(m, dtype=x.dtype)
    for _ in range(iterations):
        z = z @ (13 * one - s2 @ z @ (15 * one - s2 @ z @ (7 * one - s2 @ z))) / 4
    mixed = s1 @ z @ s3 @ v + (along_sequence if conv == "sequence" else over_heads)(layer, v)
    out = mixed.transpose(0, 1).reshape(total, dim) @ layer.out.weight.T + layer.out.bias
    return out[-n:]


def along_sequence(layer, v):
    rows = [torch.zeros_like(v[:, 0]) for _ in range(v.shape[1])]
    for i, tap in itertools.product(range(len(rows)), range(33)):
        if 0 <= i + tap - 16 < len(rows):
            rows[i] = rows[i] + layer.local.weight[:, 0, tap] * v[:, i + tap - 16]
    return torch.stack(rows, 1)


def over_heads(layer, v):
    """Channels in as many groups as heads; every group of one head hears the same group of the other heads."""
    heads, n, width = v.shape
    inside = width // heads
    out = [[v.new_zeros(n, inside) for _ in range(heads)] for _ in range(heads)]
    for to, group, tap in itertools.product(range(heads), range(heads), range(33)):
        if 0 <= to + tap - 16 < heads:
            own = slice(group * inside, (group + 1) * inside)
            out[to][group] = out[to][group] + v[to + tap - 16][:, own] @ layer.across[own, :, tap].T
    return torch.stack([torch.cat(groups, 1) for groups in out])


def graph_weights(bag, self_loops=True):
    a = bag.graph.dense()
    if self_loops:
        for i in range(bag.n):
            a[i, i] = a[i].max() if a[i].max() > 0 else 1
    return a


def nearest_weights(bag, k, self_loops=True):
    """The k nearest of 15 by position, weighed by likeness of features."""
    a, points = torch.zeros(bag.n, bag.n, dtype=torch.float64), bag.coords.double()
    for i in range(bag.n):
        apart = points - points[i]
        order = sorted((j for j in range(bag.n) if j != i), key=lambda j: (apart[j] @ apart[j], *apart[j].flip(0)))[:15]
        c = torch.tensor([1 - torch.cosine_similarity(bag.x[i], bag.x[j], 0, 0) for j in order], dtype=torch.float64)
        alike = (-c / c.square().sum().sqrt()).exp()
        a[i, order[:k]] = alike[:k]
        a[i, i] = float(self_loops) * (alike.max() if order else 1)
    return a


def camil(model, bag, a, *, form="article", score=None, heads, m=256, iterations=6, conv=None):
    """Logits (1, C), scores (n, 1), local shares (n, 1) and blend (n, dim) of a bag; a (n, n) weighs neighbours."""
    released = form == "released"
    conv = conv or ("heads" if released else "sequence")
    h = bag.x if bag.x.shape[1] == model.head.in_features else (model.embed[0](bag.x)).clamp(min=0)
    t = h + attention(model.attention, h if released else layer_norm(model.norm, h), heads, m, iterations, conv)
    g = (t @ model.query.weight.T) @ (t @ model.key.weight.T).T / math.sqrt(model.query.out_features)
    share = (a * g).sum(1, keepdim=True).softmax(0)
    local = share * ((h if released else t) @ model.value.weight.T + model.value.bias)
    if released:
        w = (1 / (1 + local.exp())).square()
        blend = 2 * w * local + 2 * (1 - w) * t
    else:
        w = 1 / (1 + (-local).exp())
        blend = w * local + (1 - w) * t

    def attend(u):
        return ((u @ model.project.weight.T).tanh() / (1 + (-u @ model.gate.weight.T).exp())) @ model.score.weight.T

    pooled = (attend(blend if released else t).softmax(0) * blend).sum(0, keepdim=True)
    logits = pooled @ model.head.weight.T + model.head.bias
    score = score or ("m" if released else "t")
    return logits, attend(t if score == "t" else blend), share, blend

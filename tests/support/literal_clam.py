"""CLAM as its equations say, bag by bag and instance by instance: slow, without dropout, k = 8."""

import math

import torch


def item_loss(kind, s, target):
    wrong, true = s[1 - target], s[target]
    if kind == "ce":
        return -torch.log(true.exp() / (true.exp() + wrong.exp()))
    if abs((wrong - true).item()) >= math.log(1000):
        return torch.clamp(1 + wrong - true, min=0)
    return torch.log(1 + torch.exp(1 + wrong - true))


def literal_cluster(model, h, scores, label, kind, subtyping):
    """Instance loss of one bag: both ends of the attention for its own class, the upper end for the others."""
    k, classes = min(8, len(h) // 2), len(model.instance_heads)
    if k == 0:
        return torch.zeros((), dtype=torch.float64)
    total = 0
    for c, head in enumerate(model.instance_heads):
        column = scores[:, c if scores.shape[1] > 1 else 0].tolist()
        rising = sorted(range(len(h)), key=column.__getitem__)
        items = [(n, 0) for n in rising[:k]] + [(n, 1) for n in rising[-k:]] if c == label else []
        if c != label and subtyping:
            items = [(n, 0) for n in rising[-k:]]
        losses = [item_loss(kind, head.weight @ h[n] + head.bias, target) for n, target in items]
        total = total + (sum(losses) / len(losses) if losses else 0)
    return total / classes if subtyping else total


def literal(model, batch, n_classes, branches="single", kind="svm", subtyping=False):
    a, logits, all_scores, cluster = model.attention, [], [], []
    for x, y in zip(batch.split(batch.x), batch.y.tolist(), strict=True):
        h = torch.clamp(x @ model.embed.weight.T + model.embed.bias, min=0)
        hidden = torch.tanh(h @ a.project.weight.T + a.project.bias)
        gate = 1 / (1 + torch.exp(-(h @ a.gate.weight.T + a.gate.bias)))
        scores = (hidden * gate) @ a.score.weight.T + a.score.bias
        weights = scores.exp() / scores.exp().sum(0)
        pooled = [sum(w * row for w, row in zip(column, h, strict=True)) for column in weights.T]
        own = [pooled[c if branches == "multi" else 0] for c in range(len(model.head.weight))]
        row = [w @ z + b for w, b, z in zip(model.head.weight, model.head.bias, own, strict=True)]
        if branches == "multi" and n_classes == 1:
            row = [row[1] - row[0]]
        logits.append(torch.stack(row))
        all_scores.append(scores[:, 1:2] if branches == "multi" and n_classes == 1 else scores)
        cluster.append(literal_cluster(model, h, scores, y, kind, subtyping))
    return torch.stack(logits), torch.cat(all_scores), 0.3 * torch.stack(cluster).mean()

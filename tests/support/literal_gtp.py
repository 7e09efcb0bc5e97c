"""GTP and GraphCAM, slowly, from the equations: dense matrices, one bag at a time, contribution by contribution."""

import math

import torch

from smmil.models import create_model

EPS = 1e-9
SMALL = {"dim": 8, "clusters": 5, "layers": 2, "heads": 2}


def shaken(n_classes=1, seed=0, scale=0.4, **options):
    """A small model with every weight and running statistic moved off its starting value."""
    torch.manual_seed(seed)
    model = create_model("gtp", 16, n_classes, **{**SMALL, **options}).double()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(scale * torch.randn_like(p))
        model.norm.running_mean.normal_(0, 0.1)
        model.norm.running_var.uniform_(0.05, 0.2)
    return model


def running(model):
    return model.norm.running_mean.clone(), model.norm.running_var.clone()


def assert_close(found, truth, tolerance=1e-9):
    """To nine digits of the largest value: maps may be very small or very large."""
    assert found.shape == truth.shape
    assert (found - truth).abs().max() <= tolerance * truth.abs().max()


def affine(x, p, name):
    return x @ p[f"{name}.weight"].T + p.get(f"{name}.bias", 0)


def layer_norm(x, p, name, eps):
    centred = x - x.mean(-1, keepdim=True)
    scale = ((centred**2).mean(-1, keepdim=True) + eps).sqrt()
    return centred / scale * p[f"{name}.weight"] + p[f"{name}.bias"]


def gelu(x):
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def patches(p, bags, statistics=None, relu=False):
    """Rows of every bag behind convolution and batch norm; `statistics` (mean, variance), or those of all rows."""
    lengths = []
    for bag in bags:
        y = (bag.graph.dense() @ bag.x + bag.x) @ p["embed.weight"].T + p["embed.bias"]
        lengths.append(y / (y**2).sum(1, keepdim=True).sqrt())
    rows = torch.cat(lengths)
    mean, variance = statistics or (rows.mean(0), ((rows - rows.mean(0)) ** 2).mean(0))
    normed = [(y - mean) / (variance + 1e-5).sqrt() * p["norm.weight"] + p["norm.bias"] for y in lengths]
    return [y.clamp_min(0) if relu else y for y in normed], rows


def assignment(p, h):
    e = affine(h, p, "assign").exp()
    return e / e.sum(1, keepdim=True)


def losses(assign, adjacency):
    """Cut and orthogonality of one bag."""
    degrees = torch.diag(adjacency.sum(1))
    kept, total = (assign.T @ adjacency @ assign).trace(), (assign.T @ degrees @ assign).trace()
    overlap = assign.T @ assign
    k = assign.shape[1]
    off = overlap / (overlap**2).sum().sqrt() - torch.eye(k, dtype=overlap.dtype) / k**0.5
    return -kept / total if total > 0 else torch.zeros(()), (off**2).sum().sqrt()


def transformer(p, tokens, layers, heads):
    """Logits and, per block, everything GraphCAM needs; `nudge` is added to the maps so that one can differentiate."""
    x, seen = tokens, []
    for i in range(layers):
        name = f"transformer.blocks.{i}"
        s = {"name": name, "x": x, "read": layer_norm(x, p, f"{name}.norm1", 1e-6)}
        d = x.shape[1]
        qkv = s["read"] @ p[f"{name}.qkv.weight"].T
        s["q"], s["k"], s["v"] = qkv[:, :d], qkv[:, d : 2 * d], qkv[:, 2 * d :]
        s["nudge"] = torch.zeros(heads, len(x), len(x), dtype=x.dtype, requires_grad=True)
        s["map"], mixed = [], []
        for h in range(heads):
            mine = slice(h * d // heads, (h + 1) * d // heads)
            dots = (s["q"][:, mine] @ s["k"][:, mine].T) / (d // heads) ** 0.5
            a = dots.exp() / dots.exp().sum(1, keepdim=True) + s["nudge"][h]
            s["map"].append(a)
            mixed.append(a @ s["v"][:, mine])
        s["mixed"] = torch.cat(mixed, 1)
        s["heard"] = affine(s["mixed"], p, f"{name}.merge")
        s["middle"] = x + s["heard"]
        s["reread"] = layer_norm(s["middle"], p, f"{name}.norm2", 1e-6)
        s["hidden"] = gelu(affine(s["reread"], p, f"{name}.expand"))
        s["thought"] = affine(s["hidden"], p, f"{name}.contract")
        x = s["middle"] + s["thought"]
        seen.append(s)
    z = layer_norm(x, p, "transformer.norm", 1e-5)[0]
    return affine(z, p, "transformer.head"), z, seen


def over(r, z):
    return 0.0 if z == 0 else r / (z + EPS)


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def entrywise(function, *tensors):
    """function applied entry by entry, in plain Python numbers."""
    columns = [t.flatten().tolist() for t in tensors]
    return tensor([function(*row) for row in zip(*columns, strict=True)]).reshape(tensors[0].shape)


def rule_linear(r, x, w):
    """Rows of x through w: output j gives its relevance to the inputs i with x_i w_ji > 0, in proportion."""
    given = []
    for relevance, row in zip(r.tolist(), x.tolist(), strict=True):
        mine = [0.0] * len(row)
        for rj, wj in zip(relevance, w.tolist(), strict=True):
            helped = [max(0.0, xi * wji) for xi, wji in zip(row, wj, strict=True)]
            mine = [m + h * over(rj, sum(helped)) for m, h in zip(mine, helped, strict=True)]
        given.append(mine)
    return tensor(given)


def rule_sum(r, a, b):
    shares = [entrywise(lambda x, y, z: x * over(y, z), part, r, a + b) for part in (a, b)]
    totals = [float(part.sum()) for part in shares]
    both = abs(totals[0]) + abs(totals[1])
    return [part * over(over(abs(t), both) * float(r.sum()), t) for part, t in zip(shares, totals, strict=True)]


def rule_product(r, a, b):
    """z = a b; half of what z_ik got goes to a_ij and half to b_jk, in proportion to a_ij b_jk."""
    left, right, relevance, z = (t.tolist() for t in (a, b, r, a @ b))
    to_a, to_b = [[0.0] * len(b) for _ in left], [[0.0] * b.shape[1] for _ in right]
    for i in range(a.shape[0]):
        for k in range(b.shape[1]):
            for j in range(a.shape[1]):
                part = left[i][j] * right[j][k] * over(relevance[i][k], z[i][k]) / 2
                to_a[i][j] += part
                to_b[j][k] += part
    return tensor(to_a), tensor(to_b)


def rule_both_uses(r, other, x):
    return entrywise(lambda a, b, v: v * (over(a, v) + over(b, v)), r, other, x)


def cam(p, tokens, layers, heads, c, begin):
    """Class-token row of the product of the blocks' maps (and begin: what relevance and gradient start from)."""
    logits, z, seen = transformer(p, tokens, layers, heads)
    gradients = torch.autograd.grad(begin * logits[c], [s["nudge"] for s in seen])
    with torch.no_grad():
        r = torch.zeros_like(logits)
        r[c] = begin
        first = rule_linear(r[None], z[None], p["transformer.head.weight"])[0]
        r = torch.zeros_like(tokens)
        r[0] = entrywise(lambda a, v: v * over(a, v), first, z)
        maps = []
        for s, gradient in zip(reversed(seen), reversed(gradients), strict=True):
            mine, r = through_block(p, s, r, heads)
            maps.append((gradient * mine).clamp_min(0).mean(0) + torch.eye(len(tokens), dtype=tokens.dtype))
        whole = maps[0]
        for earlier in maps[1:]:
            whole = whole @ earlier
    return whole[0, 1:]


def through_block(p, s, r, heads):
    weight = {part: p[f"{s['name']}.{part}.weight"] for part in ("qkv", "merge", "expand", "contract")}
    kept, thought = rule_sum(r, s["middle"], s["thought"])
    reread = rule_linear(rule_linear(thought, s["hidden"], weight["contract"]), s["reread"], weight["expand"])
    kept, heard = rule_sum(rule_both_uses(kept, reread, s["middle"]), s["x"], s["heard"])
    mixed, d = rule_linear(heard, s["mixed"], weight["merge"]), s["x"].shape[1]
    maps, qs, ks, vs = [], [], [], []
    for h in range(heads):
        mine = slice(h * d // heads, (h + 1) * d // heads)
        a, v = rule_product(mixed[:, mine], s["map"][h], s["v"][:, mine])
        q, k = rule_product(a, s["q"][:, mine], s["k"][:, mine].T)
        for found, one in zip((maps, qs, ks, vs), (a, q, k.T, v), strict=True):
            found.append(one)
    read = rule_linear(torch.cat(qs + ks + vs, 1), s["read"], weight["qkv"])
    return torch.stack(maps), rule_both_uses(kept, read, s["x"])


def begins(logits, start):
    if start == "one":
        return torch.ones_like(logits)
    if start == "logit":
        return logits
    return 1 / (1 + (-logits).exp()) if len(logits) == 1 else logits.exp() / logits.exp().sum()


def gtp(model, bags, statistics=None, *, relu=False, start="logit", scores="graphcam"):
    """Per bag: logits, scores, cam of the clusters, (cut, orthogonality); and all rows before batch norm."""
    p = {k: v.detach() for k, v in model.named_parameters()}
    layers, heads = len(model.transformer.blocks), model.transformer.blocks[0].heads
    with torch.no_grad():
        rows, before = patches(p, bags, statistics, relu)
    found = []
    for bag, h in zip(bags, rows, strict=True):
        s = assignment(p, h)
        tokens = torch.cat([p["token"][0], s.T @ h])
        logits, _, seen = transformer(p, tokens, layers, heads)
        logits = logits.detach()
        if scores == "attention":
            clusters = torch.stack(seen[-1]["map"]).detach().mean(0)[0, 1:, None]
        else:
            begin = begins(logits, start)
            maps = [cam(p, tokens, layers, heads, c, begin[c]) for c in range(len(begin))]
            clusters = torch.stack(maps, 1)
        found.append((logits, s @ clusters, clusters, losses(s, bag.graph.dense())))
    return found, before

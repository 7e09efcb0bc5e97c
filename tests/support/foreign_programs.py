"""Small state dicts in the authors' layouts, and what their programs compute from them, by the authors' names."""

import math

import torch
from torch.nn import functional as F

DIM = 16  # of the features


class Weights(dict):
    """Random weights by published name."""

    def __init__(self, seed: int = 0):
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def add(self, name, *shape):
        self[name] = 0.3 * torch.randn(*shape, generator=self.generator)

    def layer(self, name, out, inside, bias=True):
        self.add(f"{name}.weight", out, inside)
        if bias:
            self.add(f"{name}.bias", out)

    def norm(self, name, width):
        self.add(f"{name}.weight", width)
        self.add(f"{name}.bias", width)


def affine(w, name, x):
    return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))


def layer_norm(w, name, x):
    return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"])


def gated(w, a, b, c, h):
    return affine(w, c, affine(w, a, h).tanh() * affine(w, b, h).sigmoid())


def clam(branches, place=3, classes=2):
    w, maps = Weights(), classes if branches == "multi" else 1
    w.layer("attention_net.0", 512, DIM)
    for part in "ab":
        w.layer(f"attention_net.{place}.attention_{part}.0", 256, 512)
    w.layer(f"attention_net.{place}.attention_c", maps, 256)
    for c in range(classes):
        w.layer(f"instance_classifiers.{c}", 2, 512)
        if branches == "multi":
            w.layer(f"classifiers.{c}", 1, 512)
    if branches == "single":
        w.layer("classifiers", classes, 512)

    def run(bag):
        h = affine(w, "attention_net.0", bag.x).relu()
        a = gated(w, *(f"attention_net.{place}.attention_{part}" for part in ("a.0", "b.0", "c")), h)
        z = a.softmax(0).T @ h
        if branches == "single":
            return affine(w, "classifiers", z), a
        return torch.cat([affine(w, f"classifiers.{c}", z[c : c + 1]) for c in range(classes)], 1), a

    return w, run


def dsmil(classes, nonlinear=True, passing_v=False, extractor=False):
    w = Weights()
    head = "i_classifier.fc" if extractor else "i_classifier.fc.0"
    if extractor:
        w.add("i_classifier.feature_extractor.conv1.weight", 4, 3, 7, 7)
    w.layer(head, classes, DIM)
    w.layer("b_classifier.q.0" if nonlinear else "b_classifier.q", 128, DIM)
    if nonlinear:
        w.layer("b_classifier.q.2", 128, 128)
    if passing_v:
        w.layer("b_classifier.v.1", DIM, DIM)
    w.add("b_classifier.fcc.weight", classes, classes, DIM)
    w.add("b_classifier.fcc.bias", classes)

    def query(x):
        if not nonlinear:
            return affine(w, "b_classifier.q", x)
        return affine(w, "b_classifier.q.2", affine(w, "b_classifier.q.0", x).relu()).tanh()

    def run(bag):
        c = affine(w, head, bag.x)
        a = query(bag.x) @ query(bag.x[c.argmax(0)]).T / math.sqrt(128)
        v = affine(w, "b_classifier.v.1", bag.x).relu() if passing_v else bag.x
        pooled = (a.softmax(0).T @ v)[None]
        return F.conv1d(pooled, w["b_classifier.fcc.weight"], w["b_classifier.fcc.bias"])[..., 0], a

    return w, run


def dtfd(blocks=1, distill="AFS", k=1):
    parts = {
        name: Weights(seed) for seed, name in enumerate(("dim_reduction", "attention", "classifier", "att_classifier"))
    }
    parts["dim_reduction"].layer("fc1", 512, DIM, bias=False)
    for i in range(blocks):
        for place in (0, 2):
            parts["dim_reduction"].layer(f"resBlocks.{i}.block.{place}", 512, 512, bias=False)
    for part, prefix in (("attention", ""), ("att_classifier", "attention.")):
        parts[part].layer(f"{prefix}attention_V.0", 128, 512)
        parts[part].layer(f"{prefix}attention_U.0", 128, 512)
        parts[part].layer(f"{prefix}attention_weights", 1, 128)
    parts["classifier"].layer("fc", 2, 512)
    parts["att_classifier"].layer("classifier.fc", 2, 512)

    def attention(part, h, prefix=""):
        return gated(
            parts[part], *(prefix + name for name in ("attention_V.0", "attention_U.0", "attention_weights")), h
        )

    def run(bag, parts_of=lambda n: [range(n)]):
        """parts_of: the pseudo-bags, of which the program draws its own number at random."""
        h = affine(parts["dim_reduction"], "fc1", bag.x).relu()
        for i in range(blocks):
            inner = affine(parts["dim_reduction"], f"resBlocks.{i}.block.0", h).relu()
            h = h + affine(parts["dim_reduction"], f"resBlocks.{i}.block.2", inner).relu()
        found = []
        for part in map(list, parts_of(bag.n)):
            a = attention("attention", h)[part].softmax(0)
            order = F.linear(a * h[part], parts["classifier"]["fc.weight"]).softmax(1)[:, -1].argsort(descending=True)
            chosen = {"AFS": [], "MaxS": order[:k], "MaxMinS": torch.cat([order[:k], order[-k:]])}[distill]
            found.append(a.T @ h[part] if distill == "AFS" else h[part][chosen])
        z = torch.cat(found)
        z = attention("att_classifier", z, "attention.").softmax(0).T @ z
        a = attention("attention", h).softmax(0)
        evidence = a * F.linear(h, parts["classifier"]["fc.weight"]) * len(h)
        return affine(parts["att_classifier"], "classifier.fc", z), evidence[:, 1:] - evidence[:, :1]

    return parts, run


def transmil():
    w = Weights()
    w.layer("_fc1.0", 512, DIM)
    w.add("cls_token", 1, 1, 512)
    for layer in ("layer1", "layer2"):
        w.norm(f"{layer}.norm", 512)
        w.layer(f"{layer}.attn.to_qkv", 1536, 512, bias=False)
        w.layer(f"{layer}.attn.to_out.0", 512, 512)
        w.add(f"{layer}.attn.res_conv.weight", 8, 1, 33, 1)
    for name, side in (("proj", 7), ("proj1", 5), ("proj2", 3)):
        w.add(f"pos_layer.{name}.weight", 512, 1, side, side)
        w.add(f"pos_layer.{name}.bias", 512)
    w.norm("norm", 512)
    w.layer("_fc2", 2, 512)
    for name in w:
        if "to_qkv" in name or "to_out" in name:
            w[name] *= 0.1

    def attend(layer, x):
        """Nyström attention with 256 landmarks; the output, and the attention matrix of the real rows, head by head."""
        n, m = len(x), 256
        rows = torch.cat([x.new_zeros(-n % m, 512), x])
        q, k, v = affine(w, f"{layer}.attn.to_qkv", rows).reshape(len(rows), 3, 8, 64).permute(1, 2, 0, 3)
        q = q / 8
        marks = [t.reshape(8, m, -1, 64).mean(2) for t in (q, k)]
        a, b, c = ((s @ t.mT).softmax(-1) for s, t in ((q, marks[1]), marks, (marks[0], k)))
        z = b.mT / (b.sum(-1).max() * b.sum(-2).max())
        one = torch.eye(m, dtype=x.dtype)
        for _ in range(6):
            z = 0.25 * z @ (13 * one - b @ z @ (15 * one - b @ z @ (7 * one - b @ z)))
        out = a @ z @ (c @ v) + F.conv2d(v[None], w[f"{layer}.attn.res_conv.weight"], padding=(16, 0), groups=8)[0]
        out = affine(w, f"{layer}.attn.to_out.0", out.permute(1, 0, 2).reshape(len(rows), 512))
        return out[-n:], (a @ z @ c)[:, -n:, -n:]

    def run(bag):
        h = affine(w, "_fc1.0", bag.x).relu()
        n, side = len(h), math.ceil(math.sqrt(len(h)))
        x = torch.cat([w["cls_token"][0], h, h[: side * side - n]])
        x = x + attend("layer1", layer_norm(w, "layer1.norm", x))[0]
        grid = x[1:].T.reshape(1, 512, side, side)
        folded = grid
        for name, pad in (("proj", 3), ("proj1", 2), ("proj2", 1)):
            kernel, bias = w[f"pos_layer.{name}.weight"], w[f"pos_layer.{name}.bias"]
            folded = folded + F.conv2d(grid, kernel, bias, padding=pad, groups=512)
        x = torch.cat([x[:1], folded.reshape(512, -1).T])
        taken, attention = attend("layer2", layer_norm(w, "layer2.norm", x))
        logits = affine(w, "_fc2", layer_norm(w, "norm", (x + taken)[:1]))
        return logits, attention.mean(0)[0, 1 : n + 1, None]

    return w, run


def patchgcn(bias=True, new_names=False):
    """As PyTorch Geometric 1.6.3 to 2.8.1 builds GENConv: Linear, LayerNorm, ReLU, Dropout, Linear."""
    w = Weights()
    w.layer("fc.0", 128, DIM)
    for i in range(3):
        w.add(f"layers.{i}.conv.{'aggr_module.' if new_names else ''}t", 1)
        w.layer(f"layers.{i}.conv.mlp.0", 256, 128, bias)
        w.norm(f"layers.{i}.conv.mlp.1", 256)
        w.layer(f"layers.{i}.conv.mlp.4", 128, 256, bias)
        w.norm(f"layers.{i}.norm", 128)
    for name in ("path_phi.0", "path_attention_head.attention_a.0", "path_attention_head.attention_b.0", "path_rho.0"):
        w.layer(name, 512, 512)
    w.layer("path_attention_head.attention_c", 1, 512)
    w.layer("classifier", 4, 512)

    def convolve(i, x, hears):
        message, t = x.relu() + 1e-7, w[f"layers.{i}.conv.{'aggr_module.' if new_names else ''}t"]
        heard = [(message[j] * (t * message[j]).softmax(0)).sum(0) if len(j) else x.new_zeros(128) for j in hears]
        inner = layer_norm(w, f"layers.{i}.conv.mlp.1", affine(w, f"layers.{i}.conv.mlp.0", x + torch.stack(heard)))
        return affine(w, f"layers.{i}.conv.mlp.4", inner.relu())

    def run(bag):
        apart = torch.cdist(bag.coords.double(), bag.coords.double())
        nearest = apart.argsort(dim=1)[:, 1:9]
        hears = [(nearest == i).any(1).nonzero()[:, 0] for i in range(bag.n)]
        x = affine(w, "fc.0", bag.x).relu()
        views = [x, convolve(0, x, hears)]
        for i in (1, 2):
            views.append(views[-1] + layer_norm(w, f"layers.{i}.norm", convolve(i, views[-1], hears)).relu())
        h = affine(w, "path_phi.0", torch.cat(views, 1)).relu()
        a = gated(w, *(f"path_attention_head.attention_{part}" for part in ("a.0", "b.0", "c")), h)
        return affine(w, "classifier", affine(w, "path_rho.0", a.softmax(0).T @ h).relu()), a

    return w, run


def gtp(classes=2):
    w = Weights()
    w.add("cls_token", 1, 1, 64)
    w.add("conv1.weight", DIM, 64)
    w.add("conv1.bias", 64)
    w.norm("conv1.bn_layer", 64)
    w.add("conv1.bn_layer.running_mean", 64)
    w["conv1.bn_layer.running_var"] = 0.5 + torch.rand(64, generator=w.generator)
    w["conv1.bn_layer.num_batches_tracked"] = torch.tensor(9)
    w.layer("pool1", 100, 64)
    for name in (f"transformer.blocks.{i}" for i in range(3)):
        w.norm(f"{name}.norm1", 64)
        w.norm(f"{name}.norm2", 64)
        w.layer(f"{name}.attn.qkv", 192, 64, bias=False)
        w.layer(f"{name}.attn.proj", 64, 64)
        w.layer(f"{name}.mlp.fc1", 128, 64)
        w.layer(f"{name}.mlp.fc2", 64, 128)
    w.norm("transformer.norm", 64)
    w.layer("transformer.head", classes, 64)

    def block(name, x):
        def norm(part, x):
            return F.layer_norm(x, (64,), w[f"{name}.{part}.weight"], w[f"{name}.{part}.bias"], 1e-6)

        q, k, v = affine(w, f"{name}.attn.qkv", norm("norm1", x)).reshape(-1, 3, 8, 8).permute(1, 2, 0, 3)
        mixed = (q @ k.mT / 8**0.5).softmax(-1) @ v
        x = x + affine(w, f"{name}.attn.proj", mixed.permute(1, 0, 2).reshape(-1, 64))
        return x + affine(w, f"{name}.mlp.fc2", F.gelu(affine(w, f"{name}.mlp.fc1", norm("norm2", x))))

    def run(bag):
        """Their map needs a backward pass through their own layers; here the scores are left to the model's tests."""
        y = (bag.graph.dense().float() @ bag.x + bag.x) @ w["conv1.weight"] + w["conv1.bias"]
        statistics = [w[f"conv1.bn_layer.{name}"] for name in ("running_mean", "running_var", "weight", "bias")]
        y = F.batch_norm(F.normalize(y, dim=1), *statistics)
        x = torch.cat([w["cls_token"][0], affine(w, "pool1", y).softmax(1).T @ y])
        for i in range(3):
            x = block(f"transformer.blocks.{i}", x)
        return affine(w, "transformer.head", layer_norm(w, "transformer.norm", x[:1])), None

    return w, run


def setmil(classes=2, depth=6, size=48):
    """size: FEATURE_MAP_SIZE of the program's settings, which only the number of positions tells."""
    w, half = Weights(), size // 2
    w.add("cls_token", 1, 1, 192)
    w["pos_embed"] = _sines(half * half + 1, 192)[None]
    parts = {"channel_reduce.reduce.attention": (25 * DIM, 128)}
    parts |= {f"aspp.p{i + 1}.attention": (128 * k * k, 64) for i, k in enumerate((3, 5, 7))}
    for name, (inside, out) in parts.items():
        w.norm(f"{name}.norm1", inside)
        w.layer(f"{name}.attn.qkv", 3 * out, inside, bias=False)
        w.layer(f"{name}.attn.proj", out, out)
        w.norm(f"{name}.norm2", out)
        w.layer(f"{name}.mlp.fc1", out, out)
        w.layer(f"{name}.mlp.fc2", out, out)
    for name in (f"blocks.{i}" for i in range(depth)):
        w.norm(f"{name}.norm1", 192)
        w.layer(f"{name}.attn.qkv", 576, 192, bias=False)
        w.layer(f"{name}.attn.proj", 192, 192)
        w.norm(f"{name}.norm2", 192)
        w.layer(f"{name}.mlp.fc1", 768, 192)
        w.layer(f"{name}.mlp.fc2", 192, 768)
        w.add(f"{name}.attn.rpe_q.lookup_table_bias", 16, 8)
    w.norm("norm", 192)
    w.layer("head", classes, 192)
    for name in w:
        if name.endswith("weight") and w[name].ndim == 2:
            w[name] *= 0.3

    def think(name, y):
        hidden = F.gelu(affine(w, f"{name}.mlp.fc1", layer_norm(w, f"{name}.norm2", y)))
        return y + affine(w, f"{name}.mlp.fc2", hidden)

    def windows(name, board, kernel, stride):
        x = F.unfold(board[None], kernel, stride=stride, padding=kernel // 2)[0].T
        q, k, v = affine(w, f"{name}.attn.qkv", layer_norm(w, f"{name}.norm1", x)).chunk(3, 1)
        mixed = (q @ k.T * x.shape[1] ** -0.5).softmax(1) @ v
        return think(name, v + affine(w, f"{name}.attn.proj", mixed))

    def run(bag):
        columns, rows = ((bag.coords - bag.coords.min(0).values) / 512).round().long().T
        board = torch.zeros(DIM, int(rows.max()) + 1, int(columns.max()) + 1)
        number = torch.full(board.shape[1:], -1)
        board[:, rows, columns], number[rows, columns] = bag.x.T, torch.arange(bag.n)
        for axis in (0, 1):  # cut to the middle, or framed with zeros
            before = board.shape[axis + 1]
            if before > size:
                start = (before - size) // 2
                board, number = board.narrow(axis + 1, start, size), number.narrow(axis, start, size)
            else:
                first = (size - before) // 2
                frame = (0, 0, first, size - before - first) if axis == 0 else (first, size - before - first)
                board, number = F.pad(board, frame), F.pad(number, frame, value=-1)
        tokens = windows("channel_reduce.reduce.attention", board, 5, 2).T.reshape(128, half, half)
        levels = [windows(f"aspp.p{i + 1}.attention", tokens, k, 1) for i, k in enumerate((3, 5, 7))]
        x = torch.cat([w["cls_token"][0], torch.cat(levels, 1)]) + w["pos_embed"][0]
        for name in (f"blocks.{i}" for i in range(depth)):
            q, k, v = (
                affine(w, f"{name}.attn.qkv", layer_norm(w, f"{name}.norm1", x))
                .reshape(-1, 3, 16, 12)
                .permute(1, 2, 0, 3)
            )
            maps = (q @ k.mT * 12**-0.5 + w[f"{name}.attn.rpe_q.lookup_table_bias"][:, _buckets(half)]).softmax(-1)
            x = x + affine(w, f"{name}.attn.proj", (maps @ v).permute(1, 0, 2).reshape(-1, 192))
            x = think(name, x)
        rows, columns = (number >= 0).nonzero().T
        scores = torch.zeros(bag.n)
        scores[number[rows, columns]] = maps.mean(0)[0, 1:].reshape(half, half)[rows // 2, columns // 2]
        return affine(w, "head", layer_norm(w, "norm", x[:1])), scores[:, None]

    return w, run


def _sines(n, dim):
    angle = torch.arange(n)[:, None] / 10000 ** (2 * (torch.arange(dim) // 2) / dim)
    return torch.where(torch.arange(dim) % 2 == 0, angle.sin(), angle.cos())


def _buckets(side):
    """Euclidean distance, rounded, in pieces: 0, 1, then 2 and 3 and no more; 7 for the class token."""
    place = (
        torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij"), -1).reshape(-1, 2).double()
    )
    apart = torch.cdist(place, place).round()
    far = (1.9 + (apart.clamp_min(1) / 1.9).log() / math.log(15.2 / 1.9) * 1.9).round().clamp_max(3.8).int()
    inner = torch.where(apart > 1.9, far, apart.int()) + 3
    return F.pad(inner, (1, 0, 1, 0), value=7).long()


def iibmil(classes=2, z=32, depth=2):
    w = Weights()
    widths = (2 * z, 4 * z, 2 * z, 2 * z, z)

    def transformer(name, hidden, crossing=False):
        for kind in ("self_attn", "cross_attn") if crossing else ("self_attn",):
            w.add(f"{name}.{kind}.in_proj_weight", 3 * z, z)
            w.add(f"{name}.{kind}.in_proj_bias", 3 * z)
            w.layer(f"{name}.{kind}.out_proj", z, z)
        w.layer(f"{name}.linear1", hidden, z)
        w.layer(f"{name}.linear2", z, hidden)
        for i in (1, 2, 3) if crossing else (1, 2):
            w.norm(f"{name}.norm{i}", z)

    for i in range(depth):
        for j, (a, b) in enumerate(zip((z if i else DIM, *widths), widths, strict=False)):
            w.layer(f"patch_encoder.depth_{i}.{4 * j}", b, a)
            w.norm(f"patch_encoder.depth_{i}.{4 * j + 2}", b)
        transformer(f"patch_encoder.trans_{i}.layers.0", 2048)
        w.layer(f"patch_encoder.res_{i}", z, DIM)
        transformer(f"patch_encoder.encode_{i}.layers.0", 64)
    w.layer("patch_encoder.patch_to_embedding", z, DIM)
    transformer("patch_encoder.transformer_encoder.layers.0", 64)
    w.norm("patch_encoder.mlp_head.0", z)
    w.layer("patch_encoder.mlp_head.1", classes, z)
    for i in range(2):
        transformer(f"wsi_aggregator.decoder.layers.{i}", 2 * z, crossing=True)
    w.add("query_embed.weight", 5, z)
    w.layer("wsi_classifier", classes, 5 * z)
    w.add("prototypes", classes, z)

    def attend(name, query, key, value, heads):
        parts = zip(
            (query, key, value), w[f"{name}.in_proj_weight"].chunk(3), w[f"{name}.in_proj_bias"].chunk(3), strict=True
        )
        q, k, v = (F.linear(x, a, b).reshape(len(x), heads, -1).transpose(0, 1) for x, a, b in parts)
        mixed = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v
        return affine(w, f"{name}.out_proj", mixed.transpose(0, 1).reshape(len(query), z))

    def feed(name, x):
        return affine(w, f"{name}.linear2", affine(w, f"{name}.linear1", x).relu())

    def encode(i, h, x):
        for j in range(5):
            part = f"patch_encoder.depth_{i}"
            h = layer_norm(w, f"{part}.{4 * j + 2}", affine(w, f"{part}.{4 * j}", h).tanh())
        name = f"patch_encoder.trans_{i}.layers.0"
        h = layer_norm(w, f"{name}.norm1", h + attend(f"{name}.self_attn", h, h, h, 2))
        h = layer_norm(w, f"{name}.norm2", h + feed(name, h))
        return h + affine(w, f"patch_encoder.res_{i}", x).relu()

    def run(bag):
        h = bag.x
        for i in range(depth):
            h = encode(i, h, bag.x)
        judged = affine(w, "patch_encoder.mlp_head.1", layer_norm(w, "patch_encoder.mlp_head.0", h))
        t = w["query_embed.weight"]
        for name in (f"wsi_aggregator.decoder.layers.{i}" for i in range(2)):
            t = layer_norm(w, f"{name}.norm2", t + attend(f"{name}.self_attn", t, t, t, 4))
            t = layer_norm(w, f"{name}.norm1", t + attend(f"{name}.cross_attn", t, h, h, 4))
            t = layer_norm(w, f"{name}.norm3", t + feed(name, t))
        return affine(w, "wsi_classifier", t.reshape(1, -1)), judged[:, 1:] - judged[:, :1]

    return w, run


PROGRAMS = {
    "iibmil": [iibmil(), iibmil(depth=3)],
    "setmil": [setmil(depth=2, size=size) for size in (24, 48, 60)] + [setmil()],
    "gtp": [gtp(), gtp(3)],
    "clam": [clam("single"), clam("multi", classes=3), clam("single", place=2)],
    "dsmil": [dsmil(1), dsmil(3, passing_v=True), dsmil(2, nonlinear=False, extractor=True)],
    "dtfd": [dtfd(0), dtfd(2)],
    "transmil": [transmil()],
    "patchgcn": [patchgcn(), patchgcn(bias=False, new_names=True)],
}

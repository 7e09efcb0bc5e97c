"""The peer of each model: torchmil's of that name where it does the same work, else the article in plain torch.

Plain versions are written as one would write them from the article for one bag: whole tensors, torch's own layers,
autograd. They are not slowed down: graphs are CSR matrices whose product with a dense matrix is its own backward, and
attention is torch's. torchmil gets the widths, heads and layers that `smmil.create_model(name, 512)` has by default.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from slides import STEP
from torch import Tensor, nn
from torch.nn import functional as F

from smmil.bag import Bag

OURS: dict[str, dict[str, Any]] = {"clam": {"dropout": 0.0}}  # what is set in ours so that both do the same work


class Peer(NamedTuple):
    """A peer ready to be timed: what it is, its module, the loss of a training step, a prediction with its map."""

    what: str
    model: nn.Module
    loss: Callable[[], Tensor]
    predict: Callable[[], object]


def peer_of(name: str, bag: Bag) -> Peer | None:
    """The peer of a model on this bag, None if there is nobody else's."""
    if name in _TORCHMIL:
        return _torchmil(name, bag)
    if name not in _PLAIN:
        return None
    model = _PLAIN[name](bag.x.shape[1])
    graph = _Symmetric.of(bag)

    def loss() -> Tensor:
        logit, losses = model(bag.x, graph)
        return model.bag_weight * _bce(logit) + sum(losses)

    return Peer("plain torch", model, loss, lambda: model(bag.x, graph))


# --- torchmil ---------------------------------------------------------------------------------------------------------


def _embed(width: int, dim: int = 512) -> nn.Module:
    return nn.Sequential(nn.Linear(width, dim), nn.ReLU())


def _theirs(width: int) -> dict[str, Callable[[Any], nn.Module]]:
    """Constructors by our names; all take the features' width by `in_shape`."""
    given: dict[str, Any] = {"in_shape": (width,)}
    embedded = given | {"feat_ext": _embed(width)}
    transformer = {"transf_att_dim": 128, "transf_n_layers": 2, "transf_n_heads": 8, "transf_add_self": False}
    return {
        "abmil": lambda m: m.ABMIL(**embedded, att_dim=100, att_act="tanh"),
        "sm_ap": lambda m: m.SmABMIL(**embedded, att_dim=100, att_act="tanh", spectral_norm=True),
        "transformer_abmil": lambda m: m.TransformerABMIL(**given, pool_att_dim=100, **transformer),
        "sm_tap": lambda m: m.SmTransformerABMIL(**given, pool_att_dim=100, pool_spectral_norm=True, **transformer),
        "clam": lambda m: m.CLAM_SB(**embedded, att_dim=256, gated=True, k_sample=8),
        "dsmil": lambda m: m.DSMIL(**given, att_dim=128, nonlinear_q=True),
        "deep_graph_surv": lambda m: m.DeepGraphSurv(**given, att_dim=128, K=5),
        "gtp": lambda m: m.GTP((width,), att_dim=64, n_layers=3, feat_ext=nn.Linear(width, 64)),
        "prob_smooth": lambda m: m.ProbSmoothABMIL(**embedded, att_dim=100, n_samples_train=16, n_samples_test=1),
    }


_TORCHMIL = {  # and what is said about the peer
    "abmil": "",
    "sm_ap": "",
    "transformer_abmil": "",
    "sm_tap": "",
    "clam": ", dropout 0 in both",
    "dsmil": "",
    "deep_graph_surv": "",
    "gtp": "",
    "prob_smooth": ", 16 maps; in use 1",
}
_WITH_GRAPH = ("sm_ap", "sm_tap", "deep_graph_surv", "gtp", "prob_smooth")


def _torchmil(name: str, bag: Bag) -> Peer:
    try:
        import peer
        from torchmil import models
    except ImportError as missing:
        raise SystemExit(f"{missing}: install torchmil==1.0.2 beside smmil (`make bench` does)") from missing
    model = _theirs(bag.x.shape[1])[name](models)
    inputs = (bag.x[None], peer.adjacency(bag)) if name in _WITH_GRAPH else (bag.x[None],)
    y = torch.ones(1)

    def predict() -> object:
        if name == "prob_smooth":  # its predict() hands no graph on
            return model(*inputs, return_att=True)
        with torch.set_grad_enabled(name == "gtp"):  # its map is read from gradients
            return model.predict(*inputs, return_inst_pred=True)

    what = "torchmil" + _TORCHMIL[name]
    return Peer(what, model, lambda: sum(model.compute_loss(y, *inputs)[1].values()), predict)


# --- plain torch: parts -----------------------------------------------------------------------------------------------


class _Product(torch.autograd.Function):
    """A x for a symmetric sparse A without gradient."""

    @staticmethod
    def forward(ctx, matrix: Tensor, x: Tensor) -> Tensor:
        ctx.matrix = matrix
        return matrix @ x

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return None, ctx.matrix @ gradient.contiguous()


class _Symmetric(NamedTuple):
    """The slide's 0/1 neighbours as a CSR matrix, and where its patches lie, in steps."""

    matrix: Tensor
    cells: Tensor

    @classmethod
    def of(cls, bag: Bag) -> "_Symmetric":
        ones = torch.ones(bag.graph.indices.numel())
        matrix = torch.sparse_csr_tensor(bag.graph.indptr, bag.graph.indices, ones, (bag.n, bag.n))
        return cls(matrix, (bag.coords - bag.coords.min(0).values) // STEP)

    def sum(self, x: Tensor) -> Tensor:
        return _Product.apply(self.matrix, x)


class _Gated(nn.Module):
    def __init__(self, dim: int, att_dim: int, columns: int = 1, dropout: float = 0.0, bias: bool = True):
        super().__init__()
        self.v, self.u = nn.Linear(dim, att_dim, bias=bias), nn.Linear(dim, att_dim, bias=bias)
        self.w, self.drop = nn.Linear(att_dim, columns, bias=bias), nn.Dropout(dropout)

    def forward(self, h: Tensor) -> Tensor:
        return self.w(self.drop(self.v(h).tanh()) * self.drop(self.u(h).sigmoid()))


def _bce(logit: Tensor) -> Tensor:
    """Cross-entropy of a positive bag, mean over all logits."""
    return F.binary_cross_entropy_with_logits(logit, torch.ones_like(logit))


class _Plain(nn.Module):
    """Called with features (n, d) and the graph; gives the bag's logit, and further losses or, in use, the map."""

    bag_weight = 1.0


# --- plain torch: models ----------------------------------------------------------------------------------------------


class _InstancePool(_Plain):
    def __init__(self, width: int, reduce: Callable[[Tensor], Tensor]):
        super().__init__()
        self.embed, self.head, self.reduce = _embed(width), nn.Linear(512, 1), reduce

    def forward(self, x: Tensor, graph: _Symmetric):
        scores = self.head(self.embed(x))
        return self.reduce(scores), [] if self.training else scores


class _ACMIL(_Plain):
    def __init__(self, width: int):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(width, 512, bias=False), nn.ReLU())
        self.attention, self.head = _Gated(512, 128, 5), nn.Linear(512, 1)
        self.heads = nn.ModuleList(nn.Linear(512, 1) for _ in range(5))

    def forward(self, x: Tensor, graph: _Symmetric):
        h = self.embed(x)
        f = self.attention(h)
        if not self.training:
            return self.head((f.softmax(0).T @ h).mean(0)), f.mean(1)
        best = f.topk(10, dim=0).indices
        chosen = best.gather(0, torch.rand(best.shape).argsort(0)[:6])
        a = f.scatter(0, chosen, -math.inf).softmax(0)
        z = a.T @ h
        said = torch.cat([head(row) for head, row in zip(self.heads, z, strict=True)])
        unit = F.normalize(a.T, dim=1)
        return self.head(z.mean(0)), [_bce(said), ((unit @ unit.T).sum() - 5) / 20]


class _Additive(_Plain):
    def __init__(self, width: int):
        super().__init__()
        self.embed = _embed(width)
        self.attention = nn.Sequential(nn.Linear(512, 100), nn.Tanh(), nn.Linear(100, 1, bias=False))
        self.classifier = nn.Sequential(
            nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)
        )

    def forward(self, x: Tensor, graph: _Symmetric):
        h = self.embed(x)
        scores = self.classifier(self.attention(h).softmax(0) * h)
        return scores.sum(0), [] if self.training else scores


class _Attri(_Plain):
    """Without the ranking constraint: one positive bag has no other to be compared with."""

    def __init__(self, width: int):
        super().__init__()
        half = width // 2
        self.adaptor = nn.Sequential(nn.Linear(width, half), nn.ReLU(), nn.Linear(half, width))
        self.attentions = nn.ModuleList(_Gated(width, half) for _ in range(2))
        self.classifier = nn.Linear(width, 2)

    def forward(self, x: Tensor, graph: _Symmetric):
        h = x + self.adaptor(x)
        f = torch.cat([attention(h) for attention in self.attentions], 1)
        said = self.classifier(h)
        pooled = (f.softmax(0) * said).sum(0)
        scores = (f.exp() * said)[:, 1]
        if not self.training:
            return pooled[1] - pooled[0], scores
        near, ends = scores[graph.matrix.col_indices()], graph.matrix.crow_indices()
        high = torch.maximum(torch.segment_reduce(near, "max", offsets=ends, initial=-math.inf), scores)
        low = torch.minimum(torch.segment_reduce(near, "min", offsets=ends, initial=math.inf), scores)
        return pooled[1] - pooled[0], [(scores - torch.where(high > -low, high, low)).tanh().abs().mean()]


class _BayesLinear(nn.Linear):
    def __init__(self, a: int, b: int, log_alpha: float):
        super().__init__(a, b)
        self.log_alpha = nn.Parameter(torch.full_like(self.weight, log_alpha))

    def variance(self, x: Tensor) -> Tensor:
        return F.linear(x * x, self.log_alpha.exp() * self.weight**2)

    def forward(self, x: Tensor) -> Tensor:
        mean = super().forward(x)
        return mean + (self.variance(x) + 1e-12).sqrt() * torch.randn_like(mean) if self.training else mean

    def divergence(self) -> Tensor:
        a = self.log_alpha
        return (0.63576 * (1 - (1.8732 + 1.48695 * a).sigmoid()) + F.softplus(-a) / 2).sum()


class _Bayes(_Plain):
    def __init__(self, width: int):
        super().__init__()
        self.embed = nn.Sequential(_embed(width), nn.Dropout(0.25))
        self.v, self.u = _BayesLinear(512, 256, -4.0), _BayesLinear(512, 256, -4.0)
        self.w, self.head = _BayesLinear(256, 2, -4.0), _BayesLinear(512, 1, -3.0)

    def forward(self, x: Tensor, graph: _Symmetric):
        h = self.embed(x)
        v, u = self.v(h).tanh(), self.u(h).sigmoid()
        mean, log_variance = self.w(v * u).split(1, 1)
        if self.training:
            drawn = F.logsigmoid(mean + (log_variance / 2).exp() * torch.randn_like(mean))
            apart = (log_variance.exp() + mean**2) / math.e**3 + 2 - log_variance
            weights = sum(layer.divergence() for layer in (self.v, self.u, self.w, self.head))
            return self.head(drawn.softmax(0).T @ h), [0.005 * apart.mean(), 1e-6 * weights]
        said = F.logsigmoid(mean * (1 + math.pi / 8 * log_variance.exp()).rsqrt())
        shaken, opened = (1 - v**2) ** 2 * self.v.variance(h), (u * (1 - u)) ** 2 * self.u.variance(h)
        spread = v**2 * opened + u**2 * shaken + shaken * opened
        inner = self.w.variance(v * u) + F.linear(spread, (1 + self.w.log_alpha.exp()) * self.w.weight**2)
        return self.head(said.softmax(0).T @ h), (mean, (inner[:, :1] + log_variance.exp()).sqrt())


class _DTFD(_Plain):
    def __init__(self, width: int):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(width, 512, bias=False), nn.ReLU())
        self.attention, self.classifier = _Gated(512, 128), nn.Linear(512, 1)
        self.attention2, self.classifier2 = _Gated(512, 128), nn.Linear(512, 1)

    def forward(self, x: Tensor, graph: _Symmetric):
        h = self.embed(x)
        f, said = self.attention(h), h @ self.classifier.weight.T
        z = torch.cat([f[c].softmax(0).T @ h[c] for c in torch.randperm(len(x)).chunk(4)])
        tokens = z.detach() if self.training else z
        logit = self.classifier2(self.attention2(tokens).softmax(0).T @ tokens)
        return logit, [_bce(self.classifier(z))] if self.training else f.softmax(0) * said * len(x)


class _SMMILe(_Plain):
    """Stage 1: the bag, one look with instances dropped, ten with one instance of every superpatch, ten of both."""

    def __init__(self, width: int):
        super().__init__()
        self.embed = nn.Linear(width, 512, bias=False)
        self.after = nn.Sequential(nn.BatchNorm1d(512), nn.ReLU(), nn.Dropout(0.25))
        self.attention, self.classifier = _Gated(512, 256, 1, dropout=0.25), nn.Linear(512, 1)
        self.refine = nn.ModuleList(nn.Linear(512, 2) for _ in range(3))

    def forward(self, x: Tensor, graph: _Symmetric):
        h = self.after(self.embed(x))
        f, odds = self.attention(h), self.classifier(h)
        self.refined = [layer(h) for layer in self.refine]
        rows = torch.cat([f, F.logsigmoid(odds), F.logsigmoid(-odds)], 1)
        if not self.training:
            return self._logit(rows), f + rows[:, 1:2]
        squares = graph.cells // 4
        patch = (squares[:, 0] * (squares.max() + 1) + squares[:, 1]).unique(return_inverse=True)[1]
        sizes = patch.bincount()
        draw = (torch.rand(10, len(sizes)) * sizes).long().minimum(sizes - 1) + sizes.cumsum(0) - sizes
        sampled = rows[patch.argsort()[draw]]
        looks = [self._logit(self._dropped(rows))[None], self._logit(sampled), self._logit(self._dropped(sampled))]
        return self._logit(rows), [_bce(torch.cat(looks))]

    def _logit(self, rows: Tensor) -> Tensor:
        f, log_p, log_q = rows.unbind(-1)
        return (f + log_p).logsumexp(-1) - (f + log_q).logsumexp(-1)

    def _dropped(self, rows: Tensor) -> Tensor:
        f, log_p, log_q = rows.unbind(-1)
        share = (f.log_softmax(-1) + log_p).exp().detach()
        low, high = share.amin(-1, keepdim=True), share.amax(-1, keepdim=True)
        gone = torch.rand_like(share) * (high - low) < share - low
        return torch.stack([f, log_p.masked_fill(gone, -math.inf), log_q.masked_fill(gone, 0.0)], -1)


class _GENConv(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.t = nn.Parameter(torch.ones(1))
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.LayerNorm(2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))

    def forward(self, x: Tensor, graph: _Symmetric) -> Tensor:
        m = x.relu() + 1e-7
        e = (self.t * m - (self.t * m).detach().amax(0)).exp()
        return self.mlp(x + graph.sum(e * m) / (graph.sum(e) + 1e-30))


class _PatchGCN(_Plain):
    def __init__(self, width: int):
        super().__init__()
        self.embed = nn.Sequential(_embed(width, 128), nn.Dropout(0.25))
        self.convs = nn.ModuleList(_GENConv(128) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(128) for _ in range(2))
        self.joint = nn.Sequential(_embed(512, 512), nn.Dropout(0.25))
        self.attention = _Gated(512, 512, dropout=0.25)
        self.head = nn.Sequential(_embed(512, 512), nn.Linear(512, 1))

    def forward(self, x: Tensor, graph: _Symmetric):
        views = [self.embed(x)]
        views.append(self.convs[0](views[0], graph))
        for conv, norm in zip(self.convs[1:], self.norms, strict=True):
            views.append(F.dropout(views[-1] + norm(conv(views[-1], graph)).relu(), 0.1, self.training))
        h = self.joint(torch.cat(views, 1))
        f = self.attention(h)
        return self.head(f.softmax(0).T @ h), [] if self.training else f


class _Nystrom(nn.Module):
    """Nyström attention as published: zero rows in front, 256 landmarks, six iterations, 33 taps along the values."""

    def __init__(self, dim: int = 512, heads: int = 8, landmarks: int = 256, dropout: float = 0.0):
        super().__init__()
        self.heads, self.landmarks = heads, landmarks
        self.qkv, self.drop = nn.Linear(dim, 3 * dim, bias=False), nn.Dropout(dropout)
        self.out = nn.Linear(dim, dim)
        self.conv = nn.Conv2d(heads, heads, (33, 1), padding=(16, 0), groups=heads, bias=False)

    def forward(self, x: Tensor, row: bool = False):
        n, m = len(x), self.landmarks
        x = F.pad(x, (0, 0, -n % m, 0))
        q, k, v = (t.unflatten(1, (self.heads, -1)).transpose(0, 1) for t in self.qkv(x).chunk(3, 1))
        q = q * q.shape[2] ** -0.5
        q_mean, k_mean = (t.unflatten(1, (m, -1)).mean(2) for t in (q, k))
        s1, s2, s3 = (q @ k_mean.mT).softmax(2), (q_mean @ k_mean.mT).softmax(2), (q_mean @ k.mT).softmax(2)
        z = s2.mT / (s2.sum(2).amax() * s2.sum(1).amax())
        eye = torch.eye(m)
        for _ in range(6):
            xz = s2 @ z
            z = 0.25 * z @ (13 * eye - xz @ (15 * eye - xz @ (7 * eye - xz)))
        mixed = (s1 @ z) @ (s3 @ v) + self.conv(v[None])[0]
        y = self.drop(self.out(mixed.transpose(0, 1).flatten(1)))[-n:]
        return (y, (s1[:, -n : 1 - n] @ z @ s3)[:, 0, -n:].mean(0)) if row else y


class _TransMIL(_Plain):
    def __init__(self, width: int):
        super().__init__()
        self.embed, self.token = _embed(width), nn.Parameter(torch.randn(1, 512))
        self.norms = nn.ModuleList(nn.LayerNorm(512) for _ in range(3))
        self.one, self.two = _Nystrom(dropout=0.1), _Nystrom(dropout=0.1)
        self.convs = nn.ModuleList(nn.Conv2d(512, 512, k, padding=k // 2, groups=512) for k in (7, 5, 3))
        self.head = nn.Linear(512, 1)

    def forward(self, x: Tensor, graph: _Symmetric):
        n, side = len(x), math.ceil(len(x) ** 0.5)
        h = self.embed(x)
        h = torch.cat([self.token, h, h[: side * side - n]])
        h = h + self.one(self.norms[0](h))
        field = h[1:].T.reshape(1, 512, side, side)
        field = field + sum(conv(field) for conv in self.convs)
        h = torch.cat([h[:1], field[0].flatten(1).T])
        if self.training:
            return self.head(self.norms[2](h + self.two(self.norms[1](h)))[0]), []
        more, row = self.two(self.norms[1](h), row=True)
        return self.head(self.norms[2](h + more)[0]), row[1 : n + 1]


class _CAMIL(_Plain):
    def __init__(self, width: int):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(512), _Nystrom()
        self.q, self.k = nn.Linear(512, 256, bias=False), nn.Linear(512, 256, bias=False)
        self.v, self.pool, self.head = nn.Linear(512, 512), _Gated(512, 128, bias=False), nn.Linear(512, 1)

    def forward(self, x: Tensor, graph: _Symmetric):
        t = x + self.attention(self.norm(x))
        k = self.k(t)
        agree = (self.q(t) * (graph.sum(k) + k)).sum(1, keepdim=True) / 16
        local = agree.softmax(0) * self.v(t)
        m = torch.lerp(t, local, local.sigmoid())
        f = self.pool(t)
        return self.head(f.softmax(0).T @ m), [] if self.training else f


class _IIB(_Plain):
    """In its warm-up, when every instance is taught the label of its bag."""

    def __init__(self, width: int):
        super().__init__()
        widths = [(a, 512, 1024, 512, 512, 256) for a in (width, 256, 256)]
        self.mlps = nn.ModuleList(
            nn.Sequential(*(m for a, b in pairwise(w) for m in (nn.Linear(a, b), nn.Tanh(), nn.LayerNorm(b))))
            for w in widths
        )
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(256, 2, 2048, 0.1, batch_first=True) for _ in widths)
        self.raws = nn.ModuleList(nn.Linear(width, 256) for _ in widths)
        self.instance = nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 1))
        self.queries = nn.Parameter(torch.randn(5, 256))
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(256, 4, 512, 0.1, batch_first=True), 2)
        self.head = nn.Linear(5 * 256, 1)

    def forward(self, x: Tensor, graph: _Symmetric):
        h = x
        for mlp, layer, raw in zip(self.mlps, self.layers, self.raws, strict=True):
            h = layer(mlp(h)[None])[0] + raw(x).relu()
        scores = self.instance(h)
        logit = self.head(self.decoder(self.queries[None], h[None]).flatten())
        return logit, [_bce(scores)] if self.training else scores


def _feed_forward(dim: int, hidden: int, dropout: float) -> nn.Module:
    drop = nn.Dropout(dropout)
    return nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), drop, nn.Linear(hidden, dim), drop)


class _Windows(nn.Module):
    """One token per window of a map (channels, side, side): unfold, attend with one head, MLP."""

    def __init__(self, channels: int, dim: int, kernel: int, stride: int = 1, dropout: float = 0.0):
        super().__init__()
        self.width, self.kernel, self.stride = channels * kernel**2, kernel, stride
        self.norm1, self.norm2 = nn.LayerNorm(self.width), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(self.width, 3 * dim, bias=False), nn.Linear(dim, dim)
        self.drop, self.mlp = nn.Dropout(dropout), _feed_forward(dim, dim, dropout)

    def forward(self, field: Tensor) -> Tensor:
        windows = F.unfold(field[None], self.kernel, padding=self.kernel // 2, stride=self.stride)[0].T
        q, k, v = self.qkv(self.norm1(windows))[None, None].chunk(3, 3)
        dropout = self.drop.p if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=self.width**-0.5)
        y = v[0, 0] + self.drop(self.out(mixed[0, 0]))
        return y + self.mlp(self.norm2(y))


class _RelativeBlock(nn.Module):
    """A pre-norm block with relative positions; the last one updates the class token alone and tells its attention."""

    def __init__(self, dim: int, heads: int, dropout: float, last: bool):
        super().__init__()
        self.heads, self.last = heads, last
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)
        self.table = nn.Parameter(torch.zeros(heads, 5))
        self.drop, self.mlp = nn.Dropout(dropout), _feed_forward(dim, 4 * dim, dropout)

    def forward(self, x: Tensor, kinds: Tensor):
        q, k, v = (t.unflatten(1, (self.heads, -1)).transpose(0, 1) for t in self.qkv(self.norm1(x)).chunk(3, 1))
        row = None
        if self.last:
            row = (q[:, :1] @ k.mT * q.shape[2] ** -0.5).softmax(2)
            mixed, x = self.drop(row) @ v, x[:1]
        else:
            dropout = self.drop.p if self.training else 0.0
            mixed = F.scaled_dot_product_attention(q[None], k[None], v[None], self.table[None, :, kinds], dropout)[0]
        x = x + self.drop(self.out(mixed.transpose(0, 1).flatten(1)))
        return x + self.mlp(self.norm2(x)), row


class _SETMIL(_Plain):
    def __init__(self, width: int):
        super().__init__()
        self.reduce = _Windows(width, 128, 5, stride=2)
        self.levels = nn.ModuleList(_Windows(128, 64, k, dropout=0.2) for k in (3, 5, 7))
        self.token, self.drop = nn.Parameter(torch.randn(1, 192)), nn.Dropout(0.2)
        self.blocks = nn.ModuleList(_RelativeBlock(192, 16, 0.2, last=i == 5) for i in range(6))
        self.norm, self.head = nn.LayerNorm(192), nn.Linear(192, 1)
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}

    def forward(self, x: Tensor, graph: _Symmetric):
        side = max(48, int(graph.cells.max()) + 1)
        field = x.new_zeros(side, side, x.shape[1]).index_put((graph.cells[:, 1], graph.cells[:, 0]), x)
        side = (side + 1) // 2
        if side not in self.kept:
            self.kept[side] = _kinds(side), _positions(1 + side * side, 192)
        kinds, positions = self.kept[side]
        reduced = self.reduce(field.permute(2, 0, 1)).T.unflatten(1, (side, side))
        tokens = torch.cat([self.token, torch.cat([level(reduced) for level in self.levels], 1)])
        tokens = self.drop(tokens + positions)
        for block in self.blocks:
            tokens, row = block(tokens, kinds)
        logit = self.head(self.norm(tokens))
        cells = graph.cells // 2
        return logit, [] if self.training else row[:, 0, 1:].mean(0)[cells[:, 1] * side + cells[:, 0]]


def _kinds(side: int) -> Tensor:
    """Kind of every pair among a class token and side² tokens: 0 to 3 by distance, 4 with the class token."""
    place = torch.cartesian_prod(torch.arange(side), torch.arange(side)).float()
    apart = torch.cdist(place, place).round()
    slow = 1.9 + (apart.clamp(min=1.9) / 1.9).log() / math.log(15.2 / 1.9) * 1.9
    kinds = torch.where(apart <= 1.9, apart, slow.round().clamp(max=3)).long()
    return F.pad(kinds, (1, 0, 1, 0), value=4)


def _positions(n: int, dim: int) -> Tensor:
    channel = torch.arange(dim)
    angle = torch.arange(n)[:, None] * 10000.0 ** (-2 * (channel // 2) / dim)
    return torch.where(channel % 2 == 0, angle.sin(), angle.cos())


_PLAIN: dict[str, Callable[[int], _Plain]] = {
    "mean_pool": lambda width: _InstancePool(width, lambda scores: scores.mean(0)),
    "max_pool": lambda width: _InstancePool(width, lambda scores: scores.amax(0)),
    "ac_mil": _ACMIL,
    "additive_mil": _Additive,
    "attri_mil": _Attri,
    "bayes_mil": _Bayes,
    "dtfd_mil": _DTFD,
    "smmile": _SMMILe,
    "patch_gcn": _PatchGCN,
    "trans_mil": _TransMIL,
    "camil": _CAMIL,
    "iib_mil": _IIB,
    "set_mil": _SETMIL,
}

"""The same layers written with operations any runtime knows, in place of those with kernels of their own."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.utils.parametrize import is_parametrized

from smmil.errors import ConfigError
from smmil.graph import Graph
from smmil.nn.exact import chebyshev_degree
from smmil.nn.gnn import MESSAGE_SHIFT, GENConv, GINConv
from smmil.nn.neighbours import Neighbours
from smmil.nn.pool import AttentionPool, SmAttentionPool
from smmil.nn.smooth import Sm
from smmil.packaging.traced import sum_by_row

TOLERANCE = 1e-6


def plain_model(model: nn.Module) -> nn.Module:
    """A copy for use, with fixed weights (spectral norms worked in) and every layer in its plain form."""
    twin = copy.deepcopy(model).cpu().eval().requires_grad_(False)
    _replace_inside(twin)
    return twin


def _replace_inside(layer: nn.Module) -> None:
    """Inner layers first, since outer ones take them over."""
    for name, child in layer.named_children():
        if isinstance(child, nn.Linear) and is_parametrized(child):
            setattr(layer, name, _fixed(child))
            continue
        _replace_inside(child)
        if type(child) in PLAIN:
            setattr(layer, name, PLAIN[type(child)](child))


def _fixed(layer: nn.Linear) -> nn.Linear:
    """The layer with its normalised weights. (torch's `remove_parametrizations` would also break the original.)"""
    fixed = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None, dtype=layer.weight.dtype)
    fixed.load_state_dict({"weight": layer.weight} | ({} if layer.bias is None else {"bias": layer.bias}))
    return fixed.eval().requires_grad_(False)


class PlainSm(nn.Module):
    """`Sm`: rounds of the iteration, or Chebyshev polynomials to the tolerance of `sm_exact`."""

    def __init__(self, layer: Sm):
        super().__init__()
        self.alpha = float(layer.logit.detach().sigmoid()) if layer.learned else layer.fixed
        self.steps, self.normalization, self.isolated = layer.steps, layer.normalization, layer.isolated
        self.learned = False
        if self.steps == "exact" and self.normalization == "rw":
            raise ConfigError("Sm with steps=exact and normalization=rw needs more steps the more degrees differ")

    def normalize(self, graph: Graph) -> Graph:
        return graph if graph.kind else graph.normalized(self.normalization, self.isolated)

    def forward(self, u: Tensor, graph: Graph) -> Tensor:
        return self.smooth(u, graph, self.alpha)

    def smooth(self, u: Tensor, graph: Graph, _alpha: Any = None) -> Tensor:
        graph = self.normalize(graph)
        if self.alpha == 0:
            return u
        return self._exact(u, graph) if self.steps == "exact" else self._iterated(u, graph, int(self.steps))

    def _iterated(self, u: Tensor, graph: Graph, steps: int) -> Tensor:
        g = u
        for _ in range(steps):
            g = self.alpha * graph.propagate(g) + (1 - self.alpha) * u
        return g

    def _exact(self, u: Tensor, graph: Graph) -> Tensor:
        """Σ' c_k T_k(P) u with c_k = 2 rᵏ/√(1+2γ); see `smmil.nn.exact`."""
        gamma = self.alpha / (1 - self.alpha)
        root = (1 + 2 * gamma) ** 0.5
        r = gamma / (1 + gamma + root)
        before, now = u, graph.propagate(u)
        total = (before + 2 * r * now) / root
        for k in range(2, chebyshev_degree(gamma, TOLERANCE, graph) + 1):
            before, now = now, 2 * graph.propagate(now) - before
            total = total + (2 * r**k / root) * now
        return total


class PlainPool(nn.Module):
    """`AttentionPool` and `SmAttentionPool` of a single bag."""

    def __init__(self, layer: AttentionPool):
        super().__init__()
        self.project, self.gate, self.score = layer.project, layer.gate, layer.score
        self.where = layer.where if isinstance(layer, SmAttentionPool) else None
        self.sm: Any = layer.sm if isinstance(layer, SmAttentionPool) else None

    def pool_embedded(self, x: Tensor, embed: nn.Linear, offsets: Any, graph: Graph | None = None):
        return self(embed(x).relu(), offsets, graph)

    def forward(self, h: Tensor, _offsets: Any, graph: Any = None) -> tuple[Tensor, Tensor]:
        graph = None if self.sm is None or graph is None else self.sm.normalize(graph)
        v = self._seen(self.project, h, graph).tanh()
        scores = self.score(v if self.gate is None else v * self._seen(self.gate, h, graph).sigmoid())
        if self.where == "late":
            scores = self.sm.smooth(scores, graph)
        weights = scores.softmax(0)
        if self.where == "early":  # the pool of Sm(h), by the transposed operator on the weights
            weights = self.sm.smooth(weights, graph.transposed())
        return weights.T @ h, scores

    def _seen(self, layer: nn.Linear, h: Tensor, graph: Graph | None) -> Tensor:
        """What a layer sees: early smooths before its bias is added, mid after; narrow rows travel in both."""
        if self.where == "early":
            v = self.sm.smooth(linear(h, layer.weight), graph)
            return v if layer.bias is None else v + layer.bias
        return self.sm.smooth(layer(h), graph) if self.where == "mid" else layer(h)


class PlainGENConv(nn.Module):
    """`GENConv` with one row per edge, which holds for messages of any spread."""

    def __init__(self, layer: GENConv):
        super().__init__()
        self.t, self.mlp = layer.t, layer.mlp

    def forward(self, x: Tensor, neighbours: Neighbours) -> Tensor:
        return self.mlp(x + self._heard(x.relu() + MESSAGE_SHIFT, *_entries(neighbours)))

    def _heard(self, m: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """Every channel of a row: mean of its neighbours' messages, weighed by softmax(t m); 0 without neighbours."""
        logits = self.t * m[columns]
        place = rows[:, None].expand(-1, m.shape[1])
        lowest = torch.full_like(m, torch.finfo(m.dtype).min)
        top = lowest.scatter_reduce(0, place, logits, "amax")
        e = (logits - top[rows]).exp()
        total = sum_by_row(rows, e, m.shape[0])
        return sum_by_row(rows, e * m[columns], m.shape[0]) / total.where(total > 0, 1)


class PlainGINConv(nn.Module):
    def __init__(self, layer: GINConv):
        super().__init__()
        self.first, self.second = layer.first, layer.second

    def forward(self, x: Tensor, neighbours: Neighbours) -> Tensor:
        rows, columns = _entries(neighbours)
        h = linear(x, self.first.weight)
        return self.second((h + sum_by_row(rows, h[columns], x.shape[0]) + self.first.bias).relu())


def _entries(neighbours: Neighbours) -> tuple[Tensor, Tensor]:
    """Row and column of every entry of neighbours that were read from a `TracedGraph`."""
    return neighbours.matrix.indptr.rows, neighbours.matrix.indices  # type: ignore[attr-defined]


PLAIN: dict[type[nn.Module], Any] = {
    Sm: PlainSm,
    AttentionPool: PlainPool,
    SmAttentionPool: PlainPool,
    GENConv: PlainGENConv,
    GINConv: PlainGINConv,
}

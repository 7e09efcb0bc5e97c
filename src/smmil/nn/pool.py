"""Attention pooling, plain, gated and smoothed: instances in, one vector per bag and one score per instance out."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm as with_spectral_norm

from smmil.errors import check_choice
from smmil.graph import Graph
from smmil.nn.blocks import RowBlocks, linear_in_blocks
from smmil.nn.kernels import fused_pool
from smmil.nn.parameters import compute_dtype
from smmil.nn.segment import segment_softmax, split_bags, weighted_sum
from smmil.nn.smooth import Sm
from smmil.sparse import without_autocast


def weighted_sums(h: Tensor, weights: Tensor, offsets: Tensor) -> Tensor:
    """For every bag and every column of weights (n, k), the sum of the rows of h (n, d) so weighted: (b, k, d)."""
    pairs = zip(split_bags(weights, offsets), split_bags(h, offsets), strict=True)
    return torch.stack([w.T @ rows for w, rows in pairs])


class GatedAttention(nn.Module):
    """Attention logits f = w·(tanh(W h + b) ⊙ σ(V h + c)) + a, one column per map (Ilse et al. 2018, with all biases).

    dropout  share of the hidden units set to 0 in training, separately behind the tanh and behind the sigmoid
    """

    def __init__(self, dim: int, att_dim: int, columns: int = 1, *, dropout: float = 0.0):
        super().__init__()
        self.project = nn.Linear(dim, att_dim)
        self.gate = nn.Linear(dim, att_dim)
        self.score = nn.Linear(att_dim, columns)
        self.drop = nn.Dropout(dropout)

    def forward(self, h: Tensor) -> Tensor:
        logits: Tensor = self.score(self.drop(self.project(h).tanh()) * self.drop(self.gate(h).sigmoid()))
        return logits


PLACES = ("early", "mid", "late")


class AttentionPool(nn.Module):
    """Average the instances of a bag with learned weights softmax(f), f = w·tanh(W h + b) (Ilse et al. 2018).

    gated          multiply by σ(V h + c) before w
    spectral_norm  divide W and w (and V) by their largest singular value
    Returns z (b, dim) and the scores f (n, 1), before the softmax: comparable across bags.
    """

    where: str | None = None

    def __init__(
        self, dim: int, att_dim: int = 100, *, gated: bool = False, bias: bool = True, spectral_norm: bool = False
    ):
        super().__init__()
        self.att_dim = att_dim
        self.project = nn.Linear(dim, att_dim, bias=bias)
        self.gate = nn.Linear(dim, att_dim, bias=bias) if gated else None
        self.score = nn.Linear(att_dim, 1, bias=False)
        if spectral_norm:
            _normalize_layers((self.project, self.gate, self.score))

    def forward(self, h: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        if fused_pool.is_applicable(self, h):
            return fused_pool.attend(self, h, offsets)
        v = self.project(h)
        gate = None if self.gate is None else self.gate(h)
        scores = self._score(v, gate)
        return weighted_sum(h, segment_softmax(scores, offsets), offsets), scores

    def _score(self, v: Tensor, gate: Tensor | None) -> Tensor:
        """f from what the projections give, in the precision of the weights also under autocast."""
        dtype = compute_dtype(self.score)
        with without_autocast(v):
            hidden = v.to(dtype).tanh()
            scores: Tensor = self.score(hidden if gate is None else hidden * gate.to(dtype).sigmoid())
        return scores


class SmAttentionPool(AttentionPool):
    """Attention pooling with Sm inside: neighbours get similar scores, so the map is smooth.

    early  scores from Sm(h), and Sm(h) is pooled     spectral norm on W and w
    mid    Sm on W h + b, before the tanh             spectral norm on w
    late   Sm on the scores                           no spectral norm
    Early never smooths h (n × dim): Sm(h) Wᵀ = Sm(h Wᵀ) and Sm(h)ᵀ s = hᵀ Smᵀ(s) need n × att_dim and n × 1.
    """

    def __init__(
        self,
        dim: int,
        att_dim: int = 100,
        *,
        where: str = "early",
        alpha: float | str = "learned",
        steps: int | str = 10,
        spectral_norm: bool = True,
        gated: bool = False,
        bias: bool = True,
        normalization: str = "sym",
        isolated: str = "keep",
    ):
        super().__init__(dim, att_dim, gated=gated, bias=bias)
        self.where = check_choice(where, PLACES, "where")
        self.sm = Sm(alpha, steps, normalization=normalization, isolated=isolated)
        after_sm = {"early": (self.project, self.gate, self.score), "mid": (self.score,), "late": ()}[where]
        if spectral_norm:
            _normalize_layers(after_sm)

    def forward(self, h: Tensor, offsets: Tensor, graph: Graph) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        if fused_pool.is_applicable(self, h):
            return fused_pool.attend(self, h, offsets, graph)
        graph = self.sm.normalize(graph)
        v = self._seen(self.project, h, graph)
        gate = None if self.gate is None else self._seen(self.gate, h, graph)
        scores = self._score(v, gate)
        if self.where == "late":
            scores = self.sm(scores, graph)
        weights = segment_softmax(scores, offsets)
        if self.where == "early":
            weights = self.sm(weights, graph.transposed())
        return weighted_sum(h, weights, offsets), scores

    def _seen(self, layer: nn.Module, h: Tensor, graph: Graph) -> Tensor:
        """What a projection gives, smoothed if this is the place; early is layer(Sm(h)), on narrow rows if linear."""
        seen: Tensor
        if self.where == "late":
            seen = layer(h)
        elif self.where == "early" and type(layer).forward is not nn.Linear.forward:
            seen = layer(self.sm(h, graph))
        else:
            v = layer(h)
            v = v.to(compute_dtype(layer)) if v.dtype in (torch.float16, torch.bfloat16) else v
            bias = layer.bias if self.where == "early" else None
            seen = self.sm(v, graph) if bias is None else self.sm(v - bias, graph) + bias
        return seen


def embed_and_pool(
    embed: nn.Module, pool: AttentionPool, x: Tensor, offsets: Tensor, graph: Graph | None = None
) -> tuple[Tensor, Tensor]:
    """pool(relu(embed(x)), offsets[, graph]); features in half precision are widened."""
    graphs = () if graph is None else (graph,)
    if type(pool) in (AttentionPool, SmAttentionPool) and fused_pool.is_applicable(pool, x, embed):
        return fused_pool.embed_and_attend(pool, embed, x, offsets, *graphs)  # type: ignore[arg-type]
    pooled: tuple[Tensor, Tensor] = pool(embed(x.to(compute_dtype(embed))).relu(), offsets, *graphs)
    return pooled


def pool_in_blocks(
    embed: nn.Module, pool: AttentionPool, blocks: RowBlocks, graph: Graph | None = None
) -> tuple[Tensor, Tensor]:
    """`embed_and_pool` of one bag without keeping its embedded rows."""

    def embedded(x: Tensor) -> Tensor:
        h: Tensor = embed(x).relu()
        return h

    scores = _scores_in_blocks(pool, embedded, blocks, graph)
    weights = scores.softmax(0)
    if isinstance(pool, SmAttentionPool) and pool.where == "early":
        assert graph is not None
        weights = pool.sm(weights, pool.sm.normalize(graph).transposed())
    return blocks.weighted_sums(embedded, weights), scores


def _scores_in_blocks(
    pool: AttentionPool, embedded: Callable[[Tensor], Tensor], blocks: RowBlocks, graph: Graph | None
) -> Tensor:
    """Scores (n, 1) of a pool; only Sm before the tanh needs the projections of all rows."""

    def score(v: Tensor, gate: Tensor | None) -> Tensor:
        return pool._score(v, gate)

    if not isinstance(pool, SmAttentionPool) or pool.where == "late":

        def of(x: Tensor) -> Tensor:
            h = embedded(x)
            return score(pool.project(h), None if pool.gate is None else pool.gate(h))

        scores = blocks.map(of)
        return pool.sm(scores, graph) if isinstance(pool, SmAttentionPool) and graph is not None else scores
    assert graph is not None
    layers = [pool.project] if pool.gate is None else [pool.project, pool.gate]
    seen = linear_in_blocks(layers, embedded, blocks, pool.sm, graph, before_bias=pool.where == "early")
    parts = zip(*(t.split(blocks.size) for t in seen), strict=True)
    return torch.cat([score(v, *gate) if gate else score(v, None) for v, *gate in parts])


def _normalize_layers(layers: Iterable[nn.Module | None]) -> None:
    for layer in layers:
        if layer is not None:
            with_spectral_norm(layer)

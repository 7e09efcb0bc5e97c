"""DeepGraphSurv (Li, Yao, Zhu, Li, Huang, MICCAI 2018, doi:10.1007/978-3-030-00934-2_20)."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from smmil.bag import BagBatch
from smmil.errors import ConfigError, check_choice
from smmil.graph import Graph
from smmil.models import Output
from smmil.nn.gnn import ChebConv, GINConv, Neighbours, chebyshev_terms
from smmil.nn.parameters import compute_dtype
from smmil.nn.pool import GatedAttention, weighted_sums
from smmil.nn.segment import segment_softmax
from smmil.nn.smooth_at import SmoothAt

_VARIANTS = ("cheb", "gin")


class DeepGraphSurv(nn.Module):
    """Filter the features over the graph of instances twice, once to describe and once to weigh them, then average.

    variant    cheb: Chebyshev graph convolutions, one for the representation and one for the attention; gin: the
               stand-in published with Patch-GCN under the name DeepGraphConv, three GIN layers, then gated attention
    dim        width of the representation; None: that of the features (cheb), 256 (gin)
    att_dim    width of the attention; None: 128 (cheb), as wide as `dim` (gin)
    K          terms of the filter (cheb): an instance sees K - 1 steps far; K = 1 sees no neighbours
    conv_bias  biases in the Chebyshev convolutions (cheb)
    isolated   instances without neighbours (cheb): keep, Laplacian 0 on its diagonal, terms x, -x, x, …; shrink, 1 on
               its diagonal as in PyTorch Geometric, terms x, 0, -x, 0, …
    dropout    on both attention gates (gin); None: 0.25
    sm         {where: early} smooths the features (the filters that read them are not normalised: they read neighbours
               themselves); {where: late} the attention logits; other options as in `SmoothAt`
    Scores are attention logits, before the softmax: comparable across bags. Sources: no official code is known and the
    article's graph joins similar features; here, as in the comparisons of the Sm paper, it is the bag's graph, the
    Laplacian is the symmetric one with largest eigenvalue 2, and the label a class unless training has another target.
    Edge weights count in cheb only.
    Memory O(K · n · in_dim) for cheb, O(n · dim) for gin.
    """

    score_kind = "attention logit"

    def __init__(
        self,
        in_dim: int,
        n_classes: int = 1,
        *,
        variant: str = "cheb",
        dim: int | None = None,
        att_dim: int | None = None,
        K: int = 5,
        conv_bias: bool = False,
        isolated: str = "keep",
        dropout: float | None = None,
        sm: Mapping[str, Any] | None = None,
    ):
        super().__init__()
        check_choice(isolated, ("keep", "shrink"), "isolated")
        self.net: nn.Module
        if check_choice(variant, _VARIANTS, "variant") == "cheb":
            _refuse(variant, dropout=dropout is not None)
            dim = in_dim if dim is None else dim
            self.net = _Chebyshev(in_dim, dim, 128 if att_dim is None else att_dim, K, conv_bias, isolated)
        else:
            _refuse(variant, K=K != 5, conv_bias=conv_bias, isolated=isolated != "keep")
            dim = 256 if dim is None else dim
            self.net = _Gin(in_dim, dim, dim if att_dim is None else att_dim, 0.25 if dropout is None else dropout)
        self.bag = nn.Identity() if variant == "cheb" else nn.Sequential(nn.Linear(dim, dim), nn.ReLU())
        self.head = nn.Linear(dim, n_classes)
        self.sm = SmoothAt(sm, {"early": (), "late": ()})

    def forward(self, batch: BagBatch) -> Output:
        x = self.sm("early", batch.x.to(compute_dtype(self)), batch)
        h, scores = self.net(x, batch.need("graph"))
        scores = self.sm("late", scores, batch)
        z = weighted_sums(h, segment_softmax(scores, batch.offsets), batch.offsets)[:, 0]
        return Output(self.head(self.bag(z)), scores)


def _refuse(variant: str, **given: bool) -> None:
    """Options of the other variant are an error, not something to pass over."""
    for option in (name for name, changed in given.items() if changed):
        raise ConfigError(f"{option!r} has no meaning with variant={variant!r}; leave it out")


class _Chebyshev(nn.Module):
    def __init__(self, in_dim: int, dim: int, att_dim: int, order: int, bias: bool, isolated: str):
        super().__init__()
        self.order, self.isolated = order, isolated
        self.represent = ChebConv(in_dim, dim, order, bias=bias)
        self.attend = ChebConv(in_dim, att_dim, order, bias=bias)
        self.score = nn.Linear(att_dim, 1)

    def forward(self, x: Tensor, graph: Graph) -> tuple[Tensor, Tensor]:
        terms = chebyshev_terms(x, graph.normalized("sym", self.isolated), self.order)
        return self.represent(terms).relu(), self.score(self.attend(terms).relu())


class _Gin(nn.Module):
    def __init__(self, in_dim: int, dim: int, att_dim: int, dropout: float):
        super().__init__()
        self.convs = nn.ModuleList(GINConv(width, dim) for width in (in_dim, dim, dim))
        self.attention = GatedAttention(dim, att_dim, dropout=dropout)

    def forward(self, x: Tensor, graph: Graph) -> tuple[Tensor, Tensor]:
        neighbours = Neighbours.of(graph)
        for conv in self.convs:
            x = conv(x, neighbours).relu()
        return x, self.attention(x)

"""SmGCN: residual graph messages that travel by the smooth operator, where PatchGCN has graph convolutions."""

import torch
from torch import Tensor, nn

from smmil.bag import BagBatch
from smmil.errors import check_choice
from smmil.graph import Graph
from smmil.models import Output
from smmil.nn.blocks import RowBlocks
from smmil.nn.parameters import compute_dtype
from smmil.nn.pool import PLACES, AttentionPool, SmAttentionPool
from smmil.nn.smooth import Sm


class _Message(nn.Module):
    """x + relu(W Sm(x) + b): what is added to a row comes from its surroundings, as far as α reaches."""

    def __init__(self, dim: int, sm: Sm, *, norm: bool):
        super().__init__()
        self.norm = nn.LayerNorm(dim) if norm else nn.Identity()
        self.sm = sm
        self.linear = nn.Linear(dim, dim)

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        heard: Tensor = self.linear(self.sm(self.norm(x), graph)).relu()
        return x + heard


class SmGCN(nn.Module):
    """Rounds of smooth messages between neighbouring patches, all views concatenated, pooled by smooth attention.

    A round adds relu(W Sm(x) + b) to every row: a graph convolution whose reach is α, one number, instead of the number
    of layers. The views before and after each round are weighed and pooled together as in `sm_ap`.

    layers         rounds of messages, each with an α of its own
    alpha, steps   of every Sm: strength in [0, 1) or "learned" (starts at 0.5); rounds of smoothing, or "exact"
    where          Sm in the pool: early, mid or late as in `sm_ap` with its spectral norm, or none: plain attention
    dense          True: all views are concatenated; False: the last one alone
    norm           LayerNorm before every message
    dropout        behind the embedding
    gated, normalization, isolated   as in `sm_ap`
    Scores are attention logits. Memory O(n · (layers + 1) · dim); nothing is kept per edge.
    """

    score_kind = "attention logit"

    def __init__(
        self,
        in_dim: int,
        n_classes: int = 1,
        *,
        dim: int = 128,
        att_dim: int = 100,
        layers: int = 1,
        alpha: float | str = "learned",
        steps: int | str = 10,
        where: str = "early",
        dense: bool = True,
        norm: bool = False,
        dropout: float = 0.0,
        gated: bool = False,
        normalization: str = "sym",
        isolated: str = "keep",
    ):
        super().__init__()
        check_choice(where, (*PLACES, "none"), "where")

        def smooth() -> Sm:
            return Sm(alpha, steps, normalization=normalization, isolated=isolated)

        self.dense, self.smooth_pool = dense, where != "none"
        self.embed = nn.Linear(in_dim, dim)
        self.drop = nn.Dropout(dropout)
        self.messages = nn.ModuleList(_Message(dim, smooth(), norm=norm) for _ in range(layers))
        width = (layers + 1) * dim if dense else dim
        of_sm = {"alpha": alpha, "steps": steps, "normalization": normalization, "isolated": isolated}
        self.pool: AttentionPool = (
            SmAttentionPool(width, att_dim, where=where, gated=gated, **of_sm)  # type: ignore[arg-type]
            if self.smooth_pool
            else AttentionPool(width, att_dim, gated=gated)
        )
        self.head = nn.Linear(width, n_classes)

    def forward(self, batch: BagBatch) -> Output:
        return self._of_embedded(self.drop(self.embed(batch.x.to(compute_dtype(self))).relu()), batch)

    def in_blocks(self, blocks: RowBlocks, batch: BagBatch) -> Output:
        """Only features are read in blocks: views are as narrow as `dim`, and messages need all rows."""
        return self._of_embedded(blocks.map(lambda x: self.embed(x).relu()), batch)

    def _of_embedded(self, h: Tensor, batch: BagBatch) -> Output:
        graph = batch.need("graph")
        views = [h]
        for message in self.messages:
            views.append(message(views[-1], graph))
        h = torch.cat(views, 1) if self.dense else views[-1]
        z, scores = self.pool(h, batch.offsets, graph) if self.smooth_pool else self.pool(h, batch.offsets)
        return Output(self.head(z), scores)

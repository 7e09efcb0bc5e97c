"""Patch-GCN (Chen, Lu, Shaban, Chen, Chen, Williamson, Mahmood, MICCAI 2021, arXiv:2107.13048)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from smmil.bag import BagBatch
from smmil.errors import ConfigError
from smmil.models import Output
from smmil.nn.gnn import GENConv, Neighbours, nearest
from smmil.nn.parameters import compute_dtype
from smmil.nn.pool import GatedAttention, weighted_sums
from smmil.nn.segment import segment_softmax
from smmil.nn.smooth_at import SmoothAt


class PatchGCN(nn.Module):
    """Three graph convolutions over the patches, their outputs concatenated, pooled by gated attention.

    After j convolutions a row depends on tissue j patches away; all four views (before, and after each convolution)
    are concatenated. Scores are attention logits, before the softmax: comparable across bags. The scores of
    neighbouring patches resemble each other because their views overlap, not because anything smooths them.

    layers        graph convolutions (3; the authors' own option calls this 4)
    knn           None: the bag's graph, both ways. A number (8 in the article): the nearest by coordinates, one way as
                  published: a patch receives from those that count it among their nearest; searched at every call
    conv_bias     True: biases inside the graph convolutions, as when the article was written; False: as PyTorch
                  Geometric builds the same layer since 2.2
    dropout       behind the embedding, behind the joint layer and on both attention gates
    conv_dropout  behind the residual layers; PyTorch Geometric before 1.7 applied none there (0)
    sm            {where: early} smooths the joint views, which are weighed and pooled; {where: late} the attention
                  logits; other options as in `SmoothAt`
    Edge weights are not used (Sm uses them). Memory O(n · (layers + 1) · dim), also in training: nothing is
    kept per edge.
    """

    score_kind = "attention logit"

    def __init__(
        self,
        in_dim: int,
        n_classes: int = 1,
        *,
        dim: int = 128,
        layers: int = 3,
        knn: int | None = None,
        conv_bias: bool = True,
        dropout: float = 0.25,
        conv_dropout: float = 0.1,
        sm: Mapping[str, Any] | None = None,
    ):
        super().__init__()
        if layers < 1 or (knn is not None and knn < 1):
            raise ConfigError(f"layers and knn must be at least 1, got layers={layers}, knn={knn}")
        self.knn = knn
        joint = (layers + 1) * dim
        self.embed = nn.Sequential(nn.Linear(in_dim, dim), nn.ReLU(), nn.Dropout(dropout))
        self.convs = nn.ModuleList(GENConv(dim, bias=conv_bias) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(layers - 1))
        self.conv_drop = nn.Dropout(conv_dropout)
        self.joint = nn.Sequential(nn.Linear(joint, joint), nn.ReLU(), nn.Dropout(dropout))
        self.attention = GatedAttention(joint, joint, dropout=dropout)
        self.bag = nn.Sequential(nn.Linear(joint, joint), nn.ReLU())
        self.head = nn.Linear(joint, n_classes)
        self.sm = SmoothAt(sm, {"early": (self.attention.project, self.attention.gate), "late": ()})

    def forward(self, batch: BagBatch) -> Output:
        x = self.embed(batch.x.to(compute_dtype(self)))
        h = self.sm("early", self.joint(torch.cat(self._views(x, self._neighbours(batch)), 1)), batch)
        scores = self.sm("late", self.attention(h), batch)
        z = weighted_sums(h, segment_softmax(scores, batch.offsets), batch.offsets)
        return Output(self.head(self.bag(z[:, 0])), scores)

    def _neighbours(self, batch: BagBatch) -> Neighbours:
        if self.knn is None:
            return Neighbours.of(batch.need("graph"))
        return nearest(batch.need("coords"), batch.offsets, self.knn)

    def _views(self, x: Tensor, neighbours: Neighbours) -> list[Tensor]:
        """x itself, the bare first convolution of it, then the residual ones."""
        views = [x, self.convs[0](x, neighbours)]
        for conv, norm in zip(self.convs[1:], self.norms, strict=True):
            views.append(self.conv_drop(views[-1] + norm(conv(views[-1], neighbours)).relu()))
        return views

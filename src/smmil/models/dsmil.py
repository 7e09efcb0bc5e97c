"""DSMIL (Li, Li, Eliceiri, 2021, arXiv:2011.08939)."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from smmil.bag import BagBatch
from smmil.errors import ConfigError, check_choice
from smmil.models import Output, need_labels, own_target
from smmil.nn.blocks import RowBlocks, layers_in_blocks
from smmil.nn.parameters import compute_dtype
from smmil.nn.pool import weighted_sums
from smmil.nn.segment import segment_argmax, segment_softmax, split_bags
from smmil.nn.smooth_at import SmoothAt

_SCORES = {"similarity": "similarity to the critical instance", "instance": "instance logit"}


class DSMIL(nn.Module):
    """Attention by similarity to the highest scoring instance of each class, and a classifier of the weighted sum.

    Two streams read the features directly. The first classifies every instance; its highest logit per class marks the
    critical instance. The second pools the bag with softmax(q·q_critical / √query_dim) and classifies it, all classes
    together.

    score      similarity (before the softmax) or instance (logits of the first stream); one map per class
    average    in use, the bag's logits are the mean of both streams (article) or the second alone (False: released
               program). In training they are the second stream's, since each stream has a loss of its own
    nonlinear  queries from two layers with ReLU and tanh, or from one linear layer
    passing_v  pool ReLU(linear(x)) instead of x; dropout_v, which needs it, is dropout on the features before it
    sm         SmDSMIL: {where: early} smooths the features before both streams; {where: late} the instance logits;
               other options as in `SmoothAt`

    The total loss is half the bag loss (second stream) and half the same criterion on the highest instance logits.
    Similarity is to the critical instance, which in a negative bag is a normal one: the top of its map is no lesion.
    Weights start orthogonal, biases at 0. Time and memory grow with n.
    """

    score_kind = _SCORES["similarity"]
    bag_weight = 0.5

    def __init__(
        self,
        in_dim: int,
        n_classes: int = 1,
        *,
        score: str = "similarity",
        average: bool = True,
        nonlinear: bool = True,
        passing_v: bool = False,
        dropout_v: float = 0.0,
        query_dim: int = 128,
        sm: Mapping[str, Any] | None = None,
    ):
        super().__init__()
        self.score = check_choice(score, _SCORES, "score")
        self.score_kind = _SCORES[score]
        self.average, self.n_classes = average, n_classes
        if dropout_v and not passing_v:
            raise ConfigError(f"dropout_v={dropout_v} acts on what passing_v reads; set passing_v too, or leave it out")
        self.instance = nn.Linear(in_dim, n_classes)
        self.query = _query(in_dim, query_dim, nonlinear)
        self.value = _value(in_dim, dropout_v) if passing_v else nn.Identity()
        self.head = nn.Linear(n_classes * in_dim, n_classes)
        self.apply(_start_orthogonal)
        self.sm = SmoothAt(sm, {"early": _readers(self.instance, self.query, self.value), "late": ()})

    def forward(self, batch: BagBatch) -> Output:
        dtype = compute_dtype(self)
        x = self.sm("early", batch.x.to(dtype), batch)
        found = self.sm("late", self.instance(x).to(dtype), batch)
        critical = segment_argmax(found, batch.offsets)
        top = found.gather(0, critical)
        similarity = _similarity(self.query(x), critical, batch).to(dtype)
        z = weighted_sums(self.value(x), segment_softmax(similarity, batch.offsets), batch.offsets)
        logits = self.head(z.flatten(1))
        if self.training:
            scores = similarity if self.score == "similarity" else found
            return Output(logits, scores, {"max": (1 - self.bag_weight) * self._missed(top, batch)})
        return self._in_use(logits, top, similarity, found)

    def _in_use(self, logits: Tensor, top: Tensor, similarity: Tensor, found: Tensor) -> Output:
        scores = similarity if self.score == "similarity" else found
        return Output((logits + top) / 2 if self.average else logits, scores)

    def in_blocks(self, blocks: RowBlocks, batch: BagBatch) -> Output:
        if self.sm.where == "early" and not isinstance(self.value, nn.Identity):
            raise ConfigError("dsmil with passing_v reads smoothed features behind a ReLU, which takes whole bags")
        first, *rest = self.query if isinstance(self.query, nn.Sequential) else [self.query]
        logits, q = layers_in_blocks(self.sm, [self.instance, first], lambda x: x, blocks, batch)
        found = self.sm("late", logits.contiguous(), batch)
        query = torch.cat([nn.Sequential(*rest)(part) for part in q.split(blocks.size)])
        critical = segment_argmax(found, batch.offsets)
        similarity = _similarity(query, critical, batch)
        weights = self.sm.across("early", similarity.softmax(0), batch)
        z = blocks.weighted_sums(self.value, weights)
        return self._in_use(self.head(z.flatten()[None]), found.gather(0, critical), similarity, found)

    def _missed(self, top: Tensor, batch: BagBatch) -> Tensor:
        """The bag loss of the highest instance logits."""
        if (target := own_target(self)) is not None:
            return target.loss(top, target.known(batch))
        return _bag_criterion(top, need_labels(batch, self.n_classes))


def _similarity(q: Tensor, critical: Tensor, batch: BagBatch) -> Tensor:
    """q_n · q_m / √d for every instance n and the critical instance m of each class in its bag: (n, classes)."""
    pairs = zip(split_bags(q, batch.offsets), q[critical], strict=True)
    return torch.cat([rows @ chosen.T for rows, chosen in pairs]) / math.sqrt(q.shape[1])


def _bag_criterion(logits: Tensor, y: Tensor) -> Tensor:
    """The bag loss of training, without class weights: binary for one logit, softmax cross-entropy for several."""
    if logits.shape[1] == 1:
        return binary_cross_entropy_with_logits(logits[:, 0], y.to(logits.dtype))
    chosen = y[:, None] == torch.arange(logits.shape[1], device=y.device)
    return -(logits.log_softmax(1) * chosen).sum(1).mean()


def _query(in_dim: int, dim: int, nonlinear: bool) -> nn.Module:
    if not nonlinear:
        return nn.Linear(in_dim, dim)
    return nn.Sequential(nn.Linear(in_dim, dim), nn.ReLU(), nn.Linear(dim, dim), nn.Tanh())


def _value(in_dim: int, dropout: float) -> nn.Module:
    return nn.Sequential(nn.Dropout(dropout), nn.Linear(in_dim, in_dim), nn.ReLU())


def _readers(*modules: nn.Module) -> list[nn.Module]:
    """The first linear layer of each, where there is one."""
    return [layers[0] for m in modules if (layers := [k for k in m.modules() if isinstance(k, nn.Linear)])]


def _start_orthogonal(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.orthogonal_(module.weight)
        nn.init.zeros_(module.bias)

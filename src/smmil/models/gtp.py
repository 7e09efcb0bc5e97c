"""GTP, graph-transformer (Zheng, Gindra, Green, Burks, Betke, Beane, Kolachalama, TMI 2022, arXiv:2205.09671)."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, normalize

from smmil.bag import BagBatch
from smmil.errors import ConfigError, DataError, check_choice
from smmil.graph import Graph
from smmil.models import Output
from smmil.nn.graphcam import CAM_STARTS, TokenTransformer, TransformerTrace, graph_cam
from smmil.nn.parameters import compute_dtype, linear_bias
from smmil.nn.pool import weighted_sums
from smmil.nn.segment import segment_sum, split_bags
from smmil.nn.smooth_at import SmoothAt

_SCORES = {"graphcam": "GraphCAM", "attention": "class token attention"}


class GTP(nn.Module):
    """One graph convolution over the patches, a sum into 100 soft clusters, and a transformer over the clusters.

    A linear map of a patch plus its neighbours, each row scaled to length 1, batch-normalised; softmax assigns every
    patch to clusters; a class token and the clusters pass three transformer blocks; the token gives the logits. Two
    losses teach the clusters in training: cut (neighbours share clusters) and orthogonality (clusters differ in
    content and not in size), both with weight 1.

    Scores are GraphCAM as published, one map per class, without its scaling for display: relevance × gradient of the
    attention maps is how much each cluster supports the class, and a patch gets the mean over its clusters. They
    are never negative, and need a backward pass through the blocks (100 tokens, whatever n), also under `no_grad`.
    With one logit the map is that of class 1, whose logit o it is. Relevance and gradient both start from o: the map
    grows with o², and a bag that is surely negative gets high scores too. Rank inside bags, or choose another start.

    score      graphcam, or attention: what the class token takes from a patch's clusters in the last block; one column
    cam_start  logit (published); probability: maps fade as the class becomes improbable; one: no factor at all
    train_cam  False: in training the scores are `attention`, which is free and can be penalised; True: GraphCAM there
               too, without gradient. Both are for score=graphcam alone
    relu       behind the graph convolution, as the article writes it; the released program has none
    clusters, dim, layers, heads   of the transformer; its MLPs are 2 · dim wide
    sm         {where: early} smooths the patches before they are assigned; other options as in `SmoothAt`

    Edge weights count (1 on a lattice). Batch norm takes the patches of all bags of a batch together, so bags of a
    batch influence each other in training; a batch of one patch is normalised with the running statistics, and leaves
    them as they are. Time and memory grow with n · (in_dim + clusters).
    """

    score_kind = _SCORES["graphcam"]
    head_name = "transformer.head"
    quick_score = "attention"  # for callers that want the logits alone

    def __init__(
        self,
        in_dim: int,
        n_classes: int = 1,
        *,
        dim: int = 64,
        clusters: int = 100,
        layers: int = 3,
        heads: int = 8,
        relu: bool = False,
        score: str = "graphcam",
        cam_start: str = "logit",
        train_cam: bool = False,
        sm: Mapping[str, Any] | None = None,
    ):
        super().__init__()
        if dim % heads:
            raise ConfigError(f"dim={dim} must be a multiple of heads={heads}")
        self.score = check_choice(score, _SCORES, "score")
        self.score_kind = _SCORES[score]
        self.cam_start = check_choice(cam_start, CAM_STARTS, "cam_start")
        self.train_cam, self.relu = train_cam, relu
        if score == "attention" and (cam_start != "logit" or train_cam):
            idle = "train_cam" if train_cam else f"cam_start={cam_start}"
            raise ConfigError(f"{idle} has no effect with score=attention; leave it out, or choose score=graphcam")
        self.embed = nn.Linear(in_dim, dim)
        nn.init.xavier_normal_(self.embed.weight)
        nn.init.zeros_(self.embed.bias)
        self.norm = _BatchNorm(dim)
        self.assign = nn.Linear(dim, clusters)
        self.token = nn.Parameter(torch.zeros(1, 1, dim))
        self.transformer = TokenTransformer(dim, n_classes, layers=layers, heads=heads, hidden=2 * dim)
        self.sm = SmoothAt(sm, {"early": (self.assign,)})

    def forward(self, batch: BagBatch) -> Output:
        graph = _require_unweighted_graph(batch)
        dtype = compute_dtype(self)
        h = self.sm("early", self._patches(batch.x.to(dtype), graph).to(dtype), batch)
        with torch.autocast(h.device.type, enabled=False):  # sums over thousands of patches need all digits
            return self._clustered(h, graph, batch)

    def _clustered(self, h: Tensor, graph: Graph, batch: BagBatch) -> Output:
        assign = self.assign(h).softmax(1)
        clusters = weighted_sums(h, assign, batch.offsets)
        tokens = torch.cat([self.token.to(clusters.dtype).expand(len(batch), -1, -1), clusters], 1)
        seen = self.transformer(tokens)
        scores = self._scores(assign, tokens, seen, batch)
        if not self.training:
            return Output(seen.logits, scores)
        cut, orthogonality = _cut_loss(assign, graph, batch.offsets), _orthogonality_loss(assign, batch.offsets)
        return Output(seen.logits, scores, {"cut": cut, "orthogonality": orthogonality})

    def _patches(self, x: Tensor, graph: Graph) -> Tensor:
        """(A x + x) Θ + b with Θ first, which narrows the rows before they are summed; length 1; batch-normalised."""
        y: Tensor = self.embed(x)
        y = self.norm(normalize(y + graph.propagate(y - linear_bias(self.embed))))
        return y.relu() if self.relu else y

    def _scores(self, assign: Tensor, tokens: Tensor, seen: TransformerTrace, batch: BagBatch) -> Tensor:
        if self.score == "attention" or (self.training and not self.train_cam):
            taken = seen.blocks[-1].attention[:, :, 0, 1:].mean(1)
            return _of_instances(assign, taken[:, :, None], batch)
        return _of_instances(assign.detach(), graph_cam(self.transformer, tokens, self.cam_start), batch)


class _BatchNorm(nn.BatchNorm1d):
    """Batch norm that normalises a single row, which has no spread to divide by, with the running statistics."""

    def forward(self, y: Tensor) -> Tensor:
        if self.training and len(y) == 1:
            return batch_norm(y, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(y)


def _of_instances(assign: Tensor, clusters: Tensor, batch: BagBatch) -> Tensor:
    """Values of clusters (b, clusters, k) as values of instances (n, k): the mean over each one's clusters."""
    pairs = zip(split_bags(assign, batch.offsets), clusters.to(assign.dtype), strict=True)
    return torch.cat([rows @ values for rows, values in pairs])


def _require_unweighted_graph(batch: BagBatch) -> Graph:
    graph: Graph = batch.need("graph")
    if graph.kind is not None:
        raise DataError(
            f"{batch.ids[0]}: the graph is normalised as {graph.kind!r}; gtp needs the graph as built, "
            "without normalisation"
        )
    return graph


def _cut_loss(assign: Tensor, graph: Graph, offsets: Tensor) -> Tensor:
    """Min-cut pooling loss (Bianchi, Grattarola, Alippi, 2020, arXiv:1907.00481), a mean over the bags.

    -tr(SᵀAS) / tr(SᵀDS), in [-1, 0]: -1 when no edge is cut. A bag without edges has nothing to cut and counts 0.
    Rows of S = assign (n, k) say to which of k clusters each instance belongs, and sum to 1; A is the graph as built
    and D holds its degrees. Both traces are sums over instances: no matrix of instances by instances is built.
    """
    kept = segment_sum((assign * graph.propagate(assign)).sum(1), offsets)
    degrees = graph.degrees.to(assign.dtype)
    total = segment_sum(degrees * assign.square().sum(1), offsets)
    return -(kept / total.masked_fill(total == 0, 1)).mean()


def _orthogonality_loss(assign: Tensor, offsets: Tensor) -> Tensor:
    """‖SᵀS/‖SᵀS‖ - I/√k‖ (Frobenius), in [0, √2]: 0 when clusters share no instance and are equally large.

    With more clusters than instances 0 cannot be reached.
    """
    overlap = weighted_sums(assign, assign, offsets)
    overlap = overlap / torch.linalg.matrix_norm(overlap)[:, None, None]
    ideal = torch.eye(assign.shape[1], dtype=overlap.dtype, device=overlap.device) / math.sqrt(assign.shape[1])
    loss: Tensor = torch.linalg.matrix_norm(overlap - ideal).mean()
    return loss

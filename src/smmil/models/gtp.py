"""GTP, graph-transformer (Zheng, Gindra, Green, Burks, Betke, Beane, Kolachalama, TMI 2022, arXiv:2205.09671)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, linear, normalize

from smmil.bag import BagBatch
from smmil.errors import ConfigError, DataError, check_choice
from smmil.graph import Graph
from smmil.models import Output
from smmil.nn.attention import weighted_sums
from smmil.nn.graphcam import STARTS, graph_cam
from smmil.nn.mincut import cut_loss, orthogonality_loss
from smmil.nn.smooth_at import SmoothAt
from smmil.nn.token_transformer import TokenTransformer, Trace

SCORES = {"graphcam": "GraphCAM", "attention": "class token attention"}


class GTP(nn.Module):
    """Let each patch hear its neighbours once, sum the patches into 100 soft clusters, and let the clusters confer.

    A linear map of a patch plus its neighbours, each row scaled to length 1, batch-normalised; softmax assigns every
    patch to clusters; a class token and the clusters pass three transformer blocks; the token gives the logits. Two
    losses teach the clusters in training: cut (neighbours share clusters) and orthogonality (clusters differ in
    content and not in size), both with weight 1.

    Scores are GraphCAM as published, one map per class, without its scaling for display: relevance × gradient of the
    attention maps tells how much each cluster speaks for the class, and a patch gets the mean over its clusters. They
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
    batch influence each other in training; one lonely patch is normalised with the running statistics, which it leaves
    as they are. Time and memory grow with n · (in_dim + clusters).
    """

    score_kind = SCORES["graphcam"]

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
        self.score = check_choice(score, SCORES, "score")
        self.score_kind = SCORES[score]
        self.cam_start = check_choice(cam_start, STARTS, "cam_start")
        self.train_cam, self.relu = train_cam, relu
        if score == "attention" and (cam_start != "logit" or train_cam):
            idle = "train_cam" if train_cam else f"cam_start={cam_start}"
            raise ConfigError(f"{idle} has no effect with score=attention; leave it out, or choose score=graphcam")
        self.embed = nn.Linear(in_dim, dim)
        nn.init.xavier_normal_(self.embed.weight)
        nn.init.zeros_(self.embed.bias)
        self.norm = nn.BatchNorm1d(dim)
        self.assign = nn.Linear(dim, clusters)
        self.token = nn.Parameter(torch.zeros(1, 1, dim))
        self.transformer = TokenTransformer(dim, n_classes, layers=layers, heads=heads, hidden=2 * dim)
        self.sm = SmoothAt(sm, {"early": (self.assign,)})

    def forward(self, batch: BagBatch) -> Output:
        graph = _as_built(batch)
        dtype = self.embed.weight.dtype
        h = self.sm("early", self._patches(batch.x.to(dtype), graph).to(dtype), batch)
        with torch.autocast(h.device.type, enabled=False):  # sums over thousands of patches need all digits
            return self._clustered(h, graph, batch)

    def _clustered(self, h: Tensor, graph: Graph, batch: BagBatch) -> Output:
        assign = self.assign(h).softmax(1)
        clusters = weighted_sums(h, assign, batch.offsets)
        tokens = torch.cat([self.token.to(clusters.dtype).expand(len(batch), -1, -1), clusters], 1)
        seen = self.transformer.trace(tokens)
        scores = self._scores(assign, tokens, seen, batch)
        if not self.training:
            return Output(seen.logits, scores)
        cut, orthogonality = cut_loss(assign, graph, batch.offsets), orthogonality_loss(assign, batch.offsets)
        return Output(seen.logits, scores, {"cut": cut, "orthogonality": orthogonality})

    def _patches(self, x: Tensor, graph: Graph) -> Tensor:
        """(A x + x) Θ + b with Θ first, which makes the rows narrow before they travel; length 1; batch-normalised."""
        y = linear(x, self.embed.weight)
        y = self._batch_norm(normalize(y + graph.propagate(y) + self.embed.bias))
        return y.relu() if self.relu else y

    def _batch_norm(self, y: Tensor) -> Tensor:
        norm = self.norm
        if self.training and len(y) == 1:  # one row has no spread to divide by
            return batch_norm(y, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)
        return norm(y)

    def _scores(self, assign: Tensor, tokens: Tensor, seen: Trace, batch: BagBatch) -> Tensor:
        if self.score == "attention" or (self.training and not self.train_cam):
            taken = seen.blocks[-1].attention[:, :, 0, 1:].mean(1)
            return _of_instances(assign, taken[:, :, None], batch)
        return _of_instances(assign.detach(), graph_cam(self.transformer, tokens, self.cam_start), batch)


def _of_instances(assign: Tensor, clusters: Tensor, batch: BagBatch) -> Tensor:
    """Values of clusters (b, clusters, k) as values of instances (n, k): the mean over each one's clusters."""
    pairs = zip(batch.split(assign), clusters.to(assign.dtype), strict=True)
    return torch.cat([rows @ values for rows, values in pairs])


def _as_built(batch: BagBatch) -> Graph:
    graph = batch.need("graph")
    if graph.kind is not None:
        raise DataError(
            f"{batch.ids[0]}: the graph is normalised as {graph.kind!r}; gtp needs the graph as built, "
            "without normalisation"
        )
    return graph

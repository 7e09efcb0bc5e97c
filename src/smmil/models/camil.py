"""CAMIL (Fourkioti, De Vries, Bakal, ICLR 2024, arXiv:2305.05314)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from smmil.bag import BagBatch
from smmil.errors import ConfigError, DataError, check_choice
from smmil.graph import Graph
from smmil.models import Output
from smmil.nn.gnn import Neighbours, nearest
from smmil.nn.nystrom import NystromAttention
from smmil.nn.parameters import compute_dtype
from smmil.nn.pool import weighted_sums
from smmil.nn.segment import segment_softmax, segment_sum
from smmil.nn.smooth_at import SmoothAt

_FORMS = ("article", "released")
_SCORES = ("t", "m")
_CONVS = ("sequence", "heads")
_PAIR_ENTRIES = 2**22
_REFERENCES = 15


class CAMIL(nn.Module):
    """Nyström attention over the bag, weights by agreement with neighbours, a gated blend of both, attention pooling.

    Global view t: attention through landmarks over the whole bag. Local view l: the instance's own value, times the
    share of the bag's attention that its agreement with its neighbours earns it. The blend m of both, gated by l
    itself, is averaged by gated attention and classified.

    form        article: LayerNorm before the attention, values from t, gate σ(l), and the pool is weighed by t;
                released: the authors' program, no LayerNorm, values from the features, gate σ(-l)², the sum doubled,
                and the pool is weighed by m
    score       t or m: what the attention network reads for the map; None: what the pool is weighed by (article t,
                released m). The other reading uses a network trained on the first.
    knn         None: the bag's graph with its weights, and itself as much as the heaviest neighbour. A number (7 in the
                released program): the nearest by coordinates, weighted by similarity of features as released, and
                itself; searched at every call
    self_loops  False: an instance is no neighbour of its own
    conv        of the values in the attention: sequence, as Nyström attention is meant; heads, as the released program
                has it by a slip of layout; None: sequence for the article, heads for released
    dim, heads  width of the views, over all heads; features of another width are projected first (linear, ReLU)
    landmarks   segments whose means stand for the sequence; iterations of the pseudo-inverse between them
    sm          {where: early} smooths the embedded instances before attention (in the article's form a LayerNorm reads
                them next, so there is no layer to normalise spectrally); {where: late} the attention logits; other
                options as in `SmoothAt`

    Scores are attention logits, before the softmax: comparable across bags. Read from t they know nothing of the
    neighbours, read from m they do; but the share is about 1/n, so in large bags l fades and m is t up to a factor (a
    half in the article's form, one and a half in the released). One column, whatever the number of classes.
    The result depends on the order of the instances, by the segments of landmarks and the convolution of the values.
    Bags are processed one by one in the attention. Time grows with n · landmarks, memory with n; neighbours cost one
    sparse product with n × 256 numbers.
    """

    score_kind = "attention logit"

    def __init__(
        self,
        in_dim: int,
        n_classes: int = 1,
        *,
        form: str = "article",
        score: str | None = None,
        knn: int | None = None,
        self_loops: bool = True,
        conv: str | None = None,
        dim: int = 512,
        heads: int = 8,
        context_dim: int = 256,
        att_dim: int = 128,
        landmarks: int = 256,
        iterations: int = 6,
        sm: Mapping[str, Any] | None = None,
    ):
        super().__init__()
        self.released = check_choice(form, _FORMS, "form") == "released"
        self.pool_by = "m" if self.released else "t"
        self.score_by = self.pool_by if score is None else check_choice(score, _SCORES, "score")
        self.knn, self.self_loops = _check_knn(knn), self_loops
        conv = check_choice(conv or ("heads" if self.released else "sequence"), _CONVS, "conv")
        if dim % heads:
            raise ConfigError(f"dim={dim} must be a multiple of heads={heads}")
        attention = NystromAttention if conv == "sequence" else _HeadMixingAttention
        self.embed = nn.Identity() if in_dim == dim else nn.Sequential(nn.Linear(in_dim, dim), nn.ReLU())
        self.norm = nn.Identity() if self.released else nn.LayerNorm(dim)
        self.attention = attention(dim, heads=heads, head_dim=dim // heads, landmarks=landmarks, iterations=iterations)
        self.query = nn.Linear(dim, context_dim, bias=False)
        self.key = nn.Linear(dim, context_dim, bias=False)
        self.value = nn.Linear(dim, dim)
        self.project = nn.Linear(dim, att_dim, bias=False)
        self.gate = nn.Linear(dim, att_dim, bias=False)
        self.score = nn.Linear(att_dim, 1, bias=False)
        self.head = nn.Linear(dim, n_classes)
        self.apply(_glorot)
        self.sm = SmoothAt(sm, {"early": (self.attention.qkv, self.value) if self.released else (), "late": ()})

    def forward(self, batch: BagBatch) -> Output:
        h = self.sm("early", self.embed(batch.x.to(compute_dtype(self))), batch)
        t = h + self.attention(self.norm(h), batch.offsets)
        share = segment_softmax(_context_logits(self.query(t), self.key(t), self._context(batch)), batch.offsets)
        m = _blend(share * self.value(h if self.released else t), t, self.released)
        views = {"t": t, "m": m}
        weigh = self.sm("late", self._attend(views[self.pool_by]), batch)
        z = weighted_sums(m, segment_softmax(weigh, batch.offsets), batch.offsets)[:, 0]
        if self.score_by == self.pool_by:
            return Output(self.head(z), weigh)
        return Output(self.head(z), self.sm("late", self._attend(views[self.score_by]), batch))

    def _context(self, batch: BagBatch) -> "_Context":
        if self.knn is None:
            context = _graph_context(batch.need("graph"))
        else:
            context = _nearest_context(batch.x, batch.need("coords"), batch.offsets, self.knn)
        return context if self.self_loops else context.without_self()

    def _attend(self, h: Tensor) -> Tensor:
        """Gated attention logits w·(tanh(V h) ⊙ σ(U h)) as a column."""
        logits: Tensor = self.score(self.project(h).tanh() * self.gate(h).sigmoid())
        return logits.to(compute_dtype(self))


def _blend(local: Tensor, t: Tensor, released: bool) -> Tensor:
    """Local and global view, gated by the local one."""
    t = t.to(local.dtype)
    if released:
        return 2 * t.lerp(local, (-local).sigmoid().square())
    return t.lerp(local, local.sigmoid())


def _check_knn(knn: int | None) -> int | None:
    if knn is not None and knn < 1:
        raise ConfigError(f"knn must be at least 1 or None, got {knn}")
    return knn


def _glorot(layer: nn.Module) -> None:
    """The start of the released program: Glorot's uniform weights, biases zero."""
    if isinstance(layer, nn.Linear | nn.Conv2d):
        nn.init.xavier_uniform_(layer.weight)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


@dataclass(frozen=True, eq=False)
class _Context:
    """Weights a_ij of the neighbours of each row, and the weight (n, 1) a_ii of the row itself."""

    others: Neighbours
    own: Tensor

    def sum(self, x: Tensor) -> Tensor:
        """Σ_j a_ij x_j for every row: a sparse product, nothing is kept per neighbour."""
        return self.others.sum(x) + self.own.to(x.dtype) * x

    def without_self(self) -> "_Context":
        return _Context(self.others, torch.zeros_like(self.own))


def _context_logits(q: Tensor, k: Tensor, context: _Context) -> Tensor:
    """g_i = Σ_j a_ij q_i·k_j/√d as a column (n, 1).

    The sum is drawn inside, q_i·(Σ_j a_ij k_j): of the n × n products none is formed, not even those of neighbours.
    """
    return (q * context.sum(k)).sum(1, keepdim=True) / math.sqrt(q.shape[1])


def _graph_context(graph: Graph) -> _Context:
    """The neighbours of a graph as built with their weights; itself as much as the heaviest of them, 1 if alone."""
    if graph.kind is not None:
        raise DataError(f"the context is read from a graph as built, got one normalised as {graph.kind!r}")
    return _Context(Neighbours(graph, graph), _heaviest(graph.weight, graph.indptr))


def _nearest_context(x: Tensor, coords: Tensor, offsets: Tensor, k: int = 7) -> _Context:
    """The k nearest of the bag by position, weighted by the similarity of their features x.

    With cosine distances c_ij to the 15 nearest (all others of a smaller bag; k if that is more),

        a_ij = exp(-c_ij / ‖c_i‖) for the first k,   a_ii = the largest over all of them, 1 if alone

    so that weights lie between 1/e and 1. The relation need not be symmetric. No gradient flows through the weights.
    """
    if k < 1:
        raise DataError(f"nearest_context: k must be at least 1, got {k}")
    near = nearest(coords, offsets, max(k, _REFERENCES)).transpose  # row i holds the nearest of i, nearest first
    apart = _cosine_distances(x.detach(), near.edges())
    norm = segment_sum(apart.square(), near.indptr).sqrt()
    weight = (-apart / norm.where(norm > 0, 1)[near.rows]).exp()
    rank = torch.arange(len(weight), device=weight.device) - near.indptr[near.rows]
    return _Context(_two_sided(near, weight, rank < k), _heaviest(weight, near.indptr))


def _cosine_distances(x: Tensor, pairs: Tensor) -> Tensor:
    """1 - cos of the rows of x joined by each of the pairs (2, e), in float64; 0 where a row is all zero.

    A difference that rounding alone can make counts as none: normalised, it would become weights of pure chance.
    """
    x = x if x.dtype in (torch.float32, torch.float64) else x.float()
    length = x.norm(dim=1, keepdim=True)
    units = x / length.where(length > 0, 1)
    parts = pairs.split(max(1, _PAIR_ENTRIES // x.shape[1]), dim=1)
    cosines = torch.cat([(units[i] * units[j]).sum(1) for i, j in parts])
    apart = 1 - cosines.double()
    blank = (length[:, 0] == 0)[pairs].any(0)
    return apart.where((apart > 16 * torch.finfo(x.dtype).eps) & ~blank, 0)


def _heaviest(weight: Tensor, indptr: Tensor) -> Tensor:
    """Largest weight of each row as a column; 1 for rows without any."""
    most = torch.segment_reduce(weight, "max", offsets=indptr, axis=0, initial=0)
    return most.where(indptr.diff() > 0, 1)[:, None]


def _two_sided(near: Graph, weight: Tensor, kept: Tensor) -> Neighbours:
    """The kept entries with their weights, as a matrix and as its transpose."""
    rows, columns, weight = near.rows[kept], near.indices[kept], weight[kept]
    back = columns.argsort(stable=True)
    return Neighbours(_matrix(rows, columns, weight, near.n), _matrix(columns[back], rows[back], weight[back], near.n))


def _matrix(rows: Tensor, columns: Tensor, weight: Tensor, n: int) -> Graph:
    """CSR from entries sorted by row."""
    return Graph(pad(torch.bincount(rows, minlength=n).cumsum(0), (1, 0)), columns, weight)


def _convolve_heads(v: Tensor, weight: Tensor) -> Tensor:
    """v (heads, n, d) convolved over its axis of heads with weight (d, d/groups, taps); zeros beyond the last head.

    Output channel c reads the d/groups channels of its own group. The heads are few, so all taps together are one small
    matrix per group, and the rows of v see nothing of each other.
    """
    heads, n, d = v.shape
    inside, reach = weight.shape[1], weight.shape[2] // 2
    rim = max(0, heads - 1 - reach)
    head = torch.arange(heads, device=v.device)
    taps = pad(weight, (rim, rim))[:, :, head - head[:, None] + reach + rim]  # (d, inside, to head, from head)
    mix = taps.unflatten(0, (-1, inside)).permute(0, 4, 2, 3, 1).reshape(-1, heads * inside, heads * inside)
    grouped = v.unflatten(2, (-1, inside)).permute(2, 1, 0, 3).reshape(-1, n, heads * inside)
    mixed: Tensor = grouped @ mix
    return mixed.reshape(-1, n, heads, inside).permute(2, 1, 0, 3).reshape(heads, n, d)


class _HeadMixingAttention(NystromAttention):
    """Multi-head Nyström attention that adds to each head's values a mixture of all heads' values of the same instance.

    In the original Nyström attention a convolution of 33 taps runs along the sequence; a port to channels-last layout
    lets it run over the heads instead, in as many groups of channels as there are heads. Only the middle 2·heads - 1
    taps ever reach a head; all are kept, so that weights of that port fit.
    """

    def __init__(self, dim: int, *, heads: int = 8, head_dim: int = 64, kernel: int = 33, **options: Any):
        super().__init__(dim, heads=heads, head_dim=head_dim, kernel=None, **options)
        if head_dim % heads or kernel % 2 == 0:
            given = f"head_dim={head_dim}, heads={heads}, kernel={kernel}"
            raise ConfigError(
                f"a convolution over heads needs head_dim a multiple of heads and an odd kernel, got {given}"
            )
        self.across = nn.Parameter(torch.empty(head_dim, head_dim // heads, kernel))
        nn.init.xavier_uniform_(self.across)

    def _mixed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return super()._mixed(q, k, v) + _convolve_heads(v, self.across)

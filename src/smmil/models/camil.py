"""CAMIL (Fourkioti, De Vries, Bakal, ICLR 2024, arXiv:2305.05314)."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from smmil.bag import BagBatch
from smmil.errors import ConfigError, check_choice
from smmil.models import Output
from smmil.nn.across_heads import NystromAcrossHeads
from smmil.nn.attention import weighted_sums
from smmil.nn.context import Context, context_logits, graph_context, nearest_context
from smmil.nn.nystrom import NystromAttention
from smmil.nn.segment import segment_softmax
from smmil.nn.smooth_at import SmoothAt

FORMS = ("article", "released")
SCORES = ("t", "m")
CONVS = {"sequence": NystromAttention, "heads": NystromAcrossHeads}


class CAMIL(nn.Module):
    """Let all instances look at each other, weigh each by how it agrees with its neighbours, blend both, pool.

    Global view t: attention through landmarks over the whole bag. Local view l: the instance's own value, times the
    share of the bag's attention that its agreement with its neighbours earns it. The blend m of both, gated by l
    itself, is averaged by gated attention and classified.

    form        article: LayerNorm before the attention, values from t, gate σ(l), and the pool is weighed by t;
                released: the authors' program, no LayerNorm, values from the features, gate σ(-l)², the sum doubled,
                and the pool is weighed by m
    score       t or m: what the attention network reads for the map; None: what the pool is weighed by (article t,
                released m). The other reading uses a network trained on the first.
    knn         None: the bag's graph with its weights, and itself as much as the heaviest neighbour. A number (7 in the
                released program): the nearest by coordinates, weighed by likeness of features as released, and itself;
                found anew at every call
    self_loops  False: an instance is no neighbour of its own
    conv        of the values in the attention: sequence, as Nyström attention is meant; heads, as the released program
                has it by a slip of layout; None: sequence for the article, heads for released
    dim, heads  width of the views, over all heads; features of another width are projected first (linear, ReLU)
    landmarks   segments whose means stand for the sequence; iterations of the pseudo-inverse between them
    sm          {where: early} smooths the embedded instances before they meet (in the article's form a LayerNorm reads
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
        self.released = check_choice(form, FORMS, "form") == "released"
        self.pool_by = "m" if self.released else "t"
        self.score_by = self.pool_by if score is None else check_choice(score, SCORES, "score")
        self.knn, self.self_loops = _check_knn(knn), self_loops
        attention = _attention(conv or ("heads" if self.released else "sequence"), dim, heads)
        self.embed = nn.Identity() if in_dim == dim else nn.Sequential(nn.Linear(in_dim, dim), nn.ReLU())
        self.norm = nn.Identity() if self.released else nn.LayerNorm(dim)
        self.attention = attention(landmarks=landmarks, iterations=iterations)
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
        h = self.sm("early", self.embed(batch.x.to(self.head.weight.dtype)), batch)
        t = h + self.attention(self.norm(h), batch.offsets)
        share = segment_softmax(context_logits(self.query(t), self.key(t), self._context(batch)), batch.offsets)
        m = _blend(share * self.value(h if self.released else t), t, self.released)
        views = {"t": t, "m": m}
        weigh = self.sm("late", self._attend(views[self.pool_by]), batch)
        z = weighted_sums(m, segment_softmax(weigh, batch.offsets), batch.offsets)[:, 0]
        if self.score_by == self.pool_by:
            return Output(self.head(z), weigh)
        return Output(self.head(z), self.sm("late", self._attend(views[self.score_by]), batch))

    def _context(self, batch: BagBatch) -> Context:
        if self.knn is None:
            context = graph_context(batch.need("graph"))
        else:
            context = nearest_context(batch.x, batch.need("coords"), batch.offsets, self.knn)
        return context if self.self_loops else context.without_self()

    def _attend(self, h: Tensor) -> Tensor:
        """Gated attention logits w·(tanh(V h) ⊙ σ(U h)) as a column."""
        return self.score(self.project(h).tanh() * self.gate(h).sigmoid()).to(self.head.weight.dtype)


def _blend(local: Tensor, t: Tensor, released: bool) -> Tensor:
    """Local and global view, gated by the local one."""
    t = t.to(local.dtype)
    if released:
        return 2 * t.lerp(local, (-local).sigmoid().square())
    return t.lerp(local, local.sigmoid())


def _attention(conv: str, dim: int, heads: int):
    if dim % heads:
        raise ConfigError(f"dim={dim} must be a multiple of heads={heads}")
    layer = CONVS[check_choice(conv, CONVS, "conv")]

    def build(**shape: int) -> NystromAttention:
        return layer(dim, heads=heads, head_dim=dim // heads, **shape)

    return build


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

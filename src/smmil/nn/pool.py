"""Attention pooling, plain and smoothed: instances in, one vector per bag and one score per instance out."""

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm as with_spectral_norm

from smmil.errors import check_choice
from smmil.graph import Graph
from smmil.nn.attend import attend, embed_and_attend
from smmil.nn.segment import segment_softmax
from smmil.nn.smooth import Sm
from smmil.nn.tanh_scores import tanh_scores

PLACES = ("early", "mid", "late")


class AttentionPool(nn.Module):
    """Average the instances of a bag with learned weights softmax(f), f = w·tanh(W h + b) (Ilse et al. 2018).

    gated          multiply by σ(V h + c) before w
    spectral_norm  divide W and w (and V) by their largest singular value
    Returns z (b, dim) and the scores f (n, 1), before the softmax: comparable across bags.
    """

    def __init__(self, dim: int, att_dim: int = 100, *, gated: bool = False, bias: bool = True, spectral_norm=False):
        super().__init__()
        self.att_dim = att_dim
        self.project = nn.Linear(dim, att_dim, bias=bias)
        self.gate = nn.Linear(dim, att_dim, bias=bias) if gated else None
        self.score = nn.Linear(att_dim, 1, bias=False)
        if spectral_norm:
            self._normalize_layers((self.project, self.gate, self.score))

    @staticmethod
    def _normalize_layers(layers) -> None:
        for layer in layers:
            if layer is not None:
                with_spectral_norm(layer)

    def forward(self, h: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        return attend(h, self._projection(), self._weigh_with(offsets), offsets, *self._params())

    def pool_embedded(self, x: Tensor, embed: nn.Linear, offsets: Tensor) -> tuple[Tensor, Tensor]:
        """The pool of relu(embed(x)); the gradient of the embedded instances takes their place in memory."""
        weigh = self._weigh_with(offsets)
        return embed_and_attend(x, embed.weight, embed.bias, self._projection(), weigh, offsets, *self._params())

    def _projection(self) -> Tensor:
        """W, with the gate's V below it."""
        return self.project.weight if self.gate is None else torch.cat([self.project.weight, self.gate.weight])

    def _bias(self) -> Tensor:
        if self.project.bias is None:
            return next(self.parameters()).new_zeros(())
        return self.project.bias if self.gate is None else torch.cat([self.project.bias, self.gate.bias])

    def _params(self) -> tuple[Tensor, ...]:
        return self._bias(), self.score.weight

    def _weigh_with(self, offsets: Tensor):
        def weigh(v: Tensor, bias: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
            scores = self._score(v, bias, w)
            return scores, segment_softmax(scores, offsets)

        return weigh

    def _score(self, v: Tensor, bias: Tensor, w: Tensor, own: bool = False) -> Tensor:
        """Scores of v + bias; a v that is our `own` may be overwritten."""
        if self.gate is None:
            return tanh_scores(v, bias, w, own=own)
        v = v + bias
        return (v[:, : self.att_dim].tanh() * v[:, self.att_dim :].sigmoid()) @ w.T


class SmAttentionPool(AttentionPool):
    """Attention pooling with Sm inside: smooth scores, hence maps whose hot spots hang together.

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
            self._normalize_layers(after_sm)

    def forward(self, h: Tensor, offsets: Tensor, graph: Graph) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return attend(h, self._projection(), self._smooth_weigh(offsets, graph), offsets, *self._params())

    def pool_embedded(  # type: ignore[override]
        self, x: Tensor, embed: nn.Linear, offsets: Tensor, graph: Graph
    ) -> tuple[Tensor, Tensor]:
        weigh = self._smooth_weigh(offsets, graph)
        return embed_and_attend(x, embed.weight, embed.bias, self._projection(), weigh, offsets, *self._params())

    def _params(self) -> tuple[Tensor, ...]:
        learned = (self.sm.alpha,) if self.sm.learned else ()
        return (*super()._params(), *learned)

    def _smooth_weigh(self, offsets: Tensor, graph: Graph):
        graph = self.sm.normalize(graph)
        across = graph.transposed()

        def weigh(v: Tensor, bias: Tensor, w: Tensor, *learned: Tensor) -> tuple[Tensor, Tensor]:
            alpha = learned[0] if learned else self.sm.alpha
            if self.where == "late":
                scores = self.sm.smooth(self._score(v, bias, w), graph, alpha)
            else:
                early = self.where == "early"
                smooth = self.sm.smooth(v if early else v + bias, graph, alpha)
                own = smooth is not v and self.sm.steps != "exact"  # that one needs its result in the backward pass
                scores = self._score(smooth, bias if early else torch.zeros_like(bias), w, own)
            weights = segment_softmax(scores, offsets)
            return scores, self.sm.smooth(weights, across, alpha) if self.where == "early" else weights

        return weigh

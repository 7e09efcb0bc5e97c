"""Additive MIL (Javed, Juyal, Padigela, Taylor-Weiner, Yu, Prakash, NeurIPS 2022, arXiv:2206.01794)."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from smmil.bag import BagBatch
from smmil.errors import check_choice
from smmil.models import Output
from smmil.nn.parameters import compute_dtype
from smmil.nn.pool import GatedAttention
from smmil.nn.segment import segment_softmax, segment_sum
from smmil.nn.smooth_at import SmoothAt
from smmil.sparse import without_autocast

_ATTENTIONS = ("tanh", "gated", "mlp")


def _perceptron(sizes: list[int], activation: type[nn.Module], *, last_bias: bool = True, **options: Any) -> nn.Module:
    """Linear layers of these sizes with an activation between them."""
    layers: list[nn.Module] = []
    for place, (a, b) in enumerate(pairwise(sizes), start=2):
        last = place == len(sizes)
        layers += [nn.Linear(a, b, bias=last_bias or not last), *([] if last else [activation(**options)])]
    return nn.Sequential(*layers)


class AdditiveMIL(nn.Module):
    """Weigh each instance by attention, classify each weighed instance; the bag's logits are the sum.

    attention  tanh: that of `abmil`, gated: with its gate (Ilse et al. 2018), which the article builds on; mlp: two
               hidden layers with LeakyReLU, as in the authors' program
    hidden     units in each of the `depth` hidden layers of the classifier
    centred    False: every instance adds what the classifier says of it, as in the article, also when its attention is
               0: logits then grow with the size of the bag. True: what the classifier says of an empty instance is
               taken from each and added once per bag
    sm         {where: early} smooths the embedded instances, which are weighed; {where: late} the attention logits;
               {where: map} the contributions, whose sum is then the logit; other options as in `SmoothAt`
    Scores are contributions, one map per class: their sum over a bag is its logit exactly (less one constant if
    `centred`). They are shares of a sum, so that those of a large bag are smaller than those of a small one.
    """

    score_kind = "contribution"
    head_name = "classifier"

    def __init__(
        self,
        in_dim: int,
        n_classes: int = 1,
        *,
        dim: int = 512,
        att_dim: int = 100,
        attention: str = "tanh",
        hidden: int = 256,
        depth: int = 2,
        centred: bool = False,
        sm: Mapping[str, Any] | None = None,
    ):
        super().__init__()
        self.centred = centred
        self.embed = nn.Linear(in_dim, dim)
        self.attention, readers = _attention(check_choice(attention, _ATTENTIONS, "attention"), dim, att_dim)
        self.classifier = _perceptron([dim, *[hidden] * depth, n_classes], nn.ReLU)
        self.sm = SmoothAt(sm, {"early": readers, "late": (), "map": ()})

    def forward(self, batch: BagBatch) -> Output:
        dtype = compute_dtype(self)
        h = self.sm("early", self.embed(batch.x.to(dtype)).relu(), batch).to(dtype)
        weights = segment_softmax(self.sm("late", self.attention(h).to(dtype), batch), batch.offsets)
        with without_autocast(h):  # what is lost in a contribution is lost as often as there are instances
            base = self._base(h)
            scores = self.sm("map", self.classifier(weights * h) - base, batch)
        return Output(segment_sum(scores, batch.offsets) + base, scores)

    def bag_vectors(self, weighed: Tensor, batch: BagBatch) -> Tensor:
        """The sum of the weighed instances: what attention pooling makes of the bag."""
        return segment_sum(weighed, batch.offsets)

    def _base(self, h: Tensor) -> Tensor:
        """What the classifier says of an instance without attention, if that counts once per bag."""
        if not self.centred:
            return h.new_zeros(())
        said: Tensor = self.classifier(torch.zeros_like(h[:1]))
        return said


def _attention(kind: str, dim: int, att_dim: int) -> tuple[nn.Module, list[nn.Module]]:
    """A network that gives one logit per row, and its layers that read the rows."""
    if kind == "gated":
        gated = GatedAttention(dim, att_dim)
        return gated, [gated.project, gated.gate]
    if kind == "tanh":
        layers = _perceptron([dim, att_dim, 1], nn.Tanh, last_bias=False)
    else:
        layers = _perceptron([dim, att_dim, att_dim, 1], nn.LeakyReLU, last_bias=False, negative_slope=0.2)
    return layers, [next(layers.children())]

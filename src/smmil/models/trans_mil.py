"""TransMIL (Shao et al., 2021, arXiv:2106.00908)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from smmil.bag import BagBatch
from smmil.errors import ConfigError, check_choice
from smmil.models import Output
from smmil.nn.nystrom import NystromAttention, NystromClassAttention
from smmil.nn.parameters import compute_dtype
from smmil.nn.segment import split_bags
from smmil.nn.smooth_at import SmoothAt
from smmil.nn.token_grid import square_side


class TransMIL(nn.Module):
    """Two attention layers over the instances and a class token, a positional encoding between; classify the token.

    Instances are embedded, led by the class token, and pass two attention layers with a pyramid of convolutions (PPEG)
    between them; the bag's logits are read from the token. Attention is Nyström's approximation through landmarks.

    Scores say what the class token takes from each instance in the last layer: its row of the approximated attention
    matrix, mean over heads. They share out about one unit inside the bag (slightly negative values occur), so they rank
    the instances of one bag well and shrink like 1/n between bags. One column, whatever the number of classes. The
    authors published no map; this is the reading of the Sm paper's comparison.

    dim, heads  width of tokens, over all heads
    landmarks   segments whose means stand for the sequence; iterations of the pseudo-inverse between them
    dropout     behind each attention layer
    ppeg        fold: the sequence is folded to s × s as in the original, its first instances repeated at the end to
                fill the square; chain: convolutions along the sequence and nothing repeated, for CT
    sm          {where: early} smooths the embedded instances before attention; other options as in `SmoothAt`. They are
                next read by a LayerNorm, so there is no layer to normalise spectrally
    The result depends on the order of the instances: by the fold, the segments of landmarks, and the convolutions.
    Bags are processed one by one, also in a batch. Time grows with n · landmarks, memory with n.
    """

    score_kind = "class token attention"

    def __init__(
        self,
        in_dim: int,
        n_classes: int = 1,
        *,
        dim: int = 512,
        heads: int = 8,
        landmarks: int = 256,
        iterations: int = 6,
        dropout: float = 0.1,
        ppeg: str = "fold",
        sm: Mapping[str, Any] | None = None,
    ):
        super().__init__()
        if dim % heads:
            raise ConfigError(f"dim={dim} must be a multiple of heads={heads}")

        shape = {"heads": heads, "head_dim": dim // heads, "landmarks": landmarks, "iterations": iterations}
        self.embed = nn.Linear(in_dim, dim)
        self.token = nn.Parameter(torch.randn(1, dim))
        self.norm1, self.attention1 = nn.LayerNorm(dim), NystromAttention(dim, **shape, dropout=dropout)
        self.position = _PPEG(dim, form=ppeg)
        self.norm2, self.attention2 = nn.LayerNorm(dim), NystromClassAttention(dim, **shape, dropout=dropout)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, n_classes)
        self.sm = SmoothAt(sm, {"early": ()})

    def forward(self, batch: BagBatch) -> Output:
        h = self.sm("early", self.embed(batch.x.to(compute_dtype(self))).relu(), batch)
        tokens, offsets = self._with_class_tokens(split_bags(h, batch.offsets))
        tokens = tokens + self.attention1(self.norm1(tokens), offsets)
        tokens = self.position(tokens, offsets)
        taken, rows = self.attention2(self.norm2(tokens), offsets)
        z = tokens[offsets[:-1]] + taken
        return Output(self.head(self.norm(z)), _of_instances(rows.mean(1, keepdim=True), offsets, batch.sizes))

    def _with_class_tokens(self, bags: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Token, instances and, where they are folded, the first instances again, for every bag; and the offsets."""
        led = [torch.cat([self.token, bag, bag[: self._missing(len(bag))]]) for bag in bags]
        sizes = torch.tensor([0] + [len(bag) for bag in led], device=self.token.device)
        return torch.cat(led), sizes.cumsum(0)

    def _missing(self, n: int) -> int:
        return square_side(n) ** 2 - n if self.position.folds else 0


def _of_instances(rows: Tensor, offsets: Tensor, sizes: list[int]) -> Tensor:
    """Rows of tokens without class tokens and repeated instances."""
    parts = split_bags(rows, offsets)
    return torch.cat([part[1 : n + 1] for part, n in zip(parts, sizes, strict=True)])


class _PPEG(nn.Module):
    """Pyramid positional encoding of TransMIL: identity plus depth-wise convolutions of 7, 5 and 3 taps, with bias.

    fold    the rows of a bag, a square number of them, are laid out line by line as s × s: neighbours are those of
            this fold, not of the tissue
    chain   the rows are a line: convolutions along it, for CT slices in their order
    The first row of every bag is its class token and passes unchanged.
    """

    def __init__(self, dim: int, *, form: str = "fold"):
        super().__init__()
        self.folds = check_choice(form, ("fold", "chain"), "ppeg") == "fold"
        layer = nn.Conv2d if self.folds else nn.Conv1d
        convs = (layer(dim, dim, taps, padding=taps // 2, groups=dim) for taps in (7, 5, 3))
        self.wide, self.middle, self.narrow = convs

    def forward(self, x: Tensor, offsets: Tensor) -> Tensor:
        pieces = []
        for bag in split_bags(x, offsets):
            pieces += [bag[:1], self._encode(bag[1:])]
        return torch.cat(pieces)

    def _encode(self, rows: Tensor) -> Tensor:
        field = rows.T[None].unflatten(2, (square_side(len(rows)), -1) if self.folds else (-1,))
        encoded: Tensor = field + self.wide(field) + self.middle(field) + self.narrow(field)
        return encoded[0].flatten(1).T

"""Several attention maps over one bag: the weighted sums they give, and the gated network they come from."""

import torch
from torch import Tensor, nn

from smmil.nn.segment import split_bags


def weighted_sums(h: Tensor, weights: Tensor, offsets: Tensor) -> Tensor:
    """For every bag and every column of weights (n, k), the sum of the rows of h (n, d) so weighted: (b, k, d)."""
    pairs = zip(split_bags(weights, offsets), split_bags(h, offsets), strict=True)
    return torch.stack([w.T @ rows for w, rows in pairs])


class GatedAttention(nn.Module):
    """Attention logits f = w·(tanh(W h + b) ⊙ σ(V h + c)) + a, one column per map (Ilse et al. 2018, with all biases).

    dropout  share of the hidden units set to 0 in training, separately behind the tanh and behind the sigmoid
    """

    def __init__(self, dim: int, att_dim: int, columns: int = 1, *, dropout: float = 0.0):
        super().__init__()
        self.project = nn.Linear(dim, att_dim)
        self.gate = nn.Linear(dim, att_dim)
        self.score = nn.Linear(att_dim, columns)
        self.drop = nn.Dropout(dropout)

    def forward(self, h: Tensor) -> Tensor:
        logits: Tensor = self.score(self.drop(self.project(h).tanh()) * self.drop(self.gate(h).sigmoid()))
        return logits

"""How ragged a map is, as a term to minimise: the alternative to building smoothness into the model."""

import torch
from torch import Tensor

from smmil.errors import check_choice
from smmil.graph import Graph
from smmil.nn.segment import segment_mean, segment_softmax, segment_sum

PENALTIES = ("scores", "attention", "attention_squared", "sa_mil", "sa_mil_squared")


def smoothness_penalty(scores: Tensor, graph: Graph, offsets: Tensor, kind: str = "scores") -> Tensor:
    """Mean over the bags (and over the columns) of how much the scores (n, k) of neighbours differ.

    scores             (1/N) fᵀL̃f, f the scores as they are, L̃ the symmetric normalised Laplacian
    attention          aᵀLa, a the softmax of f in its bag, L = D - A
    attention_squared  aᵀL²a
    sa_mil, sa_mil_squared   the same two with L + I in place of L, as the published program of SA-MIL builds it; they
                       also shrink the largest weights
    graph is as built. Differentiable in the scores; instances without neighbours count with 0 (sa_mil: with a²).
    """
    check_choice(kind, PENALTIES, "penalty kind")
    f = scores if scores.dtype == torch.float64 else scores.float()
    if kind == "scores":
        return segment_mean(f * (f - graph.normalized("sym").propagate(f)), offsets).mean()
    a = segment_softmax(f, offsets)
    rough = graph.degrees.to(a.dtype)[:, None] * a - graph.propagate(a)
    if kind.startswith("sa_mil"):
        rough = rough + a
    energy = rough * rough if kind.endswith("squared") else a * rough
    return segment_sum(energy, offsets).mean()

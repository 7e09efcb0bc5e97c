"""The smooth support vector loss (Berrada, Zisserman, Kumar, 2018, arXiv:1802.07595), top-1 form."""

import math

import torch
from torch import Tensor

# From this lead of the best class over the second on, the authors take the hinge instead of its smooth form.
HARD_FROM = math.log(1000)


def smooth_svm(logits: Tensor, target: Tensor) -> Tensor:
    """Mean over the rows of log Σ_c exp(s_c + [c ≠ target] - s_target), the hinge with margin 1 and rounded corner.

    logits (m, c) with c >= 2, target (m,) class indices. Rows in which one class leads all others by ln 1000 or more
    give max_c of the exponents instead. With two classes: log(1 + exp(1 + s_wrong - s_true)) and max(0, the same).
    """
    best = logits.detach().topk(2, dim=1).values
    true = target[:, None]
    margin = torch.ones_like(logits).scatter(1, true, 0.0)
    excess = logits + margin - logits.gather(1, true)
    hard = best[:, 0] - best[:, 1] >= HARD_FROM
    return torch.where(hard, excess.amax(1), excess.logsumexp(1)).mean()

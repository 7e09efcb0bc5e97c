"""The passes of `smmil.nn.relu`, each in one sweep over memory, compiled by numba."""

import numpy as np

from smmil.nn.wavefront import compiled


@compiled
def shift(rows, bias):
    """rows ← max(rows + bias, 0); what is not a number stays."""
    nothing = rows.dtype.type(0)
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            value = rows[i, j] + bias[j]
            rows[i, j] = nothing if value < nothing else value


@compiled
def mask(rows, grad, total):
    """rows ← grad, but 0 where they are 0; total ← total + its column sums.

    These rows are summed by themselves first: a running sum over all rows of a bag would lose three digits.
    """
    nothing, own = rows.dtype.type(0), np.zeros_like(total)
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            value = nothing if rows[i, j] <= nothing else grad[i, j]
            rows[i, j] = value
            own[j] += value
    total += own

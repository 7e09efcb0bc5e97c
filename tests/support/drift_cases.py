"""Cases with features of a known distribution, for the tests of the drift alarm."""

import numpy as np

from smmil.evaluate.drift import DriftCase
from smmil.frame import Frame

WIDTH = 12
TURN = np.linalg.qr(np.random.default_rng(3).standard_normal((WIDTH, WIDTH)))[0] * np.linspace(2.0, 0.2, WIDTH)[:, None]


def case(seed, *, shift=0.0, spread=1.0, n=None, planted=0.0):
    """A chain of slices around a mean of its own; shift moves all instances, planted a share of them far away."""
    rng = np.random.default_rng([11, seed])
    n = n or int(rng.integers(15, 30))
    rows = 0.5 * rng.standard_normal(WIDTH) + spread * rng.standard_normal((n, WIDTH))
    rows[: round(planted * n)] += 12.0
    chain = np.stack([np.arange(n - 1), np.arange(1, n)])
    return DriftCase(f"c{seed}", rows @ TURN + shift, np.arange(n)[:, None], Frame((1.0,), (5.0,), "mm"), chain)


def together(count, first=0, per_patient=1, **options):
    """{id: patient} and a reader of that many cases."""
    cases = {f"c{i}": case(i, **options) for i in range(first, first + count)}
    return {id_: f"p{(int(id_[1:]) - first) // per_patient}" for id_ in cases}, cases.__getitem__

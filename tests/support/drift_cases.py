"""Cases with features of a known distribution, for the tests of the drift alarm."""

from dataclasses import replace

import numpy as np

from smmil.evaluate.calibration import calibrate
from smmil.evaluate.drift import DriftCase
from smmil.frame import Frame
from support.lesion_cases import save_all, slide_case

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


STATED = {"share": 0.4, "level": 0.05, "patients": 30, "digest": "d"}


def compared(case, alarm, p):
    """A case as smmil predict writes it with a drift summary; its upper half is strange when the alarm is raised."""
    facts = {**STATED, "p": p, "alarm": alarm, "why": ["look", "gap"] if alarm else []}
    strange = np.where(np.arange(case.n) < case.n // 2, 0.95 if alarm else 0.5, 0.2).astype(np.float32)
    return replace(case, strangeness=strange, meta={**case.meta, "drift": facts})


def study(folder, strange):
    """Six calibrated cases, some of which raise the alarm."""
    made = calibrate([slide_case(f"c{i}", i) for i in range(12)])
    cases = [made.applied(slide_case(f"s{i}", 30 + i, y=i % 2)) for i in range(6)]
    ranks = iter((0.4, 0.9, 0.6, 0.3, 0.7, 0.5))
    save_all(folder, [compared(c, c.id in strange, 1 / 31 if c.id in strange else next(ranks)) for c in cases])
    return made

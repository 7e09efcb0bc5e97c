"""Facts of image quality in the drift alarm: those of a case and of its instances against those of the training cases.

A case is as strange as its strangest fact: its distance from the mean over reference patients in deviations, to either
side. An instance likewise, against the spread of single instances, and its strangeness is the larger of this and that
of its features. Bags without facts (features of others) are compared by their features alone.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from smmil.errors import DataError
from smmil.images.quality import SLICE_FACTS, TILE_FACTS

# All facts and the least deviation of each among cases: what is below, nobody would call a difference.
_FLOORS = {"sharpness": 0.02, "blocks": 0.01, "colour_blocks": 0.01, "haematoxylin": 0.05, "eosin": 0.05}
_FLOORS |= {"planarity": 0.1, "ink": 0.005, "noise": 0.05, "density": 1.0, "contrast": 0.05}
_QUALITY = tuple(_FLOORS)
assert set(_QUALITY) == {*TILE_FACTS, *SLICE_FACTS}
_INK = _QUALITY.index("ink")
_FLOOR = np.array(list(_FLOORS.values()))
_LEAST = 1e-6


def _quality_table(id_: str, facts: np.ndarray | None, names: Sequence[str], n: int) -> np.ndarray | None:
    """(n, len(_QUALITY)) facts by their places, nan where there are none; None when there are none at all."""
    known = [(_QUALITY.index(name), column) for column, name in enumerate(names) if name in _QUALITY]
    if facts is None or not known:
        return None
    if facts.shape != (n, len(names)):
        raise DataError(f"{id_}: quality is {facts.shape}, expected {(n, len(names))}; prepare this case again")
    table = np.full((n, len(_QUALITY)), np.nan, dtype=np.float32)
    places, columns = zip(*known, strict=True)
    table[:, places] = facts[:, columns]
    return table


def _case_facts(table: np.ndarray | None) -> np.ndarray:
    """The middle of each fact over the instances that have it; of ink the mean, since a stroke covers few of them."""
    found = np.full(len(_QUALITY), np.nan)
    for j in range(0 if table is None else len(_QUALITY)):
        known = table[:, j][~np.isnan(table[:, j])].astype(np.float64)  # type: ignore[index]
        if len(known):
            found[j] = known.mean() if j == _INK else np.median(known)
    return found


class _QualityNorms(NamedTuple):
    """What is usual: mean and deviation of the facts of cases, middle and spread of those of instances.

    offset  brings the strangeness by facts to that by features: equally many instances of the reference lie beyond
    """

    cases: np.ndarray  # (2, facts); nan: no case has this fact
    instances: np.ndarray  # the same
    offset: float

    @classmethod
    def fit(
        cls, tables: Sequence[np.ndarray | None], energies: Sequence[np.ndarray], weights: np.ndarray, share: float
    ) -> "_QualityNorms":
        """From facts and strangeness by features of the instances of each case, and the weights of the cases."""
        facts = np.stack([_case_facts(table) for table in tables])
        cases, instances = np.full((2, 2, len(_QUALITY)), np.nan)
        for j in range(len(_QUALITY)):
            if (known := ~np.isnan(facts[:, j])).any():
                w = weights[known] / weights[known].sum()
                mean = w @ facts[known, j]
                cases[:, j] = mean, max(math.sqrt(w @ (facts[known, j] - mean) ** 2), _FLOOR[j])
                columns = [t[:, j][~np.isnan(t[:, j])] for t in tables if t is not None]
                each = _shared_out(weights[[t is not None for t in tables]], [len(c) for c in columns])
                low, middle, high = (_weighted_quantile(np.concatenate(columns), each, q) for q in (0.16, 0.5, 0.84))
                instances[:, j] = middle, max((high - low) / 2, 2 * _FLOOR[j])
        norms = cls(cases.astype(np.float32), instances.astype(np.float32), 0.0)
        if np.isnan(cases).all():
            return norms
        known_cases = [i for i, table in enumerate(tables) if table is not None]
        each = _shared_out(weights[known_cases], [len(energies[i]) for i in known_cases])
        by_facts = np.concatenate([norms._energy(tables[i]) for i in known_cases])  # type: ignore[arg-type]
        by_features = np.concatenate([energies[i] for i in known_cases])
        offset = _weighted_quantile(by_features, each, share) - _weighted_quantile(by_facts, each, share)
        return norms._replace(offset=float(np.float32(offset)))

    def deviations(self, table: np.ndarray | None) -> np.ndarray:
        """(facts,) how many deviations the facts of a case lie from the mean; nan where one is not known."""
        return np.asarray((_case_facts(table) - self.cases[0]) / self.cases[1])

    def energy(self, by_features: np.ndarray, table: np.ndarray | None) -> np.ndarray:
        """(n,) strangeness of instances by features or facts, whichever is larger."""
        if table is None or np.isnan(self.cases).all():
            return by_features
        return np.asarray(np.maximum(by_features, np.round(self._energy(table) + self.offset, 6)))

    def _energy(self, table: np.ndarray) -> np.ndarray:
        distance = np.abs((table - self.instances[0]) / self.instances[1])
        return np.asarray(2 * np.log(np.where(np.isnan(distance), 0, distance).max(1).astype(np.float64) + _LEAST))

    def why(self, table: np.ndarray | None) -> str:
        """The fact that stands out most, and to which side."""
        deviations = self.deviations(table)
        j = int(np.nanargmax(np.abs(deviations)))
        return f"{_QUALITY[j]} {'high' if deviations[j] > 0 else 'low'}"


def _shared_out(weights: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """The weight of each case shared out among its instances."""
    return np.concatenate([np.full(size, w / max(size, 1)) for w, size in zip(weights, sizes, strict=True)])


def _weighted_quantile(values: np.ndarray, weights: np.ndarray, share: float) -> float:
    """The least value up to which this share of the weight lies."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order]) >= share * weights.sum() - 1e-12
    return float(values[order][np.argmax(reached)])

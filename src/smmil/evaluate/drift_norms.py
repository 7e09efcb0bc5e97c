"""What is usual among cases, for the drift alarm: axes of the features, and mean and spread of descriptions of cases.

See `smmil.evaluate.drift` for what these serve.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from smmil.errors import DataError
from smmil.evaluate.quality import _quality_table, _QualityNorms, _shared_out, _weighted_quantile
from smmil.frame import Frame

_VARIETY_AXES = 16  # more are too noisy to be compared between cases
_ROWS = 8192  # instances at a time: the features of large slides are not copied as a whole
_QUANTILE = 0.95
_LEAST = 1e-6  # of squares whose logarithm is taken
_LEAST_SCALE = 1e-3
_FLOOR = 0.05  # least spread of a structural fact, as a logarithm: 5 %
_FACTS = ("count", "size", "distance", "extent", "gap", "change")


@dataclass(frozen=True, eq=False)
class DriftCase:
    """What the alarm looks at in a case: (n, d) features and the places of the instances, as far as they are known.

    positions_mm  of the slices of a scan, where distances may be uneven; edges (2, e): neighbours
    quality       (n, q) facts of image quality, whose names are in quality_names
    """

    id: str
    x: np.ndarray
    coords: np.ndarray | None = None
    frame: Frame | None = None
    edges: np.ndarray | None = None
    positions_mm: np.ndarray | None = None
    quality: np.ndarray | None = None
    quality_names: Sequence[str] = ()


class _Space(NamedTuple):
    """Mean and main axes of the features: coordinates on them have variance 1, the remainder has a mean square of 1."""

    mean: np.ndarray  # (d,)
    axes: np.ndarray  # (d, k)
    scale: np.ndarray  # (k,)
    noise: float  # variance in each direction off the axes; 0: the axes hold all there is

    def coordinates(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """(n, k) coordinates, (n,) mean square of each remainder, and that of the mean remainder."""
        z, off, total = np.empty((len(x), len(self.scale))), np.zeros(len(x)), np.zeros(len(self.mean))
        for start in range(0, len(x), _ROWS):
            here = slice(start, start + _ROWS)
            moved = np.asarray(x[here], dtype=np.float64) - self.mean
            along = moved @ self.axes
            z[here] = along / self.scale
            if self.noise:
                rest = moved - along @ self.axes.T
                off[here] = (rest**2).sum(1) / self.noise / (len(self.mean) - len(self.scale))
                total += rest.sum(0)
        lean = float(((total / len(x)) ** 2).mean()) / self.noise if self.noise else 0.0
        return z, off, lean


class _Moments:
    """Sums of features and of their products, each case with its weight."""

    def __init__(self, width: int):
        self.weight, self.sum, self.products = 0.0, np.zeros(width), np.zeros((width, width))

    def add(self, x: np.ndarray, weight: float) -> None:
        self.weight += weight
        for start in range(0, len(x), _ROWS):
            rows = np.asarray(x[start : start + _ROWS], dtype=np.float64)
            self.sum += weight / len(x) * rows.sum(0)
            self.products += weight / len(x) * (rows.T @ rows)

    def merged(self, other: "_Moments") -> "_Moments":
        both = _Moments(len(self.sum))
        both.weight = self.weight + other.weight
        both.sum, both.products = self.sum + other.sum, self.products + other.products
        return both

    def space(self, most: int) -> _Space:
        """The axes of largest variance, at most `most`, without those on which there is none."""
        from scipy.linalg import eigh

        mean = self.sum / self.weight
        covariance = self.products / self.weight - np.outer(mean, mean)
        d = len(mean)
        values, axes = eigh(covariance, subset_by_index=(max(0, d - most), d - 1))
        values, axes = values[::-1], axes[:, ::-1]
        total = float(np.trace(covariance))
        used = values > 1e-9 * total
        if not used.any():
            raise DataError("drift: the features of the training cases do not vary; prepare them again")
        values, axes = values[used], axes[:, used]
        left = max(0.0, total - float(values.sum()))
        noise = left / (d - len(values)) if d > len(values) and left > 1e-9 * total else 0.0
        return _Space(_small(mean), _small(axes), _small(np.sqrt(values)), float(np.float32(noise)))


def _small(array: np.ndarray) -> np.ndarray:
    """As it is kept in the file, so that a summary scores alike before and after."""
    return np.ascontiguousarray(array, dtype=np.float32)


class _Normal(NamedTuple):
    """Mean and inverse covariance of a description of cases."""

    mean: np.ndarray
    precision: np.ndarray

    def distance(self, vector: np.ndarray) -> float:
        """Logarithm of the mean square distance per dimension; usual cases are around 0."""
        moved = vector - self.mean
        return math.log(max(float(moved @ self.precision @ moved) / len(moved), _LEAST))

    @classmethod
    def fit(cls, rows: np.ndarray, weights: np.ndarray) -> "_Normal":
        """Covariance shrunk towards a multiple of the identity by the oracle approximating rule (Chen et al., 2010)."""
        w = weights / weights.sum()
        mean = w @ rows
        moved = rows - mean
        covariance = (moved * w[:, None]).T @ moved
        p, n = len(mean), 1 / float(w @ w)
        trace, square = float(np.trace(covariance)), float((covariance**2).sum())
        target = max(trace / p, _LEAST)
        spread = (n + 1 - 2 / p) * (square - trace**2 / p)
        share = 1.0 if spread <= 0 else min(1.0, ((1 - 2 / p) * square + trace**2) / spread)
        shrunk = (1 - share) * covariance + share * target * np.eye(p)
        return cls(_small(mean), _small(np.linalg.inv(shrunk)))


class _Look(NamedTuple):
    """Descriptions of one case, before they are compared with those of others."""

    energy: np.ndarray  # (n,) logarithm of each instance's strangeness by its features
    look: np.ndarray
    variety: np.ndarray | None  # of a case of one instance there is none
    lean: float  # logarithm of the mean remainder's square; nan: nothing is off the axes
    facts: np.ndarray
    quality: np.ndarray | None  # (n, facts of image quality)


def _describe(space: _Space, case: DriftCase) -> _Look:
    if case.x.ndim != 2 or case.x.shape[1] != len(space.mean):
        raise DataError(
            f"{case.id}: {case.x.shape[-1]} features per instance, but the summary is of {len(space.mean)}; "
            "use the encoder of the training cases"
        )
    if not np.isfinite(case.x).all():
        raise DataError(f"{case.id}: features are not finite; prepare this case again")
    z, off, lean = space.coordinates(case.x)
    energy = np.log((z**2).mean(1) + off + _LEAST)
    leaning = math.log(lean + _LEAST) if space.noise else math.nan
    variety = np.log(z[:, :_VARIETY_AXES].var(0) + _LEAST) / 2 if len(z) > 1 else None
    quality = _quality_table(case.id, case.quality, case.quality_names, len(z))
    return _Look(np.round(energy, 6), z.mean(0), variety, leaning, _structure(case, z), quality)


def _structure(case: DriftCase, z: np.ndarray) -> np.ndarray:
    """Logarithms of the structural facts (see _FACTS); nan where one is not known."""
    frame, n = case.frame, len(z)
    facts = dict.fromkeys(_FACTS, math.nan) | {"count": math.log(n)}
    unit = 1.0
    if frame is not None:
        unit = 1.0 if frame.spacing is None else frame.spacing[0]
        facts |= {"size": math.log(frame.patch[0] * unit), "distance": math.log(frame.step[0] * unit)}
    places = case.positions_mm
    if places is None and case.coords is not None:
        places = np.asarray(case.coords, dtype=np.float64)
        each = None if frame is None or frame.spacing is None else np.array(frame.spacing)
        places = places * (each if each is not None and len(each) == places.shape[-1] else unit)
    if places is not None and n > 1:
        places = np.asarray(places, dtype=np.float64).reshape(n, -1)
        facts["extent"] = math.log(max(float(np.ptp(places, axis=0).max()), _LEAST))
        if places.shape[1] == 1 and n > 2:
            steps = np.diff(np.sort(places[:, 0]))
            facts["gap"] = math.log(max(float(steps.max()), _LEAST) / max(float(np.median(steps)), _LEAST))
    if case.edges is not None and np.asarray(case.edges).size and n > 2:
        here, there = np.asarray(case.edges)
        total = float(z.var(0).mean())
        facts["change"] = math.log(max(float(((z[here] - z[there]) ** 2).mean()) / 2, _LEAST) / max(total, _LEAST))
    return np.array([facts[name] for name in _FACTS])


class _Norms(NamedTuple):
    """What is usual: the axes of the features, and each description of whole cases."""

    space: _Space
    look: _Normal
    variety: _Normal
    facts: np.ndarray  # (2, 6): mean and deviation of the structural facts; nan where no case states one
    quality: _QualityNorms
    beyond: float  # energy beyond which an instance counts as strange

    @classmethod
    def fit(cls, space: _Space, looks: Sequence[_Look], weights: np.ndarray) -> "_Norms":
        several = [(look, w) for look, w in zip(looks, weights, strict=True) if look.variety is not None]
        none = np.zeros((1, min(_VARIETY_AXES, len(space.scale))))
        variety = np.stack([look.variety for look, _ in several]) if several else none  # type: ignore[misc]
        shares = np.array([w for _, w in several]) if several else np.ones(1)
        tables, by_features = [look.quality for look in looks], [look.energy for look in looks]
        quality = _QualityNorms.fit(tables, by_features, weights, _QUANTILE)
        energies = np.concatenate([quality.energy(look.energy, look.quality) for look in looks])
        each = _shared_out(weights, [len(look.energy) for look in looks])
        return cls(
            space,
            _Normal.fit(np.stack([look.look for look in looks]), weights),
            _Normal.fit(variety, shares),
            _spread(np.stack([look.facts for look in looks]), weights, _FLOOR),
            quality,
            _weighted_quantile(energies, each, _QUANTILE),
        )

    def energy(self, look: _Look) -> np.ndarray:
        """(n,) strangeness of the instances."""
        return self.quality.energy(look.energy, look.quality)

    def scores(self, look: _Look) -> np.ndarray:
        """One number per block, larger is stranger; nan where a description is not known."""
        known = look.variety is not None
        facts = np.abs(look.facts - self.facts[0]) / self.facts[1]
        quality = np.abs(self.quality.deviations(look.quality))
        return np.array([
            self.look.distance(look.look),
            look.lean,
            self.variety.distance(look.variety) if known else math.nan,  # type: ignore[arg-type]
            float((self.energy(look) > self.beyond).mean()),
            0.0 if np.isnan(facts).all() else float(np.nanmax(facts)),
            math.nan if np.isnan(quality).all() else float(np.nanmax(quality)),
        ])  # fmt: skip


def _spread(rows: np.ndarray, weights: np.ndarray, floor: float) -> np.ndarray:
    """Mean and deviation of each column over the rows that know it, the deviation at least `floor`; else nan."""
    known = ~np.isnan(rows)
    w = weights[:, None] * known
    total = w.sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = (w * np.where(known, rows, 0)).sum(0) / total
        deviation = np.sqrt((w * np.where(known, rows - mean, 0) ** 2).sum(0) / total)
    return _small(np.stack([mean, np.maximum(deviation, floor)]))


def _upper_spread(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Median of each column, and how far its 90 % quantile lies above: scores may have long tails; nan if unknown."""
    found = np.full((2, rows.shape[1]), np.nan)
    for j, column in enumerate(rows.T):
        known = ~np.isnan(column)
        if known.any():
            low, high = (_weighted_quantile(column[known], weights[known], share) for share in (0.5, 0.9))
            found[:, j] = low, max(high - low, _LEAST_SCALE)
    return _small(found)

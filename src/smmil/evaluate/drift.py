"""Out-of-distribution alarm: how unlike the cases that a model learned from is a new one?

The summary is made of two halves of the patients. The *reference* half describes what is usual: mean and main axes of
the features (each patient counts alike), and for whole cases mean and spread of a few descriptions. From then on the
strangeness of an instance and of a case are fixed functions. The *held-out* half, which had no part in them, says how
strange unshifted patients are. A new patient drawn like them is one more of n + 1 exchangeable ones, so

    p = (1 + sum over held-out patients of the share of their instances (cases) that are at least as strange) / (n + 1)

is at most a with a probability of at most a, for a random instance (case) of the new patient: swap the new patient with
any other, and the chance that the one left out lies beyond the a-quantile of all of them is at most a (hierarchical
conformal prediction, Lee, Barber and Willett, 2023). The smallest p is 1 / (n + 1). No label, no prediction takes part,
so the cases may have trained the model, as long as they did not train the encoder.

Strangeness of an instance  mean square of its whitened coordinates on the axes, plus that of the remainder off them;
                            or that of its facts of image quality, if larger (see `smmil.evaluate.quality`)
Strangeness of a case       the largest of these, each brought to one scale on reference cases that did not define it:
  look       mean of the coordinates, against the spread of case means      (Mahalanobis, shrunk covariance)
  lean       mean of the remainders: where all instances lean to a side on which cases do not differ otherwise
  variety    how much its instances differ on the first axes: too much or too little           (the same, of logs)
  strange    share of instances beyond the 95 % quantile of the reference
  structure  number, size, distance and extent of the instances, gaps between slices, change from neighbour to neighbour
  quality    sharpness, compression, stain, ink, noise, density: the fact that is furthest from the usual
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from smmil.errors import ConfigError, DataError
from smmil.evaluate.drift_norms import (
    _FACTS,
    _VARIETY_AXES,
    DriftCase,
    _describe,
    _Look,
    _Moments,
    _Normal,
    _Norms,
    _Space,
    _upper_spread,
)
from smmil.evaluate.quality import _QUALITY, _QualityNorms, _shared_out
from smmil.files import digest
from smmil.prediction import Prediction

__all__ = ["DriftCase", "DriftSummary", "fit_drift"]

_FORMAT = 2
_FEWEST = 10  # patients of each half
_MOST_AXES = 64
_MOST_KNOTS = 512
_BLOCKS = ("look", "lean", "variety", "strange", "structure", "quality")
_MAY_BE_UNKNOWN = ("facts", "centre", "scale", "quality_cases", "quality_instances")


class _Tail(NamedTuple):
    """How many held-out patients lie above a score: the sum of the shares of each patient's scores beyond each knot.

    With more than `_MOST_KNOTS` scores only some are kept; between two of them the lower one counts, so that a p-value
    is never smaller than that of all scores.
    """

    knots: np.ndarray  # ascending
    beyond: np.ndarray  # shares of patients strictly above; 0 at the last
    patients: int

    @classmethod
    def fit(cls, scores: Sequence[np.ndarray], weights: np.ndarray, patients: int) -> "_Tail":
        """From the scores of each case and the weights of the cases, which sum to 1 for each patient."""
        pooled, each = np.concatenate(scores), _shared_out(weights, [len(s) for s in scores])
        knots, place = np.unique(pooled, return_inverse=True)
        mass = np.bincount(place, each)
        beyond = np.round(np.append(np.cumsum(mass[:0:-1])[::-1], 0.0), 9)
        if len(knots) > _MOST_KNOTS:
            half, last = _MOST_KNOTS // 2, len(knots) - 1
            wanted = np.concatenate([np.linspace(0, patients, half), np.geomspace(1e-3, patients, half)])
            chosen = np.unique([0, *(last - np.searchsorted(beyond[::-1], wanted)).clip(0, last), last])
            knots, beyond = knots[chosen], beyond[chosen]
        return cls(knots, beyond, patients)

    def p(self, scores: np.ndarray) -> np.ndarray:
        """Conformal p-values of scores, none below 1 / (patients + 1)."""
        below = np.searchsorted(self.knots, scores, side="left")  # knots below the score
        as_strange = np.where(below == 0, float(self.patients), self.beyond[below - 1])
        return np.asarray((1 + as_strange) / (self.patients + 1))

    def limit(self, level: float) -> float:
        """Scores above this have a p-value of at most `level`."""
        reached = (1 + self.beyond) / (self.patients + 1) <= level
        return float(self.knots[np.argmax(reached)]) if reached.any() else math.inf


class _CaseDrift(NamedTuple):
    """How strange one case is.

    p       conformal p-value of the case                 share        of its instances with a p-value at the level
    alarm   whether p is at most the level                strangeness  (n,) 1 - p of each instance
    why     descriptions that would have raised the alarm alone, the strongest first: blocks and structural facts
    score   strangeness of the case, from which p follows
    """

    p: float
    alarm: bool
    share: float
    strangeness: np.ndarray
    why: tuple[str, ...]
    score: float


@dataclass(frozen=True, eq=False)
class DriftSummary:
    """What is usual among the cases a model learned from, without the features of any of them.

    norms    of the reference patients                  centre, scale  of the scores of blocks, to compare them
    instances, cases  how strange held-out patients are  level   of the alarm, and of a strange instance
    source   encoder and recipe of the features         reference  number of patients behind the norms
    """

    norms: _Norms
    centre: np.ndarray
    scale: np.ndarray
    instances: _Tail
    cases: _Tail
    level: float
    source: dict[str, Any]
    reference: int

    @property
    def patients(self) -> int:
        """Held-out patients."""
        return self.cases.patients

    def examine(self, case: DriftCase) -> _CaseDrift:
        """Compare a case with the held-out patients."""
        look = _describe(self.norms.space, case)
        scores = _on_one_scale(self.norms.scores(look), self.centre, self.scale)
        instance = self.instances.p(self.norms.energy(look))
        p = float(self.cases.p(np.array([scores.max()]))[0])
        alarm = p <= self.level
        why = self._why(scores, look) if alarm else ()
        return _CaseDrift(p, alarm, float((instance <= self.level).mean()), 1 - instance, why, float(scores.max()))

    def applied(self, prediction: Prediction, case: DriftCase) -> Prediction:
        """The prediction with the strangeness of its instances, and that of the case in meta["drift"]."""
        found = self.examine(case)
        facts = {"p": found.p, "alarm": found.alarm, "share": found.share, "why": list(found.why)}
        facts |= {"level": self.level, "patients": self.patients, "digest": self.digest}
        meta = {**prediction.meta, "drift": facts}
        return replace(prediction, strangeness=found.strangeness.astype(np.float32), meta=meta)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the content."""
        parts: list[str | bytes] = [json.dumps(self.facts(), sort_keys=True)]
        for name, array in sorted(self.arrays().items()):
            parts += [name, str(array.dtype), str(array.shape), np.ascontiguousarray(array).tobytes()]
        return digest(*parts)

    def arrays(self) -> dict[str, np.ndarray]:
        """All numbers of the summary by name, for a file."""
        norms = self.norms
        found = {"mean": norms.space.mean, "axes": norms.space.axes, "axes_scale": norms.space.scale}
        found |= {"look_mean": norms.look.mean, "look_precision": norms.look.precision}
        found |= {"variety_mean": norms.variety.mean, "variety_precision": norms.variety.precision}
        found |= {"quality_cases": norms.quality.cases, "quality_instances": norms.quality.instances}
        found |= {"facts": norms.facts, "centre": self.centre, "scale": self.scale}
        for name, tail in (("instances", self.instances), ("cases", self.cases)):
            found |= {f"{name}_knots": tail.knots, f"{name}_beyond": tail.beyond}
        return found

    def facts(self) -> dict[str, Any]:
        """The rest of the summary, as plain JSON."""
        numbers: dict[str, Any] = {"noise": self.norms.space.noise, "beyond": self.norms.beyond, "level": self.level}
        numbers |= {"quality": list(_QUALITY), "quality_offset": self.norms.quality.offset}
        sizes = {"patients": self.patients, "reference": self.reference}
        return {"format": _FORMAT, "kind": "drift", "source": self.source, **numbers, **sizes}

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> "DriftSummary":
        """The summary with these numbers; a ValueError, KeyError or TypeError when they do not fit together."""
        if facts["kind"] != "drift" or facts["format"] != _FORMAT:
            raise ValueError(f"it is {facts['kind']!r} of format {facts['format']!r}, expected 'drift' of {_FORMAT}")
        a = dict(arrays)
        (d, k), blocks, stated = a["axes"].shape, len(_BLOCKS), len(_FACTS)
        shapes = {"mean": (d,), "axes": (d, k), "axes_scale": (k,), "look_mean": (k,), "look_precision": (k, k)}
        v = min(k, _VARIETY_AXES)
        shapes |= {"variety_mean": (v,), "variety_precision": (v, v), "facts": (2, stated)}
        shapes |= {"centre": (blocks,), "scale": (blocks,)}
        shapes |= dict.fromkeys(("quality_cases", "quality_instances"), (2, len(_QUALITY)))
        for name in ("instances", "cases"):
            shapes |= dict.fromkeys((f"{name}_knots", f"{name}_beyond"), a[f"{name}_knots"].shape)
        for name, shape in shapes.items():
            unknown = np.isnan(a[name]) if name in _MAY_BE_UNKNOWN else False
            if a[name].shape != shape or a[name].dtype.kind != "f" or not (np.isfinite(a[name]) | unknown).all():
                raise ValueError(f"{name} is not as smmil drift writes it")
        patients, reference, level = facts["patients"], facts["reference"], facts["level"]
        if not all(isinstance(n, int) and n >= _FEWEST for n in (patients, reference)) or not 0 < level < 1:
            raise ValueError(f"level {level!r}, {reference!r} and {patients!r} patients")
        if a.keys() - shapes.keys() or not k or (a["scale"] <= 0).any() or (a["axes_scale"] <= 0).any():
            raise ValueError("its numbers are not those of a summary")
        for name in ("instances", "cases"):
            knots, beyond = a[f"{name}_knots"], a[f"{name}_beyond"]
            if knots.ndim != 1 or not len(knots) or (np.diff(knots) <= 0).any() or (np.diff(beyond) > 0).any():
                raise ValueError(f"{name}: the knots are not in order")
            if beyond[-1] != 0 or beyond[0] > patients:
                raise ValueError(f"{name}: more than its patients")
        numbers = [facts[name] for name in ("noise", "beyond", "level", "quality_offset")]
        if facts["quality"] != list(_QUALITY) or any(
            (a[f"quality_{of}"][1] <= 0).any() for of in ("cases", "instances")
        ):
            raise ValueError("its facts of image quality are not those of this version")
        if not isinstance(facts["source"], dict) or not all(type(n) is float and math.isfinite(n) for n in numbers):
            raise ValueError("its facts are not those of a summary")
        if facts["noise"] < 0 or k > d or (facts["noise"] and k == d):
            raise ValueError("its facts are not those of a summary")
        norms = _Norms(
            _Space(a["mean"], a["axes"], a["axes_scale"], float(facts["noise"])),
            _Normal(a["look_mean"], a["look_precision"]),
            _Normal(a["variety_mean"], a["variety_precision"]),
            a["facts"],
            _QualityNorms(a["quality_cases"], a["quality_instances"], float(facts["quality_offset"])),
            float(facts["beyond"]),
        )
        instances = _Tail(a["instances_knots"], a["instances_beyond"], patients)
        cases = _Tail(a["cases_knots"], a["cases_beyond"], patients)
        return cls(norms, a["centre"], a["scale"], instances, cases, float(level), facts["source"], reference)

    def _why(self, scores: np.ndarray, look: _Look) -> tuple[str, ...]:
        beyond = [i for i in np.argsort(-scores, kind="stable") if scores[i] > self.cases.limit(self.level)]
        names = []
        for name in (_BLOCKS[i] for i in beyond):
            if name == "structure":
                facts = np.abs(look.facts - self.norms.facts[0]) / self.norms.facts[1]
                name = _FACTS[int(np.nanargmax(facts))]
            elif name == "quality":
                name = self.norms.quality.why(look.quality)
            names.append(name)
        return tuple(names)


def _on_one_scale(scores: np.ndarray, centre: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Scores of blocks in units of their usual spread; what is not known is as usual as can be."""
    found = np.round((scores - centre) / scale, 6)
    return np.where(np.isnan(found), -1e6, found)


def fit_drift(
    patients: Mapping[str, str],
    read: Callable[[str], DriftCase],
    *,
    level: float = 0.05,
    source: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> DriftSummary:
    """The summary of cases {id: patient}; `read` gives a case by its id and is called up to twice for each.

    level  share of unshifted cases on which the alarm may be raised; with n held-out patients no less than 1 / (n + 1)
    """
    if not 0 < level < 1:
        raise ConfigError(f"level {level:g}: expected a share between 0 and 1, such as 0.05 for 5 %")
    folds, held_out = _parts(patients)
    reference = {**folds[0], **folds[1]}
    total = 2 * len(reference) + len(held_out)
    done = iter(range(1, total + 1))

    def one(id_: str) -> DriftCase:
        if progress is not None:
            progress(next(done), total)
        return read(id_)

    moments = [_moments(fold, one) for fold in folds]
    whole, halves = moments[0].merged(moments[1]).space(_MOST_AXES), [m.space(_MOST_AXES) for m in moments]
    looks: dict[str, tuple[_Look, list[_Look]]] = {}
    for id_ in reference:
        case = one(id_)
        looks[id_] = _describe(whole, case), [_describe(space, case) for space in halves]
    norms = _norms(whole, {id_: look for id_, (look, _) in looks.items()}, reference)
    half_norms = [_norms(halves[i], {id_: looks[id_][1][i] for id_ in folds[i]}, folds[i]) for i in (0, 1)]
    crossed = [half_norms[1 - i].scores(looks[id_][1][1 - i]) for i in (0, 1) for id_ in folds[i]]
    centre, scale = _upper_spread(np.stack(crossed), np.array(list(reference.values())))
    found = [_describe(whole, one(id_)) for id_ in held_out]
    weights, count = np.array(list(held_out.values())), len({patients[id_] for id_ in held_out})
    cases = [_on_one_scale(norms.scores(look), centre, scale).max(keepdims=True) for look in found]
    return DriftSummary(
        norms,
        centre,
        scale,
        _Tail.fit([norms.energy(look) for look in found], weights, count),
        _Tail.fit(cases, weights, count),
        max(float(level), 1 / (count + 1)),
        dict(source or {}),
        len({patients[id_] for id_ in reference}),
    )


def _parts(patients: Mapping[str, str]) -> tuple[list[dict[str, float]], dict[str, float]]:
    """{case: weight} of both folds of the reference and of the held-out half; the cases of a patient stay together.

    Patients are divided by the digest of their name, so neither their order nor anything about them plays a part. With
    few patients more than half are held out, so that a level of 5 % can be reached.
    """
    names = sorted(set(patients.values()), key=lambda name: digest("drift", name))
    if len(names) < 2 * _FEWEST:
        raise DataError(
            f"drift: {len(names)} patients are too few for a summary that describes none of them; at least "
            f"{2 * _FEWEST} are needed, and 40 for false alarms on at most 5 % of the cases"
        )
    kept = len(names) - max(len(names) // 2, min(19, len(names) - _FEWEST))
    place = {name: 2 if i >= kept else i % 2 for i, name in enumerate(names)}
    sizes = Counter(patients.values())
    parts: list[dict[str, float]] = [{}, {}, {}]
    for id_, name in sorted(patients.items()):
        parts[place[name]][id_] = 1 / sizes[name]
    return parts[:2], parts[2]


def _moments(cases: Mapping[str, float], read: Callable[[str], DriftCase]) -> _Moments:
    found: _Moments | None = None
    for id_, weight in cases.items():
        case = read(id_)
        found = _Moments(case.x.shape[1]) if found is None else found
        if case.x.shape[1] != len(found.sum):
            raise DataError(f"{id_}: {case.x.shape[1]} features per instance, others have {len(found.sum)}")
        found.add(case.x, weight)
    assert found is not None
    return found


def _norms(space: _Space, looks: Mapping[str, _Look], weights: Mapping[str, float]) -> _Norms:
    return _Norms.fit(space, list(looks.values()), np.array([weights[id_] for id_ in looks]))

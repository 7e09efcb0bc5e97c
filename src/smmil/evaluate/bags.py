"""Whole cases and their patients: labels, units to resample, calibration curves, and cases of a patient as one.

A prediction that is part of a patient's bag says so in meta["patient_bag"]: {"patient": first id of the patient's
cases, "cases": how many, "part": which}. With "aggregate", "y" and "own" beside them, the cases were bags of their own,
and only their probabilities became one; `y` is then the patient's label, that of the prediction the case's own, and
`own` holds the probabilities and the value that the case had by itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from smmil.errors import ConfigError, DataError, check_choice
from smmil.evaluate.ranking import _BINS, _binned, _confidence_and_hit, _defined, _mean_gap
from smmil.prediction import Prediction

UNITS = ("patient", "bag")
SURVIVAL = ("survival", "cox")
AGGREGATES = ("mean", "max", "noisy-or")
LEVELS = ("case", "patient")
_PATIENT_KEYS = ("patient", "group")
_CASES = "patient_cases"  # in the meta of what whole_bags and whole_patients join: of how many cases
_ROWS = ("y_inst", "uncertainty", "strangeness")


def is_labelled(prediction: Prediction) -> bool:
    """Whether what was to be predicted of a case is known; of several labels, at least one."""
    if prediction.target_kind in ("class", "ordinal"):
        return prediction.y is not None
    return prediction.target is not None and not bool(np.isnan(prediction.target).all())


def shared_target(predictions: Sequence[Prediction]) -> str:
    """What all predictions are of: class, survival, …; a mixture is refused."""
    kinds = {p.target_kind: p.id for p in predictions}
    if len(kinds) > 1:
        listed = ", ".join(f"{case}: {kind}" for kind, case in sorted(kinds.items()))
        raise DataError(f"predictions of different targets cannot be evaluated together ({listed}); separate them")
    return next(iter(kinds), "class")


def need_target(predictions: Sequence[Prediction], what: str, kinds: Sequence[str] = ("class",)) -> None:
    """Refuse predictions of other targets than `what` is made for."""
    found = shared_target(predictions)
    if found not in kinds:
        raise ConfigError(f"{what} is for targets of kind {' or '.join(kinds)}; these predictions are of kind {found}")


def _answered_level(prediction: Prediction) -> int:
    """The most probable level of an ordinal target."""
    return int(prediction.probs.argmax()) if len(prediction.probs) > 1 else int(prediction.probs[0] >= 0.5)


def labelled_table(predictions: Sequence[Prediction]) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities (b, C) with C >= 2 and labels (b,) of the labelled cases; a single probability p is (1 - p, p).

    A patient whose cases share one probability counts once.
    """
    labelled = [p for p in whole_patients(predictions) if p.y is not None]
    widths = {len(p.probs): p.id for p in labelled}
    if len(widths) > 1:
        listed = ", ".join(f"{case}: {width}" for width, case in sorted(widths.items()))
        raise DataError(f"predictions of different numbers of classes cannot be evaluated together ({listed})")
    table = np.stack([p.probs for p in labelled]) if labelled else np.zeros((0, 2))
    table = table if table.shape[1] > 1 else np.hstack([1 - table, table])
    return table, np.array([p.y for p in labelled], dtype=np.int64)


def units_of(predictions: Sequence[Prediction], unit: str = "patient") -> tuple[np.ndarray, list[str]]:
    """Unit of each case (its patient, else itself), numbered in order of names, and notes about missing patients."""
    check_choice(unit, UNITS, "unit")
    patients = [patient_of(p) if unit == "patient" else None for p in predictions]
    names = [("case", p.id) if who is None else ("patient", who) for p, who in zip(predictions, patients, strict=True)]
    number = {name: i for i, name in enumerate(sorted(set(names)))}
    notes = _bag_notes(predictions) if unit == "bag" else _patient_notes(predictions, patients)
    return np.array([number[name] for name in names], dtype=np.int64), notes


def patients_in_words(predictions: Sequence[Prediction]) -> str:
    """On how many patients a verdict rests: "12 patients", or "10 cases, patients unknown"."""
    count = len(set(units_of(predictions)[0].tolist()))
    known = any(patient_of(p) is not None and not _own_ids_only([p]) for p in predictions)
    what = "patient" if known else "case"
    alone = " or of one case each" if _own_ids_only(predictions) else ""
    return f"{count:,} {what}{'s' * (count != 1)}" + ("" if known else f", patients unknown{alone}")


def resampled_in_words(predictions: Sequence[Prediction]) -> str:
    """What the bootstrap draws: "12 patients resampled", or "10 cases resampled, patients unknown"."""
    count, missing = len(set(units_of(predictions)[0].tolist())), sum(patient_of(p) is None for p in predictions)
    if missing == len(predictions):
        return f"{count} cases resampled, patients unknown"
    if _own_ids_only(predictions):
        return f"{count} cases resampled, patients unknown or of one case each"
    return f"{count} patients resampled" + (f", counting {missing} cases without one" if missing else "")


def _own_ids_only(predictions: Sequence[Prediction]) -> bool:
    """Whether each case gives its own id as its patient, as older files of cases without a patient do.

    Patients who are counted as such are called by the first id of their cases, and are known.
    """
    return all(patient_of(p) == p.id and _CASES not in p.meta for p in predictions)


def _bag_notes(predictions: Sequence[Prediction]) -> list[str]:
    """A warning where cases of one patient are drawn as if they were of several."""
    patients = len(set(units_of(predictions)[0].tolist()))
    if patients == len(predictions):
        return []
    taken = (
        f"{len(predictions)} cases of {patients} {'patients' if patients > 1 else 'patient'} are taken as independent"
    )
    return [
        f"{taken}: intervals are too narrow and p values too small where cases of a patient are alike; unit patient"
    ]


def _patient_notes(predictions: Sequence[Prediction], patients: Sequence[str | None]) -> list[str]:
    missing, alone = sum(who is None for who in patients), "every case counts as a patient of its own"
    if predictions and missing == len(patients):
        return [f"no prediction names its patient (meta: patient or group): {alone}"]
    if predictions and _own_ids_only(predictions):
        return [f"each prediction gives its own id as its patient: patients are unknown or have one case each; {alone}"]
    each = "each counts as a patient of its own"
    return [f"{missing} of {len(patients)} predictions name no patient; {each}"] if missing else []


def reliability_curve(predictions: Sequence[Prediction], bins: int = _BINS) -> dict[str, Any]:
    """Observed frequency against predicted probability in bins of equal width, and the calibration error.

    Two classes: P(positive) against the share of positive cases. More: probability of the most probable class against
    the share of cases in which it was right. Lists of equal length: `low`, `high` (a bin is (low, high], the first one
    holds 0 too), `n`, `mean_probability`, `observed`; nan in empty bins. `ece` is the mean gap weighted by n,
    `largest_gap` the largest one.
    """
    if bins < 1:
        raise ConfigError(f"bins: got {bins}, expected at least 1")
    need_target(predictions, "the reliability curve", ("class", "ordinal"))
    edges = np.linspace(0, 1, bins + 1)
    counts, mean, observed = _binned(*_confidence_and_hit(*labelled_table(predictions)), edges)
    return {
        "low": edges[:-1].tolist(),
        "high": edges[1:].tolist(),
        "n": counts,
        "mean_probability": mean,
        "observed": observed,
        "ece": _mean_gap(counts, mean, observed),
        "largest_gap": max(_defined(abs(m - o) for m, o in zip(mean, observed, strict=True)), default=float("nan")),
    }


def patient_of(prediction: Prediction) -> str | None:
    """The patient of a case from meta["patient"] or meta["group"]; None when neither is stored."""
    named = (prediction.meta.get(key) for key in _PATIENT_KEYS)
    return next((str(name) for name in named if name not in (None, "")), None)


def patient_bag(prediction: Prediction) -> dict[str, Any] | None:
    """What a prediction says about the patient whose part it is; None where it stands for itself."""
    found = prediction.meta.get("patient_bag")
    if not isinstance(found, dict) or not isinstance(found.get("patient"), str) or not found["patient"]:
        return None
    known = isinstance(found.get("cases"), int) and isinstance(found.get("part"), int)
    return found if known else None


def as_patient(prediction: Prediction) -> Prediction:
    """The prediction with what is true of the patient whose part it is: its probability is the patient's."""
    found = patient_bag(prediction) or {}
    y, known = (found.get(key, getattr(prediction, key)) for key in ("y", "target"))
    return replace(prediction, y=y, target=None if known is None else np.array(known, dtype=np.float64))


def own_case(prediction: Prediction) -> Prediction | None:
    """The case by itself, with the probabilities it had before those of its patient's cases became one; None: it is
    part of a bag and has none.
    """
    found = patient_bag(prediction)
    if found is None:
        return prediction
    own = found.get("own")
    return replace(prediction, probs=np.array(own["probs"]), value=own["value"]) if isinstance(own, dict) else None


def whole_bags(predictions: Sequence[Prediction]) -> Sequence[Prediction]:
    """One prediction for every bag that a model saw: the parts of a patient's bag together, others as they are."""
    return _together(predictions, [_key(p, joined=True) for p in predictions])


def whole_patients(predictions: Sequence[Prediction]) -> Sequence[Prediction]:
    """One prediction for whatever has a probability of its own: a patient's bag or aggregated cases, or a case."""
    return _together(predictions, [_key(p, joined=False) for p in predictions])


def _key(prediction: Prediction, *, joined: bool) -> str | None:
    """Patient to whom a prediction is to be added; None: it stays by itself."""
    found = patient_bag(prediction)
    return None if found is None or (joined and "aggregate" in found) else found["patient"]


def _together(predictions: Sequence[Prediction], keys: Sequence[str | None]) -> Sequence[Prediction]:
    if not any(keys):
        return predictions
    parts: dict[tuple[str, str], list[Prediction]] = {}
    for prediction, key in zip(predictions, keys, strict=True):
        parts.setdefault(("case", prediction.id) if key is None else ("patient", key), []).append(prediction)
    return [p for (kind, key), found in parts.items() for p in ([_joined(key, found)] if kind == "patient" else found)]


def _joined(id_: str, parts: Sequence[Prediction]) -> Prediction:
    """The parts of one patient as one prediction, in the order of their numbers; maps of several have no place."""
    parts = sorted(parts, key=lambda p: p.meta["patient_bag"]["part"])
    first = parts[0]
    for other in parts[1:]:
        if not np.array_equal(other.probs, first.probs) or other.scores.shape[1] != first.scores.shape[1]:
            raise DataError(
                f"{id_}: {first.id} and {other.id} are parts of one patient with other results; predict again"
            )
    meta = {k: v for k, v in first.meta.items() if k != "patient_bag" and all(p.meta.get(k) == v for p in parts)}
    meta[_CASES] = len(parts)
    own: dict[str, Any] = {name: _stacked(parts, name) for name in _ROWS}
    own |= {"coords": first.coords, "frame": first.frame} if len(parts) == 1 else {"coords": None, "frame": None}
    whole = as_patient(first)
    scores = np.concatenate([p.scores for p in parts])
    return replace(first, id=id_, scores=scores, edges=_edges(parts), y=whole.y, target=whole.target, meta=meta, **own)


def _stacked(parts: Sequence[Prediction], name: str) -> np.ndarray | None:
    values = [getattr(p, name) for p in parts]
    if all(v is None for v in values) or (name != "y_inst" and any(v is None for v in values)):
        return None
    return np.concatenate([np.full(p.n, -1) if v is None else v for p, v in zip(parts, values, strict=True)])


def _edges(parts: Sequence[Prediction]) -> np.ndarray | None:
    starts = np.cumsum([0, *(p.n for p in parts)])
    found = [p.edges + start for p, start in zip(parts, starts, strict=False) if p.edges is not None]
    return np.concatenate(found, axis=1) if len(found) == len(parts) else None


def by_patient(predictions: Sequence[Prediction], aggregate: str = "mean") -> list[Prediction]:
    """The same cases with one probability per patient; what counts cases then counts patients.

    aggregate  mean of the probabilities of the patient's cases; max: the highest; noisy-or: 1 - Π (1 - p), the chance
               that at least one is positive if they were independent. Only the mean is defined for more than two
               classes. A patient is positive when a case is; other labels must agree. Maps, instance labels and the
               labels of cases stay as they are, and so do predictions of patients' bags.
    """
    check_choice(aggregate, AGGREGATES, "aggregate")
    own = [patient_bag(p) is not None for p in predictions]
    if not any(own) and not any(patient_of(p) for p in predictions):
        raise DataError(
            "by patient: no prediction says whose case it is; predict again with a manifest that has the column group"
        )
    cases: dict[tuple[bool, str], list[Prediction]] = {}
    for prediction in (p for p, bag in zip(predictions, own, strict=True) if not bag):
        who = patient_of(prediction)
        cases.setdefault((who is not None, who or prediction.id), []).append(prediction)
    found = {p.id: p for group in cases.values() for p in _aggregated(sorted(group, key=lambda p: p.id), aggregate)}
    return [p if bag else found[p.id] for p, bag in zip(predictions, own, strict=True)]


def judged_by(
    models: Mapping[str, Sequence[Prediction]], by: str = "case", aggregate: str | None = None
) -> dict[str, Sequence[Prediction]]:
    """{model: predictions} as they are, or by patient (`by_patient`); an aggregate without patients is refused."""
    if check_choice(by, LEVELS, "by") == "patient":
        return {name: by_patient(predictions, aggregate or AGGREGATES[0]) for name, predictions in models.items()}
    if aggregate is not None:
        raise ConfigError(f"aggregate {aggregate}: has a meaning by patient only; give --by patient, or leave it out")
    return dict(models)


def patients_in_notes(predictions: Sequence[Prediction]) -> list[str]:
    """That numbers about whole cases count patients, and how their probabilities came about, in a sentence."""
    parts = [found for p in predictions if (found := patient_bag(p)) is not None]
    if not parts:
        return []
    patients, hows = len({found["patient"] for found in parts}), sorted({str(f.get("aggregate", "")) for f in parts})
    words = {"": "one bag each", "mean": "mean of the probabilities of their cases"}
    words |= {"max": "highest probability of their cases", "noisy-or": "noisy-or of the probabilities of their cases"}
    how = " and ".join(words.get(one, "aggregated") for one in hows)
    return [f"counted by patient: {len(parts):,} cases of {patients:,} patients, {how}"]


def _aggregated(cases: Sequence[Prediction], aggregate: str) -> list[Prediction]:
    """The cases of one patient, each with the patient's probabilities."""
    patient, y, probs = cases[0].id, _label(cases), _probabilities(cases, aggregate)
    values = [p.value for p in cases if p.value is not None]
    value = float(np.mean(values)) if len(values) == len(cases) else None
    facts = {"patient": patient, "cases": len(cases), "aggregate": aggregate, "y": y}
    facts |= {} if (target := _target(cases)) is None else {"target": target}
    own = [{"own": {"probs": p.probs.tolist(), "value": p.value}, "part": part} for part, p in enumerate(cases)]
    return [
        replace(p, probs=probs, value=value, meta={**p.meta, "patient_bag": {**facts, **alone}})
        for p, alone in zip(cases, own, strict=True)
    ]


def _probabilities(cases: Sequence[Prediction], aggregate: str) -> np.ndarray:
    widths = {len(p.probs) for p in cases}
    if len(widths) > 1:
        raise DataError(f"{cases[0].id}: cases of one patient with different numbers of classes; predict them again")
    table = np.stack([p.probs for p in cases])
    if aggregate == "mean":
        return np.asarray(table.mean(0))
    if widths.pop() > 2 or cases[0].target_kind != "class" or cases[0].meta.get("link") == "sigmoid":
        raise ConfigError(
            f"aggregate {aggregate}: is defined for one positive class; probabilities of several classes or of other "
            "targets would no longer belong together; use mean"
        )
    positive = table[:, -1]
    p = positive.max() if aggregate == "max" else 1 - np.prod(1 - positive)
    return np.array([p] if table.shape[1] == 1 else [1 - p, p])


def _label(cases: Sequence[Prediction]) -> int | None:
    """The highest of two classes; others must agree. None where a case that could be positive has no label."""
    known = {p.y for p in cases if p.y is not None}
    if cases[0].n_classes > 2 and cases[0].target_kind != "multilabel" and len(known) > 1:
        named = ", ".join(f"{p.id}: {p.y}" for p in cases[:5])
        raise DataError(f"by patient: cases of one patient have different labels ({named}); correct them")
    unknown = any(p.y is None for p in cases) and 1 not in known
    return None if not known or unknown else max(known)


def _target(cases: Sequence[Prediction]) -> list[float | None] | None:
    """What is known of a patient: of several labels those of any case (None: unknown); other targets must agree."""
    rows = [p.target for p in cases if p.target is not None]
    if not rows:
        return None
    if cases[0].target_kind == "multilabel":
        table = np.stack([np.full(len(rows[0]), np.nan) if p.target is None else p.target for p in cases])
        sure = (table == 1).any(0) | ~np.isnan(table).any(0)
        return [float(value) if known else None for value, known in zip((table == 1).any(0), sure, strict=True)]
    if len(rows) < len(cases) or any(not np.array_equal(row, rows[0]) for row in rows):
        named = ", ".join(f"{p.id}: {None if p.target is None else p.target.tolist()}" for p in cases[:5])
        raise DataError(f"by patient: cases of one patient have different targets ({named}); correct them")
    return [float(value) for value in rows[0]]

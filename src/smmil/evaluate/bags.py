"""Labels, patients and probabilities of whole cases, and their calibration."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from smmil.errors import ConfigError, DataError, check_choice
from smmil.evaluate.patients import _patient_of, whole_patients
from smmil.evaluate.ranking import _BINS, _binned, _confidence_and_hit, _defined, _mean_gap
from smmil.prediction import Prediction

UNITS = ("patient", "bag")
SURVIVAL = ("survival", "cox")


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
    patients = [_patient_of(p) if unit == "patient" else None for p in predictions]
    names = [("case", p.id) if who is None else ("patient", who) for p, who in zip(predictions, patients, strict=True)]
    number = {name: i for i, name in enumerate(sorted(set(names)))}
    notes = [] if unit == "bag" else _patient_notes(predictions, patients)
    return np.array([number[name] for name in names], dtype=np.int64), notes


def _patients_in_words(predictions: Sequence[Prediction]) -> str:
    """On how many patients a verdict rests: "12 patients", or "10 cases, patients unknown"."""
    count = len(set(units_of(predictions)[0].tolist()))
    known = any(who is not None and who != p.id for p in predictions for who in [_patient_of(p)])
    what = "patient" if known else "case"
    return f"{count:,} {what}{'s' * (count != 1)}" + ("" if known else ", patients unknown")


def resampled_in_words(predictions: Sequence[Prediction]) -> str:
    """What the bootstrap draws: "12 patients resampled", or "10 cases resampled, patients unknown"."""
    count, missing = len(set(units_of(predictions)[0].tolist())), sum(_patient_of(p) is None for p in predictions)
    if missing == len(predictions):
        return f"{count} cases resampled, patients unknown"
    if _own_ids_only(predictions):
        return f"{count} cases resampled, patients unknown or of one case each"
    return f"{count} patients resampled" + (f", counting {missing} cases without one" if missing else "")


def _own_ids_only(predictions: Sequence[Prediction]) -> bool:
    """Whether each case gives its own id as its patient, as older files of cases without a patient do."""
    return all(_patient_of(p) == p.id for p in predictions)


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

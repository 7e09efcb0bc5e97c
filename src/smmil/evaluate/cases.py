"""Labels and probabilities of many cases as two arrays; and who the patient of a case is."""

from collections.abc import Sequence

import numpy as np

from smmil.errors import DataError, check_choice
from smmil.prediction import Prediction

UNITS = ("patient", "bag")
_PATIENT_KEYS = ("patient", "group")


def labelled_table(predictions: Sequence[Prediction]) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities (b, C) with C >= 2 and labels (b,) of the labelled cases; a single probability p is (1 - p, p)."""
    labelled = [p for p in predictions if p.y is not None]
    return probability_table(labelled), np.array([p.y for p in labelled], dtype=np.int64)


def probability_table(predictions: Sequence[Prediction]) -> np.ndarray:
    """(b, C) with C >= 2: a single probability p becomes (1 - p, p)."""
    widths = {len(p.probs): p.id for p in predictions}
    if len(widths) > 1:
        listed = ", ".join(f"{case}: {width}" for width, case in sorted(widths.items()))
        raise DataError(f"predictions of different numbers of classes cannot be evaluated together ({listed})")
    if not predictions:
        return np.zeros((0, 2))
    table = np.stack([p.probs for p in predictions])
    return table if table.shape[1] > 1 else np.hstack([1 - table, table])


def patient_of(prediction: Prediction) -> str | None:
    """The patient a case belongs to, as meta["patient"] or meta["group"] says; None when neither does."""
    named = (prediction.meta.get(key) for key in _PATIENT_KEYS)
    return next((str(name) for name in named if name not in (None, "")), None)


def units_of(predictions: Sequence[Prediction], unit: str = "patient") -> tuple[np.ndarray, list[str]]:
    """Number of the independent unit of each case, counted in order of the units' names, and remarks about it.

    A case without a patient stands for itself, and a remark says so.
    """
    check_choice(unit, UNITS, "unit")
    patients = [patient_of(p) if unit == "patient" else None for p in predictions]
    names = [("case", p.id) if who is None else ("patient", who) for p, who in zip(predictions, patients, strict=True)]
    number = {name: i for i, name in enumerate(sorted(set(names)))}
    remarks = [] if unit == "bag" else _remarks(predictions, patients)
    return np.array([number[name] for name in names], dtype=np.int64), remarks


def resampled_in_words(predictions: Sequence[Prediction]) -> str:
    """What is drawn from these cases: "12 patients resampled", or "10 cases resampled, patients unknown"."""
    count, missing = len(set(units_of(predictions)[0].tolist())), sum(patient_of(p) is None for p in predictions)
    if missing == len(predictions):
        return f"{count} cases resampled, patients unknown"
    if _own_ids_only(predictions):
        return f"{count} cases resampled, patients unknown or of one case each"
    return f"{count} patients resampled" + (f", counting {missing} cases without one" if missing else "")


def _own_ids_only(predictions: Sequence[Prediction]) -> bool:
    """Whether each case gives its own id as its patient: all that older files of cases without a patient say."""
    return all(patient_of(p) == p.id for p in predictions)


def score_kind(predictions: Sequence[Prediction]) -> tuple[str, list[str]]:
    """What the scores are, as the predictions say, and a remark when they disagree."""
    kinds = sorted({str(p.meta.get("score_kind", "unknown")) for p in predictions})
    if len(kinds) < 2:
        return (kinds or ["unknown"])[0], []
    return " + ".join(kinds), ["scores of different kinds are mixed; they are not comparable between bags"]


def _remarks(predictions: Sequence[Prediction], patients: Sequence[str | None]) -> list[str]:
    missing, alone = sum(who is None for who in patients), "every case counts as a patient of its own"
    if predictions and missing == len(patients):
        return [f"no prediction names its patient (meta: patient or group): {alone}"]
    if predictions and _own_ids_only(predictions):
        return [f"each prediction gives its own id as its patient: patients are unknown or have one case each; {alone}"]
    each = "each counts as a patient of its own"
    return [f"{missing} of {len(patients)} predictions name no patient; {each}"] if missing else []

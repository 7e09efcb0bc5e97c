"""How good a model is, from predictions of its own: metrics with intervals, as `smmil evaluate --ci` gives them."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from smmil.errors import DataError
from smmil.evaluate import bootstrap_ci
from smmil.prediction import Prediction, load_predictions

RESAMPLES = 2000


class Measure(NamedTuple):
    """A metric of `smmil.evaluate`, the instances it goes over, and its names for people and for the hub."""

    metric: str
    pool: str
    name: str
    type: str


CASES = (
    Measure("bag_auroc", "all", "AUROC of cases", "roc_auc"),
    Measure("bag_auprc", "all", "average precision of cases", "average_precision"),
    Measure("bag_f1", "all", "F1 of cases", "f1"),
    Measure("bag_accuracy", "all", "accuracy of cases", "accuracy"),
    Measure("bag_balanced_accuracy", "all", "balanced accuracy of cases", "balanced_accuracy"),
    Measure("bag_brier", "all", "Brier score of cases (lower is better)", "brier_score"),
)
INSTANCES = (
    Measure("inst_auroc", "all", "AUROC of instances, all cases", "roc_auc"),
    Measure("inst_auroc", "positive_bags", "AUROC of instances, positive cases", "roc_auc"),
)


def measure(folder: str | Path, weights: str, resamples: int = RESAMPLES) -> dict[str, Any]:
    """Metrics of the predictions in a folder; an error when they were made by other weights than these."""
    predictions = load_predictions(folder)
    others = sorted(p.id for p in predictions if p.meta.get("weights") != weights)
    if others:
        raise DataError(
            f"{folder}: {len(others)} of {len(predictions)} predictions were made by other weights; "
            "give those of the checkpoint that is packaged"
        )
    labelled = [p for p in predictions if p.y is not None]
    if not labelled:
        raise DataError(f"{folder}: no prediction has a label, so nothing can be measured; leave out --predictions")
    rows = [_row(labelled, one, resamples) for one in (*CASES, *_instance_measures(labelled))]
    return {
        "parts": sorted({str(_part(p)) for p in predictions}),
        "cases": len(labelled),
        "positive_cases": sum(bool(p.y) for p in labelled),
        "metrics": [row for row in rows if math.isfinite(row["value"])],
        "notes": list(dict.fromkeys(note for row in rows for note in row.pop("notes"))),
    }


def _part(prediction: Prediction) -> str:
    split = prediction.meta.get("split")
    return (split.get("part") if isinstance(split, dict) else None) or "other cases"


def _instance_measures(predictions: Sequence[Prediction]) -> tuple[Measure, ...]:
    """Those of instances where some are labelled and one map says which are suspicious."""
    known = any(p.y_inst is not None and (p.y_inst >= 0).any() for p in predictions)
    return INSTANCES if known and all(p.scores.shape[1] == 1 for p in predictions) else ()


def _row(predictions: Sequence[Prediction], one: Measure, resamples: int) -> dict[str, Any]:
    found = bootstrap_ci(predictions, one.metric, n=resamples, pool=one.pool)
    ends = {end: found[end] if math.isfinite(found[end]) else None for end in ("low", "high")}
    facts = {"level": found["level"], "patients": found["n_units"], "notes": found["notes"]}
    return {**one._asdict(), "value": found["value"], **ends, **facts}

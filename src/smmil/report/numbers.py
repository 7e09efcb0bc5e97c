"""Metrics of a report with intervals, and whether they may be compared and trusted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smmil.evaluate import froc
from smmil.evaluate.detection import usable
from smmil.evaluate.folders import add_intervals, summarize_models
from smmil.prediction import Prediction

Models = Mapping[str, Sequence[Prediction]]
Results = dict[str, dict[str, Any]]
CASES, INSTANCES = "Is it there? (whole cases)", "Where is it? (instances)"
SMOOTH = "How smooth are the maps?"


@dataclass(frozen=True)
class Row:
    """A metric: heading of its group, its name, where it stands in the results, the measure of its interval."""

    group: str
    name: str
    path: tuple[str, ...]
    interval: str | None = None
    better: int = 1


ROWS = (
    Row(CASES, "AUROC", ("bag", "auroc"), "bag_auroc"),
    Row(CASES, "AUPRC", ("bag", "auprc"), "bag_auprc"),
    Row(CASES, "F1", ("bag", "f1"), "bag_f1"),
    Row(CASES, "Accuracy", ("bag", "accuracy"), "bag_accuracy"),
    Row(CASES, "Balanced accuracy", ("bag", "balanced_accuracy"), "bag_balanced_accuracy"),
    Row(CASES, "Sensitivity at 90 % specificity", ("bag", "sensitivity_at_90")),
    Row(CASES, "Sensitivity at 95 % specificity", ("bag", "sensitivity_at_95")),
    Row(CASES, "Brier score ↓", ("bag", "brier"), "bag_brier", -1),
    Row(CASES, "Calibration error (ECE) ↓", ("bag", "ece"), None, -1),
    Row(CASES, "Cross-entropy ↓", ("bag", "loss"), None, -1),
    Row(INSTANCES, "AUROC, all cases", ("instance", "all", "auroc"), "inst_auroc"),
    Row(INSTANCES, "AUROC, positive cases", ("instance", "positive_bags", "auroc"), "inst_auroc@positive_bags"),
    Row(INSTANCES, "AUPRC, all cases", ("instance", "all", "auprc")),
    Row(INSTANCES, "F1 = Dice", ("instance", "all", "f1"), "inst_f1"),
    Row(INSTANCES, "IoU", ("instance", "all", "iou")),
    Row(INSTANCES, "Precision", ("instance", "all", "precision")),
    Row(INSTANCES, "Recall", ("instance", "all", "recall")),
    Row(INSTANCES, "Hottest instance is right", ("instance", "positive_bags", "pointing_game")),
    Row(INSTANCES, "FROC (lesions found at ¼ to 8 false alarms)", ("froc", "froc"), "froc"),
    Row(SMOOTH, "Roughness f'L̃f / f'f (0 is smoothest)", ("energy", "rayleigh"), None, 0),
)


def measure(
    models: Models,
    *,
    validation: Sequence[str | Path] = (),
    threshold: float | None = None,
    column: int | None = None,
    resamples: int = 1000,
) -> Results:
    """Summary, FROC with its curve, and intervals of each model; patients are resampled. resamples=0: no intervals."""
    results = summarize_models(models, validation=validation, threshold=threshold, column=column)
    for name, found in results.items():
        if any(usable(p) for p in models[name]):
            found["froc"] = froc(models[name], column=column)
        if resamples:
            measures = _possible(models[name], found)
            add_intervals({name: found}, {name: models[name]}, measures, n=resamples, column=column)
    return results


def _possible(predictions: Sequence[Prediction], found: dict[str, Any]) -> list[str]:
    """Measures for which there are labels, and a threshold where one is needed."""
    wanted = [row.interval for row in ROWS if row.interval]
    parts = {
        "bag": any(p.y is not None for p in predictions),
        "inst": found["instance"]["all"]["n_instances"] > 0,
        "froc": found.get("froc", {}).get("n_lesions", 0) > 0,
    }
    kept = [name for name in wanted if parts[name.split("_")[0]]]
    return [name for name in kept if name != "inst_f1" or found["threshold"]["value"] is not None]


def value_of(found: Mapping[str, Any], row: Row) -> float | None:
    """The number of a row, None when it was not measured or is undefined."""
    inside: Any = found
    for key in row.path:
        inside = inside.get(key) if isinstance(inside, Mapping) else None
    return inside if isinstance(inside, float | int) and inside == inside else None


def interval_of(found: Mapping[str, Any], row: Row) -> tuple[float, float] | None:
    """Ends of the 95 % interval, None where there is none."""
    ci = found.get("ci", {}).get(row.interval) if row.interval else None
    return None if ci is None or ci["low"] != ci["low"] or ci["high"] != ci["high"] else (ci["low"], ci["high"])


def remarks(results: Results) -> list[str]:
    """Every note of the numbers once, with the models it belongs to."""
    said: dict[str, list[str]] = {}
    for model, found in results.items():
        parts = [found["bag"], *found["instance"].values(), found["energy"], found.get("froc", {})]
        for part in [*parts, *found.get("ci", {}).values(), found]:
            for note in part.get("notes", []):
                if model not in said.setdefault(note, []):
                    said[note].append(model)
    every = len(results)
    return [note if len(who) == every else f"{', '.join(who)}: {note}" for note, who in said.items()]


def other_cases(models: Models) -> str | None:
    """Why numbers about whole cases cannot be compared: other cases, labels or classes; None: they can."""
    tables = [{p.id: p for p in predictions} for predictions in models.values()]
    shared = set.intersection(*(set(table) for table in tables))
    largest = max(len(table) for table in tables)
    if any(len(table) != len(shared) for table in tables):
        return f"the models were not given the same cases ({len(shared):,} of at most {largest:,} in common)"
    changed = sum(len({table[id_].y for table in tables}) > 1 for id_ in shared)
    if changed:
        return f"{changed:,} of {len(shared):,} cases have another label in another model's predictions"
    if len({predictions[0].n_classes for predictions in models.values()}) > 1:
        return "the models do not tell the same number of classes apart"
    return None


def other_instances(models: Models) -> str | None:
    """Why numbers about instances cannot be compared: other cases, or other instances in them; None: they can."""
    reason = other_cases(models)
    if reason is not None:
        return reason
    cases = zip(*(sorted(predictions, key=lambda p: p.id) for predictions in models.values()), strict=True)
    changed = sum(len({_content(p) for p in same}) > 1 for same in cases)
    if changed:
        return f"{changed:,} cases have other instances or instance labels in another model's predictions"
    return None


def _content(prediction: Prediction) -> tuple[int, int, int]:
    """Number of instances, of those with a known label, and of positive ones; their order does not matter."""
    labels = prediction.y_inst
    if labels is None:
        return prediction.n, 0, 0
    return prediction.n, int((labels >= 0).sum()), int((labels > 0).sum())

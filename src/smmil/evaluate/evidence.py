"""Numbers for several models with what is needed to believe them: intervals, comparisons, lesions found."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from smmil.errors import DataError, check_choice
from smmil.evaluate.bootstrap import bootstrap_ci
from smmil.evaluate.comparison import compare
from smmil.evaluate.detection import froc
from smmil.evaluate.family import holm
from smmil.evaluate.instances import AT_A_THRESHOLD, POOLS
from smmil.evaluate.statistic import full_name
from smmil.prediction import Prediction

Models = Mapping[str, Sequence[Prediction]]
Results = dict[str, dict[str, Any]]
USUAL = ("bag_auroc", "bag_f1", "inst_auroc", "inst_auroc@positive_bags", "inst_f1")


class Measure(NamedTuple):
    """A metric and the pool of instances it is taken over; written metric or metric@pool."""

    metric: str
    pool: str = "all"

    @classmethod
    def parse(cls, text: str) -> "Measure":
        name, _, pool = text.partition("@")
        return cls(full_name(name), check_choice(pool or "all", POOLS, f"pool of {name}"))

    @property
    def label(self) -> str:
        return self.metric if self.pool == "all" else f"{self.metric}@{self.pool}"

    @property
    def needs_threshold(self) -> bool:
        return self.metric.startswith("inst_") and self.metric.removeprefix("inst_") in AT_A_THRESHOLD


def add_froc(results: Results, models: Models, column: int | None = None) -> None:
    """Under "froc" of each model: sensitivities at the usual rates and their mean (the curve itself is left out)."""
    for name, found in results.items():
        found["froc"] = {k: v for k, v in froc(models[name], column=column).items() if k != "curve"}


def add_intervals(results: Results, models: Models, measures: Sequence[str] = USUAL, **options: Any) -> None:
    """Under "ci" of each model: {measure: bootstrap_ci}, instance metrics at the threshold of its summary."""
    for name, found in results.items():
        found["ci"] = {}
        for measure in _possible(measures, [found]):
            settings = {**options, "pool": measure.pool, "threshold": _cut(found, measure)}
            found["ci"][measure.label] = bootstrap_ci(models[name], measure.metric, **settings)


def add_comparisons(
    results: Results,
    models: Models,
    others: Models,
    other_results: Results,
    measures: Sequence[str] = USUAL,
    **options: Any,
) -> None:
    """Under "comparisons" of each model: rows of `compare` against the other one, the same name or the only one.

    p_holm corrects for all rows of this call with the same measure.
    """
    rows: dict[str, list[dict[str, Any]]] = {}
    for name, found in results.items():
        other = _opponent(name, others)
        found["comparisons"] = []
        for measure in _possible(measures, [found, other_results[other]]):
            cuts = _cut(found, measure), _cut(other_results[other], measure)
            settings = {**options, "pool": measure.pool, "threshold": cuts}
            row = {
                "measure": measure.label,
                "other": other,
                **compare(models[name], others[other], measure.metric, **settings),
            }
            found["comparisons"].append(row)
            rows.setdefault(measure.label, []).append(row)
    for family in rows.values():
        for row, corrected in zip(family, holm([row["p"] for row in family]), strict=True):
            row["p_holm"] = corrected


def long_table(results: Results) -> list[dict[str, Any]]:
    """Every number as a row: model, part, metric, value, low, high; for a CSV file."""
    rows = []
    for model, found in results.items():
        parts = {"bag": found["bag"], **{f"instance@{p}": m for p, m in found["instance"].items()}}
        for part, values in {**parts, "energy": found["energy"], "froc": found.get("froc", {})}.items():
            numbers = {k: v for k, v in values.items() if isinstance(v, int | float) and not isinstance(v, bool)}
            rows += [{"model": model, "part": part, "metric": k, "value": v} for k, v in numbers.items()]
        for label, ci in found.get("ci", {}).items():
            rows.append({"model": model, "part": "ci", "metric": label, **{k: ci[k] for k in ("value", "low", "high")}})
        for row in found.get("comparisons", []):
            numbers = {"value": row["difference"], **{k: row[k] for k in ("low", "high", "p", "p_holm")}}
            rows.append({"model": model, "part": f"difference to {row['other']}", "metric": row["measure"], **numbers})
    return rows


def _possible(measures: Sequence[str], summaries: Sequence[dict[str, Any]]) -> list[Measure]:
    """The measures that can be taken: of the usual ones F1 is left out without a threshold, and a note says so.

    Measures asked for by name are never left out; what they lack is an error.
    """
    asked = [Measure.parse(text) for text in measures]
    if tuple(measures) != USUAL or all(found["threshold"]["value"] is not None for found in summaries):
        return asked
    notes = summaries[0].setdefault("notes", [])
    note = "inst_f1 has no interval and no comparison: a model has no threshold (give validation predictions)"
    notes += [note] if note not in notes else []
    return [m for m in asked if not m.needs_threshold]


def _cut(found: dict[str, Any], measure: Measure) -> float | None:
    """Instance metrics are cut at the model's own threshold, bag metrics at their usual one."""
    return found["threshold"]["value"] if measure.metric.startswith("inst_") else None


def _opponent(name: str, others: Models) -> str:
    if name in others:
        return name
    if len(others) == 1:
        return next(iter(others))
    raise DataError(f"--compare: no model {name} among {', '.join(others)}; give one model, or folders of equal names")

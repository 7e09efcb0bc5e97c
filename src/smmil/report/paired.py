"""Paired differences of the models of a report: the same patients judged by both, and what kind of difference it is."""

from collections.abc import Mapping
from typing import Any

from smmil.evaluate.bootstrap import threshold_for
from smmil.evaluate.comparison import compare, pointing_or_telling
from smmil.evaluate.metrics import PooledMetric, metric_name, usual_measures
from smmil.evaluate.resampling import interval_text, p_text
from smmil.evaluate.significance import holm
from smmil.report.numbers import INSTANCES, Models, Results, _cases_heading, _target_of


def _paired_differences(
    models: Models, results: Results, unmarked: Mapping[str, str], *, column: int | None, resamples: int
) -> dict[str, Any]:
    """The first model minus every other, for the measures all have: rows of texts, and sentences about instances.

    unmarked  groups of metrics in which the models cannot be compared
    """
    if len(models) < 2 or not resamples:
        return {"rows": [], "words": []}
    (first, *others), rows, by_model = models, [], dict[str, dict[str, dict[str, Any]]]()
    target = _target_of(results)
    for label in usual_measures(target):
        group = _cases_heading(target) if label.startswith("bag_") else INSTANCES
        if group in unmarked or any(label not in found.get("ci", {}) for found in results.values()):
            continue
        measure = PooledMetric.parse(label)
        cuts = {name: threshold_for(measure, found) for name, found in results.items()}
        options: dict[str, Any] = {"n": resamples, "pool": measure.pool, "column": column}
        found = {
            other: compare(
                models[first], models[other], measure.metric, **options, threshold=(cuts[first], cuts[other])
            )
            for other in others
        }
        corrected = holm({other: row["p"] for other, row in found.items()})
        for other, row in found.items():
            rows.append(_texts(label, {**row, "model": first, "other": other, "p_holm": corrected[other]}))
            by_model.setdefault(other, {})[label] = row
    told = [pointing_or_telling(first, other, held) for other, held in by_model.items()]
    return {"rows": rows, "words": [words for words in told if words]}


def _texts(label: str, row: Mapping[str, Any]) -> dict[str, str]:
    short = row["shortage"]
    return {
        "measure": metric_name(label),
        "models": f"{row['model']} − {row['other']}",
        "difference": "–" if row["difference"] != row["difference"] else f"{row['difference']:+.3f}",
        "interval": interval_text(row["low"], row["high"], short, "+.3f"),
        "p": p_text(row["p"], short),
        "p_holm": p_text(row["p_holm"], short),
    }

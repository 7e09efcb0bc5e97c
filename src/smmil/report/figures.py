"""The figures of a report, each with a sentence for screen readers."""

from collections.abc import Mapping, Sequence
from typing import Any

from smmil.errors import DataError
from smmil.maps.histogram import score_shares
from smmil.prediction import Prediction
from smmil.report.chart import curve_chart, histogram_chart
from smmil.report.curves import froc_lines, precision_lines, reliability_lines, roc_lines

Models = Mapping[str, Sequence[Prediction]]


def figures(models: Models, results: Mapping[str, Mapping[str, Any]], column: int | None = None) -> list[str]:
    """SVG figures for which the labels suffice: curves first, then one histogram of scores per model."""
    found = []
    if lines := roc_lines(models):
        words = f"Area under the curve: {_listed(results, 'bag', 'auroc')}."
        axes = ("false positive rate", "true positive rate")
        found.append(curve_chart("ROC, whole cases", axes, lines, words=words, diagonal=True))
    if lines := precision_lines(models):
        words = f"Average precision: {_listed(results, 'bag', 'auprc')}."
        found.append(curve_chart("Precision and recall, whole cases", ("recall", "precision"), lines, words=words))
    if lines := reliability_lines(models):
        words = f"Expected calibration error: {_listed(results, 'bag', 'ece')}. On the diagonal probabilities are true."
        axes = ("what was said", "what came true")
        found.append(curve_chart("Reliability", axes, lines, words=words, diagonal=True, dots=True))
    if lines := froc_lines(results):
        words = f"Mean share of lesions found: {_listed(results, 'froc', 'froc')}."
        axes = ("false alarms per case", "share of lesions found")
        found.append(curve_chart("FROC, lesions", axes, lines, words=words, most=8.0))
    return found + [h for name, p in models.items() if (h := _histogram(name, p, column))]


def _histogram(name: str, predictions: Sequence[Prediction], column: int | None) -> str | None:
    try:
        shares = score_shares(predictions, column=column)
    except DataError:
        return None  # no instance label is known, so there is nothing to tell apart; the numbers say so too
    kind = str(predictions[0].meta.get("score_kind", "score"))
    words = f"Scores ({kind}) of positive and negative instances, from {shares.lowest:.3g} to {shares.highest:.3g}."
    return histogram_chart(f"Instance scores, {name}", shares, words=words)


def _listed(results: Mapping[str, Mapping[str, Any]], *path: str) -> str:
    parts = []
    for name, found in results.items():
        value = (found.get(path[0]) or {}).get(path[1])
        parts.append(f"{name} {value:.3f}" if isinstance(value, float) and value == value else f"{name} undefined")
    return ", ".join(parts)

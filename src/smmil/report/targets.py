"""Figures and texts of a report about targets that are no classes: survival, several labels, levels, numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smmil.evaluate.bags import is_labelled, labelled_table
from smmil.evaluate.ranking import OperatingPoints
from smmil.evaluate.risk_groups import RiskGroups, risk_groups
from smmil.evaluate.targets import TargetTable, of_label
from smmil.prediction import Prediction
from smmil.report.charts import (
    SLOTS,
    _Axes,
    _curve_chart,
    _figure,
    _froc_lines,
    _histogram,
    _Line,
    _line,
    _listed,
    _Ranking,
    _ticks,
)
from smmil.web import render

_Models = Mapping[str, Sequence[Prediction]]
_Results = Mapping[str, Mapping[str, Any]]
_TILES = (
    ("Case AUROC", ("bag", "auroc"), "tells positive from negative cases"),
    (
        "Localisation AUROC",
        ("instance", "positive_bags", "auroc"),
        "finds the lesion: instances of all positive cases together",
    ),
    ("FROC", ("froc", "froc"), "lesions found at ¼ to 8 false alarms per case"),
)
_CENSORING = "Censored cases are made up for by the others (inverse probability of censoring weights)."
_AT_RISK = (
    ("C-index", ("bag", "c_index"), "the case with the earlier event has the higher risk (Harrell)"),
    ("AUROC over time", ("bag", "time_auroc"), "tells cases with an event from those without; mean over the times"),
)
_CASE_TILES = {
    "multilabel": (("Label AUROC", ("bag", "auroc"), "tells cases with a label from others; mean over the labels"),),
    "ordinal": (("Quadratic kappa", ("bag", "kappa"), "agreement of levels beyond chance"),),
    "regression": (
        ("Spearman", ("bag", "spearman"), "ranks the cases as their true numbers do"),
        ("Mean error", ("bag", "mae"), "mean distance from the true number"),
    ),
    "survival": _AT_RISK,
    "cox": _AT_RISK,
}
_ANSWERS = {
    "multilabel": "Labels are called from a probability of 0.5 on; means leave out labels of one class only.",
    "ordinal": "The answer is the most probable level.",
    "regression": "",
    "survival": _CENSORING,
    "cox": _CENSORING,
}


def _tiles_of(target: str) -> Sequence[tuple[str, tuple[str, ...], str]]:
    """Heading, path of the number and words of the tiles on top of the page, for a kind of target."""
    return (*_CASE_TILES.get(target, _TILES[:1]), *_TILES[1:])


def _target_figures(models: _Models, results: _Results, column: int | None = None) -> list[str]:
    """Figures of whole cases for their kind of target, then FROC and one histogram of scores per model."""
    kind = next(iter(models.values()))[0].target_kind
    draw = {"multilabel": _label_curves, "ordinal": _confusions, "regression": _scatter}
    known = {name: [p for p in cases if is_labelled(p)] for name, cases in models.items()}
    found = draw.get(kind, _survival_curves)(known, results) if any(known.values()) else []
    lesions = _froc_lines(results)
    words = f"Mean share of lesions found: {_listed(results, 'froc', 'froc')}."
    axes = "false alarms per case", "share of lesions found"
    found += [_curve_chart("FROC, lesions", axes, lesions, words=words, most=8.0)] if lesions else []
    return found + [h for name, cases in models.items() if (h := _histogram(name, cases, column))]


def _survival_curves(models: _Models, results: _Results) -> list[str]:
    """Kaplan–Meier curves of the risk groups of each model, with the log-rank p and the numbers at risk."""
    found = [(name, risk_groups(cases)) for name, cases in models.items() if cases]
    return [_survival_chart(name, groups) for name, groups in found if groups.groups]


def _survival_chart(name: str, found: RiskGroups) -> str:
    latest = max(float(g.curve.times[-1]) for g in found.groups) or 1.0
    lines = []
    for slot, group in enumerate(found.groups):
        x = np.repeat(np.concatenate([[0.0], group.curve.times]), 2)[1:]
        y = np.repeat(np.concatenate([[1.0], group.curve.survival]), 2)[:-1]
        lines.append(_Line(f"{group.name}: {group.n} {found.word}, {group.n_events} with an event", slot, x, y))
    test = f"log-rank p {found.p_text}"
    words = f"Share without event over time; {test}. " + "; ".join(line.name for line in lines) + "."
    ticks = _ticks(latest)
    rows = [(g.name, [f"{g.curve.followed(time):.0f}" for time in ticks]) for g in found.groups]
    return _curve_chart(
        f"Survival by predicted risk, {name} ({test})",
        ("time", "share without event"),
        lines,
        words=words,
        most=latest,
        below={"caption": "Numbers at risk", "head": [f"{time:g}" for time in ticks], "rows": rows},
    )


def _scatter(models: _Models, results: _Results) -> list[str]:
    """Predicted against true numbers of all models; on the diagonal they are right."""
    tables = {name: TargetTable(cases) for name, cases in models.items() if cases}
    both = np.concatenate([np.concatenate([t.target[:, 0], t.value]) for t in tables.values()])
    low, high = float(both.min()), float(both.max())
    room = 0.05 * ((high - low) or 1.0)
    scale = _Axes((low - room, high + room), (low - room, high + room))
    dots = [
        _dot(scale, slot, p.id, true, said)
        for slot, table in enumerate(tables.values())
        for p, true, said in zip(table.cases, table.target[:, 0].tolist(), table.value.tolist(), strict=True)
    ]
    named = next(iter(tables.values())).names or ["number"]
    ticks = _ticks(high + room, low - room)
    return [
        _figure(
            scale,
            (ticks, ticks),
            title="Predicted and true numbers",
            words=f"Spearman's correlation: {_listed(results, 'bag', 'spearman')}. On the diagonal they are right.",
            axes=(f"true {named[0]}", f"predicted {named[0]}"),
            diagonal=True,
            dots=dots,
            keys=[{"slot": slot % SLOTS, "name": name} for slot, name in enumerate(tables)],
        )
    ]


def _dot(scale: _Axes, slot: int, id_: str, true: float, said: float) -> dict[str, Any]:
    words = f"{id_}: predicted {said:.4g}, true {true:.4g}"
    return {"slot": slot % SLOTS, "x": scale.right(true), "y": scale.down(said), "radius": "3.0", "words": words}


def _confusions(models: _Models, results: _Results) -> list[str]:
    """How often each true level got each answer, one table per model."""
    figures = []
    for name, cases in models.items():
        if not cases:
            continue
        table = TargetTable(cases)
        size = max(len(cases[0].probs), 2)
        counts = np.zeros((size, size), dtype=int)
        np.add.at(counts, (table.target[:, 0].astype(int), table.levels), 1)
        shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        rows = [[(int(n), f"{s:.2f}") for n, s in zip(*both, strict=True)] for both in zip(counts, shares, strict=True)]
        kappa = f"quadratic kappa {_listed({name: results[name]}, 'bag', 'kappa').removeprefix(f'{name} ')}"
        figures.append(render("confusion.html", title=f"Levels, {name} ({kappa})", rows=rows, levels=range(size)))
    return figures


def _label_curves(models: _Models, results: _Results) -> list[str]:
    """ROC and precision of every label; colour tells the label of a single model, else the model."""
    names = next(cases for cases in models.values() if cases)[0].target_names
    roc, precision = [], []
    for slot, (model, cases) in enumerate(models.items()):
        for k, name in enumerate(names):
            probs, y = labelled_table(of_label(cases, name))
            points = OperatingPoints.of(probs[:, 1], y > 0)
            if not points.both_classes:
                continue
            who = name if len(models) == 1 else f"{model}, {name}"
            one = _Ranking(who, k if len(models) == 1 else slot, k)
            hits, alarms = points.true_positives, points.false_positives
            roc.append(_line(one, np.append(0, alarms / alarms[-1]), np.append(0, hits / hits[-1])))
            right = hits / (hits + alarms)
            precision.append(_line(one, np.append(0, hits / hits[-1]), np.append(right[0], right)))
    areas = f"Area under the curve, mean over labels: {_listed(results, 'bag', 'auroc')}."
    means = f"Average precision, mean over labels: {_listed(results, 'bag', 'auprc')}."
    axes = "false positive rate", "true positive rate"
    return [
        *([_curve_chart("ROC, each label", axes, roc, words=areas, diagonal=True)] if roc else []),
        *([_curve_chart("Precision and recall, each label", ("recall", "precision"), precision, words=means)]
          if precision else []),
    ]  # fmt: skip

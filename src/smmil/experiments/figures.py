"""Figures of a study: sweeps, histograms, maps, labelled examples and mean ranks, as PNG and SVG."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from smmil.errors import DataError
from smmil.evaluate import spread
from smmil.experiments import drawing
from smmil.experiments.certainty import RESAMPLES, comparisons, pair_differences
from smmil.experiments.datasets import neighbour_agreement
from smmil.experiments.forest import by_difficulty, differences
from smmil.experiments.histogram_figure import histograms
from smmil.experiments.map_figure import examples, maps
from smmil.experiments.metric_words import direction
from smmil.experiments.rank_figure import rank_figure
from smmil.experiments.ranking import DIGITS
from smmil.experiments.results import aggregate, chosen_rows
from smmil.experiments.shown import first_predictions
from smmil.experiments.study import FigureSpec, Study, headline
from smmil.experiments.writing import GROUPS
from smmil.prediction import Prediction

if TYPE_CHECKING:
    from pandas import DataFrame

Found = dict[str, list[Prediction]]
_TITLES = {
    "histograms": "Scores of positive and negative instances",
    "maps": "Maps of the scores",
    "examples": "Labels of instances",
    "critical_difference": "Mean ranks",
    "differences": "Differences",
    "pairs": "Each beside its partner",
    "difficulty": "From hard to easy",
}
ACROSS_SETS = ("critical_difference", "difficulty")


def make_figure(study: Study, figure: FigureSpec, results: "DataFrame", out: Path, folder: Path) -> list[Path]:
    """The files of one figure from the results of one data set; some kinds are drawn over all that are given."""
    path = Path(folder) / figure.name
    if figure.kind in ACROSS_SETS:
        draw = _ranks if figure.kind == "critical_difference" else _difficulty
        return draw(study, figure, results, path)
    set_ = str(results["set"].iloc[0])
    own, title = path.with_name(f"{figure.name}-{slug(set_)}"), _title(study, figure, set_)
    if figure.kind == "sweep":
        return _sweep(study, figure, results, own, title)
    if figure.kind in ("differences", "pairs"):
        return _differences(study, figure, results, Path(out), own, title)
    found = first_predictions(results, Path(out), _variants(study, figure))
    return _PICTURES[figure.kind](figure, found, own, title)


def _title(study: Study, figure: FigureSpec, *more: str) -> str:
    """The caveat of the study, the figure's title or what it shows, and what tells it from its siblings."""
    return "  ·  ".join([headline(study, figure.title or _TITLES.get(figure.kind, study.title or figure.name)), *more])


def _sweep(study: Study, figure: FigureSpec, results: "DataFrame", path: Path, title: str) -> list[Path]:
    """Metrics against the value of an option; a learned value stands where it ended, words stand at the right end."""
    option = figure.setting or ""
    swept = {v.name: v.setting[option] for v in study.variants if option in v.setting and _asked(figure, v.name)}
    rows = chosen_rows(results[results["variant"].isin(swept)])
    parts = {swept[str(name)]: part for name, part in rows.groupby("variant")}
    if not parts:
        raise DataError(f"{figure.name}: no run of {', '.join(swept)} is done yet; begin with smmil experiment run")
    lines = {}
    for metric in figure.metrics:
        found = {value: spread(part[metric]) for value, part in parts.items()}
        lines[metric] = [(value, one.mean, one.sample_std) for value, one in found.items()]
    learned = spread(parts["learned"]["alpha"]).mean if "learned" in parts else None
    return drawing.curves(lines, path, option, title, learned)


def _differences(
    study: Study, figure: FigureSpec, results: "DataFrame", out: Path, path: Path, title: str
) -> list[Path]:
    """How far each variant is above the reference, or above its partner, with intervals."""
    asked = _variants(study, figure)
    if figure.kind == "pairs":
        pairs = {one: other for one, other in study.pairs.items() if one in asked}
        rows = pair_differences(results, out, figure.metrics, pairs, n=RESAMPLES)
    else:
        mine = results[results["variant"].isin([*asked, study.reference])]
        rows = comparisons(mine, out, figure.metrics, str(study.reference), n=RESAMPLES, order=asked)
    if not len(rows) or rows.get("difference", rows["value"] * np.nan).isna().all():
        raise DataError(f"{figure.name}: no two variants to compare are done yet; begin with smmil experiment run")
    return differences(rows, path, title)


def _difficulty(study: Study, figure: FigureSpec, results: "DataFrame", path: Path) -> list[Path]:
    """Metrics of every variant against an option of the synthetic sets."""
    option = str(figure.setting)
    values = {
        d.name: d.synthetic.options[option] for d in study.datasets if d.synthetic and option in d.synthetic.options
    }
    rows = aggregate(results, figure.metrics, study.ddof)
    rows = rows[rows["dataset"].isin(values) & rows["model"].isin(_variants(study, figure))]
    lines: dict[str, dict[str, list[tuple[float, float, float]]]] = {}
    for metric, variant in ((m, v) for m in figure.metrics for v in _variants(study, figure)):
        part = rows[(rows["metric"] == metric) & (rows["model"] == variant)]
        points = [(values[r["dataset"]], r["mean"], r["std"]) for r in part.to_dict("records")]
        if points:
            lines.setdefault(metric, {})[variant] = points
    if not lines:
        raise DataError(f"{figure.name}: no run of these data sets is done yet; begin with smmil experiment run")
    return by_difficulty(lines, path, option, _title(study, figure))


def _histograms(figure: FigureSpec, found: Found, path: Path, title: str) -> list[Path]:
    """Scores of positive and negative instances, a panel per variant."""
    return histograms(found, path, f"{title}  ·  test cases, first fold")


def _maps(figure: FigureSpec, found: Found, path: Path, title: str) -> list[Path]:
    """Truth and the map of every variant for the same cases."""
    paths = []
    for case in _cases(found, figure.cases):
        models = {name: next(p for p in cases if p.id == case) for name, cases in found.items()}
        label = next(iter(models.values())).y
        told = f"{title}\n{case}, {'label unknown' if label is None else f'label {label}'}"
        paths += maps(models, path.with_name(f"{path.name}-{slug(case)}"), told)
    return paths


def _examples(figure: FigureSpec, found: Found, path: Path, title: str) -> list[Path]:
    """Labelled cases with the share of neighbours that agree: how smooth the truth itself is."""
    positive = [p for p in next(iter(found.values())) if p.y and p.y_inst is not None and p.edges is not None]
    if not positive:
        raise DataError(f"{figure.name}: no positive test case has instance labels and neighbours; nothing to show")
    agreement = [neighbour_agreement(p.y_inst, p.edges) for p in positive]  # type: ignore[arg-type]
    told = f"{np.nanmean(agreement):.1%} of neighbouring pairs have the same label ({len(positive)} positive cases)"
    return examples(positive[: figure.cases], agreement, path, f"{title}\n{told}")


def _ranks(study: Study, figure: FigureSpec, results: "DataFrame", path: Path) -> list[Path]:
    """Critical-difference diagram of every group over the columns data set x metric."""
    rows = aggregate(results, figure.metrics, study.ddof)
    paths = []
    for group, part in rows[rows["model"].isin(_variants(study, figure))].groupby("group"):
        signed = part.assign(
            mean=part["mean"].round(DIGITS) * [-1 if direction(m) == "-" else 1 for m in part["metric"]]
        )
        values = signed.pivot(index="model", columns=["dataset", "extractor", "metric"], values="mean").dropna()
        if len(values) >= 3 and values.shape[1] >= 2:  # fewer cannot be tested; their means stand in the tables
            title = _title(study, figure, GROUPS.get(str(group), str(group)))
            paths += rank_figure(values, path.with_name(f"{path.name}-{slug(str(group))}"), title)
    if not paths:
        raise DataError(f"{figure.name}: mean ranks need three models of a group and two columns that all of them have")
    return paths


_PICTURES: dict[str, Callable[[FigureSpec, Found, Path, str], list[Path]]] = {
    "histograms": _histograms,
    "maps": _maps,
    "examples": _examples,
}


def _asked(figure: FigureSpec, variant: str) -> bool:
    return figure.variants is None or variant in figure.variants


def _variants(study: Study, figure: FigureSpec) -> list[str]:
    return [v.name for v in study.variants if _asked(figure, v.name)]


def _cases(found: Found, count: int) -> list[str]:
    """Positive cases first, in the order of their names: nothing is chosen by success."""
    first = next(iter(found.values()))
    return [p.id for p in sorted(first, key=lambda p: (not p.y, p.id)) if p.coords is not None][:count]


def slug(text: str) -> str:
    """Text that can be part of a file name."""
    return "".join(c if c.isalnum() or c in "-." else "_" for c in text)

"""Figures of a study: sweeps, histograms, maps, labelled examples and mean ranks, as PNG and SVG."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from smmil.errors import DataError
from smmil.evaluate import spread
from smmil.experiments import drawing
from smmil.experiments.datasets import neighbour_agreement
from smmil.experiments.results import aggregate, chosen_rows
from smmil.experiments.shown import first_predictions
from smmil.experiments.study import FigureSpec, Study
from smmil.maps import critical_difference
from smmil.prediction import Prediction

if TYPE_CHECKING:
    from pandas import DataFrame

Found = dict[str, list[Prediction]]


def make_figure(study: Study, figure: FigureSpec, results: "DataFrame", out: Path, folder: Path) -> list[Path]:
    """The files of one figure from the results of one data set; mean ranks are drawn over all that are given."""
    path = Path(folder) / figure.name
    if figure.kind == "critical_difference":
        return _ranks(study, figure, results, path)
    set_ = str(results["set"].iloc[0])
    own = path.with_name(f"{figure.name}-{slug(set_)}")
    if figure.kind == "sweep":
        return _sweep(study, figure, results, own, set_)
    found = first_predictions(results, Path(out), _variants(study, figure))
    return _PICTURES[figure.kind](figure, found, own, set_)


def _sweep(study: Study, figure: FigureSpec, results: "DataFrame", path: Path, set_: str) -> list[Path]:
    """Metrics against the value of an option; a learned value stands where it ended, words stand at the right end."""
    option = figure.setting or ""
    swept = {v.name: v.setting[option] for v in study.variants if option in v.setting and _asked(figure, v.name)}
    rows = chosen_rows(results[results["variant"].isin(swept)])
    parts = {swept[str(name)]: part for name, part in rows.groupby("variant")}
    lines = {}
    for metric in figure.metrics:
        found = {value: spread(part[metric]) for value, part in parts.items()}
        lines[metric] = [(value, one.mean, one.sample_std) for value, one in found.items()]
    learned = spread(parts["learned"]["alpha"]).mean if "learned" in parts else None
    return drawing.curves(lines, path, option, f"{figure.title or option}  ·  {set_}", learned)


def _histograms(figure: FigureSpec, found: Found, path: Path, set_: str) -> list[Path]:
    """Scores of positive and negative instances, a panel per variant."""
    title = f"{figure.title or 'Scores'}  ·  {set_}  ·  test cases, first fold"
    return drawing.histograms(found, path, title)


def _maps(figure: FigureSpec, found: Found, path: Path, set_: str) -> list[Path]:
    """Truth and the map of every variant for the same cases."""
    paths = []
    for case in _cases(found, figure.cases):
        models = {name: next(p for p in cases if p.id == case) for name, cases in found.items()}
        paths += drawing.maps(models, path.with_name(f"{path.name}-{slug(case)}"), figure.title or set_)
    return paths


def _examples(figure: FigureSpec, found: Found, path: Path, set_: str) -> list[Path]:
    """Labelled cases with the share of neighbours that agree: how smooth the truth itself is."""
    positive = [p for p in next(iter(found.values())) if p.y and p.y_inst is not None and p.edges is not None]
    if not positive:
        raise DataError(f"{set_}: no positive test case has instance labels and neighbours; nothing to show")
    agreement = [neighbour_agreement(p.y_inst, p.edges) for p in positive]  # type: ignore[arg-type]
    told = f"neighbours agree in {np.nanmean(agreement):.1%} of pairs over {len(positive)} positive cases"
    return drawing.examples(positive[: figure.cases], agreement, path, f"{set_}: {told}")


def _ranks(study: Study, figure: FigureSpec, results: "DataFrame", path: Path) -> list[Path]:
    """Critical-difference diagram of every group over the columns data set x metric."""
    rows = aggregate(results, figure.metrics, study.ddof)
    paths = []
    for group, part in rows[rows["model"].isin(_variants(study, figure))].groupby("group"):
        values = (
            part.pivot(index="model", columns=["dataset", "extractor", "metric"], values="mean").dropna().round(3)
        )  # as tables do
        if len(values) >= 3 and values.shape[1] >= 2:  # fewer cannot be tested; their means stand in the tables
            title = figure.title or f"Mean ranks, {group}"
            paths.append(
                critical_difference(values, path.with_name(f"{path.name}-{slug(str(group))}.png"), title=title)
            )
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

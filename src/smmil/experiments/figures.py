"""Figures of a study as PNG and SVG: sweeps, forests, histograms, maps and mean ranks."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pandas import DataFrame

from smmil.errors import DataError, SmmilError
from smmil.evaluate.instances import bags_of_pool
from smmil.evaluate.metrics import direction, metric_name
from smmil.evaluate.ranking import spread
from smmil.evaluate.resampling import RESAMPLES
from smmil.experiments.datasets import _agreeing_pairs, _share_of
from smmil.experiments.plots import (
    _draw_curves,
    _draw_differences,
    _draw_difficulty,
    _draw_examples,
    _draw_histograms,
    _draw_maps,
    _draw_ranks,
)
from smmil.experiments.ranking import _rank_values
from smmil.experiments.results import _aggregate, _chosen_rows, _first_predictions, _incomplete
from smmil.experiments.runner import _finished_results, _StudyFolder
from smmil.experiments.study import GROUPS, FigureSpec, Study
from smmil.experiments.variant_tests import _comparisons, _pair_differences
from smmil.maps import canvas
from smmil.prediction import Prediction

Found = dict[str, list[Prediction]]
_TITLES = {
    "histograms": "Scores of positive and negative instances",
    "maps": "Maps of the scores",
    "examples": "Labels of instances",
    "critical_difference": "Mean ranks",
    "differences": "Differences",
    "pairs": "Each beside its partner",
    "difficulty": "Against {setting} of the data",
}
ACROSS_SETS = ("critical_difference", "difficulty")


def _make_figure(
    study: Study, figure: FigureSpec, results: DataFrame, out: Path, folder: Path, plan: DataFrame | None = None
) -> list[Path]:
    """Draw one figure from the results of one data set (some kinds: of all data sets) and give its files.

    plan  every run that was asked for (see `_plan_table`): figures of differences name incomplete variants
    """
    path = Path(folder) / figure.name
    if figure.kind == "critical_difference":
        return _ranks(study, figure, results, path)
    if figure.kind == "difficulty":
        return _difficulty(study, figure, results, path)
    set_ = str(results["set"].iloc[0])
    own, title = path.with_name(f"{figure.name}-{_slug(set_)}"), _title(study, figure, set_)
    if figure.kind == "sweep":
        return _sweep(study, figure, results, own, title)
    if figure.kind in ("differences", "pairs"):
        return _differences(study, figure, results, Path(out), own, title + _unfinished(study, figure, set_, plan))
    found = _first_predictions(results, Path(out), _variants(study, figure))
    if figure.kind == "histograms":
        return _draw_histograms(found, own, f"{title}  ·  test cases, first fold")
    return (_maps if figure.kind == "maps" else _examples)(figure, found, own, title)


def _title(study: Study, figure: FigureSpec, *more: str) -> str:
    """Title of a figure: caveat of the study, own or default title, and further parts such as the data set."""
    usual = _TITLES.get(figure.kind, study.title or figure.name).replace("{setting}", str(figure.setting))
    return "  ·  ".join([study.headline(figure.title or usual), *more])


def _unfinished(study: Study, figure: FigureSpec, set_: str, plan: DataFrame | None) -> str:
    """Line below the title with the variants that lack runs on this data set; empty when all are done."""
    drawn = _variants(study, figure)
    if figure.kind == "pairs":
        drawn = [name for pair in study.pairs.items() if pair[0] in drawn for name in pair]
    else:
        drawn = [str(study.reference), *drawn]
    lacking = [] if plan is None else _incomplete(plan[plan["set"] == set_], dict.fromkeys(drawn))
    page = "pairs.md" if figure.kind == "pairs" else "comparisons.md"
    return f"\nNot complete ({page} says what is missing): {', '.join(lacking)}" if lacking else ""


def _sweep(study: Study, figure: FigureSpec, results: DataFrame, path: Path, title: str) -> list[Path]:
    """Metrics against the value of an option; a learned value is drawn at its mean, text values at the right end."""
    option = figure.setting or ""
    swept = {v.name: v.setting[option] for v in study.variants if option in v.setting and figure.shows(v.name)}
    rows = _chosen_rows(results[results["variant"].isin(swept)])
    parts = [(swept[str(name)], part) for name, part in rows.groupby("variant")]
    if not parts:
        raise DataError(f"{figure.name}: no run of {', '.join(swept)} is done yet; begin with smmil experiment run")
    lines = {}
    for metric in figure.metrics:
        found = [(value, spread(part[metric])) for value, part in parts]
        lines[metric] = [(value, one.mean, one.sample_std) for value, one in found]
    learned = next((spread(part["alpha"]).mean for value, part in parts if value == "learned"), None)
    absent = [(metric, f"{option} {x}") for metric, points in lines.items() for x, mean, _ in points if np.isnan(mean)]
    return _draw_curves(lines, path, option, title + _undefined(absent), learned)


def _undefined(absent: list[tuple[str, str]]) -> str:
    """A line below the title about points that have no value: (metric, where)."""
    return f"\nUndefined: {', '.join(f'{metric_name(m)} at {where}' for m, where in absent)}" if absent else ""


def _differences(study: Study, figure: FigureSpec, results: DataFrame, out: Path, path: Path, title: str) -> list[Path]:
    """Differences of the variants from the reference, or from their partners, with intervals.

    All variants of the study are compared and those asked for are drawn: Holm's correction is that of the pages.
    """
    if figure.kind == "pairs":
        rows = _pair_differences(results, out, figure.metrics, study.pairs, n=RESAMPLES)
    else:
        order = [v.name for v in study.variants]
        rows = _comparisons(results, out, figure.metrics, str(study.reference), n=RESAMPLES, order=order)
    if len(rows):
        rows = rows[rows["variant"].isin(_variants(study, figure))]
    if not len(rows) or rows.get("difference", rows["value"] * np.nan).isna().all():
        raise DataError(f"{figure.name}: no two variants to compare are done yet; begin with smmil experiment run")
    return _draw_differences(rows, path, title)


def _difficulty(study: Study, figure: FigureSpec, results: DataFrame, path: Path) -> list[Path]:
    """Metrics of every variant against an option of the synthetic sets."""
    option = str(figure.setting)
    values = {d.name: d.synthetic_options[option] for d in study.datasets if option in d.synthetic_options}
    rows = _aggregate(results, figure.metrics, study.ddof)
    rows = rows[rows["set"].isin(values) & rows["model"].isin(_variants(study, figure))]
    lines: dict[str, dict[str, list[tuple[float, float, float]]]] = {}
    for metric, variant in ((m, v) for m in figure.metrics for v in _variants(study, figure)):
        part = rows[(rows["metric"] == metric) & (rows["model"] == variant)]
        points = [(values[r["set"]], r["mean"], r["std"]) for r in part.to_dict("records")]
        if points:
            lines.setdefault(metric, {})[variant] = points
    if not lines:
        raise DataError(f"{figure.name}: no run of these data sets is done yet; begin with smmil experiment run")
    named = [(metric, name, points) for metric, lines_ in lines.items() for name, points in lines_.items()]
    absent = [(m, f"{option} {x} of {name}") for m, name, points in named for x, mean, _ in points if np.isnan(mean)]
    return _draw_difficulty(lines, path, option, _title(study, figure) + _undefined(absent))


def _maps(figure: FigureSpec, found: Found, path: Path, title: str) -> list[Path]:
    """Truth and the map of every variant for the same cases."""
    paths = []
    # Positive cases first, in alphabetical order, whatever the results.
    first = sorted(next(iter(found.values())), key=lambda p: (not p.y, p.id))
    for case in [p.id for p in first if p.coords is not None][: figure.cases]:
        models = {name: next(p for p in cases if p.id == case) for name, cases in found.items()}
        subtitle = f"{title}\n{case}, {canvas.label_text(next(iter(models.values())))}"
        paths += _draw_maps(models, path.with_name(f"{path.name}-{_slug(case)}"), subtitle)
    return paths


def _examples(figure: FigureSpec, found: Found, path: Path, title: str) -> list[Path]:
    """Labelled cases with the share of neighbouring instances of equal label."""
    shown = bags_of_pool(next(iter(found.values())), "positive_bags")
    positive = [p for p in shown if p.y_inst is not None and p.edges is not None]
    if not positive:
        raise DataError(f"{figure.name}: no positive test case has instance labels and neighbours; nothing to show")
    pairs = [_agreeing_pairs(p.y_inst, p.edges) for p in positive]  # type: ignore[arg-type]
    all_pairs = _share_of(sum(agree for agree, _ in pairs), sum(known for _, known in pairs))
    subtitle = f"{all_pairs:.1%} of neighbouring pairs have the same label ({len(positive)} positive cases)"
    return _draw_examples(positive[: figure.cases], [_share_of(*pair) for pair in pairs], path, f"{title}\n{subtitle}")


def _ranks(study: Study, figure: FigureSpec, results: DataFrame, path: Path) -> list[Path]:
    """Critical-difference diagram of every group over the columns data set x metric, ranked as in the tables."""
    rows, asked = _aggregate(results, figure.metrics, study.ddof), _variants(study, figure)
    paths = []
    for group, part in rows[rows["model"].isin(asked)].groupby("group"):
        values = _rank_values(part).dropna()
        if len(values) >= 3 and values.shape[1] >= 2:  # fewer cannot be tested; their means stand in the tables
            members = [v.name for v in study.variants if v.name in asked and v.group == group]
            missing = ", ".join(name for name in members if name not in values.index)
            sideless = ", ".join(metric_name(metric) for metric in figure.metrics if not direction(metric))
            notes = [f"Not ranked, some results are missing: {missing}."] if missing else []
            notes += [f"Not ranked, smoothest is not best: {sideless}."] if sideless else []
            title = _title(study, figure, GROUPS.get(str(group), str(group)))
            paths += _draw_ranks(values, path.with_name(f"{path.name}-{_slug(str(group))}"), title, notes)
    if not paths:
        raise DataError(f"{figure.name}: mean ranks need three models of a group and two columns that all of them have")
    return paths


def _variants(study: Study, figure: FigureSpec) -> list[str]:
    return [v.name for v in study.variants if figure.shows(v.name)]


def _slug(text: str) -> str:
    """Replace the characters that do not belong in a file name."""
    return "".join(c if c.isalnum() or c in "-." else "_" for c in text)


def write_figures(study: Study, out: str | Path, *, only: Sequence[str] = ()) -> tuple[list[Path], dict[str, str]]:
    """Write all figures of the study; gives the files, and the reasons of those that could not be drawn."""
    (results, plan), folder = _finished_results(study, out, only), _StudyFolder(Path(out), study.name).own / "figures"
    paths: list[Path] = []
    failed: dict[str, str] = {}
    by_set = [part for _, part in results.groupby("set", sort=True)]
    todo = [(one, part) for one in study.figures for part in ([results] if one.kind in ACROSS_SETS else by_set)]
    for figure, part in todo:
        try:
            paths += _make_figure(study, figure, part, Path(out), folder, plan)
        except SmmilError as problem:
            failed[f"{figure.name} ({', '.join(sorted(set(part['set'])))})"] = str(problem)
    return paths, failed

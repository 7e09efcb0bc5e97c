"""Every table, comparison and figure of a study, written to its folder."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smmil.errors import DataError, SmmilError
from smmil.experiments.figures import ACROSS_SETS, make_figure
from smmil.experiments.grid import make_grid
from smmil.experiments.results import choose_learning_rates, coverage, shortfall_notes
from smmil.experiments.runner import Place, collect, plan_table
from smmil.experiments.significance import RESAMPLES, Planned, comparisons, pair_differences
from smmil.experiments.significance_page import comparisons_markdown, pairs_markdown
from smmil.experiments.study import FigureSpec, Study, headline
from smmil.experiments.tables import make_table
from smmil.experiments.writing import for_spreadsheets, write_table
from smmil.files import write_json, write_text

if TYPE_CHECKING:
    from pandas import DataFrame


def write_tables(study: Study, out: str | Path, *, only: Sequence[str] = (), resamples: int = RESAMPLES) -> list[Path]:
    """All tables of the study from the runs that are done, in Markdown, LaTeX and CSV; and the paired tests."""
    (results, plan), folder = _results(study, out, only), Place(Path(out), study.name).own / "tables"
    paths = [path for table in study.tables for path in write_table(make_table(study, table, results, plan), folder)]
    paths.append(_write_rates(results, folder))
    planned = {key: one.planned for key, one in coverage(plan).items()}
    if study.reference is not None:
        missing = _shortfall(results, plan)
        paths += _write_comparisons(study, results, Path(out), folder, resamples, planned, missing)
    if study.pairs:
        missing = _shortfall(results, plan, {*study.pairs, *study.pairs.values()})
        paths += _write_pairs(study, results, Path(out), folder, resamples, planned, missing)
    return paths


def _shortfall(results: "DataFrame", plan: "DataFrame", variants: Collection[str] | None = None) -> str:
    """What is missing of these variants, or of all, as last points of a page."""
    if variants is not None:
        results, plan = (part[part["variant"].isin(variants)] for part in (results, plan))
    return "".join(f"- {note}\n" for note in shortfall_notes(results, plan))


def _write_comparisons(
    study: Study, results: "DataFrame", out: Path, folder: Path, resamples: int, planned: Planned, missing: str
) -> list[Path]:
    """The paired tests against the reference, variants in the order of the study."""
    reference, order = str(study.reference), [v.name for v in study.variants]
    rows = comparisons(results, out, study.tests, reference, n=resamples, order=order, planned=planned)
    write_text(folder / "comparisons.csv", for_spreadsheets(rows))
    title = headline(study, f"Compared with {reference}")
    write_text(folder / "comparisons.md", comparisons_markdown(rows, title, reference, resamples) + missing)
    return [folder / "comparisons.csv", folder / "comparisons.md"]


def _write_pairs(
    study: Study, results: "DataFrame", out: Path, folder: Path, resamples: int, planned: Planned, missing: str
) -> list[Path]:
    """The paired tests of variants against partners of their own."""
    rows = pair_differences(results, out, study.tests, study.pairs, n=resamples, planned=planned)
    if not len(rows):
        return []  # no pair has both its partners yet; the tables say what is missing
    write_text(folder / "pairs.csv", for_spreadsheets(rows))
    title = headline(study, "Each beside its partner")
    write_text(folder / "pairs.md", pairs_markdown(rows, title, resamples) + missing)
    return [folder / "pairs.csv", folder / "pairs.md"]


def write_figures(study: Study, out: str | Path, *, only: Sequence[str] = ()) -> tuple[list[Path], dict[str, str]]:
    """All figures of the study; gives the files and, by name, why a figure could not be drawn."""
    (results, plan), folder = _results(study, out, only), Place(Path(out), study.name).own / "figures"
    paths: list[Path] = []
    failed: dict[str, str] = {}
    for figure, part in _figure_parts(study, results):
        try:
            paths += make_figure(study, figure, part, Path(out), folder, plan)
        except SmmilError as problem:
            failed[f"{figure.name} ({', '.join(sorted(set(part['set'])))})"] = str(problem)
    return paths, failed


def _figure_parts(study: Study, results: "DataFrame") -> Iterator[tuple[FigureSpec, "DataFrame"]]:
    """Each figure with the results it shows: those of one data set, or all where sets are compared."""
    for figure in study.figures:
        if figure.kind in ACROSS_SETS:
            yield figure, results
            continue
        for _, part in results.groupby("set", sort=True):
            yield figure, part


def _results(study: Study, out: str | Path, only: Sequence[str]) -> tuple[Any, Any]:
    """Rows of the runs that are done, and of all runs with their state; an error when none is done."""
    place = Place(Path(out), study.name)
    grid = make_grid(study, place.out / "data", only=only)
    results, plan = collect(grid, place), plan_table(grid, place)
    if not len(results):
        failed = int((plan["state"] == "failed").sum())
        told = f"{failed} runs failed: see smmil experiment status" if failed else "begin with smmil experiment run"
        raise DataError(f"{place.own}: no run is done yet; {told}")
    return results, plan


def _write_rates(results: "DataFrame", folder: Path) -> Path:
    """Which learning rate stands for each variant, by data set."""
    chosen: dict[str, dict[str, float]] = {}
    for (set_, variant), lr in choose_learning_rates(results).items():
        chosen.setdefault(set_, {})[variant] = lr
    write_json(folder / "learning_rates.json", chosen)
    return folder / "learning_rates.json"

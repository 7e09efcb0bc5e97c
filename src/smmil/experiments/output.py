"""Everything a study shows, written into its folder: tables, comparisons, figures."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smmil.errors import DataError, SmmilError
from smmil.experiments.certainty import comparisons, comparisons_markdown
from smmil.experiments.figures import make_figure
from smmil.experiments.results import choose_learning_rates
from smmil.experiments.runner import Place, load_results
from smmil.experiments.study import FigureSpec, Study
from smmil.experiments.tables import make_table
from smmil.experiments.writing import write_table
from smmil.files import write_json, write_text

if TYPE_CHECKING:
    from pandas import DataFrame


def write_tables(study: Study, out: str | Path, *, only: Sequence[str] = (), resamples: int = 1000) -> list[Path]:
    """All tables of the study from the runs that are done, in Markdown, LaTeX and CSV; and the paired tests."""
    results, folder = _results(study, out, only), Place(Path(out), study.name).own / "tables"
    paths = [path for table in study.tables for path in write_table(make_table(study, table, results), folder)]
    paths.append(_write_rates(results, folder))
    if study.reference is not None:
        rows = comparisons(results, out, study.tests, study.reference, n=resamples)
        write_text(folder / "comparisons.csv", rows.to_csv(index=False, lineterminator="\n"))
        title = f"Compared with {study.reference}"
        write_text(folder / "comparisons.md", comparisons_markdown(rows, title))
        paths += [folder / "comparisons.csv", folder / "comparisons.md"]
    return paths


def write_figures(study: Study, out: str | Path, *, only: Sequence[str] = ()) -> tuple[list[Path], dict[str, str]]:
    """All figures of the study; gives the files and, by name, why a figure could not be drawn."""
    results, folder = _results(study, out, only), Place(Path(out), study.name).own / "figures"
    paths: list[Path] = []
    failed: dict[str, str] = {}
    for figure, part in _figure_parts(study, results):
        try:
            paths += make_figure(study, figure, part, Path(out), folder)
        except SmmilError as problem:
            failed[f"{figure.name} ({', '.join(sorted(set(part['set'])))})"] = str(problem)
    return paths, failed


def _figure_parts(study: Study, results: "DataFrame") -> Iterator[tuple[FigureSpec, "DataFrame"]]:
    """Each figure with the results it shows: those of one data set, or all for mean ranks."""
    for figure in study.figures:
        if figure.kind == "critical_difference":
            yield figure, results
            continue
        for _, part in results.groupby("set", sort=True):
            yield figure, part


def _results(study: Study, out: str | Path, only: Sequence[str]) -> "DataFrame":
    results: Any = load_results(study, out, only=only)
    if not len(results):
        raise DataError(f"{Path(out) / study.name}: no run is done yet; begin with smmil experiment run")
    return results


def _write_rates(results: "DataFrame", folder: Path) -> Path:
    """Which learning rate stands for each variant, by data set."""
    chosen: dict[str, dict[str, float]] = {}
    for (set_, variant), lr in choose_learning_rates(results).items():
        chosen.setdefault(set_, {})[variant] = lr
    write_json(folder / "learning_rates.json", chosen)
    return folder / "learning_rates.json"

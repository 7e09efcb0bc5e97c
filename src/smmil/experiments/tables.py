"""The tables of a study: means, places, ranks, the paper's numbers and paired tests, written to its folder."""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pandas import DataFrame, concat

from smmil.errors import ConfigError
from smmil.evaluate.bags import AGGREGATES, judged_by, shared_target
from smmil.evaluate.levels import bag_metrics
from smmil.evaluate.metrics import direction, explained, metric_name, metrics_of
from smmil.evaluate.resampling import RESAMPLES
from smmil.experiments.paper import _table_notes
from smmil.experiments.position import _position_markdown, _position_note, _position_rows
from smmil.experiments.ranking import COLUMN, DIGITS, RANKED, _comparable_ranks, _rank_rows, _with_paper
from smmil.experiments.results import (
    _aggregate,
    _choose_learning_rates,
    _chosen_by,
    _coverage,
    _missing_run_notes,
    _rotates,
    _with_plan,
)
from smmil.experiments.runner import _finished_results, _StudyFolder
from smmil.experiments.selection import _selection_markdown, _selection_rows
from smmil.experiments.study import FAMILIES, Study, TableSpec
from smmil.experiments.variant_tests import (
    Judged,
    _comparisons,
    _pair_differences,
    _values_of_all_patients,
)
from smmil.experiments.writing import (
    _comparisons_markdown,
    _for_spreadsheets,
    _pairs_markdown,
    _ResultTable,
    _write_table,
)
from smmil.files import write_json, write_text
from smmil.prediction import Prediction, load_predictions

_LOCALIZATION = ("inst_", "froc")


def _make_table(study: Study, table: TableSpec, results: Any, plan: Any = None) -> _ResultTable:
    """One table of a study from the results so far.

    plan  every run that was asked for, with its state (see `_plan_table`); None: the results are all there is
    """
    plan = results.assign(state="done", reason="") if plan is None else plan
    lacking = [metric for metric in table.metrics if len(results) and metric not in results]
    if lacking:
        words = f"{study.name}: table {table.name}: {lacking[0]} does not judge what the runs predict"
        raise ConfigError(f"{words}; `smmil evaluate --list-metrics` says what each metric is for")
    variants = [v.name for v in study.variants] if table.variants is None else table.variants
    wanted, planned = (part[part["variant"].isin(variants)] for part in (results, plan))
    rows = _with_plan(_aggregate(wanted, table.metrics, study.ddof), planned, table.metrics)
    notes = _about(study, table, results)
    states = len({one if isinstance(one, str) else "" for one in wanted.get("source", [])})
    if states > 1:
        made = f"made by {states} states of the program (`source` in results.csv)"
        notes.append(f"{made}: small differences may come from there")
    notes += _missing_run_notes(wanted, planned)
    rows, more = _with_ranks(rows, table)
    ordered = _ordered(rows, study)
    notes += more + _cells_to_distrust(rows) + explained(ordered["metric"])
    return _ResultTable(table.name, study.headline(table.title or table.name), ordered, notes, study.reference)


def _with_ranks(rows: DataFrame, table: TableSpec) -> tuple[DataFrame, list[str]]:
    """Add ranks, places and the paper's numbers to the rows."""
    if table.rank_by is None:
        return _with_paper(_with_best_marked(rows), table.paper), []
    ranks, notes = _rank_rows(rows, table.rank_by, table.mixed)
    parts = [ranks] if table.rank_by == "extractor" else [rows, ranks]
    unlike: frozenset[Any] = frozenset()
    if table.paper is not None:
        further, unlike, why = _comparable_ranks(rows, table.paper, table.rank_by, table.mixed)
        parts.append(further)
        notes += why
    stacked = concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
    return _with_paper(_with_best_marked(stacked), table.paper, unlike), notes


def _with_best_marked(rows: Any) -> DataFrame:
    """The rows with `place`: 1 for the best and 2 for the second best of a group in each column, else 0.

    Equal numbers, as printed, share a place. Energies have no best: a constant map is smoothest.
    """
    places = [0] * len(rows)
    rows = rows.reset_index(drop=True)
    for (*_, metric), part in rows.groupby(["group", *COLUMN], sort=False):
        side = direction(metric)
        values = (side * part["mean"].round(DIGITS)).dropna()
        if not side or len(values) < 2:
            continue
        best = sorted(set(values), reverse=True)[:2]
        for index, value in values.items():
            places[index] = best.index(value) + 1 if value in best else 0
    return rows.assign(place=places)


def _criterion(results: DataFrame) -> str:
    """What learning rates were chosen by, in words."""
    chosen = _chosen_by(results)
    by = "AUROC" if chosen == "val_auroc" else chosen.removeprefix("val_").replace("_", " ")
    return f"validation {by}, ties by lower loss"


def _about(study: Study, table: TableSpec, results: DataFrame) -> list[str]:
    """How to read the numbers of a table made of these results."""
    divisor, means = "n - 1" if study.ddof else "n", "over folds and seeds"
    notes = [f"mean ± standard deviation (divided by {divisor}) {means}"]
    rotating = {str(name): _rotates(part) for name, part in results.groupby("set")} if len(results) else {}
    if not (rotating and all(rotating.values())):
        which = [name for name, turns in rotating.items() if not turns] if any(rotating.values()) else []
        only = f" ({', '.join(which)})" if which else ""
        notes[0] += f"; learning rate chosen by mean {_criterion(results)}{only}"
    if any(direction(metric) for metric in table.metrics):
        notes.append("bold: best, underlined: second best of its group; equal at three digits is equal")
    if table.paper is not None:
        notes.append("within: the difference to the paper is at most its standard deviation (ours if it prints none)")
        notes += _table_notes(table.paper)
    return notes


def _cells_to_distrust(rows: DataFrame) -> list[str]:
    """A line for each reason to distrust the paper, with the cells it holds for."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows[rows["paper_note"] != ""].itertuples():
        where = f"{row.dataset} {row.extractor} {row.model}"
        found.setdefault((where, str(row.paper_note)), []).append(metric_name(str(row.metric)))
    return [f"† {where} {', '.join(metrics)}: {note}; not judged" for (where, note), metrics in found.items()]


def _ordered(rows: Any, study: Study) -> DataFrame:
    """Rows in the order of the study: group, family, variant, then data set and metric."""
    variants = [v.name for v in study.variants]
    groups, families = list(dict.fromkeys(v.group for v in study.variants)), list(FAMILIES)
    sets = [d.dataset or d.name for d in study.datasets] + [RANKED]

    def place(row: Any) -> tuple[Any, ...]:
        kind = groups.index(row.group), families.index(row.family), variants.index(row.model)
        return *kind, sets.index(row.dataset), row.extractor

    order = [row.Index for row in sorted(rows.reset_index(drop=True).itertuples(), key=place)]
    counts = {name: "Int64" for name in ("n", "planned") if name in rows}  # whole numbers, also where some are absent
    return rows.iloc[order].reset_index(drop=True).astype(counts)


def write_tables(
    study: Study,
    out: str | Path,
    *,
    only: Sequence[str] = (),
    resamples: int = RESAMPLES,
    by: str = "case",
    aggregate: str | None = None,
) -> list[Path]:
    """All tables of the study from the runs that are done, in Markdown, LaTeX and CSV; and the paired tests.

    by, aggregate  whether numbers about whole cases count cases or patients, and how the probabilities of a patient's
                   cases become one; tables by patient go to a folder of their own, such as tables_by_patient_mean
    """
    judged = partial(_judged, by=by, aggregate=aggregate)
    judged([])  # words that do not fit are noticed now
    name = "tables" if by == "case" else f"tables_by_patient_{aggregate or AGGREGATES[0]}"
    (results, plan), folder = _finished_results(study, out, only), _StudyFolder(Path(out), study.name).own / name
    if by == "patient":
        results = _by_patient(results, Path(out), judged)
    counted = [] if by == "case" else [f"bag metrics count patients ({aggregate or AGGREGATES[0]} of their cases)"]
    located = any(metric.startswith(_LOCALIZATION) for table in study.tables for metric in table.metrics)
    positions = _position_rows(results, out, n=resamples) if located else []
    paths: list[Path] = []
    for spec in study.tables:
        table = _with_all_patients(_make_table(study, spec, results, plan), results, out, judged)
        notes = table.notes + _position_note(positions, spec.metrics) + counted
        paths += _write_table(replace(table, notes=notes), folder)
    if positions:
        page = _position_markdown(positions, study.headline("Localization beside the position prior"))
        paths += _write_page(folder, "prior", DataFrame(positions), page)
    if study.selection is not None:
        rows = _selection_rows(study, results, out)
        page = _selection_markdown(study, rows, results, out, resamples, judged) + _missing_runs(results, plan)
        paths += _write_page(folder, "selection", rows, page)
    rates: dict[str, dict[str, float | dict[int, float]]] = {}  # of each variant (and fold), by data set
    for (set_, variant), lr in _choose_learning_rates(results).items():
        rates.setdefault(set_, {})[variant] = lr
    write_json(folder / "learning_rates.json", rates)
    paths.append(folder / "learning_rates.json")
    options: dict[str, Any] = {"n": resamples, "planned": {key: one.planned for key, one in _coverage(plan).items()}}
    options |= {"judged": judged}
    if study.reference is not None:
        order, title = [v.name for v in study.variants], study.headline(f"Compared with {study.reference}")
        rows = _comparisons(results, out, study.tests, study.reference, order=order, **options)
        page = _comparisons_markdown(rows, title, study.reference, resamples) + _missing_runs(results, plan)
        paths += _write_page(folder, "comparisons", rows, page)
    rows = _pair_differences(results, out, study.tests, study.pairs, **options)
    if len(rows):  # else no pair is asked for or complete; notes below the tables list what is missing
        missing = _missing_runs(results, plan, {*study.pairs, *study.pairs.values()})
        page = _pairs_markdown(rows, study.headline("Each beside its partner"), resamples) + missing
        paths += _write_page(folder, "pairs", rows, page)
    return paths


def _judged(predictions: Sequence[Prediction], by: str, aggregate: str | None) -> Sequence[Prediction]:
    """The predictions of a run by case or by patient."""
    return judged_by({"": predictions} if predictions else {}, by, aggregate).get("", predictions)


def _by_patient(results: DataFrame, out: Path, judged: Judged) -> DataFrame:
    """The results with the numbers about whole cases by patient, from the predictions of every run."""
    found = results.copy()
    for place, run in zip(found.index, found["run"], strict=True):
        cases = judged(load_predictions(out / "runs" / run / "test"))
        bag = bag_metrics(cases)
        numbers = {metric.name: bag[metric.key] for metric in metrics_of("bag", shared_target(cases))}
        for column, value in {"n_test": bag["n"], "n_test_positive": bag["n_positive"], **numbers}.items():
            found.loc[place, column] = value
    return found


def _with_all_patients(table: _ResultTable, results: DataFrame, out: str | Path, judged: Judged) -> _ResultTable:
    """The table with the value over all patients beside the mean over folds, where test sets rotate."""
    sets = sorted({str(name) for name, part in results.groupby("set") if _rotates(part)})
    metrics = [metric for metric in dict.fromkeys(table.rows["metric"]) if not metric.endswith("_rank")]
    if not sets or not metrics:
        return table
    known = _values_of_all_patients(results[results["set"].isin(sets)], Path(out), metrics, judged)
    keys = zip(table.rows["set"], table.rows["model"], table.rows["metric"], strict=True)
    rows = table.rows.assign(all_patients=[known.get(key, math.nan) for key in keys])
    note = (
        f"every patient was tested once ({', '.join(sets)}): each fold chose its learning rate by its own "
        f"{_criterion(results)}; all patients: one value over the test cases of all folds, each judged by the model of "
        "its fold and compared within its fold only, averaged over seeds"
    )
    return replace(table, rows=rows, notes=[table.notes[0], note, *table.notes[1:]])


def _missing_runs(results: DataFrame, plan: DataFrame, variants: Collection[str] | None = None) -> str:
    """What is missing of these variants, or of all, as last points of a page."""
    if variants is not None:
        results, plan = (part[part["variant"].isin(variants)] for part in (results, plan))
    return "".join(f"- {note}\n" for note in _missing_run_notes(results, plan))


def _write_page(folder: Path, name: str, rows: DataFrame, page: str) -> list[Path]:
    """NAME.csv and NAME.md of some paired tests."""
    write_text(folder / f"{name}.csv", _for_spreadsheets(rows))
    write_text(folder / f"{name}.md", page)
    return [folder / f"{name}.csv", folder / f"{name}.md"]

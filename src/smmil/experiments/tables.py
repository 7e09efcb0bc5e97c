"""Results to the paper's tables: means, places, ranks, and the paper's own numbers beside them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from smmil.evaluate.metrics import direction, explained, metric_name
from smmil.experiments.paper.comparison import comparable_ranks, table_notes, with_paper
from smmil.experiments.ranking import COLUMN, DIGITS, RANKED, rank_rows
from smmil.experiments.results import aggregate, shortfall_notes, with_plan
from smmil.experiments.significance import FAMILIES
from smmil.experiments.study import Study, TableSpec, headline

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Shown:
    """A table ready to be written: one row per number, and what to know about them."""

    name: str
    title: str
    rows: "DataFrame"
    notes: list[str] = field(default_factory=list)
    reference: str | None = None


def make_table(study: Study, table: TableSpec, results: Any, plan: Any = None) -> Shown:
    """One table of a study from the results so far.

    plan  every run that was asked for, with its state (see `runner.plan_table`); None: the results are all there is
    """
    plan = results.assign(state="done", reason="") if plan is None else plan
    wanted, planned = (part[part["variant"].isin(_variants(study, table))] for part in (results, plan))
    rows = with_plan(aggregate(wanted, table.metrics, study.ddof), planned, table.metrics)
    notes = _about(study, table) + _mixed_sources(wanted) + shortfall_notes(wanted, planned)
    rows, more = _with_ranks(rows, table)
    notes += more + _cells_to_distrust(rows)
    shown = _ordered(rows, study)
    return Shown(
        table.name,
        headline(study, table.title or table.name),
        shown,
        notes + explained(shown["metric"]),
        study.reference,
    )


def _variants(study: Study, table: TableSpec) -> list[str]:
    return [v.name for v in study.variants] if table.variants is None else table.variants


def _with_ranks(rows: "DataFrame", table: TableSpec) -> tuple["DataFrame", list[str]]:
    """The rows with ranks as asked for, places, and the paper's numbers beside."""
    if table.rank_by is None:
        return with_paper(with_places(rows), table.paper), []
    ranks, notes = rank_rows(rows, table.rank_by, table.mixed)
    shown = [ranks] if table.rank_by == "extractor" else [rows, ranks]
    unlike: frozenset[Any] = frozenset()
    if table.paper is not None:
        further, unlike, why = comparable_ranks(rows, table.paper, table.rank_by, table.mixed)
        shown.append(further)
        notes += why
    return with_paper(with_places(_stacked(shown)), table.paper, unlike), notes


def with_places(rows: Any) -> "DataFrame":
    """The rows with `place`: 1 for the best and 2 for the second best of a group in each column, else 0.

    Equal numbers, as printed, share a place. Energies have no best: a constant map is smoothest.
    """
    places = [0] * len(rows)
    rows = rows.reset_index(drop=True)
    for (*_, metric), part in rows.groupby(["group", *COLUMN], sort=False):
        side = direction(metric)
        shown = (side * part["mean"].round(DIGITS)).dropna()
        if not side or len(shown) < 2:
            continue
        best = sorted(set(shown), reverse=True)[:2]
        for index, value in shown.items():
            places[index] = best.index(value) + 1 if value in best else 0
    return rows.assign(place=places)


def _about(study: Study, table: TableSpec) -> list[str]:
    """How to read the numbers."""
    divisor = "n - 1" if study.ddof else "n"
    notes = [
        f"mean ± standard deviation (divided by {divisor}) over folds and seeds; learning rate chosen by mean "
        "validation AUROC, ties by lower loss",
    ]
    if any(direction(metric) for metric in table.metrics):
        notes.append("bold: best, underlined: second best of its group; equal at three digits is equal")
    if table.paper is not None:
        notes.append("within: the difference to the paper is at most its standard deviation (ours if it prints none)")
        notes += table_notes(table.paper)
    return notes


def _mixed_sources(results: Any) -> list[str]:
    """A line if the runs were not all made by the same state of the program."""
    states = len({one if isinstance(one, str) else "" for one in results.get("source", [])})
    if states < 2:
        return []
    return [f"made by {states} states of the program (`source` in results.csv): small differences may come from there"]


def _cells_to_distrust(rows: "DataFrame") -> list[str]:
    """A line for each reason to distrust the paper, with the cells it holds for."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows[rows["paper_note"] != ""].itertuples():
        where = f"{row.dataset} {row.extractor} {row.model}"
        found.setdefault((where, str(row.paper_note)), []).append(metric_name(str(row.metric)))
    return [f"† {where} {', '.join(metrics)}: {note}; not judged" for (where, note), metrics in found.items()]


def _ordered(rows: Any, study: Study) -> "DataFrame":
    """Rows in the order of the study: group, family, variant, then data set and metric."""
    variants = [v.name for v in study.variants]
    groups, families = list(dict.fromkeys(v.group for v in study.variants)), list(FAMILIES)
    sets = [d.dataset or d.name for d in study.datasets] + [RANKED]
    order = [
        (
            groups.index(r.group),
            families.index(r.family),
            variants.index(r.model),
            sets.index(r.dataset),
            r.extractor,
            i,
        )
        for i, r in enumerate(rows.itertuples())
    ]
    counts = {name: "Int64" for name in ("n", "planned") if name in rows}  # whole numbers, also where some are absent
    return rows.iloc[sorted(range(len(rows)), key=order.__getitem__)].reset_index(drop=True).astype(counts)


def _stacked(frames: Sequence["DataFrame"]) -> "DataFrame":
    from pandas import concat

    return concat([frame for frame in frames if len(frame)] or list(frames[:1]), ignore_index=True)

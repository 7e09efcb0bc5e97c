"""Results to the paper's tables: means, places, ranks, and the paper's own numbers beside them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from smmil.evaluate import mean_ranks
from smmil.experiments.paper_notes import cell_notes, our_names, table_notes
from smmil.experiments.results import aggregate
from smmil.experiments.study import Study, Table
from smmil.paper import paper_table

if TYPE_CHECKING:
    from pandas import DataFrame

DIGITS = 3
RANKED, EXTRACTORS = "ALL", "main"
COLUMN = ["dataset", "extractor", "metric"]
_LOWER_IS_BETTER = ("rank", "brier", "ece", "loss")


@dataclass(frozen=True)
class Shown:
    """A table ready to be written: one row per number, and what to know about them."""

    name: str
    title: str
    rows: "DataFrame"
    notes: list[str] = field(default_factory=list)


def make_table(study: Study, table: Table, results: "DataFrame") -> Shown:
    """One table of a study from the results so far."""
    wanted = results if table.variants is None else results[results["variant"].isin(table.variants)]
    rows, notes = aggregate(wanted, table.metrics, study.ddof), _about(study, table, wanted)
    if table.rank_by is not None:
        ranks, incomplete = rank_rows(rows, table.rank_by, table.mixed)
        rows = ranks if table.rank_by == "extractor" else _stacked([rows, ranks])
        notes += incomplete
    rows = with_paper(with_places(rows), table.paper)
    return Shown(table.name, table.title or table.name, _ordered(rows, study), notes + _cells_to_distrust(rows))


def rank_rows(
    rows: "DataFrame", rank_by: str = "all", mixed: dict[str, list[str]] | None = None
) -> tuple["DataFrame", list[str]]:
    """Mean ranks within each group over all columns (or over those of each extractor), as rows of data set ALL.

    Values are rounded to three digits first, as printed, so that equal prints share a rank. A model that lacks a column
    the others have is not ranked, and a note says so. Energies are not ranked: a constant map is smoothest.
    """
    rows = rows[[not metric.startswith("energy") for metric in rows["metric"]]]
    found, notes = [], []
    extractors = [EXTRACTORS] if rank_by == "all" else sorted(set(rows["extractor"]))
    for extractor in extractors:
        used = [extractor, *(mixed or {}).get(extractor, [])]
        part = rows if rank_by == "all" else rows[rows["extractor"].isin(used)]
        for (group, level), block in part.assign(level=_levels(part["metric"])).groupby(["group", "level"], sort=True):
            ranked, missing = _ranked(block)
            notes += [f"{model}: not ranked ({group}), some results are missing" for model in missing]
            facts = {"dataset": RANKED, "extractor": extractor, "group": group, "metric": f"{level}_rank"}
            found += [{**facts, **row} for row in ranked]
    return _frame(found), list(dict.fromkeys(notes))


def _sign(metric: str) -> int:
    """-1 where lower is better."""
    return -1 if metric.partition("@")[0].endswith(_LOWER_IS_BETTER) else 1


def _levels(metrics: Iterable[str]) -> list[str]:
    return [metric.partition("_")[0] for metric in metrics]


def _ranked(block: "DataFrame") -> tuple[list[dict[str, Any]], list[str]]:
    signs = [_sign(metric) for metric in block["metric"]]
    block = block.assign(mean=block["mean"].round(DIGITS) * signs)
    values = block.pivot(index="model", columns=COLUMN, values="mean")
    complete = values.dropna()
    missing = sorted(set(values.index) - set(complete.index))
    families = dict(zip(block["model"], block.get("family", block["group"]), strict=True))
    ranks = mean_ranks(complete) if len(complete) else {}
    return [
        {"model": m, "mean": mean, "std": std, "n": complete.shape[1], "family": families[m]}
        for m, (mean, std) in ranks.items()
    ], missing


def with_places(rows: Any) -> "DataFrame":
    """The rows with `place`: 1 for the best and 2 for the second best of a group in each column, else 0.

    Equal numbers, as printed, share a place. Energies have no best: a constant map is smoothest.
    """
    places = [0] * len(rows)
    rows = rows.reset_index(drop=True)
    for (*_, metric), part in rows.groupby(["group", *COLUMN], sort=False):
        if metric.startswith("energy") or len(part) < 2:
            continue
        shown = (_sign(metric) * part["mean"].round(DIGITS)).dropna()
        best = sorted(set(shown), reverse=True)[:2]
        for index, value in shown.items():
            places[index] = best.index(value) + 1 if value in best else 0
    return rows.assign(place=places)


def with_paper(rows: "DataFrame", name: str | None) -> "DataFrame":
    """The rows with paper_mean, paper_std, difference (ours - paper's), within_std and paper_note.

    within_std: the difference is at most the paper's standard deviation, or ours where the paper prints none; empty
    where there is nothing to compare.
    """
    printed = {}
    if name is not None:
        table = our_names(paper_table(name))
        keys = zip(table["dataset"], table["extractor"], table["model"], table["metric"], strict=True)
        printed = dict(zip(keys, zip(table["mean"], table["std"], strict=True), strict=True))
    compared = [_compared(row, printed) for row in rows.itertuples()]
    names = ("paper_mean", "paper_std", "difference", "within_std", "paper_note")
    return rows.assign(**{key: [one[i] for one in compared] for i, key in enumerate(names)})


def _compared(row: Any, printed: dict[Any, Any]) -> tuple[float, float, float, Any, str]:
    key = (row.dataset, row.extractor, row.model, row.metric)
    if key not in printed:
        return math.nan, math.nan, math.nan, "", ""
    mean, std = printed[key]
    limit, gap = (row.std if math.isnan(std) else std), row.mean - mean
    within = "" if math.isnan(limit) or math.isnan(gap) else ("yes" if abs(gap) <= limit else "no")
    return mean, std, gap, within, "; ".join(cell_notes().get(key, []))


def _about(study: Study, table: Table, results: "DataFrame") -> list[str]:
    """How to read the numbers."""
    divisor = "n - 1" if study.ddof else "n"
    notes = [
        f"mean ± standard deviation (divided by {divisor}) over folds and seeds; learning rate chosen by mean "
        "validation AUROC, ties by lower loss",
        "bold: best, underlined: second best of its group; equal at three digits is equal",
    ]
    if table.paper is not None:
        notes.append("within: the difference to the paper is at most its standard deviation (ours if it prints none)")
        notes += table_notes(table.paper)
    counts = {key: len(part) for key, part in results.groupby(["set", "variant", "lr"])}
    if counts and len(set(counts.values())) > 1:
        few = sorted(f"{s} · {v}" for (s, v, _), n in counts.items() if n < max(counts.values()))
        notes.append(f"not complete yet: {', '.join(dict.fromkeys(few))}")
    return notes


def _cells_to_distrust(rows: "DataFrame") -> list[str]:
    marked = rows[rows["paper_note"] != ""]
    return [f"† {r.dataset} {r.extractor} {r.model} {r.metric}: {r.paper_note}" for r in marked.itertuples()]


def _ordered(rows: Any, study: Study) -> "DataFrame":
    """Rows in the order of the study: group, family, variant, then data set and metric."""
    variants = [v.name for v in study.variants]
    groups = list(dict.fromkeys(v.group for v in study.variants))
    families = ["independent", "local", "global", "global_local"]
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
    return rows.iloc[sorted(range(len(rows)), key=order.__getitem__)].reset_index(drop=True)


def _frame(found: Sequence[dict[str, Any]]) -> "DataFrame":
    from pandas import DataFrame

    names = ["dataset", "extractor", "group", "model", "metric", "mean", "std", "n", "lr", "family", "set"]
    return DataFrame(found, columns=names)


def _stacked(frames: Sequence["DataFrame"]) -> "DataFrame":
    from pandas import concat

    return concat([frame for frame in frames if len(frame)], ignore_index=True)

"""Mean ranks of models, as the paper counts them: within a group, over columns, on numbers as printed."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from smmil.evaluate import mean_ranks
from smmil.evaluate.metrics import direction

if TYPE_CHECKING:
    from pandas import DataFrame

DIGITS = 3
RANKED, EXTRACTORS, AS_PAPER = "ALL", "main", "as the paper"
COLUMN = ["dataset", "extractor", "metric"]
Block = tuple[str, str, str]  # extractor, group, level: what is ranked together


class Basis(NamedTuple):
    """What ranks rest on: the columns and the models that were ranked in them."""

    columns: frozenset[tuple[str, str, str]]
    models: frozenset[str]


def rank_rows(
    rows: "DataFrame", rank_by: str = "all", mixed: Mapping[str, list[str]] | None = None
) -> tuple["DataFrame", list[str]]:
    """Mean ranks within each group over all columns (or over those of each extractor), as rows of data set ALL.

    Values are rounded to three digits first, as printed, so that equal prints share a rank. A model that lacks a column
    the others have is not ranked, nor is one alone, and a note says so. Energies are not ranked: a constant map is
    smoothest.
    """
    found, notes = [], []
    for (extractor, group, level), block in rank_blocks(rows, rank_by, mixed).items():
        ranked, missing, alone = _ranked(block)
        notes += [f"not ranked ({group}), some results are missing: {', '.join(missing)}"] if missing else []
        notes += [f"not ranked ({group}), nobody to be ranked with: {', '.join(alone)}"] if alone else []
        facts = {"dataset": RANKED, "extractor": extractor, "group": group, "metric": f"{level}_rank"}
        found += [{**facts, **row} for row in ranked]
    return _frame(found), list(dict.fromkeys(notes))


def rank_blocks(
    rows: "DataFrame", rank_by: str = "all", mixed: Mapping[str, list[str]] | None = None
) -> dict[Block, "DataFrame"]:
    """The rows that are ranked together, by extractor, group and level (inst or bag)."""
    rows = rows[[direction(metric) != 0 for metric in rows["metric"]]]
    found: dict[Block, DataFrame] = {}
    for extractor in [EXTRACTORS] if rank_by == "all" else sorted(set(rows["extractor"])):
        used = [extractor, *(mixed or {}).get(extractor, [])]
        part = rows if rank_by == "all" else rows[rows["extractor"].isin(used)]
        levels = part.assign(level=_levels(part["metric"]))
        for (group, level), block in levels.groupby(["group", "level"], sort=False):
            found[extractor, str(group), str(level)] = block
    return found


def basis_of(block: "DataFrame") -> Basis:
    """The columns of a block and the models that have all of them."""
    values: Any = block.pivot(index="model", columns=COLUMN, values="mean")
    return Basis(frozenset(values.columns), frozenset(values.dropna().index))


def _levels(metrics: Iterable[str]) -> list[str]:
    """FROC judges the map, as instance metrics do."""
    return ["bag" if metric.startswith("bag") else "inst" for metric in metrics]


def rank_values(rows: "DataFrame") -> "DataFrame":
    """Models x columns as they are ranked: rounded as printed, higher is better, nan where a model has no result.

    Energies are left out: they have no better side.
    """
    sides = [direction(metric) for metric in rows["metric"]]
    signed: Any = rows.assign(mean=rows["mean"].round(DIGITS) * sides)
    return signed[[side != 0 for side in sides]].pivot(index="model", columns=COLUMN, values="mean")


def _ranked(block: "DataFrame") -> tuple[list[dict[str, Any]], list[str], list[str]]:
    """A row for each model of a block; then who is not ranked since results are missing, and who has no rival."""
    values = rank_values(block)
    complete = values.dropna()
    missing = sorted(set(values.index) - set(complete.index))
    alone = list(complete.index) if len(complete) == 1 else []
    families = dict(zip(block["model"], block.get("family", block["group"]), strict=True))
    fewer = set(block["model"][block["fewer"]]) if "fewer" in block else set()
    ranks = mean_ranks(complete) if len(complete) > 1 else {}
    ranked = [
        {"model": m, "mean": mean, "std": std, "n": complete.shape[1], "family": families[m]}
        | {"fewer": m in fewer, "state": ""}
        for m, (mean, std) in ranks.items()
    ]
    others = [{"model": m, "family": families[m], "fewer": False, "state": "not ranked"} for m in (*alone, *missing)]
    return ranked + others, missing, alone


def _frame(found: Sequence[dict[str, Any]]) -> "DataFrame":
    from pandas import DataFrame

    names = ["dataset", "extractor", "group", "model", "metric", "mean", "std", "n", "lr", "family", "set"]
    return DataFrame(found, columns=[*names, "fewer", "state"]).astype({"fewer": bool})

"""Mean ranks of models within a group, counted as in the paper, and the comparison with the paper's numbers."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from pandas import DataFrame, concat

from smmil.evaluate.metrics import direction, metric_name
from smmil.evaluate.significance import mean_ranks
from smmil.experiments.paper import _cell_notes, _our_names, _paper_numbers, paper_table

DIGITS = 3
RANKED, EXTRACTORS, AS_PAPER = "ALL", "main", "as the paper"
COLUMN = ["dataset", "extractor", "metric"]
FLAGGED = "not judged (flagged)"
Block = tuple[str, str, str]  # extractor, group, level: what is ranked together


class _Basis(NamedTuple):
    """Basis of ranks: the columns, and the models ranked in them."""

    columns: frozenset[tuple[str, str, str]]
    models: frozenset[str]

    @classmethod
    def of(cls, block: DataFrame) -> "_Basis":
        """The columns of a block and the models that have all of them."""
        values: Any = block.pivot(index="model", columns=COLUMN, values="mean")
        return cls(frozenset(values.columns), frozenset(values.dropna().index))

    def contains(self, other: "_Basis") -> bool:
        return other.columns <= self.columns and other.models <= self.models


def _rank_rows(
    rows: DataFrame, rank_by: str = "all", mixed: Mapping[str, list[str]] | None = None
) -> tuple[DataFrame, list[str]]:
    """Mean ranks within each group over all columns (or over those of each extractor), as rows of data set ALL.

    Values are rounded to three digits first, as printed, so that equal prints share a rank. A model that lacks a column
    the others have is not ranked, nor is a single model, with a note. Energies are not ranked: a constant map is
    smoothest.
    """
    found, notes = [], []
    for (extractor, group, level), block in _rank_blocks(rows, rank_by, mixed).items():
        ranked, missing, single = _ranked(block)
        notes += [f"not ranked ({group}), some results are missing: {', '.join(missing)}"] if missing else []
        notes += [f"not ranked ({group}), nobody to be ranked with: {', '.join(single)}"] if single else []
        facts = {"dataset": RANKED, "extractor": extractor, "group": group, "metric": f"{level}_rank"}
        found += [{**facts, **row} for row in ranked]
    names = ["dataset", "extractor", "group", "model", "metric", "mean", "std", "n", "lr", "family", "set"]
    frame = DataFrame(found, columns=[*names, "fewer", "state"]).astype({"fewer": bool})
    return frame, list(dict.fromkeys(notes))


def _rank_blocks(
    rows: DataFrame, rank_by: str = "all", mixed: Mapping[str, list[str]] | None = None
) -> dict[Block, DataFrame]:
    """The rows that are ranked together, by extractor, group and level (inst or bag)."""
    rows = rows[[direction(metric) != 0 for metric in rows["metric"]]]
    found: dict[Block, DataFrame] = {}
    for extractor in [EXTRACTORS] if rank_by == "all" else sorted(set(rows["extractor"])):
        used = [extractor, *(mixed or {}).get(extractor, [])]
        part = rows if rank_by == "all" else rows[rows["extractor"].isin(used)]
        # FROC counts as a metric of instances.
        levels = part.assign(level=["bag" if metric.startswith("bag") else "inst" for metric in part["metric"]])
        for (group, level), block in levels.groupby(["group", "level"], sort=False):
            found[extractor, str(group), str(level)] = block
    return found


def _rank_values(rows: DataFrame) -> DataFrame:
    """Models x columns as they are ranked: rounded as printed, higher is better, nan where a model has no result.

    Energies are left out: they have no better side.
    """
    sides = [direction(metric) for metric in rows["metric"]]
    signed: Any = rows.assign(mean=rows["mean"].round(DIGITS) * sides)
    return signed[[side != 0 for side in sides]].pivot(index="model", columns=COLUMN, values="mean")


def _ranked(block: DataFrame) -> tuple[list[dict[str, Any]], list[str], list[str]]:
    """A row for each model of a block, the models that lack results, and a model without a rival."""
    values = _rank_values(block)
    complete = values.dropna()
    missing = sorted(set(values.index) - set(complete.index))
    single = list(complete.index) if len(complete) == 1 else []
    families = dict(zip(block["model"], block.get("family", block["group"]), strict=True))
    fewer = set(block["model"][block["fewer"]]) if "fewer" in block else set()
    ranks = mean_ranks(complete) if len(complete) > 1 else {}
    ranked = [
        {"model": m, "mean": mean, "std": std, "n": complete.shape[1], "family": families[m]}
        | {"fewer": m in fewer, "state": ""}
        for m, (mean, std) in ranks.items()
    ]
    others = [{"model": m, "family": families[m], "fewer": False, "state": "not ranked"} for m in (*single, *missing)]
    return ranked + others, missing, single


def _with_paper(rows: DataFrame, name: str | None, unlike: frozenset[Block] = frozenset()) -> DataFrame:
    """The rows with paper_mean, paper_std, difference (ours - paper's), within_std and paper_note.

    within_std: the difference is at most the paper's standard deviation, or ours where the paper prints none; empty
    where there is nothing to compare, and not judged where the paper's number is itself in doubt.
    unlike: ranks that rest on other columns or models than the paper's; its rank is not compared with them
    """
    printed: dict[Any, tuple[float, float]] = {}
    for row in _our_names(paper_table(name)).itertuples() if name is not None else ():
        printed[row.dataset, row.extractor, row.model, row.metric] = row.mean, row.std
    compared = [_compared(row, printed, unlike) for row in rows.itertuples()]
    names = ("paper_mean", "paper_std", "difference", "within_std", "paper_note")
    return rows.assign(**{key: [one[i] for one in compared] for i, key in enumerate(names)})


def _compared(
    row: Any, printed: Mapping[Any, tuple[float, float]], unlike: frozenset[Block]
) -> tuple[float, float, float, str, str]:
    extractor = EXTRACTORS if row.extractor == AS_PAPER else row.extractor
    key = (row.dataset, extractor, row.model, row.metric)
    level = row.metric.removesuffix("_rank")
    if key not in printed or (row.dataset == RANKED and (row.extractor, row.group, level) in unlike):
        return math.nan, math.nan, math.nan, "", ""
    mean, std = printed[key]
    note = "; ".join(_cell_notes().get(key, []))
    limit, gap = (row.std if math.isnan(std) else std), row.mean - mean
    if math.isnan(limit) or math.isnan(gap):
        return mean, std, gap, "", note
    return mean, std, gap, FLAGGED if note else ("yes" if abs(gap) <= limit else "no"), note


def _comparable_ranks(
    rows: DataFrame, name: str, rank_by: str, mixed: Mapping[str, list[str]]
) -> tuple[DataFrame, frozenset[Block], list[str]]:
    """Further ranks over the columns and models of the paper, the blocks that cannot be compared, and the reasons.

    Ranks are comparable with the paper's only where columns and models are the same. Where
    the study has all of the paper's columns and models and more, the ranks over the paper's own are added.
    """
    theirs = _paper_bases(name)
    ours = {key: _Basis.of(block) for key, block in _rank_blocks(rows, rank_by, mixed).items()}
    unlike = {key for key, basis in ours.items() if key in theirs and basis != theirs[key]}
    inside = {key for key in unlike if rank_by == "all" and ours[key].contains(theirs[key])}
    further = [_as_paper(rows, key, theirs[key]) for key in sorted(inside)]
    joined = concat(further, ignore_index=True) if further else rows.iloc[:0]
    return joined, frozenset(unlike), _reasons(unlike, inside, ours, theirs)


def _as_paper(rows: DataFrame, key: Block, basis: _Basis) -> DataFrame:
    """Ranks among the paper's models over the paper's columns."""
    columns = zip(rows["dataset"], rows["extractor"], rows["metric"], strict=True)
    keep = [c in basis.columns and m in basis.models for c, m in zip(columns, rows["model"], strict=True)]
    ranks = _rank_rows(rows[keep])[0]
    mine = (ranks["group"] == key[1]) & (ranks["metric"] == f"{key[2]}_rank")
    return ranks[mine].assign(extractor=AS_PAPER)


def _paper_bases(name: str) -> dict[Block, _Basis]:
    """Basis of each rank that a table of the paper prints."""
    if not (paper_table(name)["dataset"] == RANKED).any():
        return {}
    numbers, by, mixed = _paper_numbers(name)
    return {key: _Basis.of(block) for key, block in _rank_blocks(numbers, by, mixed).items()}


def _reasons(
    unlike: set[Block], inside: set[Block], ours: dict[Block, _Basis], theirs: dict[Block, _Basis]
) -> list[str]:
    """A line for each reason, with the groups it holds for."""
    found: dict[tuple[str, str], list[str]] = {}
    for key in sorted(unlike):
        extractor, group, level = key
        words = group if extractor == EXTRACTORS else f"{group}, {extractor}"
        bases = (
            f"ours is over {len(ours[key].columns)} columns and {len(ours[key].models)} models, the paper's over other "
            f"ones ({len(theirs[key].columns)} and {len(theirs[key].models)})"
        )
        if key in inside:
            why = f"{bases}; '{AS_PAPER}' ranks the paper's models over the paper's columns"
        else:
            why = f"{bases}; such ranks cannot be compared, so the paper's is not shown"
        found.setdefault((level, why), []).append(words)
    return [f"{metric_name(f'{level}_rank')} ({'; '.join(groups)}): {why}" for (level, why), groups in found.items()]

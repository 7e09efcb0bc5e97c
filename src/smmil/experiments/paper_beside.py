"""The paper's number beside ours: the difference, and a verdict only where both mean the same and can be trusted."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from smmil.experiments.metric_words import metric_name
from smmil.experiments.paper_notes import cell_notes, our_names, paper_numbers
from smmil.experiments.ranking import AS_PAPER, EXTRACTORS, RANKED, Basis, Block, basis_of, rank_blocks, rank_rows
from smmil.paper import paper_table

if TYPE_CHECKING:
    from pandas import DataFrame

FLAGGED = "not judged (flagged)"


def with_paper(rows: "DataFrame", name: str | None, unlike: frozenset[Block] = frozenset()) -> "DataFrame":
    """The rows with paper_mean, paper_std, difference (ours - paper's), within_std and paper_note.

    within_std: the difference is at most the paper's standard deviation, or ours where the paper prints none; empty
    where there is nothing to compare, and not judged where the paper's number is itself in doubt.
    unlike: ranks that rest on other columns or models than the paper's; its rank is not put beside them
    """
    printed = _printed(name) if name is not None else {}
    compared = [_compared(row, printed, unlike) for row in rows.itertuples()]
    names = ("paper_mean", "paper_std", "difference", "within_std", "paper_note")
    return rows.assign(**{key: [one[i] for one in compared] for i, key in enumerate(names)})


def _printed(name: str) -> dict[Any, tuple[float, float]]:
    table = our_names(paper_table(name))
    keys = zip(table["dataset"], table["extractor"], table["model"], table["metric"], strict=True)
    return dict(zip(keys, zip(table["mean"], table["std"], strict=True), strict=True))


def _compared(
    row: Any, printed: Mapping[Any, tuple[float, float]], unlike: frozenset[Block]
) -> tuple[float, float, float, str, str]:
    extractor = EXTRACTORS if row.extractor == AS_PAPER else row.extractor
    key = (row.dataset, extractor, row.model, row.metric)
    level = row.metric.removesuffix("_rank")
    if key not in printed or (row.dataset == RANKED and (row.extractor, row.group, level) in unlike):
        return math.nan, math.nan, math.nan, "", ""
    mean, std = printed[key]
    note = "; ".join(cell_notes().get(key, []))
    limit, gap = (row.std if math.isnan(std) else std), row.mean - mean
    if math.isnan(limit) or math.isnan(gap):
        return mean, std, gap, "", note
    return mean, std, gap, FLAGGED if note else ("yes" if abs(gap) <= limit else "no"), note


def comparable_ranks(
    rows: "DataFrame", name: str, rank_by: str, mixed: Mapping[str, list[str]]
) -> tuple["DataFrame", frozenset[Block], list[str]]:
    """Ranks like the paper's where ours are not: further rows, the blocks that cannot be compared, and why.

    A rank depends on who takes part: the paper's stands beside ours only where columns and models are the same. Where
    the study has all of the paper's columns and models and more, the ranks over the paper's alone are added.
    """
    theirs = _paper_bases(name)
    ours = {key: basis_of(block) for key, block in rank_blocks(rows, rank_by, mixed).items()}
    unlike = {key for key, basis in ours.items() if key in theirs and basis != theirs[key]}
    inside = {key for key in unlike if rank_by == "all" and _contains(ours[key], theirs[key])}
    further = [_as_paper(rows, key, theirs[key]) for key in sorted(inside)]
    return _joined(further, rows), frozenset(unlike), _reasons(unlike, inside, ours, theirs)


def _contains(ours: Basis, theirs: Basis) -> bool:
    return theirs.columns <= ours.columns and theirs.models <= ours.models


def _as_paper(rows: "DataFrame", key: Block, basis: Basis) -> "DataFrame":
    """Ranks among the paper's models over the paper's columns."""
    columns = zip(rows["dataset"], rows["extractor"], rows["metric"], strict=True)
    keep = [c in basis.columns and m in basis.models for c, m in zip(columns, rows["model"], strict=True)]
    ranks = rank_rows(rows[keep])[0]
    mine = (ranks["group"] == key[1]) & (ranks["metric"] == f"{key[2]}_rank")
    return ranks[mine].assign(extractor=AS_PAPER)


def _joined(frames: "list[DataFrame]", rows: "DataFrame") -> "DataFrame":
    from pandas import concat

    return concat(frames, ignore_index=True) if frames else rows.iloc[:0]


def _paper_bases(name: str) -> dict[Block, Basis]:
    """What each rank that a table of the paper prints rests on."""
    if not (paper_table(name)["dataset"] == RANKED).any():
        return {}
    numbers, by, mixed = paper_numbers(name)
    return {key: basis_of(block) for key, block in rank_blocks(numbers, by, mixed).items()}


def _reasons(unlike: set[Block], inside: set[Block], ours: dict[Block, Basis], theirs: dict[Block, Basis]) -> list[str]:
    """A line for each reason, with the groups it holds for."""
    found: dict[tuple[str, str], list[str]] = {}
    for key in sorted(unlike):
        extractor, group, level = key
        words = group if extractor == EXTRACTORS else f"{group}, {extractor}"
        found.setdefault((level, _why(ours[key], theirs[key], key in inside)), []).append(words)
    return [f"{metric_name(f'{level}_rank')} ({'; '.join(groups)}): {why}" for (level, why), groups in found.items()]


def _why(ours: Basis, theirs: Basis, added: bool) -> str:
    told = (
        f"ours is over {len(ours.columns)} columns and {len(ours.models)} models, the paper's over other ones "
        f"({len(theirs.columns)} and {len(theirs.models)})"
    )
    if added:
        return f"{told}; '{AS_PAPER}' ranks the paper's models over the paper's columns"
    return f"{told}; such ranks cannot be compared, so the paper's is not shown"

"""The paper's numbers next to ours, and where the paper's tables contradict themselves."""

import math
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from smmil.evaluate.metrics import metric_name
from smmil.experiments.paper import PAPER_TABLES, paper_table
from smmil.experiments.ranking import AS_PAPER, EXTRACTORS, RANKED, Basis, Block, basis_of, rank_blocks, rank_rows

RUNS = 5  # every number of the paper is a mean over five splits
OUR_METRIC = {"dirichlet_energy_norm": "energy_rayleigh"}
MIXED = {"ResNet50": ["ResNet50-BT"]}  # the paper's table 6 ranks them together
_BEHIND_TABLE_6 = tuple(f"feat_ext_{level}_{score}" for level in ("inst", "bag") for score in ("auroc", "f1"))
SAME_MODEL = {"SmAP-early": "SmAP", "ST+SAP": "SmTAP"}
_FAILED = "a failed training of the competitor rather than its ability"
_SUSPICIONS = {
    ("PANDA", "ResNet50", "SETMIL", "inst_f1"): "out of line with its AUROC; probably another set of instances",
    ("PANDA", "ViT-B-32", "SETMIL", "inst_f1"): "out of line with its AUROC; probably another set of instances",
}
# All numbers of such a training are in doubt, whatever the metric.
_FAILED_TRAININGS = {
    ("RSNA", "ResNet18", "CLAM"),
    ("RSNA", "ResNet50", "CLAM"),
    ("RSNA", "ViT-B-32", "CLAM"),
    ("RSNA", "ResNet18", "DSMIL"),
    ("RSNA", "ResNet50", "DSMIL"),
    ("CAMELYON16", "ResNet18", "IIB-MIL"),
    ("CAMELYON16", "ResNet50", "IIB-MIL"),
}
_TABLE_NOTES = {
    "table_ablation": ["the paper does not say how it normalises the energy; ours is fᵀL̃f / fᵀf, averaged over bags"],
    "table_penalty": [
        "the paper gives neither formula nor weight of its penalty; ours is 0.1 (1/N) fᵀL̃f",
        "its caption speaks of CAMELYON16 only, but three data sets are shown",
    ],
    "feat_ext_ranks": [
        "the paper's ResNet50 ranks contain the ResNet50-BT column of CAMELYON16, and its ties are broken by digits "
        "it does not print"
    ],
}
Key = tuple[str, str, str, str]


class Printed(NamedTuple):
    """A number of the paper and the number of the table it stands in."""

    mean: float
    std: float
    table: int


def our_names(table: Any) -> Any:
    """A table of the paper with the metrics called as here."""
    return table.assign(metric=table["metric"].replace(OUR_METRIC))


def table_notes(name: str) -> list[str]:
    """What to know about a whole table of the paper."""
    return _TABLE_NOTES.get(name, [])


@cache
def cell_notes() -> dict[Key, list[str]]:
    """By (data set, extractor, model, metric): every reason to distrust what the paper prints there."""
    notes: dict[Key, list[str]] = {}
    everything = _all_prints()
    failed = _FAILED_TRAININGS | {key[:3] for key, prints in everything.items() if _below_chance(key, prints)}
    for key, prints in everything.items():
        found = [*_contradictions(prints), *_impossible(prints)]
        found += [_SUSPICIONS[key]] if key in _SUSPICIONS else []
        found += [_FAILED] if key[:3] in failed else []
        if found:
            notes[key] = found
    for alias, name in SAME_MODEL.items():
        notes |= {(key[0], key[1], alias, key[3]): found for key, found in notes.items() if key[2] == name}
    return notes


def _below_chance(key: Key, prints: list[Printed]) -> bool:
    return key[2] == "GTP" and key[3] == "inst_auroc" and min(p.mean for p in prints) < 0.5


def paper_numbers(name: str) -> tuple[Any, str, dict[str, list[str]]]:
    """The numbers behind the ranks of a table of the paper, how they are ranked, and which extractors it mixed."""
    if name != "feat_ext_ranks":
        table = our_names(paper_table(name))
        return table[table["dataset"] != "ALL"], "all", {}
    from pandas import concat

    return concat([paper_table(part) for part in _BEHIND_TABLE_6], ignore_index=True), "extractor", MIXED


def _all_prints() -> dict[Key, list[Printed]]:
    prints: dict[Key, list[Printed]] = {}
    for name, number in PAPER_TABLES.items():
        rows = our_names(paper_table(name))
        for row in rows[rows["dataset"] != "ALL"].itertuples():
            key = (row.dataset, row.extractor, SAME_MODEL.get(row.model, row.model), row.metric)
            prints.setdefault(key, []).append(Printed(row.mean, row.std, number))
    return prints


def _contradictions(prints: list[Printed]) -> list[str]:
    """Different means, or different deviations, printed for the same quantity."""
    found = []
    for name in ("mean", "std"):
        values: dict[float, list[int]] = {}
        for one in prints:
            value = getattr(one, name)
            if not math.isnan(value):
                values.setdefault(value, []).append(one.table)
        if len(values) > 1:
            told = " and ".join(f"{v:.3f} (table {', '.join(map(str, t))})" for v, t in sorted(values.items()))
            found.append(f"the paper prints {'±' if name == 'std' else ''}{told} for the same quantity")
    return found


def _impossible(prints: list[Printed]) -> list[str]:
    worst = [one for one in prints if one.std > largest_std(one.mean) + 0.0005]
    return [f"±{one.std:.3f} (table {one.table}) is impossible: at most {largest_std(one.mean):.3f}" for one in worst]


def largest_std(mean: float, runs: int = RUNS, digits: int = 3) -> float:
    """The largest sample deviation that `runs` values from 0 to 1 can have when their mean is printed as `mean`.

    It is reached with as many ones and zeros as possible and one value between; the mean is moved within its rounding.
    """
    slack = 0.5 * 10**-digits
    means = [m for m in (mean - slack, mean, mean + slack) if 0 <= m <= 1]
    return max(_widest(m, runs) for m in means)


def _widest(mean: float, runs: int) -> float:
    ones, rest = divmod(mean * runs, 1)
    squares = ones + rest**2
    return math.sqrt(max(squares - runs * mean**2, 0) / (runs - 1))


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

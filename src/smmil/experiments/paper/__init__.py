"""The published numbers of the paper (arXiv:2410.03276), and where its tables contradict themselves."""

import math
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from pandas import DataFrame, concat, read_csv

from smmil.errors import check_choice

# file of each table, by its number in the paper; 6 to 10 are about feature extractors
PAPER_TABLES = {
    "table_localization": 1,
    "table_classification": 2,
    "table_ablation": 3,
    "table_sm_on_others": 4,
    "table_penalty": 5,
    "feat_ext_ranks": 6,
    "feat_ext_inst_auroc": 7,
    "feat_ext_inst_f1": 8,
    "feat_ext_bag_auroc": 9,
    "feat_ext_bag_f1": 10,
}
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


def paper_table(name: str) -> DataFrame:
    """One table of the paper, a row per printed number: dataset, extractor, group, model, metric, mean, std.

    name  one of PAPER_TABLES. Rows of dataset "ALL" hold mean ranks; extractor "main" is the mixed setting of the main
    text; std is nan where the paper prints none.
    """
    check_choice(name, PAPER_TABLES, "paper table")
    with files(__package__).joinpath(f"{name}.csv").open(encoding="utf-8") as stream:
        return read_csv(stream)


class _PaperNumber(NamedTuple):
    """A number of the paper and the number of its table."""

    mean: float
    std: float
    table: int


def _our_names(table: Any) -> Any:
    """Rename the metrics of a table of the paper to those of smmil."""
    return table.assign(metric=table["metric"].replace(OUR_METRIC))


def _table_notes(name: str) -> list[str]:
    """Notes on a whole table of the paper."""
    return _TABLE_NOTES.get(name, [])


@cache
def _cell_notes() -> dict[Key, list[str]]:
    """By (data set, extractor, model, metric): the reasons to doubt the number the paper prints there."""
    notes: dict[Key, list[str]] = {}
    everything = _all_prints()
    of_gtp = [key for key in everything if key[2:] == ("GTP", "inst_auroc")]
    failed = _FAILED_TRAININGS | {key[:3] for key in of_gtp if min(p.mean for p in everything[key]) < 0.5}
    for key, prints in everything.items():
        found = [*_contradictions(prints), *_impossible(prints)]
        found += [_SUSPICIONS[key]] if key in _SUSPICIONS else []
        found += [_FAILED] if key[:3] in failed else []
        if found:
            notes[key] = found
    for alias, name in SAME_MODEL.items():
        notes |= {(key[0], key[1], alias, key[3]): found for key, found in notes.items() if key[2] == name}
    return notes


def _paper_numbers(name: str) -> tuple[Any, str, dict[str, list[str]]]:
    """The numbers behind the ranks of a table of the paper, how they are ranked, and which extractors it mixed."""
    if name != "feat_ext_ranks":
        table = _our_names(paper_table(name))
        return table[table["dataset"] != "ALL"], "all", {}
    return concat([paper_table(part) for part in _BEHIND_TABLE_6], ignore_index=True), "extractor", MIXED


def _all_prints() -> dict[Key, list[_PaperNumber]]:
    prints: dict[Key, list[_PaperNumber]] = {}
    for name, number in PAPER_TABLES.items():
        rows = _our_names(paper_table(name))
        for row in rows[rows["dataset"] != "ALL"].itertuples():
            key = (row.dataset, row.extractor, SAME_MODEL.get(row.model, row.model), row.metric)
            prints.setdefault(key, []).append(_PaperNumber(row.mean, row.std, number))
    return prints


def _contradictions(prints: list[_PaperNumber]) -> list[str]:
    """Different means, or different deviations, printed for the same quantity."""
    found = []
    for name in ("mean", "std"):
        values: dict[float, list[int]] = {}
        for one in prints:
            value = getattr(one, name)
            if not math.isnan(value):
                values.setdefault(value, []).append(one.table)
        if len(values) > 1:
            values_text = " and ".join(f"{v:.3f} (table {', '.join(map(str, t))})" for v, t in sorted(values.items()))
            found.append(f"the paper prints {'±' if name == 'std' else ''}{values_text} for the same quantity")
    return found


def _impossible(prints: list[_PaperNumber]) -> list[str]:
    worst = [one for one in prints if one.std > _largest_std(one.mean) + 0.0005]
    return [f"±{one.std:.3f} (table {one.table}) is impossible: at most {_largest_std(one.mean):.3f}" for one in worst]


def _largest_std(mean: float, runs: int = RUNS, digits: int = 3) -> float:
    """The largest sample deviation that `runs` values from 0 to 1 can have when their mean is printed as `mean`.

    It is reached with as many ones and zeros as possible and one value between; the mean is moved within its rounding.
    """
    slack, widest = 0.5 * 10**-digits, 0.0
    for one in (m for m in (mean - slack, mean, mean + slack) if 0 <= m <= 1):
        ones, rest = divmod(one * runs, 1)
        widest = max(widest, (ones + rest**2 - runs * one**2) / (runs - 1))
    return math.sqrt(widest)

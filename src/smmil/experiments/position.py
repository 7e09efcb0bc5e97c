"""The position prior beside the localization of every variant: prior.md, prior.csv and a note below tables."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pandas import DataFrame

from smmil.errors import DataError
from smmil.evaluate.instances import POOLS
from smmil.evaluate.metrics import PooledMetric, metric_name
from smmil.evaluate.prior import DIFFERENCES, MAPS, PriorMaps, position_prior, prior_maps
from smmil.evaluate.resampling import interval_text, p_text
from smmil.evaluate.significance import holm
from smmil.experiments.results import _chosen_rows
from smmil.experiments.variant_tests import _resampled_mean
from smmil.experiments.writing import _markdown_cell, _three_digits
from smmil.prediction import Prediction, load_predictions

_INSIDE = "per_bag"
_READING = (
    "all numbers: instance AUROC within cases that hold both classes, averaged over cases, then over folds and seeds; "
    "intervals: 95 %, patients resampled, of a value BCa, of a difference percentile; Holm's correction over models",
    "where lesions usually lie: mean true map of other test patients at the same relative place (slices by height); "
    "its own mean map: that of the model's own scores in the other patients; neither knows anything of the case",
    "near 0.5 where cases share no frame, as tissue on slides: there position is no shortcut",
    "no better than position: the interval of a difference includes 0 or lies below; such a map need not have looked "
    "at the case",
)


def _position_rows(results: DataFrame, out: str | Path, *, n: int) -> list[dict[str, Any]]:
    """One row per data set and variant at its chosen learning rate; without a prior only the reason."""
    rows: list[dict[str, Any]] = []
    for set_, part in _chosen_rows(results).groupby("set", sort=True):
        mine = []
        for variant, runs in part.groupby("variant", sort=False):
            ordered = runs.sort_values(["seed", "fold"])
            folds = [load_predictions(Path(out) / "runs" / key / "test") for key in ordered["run"]]
            measured = _measured(folds, ordered["fold"].astype(int).tolist(), n)
            mine.append({"set": str(set_), "variant": str(variant), "runs": len(folds), **measured})
        tested = [row for row in mine if not math.isnan(row["difference_p"])]
        for row, corrected in zip(tested, holm([row["difference_p"] for row in tested]), strict=True):
            row["p_holm"] = corrected
        rows += mine
    return rows


def _measured(folds: Sequence[Sequence[Prediction]], numbers: Sequence[int], n: int) -> dict[str, Any]:
    """The numbers of one variant over its folds that have a prior, with a note about others; nan where none has one."""
    plain = [position_prior(cases, intervals=()) for cases in folds]
    there = [i for i, one in enumerate(plain) if _INSIDE in one]
    lacking = {numbers[i]: one["words"][0] for i, one in enumerate(plain) if _INSIDE not in one}
    if not there:
        reason = plain[0]["words"][0]
        keys = [f"{name}{end}" for name in (*MAPS, *DIFFERENCES) for end in ("", "_low", "_high")]
        return {**dict.fromkeys([*keys, "difference_p", "own_difference_p"], math.nan), "better": "", "notes": reason}
    folds, plain, numbers = [folds[i] for i in there], [plain[i] for i in there], [numbers[i] for i in there]
    maps = [prior_maps(cases) for cases in folds]
    means = {(pool, name): float(np.mean([one[pool][name] for one in plain])) for pool in POOLS for name in MAPS}
    row: dict[str, Any] = {name: means[_INSIDE, name] for name in MAPS}
    row |= {key: row[a] - row[b] for key, (a, b) in DIFFERENCES.items()}
    row |= _ends(maps, numbers, n)
    row["notes"] = ". ".join([*_left_out(lacking), *filter(None, [row["notes"]])])
    lows = [row[f"{key}_low"] for key in DIFFERENCES]
    row["better"] = "" if any(map(math.isnan, lows)) else "yes" if min(lows) > 0 else "no"
    row |= {f"truth@{pool}": means[pool, "truth"] for pool in POOLS if pool != _INSIDE}
    sets = {frozenset(p.id for p in cases): one.n_patients for cases, one in zip(folds, maps, strict=True)}
    return row | {"n_patients": sum(sets.values())}


def _left_out(lacking: Mapping[int, str]) -> list[str]:
    """Which folds have no prior, and why; their cases take no part in the numbers."""
    folds: dict[str, list[int]] = {}
    for number, words in sorted(lacking.items()):
        folds.setdefault(words.rpartition(": ")[2].rstrip("."), []).append(number)
    named = {why: f"fold{'s' * (len(own) > 1)} {' and '.join(map(str, own))}" for why, own in folds.items()}
    return [f"Without {which}, where there is no position prior: {why}" for why, which in named.items()]


def _ends(maps: Sequence[PriorMaps], numbers: Sequence[int], n: int) -> dict[str, Any]:
    """Ends of the intervals and p values over all folds; nan and a note where folds have test cases of their own."""
    found: dict[str, Any] = {f"{name}_{end}": math.nan for name in (*MAPS, *DIFFERENCES) for end in ("low", "high")}
    found |= {f"{key}_p": math.nan for key in DIFFERENCES}
    metric, cuts = PooledMetric("inst_auroc", _INSIDE).label, [None] * len(maps)
    try:
        folds = {name: [getattr(one, name) for one in maps] for name in MAPS}
        drawn = {name: _resampled_mean(cases, metric, cuts, n=n, numbers=numbers) for name, cases in folds.items()}
    except DataError:
        return found | {"notes": "no interval: the folds have different test cases"}
    for name, mine in drawn.items():
        ends = mine.interval()
        found |= {f"{name}_low": ends.low, f"{name}_high": ends.high}
        found |= {name: mine.value} if mine.folds else {}  # over all patients, as the interval
    for key, (a, b) in DIFFERENCES.items():
        gap = drawn[a].minus(drawn[b])
        ends = gap.interval(difference=True)
        found |= {f"{key}_low": ends.low, f"{key}_high": ends.high, f"{key}_p": ends.p}
        found |= {key: gap.value} if gap.folds else {}
    model = drawn["model"]
    return found | {"resampled": model.resampled, "shortage": model.carriers.shortage, "notes": ""}


def _position_markdown(rows: Sequence[dict[str, Any]], title: str) -> str:
    """Markdown page: one table per data set, which maps are no better than position, and how to read it."""
    heads = (
        "| model | map | where lesions usually lie | map minus that | p (Holm) | its own mean map | map minus that |"
    )
    lines = [f"## {title}", ""]
    for set_ in dict.fromkeys(row["set"] for row in rows):
        part = [row for row in rows if row["set"] == set_]
        who = "; ".join(dict.fromkeys(row["resampled"] for row in part if row.get("resampled")))
        lines += [f"### {set_}", "", *([f"{who}.", ""] if who else []), f"{heads} what is left without it |"]
        lines.append("|---|---:|---:|---:|---:|---:|---:|---:|")
        lines += [_line(row) for row in part]
        lines += ["", *_verdict_lines(part), ""]
    return "\n".join([*lines, *(f"- {note}" for note in _READING), ""])


def _line(row: dict[str, Any]) -> str:
    def cell(name: str, sign: str = "") -> str:
        ends = interval_text(row[f"{name}_low"], row[f"{name}_high"], short, f"{sign}.3f", ", ")
        shown = "" if ends == "–" else f" [{ends}]"
        return "–" if math.isnan(row[name]) else f"{row[name]:{sign}.3f}{shown}"

    short = row.get("shortage", "")
    corrected = p_text(row.get("p_holm", math.nan), short)
    first = [cell("model"), cell("truth"), cell("difference", "+"), corrected]
    cells = [*first, cell("own"), cell("own_difference", "+"), cell("residual")]
    return f"| {_markdown_cell(row['variant'])} | {' | '.join(cells)} |"


def _verdict_lines(part: Sequence[dict[str, Any]]) -> list[str]:
    """Which maps are no better than position, and why some have no prior."""
    beaten = [row["variant"] for row in part if row["better"] == "no"]
    lines = [f"**No better than position**: {', '.join(beaten)}."] if beaten else []
    notes: dict[str, list[str]] = {}
    for row in (row for row in part if row["notes"]):
        notes.setdefault(row["notes"].rstrip("."), []).append(row["variant"])
    return lines + [f"{note} ({', '.join(names)})." for note, names in notes.items()]


def _position_note(rows: Sequence[dict[str, Any]], metrics: Iterable[str]) -> list[str]:
    """A line below a table with instance AUROC: what position alone reaches in the same pool, by data set."""
    lines = []
    for metric in metrics:
        name, _, pool = metric.partition("@")
        key = "truth" if pool == _INSIDE else f"truth@{pool or 'all'}"
        found: dict[str, list[float]] = {}
        for row in rows if name == "inst_auroc" else ():
            if not math.isnan(row.get(key, math.nan)):
                found.setdefault(row["set"], []).append(row[key])
        values = ", ".join(f"{set_} {_three_digits(float(np.mean(v)), '')}" for set_, v in found.items())
        if values:
            reaches = f"a map that knows only where lesions of other patients lie reaches {values}"
            lines.append(f"{metric_name(metric)}: {reaches} (prior.md)")
    return lines

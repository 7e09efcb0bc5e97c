"""Paired tests as a Markdown page: one table per data set and metric, the reference first."""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from smmil.evaluate.metrics import explained, metric_name
from smmil.evaluate.resampling import FEW
from smmil.experiments.significance import FAMILIES, GROUPS
from smmil.experiments.writing import piped

if TYPE_CHECKING:
    from pandas import DataFrame

SURE = 0.05  # p after Holm's correction below which a difference counts as real
_HOW = (
    "value: mean over folds and seeds; the same draws for all models; intervals: 95 %, of a value BCa, of a difference "
    "percentile",
    "p: two-sided, below 0.05 exactly where the interval of the difference excludes 0; p (Holm): corrected for the "
    "models compared within a table, bold below 0.05",
)


def comparisons_markdown(rows: "DataFrame", title: str, reference: str, resamples: int) -> str:
    """The comparisons as tables, one for each data set and metric, and how to read them."""
    heads = f"| model | interaction | value [95 % interval] | minus {piped(reference)} [95 % interval] | p | p (Holm) |"
    lines = [f"## {title}", ""]
    for part in _parts(rows):
        lines += [*_heading(part), heads, "|---|---|---:|---:|---:|---:|", *_grouped(part, reference), ""]
    return "\n".join([*lines, *(f"- {note}" for note in _notes(rows.to_dict("records"), resamples)), ""])


def pairs_markdown(rows: "DataFrame", title: str, resamples: int) -> str:
    """Each variant beside its partner, one table for each data set and metric."""
    heads = "| model | value | without | value | difference [95 % interval] | p | p (Holm) |"
    lines = [f"## {title}", ""]
    for part in _parts(rows):
        lines += [*_heading(part), heads, "|---|---:|---|---:|---:|---:|---:|", *map(_pair, part), ""]
    told = rows.drop(columns="notes").to_dict("records")  # intervals of the values are not shown
    both = ["both values of a row are over the folds and seeds that both models have"]
    return "\n".join([*lines, *(f"- {note}" for note in both + _notes(told, resamples)), ""])


def _parts(rows: "DataFrame") -> Iterator[list[dict[Any, Any]]]:
    return (part.to_dict("records") for _, part in rows.groupby(["set", "metric"], sort=False))


def _heading(part: Sequence[dict[Any, Any]]) -> list[str]:
    """Data set and metric, and who was resampled: fewer where only some cases take part in the metric."""
    words = "; ".join(dict.fromkeys(row["resampled"] for row in part if row["units"]))
    return [f"### {_where(part[0])}", "", *([f"{words}.", ""] if words else [])]


def _where(row: dict[Any, Any]) -> str:
    return f"{row['set']} · {metric_name(str(row['metric']))}"


def _grouped(part: Sequence[dict[Any, Any]], reference: str) -> list[str]:
    lines, group = [], None
    for row in part:
        if row["variant"] != reference and row["group"] != group:
            group = row["group"]
            lines.append(f"| *{GROUPS.get(group, group)}* | | | | | |")
        name = f"{piped(row['variant'])} (reference)" if row["variant"] == reference else piped(row["variant"])
        between = f" [{row['low']:.3f}, {row['high']:.3f}]"
        value = _number(row["value"], between) + _marks(row, "")
        lines.append(f"| {name} | {FAMILIES[row['family']]} | {value} | {' | '.join(_difference(row))} |")
    return lines


def _pair(row: dict[Any, Any]) -> str:
    names = piped(row["variant"]), piped(row["reference"])
    fewer = "‡" * (row["runs"] < row["planned"])
    values = [_number(row[key], "") + fewer for key in ("value", "reference_value")]
    return f"| {names[0]} | {values[0]} | {names[1]} | {values[1]} | {' | '.join(_difference(row))} |"


def _number(value: float, more: str) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}{more}"


def _marks(row: dict[Any, Any], prefix: str) -> str:
    """‡ for fewer runs than planned, § for an interval about which something is to be said."""
    return "‡" * (row[f"{prefix}runs"] < row["planned"]) + "§" * bool(_told(row, prefix))


def _told(row: dict[Any, Any], prefix: str) -> str:
    note = row.get(f"{prefix}notes")
    return note if isinstance(note, str) else ""  # nan where a table is read back or nothing was compared


def _difference(row: dict[Any, Any]) -> list[str]:
    """The difference with its interval, p, and p by Holm in bold where it is small."""
    if not isinstance(row.get("reference"), str):
        return ["–"] * 3
    if math.isnan(row["difference"]):
        return [f"–{_marks(row, 'difference_')}", "–", "–"]
    between, corrected = f"[{row['difference_low']:+.3f}, {row['difference_high']:+.3f}]", p_text(row["p_holm"])
    shown = f"{row['difference']:+.3f} {between}{_marks(row, 'difference_')}"
    return [shown, p_text(row["p"]), f"**{corrected}**" if row["p_holm"] < SURE else corrected]


def p_text(p: float) -> str:
    """A p value with three digits, never 0."""
    return "–" if math.isnan(p) else ("<0.001" if p < 0.001 else f"{p:.3f}")


def _notes(rows: Sequence[dict[Any, Any]], resamples: int) -> list[str]:
    least = 2 / (resamples + 1)
    written = f", written {p_text(least)}" if least < 0.001 else ""
    notes = [*_HOW, f"the least p that {resamples} resamples can show is 2/{resamples + 1} = {least:.4g}{written}"]
    fewer = dict.fromkeys(words for row in rows for words in _fewer(row))
    if fewer:
        notes.append(f"‡ fewer runs than planned; a difference is taken over the folds both have: {', '.join(fewer)}")
    notes += [f"§ {told} ({'; '.join(places)})" for told, places in _intervals_to_doubt(rows).items()]
    few = dict.fromkeys(f"{_where(row)} ({row['resampled']})" for row in rows if 0 < row["units"] < FEW)
    if few:
        notes.append(f"too few for intervals and p values to be relied on: {', '.join(few)}")
    return notes + explained(str(row["metric"]) for row in rows)


def _fewer(row: dict[Any, Any]) -> Iterator[str]:
    """A variant with fewer runs than planned, or the two whose difference rests on fewer."""
    if row["runs"] < row["planned"]:
        yield f"{row['set']} · {row['variant']} ({row['runs']:.0f} of {row['planned']:.0f})"
    if row.get("difference_runs", math.nan) < row["runs"]:
        both = f"{row['variant']} − {row['reference']}"
        yield f"{row['set']} · {both} ({row['difference_runs']:.0f} of {row['planned']:.0f})"


def _intervals_to_doubt(rows: Sequence[dict[Any, Any]]) -> dict[str, list[str]]:
    """What is to be said about intervals, each with the places it holds for."""
    found: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        for prefix, name in (("", row["variant"]), ("difference_", f"{row['variant']} − {row.get('reference')}")):
            if told := _told(row, prefix):
                found.setdefault(told, {}).setdefault(_where(row), []).append(name)
    return {told: [f"{where}: {', '.join(n)}" for where, n in places.items()] for told, places in found.items()}

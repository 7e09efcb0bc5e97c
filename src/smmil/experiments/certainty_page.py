"""Paired tests as a page to read: a table for each data set and metric, the reference first."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from smmil.evaluate.resampling import FEW
from smmil.experiments.metric_words import explained, metric_name
from smmil.experiments.writing import FAMILIES, GROUPS, piped

if TYPE_CHECKING:
    from pandas import DataFrame

SURE = 0.05  # p after Holm's correction below which a difference counts as real


def comparisons_markdown(rows: "DataFrame", title: str, reference: str, resamples: int) -> str:
    """The comparisons as tables, one for each data set and metric, and how to read them."""
    lines = [f"## {title}", ""]
    for (set_, metric), part in rows.groupby(["set", "metric"], sort=False):
        lines += [f"### {set_} · {metric_name(str(metric))}", "", *_table(part.to_dict("records"), reference), ""]
    return "\n".join([*lines, *(f"- {note}" for note in _notes(rows.to_dict("records"), resamples)), ""])


def pairs_markdown(rows: "DataFrame", title: str, resamples: int) -> str:
    """Each variant beside its partner, one table for each data set and metric."""
    lines = [f"## {title}", ""]
    for (set_, metric), part in rows.groupby(["set", "metric"], sort=False):
        heads = "| model | value | without | value | difference [95 % interval] | p | p (Holm) |"
        lines += [f"### {set_} · {metric_name(str(metric))}", "", heads, "|---|---:|---|---:|---:|---:|---:|"]
        most = max(part["runs"])
        for row in part.to_dict("records"):
            names = piped(str(row["variant"])), piped(str(row["reference"]))
            value = f"{row['value']:.3f}" + "‡" * (row["runs"] < most)
            words = " | ".join(_difference(row))
            lines.append(f"| {names[0]} | {value} | {names[1]} | {row['reference_value']:.3f} | {words} |")
        lines.append("")
    return "\n".join([*lines, *(f"- {note}" for note in _notes(rows.to_dict("records"), resamples)), ""])


def _table(rows: Sequence[dict[Any, Any]], reference: str) -> list[str]:
    heads = f"| model | interaction | value [95 % interval] | minus {piped(reference)} [95 % interval] | p | p (Holm) |"
    lines, group, most = [heads, "|---|---|---:|---:|---:|---:|"], None, max(row["runs"] for row in rows)
    for row in rows:
        if row["variant"] != reference and row["group"] != group:
            group = row["group"]
            lines.append(f"| *{GROUPS.get(group, group)}* | | | | | |")
        lines.append(_line(row, reference, most))
    return lines


def _line(row: dict[Any, Any], reference: str, most: int) -> str:
    """One variant; ‡ where it has fewer runs than the others."""
    value = f"{row['value']:.3f} [{row['low']:.3f}, {row['high']:.3f}]" + "‡" * (row["runs"] < most)
    name = f"{piped(row['variant'])} (reference)" if row["variant"] == reference else piped(row["variant"])
    return f"| {name} | {FAMILIES[row['family']]} | {value} | {' | '.join(_difference(row))} |"


def _difference(row: dict[Any, Any]) -> list[str]:
    """The difference with its interval, p, and p by Holm in bold where it is small."""
    gap = row.get("difference", math.nan)
    if math.isnan(gap):
        return ["–"] * 3
    between, corrected = f"[{row['difference_low']:+.3f}, {row['difference_high']:+.3f}]", p_text(row["p_holm"])
    sure = row["p_holm"] < SURE
    return [f"{gap:+.3f} {between}", p_text(row["p"]), f"**{corrected}**" if sure else corrected]


def p_text(p: float) -> str:
    """A p value with three digits, never 0."""
    return "–" if math.isnan(p) else ("<0.001" if p < 0.001 else f"{p:.3f}")


def _notes(rows: Sequence[dict[Any, Any]], resamples: int) -> list[str]:
    notes = [
        "value: mean over folds and seeds; intervals: 95 % BCa, patients resampled, the same draws for all models",
        "p: two-sided; p (Holm): corrected for the models compared within a table, bold below 0.05",
        f"the least p that {resamples} resamples can show is {2 / (resamples + 1):.1g}",
    ]
    most = max((row["runs"] for row in rows), default=0)
    fewer = dict.fromkeys(f"{r['set']} · {r['variant']} ({r['runs']} of {most})" for r in rows if r["runs"] < most)
    if fewer:
        notes.append(f"‡ fewer runs than the others, compared over the folds both have: {', '.join(fewer)}")
    few = sorted({f"{row['set']} ({row['patients']})" for row in rows if row["patients"] < FEW})
    if few:
        notes.append(f"too few patients for intervals and p values to be relied on: {', '.join(few)}")
    return notes + explained(str(row["metric"]) for row in rows)

"""Tables of smmil evaluate: intervals, comparisons, lesions found."""

from typing import Any


def intervals_table(results: dict[str, dict[str, Any]]) -> Any:
    """A row per metric, a column per model: value and interval."""
    some = next(iter(next(iter(results.values()))["ci"].values()), None)
    words = f"{some['level']:.0%} intervals, {some['n_resamples']} resamples by {some['unit']}" if some else "Intervals"
    table = _table(words, ["metric"], list(results))
    for label in dict.fromkeys(label for found in results.values() for label in found["ci"]):
        table.add_row(label, *(_with_interval(found["ci"].get(label), "value") for found in results.values()))
    return table


def froc_table(results: dict[str, dict[str, Any]]) -> Any:
    """A row per number of false alarms per bag, a column per model: share of the lesions found."""
    table = _table("Lesions found (FROC)", ["false alarms per bag"], list(results))
    found = [result["froc"] for result in results.values()]
    for row, rate in enumerate(found[0]["rates"]):
        table.add_row(f"{rate:g}", *(number(f["sensitivities"][row]) for f in found))
    table.add_row("mean", *(number(f["froc"]) for f in found))
    table.add_row("lesions / bags", *(f"{f['n_lesions']:,} / {f['n_bags']:,}" for f in found))
    return table


def comparison_table(results: dict[str, dict[str, Any]]) -> Any:
    """A row per model and metric: both values, difference with interval, p values."""
    table = _table("Paired comparison", ["model", "against", "metric"], [
        "model's", "other's", "difference", "p", "p (Holm)", "p (DeLong)",
    ])  # fmt: skip
    for name, found in results.items():
        for row in found["comparisons"]:
            test = _p(row["delong"]["p"]) if row["delong"] else "–"
            values = [number(row["a"]), number(row["b"]), _with_interval(row, "difference")]
            table.add_row(name, row["other"], row["measure"], *values, _p(row["p"]), _p(row["p_holm"]), test)
    return table


def evidence_notes(results: dict[str, dict[str, Any]]) -> list[str]:
    """Every note of intervals, comparisons and FROC, said once per model."""
    lines: dict[str, None] = {}
    for name, found in results.items():
        lines |= {f"{name}: note: {note}": None for note in found.get("notes", [])}
        parts = [found.get("froc"), *found.get("ci", {}).values(), *found.get("comparisons", [])]
        for part in (p for p in parts if p):
            what = part.get("measure") or part.get("metric", "froc")
            lines |= {f"{name}: note ({what}): {note}": None for note in part["notes"]}
    return list(lines)


def number(value: float | None) -> str:
    """Three digits, or a dash for what does not exist."""
    return "–" if value is None or value != value else f"{value:.3f}"


def _table(title: str, texts: list[str], numbers: list[str]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left")
    for heading in texts:
        table.add_column(heading)
    for heading in numbers:
        table.add_column(Text(heading), justify="right")
    return table


def _with_interval(found: dict[str, Any] | None, key: str) -> str:
    return "–" if found is None else f"{number(found[key])} ({number(found['low'])} to {number(found['high'])})"


def _p(value: float) -> str:
    if value != value:
        return "–"
    return "<0.001" if value < 0.001 else f"{value:.3f}"

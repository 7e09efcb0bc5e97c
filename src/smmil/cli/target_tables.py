"""Tables and words of smmil evaluate about targets that are no classes: labels, times, risk groups."""

from typing import Any

from smmil.cli.options import _table

_Results = dict[str, dict[str, Any]]


def _label_table(results: _Results) -> Any:
    """A row per label and metric, a column per model."""
    from smmil.evaluate.metrics import metrics_of

    table = _table("Labels", ["label", "metric"], list(results))
    found = [one["bag"].get("labels", {}) for one in results.values()]
    for name in dict.fromkeys(name for labels in found for name in labels):
        rows = [labels.get(name, {}) for labels in found]
        table.add_row(name, "positive / known", *(f"{r['n_positive']:,} / {r['n']:,}" if r else "–" for r in rows))
        metrics = metrics_of("bag", "multilabel")
        for metric in metrics:
            cells = [_number(row.get(metric.key)) for row in rows]
            table.add_row("", metric.key, *cells, end_section=metric is metrics[-1])
    return table


def _time_table(results: _Results) -> Any:
    """A row per time and number, a column per model: who was followed, AUROC, Brier score, predicted and observed share
    with an event.
    """
    table = _table("Events until a time", ["until", ""], list(results))
    found = [{row["time"]: row for row in one["bag"].get("times", {}).values()} for one in results.values()]
    words = {"auroc": "AUROC", "brier": "Brier score", "predicted": "predicted share", "observed": "observed share"}
    for time in sorted({time for rows in found for time in rows}):
        at = [rows.get(time, {}) for rows in found]
        table.add_row(
            f"{time:g}", "with / without", *(f"{r['n_events']:,} / {r['n_without']:,}" if r else "–" for r in at)
        )
        for key, name in words.items():
            cells = [_with_shortage(row, key) for row in at]
            table.add_row("", name, *cells, end_section=key == list(words)[-1])
    return table


def _target_tables(results: _Results) -> list[Any]:
    """The functions that draw what these results hold beyond classes."""
    held = [key for found in results.values() for key in ("labels", "times") if found["bag"].get(key)]
    return [draw for key, draw in (("labels", _label_table), ("times", _time_table)) if key in held]


def _counts_in_words(bag: dict[str, Any]) -> str:
    """How many cases are known, and how many of them had an event, a label or a level above the lowest."""
    from smmil.evaluate.case_words import positives_in_words

    positive = positives_in_words(bag.get("target", "class"), bag["n_positive"])
    return f"{bag['n']} labelled cases" + (f" ({positive})" if positive else "")


def _group_words(bag: dict[str, Any]) -> list[str]:
    """Sizes of the risk groups and the p value of their difference in survival."""
    from smmil.evaluate.resampling import p_text

    groups = bag.get("risk_groups")
    if not groups or not groups["groups"]:
        return []
    sizes = ", ".join(f"{g['name']} {g['n']} ({g['n_events']} with an event)" for g in groups["groups"])
    notes = "".join(f"; {note}" for note in groups["notes"])
    return [f"  risk groups by patient: {sizes}; log-rank p {p_text(groups['p'], groups['shortage'])}{notes}"]


def _with_shortage(row: dict[str, Any], key: str) -> str:
    """A number of a time; where too few had an event, or none, until then, scores say so."""
    from smmil.evaluate.resampling import missing_text

    few = row.get("shortage", "") if key in ("auroc", "brier") and _number(row.get(key)) != "–" else ""
    return _number(row.get(key)) + (f"\n{missing_text(few)}" if few else "")


def _number(value: float | None) -> str:
    return "–" if value is None or value != value else f"{value:.3f}"

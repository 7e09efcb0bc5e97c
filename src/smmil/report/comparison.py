"""Models side by side: metrics, maps beside the truth, honest remarks and what to do next."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from smmil.report.page import Picture, Section, Table, write_page


class Measure(NamedTuple):
    """A column of a table: key in the results, heading, and whether higher (1), lower (-1) or neither (0) is better."""

    key: str
    heading: str
    better: int


BAG = [Measure("auroc", "AUROC", 1), Measure("auprc", "AUPRC", 1), Measure("f1", "F1", 1),
       Measure("accuracy", "accuracy", 1), Measure("balanced_accuracy", "balanced acc.", 1),
       Measure("loss", "cross-entropy ↓", -1)]  # fmt: skip
INSTANCE = [Measure("auroc", "AUROC", 1), Measure("auprc", "AUPRC", 1), Measure("f1", "F1 = Dice", 1),
            Measure("precision", "precision", 1), Measure("recall", "recall", 1)]  # fmt: skip
ENERGY = [Measure("rayleigh", "f'L̃f / f'f", 0), Measure("mean", "f'L̃f / N", 0),
          Measure("minmax", "E(f in [0, 1]) / ΣA", 0)]  # fmt: skip
POOLS = {
    "all": "Instances of all cases together",
    "positive_bags": "Instances of positive cases together",
    "per_bag": "Each case by itself, then averaged",
}
DECIDING = ("auroc", "f1")


def comparison_page(
    path: str | Path,
    *,
    results: Mapping[str, Mapping[str, Any]],
    maps: Iterable[tuple[str, str, str | Path]] = (),
    notes: Sequence[str] = (),
    next_steps: Sequence[str] = (),
    title: str = "Models side by side",
    lead: str = "How well each model classifies whole cases, and how well its scores find the lesion.",
) -> Path:
    """A page from {model: {"bag": ..., "instance": ..., "energy": ...}} as `smmil.evaluate.summary` gives it.

    "instance" is one set of metrics, or one for each pool. maps are (case id, caption, PNG) triples.
    """
    whole = {m: r.get("bag") for m, r in results.items()}
    same = _comparable(whole)
    bags = [_table("Whole cases", whole, BAG, same)]
    pools = {name: [_pool(r, name) for r in results.values()] for name in POOLS}
    instances = [
        _table(POOLS[name], dict(zip(results, found, strict=True)), INSTANCE, same)
        for name, found in pools.items()
        if any(found)
    ]
    energy = [_table("Roughness of the scores", {m: r.get("energy") for m, r in results.items()}, ENERGY)]
    shown = [Picture(png, f"{case}: {caption}", f"Score maps of case {case}. {caption}") for case, caption, png in maps]
    sections = [
        Section("Cases: is the lesion there?", ["Green marks the best value of a column."], tables=bags),
        Section("Instances: where is it?", [_threshold_sentence(results)], tables=instances),
        Section("Smoothness of the maps", ["0 is smoothest. Smoother is not better by itself."], tables=energy),
        Section("Maps beside the truth", pictures=shown),
        Section("Who leads, and where not", items=[*leaders(results), *notes]),
        Section("Remarks of the evaluation", items=_remarks(results)),
        Section("What to do next", items=next_steps, ordered=True),
    ]
    return write_page(path, title=title, lead=lead, sections=[s for s in sections if s.items or s.tables or s.pictures])


def leaders(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """How often each model leads, then one sentence per deciding metric: who leads by how much, or that nobody does."""
    sentences, wins, unfair = [], dict.fromkeys(results, 0), 0
    for words, values, fair in _contests(results):
        if not fair:
            unfair += 1
            sentences.append(f"{words}: not comparable, the models were not measured on the same.")
            continue
        first, second, gap = _podium(values)
        if gap:
            wins[first] += 1
            outcome = f"{first} leads with {values[first]:.3f}, {gap:.3f} before {second} ({values[second]:.3f})."
        else:
            outcome = f"{first} and {second} are equal to three digits ({values[first]:.3f})."
        sentences.append(f"{words}: {outcome}")
    if not sentences:
        return []
    counts = ", ".join(f"{model} leads in {count}" for model, count in wins.items())
    ties = len(sentences) - sum(wins.values()) - unfair
    more = f", {unfair} are not comparable" if unfair else ""
    return [f"Of {len(sentences)} comparisons {counts}; {ties} are ties{more}.", *sentences]


def _contests(results: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, dict[str, float], bool]]:
    """Deciding metrics for which at least two models have a value, and whether these may be compared."""
    parts: list[tuple[str, list[Any]]] = [("whole cases", [r.get("bag") for r in results.values()])]
    same = _comparable(dict(zip(results, parts[0][1], strict=True)))
    parts += [(POOLS[p][0].lower() + POOLS[p][1:], [_pool(r, p) for r in results.values()]) for p in POOLS]
    contests = []
    for words, found in parts:
        fair = same and _comparable(dict(zip(results, found, strict=True)))
        for key in DECIDING:
            values = {n: v for n, f in zip(results, found, strict=True) if (v := _value(f, key)) is not None}
            contests.append((f"{key.upper()}, {words}", values, fair))
    return [contest for contest in contests if len(contest[1]) > 1]


def _podium(values: Mapping[str, float]) -> tuple[str, str, float]:
    """The best and the second best model, and the distance of their printed values."""
    first, second = sorted(values, key=lambda name: -round(values[name], 3))[:2]
    return first, second, round(round(values[first], 3) - round(values[second], 3), 3)


def _table(caption: str, found: Mapping[str, Any], measures: Sequence[Measure], same_cases: bool = True) -> Table:
    kept = [m for m in measures if any(_value(f, m.key) is not None for f in found.values())]
    rows = [[model, *(_text(_value(f, m.key)) for m in kept)] for model, f in found.items()]
    fair = same_cases and _comparable(found)
    best = frozenset(cell for column, m in enumerate(kept, start=1) for cell in _best(rows, column, m.better * fair))
    warning = "" if fair else "; not comparable, so no best value is marked"
    return Table(
        f"{caption} ({' / '.join(_sizes(found)) or 'nothing measured'}{warning})",
        ["model", *(m.heading for m in kept)],
        rows,
        best,
    )


def _best(rows: Sequence[Sequence[str]], column: int, better: int) -> list[tuple[int, int]]:
    """Cells with the best printed value; none when all are equal, so nothing is praised for a hidden digit."""
    values = {i: better * float(row[column]) for i, row in enumerate(rows) if row[column] != "–"}
    if not better or len(set(values.values())) < 2:
        return []
    return [(i, column) for i, value in values.items() if value == max(values.values())]


def _sizes(found: Mapping[str, Any]) -> list[str]:
    """On what was measured; more than one entry when the models were not measured on the same."""
    sizes: dict[str, None] = {}
    for metrics in (f for f in found.values() if f):
        if "n_instances" in metrics:
            sizes[f"{metrics['n_instances']:,} instances of {_cases(metrics['n_bags_used'])}"] = None
        elif "n" in metrics:
            sizes[f"{_cases(metrics['n'])}, {metrics['n_positive']} positive"] = None
        elif "n_bags" in metrics:
            sizes[f"mean over {_cases(metrics['n_bags'])}"] = None
    return list(sizes)


def _comparable(found: Mapping[str, Any]) -> bool:
    """Whether all models were measured on as many cases and instances, and nobody noted that they differ."""
    notes = [note for metrics in found.values() for note in (metrics or {}).get("notes", [])]
    return len(_sizes(found)) < 2 and not any("not comparable" in note for note in notes)


def _cases(count: int) -> str:
    return "1 case" if count == 1 else f"{count} cases"


def _threshold_sentence(results: Mapping[str, Mapping[str, Any]]) -> str:
    parts = []
    for model, found in results.items():
        cut = found.get("threshold") or {}
        if cut:
            value = "none" if cut["value"] is None else f"{cut['value']:.4g}"
            parts.append(f"{model}: {value} ({cut['source']})")
    return (
        f"Threshold for F1, precision and recall: {'; '.join(parts)}." if parts else "Scores against instance labels."
    )


def _remarks(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Every note of the metrics once, with the models it belongs to."""
    said: dict[str, list[str]] = {}
    for model, found in results.items():
        for part in (found.get("bag"), *(_pool(found, p) for p in POOLS), found.get("energy")):
            for note in (part or {}).get("notes", []):
                if model not in said.setdefault(note, []):
                    said[note].append(model)
    return [f"{', '.join(models)}: {note}" for note, models in said.items()]


def _pool(found: Mapping[str, Any], name: str) -> Any:
    metrics = found.get("instance") or {}
    if any(pool in metrics for pool in POOLS):
        return metrics.get(name)
    return metrics if metrics and metrics.get("pool", "all") == name else None


def _value(metrics: Mapping[str, Any] | None, key: str) -> float | None:
    value = (metrics or {}).get(key)
    return None if value is None or math.isnan(value) else float(value)


def _text(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"

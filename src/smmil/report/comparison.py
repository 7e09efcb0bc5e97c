"""Models compared on one page: metrics, maps and the truth."""

import base64
import math
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from smmil import __version__
from smmil.errors import DataError
from smmil.files import write_text

CSS = """
:root { color-scheme: light dark; --ink: #1d2127; --soft: #5b636e; --paper: #fbfaf8; --card: #ffffff; --line: #dcdfe4;
  --mark: #0b6e4f; --mark-back: #e3f3ec; --code: #eef0f3; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --soft: #a3abb6; --paper: #14171b; --card: #1c2026;
  --line: #343a43; --mark: #7fdcb8; --mark-back: #16352a; --code: #262b33; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, -apple-system, "Segoe UI",
  Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 2.2rem 1.4rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.4rem 0 .6rem; padding-top: .9rem; border-top: 1px solid var(--line); }
p { max-width: 75ch; margin: .5rem 0; }
.lead { font-size: 1.08rem; color: var(--soft); }
ul, ol { max-width: 80ch; padding-left: 1.3rem; }
li { margin: .3rem 0; overflow-wrap: anywhere; }
code { background: var(--code); border-radius: 4px; padding: .1em .35em; font: .9em ui-monospace, Menlo, Consolas,
  monospace; overflow-wrap: anywhere; }
.wide { overflow-x: auto; margin: 1rem 0 1.4rem; }
table { border-collapse: collapse; min-width: 26rem; background: var(--card); font-variant-numeric: tabular-nums;
  border: 1px solid var(--line); }
caption { text-align: left; color: var(--soft); font-size: .92rem; padding: 0 0 .45rem; }
th, td { padding: .42rem .85rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child { text-align: left; }
thead th { font-size: .85rem; color: var(--soft); font-weight: 600; }
tbody th { font-weight: 600; }
td.best { background: var(--mark-back); color: var(--mark); font-weight: 700; }
figure { margin: 1.2rem 0 2rem; }
figure img { display: block; max-width: 100%; height: auto; background: #ffffff; border: 1px solid var(--line);
  border-radius: 8px; padding: .5rem; }
figcaption { color: var(--soft); font-size: .92rem; margin-top: .45rem; max-width: 85ch; overflow-wrap: anywhere; }
footer { margin-top: 3rem; color: var(--soft); font-size: .85rem; }
@media print { main { max-width: none; padding: 0; } h2 { break-after: avoid; } figure, table { break-inside: avoid; } }
"""


_NOTHING_FROM_OUTSIDE = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


@dataclass(frozen=True)
class PageTable:
    """Rows of text below a heading row; the first cell of each row names it. `best` marks (row, column) cells."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    best: frozenset[tuple[int, int]] = frozenset()

    def html(self) -> str:
        head = "".join(f'<th scope="col">{escape(c)}</th>' for c in self.columns)
        body = "".join(self._row(i, row) for i, row in enumerate(self.rows))
        return (
            f'<div class="wide"><table><caption>{_prose(self.caption)}</caption>'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )

    def _row(self, number: int, row: Sequence[str]) -> str:
        cells = [f'<th scope="row">{escape(row[0])}</th>']
        for column, text in enumerate(row[1:], start=1):
            mark = ' class="best"' if (number, column) in self.best else ""
            cells.append(f"<td{mark}>{escape(text)}</td>")
        return f"<tr>{''.join(cells)}</tr>"


@dataclass(frozen=True)
class Picture:
    """A PNG file, copied into the page; `alt` says in words what it shows."""

    path: str | Path
    caption: str
    alt: str

    def html(self) -> str:
        data = _png(Path(self.path))
        width, height = struct.unpack(">II", data[16:24])
        source = f"data:image/png;base64,{base64.b64encode(data).decode()}"
        return (
            f'<figure><img src="{source}" width="{width}" height="{height}" alt="{escape(self.alt)}">'
            f"<figcaption>{_prose(self.caption)}</figcaption></figure>"
        )


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it: paragraphs, a list, tables, pictures, in this order.

    Text between backquotes is shown as code; everything else is shown as it is written.
    """

    title: str
    paragraphs: Sequence[str] = ()
    items: Sequence[str] = ()
    tables: Sequence[PageTable] = ()
    pictures: Sequence[Picture] = ()
    ordered: bool = False

    def html(self) -> str:
        kind = "ol" if self.ordered else "ul"
        items = "".join(f"<li>{_prose(item)}</li>" for item in self.items)
        return "\n".join([
            f"<section><h2>{escape(self.title)}</h2>",
            *(f"<p>{_prose(text)}</p>" for text in self.paragraphs),
            *([f"<{kind}>{items}</{kind}>"] if items else []),
            *(table.html() for table in self.tables),
            *(picture.html() for picture in self.pictures),
            "</section>",
        ])  # fmt: skip


def write_page(path: str | Path, *, title: str, lead: str, sections: Sequence[Section], language: str = "en") -> Path:
    """Write the page atomically; the same content gives the same bytes."""
    body = "\n".join(section.html() for section in sections)
    write_text(
        path,
        f"""<!DOCTYPE html>
<html lang="{escape(language)}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_NOTHING_FROM_OUTSIDE}">
<title>{escape(title)}</title>
<style>{CSS}</style>
</head>
<body>
<main>
<header><h1>{escape(title)}</h1>
<p class="lead">{_prose(lead)}</p></header>
{body}
<footer>Written by smmil {__version__}. For research only, not for diagnosis.</footer>
</main>
</body>
</html>
""",
    )
    return Path(path)


def _prose(text: str) -> str:
    """Escaped text with `code` between backquotes."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _png(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as problem:
        raise DataError(f"{path}: picture cannot be read ({problem.strerror}); draw it again") from None
    if len(data) < 24 or not data.startswith(b"\x89PNG\r\n\x1a\n"):
        raise DataError(f"{path}: not a PNG picture; draw it again")
    return data


class ComparedMetric(NamedTuple):
    """A column of a table: key in the results, heading, and whether higher (1), lower (-1) or neither (0) is better."""

    key: str
    heading: str
    better: int


BAG = [ComparedMetric("auroc", "AUROC", 1), ComparedMetric("auprc", "AUPRC", 1), ComparedMetric("f1", "F1", 1),
       ComparedMetric("accuracy", "accuracy", 1), ComparedMetric("balanced_accuracy", "balanced acc.", 1),
       ComparedMetric("loss", "cross-entropy ↓", -1)]  # fmt: skip
INSTANCE = [ComparedMetric("auroc", "AUROC", 1), ComparedMetric("auprc", "AUPRC", 1),
            ComparedMetric("f1", "F1 = Dice", 1), ComparedMetric("precision", "precision", 1),
            ComparedMetric("recall", "recall", 1)]  # fmt: skip
ENERGY = [ComparedMetric("rayleigh", "f'L̃f / f'f", 0), ComparedMetric("mean", "f'L̃f / N", 0),
          ComparedMetric("minmax", "E(f in [0, 1]) / ΣA", 0)]  # fmt: skip
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
    """A page from {model: {"bag": ..., "instance": ..., "energy": ...}} as `smmil.evaluate.folders` gives it.

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


def _table(
    caption: str, found: Mapping[str, Any], measures: Sequence[ComparedMetric], same_cases: bool = True
) -> PageTable:
    kept = [m for m in measures if any(_value(f, m.key) is not None for f in found.values())]
    rows = [[model, *(_text(_value(f, m.key)) for m in kept)] for model, f in found.items()]
    fair = same_cases and _comparable(found)
    best = frozenset(cell for column, m in enumerate(kept, start=1) for cell in _best(rows, column, m.better * fair))
    warning = "" if fair else "; not comparable, so no best value is marked"
    return PageTable(
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

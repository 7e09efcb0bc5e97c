"""Tables as Markdown, LaTeX and CSV."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from smmil.experiments.tables import RANKED, Shown
from smmil.files import write_text

GROUPS = {"no_global": "without global interactions", "global": "with global interactions"}
FAMILIES = {"independent": "none", "local": "local", "global": "global", "global_local": "global and local"}
_ESCAPED = {c: f"\\{c}" for c in "&%$#_{}"} | {"†": "$^\\dagger$", "±": "$\\pm$", "·": "$\\cdot$", "−": "$-$"}
_ESCAPED |= {"ᵀ": "$^\\top$", "L̃": "$\\tilde L$", "≤": "$\\le$", "→": "$\\to$"}


def write_table(shown: Shown, folder: Path) -> list[Path]:
    """NAME.md, NAME.tex and NAME.csv in `folder`."""
    writers = {"md": markdown, "tex": latex, "csv": csv_text}
    for suffix, text in writers.items():
        write_text(folder / f"{shown.name}.{suffix}", text(shown))
    return [folder / f"{shown.name}.{suffix}" for suffix in writers]


def piped(text: object) -> str:
    """Text that can stand in a cell of a Markdown table."""
    return str(text).replace("|", "\\|")


def csv_text(shown: Shown) -> str:
    """Every number in a row of its own, with all its digits and the paper's beside it."""
    return shown.rows.to_csv(index=False, lineterminator="\n")


def markdown(shown: Shown) -> str:
    """A table with one line per model; the paper's number, the difference and the verdict below ours."""
    columns = _columns(shown)
    heads = ["model", "interaction", *(_heading(*column) for column in columns)]
    lines = [f"## {shown.title}", "", _piped(heads), _piped(["---", "---", *["---:"] * len(columns)])]
    for group, models in _grouped(shown).items():
        lines.append(_piped([f"*{GROUPS.get(group, group)}*", *[""] * (len(heads) - 1)]))
        for model, cells in models.items():
            family = FAMILIES[next(iter(cells.values())).family]
            lines.append(_piped([piped(model), family, *(_cell(cells.get(c), _bold_md, "<br>") for c in columns)]))
    return "\n".join([*lines, "", *(f"- {note}" for note in shown.notes), ""])


def latex(shown: Shown) -> str:
    """The same for LaTeX, with booktabs and makecell; needs \\usepackage{booktabs,makecell}."""
    columns = _columns(shown)
    heads = ["model", "interaction", *(_tex(_heading(*column)) for column in columns)]
    lines = [f"% {shown.title}", f"\\begin{{tabular}}{{ll{'r' * len(columns)}}}", "\\toprule", _row(heads)]
    for group, models in _grouped(shown).items():
        lines += ["\\midrule", f"\\multicolumn{{{len(heads)}}}{{l}}{{\\emph{{{_tex(GROUPS.get(group, group))}}}}} \\\\"]
        for model, cells in models.items():
            family = FAMILIES[next(iter(cells.values())).family]
            shown_cells = (_makecell(_cell(cells.get(c), _bold_tex, "\n")) for c in columns)
            lines.append(_row([_tex(model), family, *shown_cells]))
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", *(f"% {note}" for note in shown.notes), ""])


def _columns(shown: Shown) -> list[tuple[str, str, str]]:
    """(data set, extractor, metric) in order of first appearance, ranks last."""
    rows = shown.rows
    found = list(dict.fromkeys(zip(rows["dataset"], rows["extractor"], rows["metric"], strict=True)))
    return sorted(found, key=lambda column: column[0] == RANKED)


def _grouped(shown: Shown) -> dict[str, dict[str, dict[tuple[str, str, str], Any]]]:
    found: dict[str, Any] = {}
    rows: Any = shown.rows
    for row in rows.itertuples():
        cells = found.setdefault(row.group, {}).setdefault(row.model, {})
        cells[row.dataset, row.extractor, row.metric] = row
    return found


def _heading(dataset: str, extractor: str, metric: str) -> str:
    where = ("" if extractor == "main" else extractor) if dataset == RANKED else f"{dataset} {extractor}"
    return f"{where.strip()} {metric.replace('_', ' ')}".strip()


def _cell(row: Any, emphasised: Callable[[str, int], str], newline: str) -> str:
    """Ours, and below it the paper's with the difference."""
    if row is None or math.isnan(row.mean):
        return "–"
    ours = emphasised(f"{row.mean:.3f}", row.place) + _deviation(row.std)
    if math.isnan(row.paper_mean):
        return ours
    verdict = {"yes": ", within", "no": ", outside"}.get(row.within_std, "")
    mark = "†" if row.paper_note else ""
    paper = f"{row.paper_mean:.3f}{_deviation(row.paper_std)}{mark}"
    return f"{ours}{newline}paper {paper} ({row.difference:+.3f}{verdict})"


def _deviation(std: float) -> str:
    return "" if math.isnan(std) else f" ± {std:.3f}"


def _bold_md(text: str, place: int) -> str:
    return {1: f"**{text}**", 2: f"<u>{text}</u>"}.get(place, text)


def _bold_tex(text: str, place: int) -> str:
    return {1: f"\x01{text}\x03", 2: f"\x02{text}\x03"}.get(place, text)


def _makecell(text: str) -> str:
    """Lines of one cell, escaped; bold and underlined as marked."""
    lines = [_tex(line) for line in text.split("\n")]
    inside = "\\\\ ".join([lines[0], *(f"\\footnotesize {line}" for line in lines[1:])])
    for mark, command in (("\x01", "\\textbf{"), ("\x02", "\\underline{"), ("\x03", "}")):
        inside = inside.replace(mark, command)
    return f"\\makecell[r]{{{inside}}}" if len(lines) > 1 else inside


def _tex(text: str) -> str:
    for plain, escaped in _ESCAPED.items():
        text = text.replace(plain, escaped)
    return text


def _piped(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _row(cells: Sequence[str]) -> str:
    return f"{' & '.join(cells)} \\\\"

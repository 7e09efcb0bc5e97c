"""Tables as Markdown, LaTeX and CSV, and every output of a study written to its folder."""

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from smmil.evaluate.metrics import metric_heading
from smmil.experiments.ranking import AS_PAPER, EXTRACTORS, RANKED
from smmil.experiments.significance import FAMILIES, GROUPS
from smmil.experiments.tables import Shown
from smmil.files import write_text
from smmil.spreadsheet import inert

_SPECIAL = {c: f"\\{c}" for c in "&%$#_{}"}
_SPECIAL |= {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
_SPECIAL |= {"<": "$<$", ">": "$>$", "|": "$|$"}
_SPECIAL |= {"†": "$^\\dagger$", "‡": "$^\\ddagger$", "±": "$\\pm$", "·": "$\\cdot$", "−": "$-$", "×": "$\\times$"}
_SPECIAL |= {"ᵀ": "$^\\top$", "≤": "$\\le$", "≥": "$\\ge$", "→": "$\\to$", "↑": "$\\uparrow$", "↓": "$\\downarrow$"}
_SPECIAL |= {"α": "$\\alpha$", "β": "$\\beta$", "λ": "$\\lambda$", "µ": "$\\mu$", "…": "\\dots{}", "–": "--"}
_SPECIAL |= {"¼": "$\\frac14$", "½": "$\\frac12$"}
_TILDE = "\u0303"  # a combining mark after its letter, as in L̃


def tex_text(text: str) -> str:
    """The text with every special sign escaped, once."""
    found: list[str] = []
    for sign in text:
        if sign == _TILDE and found:
            found[-1] = f"$\\tilde {found[-1]}$"
        else:
            found.append(_SPECIAL.get(sign, sign))
    return "".join(found)


Column = tuple[str, str, str]  # data set, extractor, metric


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
    return for_spreadsheets(shown.rows)


def for_spreadsheets(rows: Any) -> str:
    """A table as CSV whose texts no spreadsheet takes for formulas."""
    shown = rows.map(lambda value: inert(value) if isinstance(value, str) else value)
    return shown.to_csv(index=False, lineterminator="\n")


def markdown(shown: Shown) -> str:
    """A table with one line per model; the paper's number, the difference and the verdict below ours."""
    columns = _columns(shown)
    heads = ["model", "interaction", *(piped("<br>".join(_heading(c, columns))) for c in columns)]
    lines = [f"## {_title(shown, columns)}", "", _piped(heads), _piped(["---", "---", *["---:"] * len(columns)])]
    for group, models in _grouped(shown).items():
        lines.append(_piped([f"*{GROUPS.get(group, group)}*", *[""] * (len(heads) - 1)]))
        for model, cells in models.items():
            texts = ("<br>".join(_cell(cells.get(c), _bold_md)) for c in columns)
            lines.append(_piped([piped(_name(shown, model)), _family(cells), *texts]))
    return "\n".join([*map(_unbroken, lines), "", *(f"- {note}" for note in shown.notes), ""])


def _unbroken(line: str) -> str:
    """A line whose numbers keep their deviation, and headings their arrow, in narrow columns."""
    return re.sub(" (± |[↑↓])", lambda found: found[0].replace(" ", "\N{NO-BREAK SPACE}"), line)


def latex(shown: Shown) -> str:
    """The same for LaTeX, as a float with caption and notes; needs \\usepackage{booktabs,makecell}."""
    columns = _columns(shown)
    heads = ["model", "interaction", *(_makecell(_heading(c, columns)) for c in columns)]
    lines = ["\\begin{table}", "\\centering", "\\small", f"\\caption{{{tex_text(_title(shown, columns))}}}"]
    lines += [f"\\label{{tab:{shown.name}}}", f"\\begin{{tabular}}{{ll{'r' * len(columns)}}}", "\\toprule", _row(heads)]
    for group, models in _grouped(shown).items():
        words = tex_text(GROUPS.get(group, group))
        lines += ["\\midrule", f"\\multicolumn{{{len(heads)}}}{{l}}{{\\emph{{{words}}}}} \\\\"]
        for model, cells in models.items():
            texts = (_makecell(_cell(cells.get(c), _bold_tex)) for c in columns)
            lines.append(_row([tex_text(_name(shown, model)), _family(cells), *texts]))
    notes = [f"{tex_text(note)}.\\par" for note in shown.notes]
    ending = ["\\bottomrule", "\\end{tabular}", "\\par\\medskip", "\\begin{minipage}{\\linewidth}\\footnotesize"]
    return "\n".join([*lines, *ending, *notes, "\\end{minipage}", "\\end{table}", ""])


def _columns(shown: Shown) -> list[Column]:
    """Columns in order of first appearance, ranks last."""
    rows = shown.rows
    found = list(dict.fromkeys(zip(rows["dataset"], rows["extractor"], rows["metric"], strict=True)))
    return sorted(found, key=lambda column: column[0] == RANKED)


def _grouped(shown: Shown) -> dict[str, dict[str, dict[Column, Any]]]:
    found: dict[str, Any] = {}
    rows: Any = shown.rows
    for row in rows.itertuples():
        cells = found.setdefault(row.group, {}).setdefault(row.model, {})
        cells[row.dataset, row.extractor, row.metric] = row
    return found


def _sets(columns: Sequence[Column]) -> list[str]:
    named = (f"{dataset} {extractor}".strip() for dataset, extractor, _ in columns if dataset != RANKED)
    return list(dict.fromkeys(named))


def _title(shown: Shown, columns: Sequence[Column]) -> str:
    """The title, with the data set where the table has only one."""
    sets = _sets(columns)
    return f"{shown.title} · {sets[0]}" if len(sets) == 1 else shown.title


def _heading(column: Column, columns: Sequence[Column]) -> list[str]:
    """The lines above a column: the data set where there are several, the metric, the pool."""
    dataset, extractor, metric = column
    if dataset == RANKED:
        where = {EXTRACTORS: "", AS_PAPER: AS_PAPER}.get(extractor, extractor)
    else:
        where = f"{dataset} {extractor}".strip() if len(_sets(columns)) > 1 else ""
    return [*([where] if where else []), *metric_heading(metric)]


def _name(shown: Shown, model: str) -> str:
    return f"{model} (reference)" if model == shown.reference else model


def _family(cells: dict[Column, Any]) -> str:
    return FAMILIES[next(iter(cells.values())).family]


def _cell(row: Any, emphasised: Callable[[str, int], str]) -> list[str]:
    """Ours, or why there is none; in a second line the paper's, with the difference."""
    if row is None:
        return ["–"]
    digits = _digits(row)
    if math.isnan(row.mean):
        ours = row.state or "–"
    else:
        ours = emphasised(f"{row.mean:.{digits}f}", row.place) + _deviation(row.std, digits) + "‡" * bool(row.fewer)
    return [ours] if math.isnan(row.paper_mean) else [ours, _paper(row, digits)]


def _paper(row: Any, digits: int) -> str:
    """The paper's number; the difference and the verdict where there is one of ours."""
    mark = "†" if row.paper_note else ""
    paper = f"paper {row.paper_mean:.{digits}f}{_deviation(row.paper_std, digits)}{mark}"
    if math.isnan(row.difference):
        return paper
    verdict = {"yes": ", within", "no": ", outside", "": ""}.get(row.within_std, f", {row.within_std}")
    return f"{paper} ({row.difference:+.{digits}f}{verdict})"


def _digits(row: Any) -> int:
    """Three decimals for what lies around 1, two for ranks, fewer for large numbers."""
    if row.metric.endswith("_rank"):
        return 2
    size = abs(row.paper_mean if math.isnan(row.mean) else row.mean)
    return 3 if size < 10 else (1 if size < 1000 else 0)


def _deviation(std: float, digits: int) -> str:
    return "" if math.isnan(std) else f" ± {std:.{digits}f}"


def _bold_md(text: str, place: int) -> str:
    return {1: f"**{text}**", 2: f"<u>{text}</u>"}.get(place, text)


def _bold_tex(text: str, place: int) -> str:
    return {1: f"\x01{text}\x03", 2: f"\x02{text}\x03"}.get(place, text)


def _makecell(texts: Sequence[str]) -> str:
    """Lines of one cell, escaped; bold and underlined as marked."""
    lines = [tex_text(line) for line in texts]
    inside = "\\\\ ".join([lines[0], *(f"\\footnotesize {line}" for line in lines[1:])])
    for mark, command in (("\x01", "\\textbf{"), ("\x02", "\\underline{"), ("\x03", "}")):
        inside = inside.replace(mark, command)
    return f"\\makecell[r]{{{inside}}}" if len(lines) > 1 else inside


def _piped(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _row(cells: Sequence[str]) -> str:
    return f"{' & '.join(cells)} \\\\"

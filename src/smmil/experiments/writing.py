"""Tables and comparisons of a study as text: Markdown, LaTeX and CSV."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pandas import DataFrame

from smmil.evaluate.comparison import INSIDE, POOLED, pointing_or_telling
from smmil.evaluate.metrics import explained, metric_heading, metric_name
from smmil.evaluate.resampling import LEAST, interval_text, missing_text, p_text
from smmil.experiments.ranking import AS_PAPER, EXTRACTORS, RANKED
from smmil.experiments.results import SURE
from smmil.experiments.study import FAMILIES, GROUPS
from smmil.files import escape_formula, write_text

_SPECIAL = {c: f"\\{c}" for c in "&%$#_{}"}
_SPECIAL |= {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
_SPECIAL |= {"<": "$<$", ">": "$>$", "|": "$|$"}
_SPECIAL |= {"†": "$^\\dagger$", "‡": "$^\\ddagger$", "±": "$\\pm$", "·": "$\\cdot$", "−": "$-$", "×": "$\\times$"}
_SPECIAL |= {"ᵀ": "$^\\top$", "≤": "$\\le$", "≥": "$\\ge$", "→": "$\\to$", "↑": "$\\uparrow$", "↓": "$\\downarrow$"}
_SPECIAL |= {"²": "$^2$"}
_SPECIAL |= {"α": "$\\alpha$", "β": "$\\beta$", "λ": "$\\lambda$", "µ": "$\\mu$", "…": "\\dots{}", "–": "--"}
_SPECIAL |= {"¼": "$\\frac14$", "½": "$\\frac12$"}
_HOW = (
    "value: mean over folds and seeds; the same draws for all models; intervals: 95 %, of a value BCa, of a difference "
    "percentile",
    "p: two-sided, below 0.05 exactly where the interval of the difference excludes 0; p (Holm): corrected for the "
    "models compared within a table, bold below 0.05",
    f"no interval and no p where fewer than {LEAST} patients (of each kind that the metric needs) carry them",
    "intervals and p say what other patients would change, of the models as trained; differences between trainings are "
    "in them only as far as folds and seeds average them out: ± in the tables shows how large they are",
)
_ROTATING = (
    "where a mean of folds is given, every patient was tested once: the value is over the test cases of all folds, "
    "each compared within its fold only, averaged over seeds; patients are drawn within their fold, and where a fold "
    "holds a single patient of a kind that the metric needs there is no interval and no p"
)
Column = tuple[str, str, str]  # data set, extractor, metric
# Best and second best of a column; in LaTeX as marks that outlive the escaping of special characters.
_MARKDOWN = {1: "**{}**", 2: "<u>{}</u>"}
_LATEX = {1: "\x01{}\x03", 2: "\x02{}\x03"}
_TILDE = "\u0303"  # a combining mark after its letter, as in L̃


@dataclass(frozen=True)
class _ResultTable:
    """A table of a study, ready to be written: one row per number, notes below it."""

    name: str
    title: str
    rows: DataFrame
    notes: list[str] = field(default_factory=list)
    reference: str | None = None

    @property
    def columns(self) -> list[Column]:
        """Columns in order of first appearance, ranks last."""
        found = dict.fromkeys(zip(self.rows["dataset"], self.rows["extractor"], self.rows["metric"], strict=True))
        return sorted(found, key=lambda column: column[0] == RANKED)

    @property
    def sets(self) -> list[str]:
        """Data sets with their extractors."""
        named = (f"{dataset} {extractor}".strip() for dataset, extractor, _ in self.columns if dataset != RANKED)
        return list(dict.fromkeys(named))

    @property
    def full_title(self) -> str:
        """The title, with the data set where the table has only one."""
        return f"{self.title} · {self.sets[0]}" if len(self.sets) == 1 else self.title

    def heading(self, column: Column) -> list[str]:
        """The lines above a column: the data set where there are several, the metric, the pool."""
        dataset, extractor, metric = column
        if dataset == RANKED:
            where = {EXTRACTORS: "", AS_PAPER: AS_PAPER}.get(extractor, extractor)
        else:
            where = f"{dataset} {extractor}".strip() if len(self.sets) > 1 else ""
        return [*([where] if where else []), *metric_heading(metric)]

    def groups(self) -> Iterator[tuple[str, list[tuple[str, str, dict[Column, Any]]]]]:
        """The words of each group, and its models: name, family, and rows by column."""
        found: dict[Any, Any] = {}
        for row in self.rows.itertuples():
            cells = found.setdefault(row.group, {}).setdefault(row.model, {})
            cells[row.dataset, row.extractor, row.metric] = row
        for group, models in found.items():
            names = {model: f"{model} (reference)" if model == self.reference else model for model in models}
            families = {model: FAMILIES[next(iter(cells.values())).family] for model, cells in models.items()}
            yield GROUPS.get(group, group), [(names[model], families[model], models[model]) for model in models]


def _tex_text(text: str) -> str:
    """Escape the special characters of LaTeX."""
    found: list[str] = []
    for sign in text:
        if sign == _TILDE and found:
            found[-1] = f"$\\tilde {found[-1]}$"
        else:
            found.append(_SPECIAL.get(sign, sign))
    return "".join(found)


def _write_table(table: _ResultTable, folder: Path) -> list[Path]:
    """Write NAME.md, NAME.tex and NAME.csv to `folder`."""
    texts = {"md": _markdown(table), "tex": _latex(table), "csv": _for_spreadsheets(table.rows)}
    for suffix, text in texts.items():
        write_text(folder / f"{table.name}.{suffix}", text)
    return [folder / f"{table.name}.{suffix}" for suffix in texts]


def _markdown_cell(text: object) -> str:
    """Escape text for a cell of a Markdown table."""
    return str(text).replace("|", "\\|")


def _for_spreadsheets(rows: Any) -> str:
    """CSV of a table with texts that no spreadsheet reads as formulas."""
    safe = _with_shortages(rows).map(lambda value: escape_formula(value) if isinstance(value, str) else value)
    return safe.to_csv(index=False, lineterminator="\n")


def _with_shortages(rows: Any) -> Any:
    """The rows with "– (3 patients)" in place of ends and p values that so few do not carry."""
    rows = rows.copy()
    for column in [name for name in rows if name.split("_")[-1] in ("low", "high", "p", "holm")]:
        own = "difference_shortage" if column.startswith(("difference", "p")) else "shortage"
        short = rows.get(own if own in rows else "shortage", DataFrame(index=rows.index, columns=["none"])["none"])
        lacking = short.map(lambda text: isinstance(text, str) and text != "") & rows[column].isna()
        rows[column] = rows[column].astype(object).where(~lacking, short.map(missing_text))
    return rows.drop(columns=[name for name in rows if name.endswith("shortage")])


def _markdown(table: _ResultTable) -> str:
    """Markdown table with one line per model; the paper's number, the difference and the verdict below ours."""
    columns = table.columns
    heads = ["model", "interaction", *(_markdown_cell("<br>".join(table.heading(c))) for c in columns)]
    lines = [f"## {table.full_title}", "", _markdown_row(heads)]
    lines.append(_markdown_row(["---", "---", *["---:"] * len(columns)]))
    for words, models in table.groups():
        lines.append(_markdown_row([f"*{words}*", *[""] * (len(heads) - 1)]))
        for name, family, cells in models:
            texts = ("<br>".join(_cell(cells.get(c), _MARKDOWN)) for c in columns)
            lines.append(_markdown_row([_markdown_cell(name), family, *texts]))
    # No-break spaces before deviations and arrows, for narrow columns.
    lines = [re.sub(" (± |[↑↓])", lambda found: found[0].replace(" ", "\N{NO-BREAK SPACE}"), line) for line in lines]
    return "\n".join([*lines, "", *(f"- {note}" for note in table.notes), ""])


def _latex(table: _ResultTable) -> str:
    """LaTeX float of the same table with caption and notes; needs \\usepackage{booktabs,makecell}."""
    columns = table.columns
    heads = ["model", "interaction", *(_makecell(table.heading(c)) for c in columns)]
    lines = ["\\begin{table}", "\\centering", "\\small", f"\\caption{{{_tex_text(table.full_title)}}}"]
    lines += [f"\\label{{tab:{table.name}}}", f"\\begin{{tabular}}{{ll{'r' * len(columns)}}}"]
    lines += ["\\toprule", _latex_row(heads)]
    for words, models in table.groups():
        lines += ["\\midrule", f"\\multicolumn{{{len(heads)}}}{{l}}{{\\emph{{{_tex_text(words)}}}}} \\\\"]
        for name, family, cells in models:
            texts = (_makecell(_cell(cells.get(c), _LATEX)) for c in columns)
            lines.append(_latex_row([_tex_text(name), family, *texts]))
    notes = [f"{_tex_text(note)}.\\par" for note in table.notes]
    ending = ["\\bottomrule", "\\end{tabular}", "\\par\\medskip", "\\begin{minipage}{\\linewidth}\\footnotesize"]
    return "\n".join([*lines, *ending, *notes, "\\end{minipage}", "\\end{table}", ""])


def _cell(row: Any, emphasis: Mapping[int, str]) -> list[str]:
    """Ours, emphasised by its place, or why there is none; in a second line the paper's, with the difference."""
    if row is None:
        return ["–"]
    # Three decimals for what lies around 1, two for ranks, fewer for large numbers.
    size = abs(row.paper_mean if math.isnan(row.mean) else row.mean)
    digits = 2 if row.metric.endswith("_rank") else 3 if size < 10 else 1 if size < 1000 else 0
    if math.isnan(row.mean):
        ours = row.state or "–"
    else:
        number = emphasis.get(row.place, "{}").format(f"{row.mean:.{digits}f}")
        ours = number + _deviation(row.std, digits) + "‡" * bool(row.fewer)
    everybody = getattr(row, "all_patients", math.nan)
    lines = [ours] if math.isnan(everybody) else [ours, f"all patients {everybody:.{digits}f}"]
    return lines if math.isnan(row.paper_mean) else [*lines, _paper(row, digits)]


def _paper(row: Any, digits: int) -> str:
    """The paper's number; the difference and the verdict where there is one of ours."""
    mark = "†" if row.paper_note else ""
    paper = f"paper {row.paper_mean:.{digits}f}{_deviation(row.paper_std, digits)}{mark}"
    if math.isnan(row.difference):
        return paper
    verdict = {"yes": ", within", "no": ", outside", "": ""}.get(row.within_std, f", {row.within_std}")
    return f"{paper} ({row.difference:+.{digits}f}{verdict})"


def _deviation(std: float, digits: int) -> str:
    return "" if math.isnan(std) else f" ± {std:.{digits}f}"


def _makecell(texts: Sequence[str]) -> str:
    """Lines of one cell, escaped; bold and underlined as marked."""
    lines = [_tex_text(line) for line in texts]
    inside = "\\\\ ".join([lines[0], *(f"\\footnotesize {line}" for line in lines[1:])])
    for mark, command in (("\x01", "\\textbf{"), ("\x02", "\\underline{"), ("\x03", "}")):
        inside = inside.replace(mark, command)
    return f"\\makecell[r]{{{inside}}}" if len(lines) > 1 else inside


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _latex_row(cells: Sequence[str]) -> str:
    return f"{' & '.join(cells)} \\\\"


def _comparisons_markdown(rows: DataFrame, title: str, reference: str, resamples: int) -> str:
    """Markdown page of comparisons with a reference: one table per data set and metric, notes at the end."""
    minus = f"minus {_markdown_cell(reference)} [95 % interval]"
    heads = [f"| model | interaction | value [95 % interval] | {minus} | p | p (Holm) |"]
    heads.append("|---|---|---:|---:|---:|---:|")
    records = rows.to_dict("records")
    notes = [*_pointing_notes(records), *_comparison_notes(records, resamples)]
    return _page(rows, title, heads, lambda part: _comparison_lines(part, reference), notes)


def _pairs_markdown(rows: DataFrame, title: str, resamples: int) -> str:
    """Markdown page of variants and their partners: one table per data set and metric."""
    heads = ["| model | value | without | value | difference [95 % interval] | p | p (Holm) |"]
    heads.append("|---|---:|---|---:|---:|---:|---:|")
    records = rows.drop(columns="notes").to_dict("records")  # intervals of the values are not printed
    both = "both values of a row are over the folds and seeds that both models have"
    notes = [*_pointing_notes(records), both, *_comparison_notes(records, resamples)]
    return _page(rows, title, heads, lambda part: map(_pair_line, part), notes)


def _pointing_notes(rows: Sequence[dict[Any, Any]]) -> list[str]:
    """For every model whose instance AUROC differs: whether in pointing or in telling bags apart."""
    found: dict[tuple[str, str, str], dict[str, dict[str, Any]]] = {}
    for row in (row for row in rows if isinstance(row.get("reference"), str)):
        ends = {key: row[f"difference{end}"] for key, end in (("difference", ""), ("low", "_low"), ("high", "_high"))}
        ends["apart"] = row.get("difference_folds_disagree") is True and row["metric"] in (POOLED, INSIDE)
        found.setdefault((row["set"], row["variant"], row["reference"]), {})[row["metric"]] = ends
    told = [(set_, pointing_or_telling(one, other, held), held) for (set_, one, other), held in found.items()]
    return [
        f"{set_}: {_markdown_cell(words)}" + " But the folds disagree about its sign, see below." * _apart(held)
        for set_, words, held in told
        if words
    ]


def _apart(held: Mapping[str, Mapping[str, Any]]) -> bool:
    return any(ends["apart"] for ends in held.values())


def _disagreements(rows: Sequence[dict[Any, Any]]) -> Iterator[str]:
    """For every value and difference whose folds contradict each other: those of the folds."""
    for row in rows:
        where = f"{_set_and_metric(row)}: the folds disagree"
        if row.get("folds_disagree") is True:
            words = f"{_markdown_cell(row['variant'])} is better than guessing in some, worse in others"
            yield f"{where}, {words}: {row['folds']}"
        if row.get("difference_folds_disagree") is True:
            both = _markdown_cell(f"{row['variant']} minus {row['reference']}")
            yield f"{where}, {both} has both signs: {row['difference_folds']}"


def _page(
    rows: DataFrame, title: str, heads: list[str], body: Callable[..., Iterable[str]], notes: Iterable[str]
) -> str:
    lines = [f"## {title}", ""]
    for _, table in rows.groupby(["set", "metric"], sort=False):
        part = table.to_dict("records")
        # Who was resampled: fewer where only some cases take part in the metric.
        words = "; ".join(dict.fromkeys(row["resampled"] for row in part if row["units"]))
        lines += [f"### {_set_and_metric(part[0])}", "", *([f"{words}.", ""] if words else []), *heads, *body(part), ""]
    return "\n".join([*lines, *(f"- {note}" for note in notes), ""])


def _set_and_metric(row: dict[Any, Any]) -> str:
    return f"{row['set']} · {metric_name(str(row['metric']))}"


def _comparison_lines(part: Sequence[dict[Any, Any]], reference: str) -> list[str]:
    lines, group = [], None
    for row in part:
        if row["variant"] != reference and row["group"] != group:
            group = row["group"]
            lines.append(f"| *{GROUPS.get(group, group)}* | | | | | |")
        name = _markdown_cell(row["variant"]) + " (reference)" * (row["variant"] == reference)
        between = f" [{interval_text(row['low'], row['high'], row['shortage'], between=', ')}]"
        value = _three_digits(row["value"], between) + _run_marks(row, "") + _mean_of_folds(row, "")
        lines.append(f"| {name} | {FAMILIES[row['family']]} | {value} | {' | '.join(_difference_cells(row))} |")
    return lines


def _pair_line(row: dict[Any, Any]) -> str:
    names = _markdown_cell(row["variant"]), _markdown_cell(row["reference"])
    fewer = "‡" * (row["runs"] < row["planned"])
    values = [_three_digits(row[key], "") + fewer for key in ("value", "reference_value")]
    values[0] += _mean_of_folds(row, "")
    return f"| {names[0]} | {values[0]} | {names[1]} | {values[1]} | {' | '.join(_difference_cells(row))} |"


def _three_digits(value: float, more: str) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}{more}"


def _mean_of_folds(row: dict[Any, Any], prefix: str) -> str:
    """The mean of the folds, in a second line of a cell whose number is over all patients."""
    value = row.get(f"{prefix}fold_mean", math.nan)
    return "" if math.isnan(value) else f"<br>mean of folds {value:{'+' if prefix else ''}.3f}"


def _run_marks(row: dict[Any, Any], prefix: str) -> str:
    """‡ for fewer runs than planned, § for an interval with a note."""
    return "‡" * (row[f"{prefix}runs"] < row["planned"]) + "§" * bool(_interval_note(row, prefix))


def _interval_note(row: dict[Any, Any], prefix: str) -> str:
    note = "" if row.get(f"{prefix}shortage") else row.get(f"{prefix}notes")  # few patients: the cell says so
    return note if isinstance(note, str) else ""  # nan where nothing was compared


def _difference_cells(row: dict[Any, Any]) -> list[str]:
    """The difference with its interval, p, and p by Holm in bold where it is small."""
    if not isinstance(row.get("reference"), str):
        return ["–"] * 3
    if math.isnan(row["difference"]):
        return [f"–{_run_marks(row, 'difference_')}", "–", "–"]
    short, (p, corrected) = row["difference_shortage"], (row["p"], row["p_holm"])
    between = interval_text(row["difference_low"], row["difference_high"], short, "+.3f", ", ")
    text = f"{row['difference']:+.3f} [{between}]{_run_marks(row, 'difference_')}"
    text += _mean_of_folds(row, "difference_")
    return [text, p_text(p, short), f"**{p_text(corrected)}**" if corrected < SURE else p_text(corrected, short)]


def _comparison_notes(rows: Sequence[dict[Any, Any]], resamples: int) -> list[str]:
    notes = [*_HOW, f"{resamples} resamples"]
    if any(isinstance(row.get("folds"), str) for row in rows):
        notes[:1] = [*_disagreements(rows), _HOW[0], _ROTATING]
    fewer = dict.fromkeys(words for row in rows for words in _fewer_runs(row))
    if fewer:
        notes.append(f"‡ fewer runs than planned; a difference is taken over the folds both have: {', '.join(fewer)}")
    notes += [f"§ {note} ({'; '.join(places)})" for note, places in _doubtful_intervals(rows).items()]
    return notes + explained(str(row["metric"]) for row in rows)


def _fewer_runs(row: dict[Any, Any]) -> Iterator[str]:
    """A variant with fewer runs than planned, or the two whose difference rests on fewer."""
    if row["runs"] < row["planned"]:
        yield f"{row['set']} · {row['variant']} ({row['runs']:.0f} of {row['planned']:.0f})"
    if row.get("difference_runs", math.nan) < row["runs"]:
        both = f"{row['variant']} − {row['reference']}"
        yield f"{row['set']} · {both} ({row['difference_runs']:.0f} of {row['planned']:.0f})"


def _doubtful_intervals(rows: Sequence[dict[Any, Any]]) -> dict[str, list[str]]:
    """Notes on intervals, each with the tables and variants it holds for."""
    found: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        for prefix, name in (("", row["variant"]), ("difference_", f"{row['variant']} − {row.get('reference')}")):
            if note := _interval_note(row, prefix):
                found.setdefault(note, {}).setdefault(_set_and_metric(row), []).append(name)
    return {note: [f"{where}: {', '.join(n)}" for where, n in places.items()] for note, places in found.items()}

"""Mean ranks on a line with Nemenyi's critical difference, and a warning where that test means little."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smmil.evaluate.friedman import friedman_nemenyi
from smmil.experiments.certainty_page import p_text
from smmil.experiments.drawing import broken, title_above, write_both
from smmil.experiments.metric_words import metric_name
from smmil.files import write_text
from smmil.maps import canvas
from smmil.maps.critical_difference import friedman_verdict, rank_diagram

if TYPE_CHECKING:
    from pandas import DataFrame

ENOUGH = 10  # independent data sets from which Friedman's approximation holds (Demšar 2006)


def rank_figure(values: "DataFrame", path: Path, title: str, notes: Sequence[str] = ()) -> list[Path]:
    """Demšar's diagram as PNG and SVG, and path.txt with its numbers; all three carry the warning.

    values  models x columns (data set, extractor, metric), higher is better
    notes   sentences about what is not ranked; all three carry them too
    """
    found = friedman_nemenyi(values)
    listed: list[Any] = list(values.columns)
    columns = [f"{f'{data} {extractor}'.strip()}: {metric_name(metric)}" for data, extractor, metric in listed]
    warning = rank_warning([str(column[0]) for column in listed])
    cautions = [*([warning] if warning else []), *notes]
    figure = rank_diagram(found, room=2.1 + 0.25 * len(notes))
    figure.supxlabel(broken("\n".join([_verdict(found), *cautions]), figure), **canvas.SMALL)
    title_above(figure, title)
    text = _text(found, columns, title, cautions)
    write_text(path.with_name(f"{path.name}.txt"), text)
    return [*write_both(figure, path), path.with_name(f"{path.name}.txt")]


def rank_warning(datasets: list[str]) -> str:
    """Why the test should not be relied on: too few independent data sets; empty where there are enough."""
    different = len(set(datasets))
    if different >= ENOUGH:
        return ""
    sets = "one data set" if different == 1 else f"{different} data sets"
    return (
        f"Caution: {len(datasets)} columns of {sets}. Metrics, extractors and splits of one data set are not "
        f"independent data sets, and Nemenyi's test wants {ENOUGH} or more: read the order, not the bars; paired "
        "tests over patients (comparisons.md) say more."
    )


def _verdict(found: dict[str, Any]) -> str:
    bars = "Bars join models that Nemenyi's test does not tell apart."
    return f"Mean rank, 1 is best. {friedman_verdict(found)}. {bars}"


def _text(found: dict[str, Any], columns: list[str], title: str, cautions: list[str]) -> str:
    """The numbers of the diagram in words."""
    ranks = [f"  {rank:6.3f}  {name}" for name, rank in found["mean_ranks"].items()]
    pairs = [f"  {p['model']} - {p['other']}: {p['difference']:.3f}, p = {p_text(p['p'])}" for p in found["pairs"]]
    lines = [title, "", *(line for words in cautions for line in (words, "")), _verdict(found), ""]
    lines += ["Mean ranks:", *ranks, ""]
    lines += [f"Critical difference at {found['alpha']:g}: {found['critical_difference']:.3f}", ""]
    lines += ["Columns:", *(f"  {c}" for c in columns), "", "Differences of mean ranks (Nemenyi):", *pairs, ""]
    return "\n".join(lines)

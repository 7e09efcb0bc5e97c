"""smmil evaluate: metrics from prediction files."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Context, Exit, Option, echo

from smmil.cli.options import (
    Aggregate,
    By,
    Column,
    CountedBy,
    Prior,
    Resamples,
    Threshold,
    Validation,
    _check_threshold,
    _how_counted,
    _number_of_resamples,
    _print_line,
    _table,
)
from smmil.cli.target_tables import _counts_in_words, _group_words, _target_tables

Results = dict[str, dict[str, Any]]


def _intervals_table(results: dict[str, dict[str, Any]]) -> Any:
    """A row per metric, a column per model: value and interval."""
    some = next(iter(next(iter(results.values()))["ci"].values()), None)
    words = f"{some['level']:.0%} intervals, {some['n_resamples']} resamples by {some['unit']}" if some else "Intervals"
    table = _table(words, ["metric"], list(results))
    for label in dict.fromkeys(label for found in results.values() for label in found["ci"]):
        table.add_row(label, *(_with_interval(found["ci"].get(label), "value") for found in results.values()))
    return table


def _froc_table(results: dict[str, dict[str, Any]]) -> Any:
    """A row per number of false alarms per bag, a column per model: share of the lesions found."""
    from smmil.evaluate.metrics import metrics_of

    table = _table("Lesions found (FROC)", ["false alarms per bag"], list(results))
    found = [result["froc"] for result in results.values()]
    for row, rate in enumerate(found[0]["rates"]):
        table.add_row(f"{rate:g}", *(_number(f["sensitivities"][row]) for f in found))
    for metric in metrics_of("lesion"):
        label = "mean" if metric.name == "froc" else metric.label
        table.add_row(label, *(_number(f[metric.key]) for f in found))
    table.add_row("lesions / bags", *(f"{f['n_lesions']:,} / {f['n_bags']:,}" for f in found))
    return table


def _comparison_table(results: dict[str, dict[str, Any]]) -> Any:
    """A row per model and metric, narrow enough for 80 columns: both values, difference with interval, p values."""
    table = _table("Paired comparison", ["metric"], ["difference", "p"])
    for name, found in results.items():
        rows = found["comparisons"]
        if rows:
            table.add_row(f"{name} − {rows[0]['other']}", "", "")
        for row in rows:
            table.add_row(f"  {row['measure']}", *_compared(row), end_section=row is rows[-1])
    return table


def _compared(row: dict[str, Any]) -> tuple[str, str]:
    """Both values, difference and interval; p, corrected (Holm) and by DeLong where they differ or exist."""
    from smmil.evaluate.resampling import p_text

    if word := row.get("withheld"):
        return word, "–"
    short = row["shortage"]
    lines = [p_text(row["p"])] + [f"Holm {p_text(row['p_holm'])}"] * (row["p_holm"] != row["p"] and not short)
    lines += [f"DeLong {p_text(row['delong']['p'])}"] if row["delong"] else []
    values = f"{_number(row['a'])} − {_number(row['b'])} = {_number(row['difference'])}"
    return f"{values}\n{_ends(row['low'], row['high'], short)}", "\n".join(lines)


def _prior_table(results: dict[str, dict[str, Any]]) -> Any:
    """A row per pool and map, a column per model: instance AUROC beside what position alone reaches."""
    from smmil.evaluate.prior import DIFFERENCES, MAPS

    table = _table("Instance AUROC beside the position prior", ["", "map"], list(results))
    minus = {key: f"{a} − {b}" for key, (a, b) in DIFFERENCES.items()}
    names = {name: f"{name}: {words}" for name, words in MAPS.items()}
    for pool, heading in _POOLS.items():
        blocks = [found["prior"].get(pool) for found in results.values()]
        for row, (name, words) in enumerate({**names, **minus}.items()):
            cells = [_prior_cell(block, name) for block in blocks]
            table.add_row("" if row else heading, words, *cells, end_section=row == len(names) + len(minus) - 1)
    return table


def _prior_cell(block: dict[str, Any] | None, name: str) -> str:
    from smmil.evaluate.resampling import p_text

    if block is None or f"{name}_low" not in block:
        return "–" if block is None else _number(block[name])
    ends = _ends(block[f"{name}_low"], block[f"{name}_high"], block["shortage"])
    p = f"\np {p_text(block[f'{name}_p'])}" if f"{name}_p" in block and not block["shortage"] else ""
    return f"{_number(block[name])} {ends}{p}"


def _evidence_notes(results: dict[str, dict[str, Any]]) -> list[str]:
    """Every note of intervals, comparisons and FROC, once per model; what all models share, such as the conditions of
    their promises, once."""
    shared = set.intersection(*(set(found.get("notes", [])) for found in results.values()))
    lines: list[str] = []
    for name, found in results.items():
        lines += [f"{name}: note: {note}" for note in dict.fromkeys(found.get("notes", [])) if note not in shared]
        about: dict[str, dict[str, None]] = {}  # measures of each note
        known = [ci for ci in found.get("ci", {}).values() if ci["value"] == ci["value"]]
        for part in filter(None, [found.get("froc"), *known, *found.get("comparisons", [])]):
            for note in part["notes"]:
                about.setdefault(note, {})[part.get("measure") or part.get("metric", "froc")] = None
        lines += [f"{name}: note ({', '.join(measures)}): {note}" for note, measures in about.items()]
    who = "every model" if len(results) > 1 else next(iter(results), "")
    return [
        *lines,
        *(f"{who}: note: {note}" for note in next(iter(results.values())).get("notes", []) if note in shared),
    ]


def _number(value: float | None) -> str:
    """Three digits, or a dash for what does not exist."""
    return "–" if value is None or value != value else f"{value:.3f}"


def _with_interval(found: dict[str, Any] | None, key: str) -> str:
    if found is None:
        return "–"
    return f"{_number(found[key])} {_ends(found['low'], found['high'], found['shortage'])}"


def _ends(low: float, high: float, shortage: str) -> str:
    """Both ends of an interval in brackets, or why there is none: "– (3 patients)"."""
    from smmil.evaluate.resampling import interval_text

    words = interval_text(low, high, shortage)
    return words if low != low or high != high else f"({words})"


_POOLS = {"all": "all instances", "positive_bags": "positive bags", "per_bag": "mean over bags"}


def _list_metrics(wanted: bool) -> None:
    """Print one row per registered metric (name, better side, explanation) and exit."""
    if not wanted:
        return
    from rich.console import Console

    from smmil.evaluate.metrics import METRICS

    sides = {1: "higher", -1: "lower", 0: "neither"}
    table = _table("Metrics", ["name", "better", "what it is"], [])
    for metric in METRICS.values():
        kinds = "" if "class" in metric.targets else f" (target: {', '.join(metric.targets)})"
        table.add_row(metric.name, sides[metric.direction], metric.explanation + kinds)
    Console().print(table)
    raise Exit


def evaluate(
    context: Context,
    predictions: Annotated[list[Path], Argument(help="Folders of .npz predictions, one per model.")],
    validation: Validation = None,
    threshold: Threshold = None,
    column: Column = None,
    by: By = CountedBy.case,
    aggregate: Aggregate = None,
    ci: Annotated[bool, Option("--ci", help="Confidence intervals: BCa, patients resampled.")] = False,
    compare: Annotated[
        list[Path] | None,
        Option(help="Predictions of another model on the same cases: paired differences with p values."),
    ] = None,
    compare_validation: Annotated[
        list[Path] | None, Option(help="Validation predictions of the --compare models, for thresholds of their own.")
    ] = None,
    froc: Annotated[bool, Option("--froc", help="Share of lesions found at 1/4 to 8 false alarms per bag.")] = False,
    metric: Annotated[
        list[str] | None, Option(help="Metrics of --ci and --compare, such as bag_auroc or inst_auroc@positive_bags.")
    ] = None,
    prior: Prior = None,
    list_metrics: Annotated[
        bool, Option("--list-metrics", callback=_list_metrics, is_eager=True, help="List every metric and exit.")
    ] = False,
    unit: Annotated[str, Option(help="What is resampled: patient or bag.")] = "patient",
    resamples: Resamples = None,
    stratified: Annotated[bool, Option("--stratified", help="Resample within classes.")] = False,
    seed: Annotated[int, Option(help="Seed of the resamples.")] = 0,
    json: Annotated[Path | None, Option(help="Also write everything to this JSON file.")] = None,
    csv: Annotated[Path | None, Option(help="Also write every number to this CSV file, one per row.")] = None,
) -> None:
    """Bag and instance metrics of one or several models, from files, without a GPU.

    [bold]Examples[/bold]

      smmil evaluate predictions/

      smmil evaluate test/sm_ap --validation val/sm_ap --json metrics.json

      smmil evaluate test/sm_ap --compare test/abmil --ci --froc --csv numbers.csv

      smmil evaluate test/sm_ap --by patient --aggregate noisy-or --ci

      smmil evaluate test/sm_ap --prior train/sm_ap    (where lesions usually lie, from training cases)

      smmil evaluate smmil-demo/predictions        (a folder of folders: all models side by side)
    """
    from smmil.evaluate.bags import judged_by, shared_target
    from smmil.evaluate.bootstrap import add_intervals
    from smmil.evaluate.comparison import add_comparisons
    from smmil.evaluate.folders import add_froc, load_models, summarize_models
    from smmil.evaluate.instances import POOLS
    from smmil.evaluate.metrics import usual_measures
    from smmil.prediction import load_predictions

    _check_threshold(threshold, validation)
    _refuse_idle(context, ci=ci, compare=bool(compare))
    draws = {"unit": unit, "n": _number_of_resamples(resamples), "stratified": stratified, "seed": seed}
    left_out: dict[Path, str] = {}
    cuts: dict[str, Any] = {"threshold": threshold, "column": column, "left_out": left_out}
    draws |= {"column": column}
    counted = _how_counted(by, aggregate)
    models = judged_by(load_models(predictions, left_out), **counted)
    measures = metric or usual_measures(shared_target([p for cases in models.values() for p in cases]))
    known = None if prior is None else load_predictions(prior, left_out)
    beside = {"reference": known, **({**draws, "intervals": POOLS} if ci else {})}
    beside.pop("column", None)  # each model's own, as of its summary
    results = summarize_models(models, validation=validation or (), prior=beside, **cuts)
    if froc:
        add_froc(results, models, column)
    if ci:
        add_intervals(results, models, measures, **draws)
    if compare:
        others = judged_by(load_models(compare, left_out), **counted)
        other_results = summarize_models(others, validation=compare_validation or (), prior=False, **cuts)
        add_comparisons(results, models, others, other_results, measures, **draws)
    for found in results.values() if left_out else ():
        found["bag"]["notes"].append(f"{len(left_out)} prediction files could not be read and were left out")
    _show(results, ci=ci, froc=froc, compare=bool(compare))
    _write(results, json, csv)
    for path, reason in left_out.items():
        print(f"left out: {path}: {reason}", file=sys.stderr)
    if left_out:
        raise Exit(3)


def _refuse_idle(context: Context, *, ci: bool, compare: bool) -> None:
    """Refuse options that have no effect without --ci or --compare."""
    from smmil.errors import ConfigError

    drawing = () if ci or compare else ("metric", "unit", "resamples", "stratified", "seed")
    pairs = [(name, "--ci or --compare") for name in drawing]
    pairs += [] if compare else [("compare_validation", "--compare")]
    for name, needed in pairs:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise ConfigError(f"--{name.replace('_', '-')}: has no effect without {needed}; add it or leave this out")


def _show(results: dict[str, dict[str, Any]], *, ci: bool, froc: bool, compare: bool) -> None:
    from rich.console import Console

    console = Console()
    _print_fitting(console, _metrics_table, results)
    located = any("per_bag" in found["prior"] for found in results.values())
    wanted = ((located, _prior_table), (froc, _froc_table), (ci, _intervals_table), (compare, _comparison_table))
    for table in (*_target_tables(results), *(draw for asked, draw in wanted if asked)):
        _print_fitting(console, table, results)
    for line in [*_remarks(results), *_evidence_notes(results)]:
        _print_line(console, line)


def _print_fitting(console: Any, draw: Callable[[Results], Any], results: Results) -> None:
    """Print a table of all models, or several of some each where one would be wider than the screen."""
    table, half, wide = draw(results), (len(results) + 1) // 2, console.options.update(max_width=10_000)
    if len(results) == 1 or console.measure(table, options=wide).maximum <= console.width:
        console.print(table)
        return
    for some in (list(results)[:half], list(results)[half:]):
        _print_fitting(console, draw, {name: results[name] for name in some})


def _write(results: dict[str, dict[str, Any]], json: Path | None, csv: Path | None) -> None:
    from pandas import DataFrame

    from smmil.evaluate.folders import long_table, without_nan
    from smmil.files import cell, write_json, write_text

    if json is not None:
        write_json(json, without_nan(results))
    if csv is not None:
        write_text(csv, DataFrame(long_table(results)).map(cell).to_csv(index=False, lineterminator="\n"))
    for path in filter(None, (json, csv)):
        echo(f"written: {path}")


def _metrics_table(results: dict[str, dict[str, Any]]) -> Any:
    """One rich table: a row per metric, a column per model."""
    from smmil.evaluate.metrics import metrics_of

    table = _table("Evaluation", ["", "metric"], list(results))
    cases = any(found["bag"]["n"] for found in results.values())
    places = any(found["instance"]["all"]["n_instances"] for found in results.values())
    kind = next((found["bag"].get("target", "class") for found in results.values()), "class")
    groups = {"bags": metrics_of("bag", kind)} if cases else {}
    groups |= dict.fromkeys(_POOLS.values(), metrics_of("instance")) if places else {}
    for heading, metrics in {**groups, "energy": metrics_of("energy")}.items():
        inside = [_by_heading(found)[heading] for found in results.values()]
        measured = [m for m in metrics if m.same_as is None and any(m.key in values for values in inside)]
        for row, metric in enumerate(measured):
            label = " = ".join(m.key.replace("_", " ") for m in metrics if metric.name in (m.name, m.same_as))
            cells = [values.get("withheld", {}).get(metric.key) or _number(values.get(metric.key)) for values in inside]
            table.add_row("" if row else heading, label, *cells, end_section=metric is measured[-1])
    return table


def _by_heading(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    pools = {_POOLS[pool]: values for pool, values in found["instance"].items()}
    return {"bags": found["bag"], **pools, "energy": found["energy"]}


def _without_truth(bag: dict[str, Any], n_instances: int) -> list[str]:
    """What cannot be judged because nobody has said what is true, and what can be shown all the same."""
    look = "smmil report and smmil view show the maps, smmil export writes them"
    if not bag["n"] and not n_instances:
        return [
            f"  There is no truth: none of the {bag['n_unlabelled']:,} cases has a label, and no instance has one. "
            "Whether they are right cannot be said.",
            f"  What can be shown without truth: how smooth the maps are (above, where neighbours are stored); {look}. "
            "Labels of cases come from the table that smmil predict --manifest reads.",
        ]
    if not n_instances:
        return [f"  No instance has a label: where the maps are right cannot be said; {look}."]
    return [] if bag["n"] else ["  No case has a label: only where the maps are right can be said, not the cases."]


def _remarks(results: dict[str, dict[str, Any]]) -> list[str]:
    """For each model: number of cases, threshold and its source, and every note once."""
    lines = []
    for name, found in results.items():
        bag, cut, pooled = found["bag"], found["threshold"], found["instance"]["all"]
        value = "none" if cut["value"] is None else f"{cut['value']:.6g}"
        lines.append(
            f"{name}: {_counts_in_words(bag)}, {pooled['n_instances']:,} labelled "
            f"instances ({pooled['n_positive']:,} positive), score: {pooled['score_kind']}"
        )
        lines += _without_truth(bag, pooled["n_instances"])
        lines += _group_words(bag)
        of_bags = "" if bag["threshold"] is None and "target" in bag else f"; bag threshold: {bag['threshold']}"
        lines.append(f"  instance threshold: {value} ({cut['source']}){of_bags}")
        if worth := found.get("uncertainty"):
            by = [f"{_number(worth[f'error_auroc{end}'])}" for end in ("", "_combined", "_baseline")]
            lines.append(
                f"  wrong calls told by uncertainty: AUROC {by[0]}, with the distance from the threshold {by[1]}, "
                f"by that distance alone {by[2]} (docs/evaluate.md)"
            )
            lines.append(f"  uncertainty {worth['verdict']}")
        if drift := found.get("drift"):
            share = f"{drift['alarmed']} of {drift['cases']} cases"
            who = f"{drift['patients']} patients against {drift['held_out']}, p = {drift['p']:.2g}"
            lines.append(f"  unlike the training cases: {share}; all together: {who} (docs/drift.md)")
        first: dict[str, str] = {}  # where a note stands first
        for where, part in _by_heading(found).items():
            first |= {note: where for note in part["notes"] if note not in first}
        prior = found.get("prior", {"notes": [], "words": []})  # the demo does without
        first |= {note: "position prior" for note in prior["notes"] if note not in first}
        lines += [f"  note ({where}): {note}" for note, where in first.items()]
        lines += [f"  {words}" for words in prior["words"] if pooled["n_instances"]]
    return lines

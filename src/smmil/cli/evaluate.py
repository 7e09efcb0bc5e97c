"""smmil evaluate: numbers from files of predictions."""

import math
from pathlib import Path
from typing import Annotated, Any

import typer

BAG = ("auroc", "auprc", "f1", "accuracy", "balanced_accuracy", "loss")
INSTANCE = ("auroc", "auprc", "f1", "precision", "recall")
ENERGY = ("rayleigh", "mean", "minmax")
POOLS = {"all": "all instances", "positive_bags": "positive bags", "per_bag": "mean over bags"}


def evaluate(
    predictions: Annotated[list[Path], typer.Argument(help="Folders of .npz predictions, one per model.")],
    validation: Annotated[
        list[Path] | None,
        typer.Option(help="Predictions on validation cases, to choose the instance threshold; one per model."),
    ] = None,
    threshold: Annotated[float | None, typer.Option(help="Instance threshold; else the best on --validation.")] = None,
    column: Annotated[int | None, typer.Option(help="Score column, for models with more than two classes.")] = None,
    json: Annotated[Path | None, typer.Option(help="Also write everything to this JSON file.")] = None,
) -> None:
    """Bag and instance metrics of one or several models, from files, without a GPU.

    Examples:

        smmil evaluate predictions/

        smmil evaluate test/sm_ap --validation val/sm_ap --json metrics.json

        smmil evaluate smmil-demo/predictions        (a folder of folders: all models side by side)
    """
    from rich.console import Console

    from smmil.errors import ConfigError
    from smmil.evaluate.folders import summarize_folders, without_nan
    from smmil.files import write_json

    if threshold is not None and (validation or not math.isfinite(threshold)):
        raise ConfigError(f"--threshold {threshold}: give either a finite number or --validation, not both")
    results = summarize_folders(predictions, validation=validation or (), threshold=threshold, column=column)
    console = Console()
    console.print(metrics_table(results))
    for line in remarks(results):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if json is not None:
        write_json(json, without_nan(results))
        console.print(f"written: {json}", markup=False, highlight=False, soft_wrap=True)


def metrics_table(results: dict[str, dict[str, Any]]) -> Any:
    """One rich table: a row per metric, a column per model."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title="Evaluation", title_justify="left")
    for heading in ("", "metric"):
        table.add_column(heading)
    for name in results:
        table.add_column(Text(name), justify="right")
    parts = [(("bag",), "bags", BAG), *((("instance", pool), words, INSTANCE) for pool, words in POOLS.items())]
    for keys, words, names in [*parts, (("energy",), "energy", ENERGY)]:
        measured = [name for name in names if any(name in _inside(found, keys) for found in results.values())]
        for row, name in enumerate(measured):
            cells = [_number(_inside(found, keys).get(name)) for found in results.values()]
            label = "f1 = dice" if name == "f1" and keys[0] == "instance" else name.replace("_", " ")
            table.add_row(words if row == 0 else "", label, *cells, end_section=name == measured[-1])
    return table


def remarks(results: dict[str, dict[str, Any]]) -> list[str]:
    """For each model: how many cases, which threshold and where it came from, and every note, said once."""
    lines = []
    for name, found in results.items():
        bag, cut, pooled = found["bag"], found["threshold"], found["instance"]["all"]
        value = "none" if cut["value"] is None else f"{cut['value']:.6g}"
        lines.append(
            f"{name}: {bag['n']} labelled cases ({bag['n_positive']} positive), {pooled['n_instances']:,} labelled "
            f"instances ({pooled['n_positive']:,} positive), score: {pooled['score_kind']}"
        )
        lines.append(f"  instance threshold: {value} ({cut['source']}); bag threshold: {bag['threshold']}")
        lines += [f"  note ({where}): {note}" for where, note in _notes(found)]
    return lines


def _notes(found: dict[str, Any]) -> list[tuple[str, str]]:
    parts = {"bags": found["bag"], **{POOLS[p]: m for p, m in found["instance"].items()}, "energy": found["energy"]}
    said: dict[str, str] = {}
    for where, part in parts.items():
        for note in part["notes"]:
            said.setdefault(note, where)
    return [(where, note) for note, where in said.items()]


def _inside(found: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    for key in keys:
        found = found[key]
    return found


def _number(value: float | None) -> str:
    return "–" if value is None or value != value else f"{value:.3f}"

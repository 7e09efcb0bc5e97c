"""smmil explain"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from smmil.cli.options import Checkpoint, TrustCode, _CaseBar, _exit_on_failures, _table
from smmil.cli.predict import Part

Baseline = StrEnum("Baseline", "zero mean")


class Method(StrEnum):
    attention = "attention"
    single = "single"
    drop = "drop"
    gradient = "gradient"
    integrated_gradients = "integrated-gradients"
    lrp = "lrp"


def explain(
    run: Annotated[Path, Argument(help="Folder of a run (the --out of smmil train).")],
    out: Annotated[Path, Option(help="Folder for the maps: one folder of predictions per method.")],
    method: Annotated[
        list[Method] | None, Option(help="How to map; repeat it for several. integrated-gradients unless given.")
    ] = None,
    part: Annotated[
        Part | None, Option(help="Part of the run's split: test unless given, all with --manifest.")
    ] = None,
    manifest: Annotated[Path | None, Option(help="Other bags than those of the run.")] = None,
    block: Annotated[
        int | None, Option(help="drop: neighbours removed together; by default at most 256 forward passes per bag.")
    ] = None,
    baseline: Annotated[Baseline | None, Option(help="integrated-gradients: where the path starts. zero.")] = None,
    steps: Annotated[int | None, Option(help="integrated-gradients: gradients per bag at most. 500.")] = None,
    faithfulness: Annotated[
        bool, Option("--faithfulness", help="Also delete and insert instances in the order of each map: a table.")
    ] = False,
    repeats: Annotated[int, Option(min=1, help="--faithfulness: random orders per bag to compare with.")] = 3,
    seed: Annotated[int, Option(min=0, help="--faithfulness: seed of the random orders.")] = 0,
    checkpoint: Annotated[Checkpoint, Option(help="Weights of the run to use.")] = Checkpoint.best,
    trust_code: TrustCode = False,
    device: Annotated[str, Option(help="auto, cpu, cuda or cuda:0.")] = "auto",
) -> None:
    """Map what a trained model's decision depends on, by methods that work for any model; complete files are kept.

    [bold]Examples[/bold]

      smmil explain runs/first --out maps

      smmil explain runs/first --method attention --method drop --method lrp --out maps --faithfulness

      smmil explain runs/first --method drop --block 16 --manifest other.csv --out maps

    Go on with: smmil evaluate maps, smmil report maps/drop --out report.html, smmil view maps/drop
    """
    from smmil.errors import ConfigError
    from smmil.predict import Explanation, explain_run

    methods = list(dict.fromkeys(m.value for m in method or [Method.integrated_gradients]))
    options: dict[str, dict[str, Any]] = {
        "drop": {"block": block},
        "integrated-gradients": {"baseline": baseline.value if baseline else None, "steps": steps},
    }
    for name, given in options.items():
        for option in (key for key, value in given.items() if value is not None and name not in methods):
            raise ConfigError(f"--{option}: is for --method {name}, which is not among {', '.join(methods)}")
    explanations = [Explanation(name, **options.get(name, {})) for name in methods]
    with _CaseBar("explaining") as bar:
        found = explain_run(
            run,
            explanations,
            out=out,
            manifest=manifest,
            part=part.value if part else None,
            checkpoint=checkpoint.value,
            device=device,
            measure=faithfulness,
            seed=seed,
            repeats=repeats,
            progress=bar.at,
            trust_code=trust_code,
        )
    for name, done in found.done.items():
        kept = f"{len(done.written)} written, {len(done.kept)} there already, {len(done.failed)} failed"
        print(f"{out / name}: {kept}")
    if found.gap is not None:
        print(f"integrated-gradients: the sum misses f(x) - f(baseline) by {found.gap:.2%} at most")
    if found.faithfulness:
        _print_faithfulness(found.faithfulness)
        print(f"{out / 'faithfulness.csv'}: the same as a table")
    reasons = dict.fromkeys(reason for done in found.done.values() for reason in done.failed.values())
    listed = out / methods[0] if reasons else out
    _exit_on_failures([*reasons, *found.unmeasured.values()], listed / "failures.csv")


def _print_faithfulness(rows: list[dict[str, Any]]) -> None:
    """Areas under the curves of probability, and what each map gains over a random order."""
    from rich.console import Console

    title = f"Faithfulness of {rows[0]['model']}, {rows[0]['cases']} cases: areas under curves of probability"
    table = _table(title, ["map"], ["deletion", "insertion", "random", "deletion gain", "insertion gain"])
    for row in rows:
        gains = [_gain(row, key) for key in ("deletion_gain", "insertion_gain")]
        table.add_row(row["map"], *(f"{row[key]:.3f}" for key in ("deletion", "insertion", "random")), *gains)
    Console().print(table)


def _gain(row: dict[str, Any], key: str) -> str:
    from smmil.evaluate.resampling import interval_text

    return f"{row[key]:.3f} ({interval_text(row[f'{key}_low'], row[f'{key}_high'], row['shortage'])})"

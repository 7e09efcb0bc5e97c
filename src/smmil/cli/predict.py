"""smmil predict"""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Part(StrEnum):
    train = "train"
    val = "val"
    test = "test"
    all = "all"


class Checkpoint(StrEnum):
    best = "best"
    lowest_loss = "lowest_loss"


def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a run (the --out of smmil train).")],
    out: Annotated[Path, typer.Option(help="Folder for the predictions, one .npz per case.")],
    part: Annotated[
        Part | None, typer.Option(help="Part of the run's split: test unless given, all with --manifest.")
    ] = None,
    manifest: Annotated[Path | None, typer.Option(help="Other bags than those of the run.")] = None,
    checkpoint: Annotated[Checkpoint, typer.Option(help="Weights to use.")] = Checkpoint.best,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:0.")] = "auto",
) -> None:
    """Write what a trained model says about each case; cases that are there already are kept.

    [bold]Examples[/bold]

      smmil predict runs/first --out predictions

      smmil predict runs/first --out predictions_val --part val

      smmil predict runs/first --out elsewhere --manifest other.csv

    Go on with: smmil evaluate predictions --validation predictions_val
    """
    from rich.console import Console
    from rich.progress import Progress

    from smmil.predict import predict_run

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task("predicting")
        done = predict_run(
            run,
            out=out,
            manifest=manifest,
            part=part.value if part else None,
            checkpoint=checkpoint.value,
            device=device,
            progress=lambda count, total: bars.update(task, completed=count, total=total),
        )
    print(f"{out}: {len(done.written)} written, {len(done.kept)} there already, {len(done.failed)} failed")
    for reason in done.failed.values():
        print(f"failed: {reason}", file=sys.stderr)
    if done.failed:
        print(f"the failures are listed in {out / 'failures.csv'}", file=sys.stderr)
        raise typer.Exit(3)

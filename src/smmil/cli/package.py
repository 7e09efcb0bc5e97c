"""smmil package"""

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from smmil.cli.options import Aggregate, By, Checkpoint, CountedBy, TrustCode, _how_counted


def package(
    run: Annotated[Path, Argument(help="Folder of a finished run (the --out of smmil train).")],
    out: Annotated[Path, Option(help="Folder for the package.")],
    name: Annotated[str | None, Option(help="Name of the model in its card; default: model and weights.")] = None,
    predictions: Annotated[
        Path | None, Option(help="Predictions of these weights: their metrics go into the card.")
    ] = None,
    by: By = CountedBy.case,
    aggregate: Aggregate = None,
    calibration: Annotated[
        Path | None, Option(help="calibration.json of smmil calibrate for these weights: its promise goes along.")
    ] = None,
    onnx: Annotated[bool, Option("--onnx/--no-onnx", help="Also model.onnx, checked against the model.")] = False,
    licence: Annotated[str, Option(help="Licence you give it under, such as apache-2.0.")] = "other",
    checkpoint: Annotated[Checkpoint, Option(help="Weights to use.")] = Checkpoint.best,
    force: Annotated[bool, Option("--force", help="Replace a package of the same run.")] = False,
    trust_code: TrustCode = False,
) -> None:
    """Pack a trained model with its card, recipe and checksums into a folder others can use.

    The folder has the layout of the Hugging Face hub. It names no patient, case, path, computer or person.

    [bold]Examples[/bold]

      smmil package runs/first --out packages/first

      smmil package runs/first --out packages/first --predictions predictions --onnx --licence apache-2.0

    Go on with: smmil predict --model packages/first slide.svs --out predictions
    """
    from smmil.packaging.card import RAW_SOURCES
    from smmil.packaging.writing import write_package

    done = write_package(
        run,
        out,
        name=name,
        checkpoint=checkpoint.value,
        licence=licence,
        predictions=predictions,
        onnx=onnx,
        force=force,
        trust_code=trust_code,
        calibration=calibration,
        **_how_counted(by, aggregate),
    )
    print(f"{out}: {', '.join(done.files)}")
    for note in done.notes:
        print(f"note: {note}", file=sys.stderr)
    source = "manifest.csv" if done.kind is None else RAW_SOURCES[done.kind]
    print(f"next: smmil predict --model {out} {source} --out predictions")

"""smmil predict"""

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smmil.cli.options import Checkpoint

if TYPE_CHECKING:
    from smmil.predict.cases import Predicted


class Part(StrEnum):
    """Part of a split."""

    train = "train"
    val = "val"
    test = "test"
    all = "all"


def predict(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN | SOURCES...",
            help="Folder of a run (the --out of smmil train). With --model: slides, scans, folders of them, a manifest "
            "of bags, or bags.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the predictions, one .npz per case.")],
    part: Annotated[
        Part | None, typer.Option(help="Part of the run's split: test unless given, all with --manifest.")
    ] = None,
    manifest: Annotated[Path | None, typer.Option(help="Other bags than those of the run.")] = None,
    checkpoint: Annotated[Checkpoint | None, typer.Option(help="Weights of the run to use: best unless given.")] = None,
    model: Annotated[Path | None, typer.Option(help="Folder of a package (the --out of smmil package).")] = None,
    labels: Annotated[Path | None, typer.Option(help="With --model: table id,label of the images.")] = None,
    points: Annotated[
        Path | None, typer.Option(help="With --model: table image,x,y, if it was trained on crops.")
    ] = None,
    mpp: Annotated[
        float | None, typer.Option(help="With --model: micrometres per pixel, for slides without it.")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="With --model: file with the encoder's weights.")] = None,
    workers: Annotated[int | None, typer.Option(help="With --model: processes that prepare images.")] = None,
    trust_code: Annotated[
        bool, typer.Option("--trust-code", help="With --model: run code outside smmil that the package names.")
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:0.")] = "auto",
) -> None:
    """Predict every case with a trained model; complete prediction files are kept.

    [bold]Examples[/bold]

      smmil predict runs/first --out predictions

      smmil predict runs/first --out predictions_val --part val

      smmil predict runs/first --out predictions_other --manifest other.csv

      smmil predict --model packages/first slide.svs --out predictions

    Go on with: smmil evaluate predictions --validation predictions_val
    """
    from smmil.errors import ConfigError

    of_a_run: dict[str, Any] = {"part": part, "manifest": manifest, "checkpoint": checkpoint}
    of_images: dict[str, Any] = {"labels": labels, "points": points, "mpp": mpp, "weights": weights, "workers": workers}
    idle = of_images | {"trust-code": trust_code or None} if model is None else of_a_run
    for option in (option for option, value in idle.items() if value is not None):
        raise ConfigError(f"--{option}: {'needs --model' if model is None else 'is for runs, not for --model'}")
    if model is not None:
        _finish(_from_package(model, sources, of_images, trust_code, out=out, device=device), out)
        return
    if len(sources) > 1:
        raise ConfigError(f"{sources[1]}: give one run, or a package with --model and what it should look at")
    chosen = {"part": part.value if part else None, "checkpoint": (checkpoint or Checkpoint.best).value}
    _finish(_from_run(sources[0], manifest=manifest, **chosen, out=out, device=device), out)


def _from_run(run: Path, **options: Any) -> "Predicted":
    from smmil.cli.progress import CaseBar
    from smmil.predict.cases import predict_run

    with CaseBar("predicting") as bar:
        return predict_run(run, progress=bar.at, **options)


def _from_package(
    folder: Path, sources: list[Path], images: dict[str, Any], trust_code: bool, **options: Any
) -> "Predicted":
    """Prepare raw images, then predict; Ctrl-C prints how to resume."""
    from smmil.packaging.loading import Images, load_package, predict_package

    package = load_package(folder, trust_code=trust_code)
    from smmil.cli.progress import CaseBar

    with CaseBar("preparing") as bar:

        def prepared(outcome: Any) -> None:
            bar.one_more(outcome.task.case.id)

        def moved(count: int, total: int) -> None:
            bar.now("predicting")
            bar.at(count, total)

        try:
            return predict_package(
                package, sources, images=Images(**images), on_case=prepared, progress=moved, **options
            )
        except KeyboardInterrupt:
            bar.stop()
            print("stopped; what is done is kept, repeat the command to go on", file=sys.stderr)
            raise typer.Exit(130) from None


def _finish(done: "Predicted", out: Path) -> None:
    print(f"{out}: {len(done.written)} written, {len(done.kept)} there already, {len(done.failed)} failed")
    for reason in done.failed.values():
        print(f"failed: {reason}", file=sys.stderr)
    if done.failed:
        print(f"the failures are listed in {out / 'failures.csv'}", file=sys.stderr)
        raise typer.Exit(3)

"""smmil predict"""

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from smmil.cli.options import Checkpoint, TrustCode, _CaseBar, _exit_on_failures

if TYPE_CHECKING:
    from smmil.evaluate.drift import DriftSummary
    from smmil.predict.cases import ChosenCalibration, Predicted

_MOST_NAMED = 10

Part = StrEnum("Part", "train val test all")


def predict(
    sources: Annotated[
        list[Path],
        Argument(
            metavar="RUN | SOURCES...",
            help="Folder of a run (the --out of smmil train); several with --ensemble. With --model: slides, scans, "
            "folders of them, a manifest of bags, or bags.",
        ),
    ],
    out: Annotated[Path, Option(help="Folder for the predictions, one .npz per case.")],
    part: Annotated[
        Part | None, Option(help="Part of the run's split: test unless given, all with --manifest.")
    ] = None,
    manifest: Annotated[Path | None, Option(help="Other bags than those of the run.")] = None,
    checkpoint: Annotated[Checkpoint | None, Option(help="Weights of the run to use: best unless given.")] = None,
    model: Annotated[Path | None, Option(help="Folder of a package (the --out of smmil package).")] = None,
    labels: Annotated[Path | None, Option(help="With --model: table id,label of the images.")] = None,
    points: Annotated[Path | None, Option(help="With --model: table image,x,y, if it was trained on crops.")] = None,
    mpp: Annotated[float | None, Option(help="With --model: micrometres per pixel, for slides without it.")] = None,
    weights: Annotated[Path | None, Option(help="With --model: file with the encoder's weights.")] = None,
    workers: Annotated[int | None, Option(help="With --model: processes that prepare images.")] = None,
    embeddings: Annotated[
        Path | None, Option(help="Also a .parquet table of the vectors of cases and patients before the head.")
    ] = None,
    ensemble: Annotated[
        bool, Option("--ensemble", help="Several runs together: mean, and the deviation between them as uncertainty.")
    ] = False,
    mc_dropout: Annotated[
        int | None, Option(help="Mean and deviation of this many predictions with dropout at work.", min=2)
    ] = None,
    calibration: Annotated[
        Path | None, Option(help="calibration.json of smmil calibrate: threshold and promise go into the predictions.")
    ] = None,
    calibrated_probs: Annotated[
        bool, Option("--calibrated-probs", help="Replace the probabilities of cases by the calibrated ones.")
    ] = False,
    drift: Annotated[
        Path | None, Option(help="Summary of smmil drift; unless given, that of the run or package, if it has one.")
    ] = None,
    no_drift: Annotated[bool, Option("--no-drift", help="Do not compare the cases with the training cases.")] = False,
    block: Annotated[
        int | None,
        Option(help="Read this many instances at a time, such as 8192, for cases larger than the memory.", min=1),
    ] = None,
    trust_code: TrustCode = False,
    device: Annotated[str, Option(help="auto, cpu, cuda or cuda:0.")] = "auto",
) -> None:
    """Predict every case with a trained model; complete prediction files are kept.

    [bold]Examples[/bold]

      smmil predict runs/first --out predictions

      smmil predict runs/first --out predictions_val --part val

      smmil predict runs/first --out predictions_other --manifest other.csv

      smmil predict runs/first --out predictions --embeddings embeddings.parquet

      smmil predict --ensemble runs/seed0 runs/seed1 runs/seed2 --out predictions

      smmil predict --model packages/first slide.svs --out predictions

      smmil predict runs/first --out predictions_new --manifest new.csv --calibration calibration.json

    Go on with: smmil evaluate predictions --validation predictions_val
    """
    from smmil.errors import ConfigError

    of_a_run: dict[str, Any] = {"part": part, "manifest": manifest, "checkpoint": checkpoint}
    of_a_run |= {"ensemble": ensemble or None, "mc-dropout": mc_dropout}
    of_a_run |= {"embeddings": embeddings, "block": block}
    of_images: dict[str, Any] = {"labels": labels, "points": points, "mpp": mpp, "weights": weights, "workers": workers}
    idle = of_images if model is None else of_a_run
    for option in (option for option, value in idle.items() if value is not None):
        raise ConfigError(f"--{option}: {'needs --model' if model is None else 'is for runs, not for --model'}")
    _refuse_for_several({"model": model, "ensemble": ensemble or None, "embeddings": embeddings})
    chosen_calibration = _chosen(calibration, calibrated_probs, model)
    if model is not None:
        options = {"out": out, "device": device, "calibration": chosen_calibration}
        options["drift"] = False if no_drift else None if drift is None else _summary(drift, no_drift, model)
        done = _from_package(model, sources, of_images, trust_code, **options)
    elif len(sources) > 1 and not ensemble:
        raise ConfigError(
            f"{sources[1]}: give one run, or a package with --model and what it should look at; several need --ensemble"
        )
    elif ensemble and mc_dropout:
        raise ConfigError("--mc-dropout: is for one run, not for --ensemble")
    elif ensemble and embeddings:
        raise ConfigError("--embeddings: are those of one run, not of --ensemble")
    elif embeddings and block:
        raise ConfigError("--block: --embeddings reads all features of a case at once; leave one of them out")
    elif ensemble and block:
        raise ConfigError("--block: is for one run, not for --ensemble")
    elif ensemble and calibration:
        raise ConfigError("--calibration: was made for the scores of one run, not for those of --ensemble")
    else:
        from smmil.predict.cases import predict_run
        from smmil.predict.ensemble import predict_ensemble

        chosen: dict[str, Any] = {
            "part": part.value if part else None,
            "checkpoint": (checkpoint or Checkpoint.best).value,
            "trust_code": trust_code,
            "calibration": chosen_calibration,
            "drift": _summary(drift, no_drift, sources[0]),
        }
        with _CaseBar("predicting") as bar:
            chosen |= {"manifest": manifest, "out": out, "device": device, "progress": bar.at}
            if ensemble:
                done = predict_ensemble(sources, **chosen)
            else:
                done = predict_run(sources[0], mc_dropout=mc_dropout or 0, block=block, **chosen)
    print(f"{out}: {len(done.written)} written, {len(done.kept)} there already, {len(done.failed)} failed")
    _say_promise_and_drift(done, chosen_calibration)
    if embeddings is not None:
        _embed(embeddings, sources[0], manifest, trust_code, device, chosen["part"], chosen["checkpoint"])
    if part is None and manifest is None and model is None and (others := _other_parts(sources[0])):
        print(f"the run's test cases; {others} cases of other parts are left out (--part all predicts them too)")
    if done.written:
        shown = f"--slides {sources[0]} " if model is not None and sources[0].is_dir() else ""
        print(f"next: smmil report {out} {shown}--out report.html")
        if model is None:
            print("      (--slides FOLDER_OF_IMAGES puts slides or scans below the maps)")
    _exit_on_failures(done.failed.values(), out / "failures.csv")


def _refuse_for_several(given: dict[str, Any]) -> None:
    """Refuse options whose work several processes of torchrun do not divide."""
    from smmil.errors import ConfigError
    from smmil.ranks import current

    for option in (option for option, value in given.items() if value is not None and not current().alone):
        raise ConfigError(
            f"--{option}: is not divided over several processes; leave it out, or run it without torchrun"
        )


def _embed(
    path: Path, run: Path, manifest: Path | None, trust_code: bool, device: str, part: str | None, checkpoint: str
) -> None:
    from smmil.predict.embeddings import embed_run

    with _CaseBar("embedding") as bar:
        options: dict[str, Any] = {"manifest": manifest, "part": part, "checkpoint": checkpoint, "device": device}
        done = embed_run(run, path, trust_code=trust_code, progress=bar.at, **options)
    print(f"{path}: {done.written} embedded, {done.kept} there already, {len(done.failed)} failed")


def _other_parts(run: Path) -> int:
    """How many cases of a run's split do not test."""
    from smmil.data.splits import run_split

    split = run_split(run)
    return len(split.train) + len(split.val)


def _chosen(path: Path | None, probs: bool, package: Path | None) -> "ChosenCalibration | None":
    """The calibration that was asked for: in a file of its own, or in the package."""
    from smmil.errors import ConfigError
    from smmil.evaluate.calibration import Calibration
    from smmil.predict.cases import ChosenCalibration

    inside = None if package is None else package / "calibration.json"
    place = path or (inside if inside is not None and inside.exists() else None)
    if place is None and probs:
        raise ConfigError("--calibrated-probs: needs --calibration, a file of smmil calibrate")
    return None if place is None else ChosenCalibration(Calibration.load(place), probs, str(place))


def _summary(path: Path | None, none: bool, run: Path) -> "DriftSummary | None":
    """The drift summary that was asked for: in a file of its own, or in the run."""
    from smmil.errors import ConfigError
    from smmil.predict.drift import DRIFT, read_drift

    if none and path is not None:
        raise ConfigError("--no-drift: contradicts --drift; leave one of them out")
    place = path or (run / DRIFT if (run / DRIFT).exists() and not none else None)
    return None if place is None else read_drift(place)


def _say_promise_and_drift(done: "Predicted", chosen: "ChosenCalibration | None") -> None:
    """Print what is promised, as far as the drift alarm leaves it, and which cases are unlike the training cases."""
    from smmil.evaluate.folder_drift import class_sets_in_words, folder_drift, promise_of_cases
    from smmil.prediction import load_predictions

    cases = load_predictions(done.paths) if done.paths else []
    verdict = folder_drift(cases)
    if chosen is not None and done.paths:
        sentence = f"{chosen.calibration.sentence} {chosen.calibration.conditions}".strip()
        print(promise_of_cases(sentence, verdict, len(done.paths)))
        if sets := class_sets_in_words(cases, verdict):
            print(sets)
    if verdict is None:
        return
    if verdict.alarm or verdict.alarmed:
        print(f"warning: {verdict.text}", file=sys.stderr)
        named = ", ".join(verdict.unlike[:_MOST_NAMED])
        more = f" and {verdict.alarmed - _MOST_NAMED} more" if verdict.alarmed > _MOST_NAMED else ""
        if named:
            print(f"warning: unlike the training cases: {named}{more}", file=sys.stderr)
        if chosen is not None:
            which = "all cases" if verdict.alarm else "these cases"
            print(f"warning: the promise is withdrawn for {which}", file=sys.stderr)
    else:
        print(verdict.text)


def _from_package(
    folder: Path, sources: list[Path], images: dict[str, Any], trust_code: bool, **options: Any
) -> "Predicted":
    """Prepare raw images, then predict; Ctrl-C prints how to resume."""
    from smmil.packaging.loading import Images, load_package, predict_package

    package = load_package(folder, trust_code=trust_code)
    with _CaseBar("preparing") as bar:
        options["on_case"] = lambda outcome: bar.one_more(outcome.task.case.id)
        options["progress"] = lambda count, total: bar.at(count, total, "predicting")
        try:
            return predict_package(package, sources, images=Images(**images), **options)
        except KeyboardInterrupt:
            bar.stop()
            print("stopped; what is done is kept, repeat the command to go on", file=sys.stderr)
            raise Exit(130) from None

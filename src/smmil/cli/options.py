"""Option checks that several verbs share: executors, thresholds, files that belong to another verb."""

import math
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from smmil.errors import ConfigError


class Checkpoint(StrEnum):
    """Selected weights of a run."""

    best = "best"
    lowest_loss = "lowest_loss"


def check_place(executor: str, workers: int | None, dask: str | None, slurm: list[str] | None = None) -> None:
    """Raise an error for an option that does not fit the executor; `auto` takes any."""
    if workers is not None and workers < 1:
        raise ConfigError(f"--workers: must be at least 1, got {workers}")
    if workers is not None and executor == "serial":
        raise ConfigError("--workers: the executor serial works alone; leave it out, or choose --executor processes")
    if dask is not None and executor not in ("auto", "dask"):
        raise ConfigError(f"--dask: is for the executor dask, not {executor}; give --executor dask")
    if dask is not None and workers is not None:
        raise ConfigError("--workers: the cluster at --dask has its own; leave it out")
    if slurm and executor != "submitit":
        raise ConfigError(f"--slurm: is for the executor submitit, not {executor}; give --executor submitit")


Models = Annotated[
    list[Path], typer.Argument(help="Runs with predictions, or folders of .npz predictions; one per model.")
]
Validation = Annotated[
    list[Path] | None,
    typer.Option(help="Predictions on validation cases, to choose the instance threshold; one per model."),
]
Threshold = Annotated[float | None, typer.Option(help="Instance threshold; else the best on --validation.")]
Column = Annotated[int | None, typer.Option(help="Score column, for models with more than two classes.")]


def check_threshold(threshold: float | None, validation: list[Path] | None = None) -> None:
    """Check that an instance threshold is finite and given in one way only."""
    if threshold is not None and not math.isfinite(threshold):
        raise ConfigError(f"--threshold {threshold}: expected a finite number, such as 0.5")
    if threshold is not None and validation:
        raise ConfigError(f"--threshold {threshold}: --validation chooses the threshold; give one of the two, not both")


def right_verb(path: Path) -> str | None:
    """Message that says what a path is instead of a feature file, and the verb for it; None if unknown."""
    if not path.exists():
        return None
    if path.is_dir():
        return _folder(path)
    if path.suffix.lower() == ".npz":
        return _predictions(path)
    if path.suffix.lower() in (".safetensors", ".ckpt", ".pth"):
        return f"{path}: holds weights of a model, not features; use smmil predict with the folder of the run"
    return _image(path)


def _folder(path: Path) -> str | None:
    if (path / "manifest.csv").is_file():
        return f"{path}: is a folder; its bags are listed in the manifest: smmil inspect {path / 'manifest.csv'}"
    if (path / "config.yaml").is_file():
        return f"{path}: is a training run, not features; use smmil predict {path}"
    for ending in (".h5", ".npz", ".pt"):
        if any(path.glob(f"*{ending}")):
            return _predictions(path) if ending == ".npz" else _name_files(path, ending)
    return _image(path)


def _predictions(path: Path) -> str:
    return f"{path}: holds predictions, not features; use smmil evaluate, report or export"


def _name_files(path: Path, ending: str) -> str:
    return f"{path}: is a folder; name the files in it: smmil inspect {path}/*{ending}"


def _image(path: Path) -> str | None:
    """Message for slides and scans, recognised as in smmil prepare."""
    from smmil.errors import SmmilError
    from smmil.prepare.table import ENDINGS, find_sources

    if path.is_file() and not path.name.lower().endswith(ENDINGS):
        return None
    try:
        found = find_sources([path])[0]
    except SmmilError:
        return None
    what = "CT scans" if found.kind == "ct" else "slides"
    return f"{path}: pixels of {what}, not features; use smmil prepare {path} --out study --dry-run"

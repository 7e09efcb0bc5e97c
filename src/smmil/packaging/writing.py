"""Write a finished run as a package: all files at once, or none."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smmil.errors import ConfigError, DataError
from smmil.evaluate.calibration import Calibration
from smmil.evaluate.drift import DriftSummary
from smmil.evaluate.resampling import RESAMPLES
from smmil.files import read_json, remove_leftovers, temporary_path, write_json, write_text
from smmil.packaging.card import _model_card
from smmil.packaging.facts import _measure, _run_facts, _RunFacts
from smmil.packaging.loading import CALIBRATION, SUMS, _write_sums
from smmil.predict.drift import DRIFT, read_drift, save_drift
from smmil.weights import save_weights

_NO_DRIFT = (
    "no drift.safetensors: predictions of this package will not warn of cases unlike those it learned from; run "
    "smmil drift {run} first and package again"
)
_LICENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,99}")


@dataclass(frozen=True)
class WrittenPackage:
    """Folder and files of a package, notes for the user, and which raw images it takes.

    kind  slide, ct or points; None: bags only
    """

    folder: Path
    files: tuple[str, ...]
    notes: tuple[str, ...] = ()
    kind: str | None = None


def write_package(
    run_dir: str | Path,
    out: str | Path,
    *,
    name: str | None = None,
    checkpoint: str = "best",
    licence: str = "other",
    predictions: str | Path | None = None,
    onnx: bool = False,
    force: bool = False,
    resamples: int = RESAMPLES,
    trust_code: bool = False,
    calibration: str | Path | None = None,
    by: str = "case",
    aggregate: str | None = None,
) -> WrittenPackage:
    """Write the model of a run to the folder `out` in the layout of the Hugging Face hub.

    licence      identifier of the licence you give it under; other: not stated
    predictions  folder of predictions of these weights: their metrics and intervals go into the card
    onnx         also model.onnx, checked against the model itself
    force        replace a package of the same run; anything else in `out` is never touched
    trust_code   the run may name a model outside smmil, which means running that code
    by, aggregate  whether metrics count cases or patients, and how a patient's probabilities become one
    calibration  file of smmil calibrate for these weights: its promise goes into the card and into every prediction
    """
    out = Path(out).absolute()
    _check_licence(licence)
    found = _run_facts(run_dir, checkpoint, name, licence, trust_code)
    _refuse_occupied(out, found.config["run"], force)
    if predictions is None and (by != "case" or aggregate is not None):
        raise ConfigError("--by: is about the metrics of --predictions; give them, or leave it out")
    counted = resamples, by, aggregate
    numbers = None if predictions is None else _measure(predictions, found.trained.weights, *counted)
    promise = None if calibration is None else _own_calibration(Path(calibration), found.config)
    drift = _own_drift(Path(run_dir) / DRIFT, found.config["model"]["in_dim"])
    notes = found.notes if drift is not None else (*found.notes, _NO_DRIFT.format(run=Path(run_dir).name))
    with _replacing_folder(out) as folder:
        _fill(folder, found, numbers, onnx, promise, drift)
        files = tuple(sorted(path.name for path in folder.iterdir()))
    return WrittenPackage(out, files, notes, None if found.source.recipe is None else found.source.recipe.kind)


def _check_licence(licence: str) -> None:
    if not _LICENCE.fullmatch(licence):
        raise ConfigError(
            f"--licence {licence!r}: expected an identifier as in the SPDX list, such as apache-2.0, MIT or "
            "cc-by-nc-4.0; leave it out if it is none of these"
        )


def _refuse_occupied(out: Path, run: str, force: bool) -> None:
    """An error if `out` holds anything but a package of this run that may be replaced."""
    if out.exists() and not out.is_dir():
        raise DataError(f"{out}: is a file; choose another --out")
    if not out.exists() or not any(out.iterdir()):
        return
    if not (out / SUMS).is_file() or not (out / "config.json").is_file():
        raise DataError(f"{out}: is not empty and no package of smmil; choose another --out")
    stored = read_json(out / "config.json")
    if not isinstance(stored, dict) or stored.get("run") != run:
        raise DataError(f"{out}: holds the package of another run; choose another --out")
    if not force:
        raise DataError(f"{out}: holds a package of this run already; choose another --out, or --force to replace it")


def _own_calibration(path: Path, config: dict[str, Any]) -> Calibration:
    """The calibration in a file; an error when it was made for another model than the one that is packaged."""
    calibration, model = Calibration.load(path), config["model"]
    meta = {"model": model["name"], "score_kind": model["score_kind"], "weights": config["weights"]}
    meta |= {"config": config["training"]["hashes"]["config"], "features": config["features"]}
    calibration.refuse_other(meta, path)
    return calibration


def _own_drift(path: Path, width: int) -> DriftSummary | None:
    """The drift summary in the folder of the run, if it has one; an error when it is of other features."""
    drift = read_drift(path) if path.exists() else None
    if drift is not None and len(drift.norms.space.mean) != width:
        raise DataError(f"{path}: is of other features than the model; write it with smmil drift again")
    return drift


def _fill(
    folder: Path,
    found: _RunFacts,
    numbers: dict[str, Any] | None,
    onnx: bool,
    promise: Calibration | None = None,
    drift: DriftSummary | None = None,
) -> None:
    config, trained, recipe = found.config, found.trained, found.source.recipe
    note = {"model": trained.facts["model"], "weights": trained.weights}
    if save_weights(folder / "model.safetensors", trained.model.state_dict(), note) != trained.weights:
        raise DataError(
            f"model {config['model']['name']}: does not hold the weights it was given; it cannot be packaged"
        )
    if recipe is not None:
        settings = json.loads(json.dumps(recipe.settings()))
        write_json(folder / "recipe.json", {"encoder": config["features"]["encoder"], "settings": settings})
    inputs = None
    if onnx:
        from smmil.packaging.onnx_export import _export_onnx

        facts = {"smmil": config["smmil_version"], "weights": config["weights"], "use": "research use only"}
        name, in_dim = config["model"]["name"], config["model"]["in_dim"]
        inputs = _export_onnx(trained.model, name, in_dim, folder / "model.onnx", facts)
    config = config | {"onnx_inputs": inputs, "evaluation": numbers}
    write_json(folder / "config.json", config)
    shutil.copymode(folder / "config.json", folder / "model.safetensors")  # which is written for the owner alone
    if promise is not None:
        promise.save(folder / CALIBRATION)
    if drift is not None:
        save_drift(drift, folder / DRIFT)
        shutil.copymode(folder / "config.json", folder / DRIFT)
    kind = None if recipe is None else recipe.kind
    write_text(folder / "README.md", _model_card(config, numbers, kind, inputs, promise, drift))
    _write_sums(folder)


@contextmanager
def _replacing_folder(out: Path) -> Iterator[Path]:
    """A temporary folder next to `out` that replaces it when the block ends without error."""
    out.parent.mkdir(parents=True, exist_ok=True)
    folder, old = temporary_path(out), temporary_path(out)
    folder.mkdir()
    try:
        yield folder
        if out.exists():
            os.replace(out, old)
        os.replace(folder, out)
        remove_leftovers(out.parent)
    finally:
        if old.exists() and not out.exists():
            os.replace(old, out)
        for path in (folder, old):
            shutil.rmtree(path, ignore_errors=True)

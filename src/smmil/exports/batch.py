"""Predictions exported in one format: one case to one file, several to a folder."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from smmil.errors import ConfigError, DataError, SmmilError, check_choice
from smmil.evaluate.alarm import applied_drift
from smmil.evaluate.conformal import AppliedCalibration, applied_calibration
from smmil.evaluate.folder_drift import FolderDrift, drift_facts, folder_drift, promise_of_case, warning_of_case
from smmil.evaluate.instances import instance_score
from smmil.exports.case import ExportCase
from smmil.exports.registry import FORMATS, ExportFormat
from smmil.files import file_name, write_rows
from smmil.images.matching import Original, find_case_images, is_table
from smmil.maps.canvas import limits_of
from smmil.prediction import LAYERS, Prediction, prediction_files


def _prediction_paths(paths: str | Path | Iterable[str | Path]) -> list[Path]:
    """Prediction files of a folder, a file, or several of them; a missing file is refused."""
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    files = [file for path in given for file in prediction_files(Path(path))]
    for file in (file for file in files if not file.exists()):
        raise DataError(f"{file}: no such file")
    if not files:
        raise DataError("no predictions given; name a folder of .npz files written by smmil predict")
    return files


def _load_all(files: Sequence[Path]) -> tuple[dict[Path, Prediction], dict[str, str]]:
    """The predictions by file, sorted by id, and {name of a file: why it is of no use}; an id twice is refused."""
    found: dict[str, tuple[Prediction, Path]] = {}
    failed: dict[str, str] = {}
    for path in files:
        try:
            prediction = _refuse_surrogates(Prediction.load(path))
        except DataError as problem:
            failed[path.name] = str(problem)
            continue
        if prediction.id in found:
            raise DataError(f"{path}: id {prediction.id!r} is already in {found[prediction.id][1]}; remove one of them")
        found[prediction.id] = prediction, path
    return {path: prediction for _, (prediction, path) in sorted(found.items())}, failed


def _test_of_folder(place: Path, known: Mapping[Path, Prediction]) -> FolderDrift | None:
    """The drift test of all predictions of a folder, also those not exported; what cannot be read takes no part.

    None where none of those to export was compared with a drift summary.
    """
    if not any(path.parent == place and applied_drift(case) is not None for path, case in known.items()):
        return None
    cases = (known.get(path) or _readable(path) for path in prediction_files(place))
    return folder_drift([drift_facts(case) for case in cases if case is not None])


def _readable(path: Path) -> Prediction | None:
    """The prediction; None when the file cannot be read."""
    try:
        return Prediction.load(path)
    except DataError:
        return None


def _refuse_surrogates(prediction: Prediction) -> Prediction:
    """Return the prediction; raise if its id has lone surrogates, which neither files nor their names can hold."""
    try:
        prediction.id.encode()
    except UnicodeEncodeError:
        raise DataError(
            f"id {prediction.id!a}: holds half a character (a lone surrogate), which no file can store; rename "
            "the case and predict it again"
        ) from None
    return prediction


_FAILURES = "export_failures.csv"
_WARNED = (
    "the case, or its folder as a whole, looks unlike the cases that the model learned from; the file says so under "
    "warning"
)


@dataclass(frozen=True)
class Exported:
    """What was written, what could not be and why, and what to know about it: (case, note)."""

    written: list[Path] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    notes: list[tuple[str, str]] = field(default_factory=list)


def export(
    predictions: Prediction | str | Path | Iterable[str | Path],
    to: str,
    out: str | Path,
    *,
    image: str | Path | Original | None = None,
    threshold: float | None = None,
    column: int | None = None,
    size: int | None = None,
    deidentify: bool = True,
    keep_uids: bool = True,
    layer: str = "score",
    interpolate: bool = False,
    folder: FolderDrift | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Exported:
    """Write predictions (files, folders of them, or one Prediction) as one of the registered formats, atomically.

    out    the file for a single case (or an existing folder); for several cases a folder, one file each
    image  slide or CT series of a single case (an Original gives its pixel size too); for several, a folder with an
           entry named like each case's id; for one or several, a CSV table with the columns id and slide (or image,
           path, file), and mpp if you like
    layer  score, or another map that predictions hold: uncertainty (standard deviations of the scores), strangeness
           (see smmil drift)
    folder     of one Prediction: `folder_drift` of the cases beside it, which may withdraw its promise; the test of
               files is made here, of all predictions that lie in the folder of each
    threshold  of instances; unless given, that of the calibration which the predictions carry
    See `ExportCase` for the other options. A single case that cannot be read or written is an error; of several, the
    others go on.
    """
    format_ = FORMATS[check_choice(to, FORMATS, "--to")]
    original = image if isinstance(image, Original) or image is None else Original(Path(image))
    place = None if original is None else original.path
    predictions = predictions if isinstance(predictions, Prediction | str | Path) else list(predictions)
    own = threshold is None and format_.threshold == "needed" and _first_calibration(predictions) is not None
    _check_options(format_, place, threshold, size, deidentify, keep_uids, own)
    if interpolate and to != "png":
        raise ConfigError(f"--interpolate: is for pictures (png); {to} holds the scores themselves, leave it out")
    check_choice(layer, ["score", *(one.name for one in LAYERS)], "--layer")
    if layer != "score" and (threshold is not None or column is not None):
        raise ConfigError(f"--layer {layer}: --threshold and --column are about scores; leave them out")
    options = {
        "layer": layer,
        "threshold": threshold,
        "column": column,
        "deidentify": deidentify,
        "keep_uids": keep_uids,
        "interpolate": interpolate,
        "folder": folder,
    }
    options |= {} if size is None else {"size": size}
    files = [] if isinstance(predictions, Prediction) else _prediction_paths(predictions)
    if len(files) > 1:
        return _several(files, format_, Path(out), place, options, progress)
    one = predictions if isinstance(predictions, Prediction) else Prediction.load(files[0])
    if files:
        options["folder"] = _test_of_folder(files[0].parent, {files[0]: one})
    done = Exported()
    path = _one_path(Path(out), _refuse_surrogates(one).id, format_, layer)
    named = None if original is None else {one.id: original}
    table = find_case_images(original.path, [one.id], "--image") if original and is_table(original.path) else named
    _write(format_, _case(one, table, place, options), path, done)
    return done


def _several(
    files: list[Path],
    format_: ExportFormat,
    out: Path,
    images: Path | None,
    options: dict[str, Any],
    progress: Callable[[int, int], None] | None,
) -> Exported:
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out}: {len(files)} predictions need a folder, and this is a file; name a folder")
    cases, failed = _load_all(files)
    table = None if images is None else find_case_images(images, [case.id for case in cases.values()], "--image")
    tests = {place: _test_of_folder(place, cases) for place in {path.parent for path in cases}}
    done = Exported(failed=failed)
    if format_.name == "png":
        options |= {"limits": _shared_limits(cases.values(), options)}
    for count, (source, prediction) in enumerate(cases.items(), 1):
        path = out / _default_name(prediction.id, format_, options["layer"])
        beside = {"folder": tests[source.parent]}
        try:
            _write(format_, _case(prediction, table, images, options | beside), path, done)
        except SmmilError as problem:
            done.failed[prediction.id] = str(problem)
        if progress is not None:
            progress(count, len(cases))
    write_rows(out / _FAILURES, ("id", "reason"), done.failed.items())
    return done


def _shared_limits(cases: Iterable[Prediction], options: dict[str, Any]) -> tuple[float, float] | None:
    """Ends of the colours of all pictures, so that a case without a lesion does not look like one that has it.

    None where the layer has a scale of its own. A case that cannot be shown takes no part; its error is said later.
    """
    shown, scores = None, []
    for case in cases:
        with suppress(SmmilError):
            shown = case.layer(options["layer"])
            scores.append(instance_score(shown, options["column"]).astype(np.float64))
    if not scores or shown is None or shown.fixed_scale is not None:
        return None
    low, high, _ = limits_of(np.concatenate(scores), None)
    return low, high


def _case(
    prediction: Prediction, table: dict[str, Original] | None, where: Path | None, options: dict[str, Any]
) -> ExportCase:
    """The case with the image that was found for it; an error when images were given and none is its own."""
    options = dict(options)
    prediction = prediction.layer(options.pop("layer"))
    options = _at_promised_threshold(prediction, options)
    if table is None:
        return ExportCase(prediction, **options)
    if prediction.id not in table:
        raise DataError(
            f"{prediction.id}: no image of this name in {where}; name its slide or folder like the case, or give "
            "--image a table of id,slide"
        )
    return ExportCase(prediction, table[prediction.id].path, mpp=table[prediction.id].mpp, **options)


def _first_calibration(
    predictions: Prediction | str | Path | list[str | Path],
) -> AppliedCalibration | None:
    """The calibration of the (first) prediction; None when there is none, or it cannot be read, which is said later."""
    try:
        one = predictions if isinstance(predictions, Prediction) else Prediction.load(_prediction_paths(predictions)[0])
    except DataError:
        return None
    return applied_calibration(one)


def _at_promised_threshold(prediction: Prediction, options: dict[str, Any]) -> dict[str, Any]:
    """The options with the threshold of the calibration that was applied, where the user gave none; and notes."""
    stated = promise_of_case(prediction, options["folder"])
    notes = [_WARNED] if warning_of_case(prediction, options["folder"]) else []
    if options["threshold"] is not None or stated is None or stated.column != options["column"]:
        return options | {"notes": notes}
    return options | {"threshold": stated.threshold, "notes": [stated.text, *notes]}


def _write(format_: ExportFormat, case: ExportCase, path: Path, done: Exported) -> None:
    """Write one case and note it; never over the image that is read."""
    if case.image is not None and path.exists() and path.samefile(case.image):
        raise ConfigError(f"--out {path}: this is the image itself; choose another name or folder")
    format_.write(case, path)
    done.written.append(path)
    done.notes.extend((case.id, note) for note in case.notes)


def _default_name(id_: str, format_: ExportFormat, layer: str) -> str:
    """Name of a file in a folder; another map than that of the scores is named, so that it replaces none."""
    ending = format_.endings[0]
    return file_name(id_) + (ending if layer == "score" else f"_{layer}{ending.removeprefix('_heat')}")


def _one_path(out: Path, id_: str, format_: ExportFormat, layer: str) -> Path:
    if out.is_dir():
        return out / _default_name(id_, format_, layer)
    if not out.name.lower().endswith(format_.endings):
        plain = [ending for ending in format_.endings if ending.startswith(".")]
        raise ConfigError(
            f"--out {out}: a {format_.name} file ends with {' or '.join(plain)}; or name an existing folder"
        )
    return out


def _check_options(
    format_: ExportFormat,
    image: Path | None,
    threshold: float | None,
    size: int | None,
    deidentify: bool,
    keep_uids: bool,
    own_threshold: bool = False,
) -> None:
    """Refuse an option that would be ignored, one that is missing, and one that makes no sense."""
    to = format_.name
    if threshold is not None and format_.threshold == "never":
        raise _unused(f"--threshold {threshold}", to, [f.name for f in FORMATS.values() if f.threshold != "never"])
    if size is not None and not format_.sized:
        raise _unused(f"--size {size}", to, [f.name for f in FORMATS.values() if f.sized])
    if threshold is None and format_.threshold == "needed" and not own_threshold:
        raise ConfigError(f"--to {to}: needs --threshold, a score above which an instance is positive")
    if image is None and format_.needs_image:
        raise ConfigError(f"--to {to}: needs --image, the DICOM or NIfTI source")
    if threshold is not None and not isfinite(threshold):
        raise ConfigError(f"--threshold {threshold}: must be a finite number")
    if size is not None and not 16 <= size <= 20_000:
        raise ConfigError(f"--size {size}: must be from 16 to 20000 pixels")
    dicom = [f.name for f in FORMATS.values() if f.refers_to_dicom]
    if not deidentify and to not in dicom:
        raise _unused("--no-deidentify", to, dicom)
    if not keep_uids and (not deidentify or to not in dicom):
        raise ConfigError(f"--replace-uids: is part of the de-identification of {' and '.join(dicom)} only")
    if image is not None and not image.exists():
        raise DataError(f"--image {image}: no such file or folder")


def _unused(option: str, to: str, users: Sequence[str]) -> ConfigError:
    return ConfigError(f"{option}: {to} has no use for it; it is for {', '.join(users)}")

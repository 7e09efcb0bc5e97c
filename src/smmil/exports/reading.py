"""Predictions on their way out: those that can be read, and why the others cannot."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from smmil.errors import DataError
from smmil.prediction import Prediction, prediction_files


def files_of(places: str | Path | Iterable[str | Path]) -> list[Path]:
    """The files that are meant by a folder, a file, or several of them; a file that is not there is refused."""
    named = [places] if isinstance(places, str | Path) else list(places)
    files = [file for place in named for file in prediction_files(Path(place))]
    for file in (file for file in files if not file.exists()):
        raise DataError(f"{file}: no such file")
    if not files:
        raise DataError("no predictions given; name a folder of .npz files written by smmil predict")
    return files


def readable(files: Sequence[Path]) -> tuple[list[Prediction], dict[str, str]]:
    """The predictions, sorted by id, and {name of a file: why it cannot be used}; the same id twice is refused."""
    found: dict[str, tuple[Prediction, Path]] = {}
    failed: dict[str, str] = {}
    for path in files:
        try:
            prediction = refuse_half_characters(Prediction.load(path))
        except DataError as problem:
            failed[path.name] = str(problem)
            continue
        if prediction.id in found:
            raise DataError(f"{path}: id {prediction.id!r} is already in {found[prediction.id][1]}; remove one of them")
        found[prediction.id] = prediction, path
    return [prediction for _, (prediction, _) in sorted(found.items())], failed


def refuse_half_characters(prediction: Prediction) -> Prediction:
    """The prediction itself, unless its id has lone surrogates, which neither files nor their names can hold."""
    try:
        prediction.id.encode()
    except UnicodeEncodeError:
        raise DataError(
            f"id {prediction.id!a}: holds half a character (a lone surrogate), which no file can store; rename "
            "the case and predict it again"
        ) from None
    return prediction

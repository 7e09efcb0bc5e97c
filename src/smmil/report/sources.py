"""Load the models of a report: runs, folders of predictions or files to named lists of predictions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smmil.errors import DataError
from smmil.evaluate.folders import named_folders
from smmil.files import read_json
from smmil.prediction import Prediction, prediction_files


@dataclass(frozen=True)
class PredictionSource:
    """One model: its name, its predictions, and run.json of its run (empty when there is none).

    left_out  {file: reason} of predictions that could not be read
    """

    name: str
    predictions: Sequence[Prediction]
    run: dict[str, Any] = field(default_factory=dict)
    left_out: dict[Path, str] = field(default_factory=dict)


def load_sources(places: Sequence[str | Path]) -> list[PredictionSource]:
    """One source per model; a run stands for its folder `predictions`, and damaged files are left out and named."""
    return [_load(*found) for found in find_sources(places)]


def _load(name: str, places: Sequence[Path], run: dict[str, Any]) -> PredictionSource:
    found: dict[str, tuple[Prediction, Path]] = {}
    damaged: dict[Path, str] = {}
    for path in (file for place in places for file in prediction_files(place)):
        try:
            prediction = Prediction.load(path)
        except DataError as problem:
            damaged[path] = str(problem).removeprefix(f"{path}: ")
            continue
        if prediction.id in found:
            raise DataError(f"{path}: id {prediction.id!r} is already in {found[prediction.id][1]}; remove one of them")
        found[prediction.id] = prediction, path
    if not found:
        path, reason = next(iter(damaged.items()))
        raise DataError(f"{path}: {reason} (and no other prediction of {name} can be read)")
    return PredictionSource(name, [prediction for _, (prediction, _) in sorted(found.items())], run, damaged)


def find_sources(places: Sequence[str | Path]) -> list[tuple[str, Sequence[Path], dict[str, Any]]]:
    """Name, files or folders of predictions, and run.json of each model, before anything is read."""
    runs = [Path(p) for p in places if run_of(Path(p)) is not None]
    found = [(_run_name(place), _predictions_of(place), _facts(place)) for place in runs]
    others = named_folders([p for p in places if Path(p) not in runs])
    found += [(Path(name).name, files, {}) for name, files in others.items()]
    if not found:
        raise DataError("nothing to report; name a run or a folder of predictions written by smmil predict")
    names = _distinct([name for name, _, _ in found])
    return [(name, files, run) for name, (_, files, run) in zip(names, found, strict=True)]


def run_of(place: Path) -> Path | None:
    """The run that a folder is, or whose `predictions` it is."""
    candidates = (place, place.resolve().parent if place.resolve().name == "predictions" else place)
    return next((p for p in candidates if (p / "run.json").is_file()), None)


def _run_name(place: Path) -> str:
    run = run_of(place)
    assert run is not None  # only called for runs
    return run.resolve().name


def _facts(place: Path) -> dict[str, Any]:
    run = run_of(place)
    facts = read_json(run / "run.json") if run is not None else {}
    if not isinstance(facts, dict):
        raise DataError(f"{run}/run.json: not the facts of a run; train it again")
    return facts


def _predictions_of(place: Path) -> list[Path]:
    """The folder with the run's predictions: `predictions`, or its only subfolder, or the one called test."""
    run = run_of(place)
    assert run is not None  # only called for runs
    folder = run / "predictions"
    if any(folder.glob("*.npz")):
        return [folder]
    inner = {p.parent.name: p.parent for p in sorted(folder.glob("*/*.npz"))}
    if len(inner) == 1 or "test" in inner:
        return [inner.get("test", next(iter(inner.values())))]
    if inner:
        raise DataError(f"{folder}: holds {', '.join(inner)}; name one of these folders")
    raise DataError(f"{run}: has no predictions yet; run: smmil predict {run} --out {folder}")


def _distinct(names: Iterable[str]) -> list[str]:
    """Names without repetition: the second `a` becomes `a (2)`."""
    given: list[str] = []
    for name in names:
        count, shown = 1, name
        while shown in given:
            count += 1
            shown = f"{name} ({count})"
        given.append(shown)
    return given

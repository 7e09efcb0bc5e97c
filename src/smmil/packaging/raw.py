"""A package and raw images (or bags) to Predictions: the package's own recipe prepares what it is given."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from smmil.data.manifest import Manifest
from smmil.errors import ConfigError, DataError
from smmil.files import read_json
from smmil.formats import find_reader
from smmil.packaging.loading import Package
from smmil.predict import Predicted, predict_table, write_failures
from smmil.prepare import PreparePlan, plan, run
from smmil.prepare.table import find_sources

PREPARED = "prepared"
_TAKES = {"slide": "slides", "ct": "CT scans", "points": "crops around points of slides"}
_TABLES = (".csv", ".parquet")
_BAGS = (".h5", ".hdf5", ".pt")


@dataclass(frozen=True)
class Images:
    """How raw images are read, where they do not say it themselves.

    labels, points, mpp, weights  as for `smmil.prepare.plan`; workers: processes that prepare side by side
    """

    labels: str | Path | None = None
    points: str | Path | None = None
    mpp: float | None = None
    weights: str | Path | None = None
    workers: int | None = None

    def refuse_idle(self) -> None:
        for name, value in vars(self).items():
            if value is not None:
                raise ConfigError(f"--{name}: is for raw images, but these are bags; leave it out")


def predict_package(
    package: Package,
    sources: Sequence[str | Path],
    *,
    out: str | Path,
    images: Images | None = None,
    device: str = "auto",
    on_case: Callable[[Any], Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Predicted:
    """One file per case in `out`, from slides, scans, folders of them, a manifest of bags, or bag files.

    Bags made from raw images are kept in out/prepared, so an interrupted call can simply be repeated; the predictions
    are those of preparing with the same recipe and predicting from the manifest, bit for bit.
    """
    paths, images = [Path(source) for source in sources], images or Images()
    options: dict[str, Any] = {"out": out, "device": device, "progress": progress}
    table = table_of_bags(paths)
    if table is not None:
        images.refuse_idle()
        table.check_table(training=False)
        return predict_table(package.trained, table, table.ids, package.origin, **options)
    done = run(*_prepared(package, paths, Path(out), images, device), **_executor(images.workers), on_case=on_case)
    failed = {id_: reason for id_, _, reason in done.failures}
    if done.manifest is None:
        write_failures(Path(out), failed)
        return Predicted(failed=failed)
    table = Manifest.read(done.manifest)
    return predict_table(package.trained, table, table.ids, package.origin, failed=failed, **options)


def table_of_bags(paths: Sequence[Path]) -> Manifest | None:
    """The bags that are meant: of a manifest, or of files or folders of bags; None when these are raw images."""
    missing = [path for path in paths if not path.exists()]
    if missing:
        raise DataError(f"{missing[0]}: no such file or folder")
    tables = [path for path in paths if path.suffix.lower() in _TABLES]
    if tables and len(paths) > 1:
        raise ConfigError(f"{tables[0]}: a manifest stands alone; give it without other files")
    if tables:
        return Manifest.read(tables[0])
    files = {path: _bag_files(path) for path in paths}
    bags = [bag for found in files.values() for bag in found]
    if not bags:
        return None
    if not all(files.values()):
        other = next(path for path, found in files.items() if not found)
        raise ConfigError(f"{bags[0]} is a bag, but {other} is none; predict bags and images in two steps")
    rows = [{"id": bag.stem, "path": str(bag.absolute())} for bag in bags]
    return Manifest(pd.DataFrame(rows, dtype=str), Path(), "the bags")


def _bag_files(path: Path) -> list[Path]:
    """The bags in a file or folder, none if it holds raw images."""
    files = sorted(path.glob("*.h5")) if path.is_dir() else [path] if path.suffix.lower() in _BAGS else []
    for file in files:
        find_reader(file)  # an error that says what is expected, if it is none
    return files


def _prepared(package: Package, paths: list[Path], out: Path, images: Images, device: str) -> tuple[PreparePlan]:
    """What is to be prepared, after the encoder's weights were compared with those of training."""
    if package.recipe is None:
        raise ConfigError(
            f"{paths[0]}: this package cannot read raw images, since the recipe of its features is not part of it; "
            "give bags or a manifest of features from the same encoder"
        )
    _refuse_misfit(paths, package.recipe.kind, images.points, out / PREPARED)
    given: dict[str, Any] = {
        "labels": images.labels,
        "points": images.points,
        "mpp": images.mpp,
        "weights": images.weights,
    }
    todo = plan(paths, out / PREPARED, package.recipe, device=device, **given)
    trained = package.config["features"]["encoder"]
    if todo.encoder != trained:
        raise ConfigError(
            f"encoder {package.recipe.encoder}: its weights here give {todo.encoder}, but the model was trained on "
            f"{trained}; give the file of those weights with --weights"
        )
    _refuse_other_bags(todo, out)
    return (todo,)


def _refuse_misfit(paths: list[Path], kind: str, points: str | Path | None, own: Path) -> None:
    """What preparing would say about options that a package has settled is said here in words for its user."""
    if kind == "points" and points is None:
        raise ConfigError(f"{paths[0]}: this package was trained on {_TAKES[kind]}; give their table with --points")
    if kind != "points" and points is not None:
        raise ConfigError(f"--points: this package was trained on {_TAKES[kind]}; leave the option out")
    meant = "ct" if kind == "ct" else "slide"
    if all(source.kind not in (None, meant) for source in find_sources(paths, skip=own)):
        other = "slides" if meant == "ct" else "scans"
        raise ConfigError(f"{paths[0]}: holds {other}, but this package was trained on {_TAKES[kind]}; give those")


def _refuse_other_bags(todo: PreparePlan, out: Path) -> None:
    """Bags of another package in the same place stay there: their predictions lie beside them."""
    place, ours = out / PREPARED, {"encoder": todo.encoder, "settings": json.loads(json.dumps(todo.recipe.settings()))}
    there = place / "recipe.json"
    if there.exists() and any((place / "bags").rglob("*.h5")) and read_json(there) != ours:
        raise ConfigError(f"{place}: holds images prepared for a package with another recipe; choose another --out")


def _executor(workers: int | None) -> dict[str, Any]:
    return {"executor": "serial"} if workers in (None, 1) else {"executor": "processes", "workers": workers}

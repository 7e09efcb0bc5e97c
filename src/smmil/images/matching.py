"""Matches slide and scan files to cases, and checks that an image is the one a case was made from."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from smmil.errors import DataError
from smmil.files import check_csv_width, file_name, read_parquet
from smmil.images.opening import open_slide
from smmil.images.slide import Slide
from smmil.images.volume import AIR, PRESETS, Volume, open_volume, parse_window
from smmil.prediction import Prediction

_PATH_COLUMNS = ("slide", "image", "path", "file")
_SAME_SIZE = 0.01  # relative difference of pixel sizes and distances that comes from writing them with fewer digits
_SAME_POSITION_MM = 0.5
_ASK = "is it the image this case was made from?"

Predictions = Sequence[Prediction | None]


class Original(NamedTuple):
    """The image of a case, and its pixel size where a table corrects what the file says."""

    path: Path
    mpp: float | None = None


@dataclass(frozen=True)
class ImageSource:
    """A file or folder with the pixels of one case; `name` is its path below the folder given, without ending."""

    path: Path
    name: str
    kind: str | None

    @property
    def stem(self) -> str:
        return self.name.rpartition("/")[2]


class Difference(NamedTuple):
    """What the prediction records about its image, and what the given image has instead."""

    expected: str
    found: str


def find_case_images(where: str | Path, ids: Sequence[str], option: str = "--slides") -> dict[str, Original]:
    """Image file of each case: from a CSV table with id and slide (or image, path, file), or from a folder by name.

    Ids never become paths. `option` names the command line option that `where` came from, for error messages.
    """
    where = Path(where)
    if not where.is_dir() and not is_table(where):
        raise DataError(f"{where}: no such folder or CSV table; give {option} a folder of images or id,slide rows")
    return _in_folder(where, ids) if where.is_dir() else _in_table(where, ids)


def is_table(where: Path) -> bool:
    """Whether the path is a table of images rather than an image."""
    return where.suffix.lower() == ".csv" and where.is_file()


def _in_folder(folder: Path, ids: Sequence[str]) -> dict[str, Original]:
    """By the name of the file without ending, or by its path below the folder, as `smmil prepare` names cases."""
    wanted = {name: id_ for id_ in ids for name in (file_name(id_), id_)}
    found: dict[str, list[Path]] = {}
    for path in _below(folder, folder, wanted):
        for name in _names(path, folder) & wanted.keys():
            found.setdefault(wanted[name], []).append(path)
    return {id_: Original(_only(paths, id_, folder)) for id_, paths in found.items()}


def _below(place: Path, folder: Path, wanted: Collection[str]) -> Iterator[Path]:
    """Files and folders below `place`; not inside a folder that is a case itself (a DICOM series)."""
    for path in sorted(p for p in place.iterdir() if not p.name.startswith(".")):
        yield path
        if path.is_dir() and not path.is_symlink() and _names(path, folder).isdisjoint(wanted):
            yield from _below(path, folder, wanted)


def _names(path: Path, folder: Path) -> set[str]:
    inside, stem = path.relative_to(folder), path.stem.removesuffix(".nii").removesuffix(".patches")
    return {path.name, stem, inside.as_posix(), inside.with_name(stem).as_posix()}


def _only(paths: Sequence[Path], id_: str, folder: Path) -> Path:
    """The file of a case: the one nearest to the top, which must be the only one there of its kind.

    An .mrxs file lies next to a folder of the same name; the file is the slide.
    """
    first = min(paths, key=lambda path: (len(path.parts), path.is_dir()))
    rivals = [p for p in paths if len(p.parts) == len(first.parts) and p.parent != first.parent]
    if rivals:
        both = " and ".join(path.relative_to(folder).as_posix() for path in (first, rivals[0]))
        raise DataError(f"{folder}: case {id_} could be {both}; give a table with the columns id and slide")
    return first


def _in_table(path: Path, ids: Sequence[str]) -> dict[str, Original]:
    import pandas as pd

    try:
        table: Any = pd.read_csv(check_csv_width(path), dtype=str, keep_default_na=False)
    except (OSError, ValueError, LookupError) as problem:
        cause = " ".join(str(problem).split())
        raise DataError(f"{path}: not readable as a table ({cause}); give rows of id,slide") from None
    column = next((name for name in _PATH_COLUMNS if name in table.columns), None)
    if column is None or "id" not in table.columns:
        raise DataError(f"{path}: columns {', '.join(table.columns)}; expected id and {' or '.join(_PATH_COLUMNS)}")
    rows = table[table["id"].isin(list(ids)) & (table[column] != "")]
    sizes = rows["mpp"] if "mpp" in rows.columns else [""] * len(rows)
    return {
        id_: Original(path.parent / file, _pixel_size(size, path, id_))
        for id_, file, size in zip(rows["id"], rows[column], sizes, strict=True)
    }


def _pixel_size(text: str, path: Path, id_: str) -> float | None:
    if not text.strip():
        return None
    with suppress(ValueError):
        if 0 < float(text) < float("inf"):
            return float(text)
    raise DataError(f"{path}: mpp of {id_} is {text!r}; expected micrometres per pixel such as 0.25, or nothing")


def source_named(name: str, sources: Sequence[ImageSource]) -> Path | None:
    """The source with this relative path (with or without ending), or else with this stem, which must be unique."""
    exact = [s for s in sources if name == s.name or (name.startswith(s.name) and s.path.name == Path(name).name)]
    if exact and (len(exact) == 1 or "/" in name):
        _refuse_ambiguous(exact)
        return exact[0].path
    alike = [source for source in sources if source.stem == name]
    _refuse_ambiguous(alike)
    return alike[0].path if alike else None


def refuse_equal_stems(sources: Sequence[ImageSource]) -> None:
    """Raise when two sources have the same stem, which would be the id of both."""
    first: dict[str, ImageSource] = {}
    for source in sources:
        if (other := first.setdefault(source.stem, source)) is not source:
            _refuse_ambiguous([other, source])


def _refuse_ambiguous(sources: Sequence[ImageSource]) -> None:
    if len(sources) > 1:
        raise DataError(
            f"{sources[0].path} and {sources[1].path} are both called {sources[0].stem!r}; "
            "give them ids with their folder (folder/name), or a column path in the table of labels"
        )


def open_scan(path: Path, prediction: Prediction) -> Volume:
    """The scan at a path; where it holds several series, the one the prediction was made from."""
    series = _recorded(prediction, "scan").get("series")
    return open_volume(path, among_several=series if isinstance(series, str) else None)


def open_case_slide(original: Original, predictions: Predictions) -> Slide:
    """The slide of a case, with the pixel size of the table, else the one given to smmil prepare, else the file's."""
    recorded = [_recorded(p, "slide") for p in predictions if p is not None]
    given = [r["mpp"] for r in recorded if r.get("mpp_given") is True and isinstance(r.get("mpp"), int | float)]
    return open_slide(original.path, original.mpp if original.mpp is not None or not given else float(given[0]))


def recorded_window(prediction: Prediction) -> tuple[float, float] | None:
    """Centre and width through which the encoder saw the slices first; None where that is not recorded."""
    ends = _numbers(_recorded(prediction, "scan").get("window"), 2)
    return None if ends is None or not np.isfinite(ends).all() or ends[1] <= 0 else (float(ends[0]), float(ends[1]))


def display_window(prediction: Prediction, volume: Volume) -> tuple[float, float]:
    """The recorded window; else that of the brain for Hounsfield units, percentiles of the scan for other values."""
    return recorded_window(prediction) or _usual_window(volume)


@lru_cache(maxsize=16)
def _usual_window(volume: Volume) -> tuple[float, float]:
    """Percentiles read the whole scan, so they are kept; values of unknown kind are HU if the middle slice has air."""
    unknown = volume.values == "unknown"
    hounsfield = volume.values == "HU" or (unknown and bool(volume.slice_hu(len(volume) // 2).min() <= AIR))
    try:
        return parse_window("brain" if hounsfield else "p1/99", volume)
    except DataError:
        return PRESETS["brain"]  # all voxels are equal, or one slice is damaged, which is told when it is read


def recorded_notes(prediction: Prediction) -> list[str]:
    """What a reader of the scan should know, such as missing slices, as smmil prepare found it."""
    notes = _recorded(prediction, "scan").get("notes")
    return [note for note in notes if isinstance(note, str)] if isinstance(notes, list) else []


def slide_difference(prediction: Prediction, slide: Slide) -> Difference | None:
    """First difference in size or scanned area between the slide and what the prediction records; None if unknown."""
    recorded, found = _recorded(prediction, "slide"), {"size": slide.size, "bounds": slide.bounds}
    for key, what in (("size", "pixels"), ("bounds", "bounds (x, y, width, height)")):
        expected = recorded.get(key)
        if isinstance(expected, list | tuple) and [*expected] != [*found[key]]:
            return Difference(f"{what} {' x '.join(map(str, expected))}", " x ".join(map(str, found[key])))
    return None


def scan_difference(prediction: Prediction, volume: Volume) -> Difference | None:
    """First difference between the scan and what the prediction records; None when nothing known differs."""
    if isinstance(prediction.meta.get("scan"), dict):
        return next(_scan_differences(prediction.meta["scan"], volume), None)
    implied = _implied_slices(prediction)
    return None if implied is None or len(volume) <= implied else Difference(f"{implied} slices", f"{len(volume)}")


def refuse_other_slide(id_: str, predictions: Predictions, slide: Slide) -> None:
    """Raise when the slide's size, scanned area or pixel size is not what the predictions record."""
    for prediction in (p for p in predictions if p is not None):
        other = slide_difference(prediction, slide)
        if other is not None:
            raise DataError(
                f"{id_}: was made from a slide with {other.expected}, but {slide.path} has {other.found}; {_ASK}"
            )
        mpp = _recorded(prediction, "slide").get("mpp")
        if isinstance(mpp, int | float) and mpp > 0 and slide.mpp is not None and not _same_size(mpp, slide.mpp):
            raise DataError(
                f"{id_}: was made from a slide with {mpp:g} µm per pixel, but {slide.path} has {slide.mpp:g}; {_ASK} "
                "(a table for --slides may have a column mpp where the file is wrong)"
            )


def refuse_other_scan(id_: str, predictions: Predictions, volume: Volume) -> None:
    """Raise when the scan lacks instances of the predictions, or is not the scan they record."""
    coords = [p.coords for p in predictions if p is not None and p.coords is not None]
    slices = [c[:, 0] for c in coords if c.shape[1] == 1]
    if slices:
        _refuse_other_slices(id_, np.concatenate(slices), _spacing(predictions, "mm"), volume)
    elif any(c.shape[1] == 3 and c[:, 2].max() >= len(volume) for c in coords):
        raise DataError(f"{id_}: has instances beyond the {len(volume)} slices of this scan; {_ASK}")
    for prediction in (p for p in predictions if p is not None):
        other = scan_difference(prediction, volume)
        if other is not None:
            raise DataError(
                f"{id_}: was made from a scan with {other.expected}, but {volume.name} has {other.found}; {_ASK}"
            )


def pixels_per_unit(id_: str, predictions: Predictions, slide: Slide) -> float:
    """Level-0 pixels per coordinate unit: 1, unless coordinates count micrometres."""
    unit = _spacing(predictions, "um")
    if unit is None or (slide.mpp is None and unit != 1.0):
        return 1.0
    if slide.mpp is None:
        raise DataError(
            f"{id_}: coordinates count micrometres and {slide.path} does not say how large its pixels are; give "
            "--slides a table with a column mpp"
        )
    return 1.0 if _same_size(unit, slide.mpp) else unit / slide.mpp


def find_features(manifest: str | Path, ids: Sequence[str]) -> dict[str, Path]:
    """Feature file of each case, from the columns id and path of a manifest."""
    import pandas as pd

    manifest = Path(manifest)
    try:
        parquet = manifest.suffix.lower() == ".parquet"
        texts: Any = {"dtype": str, "encoding": "utf-8-sig"}
        table = read_parquet(manifest) if parquet else pd.read_csv(check_csv_width(manifest), **texts)
        missing = [name for name in ("id", "path") if name not in table.columns]
        if missing:
            raise DataError(f"--bags {manifest}: column {missing[0]!r} is missing; a manifest has id and path")
        rows = table[["id", "path"]].dropna().astype(str)
    except FileNotFoundError:
        raise DataError(f"--bags {manifest}: no such file; give the manifest.csv that smmil prepare wrote") from None
    except (OSError, ValueError, LookupError) as problem:
        cause = " ".join(str(problem).split())
        raise DataError(f"--bags {manifest}: not readable as a table ({cause}); give rows of id,path") from None
    return {id_: manifest.parent / path for id_, path in rows[rows["id"].isin(list(ids))].itertuples(index=False)}


def _recorded(prediction: Prediction, kind: str) -> dict[str, Any]:
    """Facts about the image (`slide` or `scan`) or its `features` that were stored with the prediction."""
    recorded = prediction.meta.get(kind)
    return recorded if isinstance(recorded, dict) else {}


def _spacing(predictions: Predictions, unit: str) -> float | None:
    """Size of one coordinate step in this unit, from the first prediction."""
    frame = next(p for p in predictions if p is not None).frame
    return frame.spacing[0] if frame is not None and frame.spacing is not None and frame.unit == unit else None


def _same_size(one: float, other: float) -> bool:
    return abs(one / other - 1) <= _SAME_SIZE


def _refuse_other_slices(id_: str, stated: np.ndarray, spacing_mm: float | None, volume: Volume) -> None:
    """Raise unless the coordinates are slice numbers of this volume and its slices lie at the recorded distance."""
    numbers = np.rint(stated).astype(np.int64)
    if np.abs(stated - numbers).max() > 1e-6 or numbers.min() < 0:
        raise DataError(f"{id_}: coordinates of a scan should count slices 0, 1, 2, …, got {stated.min():g}")
    if numbers.max() >= len(volume):
        raise DataError(f"{id_}: has a slice {numbers.max()}, but {volume.name} only {len(volume)} slices; {_ASK}")
    if spacing_mm is not None and not _same_size(spacing_mm, volume.distance_mm):
        raise DataError(
            f"{id_}: was made from slices {spacing_mm:g} mm apart, but those of {volume.name} are "
            f"{volume.distance_mm:g} mm apart; {_ASK}"
        )


def _scan_differences(recorded: dict[str, Any], volume: Volume) -> Iterator[Difference]:
    """What differs in number of slices and pixels, size of a voxel, and position of the first and last slice."""
    for what, count in zip(("slices", "rows", "columns"), volume.shape, strict=True):
        if isinstance(recorded.get(what), int) and recorded[what] != count:
            yield Difference(f"{recorded[what]} {what}", f"{count}")
    sizes = _numbers(recorded.get("spacing_mm"), 3)
    if sizes is not None and not np.allclose(sizes, volume.spacing_mm, rtol=_SAME_SIZE, atol=0):
        words = [" × ".join(f"{size:.4g}" for size in found) for found in (sizes, volume.spacing_mm)]
        yield Difference(f"voxels of {words[0]} mm", f"{words[1]} mm")
    ends, found_ends = _numbers(recorded.get("ends_mm"), 2), volume.positions_mm[[0, -1]]
    if ends is not None and not np.allclose(ends, found_ends, rtol=0, atol=_SAME_POSITION_MM):
        words = [f"{first:.1f} to {last:.1f} mm" for first, last in (ends, found_ends)]
        yield Difference(f"slices from {words[0]}", f"them from {words[1]}")


def _implied_slices(prediction: Prediction) -> int | None:
    """Number of slices of the scan behind a prediction that does not record it, where that is certain.

    `smmil prepare` makes every slice an instance and leaves none out, so 0, 1, … n - 1 of a recipe are all there were.
    """
    coords = prediction.coords
    if _recorded(prediction, "features").get("recipe") is None or coords is None or coords.shape[1] != 1:
        return None
    return prediction.n if np.array_equal(np.sort(coords[:, 0]), np.arange(prediction.n)) else None


def _numbers(values: Any, count: int) -> np.ndarray | None:
    good = isinstance(values, list | tuple) and len(values) == count and all(isinstance(v, int | float) for v in values)
    return np.array(values, np.float64) if good else None

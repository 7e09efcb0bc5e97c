"""The cases of a run: images found in folders, the table of labels, and the jobs made of both."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

import pandas as pd

from smmil.data.manifest import Manifest
from smmil.data.tables import TableColumns, as_text, read_text_table
from smmil.encoders import Encoder
from smmil.errors import ConfigError, DataError, suggest
from smmil.formats.content import begins_formula
from smmil.images.dicom_file import is_dicom, kind_of, read_tags
from smmil.images.matching import ImageSource, refuse_equal_stems, source_named
from smmil.images.opening import SUFFIXES, is_mosaic, open_slide
from smmil.images.picture_stack import is_stack
from smmil.prepare.recipe import Recipe

_SLIDES = (".svs", ".ndpi", ".mrxs", ".scn", ".bif", ".vms", ".vmu", ".svslide", ".czi", ".qptiff", *SUFFIXES)
_SCANS = (".nii", ".nii.gz")
_DICOM = (".dcm", ".dicom", ".ima")
_FEATURES = (".h5", ".hdf5", ".npz", ".npy", ".pt", ".safetensors")
_TEXTS = (".csv", ".parquet", ".xlsx", ".txt", ".xml", ".json", ".geojson", ".yaml", ".yml")
_PATCHES = ".patches.csv"
ENDINGS = _SLIDES + _SCANS + _DICOM
_LOOKS = 5
_MASKS = "masks"
_DRAWN = ("SEG", "RTSTRUCT")
_CALLED = {"slide": "slides", "ct": "scans", "mr": "MR scans", "patches": "tables of patches"}


def find_sources(roots: Iterable[str | Path], skip: Path | None = None, stacks: bool = False) -> list[ImageSource]:
    """Slides and scans in the given folders and files, in the order of their names; `skip` is our own output.

    stacks  a folder of pictures is one scan, instead of a slide for each picture
    """
    found: dict[Path, ImageSource] = {}
    folders = [Path(root) for root in roots]
    for root in folders:
        if not root.exists():
            raise DataError(f"{root}: no such file or folder")
        _refuse_no_image(root)
        for path in [root] if root.is_file() else _stacks(root, skip) if stacks else _inside(root, skip):
            if (kind := _source_kind(path)) != _MASKS:
                found.setdefault(path.resolve(), ImageSource(path, _name(path, root), kind))
    if not found:
        hint = f"looked for {', '.join(_SLIDES + _SCANS)} and DICOM files"
        if features := [path for folder in folders for path in sorted(folder.glob("*.h5"))]:
            hint = f"{features[0].name} holds features already, which a manifest brings to smmil train"
        raise DataError(f"{', '.join(map(str, folders))}: no slides or scans found; {hint}")
    return sorted(found.values(), key=lambda source: source.name)


_PLACED = re.compile(r"x\d+_y\d+", re.IGNORECASE)
_FEW_PLACED, _MANY, _SAMPLE, _LARGEST_PATCH = 20, 200, 20, 512


def patch_folder_note(folders: Sequence[Path], sources: Sequence[ImageSource]) -> str | None:
    """What to do with pictures that look like patches of slides: placed by their names, or hundreds of small ones."""
    pictures = [s.path for s in sources if s.kind == "slide" and s.path.suffix.lower() in SUFFIXES]
    placed = [path for path in pictures if _PLACED.search(path.stem)]
    by_name = len(placed) >= max(_FEW_PLACED, len(pictures) / 2)
    if not by_name and len(pictures) < _MANY:
        return None
    sample = (placed if by_name else pictures)[:: max(1, len(pictures) // _SAMPLE)]
    if any(max(_picture_size(path)) > _LARGEST_PATCH for path in sample):
        return None
    how = "with places in their names" if by_name else f"of at most {_LARGEST_PATCH} pixels"
    table = "" if by_name else " --table TABLE_OF_THEIR_PLACES"
    return (
        f"{folders[0]}: {len(pictures):,} small pictures {how} look like patches of slides ({pictures[0].name}): "
        f"smmil source patches {folders[0]}{table} --out tables puts them together and says how to go on"
    )


def _picture_size(path: Path) -> tuple[int, int]:
    """Width and height of a picture; (0, 0) of one that cannot be read, whose turn will come."""
    with suppress(DataError), open_slide(path) as picture:
        return picture.size
    return 0, 0


def _refuse_no_image(path: Path) -> None:
    """An error for a file that cannot hold pixels of a case, whatever the reading library would say about it."""
    if path.is_file() and path.suffix.lower() in _FEATURES:
        raise DataError(f"{path}: holds features or predictions, not pixels; features go to smmil train by a manifest")
    if path.is_file() and path.suffix.lower() in _TEXTS and not is_mosaic(path):
        raise DataError(f"{path}: no slide or scan; give images or folders of them, tables with --labels or --points")


def _inside(folder: Path, skip: Path | None) -> Iterator[Path]:
    """Pictures of a folder and its subfolders. A folder with DICOM files is one case."""
    if skip is not None and folder.resolve() == skip.resolve():
        return
    entries = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    files = [path for path in entries if path.is_file()]
    if _some_dicom(files):
        yield folder
    yield from (path for path in files if _ending(path) in (*_SLIDES, *_SCANS, _PATCHES))
    companions = {path.with_suffix("") for path in files if path.suffix.lower() == ".mrxs"}
    for path in entries:
        if path.is_dir() and path not in companions:
            yield from _inside(path, skip)


def _stacks(folder: Path, skip: Path | None) -> Iterator[Path]:
    """The folder and those below that hold pictures."""
    if skip is not None and folder.resolve() == skip.resolve():
        return
    if is_stack(folder):
        yield folder
    for path in sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")):
        yield from _stacks(path, skip)


def _some_dicom(files: list[Path]) -> list[Path]:
    return [path for path in files if path.suffix.lower() in _DICOM or (not path.suffix and is_dicom(path))]


def _ending(path: Path) -> str:
    double = (ending for ending in (".nii.gz", _PATCHES) if path.name.lower().endswith(ending))
    return next(double, path.suffix.lower())


def _name(path: Path, root: Path) -> str:
    relative = path.name if path == root else path.relative_to(root).as_posix()
    return relative.removesuffix(path.name[-len(_ending(path)) :]) if path.is_file() and _ending(path) else relative


def _source_kind(path: Path) -> str | None:
    """slide, patches, ct, mr or stack; masks for a folder of nothing but DICOM masks; None for a damaged file."""
    if is_mosaic(path):
        return "patches"
    if is_stack(path):
        return "stack"
    if path.is_file() and _ending(path) not in _DICOM:
        return "ct" if _ending(path) in _SCANS else "slide"
    files = [path] if path.is_file() else _some_dicom(sorted(p for p in path.iterdir() if p.is_file()))
    looked, masks = 0, 0
    for file in files:
        try:
            modality = kind_of(read_tags(file))
        except DataError:
            modality = None  # the case itself will say so when its turn comes
        if modality in _DRAWN:
            masks += 1
        elif modality is not None:
            return {"SM": "slide", "MR": "mr"}.get(modality, "ct")
        elif (looked := looked + 1) == _LOOKS:
            break
    return _MASKS if masks and not looked else None


def _common_kind(sources: list[ImageSource]) -> str:
    """What the sources are, when the user did not say; several kinds in one run are refused."""
    examples = {source.kind: source.path for source in reversed(sources) if source.kind is not None}
    if len(examples) > 1:
        found = " and ".join(f"{_CALLED[kind]} ({path})" for kind, path in sorted(examples.items(), reverse=True))
        raise ConfigError(f"both {found}; choose with --kind {' or '.join(sorted(examples, reverse=True))}")
    return next(iter(examples), "slide")


@dataclass(frozen=True)
class PrepareCase:
    """One slide, image or scan, and what the user says about it; texts are as in the table of labels.

    annotation_complete  whether everything that is not annotated is known to be free of lesions
    more                 further cells of its row that the manifest repeats: targets other than a class, covariates
    """

    id: str
    source: Path
    label: str = ""
    patient: str = ""
    split: str = ""
    mpp: float | None = None
    series: str | None = None
    tissue: Path | None = None
    annotation: Path | None = None
    annotation_kind: str = "auto"
    annotation_complete: bool = True
    instance_labels: Path | None = None
    more: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class PrepareJob:
    """A case with everything needed to prepare it in another process: plain data, no open files.

    positive         names or codes of lesions in annotations, or names in the column class of a table of points
    negatives_known  other cases are annotated, so a case of class 0 without annotation is free of lesions
    encoder          one given as an object; None: the recipe names it
    """

    case: PrepareCase
    recipe: Recipe
    recipe_digest: str
    out: Path
    points: Path | None = None
    weights: Path | None = None
    device: str = "auto"
    threads: int | None = None
    coverage: float = 0.5
    positive: tuple[str, ...] | None = None
    negatives_known: bool = False
    encoder: Encoder | None = field(default=None, repr=False)

    @property
    def bag_path(self) -> Path:
        return self.out / "bags" / f"{self.case.id}.h5"

    @property
    def preview_path(self) -> Path:
        return self.out / "previews" / f"{self.case.id}.png"

    @property
    def labels_path(self) -> Path:
        return self.out / "instance_labels" / f"{self.case.id}.csv"


@dataclass(frozen=True)
class PreparedCase:
    """What became of a case: `written`, `kept` (it was there already) or `no tissue`."""

    status: str
    instances: int = 0
    damaged: int = 0
    mpp_level0: float | None = None
    mpp_read: float | None = None
    labelled: bool = False
    notes: tuple[str, ...] = ()
    positives: int | None = None  # positive instances; None: their labels are not known
    largest_share: float | None = None  # largest annotated share of an instance; None: labels without shares
    warnings: tuple[str, ...] = ()  # what is wrong with the truth of the case, or with its windows
    edgeless: bool = False  # fewer than ten instances, and no two of them neighbours


_FILES = ("tissue", "annotation", "instance_labels")
_TEXT_COLUMNS = ("id", "path", "label", "patient", "group", "split", "mpp", "series")
_OWN = (*_TEXT_COLUMNS, "annotation_kind", "annotation_complete", *_FILES)


@dataclass(frozen=True)
class _CaseTable:
    """Cases to prepare; `missing`: ids of rows without an image, with the reason; `unlisted`: images without a row."""

    cases: tuple[PrepareCase, ...]
    missing: tuple[tuple[str, str], ...] = ()
    unlisted: tuple[Path, ...] = ()


def _cases_without_labels(
    sources: Sequence[ImageSource], mpp: float | None = None, series: str | None = None
) -> _CaseTable:
    """Every source is a case, named after its file."""
    refuse_equal_stems(sources)
    cases = [PrepareCase(_checked_id(s.stem, str(s.path)), s.path, mpp=mpp, series=series) for s in sources]
    return _CaseTable(tuple(cases))


def _cases_from_table(
    path: str | Path,
    sources: Sequence[ImageSource],
    mpp: float | None = None,
    series: str | None = None,
    columns: TableColumns | None = None,
) -> _CaseTable:
    """One case per row of a table id,label and more columns (`_OWN`); paths count from the table.

    Without `path` the id must be the name of a file without ending, or its path below the folder of slides.
    """
    path = Path(path)
    table, more = _read(path, columns or TableColumns())
    cases, missing, used = [], [], set()
    for values, others in zip(table.itertuples(index=False, name=None), more, strict=True):
        row = dict(zip(_OWN, values, strict=True))
        id_, source = row["id"], _source(row, path, sources)
        if source is None:
            near = suggest(id_, [source.stem for source in sources[:50]])
            missing.append((id_, f"{path}: no slide or scan is called {id_!r}; {near}"))
        else:
            used.add(source.resolve())
            cases.append(replace(_case(row, source, path, mpp, series), more=others))
    if not cases:
        raise DataError(missing[0][1] + f" (none of the {len(missing)} rows has an image)")
    unlisted = tuple(s.path for s in sources if s.path.resolve() not in used)
    return _CaseTable(tuple(cases), tuple(missing), unlisted)


def _read(path: Path, columns: TableColumns) -> tuple[pd.DataFrame, list[tuple[tuple[str, str], ...]]]:
    """The columns that prepare knows, and of each row the further cells that are kept."""
    table = as_text(columns.renamed(path, read_text_table(path, "give a table with the columns id, label")))
    if table.empty:
        raise DataError(f"{path}: the table has no rows; add one row per slide")
    stand_in = table.assign(path=[f"{id_}.h5" for id_ in table["id"]])
    Manifest(stand_in, name=str(path)).check_table(training=False)
    for id_ in table["id"]:
        _checked_id(id_, str(path))
    kept = columns.kept(path, table)
    if formulas := [name for name in kept if table[name].map(begins_formula).any() and not _numeric(table[name])]:
        raise DataError(f"{path}: column {formulas[0]!r} holds a formula of a spreadsheet; write its value")
    more = [tuple(zip(kept, map(str.strip, cells), strict=True)) for cells in table[kept].itertuples(index=False)]
    return table.reindex(columns=_OWN, fill_value=""), more


def _numeric(cells: pd.Series) -> bool:
    """Whether all cells are numbers or empty: -1.5 begins like a formula and is none."""
    return bool(pd.to_numeric(cells.where(cells.str.strip() != "", "0"), errors="coerce").notna().all())


def _checked_id(id_: str, where: str) -> str:
    """Check an id, which becomes a file name and a cell of tables: no path traversal, no hidden file, no formula."""
    parts = id_.split("/")
    if not id_.isprintable() or "\\" in id_ or any(not part or part.startswith(".") for part in parts):
        raise DataError(
            f"{where}: id {id_!r} cannot name a file; it may hold printable characters but no backslash, and no part "
            "between '/' may be empty or begin with a dot"
        )
    if begins_formula(id_):
        raise DataError(
            f"{where}: id {id_!r} would be a formula in a spreadsheet; give a table of labels with the columns id and "
            "path, and an id that does not begin with = + - @"
        )
    return id_


def _source(row: dict[str, str], table: Path, sources: Sequence[ImageSource]) -> Path | None:
    if row["path"]:
        given = table.parent / row["path"]
        _refuse_no_image(given)
        return given if given.exists() else source_named(row["path"], sources)
    return source_named(row["id"], sources)


def _case(row: dict[str, str], source: Path, table: Path, mpp: float | None, series: str | None) -> PrepareCase:
    id_, complete = row["id"], row["annotation_complete"]
    if row["group"] and row["patient"] and row["group"] != row["patient"]:
        raise DataError(f"{table}: {id_!r} has both a group and another patient; keep one of the two columns")
    mpp = _mpp(row["mpp"], id_, table) or mpp
    if complete.lower() not in ("", "yes", "no"):
        raise DataError(f"{table}: annotation_complete of {id_!r} is {complete!r}; expected yes or no")
    files: dict[str, Any] = {name: table.parent / row[name] if row[name] else None for name in _FILES}
    return PrepareCase(
        id_,
        source,
        row["label"],
        row["group"] or row["patient"],
        row["split"],
        mpp,
        series=row["series"] or series,
        annotation_kind=row["annotation_kind"] or "auto",
        annotation_complete=complete.lower() != "no",
        **files,
    )


def _mpp(text: str, id_: str, table: Path) -> float | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not (isfinite(value) and value > 0):
        raise DataError(f"{table}: {id_}: mpp is {text!r}; expected micrometres per pixel, such as 0.25, or nothing")
    return value

"""The table of export formats: command line, viewer and documentation read it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from smmil.errors import ConfigError, DataError
from smmil.exports.case import ExportCase
from smmil.exports.dicom import write_parametric_map, write_segmentation
from smmil.exports.geometry import boxes, slide_facts
from smmil.exports.instances import write_csv, write_geojson, write_parquet
from smmil.exports.raster import write_nifti, write_png, write_tiff

ImageNeed = Literal["never", "optional", "image", "dicom"]
ThresholdNeed = Literal["never", "optional", "needed"]


@dataclass(frozen=True)
class ExportFormat:
    """One export format: how it is written, and which cases and options it takes.

    name       value of --to
    write      function that writes one case to a path, atomically
    endings    file endings, the default one first
    content    what the file holds
    opens_in   programs that read it
    slide      whether slides can be written: "never"; "optional" with or without their image; with their "image";
               or with their "dicom" image only
    scan       the same for CT scans
    unplaced   whether cases can be written whose instances have no known positions
    threshold  whether the score threshold is used: "never", "optional" or "needed"
    sized      whether --size is used
    extra      extra of the package that the writer needs; None: none
    """

    name: str
    write: Callable[[ExportCase, Path], None]
    endings: tuple[str, ...]
    content: str
    opens_in: str
    slide: ImageNeed = "never"
    scan: ImageNeed = "never"
    unplaced: bool = False
    threshold: ThresholdNeed = "never"
    sized: bool = False
    extra: str | None = None

    @property
    def needs_image(self) -> bool:
        """Whether no case at all can be written without its image."""
        return {self.slide, self.scan} <= {"never", "image", "dicom"}

    @property
    def refers_to_dicom(self) -> bool:
        return "dicom" in (self.slide, self.scan)


FORMATS: dict[str, ExportFormat] = {}


def register_export(format_: ExportFormat) -> ExportFormat:
    """Add a format to the table; a name that is taken, or a format without a file ending, is refused."""
    if format_.name in FORMATS:
        raise ConfigError(f"export format {format_.name!r}: is registered already; choose another name")
    if not format_.endings or not all("." in ending for ending in format_.endings):
        raise ConfigError(f"export format {format_.name!r}: file endings are {format_.endings}; expected such as .csv")
    FORMATS[format_.name] = format_
    return format_


for _format in (
    ExportFormat(
        "geojson",
        write_geojson,
        (".geojson", ".json"),
        "one tile per instance; with a threshold merged regions and classes",
        "QuPath 0.4 and later, shapely",
        slide="optional",
        threshold="optional",
        extra="slides",
    ),
    ExportFormat(
        "csv",
        write_csv,
        (".csv",),
        "one row per instance; with a threshold the column `positive`",
        "pandas, R, spreadsheets",
        slide="optional",
        scan="optional",
        unplaced=True,
        threshold="optional",
    ),
    ExportFormat(
        "parquet",
        write_parquet,
        (".parquet",),
        "the same rows, typed, provenance in the metadata",
        "pandas, R, DuckDB",
        slide="optional",
        scan="optional",
        unplaced=True,
        threshold="optional",
    ),
    ExportFormat(
        "png",
        write_png,
        (".png",),
        "colours over thumbnail or slices; with a threshold only what reaches it",
        "everything",
        slide="optional",
        scan="image",
        threshold="optional",
        sized=True,
        extra="slides",
    ),
    ExportFormat(
        "tiff",
        write_tiff,
        (".tif", ".tiff"),
        "float32 pyramid of scores",
        "ASAP, ImageJ, tifffile",
        slide="optional",
        extra="slides",
    ),
    ExportFormat(
        "nifti",
        write_nifti,
        ("_heat.nii.gz", ".nii.gz", ".nii"),
        "float32 volume of scores",
        "3D Slicer, ITK-SNAP, nibabel",
        scan="image",
        extra="ct",
    ),
    ExportFormat(
        "dicom-seg",
        write_segmentation,
        ("_seg.dcm", ".dcm"),
        "binary segment of what reaches the threshold",
        "OHIF, 3D Slicer, highdicom",
        slide="dicom",
        scan="dicom",
        threshold="needed",
        extra="ct",
    ),
    ExportFormat(
        "dicom-pm",
        write_parametric_map,
        ("_map.dcm", ".dcm"),
        "parametric map of scores",
        "OHIF, 3D Slicer, highdicom",
        slide="dicom",
        scan="dicom",
        extra="ct",
    ),
):
    register_export(_format)


def possible_formats(kind: str, case: ExportCase) -> list[str]:
    """Names of the formats that a case (`slide`, `scan`, `points` or `none`) can be written to.

    `case.image` must be set only if it can be read and belongs to the case. Maps need positions in pixels.
    """
    if kind == "none" and case.prediction.coords is not None:
        return []
    placed = (kind == "slide" and _has_pixels(case)) or (kind == "scan" and case.image is not None)
    if not placed:
        return [format_.name for format_ in FORMATS.values() if format_.unplaced]
    given = _given(case.image)
    return [f.name for f in FORMATS.values() if (f.slide if kind == "slide" else f.scan) in given]


def _given(image: Path | None) -> set[ImageNeed]:
    """The image needs that are met by this image."""
    if image is None:
        return {"optional"}
    dicom = image.is_dir() or image.suffix.lower() == ".dcm"
    return {"optional", "image", "dicom"} if dicom else {"optional", "image"}


def _has_pixels(case: ExportCase) -> bool:
    """Whether the level-0 pixels of the instances are known."""
    try:
        boxes(case, slide_facts(case))
    except DataError:
        return False
    return True


_TITLES = ("`--to`", "files", "holds", "opens in", "for", "`--threshold`", "extra")


def format_table() -> str:
    """The table of formats in Markdown, for the documentation."""
    lines = ["| " + " | ".join(_TITLES) + " |", "|" + "---|" * len(_TITLES)]
    return "\n".join([*lines, *("| " + " | ".join(_cells(f)) + " |" for f in FORMATS.values())])


def _cells(format_: ExportFormat) -> tuple[str, ...]:
    endings = ", ".join(f"`{ending}`" for ending in format_.endings if ending.startswith("."))
    threshold = "" if format_.threshold == "never" else format_.threshold
    extra = "" if format_.extra is None else f"`{format_.extra}`"
    return f"`{format_.name}`", endings, format_.content, format_.opens_in, cases_of(format_), threshold, extra


def cases_of(format_: ExportFormat) -> str:
    """Which cases a format is for, in words."""
    words = {"optional": "{}", "image": "{} with --image", "dicom": "DICOM {} with --image"}
    needs = (("slides", format_.slide), ("CT", format_.scan))
    return ", ".join(words[need].format(what) for what, need in needs if need != "never")

"""The table of export formats: command line, viewer and documentation read it.

Each writer adds its own row with `register_export`, in the file in which it is written.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from smmil.errors import ConfigError, DataError
from smmil.exports.case import ExportCase
from smmil.exports.geometry import boxes, slide_facts

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

    @property
    def cases(self) -> str:
        """Which cases the format is for, in words."""
        words = {"optional": "{}", "image": "{} with --image", "dicom": "DICOM {} with --image"}
        needs = (("slides", self.slide), ("CT", self.scan))
        return ", ".join(words[need].format(what) for what, need in needs if need != "never")


FORMATS: dict[str, ExportFormat] = {}


def register_export(format_: ExportFormat) -> ExportFormat:
    """Add a format to the table; a name that is taken, or a format without a file ending, is refused."""
    if format_.name in FORMATS:
        raise ConfigError(f"export format {format_.name!r}: is registered already; choose another name")
    if not format_.endings or not all("." in ending for ending in format_.endings):
        raise ConfigError(f"export format {format_.name!r}: file endings are {format_.endings}; expected such as .csv")
    FORMATS[format_.name] = format_
    return format_


def possible_formats(kind: str, case: ExportCase) -> list[str]:
    """Names of the formats that a case (`slide`, `scan`, `points` or `none`) can be written to.

    `case.image` must be set only if it can be read and belongs to the case. Maps need positions in pixels.
    """
    if kind == "none" and case.prediction.coords is not None:
        return []
    placed = (kind == "slide" and _has_pixels(case)) or (kind == "scan" and case.image is not None)
    if not placed:
        return [format_.name for format_ in FORMATS.values() if format_.unplaced]
    met = {"optional"} if case.image is None else {"optional", "image"}
    if case.image is not None and (case.image.is_dir() or case.image.suffix.lower() == ".dcm"):
        met.add("dicom")
    return [f.name for f in FORMATS.values() if (f.slide if kind == "slide" else f.scan) in met]


def _has_pixels(case: ExportCase) -> bool:
    """Whether the level-0 pixels of the instances are known."""
    try:
        boxes(case, slide_facts(case))
    except DataError:
        return False
    return True


def format_table() -> str:
    """The table of formats in Markdown, for the documentation."""
    titles = ("`--to`", "files", "holds", "opens in", "for", "`--threshold`", "extra")
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for f in FORMATS.values():
        endings = ", ".join(f"`{ending}`" for ending in f.endings if ending.startswith("."))
        threshold, extra = "" if f.threshold == "never" else f.threshold, f"`{f.extra}`" if f.extra else ""
        lines.append(f"| `{f.name}` | {endings} | {f.content} | {f.opens_in} | {f.cases} | {threshold} | {extra} |")
    return "\n".join(lines)

"""The table of export formats, which command line, viewer and docs read; each writer registers its own row."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from smmil.errors import ConfigError, DataError
from smmil.exports.case import ExportCase
from smmil.exports.geometry import boxes, slide_facts

ImageNeed = Literal["never", "optional", "image", "dicom"]  # optional: with or without; dicom: a DICOM image only
ThresholdNeed = Literal["never", "optional", "needed"]


@dataclass(frozen=True)
class ExportFormat:
    """One export format: how it is written, and which cases and options it takes."""

    name: str  # value of --to
    write: Callable[[ExportCase, Path], None]  # writes one case to a path, atomically
    endings: tuple[str, ...]  # of files, the default one first
    content: str  # what the file holds
    opens_in: str  # programs that read it
    slide: ImageNeed = "never"  # whether slides can be written, and what image they need
    scan: ImageNeed = "never"  # the same for CT scans
    unplaced: bool = False  # whether cases can be written whose instances have no known positions
    threshold: ThresholdNeed = "never"  # whether the score threshold is used
    sized: bool = False  # whether --size is used
    extra: str | None = None  # extra of the package that the writer needs; None: none

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
    """Formats for a case (`slide`, `scan`, `points` or `none`); its image must be set only if readable and its own."""
    if kind == "none" and case.prediction.coords is not None:
        return []
    placed = kind == "scan" and case.image is not None
    if kind == "slide":
        try:
            placed = len(boxes(case, slide_facts(case))) > 0
        except DataError:  # the level-0 pixels of the instances are not known
            placed = False
    if not placed:
        return [format_.name for format_ in FORMATS.values() if format_.unplaced]
    met = {"optional"} if case.image is None else {"optional", "image"}
    if case.image is not None and (case.image.is_dir() or case.image.suffix.lower() == ".dcm"):
        met.add("dicom")
    return [f.name for f in FORMATS.values() if (f.slide if kind == "slide" else f.scan) in met]


def format_table() -> str:
    """The table of formats in Markdown, for the documentation."""
    titles = ("`--to`", "files", "holds", "opens in", "for", "`--threshold`", "extra")
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for f in FORMATS.values():
        endings = ", ".join(f"`{ending}`" for ending in f.endings if ending.startswith("."))
        threshold, extra = "" if f.threshold == "never" else f.threshold, f"`{f.extra}`" if f.extra else ""
        lines.append(f"| `{f.name}` | {endings} | {f.content} | {f.opens_in} | {f.cases} | {threshold} | {extra} |")
    return "\n".join(lines)

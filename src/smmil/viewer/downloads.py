"""Exports of one case, written into a folder of their own, de-identified, and deleted once sent."""

import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple

from smmil.errors import ConfigError
from smmil.exports import FORMATS, export, possible_formats
from smmil.files import file_name
from smmil.images.matching import Original
from smmil.prediction import Prediction
from smmil.redact import safe_text

__all__ = ["Download", "needs_threshold", "possible_formats", "write_download"]


class Download(NamedTuple):
    """A written file, the name to offer for it, and the folder to delete afterwards."""

    file: Path
    name: str
    folder: Path

    def discard(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def needs_threshold(format_: str) -> bool:
    return FORMATS[format_].threshold == "needed"


def write_download(
    prediction: Prediction,
    model: str,
    format_: str,
    *,
    scratch: Path,
    image: Original | None,
    threshold: float | None,
    column: int | None,
) -> Download:
    """The case in that format; a threshold is used where the format has a use for it."""
    if needs_threshold(format_) and threshold is None:
        raise ConfigError(f"{format_}: needs a threshold, a score above which an instance is positive; set one")
    # half a character, as broken file names have them, cannot be written into any file
    prediction = replace(prediction, id=prediction.id.encode("utf-8", "replace").decode())
    cut = None if FORMATS[format_].threshold == "never" else threshold
    folder = Path(mkdtemp(dir=scratch))
    try:
        target = folder / f"export{FORMATS[format_].endings[0]}"
        export(prediction, format_, target, image=image, threshold=cut, column=column)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    name = file_name(safe_text(f"{prediction.id}_{model}", 120)) + FORMATS[format_].endings[0]
    return Download(target, name, folder)

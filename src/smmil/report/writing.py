"""Predictions to one HTML file: the report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from smmil.errors import ConfigError
from smmil.files import write_text
from smmil.images.matching import find_originals
from smmil.images.volume import Window
from smmil.prediction import Prediction
from smmil.redact import safe_text, without_names
from smmil.report.cases import ReportCase, all_cases
from smmil.report.charts import figures
from smmil.report.document import document
from smmil.report.numbers import measure
from smmil.report.pictures import AnyPicture, all_pictures
from smmil.report.sources import load_sources

LARGEST_MB = 30.0
_SCORES_SHARE = 0.55  # of the file for scores; beyond this they are stored with 8 bits instead of 16
_PAGE_BYTES = 1_000_000  # program, style and numbers


@dataclass(frozen=True)
class WrittenReport:
    """What was written: the page, its models and number of cases, its size, and what is wrong with it.

    without_picture  {case: why its image is not shown}     damaged  {case: what of its image cannot be decoded}
    left_out         {file of predictions: why it cannot be read}
    """

    page: Path
    models: list[str]
    n_cases: int
    n_bytes: int
    without_picture: dict[str, str] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)
    left_out: dict[Path, str] = field(default_factory=dict)


def write_report(
    places: Sequence[str | Path],
    out: str | Path,
    *,
    slides: str | Path | None = None,
    validation: Sequence[str | Path] = (),
    threshold: float | None = None,
    column: int | None = None,
    resamples: int = 1000,
    title: str | None = None,
    licences: Mapping[str, str] | None = None,
    max_mb: float = LARGEST_MB,
    window: Window = "brain",
) -> WrittenReport:
    """Write one self-contained page about runs or folders of predictions.

    slides     folder of slides or scans, or CSV table (id, slide), for pictures below the maps
    licences   {encoder: its licence}, where the predictions do not state it
    max_mb     pictures are made smaller and scores coarser (8 bits) rather than pass this size
    window     how slices of CT scans are shown: a name such as brain or lung, or centre/width in HU
    """
    _refuse_folder(Path(out))
    if max_mb < 2:
        raise ConfigError(f"max_mb: got {max_mb}, expected at least 2; the page itself needs 1 MB")
    sources = load_sources(places)
    models = {source.name: source.predictions for source in sources}
    results = measure(models, validation=validation, threshold=threshold, column=column, resamples=resamples)
    room = int(max_mb * 1e6) - _PAGE_BYTES
    cases = _fitting_cases(models, column, room)
    pictures, missing = _pictures(cases, slides, room, window)
    damaged = {id_: picture.damage for id_, picture in pictures.items() if picture.damage is not None}
    text = document(
        sources,
        results,
        cases,
        pictures,
        figures(models, results, column),
        title=safe_text(title or f"Report: {', '.join(models)}"),
        licences=licences or {},
        column=column,
        missing=_to_show({**missing, **damaged}, slides),
    )
    write_text(out, text)
    left_out = {path: reason for source in sources for path, reason in source.left_out.items()}
    return WrittenReport(Path(out), list(models), len(cases), len(text.encode()), missing, damaged, left_out)


def _fitting_cases(models: Mapping[str, Sequence[Prediction]], column: int | None, room: int) -> list[ReportCase]:
    cases = all_cases(models, column)
    if _size(cases) <= _SCORES_SHARE * room:
        return cases
    return all_cases(models, column, bits=8)


def _pictures(
    cases: list[ReportCase], slides: str | Path | None, room: int, window: Window
) -> tuple[dict[str, AnyPicture], dict[str, str]]:
    return ({}, {}) if slides is None else all_pictures(cases, slides, max(0, room - _size(cases)), window)


def _to_show(reasons: dict[str, str], slides: str | Path | None) -> dict[str, str]:
    """Reasons as the page tells them: without the names of images, which only the command says."""
    files = find_originals(slides, list(reasons)) if slides is not None and reasons else {}
    return {id_: without_names(text, id_, files[id_].path) if id_ in files else text for id_, text in reasons.items()}


def _refuse_folder(out: Path) -> None:
    """Told before the work, not after it."""
    if out.is_dir():
        raise ConfigError(f"--out {out}: is a folder; name the page to write, such as {out / 'report.html'}")
    inside = next((parent for parent in out.parents if parent.exists()), out)
    if not inside.is_dir():
        raise ConfigError(f"--out {out}: {inside} is a file, not a folder; choose another place")


def _size(cases: Sequence[ReportCase]) -> int:
    return sum(len(r.packed) + 400 for case in cases for r in case.rasters if r is not None)


__all__ = ["LARGEST_MB", "WrittenReport", "write_report"]

"""DICOM Parametric Maps and Segmentations over a CT series or a slide."""

import unicodedata
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from smmil import __version__
from smmil.errors import ConfigError, DataError, MissingExtra
from smmil.exports.case import ExportCase
from smmil.exports.dicom_source import WSI_CLASS, derived_uid, slide_file, source_headers
from smmil.exports.geometry import boxes, paint, reduced_shape, reduction, scan_heat, slide_facts
from smmil.files import digest, replacing
from smmil.images.dicom_series import DicomSlices
from smmil.images.volume import Turn
from smmil.redact import plain

# Dates are compulsory; a fixed one keeps the bytes reproducible and identifies nobody.
_DATE, _TIME = "20000101", "000000"
_BASIC_PROFILE = ("113100", "Basic Application Confidentiality Profile")
_RETAINED_UIDS = ("113110", "Retain UIDs Option")


def _finish(made: Any, case: ExportCase) -> None:
    """Set provenance, de-identification marks, and fixed values in place of times and random identifiers."""
    made.DerivationDescription = _derivation(case)
    made.InstanceCreationDate = made.ContentDate = made.SeriesDate = _DATE
    made.InstanceCreationTime = made.ContentTime = made.SeriesTime = _TIME
    for equipment in made.get("ContributingEquipmentSequence", ()):
        equipment.pop("ContributionDateTime", None)
    _fix_dimension_uids(made)
    if case.deidentify:
        _mark_deidentified(made, case.keep_uids)


def _derivation(case: ExportCase) -> str:
    """Model, weights, kind of score and the rest, in at most 1024 characters."""
    return _text("; ".join(f"{key.replace('_', ' ')}: {value}" for key, value in case.facts.items()), 1024)


def _short(text: str) -> str:
    """Text for a field of at most 64 characters; a backslash would divide it in two."""
    return _text(text, 64)


def _text(text: str, longest: int) -> str:
    return plain(unicodedata.normalize("NFC", text).replace("\\", "/"), longest).strip() or "unknown"


def _fix_dimension_uids(made: Any) -> None:
    """highdicom draws this identifier at random; here it follows from that of the file."""
    uid = derived_uid("dimensions of", str(made.SOPInstanceUID))
    for item in (*made.DimensionOrganizationSequence, *made.get("DimensionIndexSequence", ())):
        item.DimensionOrganizationUID = uid


def _mark_deidentified(made: Any, keep_uids: bool) -> None:
    """PS3.15 annex E: that identities were removed, and by which profile."""
    codes = (_BASIC_PROFILE, _RETAINED_UIDS) if keep_uids else (_BASIC_PROFILE,)
    made.PatientIdentityRemoved = "YES"
    made.DeidentificationMethodCodeSequence = [_code(*code) for code in codes]
    made.DeidentificationMethod = "derived object; source headers reduced to geometry"
    made.LongitudinalTemporalInformationModified = "REMOVED"


def _code(value: str, meaning: str) -> Any:
    from pydicom.dataset import Dataset

    code: Any = Dataset()
    code.CodeValue, code.CodingSchemeDesignator, code.CodeMeaning = value, "DCM", meaning
    return code


_TILE = 256
_REFUSALS = (ValueError, TypeError, AttributeError, LookupError)


@dataclass(frozen=True, eq=False)
class Canvas:
    """Painted scores (frames, rows, columns), nan where there are none, and how they lie over the source images."""

    heat: np.ndarray
    sources: list[Any]
    layout: dict[str, Any]


def write_parametric_map(case: ExportCase, path: Path) -> None:
    """Write the scores as float32 frames over the frames of the image, marked as research, with window and meaning."""
    highdicom = _library()
    canvas = _canvas(case, None, "dicom-pm")
    low, high = float(case.score.min()), float(case.score.max())
    high = high if high > low else low + 1.0
    padding = np.float32(low - (high - low))  # one range below the scores: black in every sensible window
    mapping = highdicom.pm.RealWorldValueMapping(
        lut_label="score",
        lut_explanation=_short(case.facts.get("score_kind", "score")),
        unit=highdicom.sr.CodedConcept("1", "UCUM", "no units"),
        # Readers refuse values outside: the padding, and the zeros that fill up tiles at the edge, must be inside.
        value_range=(min(float(padding), 0.0), max(high, 0.0)),
        slope=1.0,
        intercept=0.0,
    )
    window = highdicom.VOILUTTransformation(window_center=_decimal((low + high) / 2), window_width=_decimal(high - low))
    with _highdicom_errors(case):
        made = highdicom.pm.ParametricMap(
            canvas.sources,
            np.where(np.isnan(canvas.heat), padding, canvas.heat),
            **_identity(case, canvas, "parametric map"),
            contains_recognizable_visual_features=False,
            real_world_value_mappings=[mapping],
            voi_lut_transformations=[window],
            content_label="MAP",
            content_description=_short(f"{case.facts.get('score_kind', 'score')} per instance; research use only"),
            content_qualification="RESEARCH",
            **canvas.layout,
        )
    made.FloatPixelPaddingValue = float(padding)
    _save(made, case, path)


def write_segmentation(case: ExportCase, path: Path) -> None:
    """Write the instances that reach the threshold as one binary segment; a case without any gives an empty segment."""
    if case.positive is None:
        raise ConfigError(f"{case.id}: dicom-seg shows what reaches a threshold; give --threshold")
    highdicom = _library()
    canvas = _canvas(case, np.flatnonzero(case.positive), "dicom-seg")
    if not case.positive.any():
        case.notes.append("no instance reaches the threshold: the segment is empty")
    with _highdicom_errors(case):
        made = highdicom.seg.Segmentation(
            canvas.sources,
            (~np.isnan(canvas.heat)).astype(np.uint8),
            segmentation_type="BINARY",
            segment_descriptions=[_segment(case)],
            **_identity(case, canvas, f"segmentation {case.threshold!r}"),
            content_label="SEGMENTATION",
            content_description=_short(f"score of at least {case.threshold:g}; research use only"),
            omit_empty_frames=False,
            **canvas.layout,
        )
    made.ContentQualification = "RESEARCH"
    _save(made, case, path)


def _segment(case: ExportCase) -> Any:
    import highdicom

    algorithm = highdicom.AlgorithmIdentificationSequence(
        name=_short(case.facts.get("model", "smmil")),
        family=highdicom.sr.CodedConcept("123109", "DCM", "Artificial Intelligence"),
        version=_short(case.facts.get("weights", __version__)),
    )
    return highdicom.seg.SegmentDescription(
        segment_number=1,
        segment_label="smmil positive",
        segmented_property_category=highdicom.sr.CodedConcept("49755003", "SCT", "Morphologically Abnormal Structure"),
        segmented_property_type=highdicom.sr.CodedConcept("52988006", "SCT", "Lesion"),
        algorithm_type="AUTOMATIC",
        algorithm_identification=algorithm,
    )


def _canvas(case: ExportCase, rows: np.ndarray | None, what: str) -> Canvas:
    image = case.need_image(what, "the folder of its DICOM files")
    return _slide_canvas(case, rows, image, what) if case.axes == 2 else _scan_canvas(case, rows, what)


def _scan_canvas(case: ExportCase, rows: np.ndarray | None, what: str) -> Canvas:
    """One frame per slice, pixel on pixel with the file of that slice, however it was stored."""
    volume = case.volume(what)
    if not isinstance(volume.source, DicomSlices):
        raise DataError(f"{case.image}: {what} refers to DICOM files; give the DICOM series, or export nifti")
    heat = scan_heat(case, volume, rows)
    frames = np.stack([_as_stored(volume.source.turn, picture) for picture in heat])
    return Canvas(frames, _headers(case, [h.path for h in volume.source.headers]), {})


def _as_stored(turn: Turn, picture: np.ndarray) -> np.ndarray:
    """A slice as shown turned back to the rows and columns of its file."""
    picture = picture[:: -1 if turn.flip_rows else 1, :: -1 if turn.flip_columns else 1]
    return np.ascontiguousarray(picture.T if turn.swap else picture)


def _slide_canvas(case: ExportCase, rows: np.ndarray | None, image: Path, what: str) -> Canvas:
    """The whole slide in tiles, one pixel per 2^k level-0 pixels, from the same corner of the glass."""
    import highdicom

    file = slide_file(image)
    sources = _headers(case, [file]) if file is not None else []
    if not sources or sources[0].SOPClassUID != WSI_CLASS:
        raise DataError(f"{image}: {what} refers to a DICOM slide, and this is none; convert it, or export tiff")
    facts = slide_facts(case)
    rectangles = boxes(case, facts)
    size = (int(sources[0].TotalPixelMatrixColumns), int(sources[0].TotalPixelMatrixRows))
    r, exact = reduction(rectangles, size)
    if not exact:
        case.notes.append(f"tile edges were rounded to map pixels of {r} level-0 pixels")
    chosen = np.arange(case.prediction.n) if rows is None else rows
    heat = paint(rectangles[chosen] / r, case.score[chosen], reduced_shape(size, r))
    measures = sources[0].SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0]
    spacing = highdicom.PixelMeasuresSequence(
        pixel_spacing=[float(v) * r for v in measures.PixelSpacing],
        slice_thickness=float(measures.get("SliceThickness") or 0.001),
    )
    layout = {"tile_pixel_array": True, "tile_size": (_TILE, _TILE), "pixel_measures": spacing}
    return Canvas(heat[None], sources, {**layout, "dimension_organization_type": "TILED_FULL"})


def _headers(case: ExportCase, paths: list[Path]) -> list[Any]:
    return source_headers(paths, deidentify=case.deidentify, keep_uids=case.keep_uids)


def _identity(case: ExportCase, canvas: Canvas, what: str) -> dict[str, Any]:
    """Identifiers that follow from the source, the scores and the model; equipment; a place in the study."""
    key = digest(what, _derivation(case), *(str(s.SOPInstanceUID) for s in canvas.sources), canvas.heat.tobytes())
    return {
        "series_instance_uid": derived_uid("series", key),
        "series_number": 9000 + int(key[:3], 16) % 900,
        "sop_instance_uid": derived_uid("instance", key),
        "instance_number": 1,
        "manufacturer": "smmil",
        "manufacturer_model_name": _short(case.facts.get("model", "smmil")),
        "software_versions": f"smmil {__version__}",
        "device_serial_number": _short(case.facts.get("weights", "unknown")),
        "series_description": _short(f"smmil {case.facts.get('model', '')} {what.split()[0]}; research use only"),
    }


def _save(made: Any, case: ExportCase, path: Path) -> None:
    _finish(made, case)
    with replacing(path) as temporary:
        made.save_as(temporary)


def _decimal(value: float) -> float:
    """Rounded to what DICOM's decimal strings of 16 characters hold."""
    return float(f"{value:.8g}")


def _library() -> Any:
    try:
        import highdicom
    except ModuleNotFoundError:
        raise MissingExtra("highdicom", "ct", "writing DICOM maps") from None
    return highdicom


@contextmanager
def _highdicom_errors(case: ExportCase) -> Iterator[None]:
    """Turn what highdicom raises about a source image into a DataError that names the image."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except _REFUSALS as problem:
        # A stripped header holds nothing personal, so the message may be repeated; else only its type.
        reason = " ".join(str(problem).split()) if case.deidentify else type(problem).__name__
        raise DataError(f"{case.image}: no DICOM map can refer to it ({reason}); export the image again") from None

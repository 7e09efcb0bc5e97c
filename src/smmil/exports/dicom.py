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
from smmil.exports.dicom_source import WSI_CLASS, _code, _derived_uid, _slide_file, _source_header
from smmil.exports.geometry import ALL, Rows, _slide_heat, boxes, scan_heat, slide_facts
from smmil.exports.registry import ExportFormat, register_export
from smmil.files import digest, replacing
from smmil.images.dicom_series import DicomSlices
from smmil.images.volume import Turn
from smmil.redact import plain

# Dates are compulsory; a fixed one keeps the bytes reproducible and identifies nobody.
_DATE, _TIME = "20000101", "000000"
_BASIC_PROFILE = ("113100", "Basic Application Confidentiality Profile")
_RETAINED_UIDS = ("113110", "Retain UIDs Option")


def _save(made: Any, case: ExportCase, path: Path) -> None:
    """Write the file with provenance, de-identification marks, and fixed values for times and random identifiers."""
    made.DerivationDescription = _derivation(case)
    made.InstanceCreationDate = made.ContentDate = made.SeriesDate = _DATE
    made.InstanceCreationTime = made.ContentTime = made.SeriesTime = _TIME
    for equipment in made.get("ContributingEquipmentSequence", ()):
        equipment.pop("ContributionDateTime", None)
    uid = _derived_uid("dimensions of", str(made.SOPInstanceUID))  # highdicom draws this one at random
    for item in (*made.DimensionOrganizationSequence, *made.get("DimensionIndexSequence", ())):
        item.DimensionOrganizationUID = uid
    if case.deidentify:  # PS3.15 annex E: that identities were removed, and by which profile
        codes = (_BASIC_PROFILE, _RETAINED_UIDS) if case.keep_uids else (_BASIC_PROFILE,)
        made.PatientIdentityRemoved = "YES"
        made.DeidentificationMethodCodeSequence = [_code(value, "DCM", meaning) for value, meaning in codes]
        made.DeidentificationMethod = "derived object; source headers reduced to geometry"
        made.LongitudinalTemporalInformationModified = "REMOVED"
    with replacing(path) as temporary:
        made.save_as(temporary)


def _derivation(case: ExportCase) -> str:
    """Model, weights, kind of score and the rest, in at most 1024 characters."""
    return _text("; ".join(f"{key.replace('_', ' ')}: {value}" for key, value in case.facts.items()), 1024)


def _text(text: str, longest: int = 64) -> str:
    """Text for a field of at most that many characters; a backslash would divide it in two."""
    return plain(unicodedata.normalize("NFC", text).replace("\\", "/"), longest).strip() or "unknown"


_TILE = 256
_REFUSALS = (ValueError, TypeError, AttributeError, LookupError)


@dataclass(frozen=True, eq=False)
class _Canvas:
    """Painted scores (frames, rows, columns), nan where there are none, and how they lie over the source images."""

    heat: np.ndarray
    sources: list[Any]
    layout: dict[str, Any]


def _write_segmentation(case: ExportCase, path: Path) -> None:
    """Write the instances that reach the threshold as one binary segment; a case without any gives an empty segment."""
    if case.positive is None:
        raise ConfigError(f"{case.id}: dicom-seg shows what reaches a threshold; give --threshold")
    highdicom = _library()
    canvas = _canvas(case, case.positive, "dicom-seg")
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
            content_description=_text(f"score of at least {case.threshold:g}; research use only"),
            omit_empty_frames=False,
            **canvas.layout,
        )
    made.ContentQualification = "RESEARCH"
    _save(made, case, path)


register_export(ExportFormat(
    "dicom-seg", _write_segmentation, ("_seg.dcm", ".dcm"), "binary segment of what reaches the threshold",
    "OHIF, 3D Slicer, highdicom", slide="dicom", scan="dicom", threshold="needed", extra="ct",
))  # fmt: skip


def _write_parametric_map(case: ExportCase, path: Path) -> None:
    """Write the scores as float32 frames over the frames of the image, marked as research, with window and meaning."""
    highdicom = _library()
    canvas = _canvas(case, ALL, "dicom-pm")
    low, high = case.ends
    high = high if high > low else low + 1.0
    padding = np.float32(low - (high - low))  # one range below the scores: black in every sensible window
    mapping = highdicom.pm.RealWorldValueMapping(
        lut_label=case.layer,
        lut_explanation=_text(case.facts.get("score_kind", "score")),
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
            content_description=_text(f"{case.facts.get('score_kind', 'score')} per instance; research use only"),
            content_qualification="RESEARCH",
            **canvas.layout,
        )
    made.FloatPixelPaddingValue = float(padding)
    _save(made, case, path)


register_export(ExportFormat(
    "dicom-pm", _write_parametric_map, ("_map.dcm", ".dcm"), "parametric map of scores", "OHIF, 3D Slicer, highdicom",
    slide="dicom", scan="dicom", extra="ct",
))  # fmt: skip


def _segment(case: ExportCase) -> Any:
    import highdicom

    algorithm = highdicom.AlgorithmIdentificationSequence(
        name=_text(case.facts.get("model", "smmil")),
        family=highdicom.sr.CodedConcept("123109", "DCM", "Artificial Intelligence"),
        version=_text(case.facts.get("weights", __version__)),
    )
    return highdicom.seg.SegmentDescription(
        segment_number=1,
        segment_label="smmil positive",
        segmented_property_category=highdicom.sr.CodedConcept("49755003", "SCT", "Morphologically Abnormal Structure"),
        segmented_property_type=highdicom.sr.CodedConcept("52988006", "SCT", "Lesion"),
        algorithm_type="AUTOMATIC",
        algorithm_identification=algorithm,
    )


def _canvas(case: ExportCase, rows: Rows, what: str) -> _Canvas:
    image = case.need_image(what, "the folder of its DICOM files")
    return _slide_canvas(case, rows, image, what) if case.axes == 2 else _scan_canvas(case, rows, what)


def _scan_canvas(case: ExportCase, rows: Rows, what: str) -> _Canvas:
    """One frame per slice, pixel on pixel with the file of that slice, however it was stored."""
    volume = case.volume(what)
    if not isinstance(volume.source, DicomSlices):
        raise DataError(f"{case.image}: {what} refers to DICOM files; give the DICOM series, or export nifti")
    if any(header.frame is not None for header in volume.source.headers):
        raise DataError(f"{case.image}: {what} over a multi-frame (enhanced) file is not written; export nifti")
    heat = scan_heat(case, volume, rows)
    frames = np.stack([_as_stored(volume.source.turn, picture) for picture in heat])
    return _Canvas(frames, [_source_header(case, h.path) for h in volume.source.headers], {})


def _as_stored(turn: Turn, picture: np.ndarray) -> np.ndarray:
    """A slice as shown turned back to the rows and columns of its file."""
    picture = picture[:: -1 if turn.flip_rows else 1, :: -1 if turn.flip_columns else 1]
    return np.ascontiguousarray(picture.T if turn.swap else picture)


def _slide_canvas(case: ExportCase, rows: Rows, image: Path, what: str) -> _Canvas:
    """The whole slide in tiles, one pixel per 2^k level-0 pixels, from the same corner of the glass."""
    import highdicom

    file = _slide_file(image)
    sources = [] if file is None else [_source_header(case, file)]
    if not sources or sources[0].SOPClassUID != WSI_CLASS:
        raise DataError(f"{image}: {what} refers to a DICOM slide, and this is none; convert it, or export tiff")
    size = (int(sources[0].TotalPixelMatrixColumns), int(sources[0].TotalPixelMatrixRows))
    heat, r, _ = _slide_heat(case, boxes(case, slide_facts(case)), size, rows)
    measures = sources[0].SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0]
    spacing = highdicom.PixelMeasuresSequence(
        pixel_spacing=[float(v) * r for v in measures.PixelSpacing],
        slice_thickness=float(measures.get("SliceThickness") or 0.001),
    )
    layout = {"tile_pixel_array": True, "tile_size": (_TILE, _TILE), "pixel_measures": spacing}
    return _Canvas(heat[None], sources, {**layout, "dimension_organization_type": "TILED_FULL"})


def _identity(case: ExportCase, canvas: _Canvas, what: str) -> dict[str, Any]:
    """Identifiers that follow from the source, the scores and the model; equipment; a place in the study."""
    sources = (str(source.SOPInstanceUID) for source in canvas.sources)
    key = digest(what, _derivation(case), *sources, canvas.heat.tobytes())
    return {
        "series_instance_uid": _derived_uid("series", key),
        "series_number": 9000 + int(key[:3], 16) % 900,
        "sop_instance_uid": _derived_uid("instance", key),
        "instance_number": 1,
        "manufacturer": "smmil",
        "manufacturer_model_name": _text(case.facts.get("model", "smmil")),
        "software_versions": f"smmil {__version__}",
        "device_serial_number": _text(case.facts.get("weights", "unknown")),
        "series_description": _text(f"smmil {case.facts.get('model', '')} {what.split()[0]}; research use only"),
    }


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

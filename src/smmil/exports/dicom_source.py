"""Headers of the images that a DICOM export refers to, stripped to geometry and identifiers.

What is kept is listed here by name, and numbers are parsed and formatted again, so that nothing else in a source file,
known or private, can reach an export.
"""

import re
from pathlib import Path
from typing import Any

from smmil.errors import DataError, MissingExtra
from smmil.exports.case import ExportCase
from smmil.files import digest
from smmil.images.dicom_file import dicom_errors, is_dicom
from smmil.images.opening import largest_level

WSI_CLASS = "1.2.840.10008.5.1.4.1.1.77.1.6"
_UIDS = ("StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID", "FrameOfReferenceUID")
_WHOLE = ("Rows", "Columns", "NumberOfFrames", "TotalPixelMatrixRows", "TotalPixelMatrixColumns")
_DECIMALS = {
    **{"PixelSpacing": 2, "SliceThickness": 1, "SpacingBetweenSlices": 1},
    **{"ImagePositionPatient": 3, "ImageOrientationPatient": 6, "ImageOrientationSlide": 6},
    **{"XOffsetInSlideCoordinateSystem": 1, "YOffsetInSlideCoordinateSystem": 1},
}
# Compulsory in what is derived, but telling who the patient is: empty.
_EMPTY = (
    *("PatientName", "PatientID", "PatientBirthDate", "PatientSex", "StudyDate", "StudyTime", "StudyID"),
    *("AccessionNumber", "ReferringPhysicianName", "PositionReferenceIndicator"),
)
ANONYMOUS = "ANONYMOUS"


def _slide_file(path: Path) -> Path | None:
    """The file of level 0 of a DICOM slide; None when the path is something else."""
    if path.is_dir():
        return largest_level(path)
    return path if path.is_file() and is_dicom(path) else None


def _derived_uid(*parts: str) -> str:
    """An identifier that follows from the parts and does not reveal them."""
    return f"2.25.{int(digest(*parts)[:32], 16)}"


def _source_header(case: ExportCase, path: Path) -> Any:
    """The pydicom dataset of a file, without pixels: only what an export needs, or all when that was asked for."""
    try:
        from pydicom import dcmread
    except ModuleNotFoundError:
        raise MissingExtra("pydicom", "ct", "reading DICOM") from None
    with dicom_errors(path):
        if path.exists() and not path.is_file():
            raise DataError("is no regular file; give the file itself")
        source = dcmread(path, stop_before_pixels=True)
        if case.deidentify:
            return _stripped(source, case.keep_uids)
        for name in _EMPTY:
            if name not in source:
                setattr(source, name, "")
        return source


def _stripped(source: Any, keep_uids: bool) -> Any:
    from pydicom.dataset import Dataset

    kept: Any = Dataset()
    for name in _EMPTY:
        setattr(kept, name, "")
    kept.SpecificCharacterSet = "ISO_IR 192"
    kept.SOPClassUID = _uid(source, "SOPClassUID")
    kept.Modality = "SM" if kept.SOPClassUID == WSI_CLASS else "CT"
    for name in _UIDS:
        setattr(kept, name, _known_as(source, name, keep_uids))
    kept.PatientName, kept.PatientID = ANONYMOUS, f"{ANONYMOUS}-{digest(kept.StudyInstanceUID)[:8]}"
    _copy_numbers(source, kept)
    _copy_compression(source, kept)
    if kept.Modality == "SM":
        _copy_slide(source, kept)
    return kept


def _known_as(source: Any, name: str, keep_uids: bool) -> str:
    """The identifier itself, or one that stands for it everywhere."""
    if name == "FrameOfReferenceUID" and not source.get(name):
        return _derived_uid("frame of", _uid(source, "SeriesInstanceUID"))
    uid = _uid(source, name)
    return uid if keep_uids else _derived_uid("stands for", uid)


def _uid(source: Any, name: str) -> str:
    value = str(source.get(name, ""))
    if not re.fullmatch(r"[0-9.]{1,64}", value):
        raise DataError(f"{name} is missing or no identifier; export the image again with full headers")
    return value


def _copy_numbers(source: Any, kept: Any) -> None:
    for name in _WHOLE:
        if source.get(name) is not None:
            setattr(kept, name, int(source.get(name)))
    for name, count in _DECIMALS.items():
        if source.get(name) not in (None, ""):
            setattr(kept, name, _numbers(source.get(name), name, count))


def _numbers(value: Any, name: str, count: int) -> Any:
    """Numbers as pydicom wants them, in at most 16 characters."""
    values = [float(v) for v in value] if count > 1 else [float(value)]
    if len(values) != count:
        raise DataError(f"{name} has {len(values)} numbers, expected {count}; export the image again")
    texts = [text if len(text := repr(v)) <= 16 else f"{v:.9g}" for v in values]
    return texts if count > 1 else texts[0]


def _copy_compression(source: Any, kept: Any) -> None:
    """Whether pixels were lost on the way, which an image derived from them has to say too."""
    kept.LossyImageCompression = "00"
    if source.get("LossyImageCompression") != "01":
        return
    ratio, method = source.get("LossyImageCompressionRatio"), str(source.get("LossyImageCompressionMethod", ""))
    if ratio not in (None, "") and isinstance(ratio, int | float | str) and re.fullmatch(r"ISO_[0-9_]{1,12}", method):
        kept.LossyImageCompression, kept.LossyImageCompressionMethod = "01", method
        kept.LossyImageCompressionRatio = f"{float(ratio):.6g}"


def _copy_slide(source: Any, kept: Any) -> None:
    """Place of the pixels on the glass; a container and a specimen without a name."""
    from pydicom.dataset import Dataset

    origin: Any = Dataset()
    _copy_numbers(source.TotalPixelMatrixOriginSequence[0], origin)
    measures: Any = Dataset()
    _copy_numbers(source.SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0], measures)
    shared: Any = Dataset()
    shared.PixelMeasuresSequence = [measures]
    kept.TotalPixelMatrixOriginSequence, kept.SharedFunctionalGroupsSequence = [origin], [shared]
    kept.DimensionOrganizationType = (
        "TILED_FULL" if "PerFrameFunctionalGroupsSequence" not in source else "TILED_SPARSE"
    )
    kept.PositionReferenceIndicator = "SLIDE_CORNER"
    kept.ImageType = ["DERIVED", "PRIMARY", "VOLUME", "NONE"]
    specimen: Any = Dataset()
    specimen.SpecimenIdentifier, specimen.SpecimenUID = ANONYMOUS, _derived_uid("specimen of", kept.SeriesInstanceUID)
    specimen.IssuerOfTheSpecimenIdentifierSequence, specimen.SpecimenPreparationSequence = [], []
    kept.ContainerIdentifier, kept.IssuerOfTheContainerIdentifierSequence = ANONYMOUS, []
    kept.ContainerTypeCodeSequence = [_code("433466003", "SCT", "Microscope slide")]
    kept.SpecimenDescriptionSequence = [specimen]


def _code(value: str, scheme: str, meaning: str) -> Any:
    from pydicom.dataset import Dataset

    code: Any = Dataset()
    code.CodeValue, code.CodingSchemeDesignator, code.CodeMeaning = value, scheme, meaning
    return code

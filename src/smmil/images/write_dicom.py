"""Writing a slide as DICOM: one VL Whole Slide Microscopy instance per level, frames in TILED_FULL order."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from smmil.errors import MissingExtra
from smmil.files import digest, replacing

_WSI_CLASS = "1.2.840.10008.5.1.4.1.1.77.1.6"
_JPEG_QUALITY = 90
# Dates are compulsory in DICOM; a fixed one keeps the bytes reproducible and belongs to nobody.
_DATE, _TIME = "20000101", "000000"


def write_dicom(folder: Path, levels: list[np.ndarray], *, mpp: float, tile: int, compression: str) -> None:
    """Fill `folder` with level_0.dcm, level_1.dcm, …; identifiers are derived from the pixels."""
    try:
        import pydicom  # noqa: F401
    except ModuleNotFoundError:
        raise MissingExtra("pydicom", "slides", "writing DICOM slides") from None
    folder.mkdir(parents=True, exist_ok=True)
    key = digest(levels[0].tobytes(), f"{levels[0].shape} {mpp!r} {tile} {compression}")
    for depth, level in enumerate(levels):
        dataset = _instance(level, levels[0], depth, mpp, key)
        _add_pixels(dataset, level, tile, compression)
        with replacing(folder / f"level_{depth}.dcm") as temporary:
            dataset.save_as(temporary, enforce_file_format=True)


def _instance(level: np.ndarray, base: np.ndarray, depth: int, mpp: float, key: str) -> Any:
    """Everything but the pixels: whose slide, which level, how large."""
    kind = ["ORIGINAL", "PRIMARY", "VOLUME", "NONE"] if depth == 0 else ["DERIVED", "PRIMARY", "VOLUME", "RESAMPLED"]
    dataset = _filled(**_study(key), **_series(key, depth, kind), **_geometry(level, base, mpp, kind), **_optics())
    dataset.file_meta = _file_meta(dataset.SOPInstanceUID)
    return dataset


def _filled(**attributes: Any) -> Any:
    from pydicom.dataset import Dataset

    dataset = Dataset()
    for name, value in attributes.items():
        setattr(dataset, name, value)
    return dataset


def _file_meta(instance: str) -> Any:
    from pydicom.dataset import FileMetaDataset

    meta: Any = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = _WSI_CLASS, instance
    # Set here, or the writing library puts its own version into the file.
    meta.ImplementationClassUID, meta.ImplementationVersionName = _uid("smmil"), "SMMIL"
    return meta


def _uid(*parts: Any) -> str:
    """An identifier under the root for derived UUIDs: the same parts, the same identifier."""
    return f"2.25.{int(digest(*(str(part) for part in parts))[:32], 16)}"


def _study(key: str) -> dict[str, Any]:
    return {
        "SOPClassUID": _WSI_CLASS,
        "StudyInstanceUID": _uid(key, "study"),
        "StudyID": "1",
        "StudyDate": _DATE,
        "StudyTime": _TIME,
        "AccessionNumber": "",
        "ReferringPhysicianName": "",
        "PatientName": "SYNTHETIC^SLIDE",
        "PatientID": "SYNTHETIC",
        "PatientBirthDate": "",
        "PatientSex": "",
        "ContainerIdentifier": "SYNTHETIC",
        "IssuerOfTheContainerIdentifierSequence": [],
        "ContainerTypeCodeSequence": [_code("433466003", "SCT", "Microscope slide")],
        "SpecimenDescriptionSequence": [_specimen(key)],
    }


def _specimen(key: str) -> Any:
    return _filled(
        SpecimenIdentifier="SYNTHETIC",
        SpecimenUID=_uid(key, "specimen"),
        IssuerOfTheSpecimenIdentifierSequence=[],
        SpecimenPreparationSequence=[],
    )


def _series(key: str, depth: int, kind: list[str]) -> dict[str, Any]:
    return {
        "SOPInstanceUID": _uid(key, "instance", depth),
        "SeriesInstanceUID": _uid(key, "series"),
        "FrameOfReferenceUID": _uid(key, "frame"),
        "PyramidUID": _uid(key, "pyramid"),
        "PositionReferenceIndicator": "SLIDE_CORNER",
        "Modality": "SM",
        "SeriesNumber": 1,
        "InstanceNumber": depth + 1,
        "ContentDate": _DATE,
        "ContentTime": _TIME,
        "AcquisitionDateTime": _DATE + _TIME,
        "Manufacturer": "synthetic",
        "ManufacturerModelName": "synthetic",
        "DeviceSerialNumber": "0",
        "SoftwareVersions": "1",
        "ImageType": kind,
        "VolumetricProperties": "VOLUME",
        "SpecimenLabelInImage": "NO",
        "BurnedInAnnotation": "NO",
        "FocusMethod": "AUTO",
        "ExtendedDepthOfField": "NO",
    }


def _geometry(level: np.ndarray, base: np.ndarray, mpp: float, kind: list[str]) -> dict[str, Any]:
    """Sizes in millimetres; the pixel spacing is that of level 0 times the exact shrinkage of this level."""
    height, width = level.shape[:2]
    full = [side * mpp / 1000 for side in base.shape[:2]]
    spacing = [f"{full[0] / height:.12g}", f"{full[1] / width:.12g}"]
    measures = _filled(PixelSpacing=spacing, SliceThickness="0.001", SpacingBetweenSlices="0.001")
    frames = _filled(FrameType=kind)
    origin = _filled(XOffsetInSlideCoordinateSystem="0", YOffsetInSlideCoordinateSystem="0")
    return {
        "TotalPixelMatrixColumns": width,
        "TotalPixelMatrixRows": height,
        "TotalPixelMatrixFocalPlanes": 1,
        "TotalPixelMatrixOriginSequence": [origin],
        "ImageOrientationSlide": [0, -1, 0, -1, 0, 0],
        "ImagedVolumeWidth": full[1],
        "ImagedVolumeHeight": full[0],
        "ImagedVolumeDepth": 0.001,
        "SharedFunctionalGroupsSequence": [
            _filled(PixelMeasuresSequence=[measures], WholeSlideMicroscopyImageFrameTypeSequence=[frames])
        ],
        "DimensionOrganizationType": "TILED_FULL",
        "DimensionOrganizationSequence": [],
    }


def _optics() -> dict[str, Any]:
    path = _filled(
        OpticalPathIdentifier="1",
        IlluminationTypeCodeSequence=[_code("111744", "DCM", "Brightfield illumination")],
        IlluminationColorCodeSequence=[_code("414298005", "SCT", "Full Spectrum")],
    )
    return {"NumberOfOpticalPaths": 1, "OpticalPathSequence": [path]}


def _code(value: str, scheme: str, meaning: str) -> Any:
    return _filled(CodeValue=value, CodingSchemeDesignator=scheme, CodeMeaning=meaning)


def _add_pixels(dataset: Any, level: np.ndarray, tile: int, compression: str) -> None:
    from pydicom.encaps import encapsulate
    from pydicom.uid import ExplicitVRLittleEndian, JPEGBaseline8Bit

    frames = list(_frames(level, tile))
    jpeg = compression == "jpeg"
    dataset.NumberOfFrames = len(frames)
    dataset.Rows = dataset.Columns = tile
    dataset.SamplesPerPixel, dataset.PlanarConfiguration, dataset.PixelRepresentation = 3, 0, 0
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 8, 8, 7
    dataset.PhotometricInterpretation = "YBR_FULL_422" if jpeg else "RGB"
    dataset.LossyImageCompression = "01" if jpeg else "00"
    dataset.file_meta.TransferSyntaxUID = JPEGBaseline8Bit if jpeg else ExplicitVRLittleEndian
    if jpeg:
        coded = [_jpeg(frame) for frame in frames]
        dataset.LossyImageCompressionMethod = "ISO_10918_1"
        dataset.LossyImageCompressionRatio = f"{level.nbytes / sum(map(len, coded)):.4g}"
        dataset.PixelData = encapsulate(coded)
    else:
        raw = b"".join(frame.tobytes() for frame in frames)
        dataset.PixelData = raw + b"\0" * (len(raw) % 2)
    dataset["PixelData"].VR = "OB"


def _frames(level: np.ndarray, tile: int) -> Iterator[np.ndarray]:
    """Tiles row by row; those at the right and lower edge are filled with white."""
    height, width = level.shape[:2]
    for top in range(0, height, tile):
        for left in range(0, width, tile):
            frame = np.full((tile, tile, 3), 255, np.uint8)
            part = level[top : top + tile, left : left + tile]
            frame[: part.shape[0], : part.shape[1]] = part
            yield frame


def _jpeg(frame: np.ndarray) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, "JPEG", quality=_JPEG_QUALITY, subsampling="4:2:2")
    return buffer.getvalue()

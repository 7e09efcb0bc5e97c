"""Writers of pyramidal slides (TIFF and DICOM) that scanner readers open.

The same input always gives the same bytes: no dates, no random identifiers, no program versions.
"""

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from smmil.errors import ConfigError, DataError, MissingExtra, check_choice
from smmil.files import digest, replacing

_WSI_CLASS = "1.2.840.10008.5.1.4.1.1.77.1.6"
# Dates are compulsory in DICOM; a fixed one keeps the bytes reproducible.
_DATE, _TIME = "20000101", "000000"
_FLAVOURS = ("aperio", "generic", "leica", "dicom")
_COMPRESSIONS = ("jpeg", "none")
_JPEG_QUALITY = 90


def _write_dicom(folder: Path, levels: list[np.ndarray], *, mpp: float, tile: int, compression: str) -> None:
    """Fill `folder` with level_0.dcm, level_1.dcm, …; identifiers are derived from the pixels."""
    try:
        import pydicom  # noqa: F401
    except ModuleNotFoundError:
        raise MissingExtra("pydicom", "slides", "writing DICOM slides") from None
    folder.mkdir(parents=True, exist_ok=True)
    key = digest(levels[0].tobytes(), f"{levels[0].shape} {mpp!r} {tile} {compression}")
    for depth, level in enumerate(levels):
        kind = ["DERIVED", "PRIMARY", "VOLUME", "RESAMPLED"] if depth else ["ORIGINAL", "PRIMARY", "VOLUME", "NONE"]
        dataset = _dicom_file(**_study(key), **_series(key, depth, kind), **_geometry(level, levels[0], mpp, kind))
        _add_pixels(dataset, level, tile, compression)
        with replacing(folder / f"level_{depth}.dcm") as temporary:
            dataset.save_as(temporary, enforce_file_format=True)


def _dicom_dataset(**attributes: Any) -> Any:
    """A pydicom data set with these attributes."""
    from pydicom.dataset import Dataset

    dataset = Dataset()
    for name, value in attributes.items():
        setattr(dataset, name, value)
    return dataset


def _dicom_file(**attributes: Any) -> Any:
    """A data set with the header of a file for it."""
    from pydicom.dataset import FileMetaDataset

    dataset = _dicom_dataset(**attributes)
    meta: Any = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = dataset.SOPClassUID, dataset.SOPInstanceUID
    # Set here, or the writing library puts its own version into the file.
    meta.ImplementationClassUID, meta.ImplementationVersionName = _derived_uid("smmil"), "SMMIL"
    dataset.file_meta = meta
    return dataset


def _derived_uid(*parts: Any) -> str:
    """An identifier under the root for derived UUIDs: the same parts, the same identifier."""
    return f"2.25.{int(digest(*(str(part) for part in parts))[:32], 16)}"


def _study(key: str) -> dict[str, Any]:
    """Patient, study, specimen and optics: the same for all levels."""
    specimen = _dicom_dataset(
        SpecimenIdentifier="SYNTHETIC",
        SpecimenUID=_derived_uid(key, "specimen"),
        IssuerOfTheSpecimenIdentifierSequence=[],
        SpecimenPreparationSequence=[],
    )
    path = _dicom_dataset(
        OpticalPathIdentifier="1",
        IlluminationTypeCodeSequence=[_code("111744", "DCM", "Brightfield illumination")],
        IlluminationColorCodeSequence=[_code("414298005", "SCT", "Full Spectrum")],
    )
    return {
        "SOPClassUID": _WSI_CLASS,
        "StudyInstanceUID": _derived_uid(key, "study"),
        "StudyID": "1",
        "StudyDate": _DATE,
        "StudyTime": _TIME,
        **dict.fromkeys(("AccessionNumber", "ReferringPhysicianName", "PatientBirthDate", "PatientSex"), ""),
        "PatientName": "SYNTHETIC^SLIDE",
        **dict.fromkeys(("PatientID", "ContainerIdentifier"), "SYNTHETIC"),
        "IssuerOfTheContainerIdentifierSequence": [],
        "ContainerTypeCodeSequence": [_code("433466003", "SCT", "Microscope slide")],
        "SpecimenDescriptionSequence": [specimen],
        "NumberOfOpticalPaths": 1,
        "OpticalPathSequence": [path],
    }


def _series(key: str, depth: int, kind: list[str]) -> dict[str, Any]:
    return {
        "SOPInstanceUID": _derived_uid(key, "instance", depth),
        "SeriesInstanceUID": _derived_uid(key, "series"),
        "FrameOfReferenceUID": _derived_uid(key, "frame"),
        "PyramidUID": _derived_uid(key, "pyramid"),
        "PositionReferenceIndicator": "SLIDE_CORNER",
        "Modality": "SM",
        "SeriesNumber": 1,
        "InstanceNumber": depth + 1,
        "ContentDate": _DATE,
        "ContentTime": _TIME,
        "AcquisitionDateTime": _DATE + _TIME,
        **dict.fromkeys(("Manufacturer", "ManufacturerModelName"), "synthetic"),
        "DeviceSerialNumber": "0",
        "SoftwareVersions": "1",
        "ImageType": kind,
        "VolumetricProperties": "VOLUME",
        **dict.fromkeys(("SpecimenLabelInImage", "BurnedInAnnotation", "ExtendedDepthOfField"), "NO"),
        "FocusMethod": "AUTO",
    }


def _geometry(level: np.ndarray, base: np.ndarray, mpp: float, kind: list[str]) -> dict[str, Any]:
    """Sizes in millimetres; the pixel spacing is that of level 0 times the exact shrinkage of this level."""
    height, width = level.shape[:2]
    full = [side * mpp / 1000 for side in base.shape[:2]]
    spacing = [f"{full[0] / height:.12g}", f"{full[1] / width:.12g}"]
    measures = _dicom_dataset(PixelSpacing=spacing, SliceThickness="0.001", SpacingBetweenSlices="0.001")
    groups = {"PixelMeasuresSequence": [measures]}
    groups["WholeSlideMicroscopyImageFrameTypeSequence"] = [_dicom_dataset(FrameType=kind)]
    origin = _dicom_dataset(XOffsetInSlideCoordinateSystem="0", YOffsetInSlideCoordinateSystem="0")
    return {
        "TotalPixelMatrixColumns": width,
        "TotalPixelMatrixRows": height,
        "TotalPixelMatrixFocalPlanes": 1,
        "TotalPixelMatrixOriginSequence": [origin],
        "ImageOrientationSlide": [0, -1, 0, -1, 0, 0],
        "ImagedVolumeWidth": full[1],
        "ImagedVolumeHeight": full[0],
        "ImagedVolumeDepth": 0.001,
        "SharedFunctionalGroupsSequence": [_dicom_dataset(**groups)],
        "DimensionOrganizationType": "TILED_FULL",
        "DimensionOrganizationSequence": [],
    }


def _code(value: str, scheme: str, meaning: str) -> Any:
    return _dicom_dataset(CodeValue=value, CodingSchemeDesignator=scheme, CodeMeaning=meaning)


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
        coded = []
        for frame in frames:
            buffer = io.BytesIO()
            Image.fromarray(frame).save(buffer, "JPEG", quality=_JPEG_QUALITY, subsampling="4:2:2")
            coded.append(buffer.getvalue())
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


def write_pyramid(
    path: str | Path,
    image: np.ndarray | Sequence[np.ndarray],
    *,
    mpp: float | None,
    flavour: str = "aperio",
    factors: Sequence[int] = (1, 4, 16),
    tile: int = 256,
    bounds_offset: tuple[int, int] | None = None,
    compression: str = "jpeg",
) -> Path:
    """Write a slide: an RGB image (shrunk by `factors`) or its levels, largest first; gives the path back.

    aperio   TIFF as Aperio scanners write it (.svs), with MPP and AppMag in the description
    generic  tiled TIFF with the pixel size in its resolution tags
    leica    Leica SCN (BigTIFF with XML): the only one of these formats whose scanned area may lie at an offset
             (`bounds_offset`, level-0 pixels) inside a larger slide, reported as OpenSlide's bounds
    dicom    a folder with one VL Whole Slide Microscopy instance per level
    mpp      micrometres per level-0 pixel; None writes a slide without pixel size (aperio and generic only)
    """
    check_choice(flavour, _FLAVOURS, "flavour")
    check_choice(compression, _COMPRESSIONS, "compression")
    _check_options(mpp, flavour, tile, bounds_offset)
    levels = _build_levels(image, factors) if isinstance(image, np.ndarray) else [_rgb(level) for level in image]
    path = Path(path)
    if flavour == "dicom":
        assert mpp is not None  # _check_options saw to it
        _write_dicom(path, levels, mpp=mpp, tile=tile, compression=compression)
    else:
        tags = {"aperio": _aperio_tags, "generic": _generic_tags, "leica": _leica_tags}[flavour]
        _write_tiff(path, levels, tags(levels, mpp, bounds_offset or (0, 0)), tile, compression, flavour == "leica")
    return path


def _build_levels(image: np.ndarray, factors: Sequence[int]) -> list[np.ndarray]:
    """Each level is the mean over f × f pixels; the incomplete pixels at the right and lower edge are dropped.

    Factors larger than the image are left out.
    """
    image = _rgb(image)
    if list(factors) != sorted(set(factors)) or factors[0] != 1:
        raise ConfigError(f"factors: must rise from 1, got {tuple(factors)}; for example (1, 4, 16)")
    (height, width), picture = image.shape[:2], Image.fromarray(image)
    used = [factor for factor in factors if factor <= min(height, width)]
    return [np.asarray(picture.reduce(f, box=(0, 0, width // f * f, height // f * f))) for f in used]


def _rgb(image: np.ndarray) -> np.ndarray:
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
        raise DataError(f"image: got {image.dtype} {image.shape}, expected uint8 of shape (height, width, 3)")
    return np.ascontiguousarray(image)


def _check_options(mpp: float | None, flavour: str, tile: int, bounds_offset: tuple[int, int] | None) -> None:
    if mpp is not None and not 0 < mpp < float("inf"):
        raise ConfigError(f"mpp: must be a positive number of micrometres per pixel, got {mpp}")
    if mpp is None and flavour in ("leica", "dicom"):
        raise ConfigError(f"mpp: the flavour {flavour!r} cannot be written without it; choose aperio or generic")
    if bounds_offset is not None and flavour != "leica":
        raise ConfigError(f"bounds_offset: {flavour!r} has no place for it; choose flavour='leica'")
    if flavour == "leica" and (bounds_offset is None or min(bounds_offset) < 1):
        raise ConfigError(f"bounds_offset: 'leica' needs two positive numbers of pixels, got {bounds_offset}")
    if tile % 16 or tile <= 0:
        raise ConfigError(f"tile: must be a positive multiple of 16 (a rule of TIFF), got {tile}")


def _write_tiff(
    path: Path, levels: list[np.ndarray], tags: list[dict[str, Any]], tile: int, compression: str, big: bool
) -> None:
    try:
        import tifffile
    except ModuleNotFoundError:
        raise MissingExtra("tifffile", "slides", "writing slides") from None
    fixed: dict[str, Any] = {"tile": (tile, tile), "photometric": "rgb", "metadata": None, "software": False}
    if compression == "jpeg":
        fixed |= {"compression": "jpeg", "compressionargs": {"level": _JPEG_QUALITY}}
    with replacing(path) as temporary, tifffile.TiffWriter(temporary, bigtiff=big) as file:
        for depth, (level, tag) in enumerate(zip(levels, tags, strict=True)):
            file.write(level, subfiletype=1 if depth else 0, **fixed, **tag)


def _aperio_tags(levels: list[np.ndarray], mpp: float | None, _: tuple[int, int]) -> list[dict[str, Any]]:
    height, width = levels[0].shape[:2]
    size = "" if mpp is None else f"|AppMag = {_power(mpp)}|MPP = {mpp:.10g}"

    def description(level: np.ndarray) -> str:
        shrunk = f" -> {level.shape[1]}x{level.shape[0]}" if level is not levels[0] else ""
        return f"Aperio Image Library v11.2.1 \r\n{width}x{height} [0,0 {width}x{height}]{shrunk}{size}"

    return [{"description": description(level)} for level in levels]


def _generic_tags(levels: list[np.ndarray], mpp: float | None, _: tuple[int, int]) -> list[dict[str, Any]]:
    if mpp is None:
        return [{} for _ in levels]
    per_cm = [1e4 / mpp * level.shape[1] / levels[0].shape[1] for level in levels]
    return [{"resolution": (r, r), "resolutionunit": "CENTIMETER"} for r in per_cm]


def _leica_tags(levels: list[np.ndarray], mpp: float | None, offset: tuple[int, int]) -> list[dict[str, Any]]:
    """The XML of a Leica SCN file: sizes in nanometres, the scanned area somewhere in the collection."""
    assert mpp is not None  # _check_options saw to it
    nanometres = round(mpp * 1000)
    if abs(mpp * 1000 - nanometres) > 1e-9:
        raise ConfigError(f"mpp: the flavour 'leica' counts in whole nanometres, got {mpp} µm; round it")
    height, width = levels[0].shape[:2]
    nm = [n * nanometres for n in (width, height, *offset, width + 2 * offset[0], height + 2 * offset[1])]
    dimensions = "".join(
        f'<dimension sizeX="{level.shape[1]}" sizeY="{level.shape[0]}" r="{depth}" ifd="{depth}"/>'
        for depth, level in enumerate(levels)
    )
    xml = (
        '<?xml version="1.0"?><scn xmlns="http://www.leica-microsystems.com/scn/2010/10/01">'
        f'<collection name="collection" sizeX="{nm[4]}" sizeY="{nm[5]}"><image name="image">'
        f'<pixels sizeX="{width}" sizeY="{height}">{dimensions}</pixels>'
        f'<view sizeX="{nm[0]}" sizeY="{nm[1]}" offsetX="{nm[2]}" offsetY="{nm[3]}"/>'
        f"<scanSettings><objectiveSettings><objective>{_power(mpp)}</objective></objectiveSettings>"
        "<illuminationSettings><illuminationSource>brightfield</illuminationSource>"
        "<numericalAperture>0.75</numericalAperture></illuminationSettings></scanSettings>"
        "</image></collection></scn>"
    )
    described = [{"description": xml}, *({} for _ in levels[1:])]
    return [a | b for a, b in zip(described, _generic_tags(levels, mpp, offset), strict=True)]


def _power(mpp: float) -> str:
    """The magnification that scanners print for this pixel size (0.25 µm: 40)."""
    return f"{10 / mpp:.4g}"

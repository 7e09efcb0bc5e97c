"""Enhanced multi-frame files, segmentations and structure sets for tests, written by pydicom and highdicom."""

import warnings

import highdicom
import numpy as np
import pydicom
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.sequence import Sequence
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

from support.ct_makers import PACKED

CLASSES = {"CT": "1.2.840.10008.5.1.4.1.1.2.1", "MR": "1.2.840.10008.5.1.4.1.1.4.1"}
LEGACY = "1.2.840.10008.5.1.4.1.1.2.2"
UNIQUE = ("StudyInstanceUID", "FrameOfReferenceUID")
COPIED = (
    *UNIQUE,
    *("PatientName", "PatientID", "Modality", "Rows", "Columns", "SamplesPerPixel", "PhotometricInterpretation"),
    *("BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation"),
)


def item(**values):
    made = Dataset()
    for name, value in values.items():
        setattr(made, name, value)
    return made


def group(sequence, **values):
    """A functional group: a dataset with a sequence of one item."""
    return {sequence: Sequence([item(**values)])}


def enhanced(path, files, order=None, *, frames=None, shared=False, sop_class=None, change=None):
    """One file with the pixels of a classic series as frames.

    order   which slice is frame 0, 1, …            frames  functional groups to add to each slice
    shared  pixel spacing, orientation and rescale stand once, for all frames
    """
    slices = [pydicom.dcmread(file) for file in files]
    order = list(range(len(slices))) if order is None else list(order)
    made, first = Dataset(), slices[0]
    for name in COPIED:
        if name in first:
            setattr(made, name, first[name].value)
    made.SOPClassUID = sop_class or CLASSES[first.Modality]
    made.SOPInstanceUID, made.SeriesInstanceUID = (
        generate_uid(entropy_srcs=[str(first.SeriesInstanceUID), str(path.name), w]) for w in "ab"
    )
    made.ImageType, made.NumberOfFrames = ["ORIGINAL", "PRIMARY", "VOLUME", "NONE"], len(order)
    common, own = ([_of_slice(one)[part] for one in slices] for part in ("shared", "own"))
    made.SharedFunctionalGroupsSequence = Sequence([item(**common[0]) if shared else Dataset()])
    groups = []
    for number in order:
        more = {} if frames is None else frames[number]
        groups.append(item(**({} if shared else common[number]), **own[number], **more))
    made.PerFrameFunctionalGroupsSequence = Sequence(groups)
    made.PixelData = b"".join(slices[number].PixelData for number in order)
    made["PixelData"].VR = "OW"
    return save(path, made, change)


def _of_slice(one):
    values = {"RescaleSlope": one.get("RescaleSlope", 1), "RescaleIntercept": one.get("RescaleIntercept", 0)}
    return {
        "shared": {
            **group("PixelMeasuresSequence", PixelSpacing=one.PixelSpacing, SliceThickness=one.SliceThickness),
            **group("PlaneOrientationSequence", ImageOrientationPatient=one.ImageOrientationPatient),
            **group("PixelValueTransformationSequence", **values, RescaleType="HU" if one.Modality == "CT" else "US"),
        },
        "own": group("PlanePositionSequence", ImagePositionPatient=one.ImagePositionPatient),
    }


def save(path, made, change=None):
    made.file_meta = FileMetaDataset()
    made.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    made.file_meta.MediaStorageSOPClassUID = made.SOPClassUID
    made.file_meta.MediaStorageSOPInstanceUID = made.SOPInstanceUID
    if change is not None:
        change(made)
    path.parent.mkdir(parents=True, exist_ok=True)
    made.save_as(path, enforce_file_format=True)
    return path


def packed_frames(path, name, tables=True):
    """Rewrite a multi-frame file with every frame compressed, with or without a table of where they begin."""
    made, (syntax, encode) = pydicom.dcmread(path), PACKED[name]
    made.PixelData = encapsulate([encode(frame) for frame in made.pixel_array], has_bot=tables)
    made["PixelData"].VR, made["PixelData"].is_undefined_length = "OB", True
    made.file_meta.TransferSyntaxUID = syntax
    made.save_as(path)


def segment(number, label):
    code = highdicom.sr.CodedConcept
    return highdicom.seg.SegmentDescription(
        segment_number=number,
        segment_label=label,
        segmented_property_category=code("49755003", "SCT", "Morphologically Abnormal Structure"),
        segmented_property_type=code("52988006", "SCT", "Lesion"),
        algorithm_type="MANUAL",
    )


def segmentation(path, files, mask, *, kind="BINARY", labels=("lesion",), shuffle=None, change=None, **options):
    """A SEG that highdicom writes over a classic series or one enhanced file: mask (slices, rows, columns[, segments]).

    shuffle  seed of another order of the frames
    """
    sources = [pydicom.dcmread(file) for file in files]
    for source in sources:
        for name in ("StudyID", "StudyDate", "StudyTime", "AccessionNumber", "PatientBirthDate", "PatientSex"):
            setattr(source, name, source.get(name, ""))
        for name in ("ReferringPhysicianName", "PositionReferenceIndicator"):
            setattr(source, name, source.get(name, ""))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = highdicom.seg.Segmentation(
            source_images=sources,
            pixel_array=mask,
            segmentation_type=kind,
            segment_descriptions=[segment(n, label) for n, label in enumerate(labels, 1)],
            series_instance_uid=generate_uid(entropy_srcs=["seg", path.name]),
            series_number=7,
            sop_instance_uid=generate_uid(entropy_srcs=["one", path.name]),
            instance_number=1,
            manufacturer="any",
            manufacturer_model_name="any",
            software_versions="1",
            device_serial_number="1",
            **options,
        )
    if shuffle is not None:
        reorder(made, np.random.default_rng(shuffle).permutation(int(made.NumberOfFrames)))
    if change is not None:
        change(made)
    path.parent.mkdir(parents=True, exist_ok=True)
    made.save_as(path)
    return path


def reorder(made, order):
    """Other frames first: their pixels, eight to a byte where they are bits, and their functional groups."""
    made.PerFrameFunctionalGroupsSequence = Sequence([made.PerFrameFunctionalGroupsSequence[i] for i in order])
    size = int(made.Rows) * int(made.Columns)
    values = np.frombuffer(made.PixelData, np.uint8 if made.BitsAllocated < 16 else np.uint16)
    if made.BitsAllocated == 1:
        values = np.unpackbits(values, bitorder="little")
    values = values[: size * len(order)].reshape(len(order), size)[order].ravel()
    made.PixelData = (np.packbits(values, bitorder="little") if made.BitsAllocated == 1 else values).tobytes()
    made.PixelData += b"\0" * (len(made.PixelData) % 2)


def structure_set(path, source, regions, *, reference=None, change=None):
    """An RTSTRUCT over the series of a file; regions: {number: (name, [contour points (n, 3) or (type, points)])}."""
    first = pydicom.dcmread(source)
    made = Dataset()
    made.SOPClassUID, made.Modality = "1.2.840.10008.5.1.4.1.1.481.3", "RTSTRUCT"
    made.SOPInstanceUID, made.SeriesInstanceUID = (generate_uid(entropy_srcs=[path.name, w]) for w in "cd")
    for name in ("StudyInstanceUID", "PatientName", "PatientID"):
        setattr(made, name, first[name].value)
    reference = reference or str(first.FrameOfReferenceUID)
    made.ReferencedFrameOfReferenceSequence = Sequence([item(FrameOfReferenceUID=reference)])
    made.StructureSetROISequence = Sequence(
        [item(ROINumber=n, ROIName=name, ReferencedFrameOfReferenceUID=reference) for n, (name, _) in regions.items()]
    )
    made.ROIContourSequence = Sequence(
        [
            item(ReferencedROINumber=n, ContourSequence=Sequence([_contour(one) for one in contours]))
            for n, (_, contours) in regions.items()
        ]
    )
    return save(path, made, change)


def _contour(given):
    kind, points = given if isinstance(given, tuple) else ("CLOSED_PLANAR", given)
    numbers = [f"{value:.10g}" for value in np.asarray(points, float).ravel()]
    return item(ContourGeometricType=kind, NumberOfContourPoints=len(points), ContourData=numbers)

"""Marks planted wherever a person can be named in a source, and a search for them in every byte."""

import gzip

import nibabel
import pandas as pd
import pydicom
from pydicom.dataset import Dataset

from smmil.prediction import Prediction
from support.export_makers import META

NAMED = [
    "PatientName",
    "PatientID",
    "OtherPatientNames",
    "PatientAddress",
    "PatientTelephoneNumbers",
    "PatientComments",
    "EthnicGroup",
    "Occupation",
    "AdditionalPatientHistory",
    "PatientMotherBirthName",
    "MilitaryRank",
    "AccessionNumber",
    "StudyID",
    "InstitutionName",
    "InstitutionAddress",
    "InstitutionalDepartmentName",
    "ReferringPhysicianName",
    "PerformingPhysicianName",
    "OperatorsName",
    "PhysiciansOfRecord",
    "RequestingPhysician",
    "StationName",
    "StudyDescription",
    "SeriesDescription",
    "ProtocolName",
    "ImageComments",
    "DeviceSerialNumber",
    "Manufacturer",
    "ManufacturerModelName",
    "SoftwareVersions",
    "PositionReferenceIndicator",
    "DerivationDescription",
    "ClinicalTrialSubjectID",
    "IssuerOfPatientID",
]
DATES = ["PatientBirthDate", "StudyDate", "SeriesDate", "AcquisitionDate", "ContentDate", "InstanceCreationDate"]
TIMES = ["StudyTime", "SeriesTime", "AcquisitionTime", "ContentTime"]
DATE, TIME = "19470823", "134756"


def marks():
    """Every planted text: each field has its own, so that a leak names its place."""
    return [f"Q{i:02d}XMARK" for i in range(60)] + [DATE, TIME]


def spoil(dataset):
    """Name somebody in more than thirty places of a DICOM header."""
    for number, keyword in enumerate(NAMED):
        setattr(dataset, keyword, f"Q{number:02d}XMARK")
    for keyword in DATES:
        setattr(dataset, keyword, DATE)
    for keyword in TIMES:
        setattr(dataset, keyword, TIME)
    item = Dataset()
    item.RequestedProcedureDescription, item.ScheduledProcedureStepID = "Q50XMARK", "Q51XMARK"
    dataset.RequestAttributesSequence = [item]
    block = dataset.private_block(0x0009, "Q52XMARK", create=True)
    block.add_new(0x01, "LO", "Q53XMARK")
    dataset.preamble = b"Q54XMARK".ljust(128, b"\0")
    return len(NAMED) + len(DATES) + len(TIMES) + 5


def spoiled(prediction):
    """The same prediction with marks in its free facts, which also are no business of an export."""
    free = {f"note {i}": f"Q{i}XMARK" for i in (55, 56)}
    meta = {**META, "patient": "Q57XMARK", "group": "Q58XMARK", "features": {"path": "Q59XMARK"}, **free}
    return Prediction(**{**vars(prediction), "meta": meta})


def everything_in(path):
    """All bytes of a file, packed parts unpacked."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        data += gzip.decompress(data) + repr(nibabel.load(path).header.extensions).encode()
    if path.suffix == ".parquet":
        data += pd.read_parquet(path).to_csv().encode()
    if path.suffix == ".dcm":
        data += str(pydicom.dcmread(path)).encode()
    return data


def assert_clean(path):
    data = everything_in(path)
    assert [mark for mark in marks() if mark.encode() in data] == []

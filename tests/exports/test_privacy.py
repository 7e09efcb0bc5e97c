"""Marks planted wherever a person can be named in a source appear in no byte of any export."""

import json

import pydicom
import pytest
from support.ct_makers import change_all
from support.export_makers import scan_case, slide_case
from support.privacy import DATE, assert_clean, marks, spoil, spoiled

from smmil.exports import export

SCAN_FORMATS = {
    "dicom-pm": "dcm",
    "dicom-seg": "dcm",
    "nifti": "nii.gz",
    "csv": "csv",
    "parquet": "parquet",
    "png": "png",
}
SLIDE_FORMATS = {"dicom-pm": "dcm", "dicom-seg": "dcm", "geojson": "geojson", "tiff": "tif", "csv": "csv", "png": "png"}


@pytest.mark.parametrize("to", SCAN_FORMATS)
def test_nothing_of_a_person_in_a_scan_survives(tmp_path, to):
    folder, file, prediction = scan_case(tmp_path / "Q49XMARK" / "ct")
    places = 0
    for path in folder.glob("*.dcm"):
        dataset = pydicom.dcmread(path)
        places = spoil(dataset)
        dataset.save_as(path)
    assert places >= 30
    assert any(mark.encode() in file.read_bytes() for mark in marks())
    cut = {"threshold": 1} if to == "dicom-seg" else {}
    out = tmp_path / f"out.{SCAN_FORMATS[to]}"
    export(spoiled(prediction), to, out, image=folder, **cut)
    assert_clean(out)


@pytest.mark.parametrize("to", SLIDE_FORMATS)
def test_nothing_of_a_person_in_a_slide_survives(tmp_path, to):
    flavour = "dicom" if to.startswith("dicom") else "aperio"
    path, prediction = slide_case(tmp_path / "Q49XMARK", flavour)
    if flavour == "dicom":
        for file in path.glob("*.dcm"):
            dataset = pydicom.dcmread(file)
            spoil(dataset)
            dataset.ContainerIdentifier = "Q48XMARK"
            dataset.SpecimenDescriptionSequence[0].SpecimenIdentifier = "Q47XMARK"
            dataset.SpecimenDescriptionSequence[0].SpecimenShortDescription = "Q46XMARK"
            dataset.save_as(file)
    else:
        path.write_bytes(path.read_bytes().replace(b"Aperio Image Library", b"Aperio Q45XMARK   XX"))
        assert b"Q45XMARK" in path.read_bytes()
    cut = {"threshold": 0} if to in ("dicom-seg", "geojson") else {}
    out = tmp_path / f"out.{SLIDE_FORMATS[to]}"
    export(spoiled(prediction), to, out, image=path, **cut)
    assert_clean(out)


def test_the_profile_is_recorded_and_the_map_still_finds_its_image(tmp_path):
    folder, file, prediction = scan_case(tmp_path / "ct")
    export(prediction, "dicom-pm", tmp_path / "a.dcm", image=folder)
    made, source = pydicom.dcmread(tmp_path / "a.dcm"), pydicom.dcmread(file)
    assert made.PatientIdentityRemoved == "YES"
    assert [c.CodeValue for c in made.DeidentificationMethodCodeSequence] == ["113100", "113110"]
    assert made.StudyInstanceUID == source.StudyInstanceUID
    assert made.BurnedInAnnotation == "NO"
    assert not made.AccessionNumber
    assert not made.StudyDate


def test_with_replaced_uids_no_identifier_of_the_source_survives(tmp_path):
    folder, file, prediction = scan_case(tmp_path / "ct")
    export(prediction, "dicom-pm", tmp_path / "a.dcm", image=folder, keep_uids=False)
    made, source = pydicom.dcmread(tmp_path / "a.dcm"), pydicom.dcmread(file)
    assert [c.CodeValue for c in made.DeidentificationMethodCodeSequence] == ["113100"]
    text = (tmp_path / "a.dcm").read_bytes()
    for keyword in ("StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID", "FrameOfReferenceUID"):
        assert source[keyword].value.encode() not in text
    assert len({r.ReferencedSOPInstanceUID for r in made.SourceImageSequence}) == 6


def test_asked_to_keep_the_patient_the_map_is_filed_with_the_study(tmp_path):
    folder, _, prediction = scan_case(tmp_path / "ct")
    change_all(folder, PatientName="Doe^Jane", PatientID="4711", AccessionNumber="A1", StudyDate=DATE)
    export(prediction, "dicom-pm", tmp_path / "a.dcm", image=folder, deidentify=False)
    made = pydicom.dcmread(tmp_path / "a.dcm")
    assert (made.PatientName, made.PatientID, made.AccessionNumber, made.StudyDate) == ("Doe^Jane", "4711", "A1", DATE)
    assert "PatientIdentityRemoved" not in made


@pytest.mark.parametrize("keyword", ["PixelSpacing", "StudyInstanceUID"])
def test_a_header_that_holds_words_for_numbers_is_refused_without_repeating_them(tmp_path, keyword):
    folder, file, prediction = scan_case(tmp_path / "ct")
    data = file.read_bytes()
    tag = {"PixelSpacing": b"\x28\x00\x30\x00DS", "StudyInstanceUID": b"\x20\x00\x0d\x00UI"}[keyword]
    at = data.index(tag) + 8
    file.write_bytes(data[:at] + b"DOE" + data[at + 3 :])
    with pytest.raises(Exception, match="IM") as problem:
        export(prediction, "dicom-pm", tmp_path / "a.dcm", image=folder)
    assert "DOE" not in str(problem.value)


def test_provenance_tells_the_model_and_nothing_else_of_the_facts(tmp_path):
    _, prediction = slide_case(tmp_path)
    export(spoiled(prediction), "geojson", tmp_path / "a.geojson")
    about = json.loads((tmp_path / "a.geojson").read_text())["smmil"]
    facts = {"software", "model", "weights", "score_kind", "checkpoint", "use"}
    assert set(about) == facts | {"case", "case_probabilities", "threshold", "unit", "bounds", "um_per_pixel"}

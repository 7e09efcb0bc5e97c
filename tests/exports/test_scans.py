"""NIfTI and DICOM maps of CT: the hot voxel is the planted voxel in the patient, however the series was stored."""

import json

import nibabel
import numpy as np
import pydicom
import pytest
from PIL import Image
from support.export_makers import META, ORIENTATIONS, scan_case

from smmil.errors import ConfigError, DataError
from smmil.exports import export
from smmil.images import open_volume
from smmil.prediction import Prediction

TO_LPS = np.array([-1, -1, 1])
PLANTED = (4, 6, 2)


def patient_place(file, row, column):
    """Where a pixel of a DICOM file lies, from the standard's formula."""
    ds = pydicom.dcmread(file)
    spacing, directions = np.array(ds.PixelSpacing, float), np.array(ds.ImageOrientationPatient, float).reshape(2, 3)
    across, down = directions[0] * spacing[1] * column, directions[1] * spacing[0] * row
    return np.array(ds.ImagePositionPatient, float) + across + down


def frame_facts(ds, index):
    groups = ds.PerFrameFunctionalGroupsSequence[index]
    source = groups.DerivationImageSequence[0].SourceImageSequence[0].ReferencedSOPInstanceUID
    return np.array(groups.PlanePositionSequence[0].ImagePositionPatient, float), source


@pytest.mark.parametrize("name", ORIENTATIONS)
def test_the_hottest_voxel_of_the_nifti_is_the_planted_voxel_in_the_patient(tmp_path, name):
    folder, file, prediction = scan_case(tmp_path / "ct", ORIENTATIONS[name], PLANTED, boxes=True)
    export(prediction, "nifti", tmp_path / "a_heat.nii.gz", image=folder)
    image = nibabel.load(tmp_path / "a_heat.nii.gz")
    heat = image.get_fdata()
    place = image.affine @ [*np.unravel_index(np.nanargmax(heat), heat.shape), 1]
    assert place[:3] * TO_LPS == pytest.approx(patient_place(file, *PLANTED[1:]), abs=1e-3)
    assert np.isnan(heat).sum() == heat.size - 3
    assert image.affine == pytest.approx(open_volume(folder).affine, abs=1e-4)
    assert image.header.get_xyzt_units()[0] == "mm"


@pytest.mark.parametrize("name", ORIENTATIONS)
def test_the_hot_slice_of_the_nifti_is_the_plane_of_the_planted_slice(tmp_path, name):
    folder, file, prediction = scan_case(tmp_path / "ct", ORIENTATIONS[name], PLANTED)
    export(prediction, "nifti", tmp_path / "a.nii.gz", image=folder)
    image = nibabel.load(tmp_path / "a.nii.gz")
    hot = np.argwhere(image.get_fdata() == 3)
    assert len(hot) == 63
    places = nibabel.affines.apply_affine(image.affine, hot) * TO_LPS
    expected = np.array([patient_place(file, row, column) for row in range(9) for column in range(7)])
    distance = np.abs(places[:, None] - expected[None]).max(-1)
    assert distance.min(0).max() < 1e-3
    assert distance.min(1).max() < 1e-3


def test_over_a_nifti_file_the_map_has_its_axes_and_affine(tmp_path):
    affine = np.array([[0, 0, 2.0, -7], [-0.5, 0, 0, 11], [0, 3, 0, -40], [0, 0, 0, 1]])
    hu = np.zeros((7, 6, 9), np.float32)
    hu[5, 4, 2] = 900
    nibabel.save(nibabel.Nifti1Image(hu, affine), tmp_path / "ct.nii.gz")
    volume = open_volume(tmp_path / "ct.nii.gz")
    scores = volume.hu.max((1, 2))
    prediction = Prediction("s", [0.5], scores, coords=np.arange(len(volume))[:, None], frame=volume.frame, meta=META)
    export(prediction, "nifti", tmp_path / "map.nii", image=tmp_path / "ct.nii.gz")
    image = nibabel.load(tmp_path / "map.nii")
    assert image.shape == (7, 6, 9)
    assert image.affine == pytest.approx(affine)
    assert np.array_equal(image.get_fdata() == 900, np.broadcast_to((np.arange(6) == 4)[:, None], (7, 6, 9)))


@pytest.mark.parametrize("to", ["dicom-pm", "dicom-seg"])
@pytest.mark.parametrize("name", ORIENTATIONS)
def test_the_hot_pixel_of_the_dicom_map_is_the_planted_pixel_of_its_source_slice(tmp_path, name, to):
    folder, file, prediction = scan_case(tmp_path / "ct", ORIENTATIONS[name], PLANTED, boxes=True)
    cut = {"threshold": 4} if to == "dicom-seg" else {}
    export(prediction, to, tmp_path / "a.dcm", image=folder, **cut)
    ds, source = pydicom.dcmread(tmp_path / "a.dcm"), pydicom.dcmread(file)
    frame, row, column = np.unravel_index(ds.pixel_array.argmax(), ds.pixel_array.shape)
    assert (row, column) == PLANTED[1:]
    position, referenced = frame_facts(ds, frame)
    assert position == pytest.approx(np.array(source.ImagePositionPatient, float), abs=1e-4)
    assert referenced == source.SOPInstanceUID
    shared = ds.SharedFunctionalGroupsSequence[0]
    assert shared.PixelMeasuresSequence[0].PixelSpacing == source.PixelSpacing
    directions = np.array(shared.PlaneOrientationSequence[0].ImageOrientationPatient, float)
    assert directions == pytest.approx(np.array(source.ImageOrientationPatient, float), abs=1e-6)
    assert ds.FrameOfReferenceUID == source.FrameOfReferenceUID
    assert ds.StudyInstanceUID == source.StudyInstanceUID
    assert ds.ReferencedSeriesSequence[0].SeriesInstanceUID == source.SeriesInstanceUID
    if to == "dicom-seg":
        assert ds.pixel_array.sum() == 1


@pytest.mark.parametrize("name", ORIENTATIONS)
def test_slice_scores_fill_the_frame_of_their_own_source_slice(tmp_path, name):
    import highdicom

    folder, file, prediction = scan_case(tmp_path / "ct", ORIENTATIONS[name], PLANTED)
    export(prediction, "dicom-pm", tmp_path / "a.dcm", image=folder)
    made = highdicom.pm.ParametricMap.from_file(tmp_path / "a.dcm")
    hot = [i for i, frame in enumerate(made.pixel_array) if (frame == 3).all()]
    assert len(hot) == 1
    assert frame_facts(made, hot[0])[1] == pydicom.dcmread(file).SOPInstanceUID
    assert made.ContentQualification == "RESEARCH"
    mapping = made.SharedFunctionalGroupsSequence[0].RealWorldValueMappingSequence[0]
    assert mapping.LUTExplanation == "attention logit"
    volume = made.get_volume()
    place = volume.map_indices_to_reference(np.argwhere(volume.array == 3)[:1])[0]
    normal = np.cross(*np.array(ORIENTATIONS[name], float).reshape(2, 3))
    assert place @ normal == pytest.approx(patient_place(file, 0, 0) @ normal, abs=1e-3)


def test_slices_without_a_score_are_padding_below_all_scores(tmp_path):
    folder, _, prediction = scan_case(tmp_path / "ct")
    some = Prediction("s", [0.5], [1.0, 3.0], coords=[[1], [3]], frame=prediction.frame, meta=META)
    export(some, "dicom-pm", tmp_path / "a.dcm", image=folder)
    ds = pydicom.dcmread(tmp_path / "a.dcm")
    assert ds.FloatPixelPaddingValue == -1
    assert sorted(frame.max() for frame in ds.pixel_array) == [-1, -1, -1, -1, 1, 3]


def test_a_series_with_a_gap_keeps_every_frame_on_its_own_slice(tmp_path):
    folder, file, _ = scan_case(tmp_path / "ct")
    sorted(set(folder.iterdir()) - {file})[2].unlink()
    volume = open_volume(folder)
    scores = volume.hu.max((1, 2))
    prediction = Prediction("s", [0.5], scores, coords=np.arange(5)[:, None], frame=volume.frame, meta=META)
    export(prediction, "dicom-pm", tmp_path / "a.dcm", image=folder)
    ds = pydicom.dcmread(tmp_path / "a.dcm")
    position, referenced = frame_facts(ds, int(ds.pixel_array.max((1, 2)).argmax()))
    assert referenced == pydicom.dcmread(file).SOPInstanceUID
    assert position == pytest.approx(patient_place(file, 0, 0))


def test_a_segmentation_where_nothing_reaches_the_threshold_is_empty_and_says_so(tmp_path):
    folder, _, prediction = scan_case(tmp_path / "ct")
    done = export(prediction, "dicom-seg", tmp_path / "a.dcm", image=folder, threshold=99)
    assert pydicom.dcmread(tmp_path / "a.dcm").pixel_array.sum() == 0
    assert done.notes == [("scan", "no instance reaches the threshold: the segment is empty")]


def test_the_segment_names_the_model_and_its_weights(tmp_path):
    import highdicom

    folder, _, prediction = scan_case(tmp_path / "ct")
    export(prediction, "dicom-seg", tmp_path / "a.dcm", image=folder, threshold=1)
    made = highdicom.seg.segread(tmp_path / "a.dcm")
    (segment,) = made.SegmentSequence
    algorithm = segment.SegmentationAlgorithmIdentificationSequence[0]
    assert (algorithm.AlgorithmName, algorithm.AlgorithmVersion) == ("sm_ap", "ab" * 32)
    for words in ("model: sm_ap", f"weights: {'ab' * 32}", "score kind: attention logit", "research use only"):
        assert words in made.DerivationDescription


@pytest.mark.parametrize(("to", "ending"), [("nifti", ".nii.gz"), ("dicom-pm", ".dcm"), ("dicom-seg", ".dcm")])
def test_the_same_case_gives_the_same_bytes(tmp_path, to, ending):
    folder, _, prediction = scan_case(tmp_path / "ct")
    cut = {"threshold": 1} if to == "dicom-seg" else {}
    for name in ("a", "b"):
        export(prediction, to, tmp_path / f"{name}{ending}", image=folder, **cut)
    assert (tmp_path / f"a{ending}").read_bytes() == (tmp_path / f"b{ending}").read_bytes()


def test_other_scores_or_thresholds_give_other_identifiers(tmp_path):
    folder, _, prediction = scan_case(tmp_path / "ct")
    other = Prediction(**{**vars(prediction), "scores": prediction.scores + 1})
    found = set()
    for one, to, cut in ((prediction, "dicom-pm", None), (other, "dicom-pm", None), (prediction, "dicom-seg", 1)):
        export(one, to, tmp_path / "a.dcm", image=folder, threshold=cut)
        ds = pydicom.dcmread(tmp_path / "a.dcm")
        found |= {ds.SOPInstanceUID, ds.SeriesInstanceUID}
    assert len(found) == 6


def test_the_nifti_carries_its_provenance(tmp_path):
    folder, _, prediction = scan_case(tmp_path / "ct")
    export(prediction, "nifti", tmp_path / "a.nii.gz", image=folder)
    header = nibabel.load(tmp_path / "a.nii.gz").header
    assert bytes(header["descrip"]).rstrip(b"\0").endswith(b"research use only")
    facts = json.loads(header.extensions[0].get_content())
    assert (facts["model"], facts["weights"]) == ("sm_ap", "ab" * 32)


def test_the_contact_sheet_frames_the_hot_slice_in_the_hottest_colour(tmp_path):
    from matplotlib import colormaps

    folder, _, prediction = scan_case(tmp_path / "ct")  # six slices: two rows of three
    export(prediction, "png", tmp_path / "a.png", image=folder, size=300)
    sheet = np.asarray(Image.open(tmp_path / "a.png")).astype(float)
    assert sheet.shape[1:] == (300, 3)
    assert 200 < sheet.shape[0] < 250  # the colour scale lies below
    corners = [sheet[100 * (i // 3), 100 * (i % 3)] for i in range(6)]
    hottest = np.array(colormaps["viridis"](1.0)[:3]) * 255
    assert [np.abs(c - hottest).max() <= 1 for c in corners] == (prediction.scores[:, 0] == 3).tolist()


def test_another_scan_than_that_of_the_case_is_noticed(tmp_path):
    folder, _, prediction = scan_case(tmp_path / "ct")
    longer = Prediction("s", [0.5], np.zeros(7), coords=np.arange(7)[:, None], frame=prediction.frame)
    for to in ("nifti", "dicom-pm", "png"):
        ending = {"nifti": "nii.gz", "dicom-pm": "dcm", "png": "png"}[to]
        with pytest.raises(DataError, match=r"is slice 6, but the scan given with --image has only 6"):
            export(longer, to, tmp_path / f"a.{ending}", image=folder)
    outside = scan_case(tmp_path / "other", boxes=True)[2]
    moved = Prediction(**{**vars(outside), "coords": outside.coords + 5})
    with pytest.raises(DataError, match="lie outside the scan"):
        export(moved, "nifti", tmp_path / "a.nii.gz", image=folder)


def test_what_cannot_be_is_refused(tmp_path):
    folder, _, prediction = scan_case(tmp_path / "ct")
    export(prediction, "nifti", tmp_path / "map.nii.gz", image=folder)
    with pytest.raises(DataError, match=r"refers to DICOM files; give the DICOM series, or export nifti"):
        export(prediction, "dicom-pm", tmp_path / "a.dcm", image=tmp_path / "map.nii.gz")
    with pytest.raises(ConfigError, match="needs --image"):
        export(prediction, "nifti", tmp_path / "a.nii.gz")
    with pytest.raises(ConfigError, match="give --image the folder of its DICOM"):
        export(prediction, "png", tmp_path / "a.png")
    slide = Prediction("s", [0.5], [1.0], coords=[[0, 0]], frame=None)
    with pytest.raises(ConfigError, match="nifti is for scans, but this case is a slide"):
        export(slide, "nifti", tmp_path / "a.nii.gz", image=folder)

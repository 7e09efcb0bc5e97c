"""DICOM maps over DICOM slides, read back with highdicom."""

import numpy as np
import pydicom
import pytest
from support.export_makers import META, SIDE, X, Y, slide_case
from support.pyramids import noise, slide_file

from smmil.errors import DataError
from smmil.exports import export
from smmil.frame import Frame
from smmil.prediction import Prediction


def matrix(path, **options):
    import highdicom

    made = highdicom.imread(path)
    return made, made.get_total_pixel_matrix(**options)


@pytest.mark.parametrize(("to", "cut"), [("dicom-pm", None), ("dicom-seg", 0.0)])
def test_the_hot_pixels_are_the_lesion_and_the_map_lies_on_the_same_glass(tmp_path, to, cut):
    folder, prediction = slide_case(tmp_path, "dicom")
    export(prediction, to, tmp_path / "a.dcm", image=folder, threshold=cut)
    made, heat = matrix(tmp_path / "a.dcm")
    source = pydicom.dcmread(folder / "level_0.dcm")
    rows, columns = np.nonzero(heat == 1)
    fine = source.SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0].PixelSpacing
    coarse = made.SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0].PixelSpacing
    r = round(float(coarse[0]) / float(fine[0]))
    assert [float(c) for c in coarse] == pytest.approx([float(f) * r for f in fine])
    box = (columns.min() * r, rows.min() * r, (columns.max() + 1) * r, (rows.max() + 1) * r)
    assert box == (X, Y, X + SIDE, Y + SIDE)
    assert heat.shape == (256 // r, 320 // r)
    assert made.ImageOrientationSlide == source.ImageOrientationSlide
    origin, expected = made.TotalPixelMatrixOriginSequence[0], source.TotalPixelMatrixOriginSequence[0]
    assert origin.XOffsetInSlideCoordinateSystem == expected.XOffsetInSlideCoordinateSystem
    assert origin.YOffsetInSlideCoordinateSystem == expected.YOffsetInSlideCoordinateSystem
    assert made.FrameOfReferenceUID == source.FrameOfReferenceUID
    assert made.SourceImageSequence[0].ReferencedSOPInstanceUID == source.SOPInstanceUID
    assert made.ContentQualification == "RESEARCH"


@pytest.mark.parametrize("above", [0, 10, -30])
def test_tiles_of_a_large_map_are_put_together_right(tmp_path, above):
    folder = slide_file(tmp_path, np.full((400, 700, 3), 200, np.uint8), "dicom")
    coords = np.array([(0, 0), (699, 0), (301, 399), (513, 257)])
    scores = np.array([1, 2, 3, 4], np.float32) + above
    prediction = Prediction("s", [0.5], scores, coords=coords, frame=Frame((1, 1), (0.5, 0.5), "um"), meta=META)
    export(prediction, "dicom-pm", tmp_path / "a.dcm", image=folder)
    made, heat = matrix(tmp_path / "a.dcm")
    assert heat.shape == (400, 700)
    assert made.NumberOfFrames == 6
    assert [heat[y, x] for x, y in coords] == scores.tolist()
    assert (heat != made.FloatPixelPaddingValue).sum() == 4


def test_a_jpeg_slide_passes_on_that_pixels_were_lost(tmp_path):
    folder = slide_file(tmp_path, noise(128, 128), "dicom", compression="jpeg")
    prediction = Prediction("s", [0.5], [1.0], coords=[[0, 0]], frame=Frame((32, 32)), meta=META)
    export(prediction, "dicom-pm", tmp_path / "a.dcm", image=folder / "level_0.dcm")
    made = pydicom.dcmread(tmp_path / "a.dcm")
    assert (made.LossyImageCompression, made.LossyImageCompressionMethod) == ("01", "ISO_10918_1")


def test_a_slide_that_is_not_dicom_is_refused_with_a_way_out(tmp_path):
    path, prediction = slide_case(tmp_path)
    with pytest.raises(DataError, match=r"dicom-pm refers to a DICOM slide, and this is none; convert it, or export"):
        export(prediction, "dicom-pm", tmp_path / "a.dcm", image=path)

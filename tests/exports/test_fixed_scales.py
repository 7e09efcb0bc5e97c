"""Strangeness has one scale, 0 to 1, wherever it is drawn: the same number has the same colour in every case."""

from dataclasses import replace

import nibabel
import numpy as np
import pydicom
import pytest
import tifffile
from PIL import Image
from support.export_makers import ORIENTATIONS, scan_case
from support.lesion_cases import slide_case

from smmil.exports import export
from smmil.exports.case import ExportCase
from smmil.maps import canvas
from smmil.maps.score_maps import score_map
from smmil.viewer.tiles import _on_paper


def strange(case, first, rest):
    """The case with one strange instance among others."""
    values = np.full(case.n, rest, np.float32)
    values[0] = first
    return replace(case, strangeness=values, uncertainty=values)


@pytest.fixture
def scan(tmp_path):
    folder, _, prediction = scan_case(tmp_path / "ct", next(iter(ORIENTATIONS.values())), (4, 6, 2))
    return folder, strange(prediction, 0.4, 0.3)


def colour_of_first_tile(path, case):
    left, top = case.coords[0] // 4
    return np.asarray(Image.open(path).convert("RGB"))[int(top) + 4, int(left) + 4].tolist()


@pytest.mark.parametrize("rest", [0.1, 0.9])
def test_a_picture_has_the_same_colour_for_the_same_strangeness_whatever_else_is_in_the_case(tmp_path, rest):
    case = strange(slide_case("s", 1), 0.5, rest)
    export(case, "png", tmp_path / "s.png", layer="strangeness", size=192)
    middle = np.array(canvas.colours("viridis")(0.5)[:3]) * 255
    expected = 0.45 * np.array([246, 245, 242]) + 0.55 * middle
    assert np.abs(np.array(colour_of_first_tile(tmp_path / "s.png", case)) - expected).max() < 3


def test_the_small_map_of_the_viewer_has_it_too():
    shown = strange(slide_case("s", 1), 0.5, 0.4).layer("strangeness")
    painted = _on_paper(np.array([[0.5]]), ExportCase(shown))[0, 0]
    assert np.abs(painted - np.array(canvas.colours("viridis")(0.5)[:3]) * 255).max() < 2


def test_the_window_of_every_format_goes_from_0_to_1(tmp_path, scan):
    folder, case = scan
    export(case, "nifti", tmp_path / "a.nii.gz", image=folder, layer="strangeness")
    header = nibabel.load(tmp_path / "a.nii.gz").header
    assert (header["cal_min"], header["cal_max"]) == (0, 1)
    export(case, "dicom-pm", tmp_path / "a.dcm", image=folder, layer="strangeness")
    shared = pydicom.dcmread(tmp_path / "a.dcm").SharedFunctionalGroupsSequence[0]
    window = shared.FrameVOILUTSequence[0]
    assert (float(window.WindowCenter), float(window.WindowWidth)) == (0.5, 1)
    assert shared.RealWorldValueMappingSequence[0].LUTLabel == "strangeness"
    slide = strange(slide_case("s", 1), 0.4, 0.3)
    export(slide, "tiff", tmp_path / "s.tif", layer="strangeness")
    with tifffile.TiffFile(tmp_path / "s.tif") as file:
        tags = file.pages[0].tags
        assert (tags[340].value, tags[341].value) == (0, 1)
        assert '"values": "strangeness"' in tags["ImageDescription"].value


def test_scores_and_uncertainty_keep_the_scale_of_their_values(tmp_path, scan):
    folder, case = scan
    export(case, "nifti", tmp_path / "a.nii.gz", image=folder, layer="uncertainty")
    header = nibabel.load(tmp_path / "a.nii.gz").header
    assert (float(header["cal_min"]), float(header["cal_max"])) == pytest.approx((0.3, 0.4))
    assert case.fixed_scale is case.layer("uncertainty").fixed_scale is None


def test_pictures_of_python_have_it_unless_other_limits_are_given(tmp_path, monkeypatch):
    used = []
    drawn = canvas.limits_of
    monkeypatch.setattr(canvas, "limits_of", lambda values, given: used.append(given) or drawn(values, given))
    shown = strange(slide_case("s", 1), 0.5, 0.4).layer("strangeness")
    score_map(shown, tmp_path / "a.png")
    score_map(shown, tmp_path / "b.png", limits=(0.2, 0.6))
    assert used == [(0.0, 1.0), (0.2, 0.6)]


def test_pictures_of_a_folder_share_one_scale_so_that_a_quiet_case_looks_quiet(tmp_path):
    """On a scale of its own the highest patch of every case is as bright as a lesion."""
    loud, quiet = slide_case("loud", 1), slide_case("quiet", 2)
    quiet = replace(quiet, scores=quiet.scores * 0 + loud.scores.min() + 0.01 * np.arange(quiet.n)[:, None])
    for case in (loud, quiet):
        case.save(tmp_path / "p" / f"{case.id}.npz")
    done = export(tmp_path / "p", "png", tmp_path / "out", size=192)
    assert len(done.written) == 2
    export(quiet, "png", tmp_path / "alone.png", size=192)
    brightest = [
        np.asarray(Image.open(path).convert("RGB"), np.float64)[..., 1].reshape(-1)
        for path in (tmp_path / "out" / "quiet.png", tmp_path / "alone.png")
    ]
    yellow = 0.45 * 245 + 0.55 * canvas.colours("viridis")(1.0)[1] * 255  # the upper end over white paper
    shown, own = ((np.abs(values - yellow) < 6).sum() for values in brightest)
    assert own > 0
    assert shown == 0

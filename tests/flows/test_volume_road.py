"""A volume cut into patches goes all the way: bags, model, numbers, page, and a map in the voxels it came from."""

import gzip
import json
import re
from base64 import b64decode

import nibabel
import numpy as np
import pandas as pd
import pytest
from support import roads
from support.lesion_cases import save_all
from support.roads import smmil, tiny

from smmil.evaluate.drift_norms import _FACTS, _structure
from smmil.formats import read_bag
from smmil.graph import grid_graph
from smmil.images.volume import open_volume
from smmil.predict.cases import _drift_case
from smmil.prediction import Prediction
from smmil.synthetic.ct import synthetic_ct_scans

PREPARE = (*roads.PREPARE, "--coverage", 0.25)
SIDE = 64
REFUSED = (("geojson", "geojson", "3 coordinate"), ("tiff", "tif", "3 coordinate"), ("dicom-pm", "dcm", "DICOM files"))
STORED = {0: "LPS", 1: "SAR"}  # the orientation in which the voxels of every other volume lie in their file


def planted(folder, number):
    """A healthy head with blood in odd ones, as NIfTI in some orientation, and the mask of the blood."""
    scan = open_volume(folder / f"dicom/scans/ct_{number:04d}")
    z, y, x = np.mgrid[: len(scan), :SIDE, :SIDE]
    blood = (np.abs(z - 6) <= 1) & ((y - 30 - number) ** 2 + (x - 26) ** 2 < 49) & (number % 2 == 1)
    hu = np.where(blood, 75, scan.hu)
    turn = nibabel.orientations.ornt_transform(
        nibabel.io_orientation(scan.affine), nibabel.orientations.axcodes2ornt(STORED[number % 4 // 3])
    )
    for name, values in (("scans", hu), ("masks", blood)):
        image = nibabel.Nifti1Image(values.transpose(2, 1, 0).astype(np.int16), scan.affine)
        image.header.set_xyzt_units("mm")
        nibabel.save(image.as_reoriented(turn), folder / name / f"ct_{number:04d}.nii.gz")
    return {"id": f"ct_{number:04d}", "label": number % 2, "split": "test" if number < 2 else "train",
            "annotation": f"masks/ct_{number:04d}.nii.gz"}  # fmt: skip


@pytest.fixture(scope="module")
def road(tmp_path_factory):
    """Eight volumes with their bags of patches, a small model, and its predictions."""
    folder = tmp_path_factory.mktemp("volumes")
    synthetic_ct_scans(folder / "dicom", 8, positive=0.0, slices=(12, 13), size=SIDE)
    for name in ("scans", "masks"):
        (folder / name).mkdir()
    pd.DataFrame([planted(folder, i) for i in range(8)]).to_csv(folder / "labels.csv", index=False)
    words = ("prepare", folder / "scans", "--labels", folder / "labels.csv", "--patch-px", 8, *PREPARE)
    assert "ct_0003" in smmil(*words, "--out", folder / "study", "--dry-run")
    told = smmil(*words, "--out", folder / "study")
    assert "8 written" in told
    assert "8 there already" in smmil(*words, "--out", folder / "study")
    smmil(
        "train",
        "--manifest",
        folder / "study/manifest.csv",
        "--model",
        "sm_ap",
        "--out",
        folder / "run",
        *tiny(epochs=2),
    )
    smmil("predict", folder / "run", "--part", "all", "--out", folder / "predictions")
    return folder


def test_patches_of_a_volume_are_a_lattice_of_voxels_with_the_labels_of_the_mask(road):
    bag = read_bag(road / "study/bags/ct_0003.h5")
    assert bag.frame.patch == (8, 8, 1)
    assert bag.frame.spacing == pytest.approx((230 / SIDE, 230 / SIDE, 5))
    assert bag.graph.same_as(grid_graph(bag.coords, (8, 8, 1)))
    blood = open_volume(road / "masks/ct_0003.nii.gz").hu > 0
    labels = pd.read_csv(road / "study/instance_labels/ct_0003.csv")["label"]
    assert labels.sum() > 2
    for (x, y, z), label in zip(bag.coords.tolist(), labels, strict=True):
        assert label == (blood[z, y : y + 8, x : x + 8].mean() > 0.25)


@pytest.mark.parametrize("number", [1, 3])
def test_the_exported_map_holds_in_every_voxel_the_score_of_its_patch(road, number):
    case, out = Prediction.load(road / f"predictions/ct_{number:04d}.npz"), road / f"x{number}.nii.gz"
    scan = road / f"scans/ct_{number:04d}.nii.gz"
    smmil("export", road / f"predictions/{case.id}.npz", "--to", "nifti", "--image", scan, "--out", out)
    heat, source, mask = nibabel.load(out), nibabel.load(scan), nibabel.load(road / f"masks/{case.id}.nii.gz")
    assert heat.shape == source.shape
    np.testing.assert_allclose(heat.affine, source.affine, atol=1e-4)
    # from the voxels of the file to millimetres, and back to the column, row and slice that patches count in
    shown = open_volume(scan)
    stored = np.argwhere(np.ones(heat.shape, bool))
    places = nibabel.affines.apply_affine(np.linalg.inv(shown.affine) @ heat.affine, stored)
    x, y, z = np.rint(places).astype(int).T
    expected = np.full((len(shown), SIDE, SIDE), np.nan, np.float32)
    for (left, top, at), score in zip(case.coords.tolist(), case.scores.ravel(), strict=True):
        expected[int(at), int(top) : int(top) + 8, int(left) : int(left) + 8] = score
    np.testing.assert_array_equal(heat.get_fdata(dtype=np.float32)[tuple(stored.T)], expected[z, y, x])
    # the planted blood, in the voxels of the file, shows the scores of the patches that lie over it
    blood = np.asarray(mask.dataobj) > 0
    over = {tuple(p) for p in (np.argwhere(open_volume(road / f"masks/{case.id}.nii.gz").hu > 0)[:, ::-1] // [8, 8, 1])}
    hot = {
        float(s)
        for c, s in zip(case.coords, case.scores.ravel(), strict=True)
        if tuple(c.astype(int) // [8, 8, 1]) in over
    }
    assert set(heat.get_fdata(dtype=np.float32)[blood].tolist()) == hot


def test_a_patch_map_is_refused_where_only_slides_have_one_and_tables_know_three_axes(road):
    case, scan = road / "predictions/ct_0001.npz", road / "scans/ct_0001.nii.gz"
    for to, ending, reason in REFUSED:
        with pytest.raises(Exception, match=reason):
            smmil("export", case, "--to", to, "--image", scan, "--out", road / f"no.{ending}")
    smmil("export", case, "--to", "csv", "--out", road / "x.csv")
    table = pd.read_csv(road / "x.csv")
    assert {"x", "y", "z"} <= set(table.columns)
    assert len(table) == Prediction.load(case).n


def raster_of(page, number, model=0):
    facts = json.loads(re.search(r'<script[^>]*id="data"[^>]*>(.*?)</script>', page, re.S)[1])
    case = facts["cases"][number]
    raw = re.search(rf'id="s{number}-{model}-score"[^>]*>([^<]*)<', page)[1]
    return case, case["verdicts"][model]["rasters"]["score"], gzip.decompress(b64decode(raw))


def test_the_report_holds_a_map_of_every_slice_and_a_picture_below(road):
    smmil("report", road / "predictions", "--slides", road / "scans", "--resamples", 0, "--out", road / "r.html")
    page = (road / "r.html").read_text()
    assert page.count(">/9j/") == 8
    for number in range(8):
        case, facts, packed = raster_of(page, number)
        predicted = Prediction.load(road / f"predictions/{case['id']}.npz")
        cells = (predicted.coords // [8, 8, 1]).astype(int)
        low, high = cells.min(0), cells.max(0)
        across, down, deep = high - low + 1
        assert (facts["kind"], facts["layers"], facts["rows"], facts["columns"]) == (
            "volume",
            deep,
            deep * down,
            across,
        )
        assert case["voxels"] == [SIDE, SIDE]
        assert facts["span"] == [low[2], high[2] + 1, 1]
        there = np.unpackbits(np.frombuffer(packed, np.uint8, -(-facts["rows"] * facts["columns"] // 8)),
                              bitorder="little")[: facts["rows"] * facts["columns"]].astype(bool)  # fmt: skip
        expected = np.zeros((deep, down, across), bool)
        expected[tuple((cells - low).T[::-1])] = True
        assert np.array_equal(there, expected.ravel())


def test_boxes_of_several_slices_reach_a_report_too(road):
    study = road / "boxes"
    words = ("--patch-mm", 29, "--patch-depth-mm", 15, "--patch-overlap", 0.5, *PREPARE)
    smmil("prepare", road / "scans", "--labels", road / "labels.csv", "--out", study, *words)
    bag = read_bag(study / "bags/ct_0001.h5")
    assert (bag.frame.patch, bag.frame.step) == ((8, 8, 3), (4, 4, 2))
    scores = bag.x[:, 1].float().numpy()
    case = Prediction("ct_0001", [0.5], scores, coords=bag.coords.numpy(), frame=bag.frame, y=1)
    save_all(study / "p", [case])
    smmil("report", study / "p", "--slides", road / "scans", "--resamples", 0, "--out", study / "r.html")
    _, facts, _ = raster_of((study / "r.html").read_text(), 0)
    assert facts["kind"] == "volume"


def test_the_position_prior_and_suggestions_know_three_axes(road):
    told = smmil("evaluate", road / "predictions")
    assert "beside the position prior" in told
    assert "are too few for an interval of the difference" in " ".join(told.split())
    words = ("--out", road / "wanted", "--manifest", road / "study/manifest.csv")
    assert "worth marking" in smmil("suggest", road / "predictions", *words)
    assert {"x", "y", "z"} <= set(pd.read_csv(road / "wanted/marks.csv").columns)


def test_drift_measures_patches_of_a_scan_in_millimetres_along_each_axis(road):
    path = road / "study/bags/ct_0003.h5"
    case = _drift_case(read_bag(path), {"positions_mm": [0.0] * read_bag(path).n})  # as many slices as patches
    facts = dict(zip(_FACTS, _structure(case, case.x.astype(np.float64)), strict=True))
    extent = (np.ptp(case.coords, axis=0) * case.frame.spacing).max()
    assert facts["extent"] == pytest.approx(np.log(extent))
    assert np.isnan(facts["gap"])

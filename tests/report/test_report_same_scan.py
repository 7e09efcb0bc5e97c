"""A scan is shown and exported only when it is the one behind the prediction: its slices, voxels and place."""

from dataclasses import replace

import numpy as np
import pytest
from support import prepare_makers as makers
from support.ct_makers import ORIGIN, SPACING, series, voxels
from support.lesion_cases import scan_case
from support.report_slices import ROOM, case_of, grey_scan

from smmil.errors import DataError
from smmil.exports.case import ExportCase as ExportCase
from smmil.formats import read_bag, read_provenance, write_bag
from smmil.images import open_volume
from smmil.images.matching import Original, scan_difference
from smmil.predict.cases import _image_facts
from smmil.prepare import prepare_case
from smmil.report.pictures import _scan_picture

SCAN = {"slices": 36, "rows": 40, "columns": 60, "spacing_mm": [1.0, 1.0, 5.0], "ends_mm": [0.0, 175.0]}


def remembering(scan):
    return replace(scan_case("ct"), meta={"scan": scan})


def refused(path, prediction):
    """The words of both who refuse: the report (and with it the viewer) and the exports."""
    with pytest.raises(DataError) as shown:
        _scan_picture(Original(path), case_of(meta=prediction.meta), ROOM)
    with pytest.raises(DataError) as exported:
        ExportCase(prediction, image=path).volume("nifti")
    return str(shown.value), str(exported.value)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [({"slices": 35}, "a scan with 35 slices, but ct.nii.gz has 36;"),
     ({"rows": 41}, "a scan with 41 rows, but ct.nii.gz has 40;"),
     ({"columns": 512}, "a scan with 512 columns, but ct.nii.gz has 60;"),
     ({"spacing_mm": [0.98, 1.0, 5.0]}, "a scan with voxels of 0.98 × 1 × 5 mm, but ct.nii.gz has 1 × 1 × 5 mm;"),
     ({"ends_mm": [12, 187]}, "slices from 12.0 to 187.0 mm, but ct.nii.gz has them from 0.0 to 175.0 mm;")],
)  # fmt: skip
def test_another_scan_is_refused_by_report_and_exports(tmp_path, wrong, words):
    shown, exported = refused(grey_scan(tmp_path / "ct.nii.gz"), remembering({**SCAN, **wrong}))
    assert words in shown
    assert words.replace("ct.nii.gz", str(tmp_path / "ct.nii.gz")) in exported


@pytest.mark.parametrize(
    "known",
    [{}, {"rows": None, "columns": None}, {"spacing_mm": None, "ends_mm": None}, {"spacing_mm": [1.004, 1, 5]},
     {"ends_mm": [0.2, 175.2]}, {"spacing_mm": "fine", "ends_mm": [1]}],
)  # fmt: skip
def test_the_right_scan_is_taken_whatever_is_remembered(tmp_path, known):
    path, prediction = grey_scan(tmp_path / "ct.nii.gz"), remembering({**SCAN, **known})
    assert _scan_picture(Original(path), case_of(meta=prediction.meta), ROOM).layout[-1] == 36
    assert len(ExportCase(prediction, image=path).volume("nifti")) == 36


def test_without_memory_more_slices_are_refused_where_every_slice_was_an_instance(tmp_path):
    path = grey_scan(tmp_path / "ct.nii.gz", n=37)
    shown, exported = refused(path, scan_case("ct"))
    assert "a scan with 36 slices, but ct.nii.gz has 37;" in shown
    assert "a scan with 36 slices, but" in exported


def test_without_memory_and_recipe_nothing_is_certain(tmp_path):
    volume = open_volume(grey_scan(tmp_path / "ct.nii.gz", n=80))
    every_other = replace(scan_case("ct"), coords=np.arange(0, 72, 2)[:, None])
    assert scan_difference(every_other, volume) is None
    assert scan_difference(replace(scan_case("ct"), meta={}), volume) is None
    assert (
        scan_difference(replace(scan_case("ct"), meta={"features": {"encoder": "x", "recipe": None}}), volume) is None
    )


def test_predictions_of_prepared_scans_remember_them(tmp_path):
    series(tmp_path / "scan")
    job = makers.job(tmp_path / "scan", tmp_path / "out", makers.recipe(kind="ct"))
    prepare_case(job)
    volume, told = open_volume(tmp_path / "scan"), _image_facts(job.bag_path)["scan"]
    assert (told["slices"], told["rows"], told["columns"]) == voxels().shape == volume.shape
    assert told["spacing_mm"] == pytest.approx(volume.spacing_mm)
    assert told["ends_mm"] == pytest.approx([30, 55])
    prediction = replace(scan_case("ct", n=6), meta={"scan": told})
    assert scan_difference(prediction, volume) is None
    series(tmp_path / "next", origin_mm=(ORIGIN[0], ORIGIN[1], ORIGIN[2] + 7))
    assert "slices from 30.0 to 55.0 mm" in scan_difference(prediction, open_volume(tmp_path / "next")).expected
    series(tmp_path / "same voxels", spacing=SPACING)
    assert scan_difference(prediction, open_volume(tmp_path / "same voxels")) is None


def test_bags_of_earlier_versions_know_fewer_facts(tmp_path):
    series(tmp_path / "scan")
    job = makers.job(tmp_path / "scan", tmp_path / "out", makers.recipe(kind="ct"))
    prepare_case(job)
    facts = {key: value for key, value in read_provenance(job.bag_path).items() if key != "shape"}
    write_bag(tmp_path / "old.h5", read_bag(job.bag_path), graph={"kind": "chain"}, provenance=facts)
    told = _image_facts(tmp_path / "old.h5")["scan"]
    assert (told["slices"], told["rows"], told["columns"]) == (6, None, None)

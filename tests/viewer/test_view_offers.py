"""What is offered for download can be downloaded, whatever happened to the image."""

import numpy as np
import pytest
from support.ct_makers import series
from support.export_makers import META, scan_case, slide_case
from support.viewer_cases import client_of, renamed, save

from smmil.frame import Frame
from smmil.prediction import Prediction
from smmil.viewer.data import ViewerData


def offered(client, case=0):
    """The formats offered; each of them is fetched."""
    formats = client.get(f"/api/case/{case}").json()["exports"]
    for name in formats:
        answer = client.get(f"/export/{case}/0/{name}?threshold=0.5")
        assert answer.status_code == 200, (name, answer.content)
    return formats


def case_of(tmp_path, prediction, slides="slides"):
    return client_of(ViewerData.read([save(tmp_path / "p", prediction)], slides=slides and tmp_path / slides))


SLIDE = ["geojson", "csv", "parquet", "png", "tiff"]
DICOM = ["dicom-seg", "dicom-pm"]


@pytest.mark.parametrize("fate", ["there", "missing", "damaged", "another"])
@pytest.mark.parametrize("flavour", ["aperio", "dicom"])
def test_slides(tmp_path, flavour, fate):
    path, slide = slide_case(tmp_path / "slides", flavour)
    path.rename(path.with_name(f"one{path.suffix}"))
    meta = {**META, "slide": {"size": [999, 999]}} if fate == "another" else META
    if fate == "damaged":
        for file in (tmp_path / "slides").rglob("*"):
            if file.is_file():
                file.write_bytes(file.read_bytes()[:300])
    client = case_of(tmp_path, renamed(slide, "one", meta=meta), None if fate == "missing" else "slides")
    assert offered(client) == SLIDE + (DICOM if flavour == "dicom" and fate == "there" else [])


@pytest.mark.parametrize("fate", ["there", "missing", "damaged", "another"])
def test_scans(tmp_path, fate):
    _, _, scan = scan_case(tmp_path / "slides" / "two")
    if fate == "damaged":
        file = next((tmp_path / "slides" / "two").glob("*.dcm"))
        file.write_bytes(file.read_bytes()[:200])
    if fate == "another":
        series(tmp_path / "others" / "two", np.zeros((3, 5, 5), np.float32))
    where = {"missing": None, "another": "others"}.get(fate, "slides")
    client = case_of(tmp_path, renamed(scan, "two"), where)
    assert offered(client) == (["csv", "parquet", "png", "nifti", *DICOM] if fate == "there" else ["csv", "parquet"])
    assert client.get("/export/0/0/nifti").status_code == (200 if fate == "there" else 404)


def test_cases_whose_places_in_pixels_nobody_knows_are_offered_as_tables(tmp_path):
    _, slide = slide_case(tmp_path / "slides")
    unknown = renamed(slide, "x", coords=slide.coords * 0.5, frame=Frame((16, 16), (1.0, 1.0), "um"))
    assert offered(case_of(tmp_path, unknown, None)) == ["csv", "parquet"]


def test_cases_without_coordinates_are_offered_as_tables(tmp_path):
    bare = Prediction("bare", [0.3], np.arange(6.0)[:, None], meta=META)
    assert offered(case_of(tmp_path, bare, None)) == ["csv", "parquet"]

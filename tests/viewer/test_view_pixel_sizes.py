"""A pixel size from the table of slides: the page and everything that is downloaded from it use that one."""

import io
import json

import pandas as pd
import pytest
from support.export_makers import SIDE, TILE, X, Y, slide_case
from support.pyramids import planted
from support.viewer_cases import client_of, renamed, save

from smmil.frame import Frame
from smmil.synthetic import write_pyramid
from smmil.viewer.data import ViewerData

MPP = 0.2  # the file says 0.5


@pytest.fixture(params=["pixels", "micrometres"])
def client(tmp_path, request):
    """A slide whose pixel size a table corrects; the case counts pixels, or micrometres of the corrected size."""
    path, slide = slide_case(tmp_path / "slides")
    if request.param == "pixels":
        case = renamed(slide, "one", frame=Frame((TILE, TILE)))
    else:
        frame = Frame((TILE * MPP, TILE * MPP), (1.0, 1.0), "um")
        case = renamed(slide, "one", coords=slide.coords * MPP, frame=frame)
    (tmp_path / "t.csv").write_text(f"id,slide,mpp\none,slides/{path.name},{MPP}\n")
    study = ViewerData.read([save(tmp_path / "p", case)], slides=tmp_path / "t.csv")
    yield client_of(study)
    study.close()


def downloaded(client, format_):
    answer = client.get(f"/export/0/0/{format_}?threshold=0")
    assert answer.status_code == 200
    return answer.content


def test_the_page_is_told_the_size_from_the_table(client):
    assert client.get("/api/case/0").json()["mpp"] == MPP


def test_regions_are_as_large_as_the_table_says(client):
    content = json.loads(downloaded(client, "geojson"))
    assert content["smmil"]["um_per_pixel"] == MPP
    region = content["features"][0]["properties"]["measurements"]
    assert region["area px^2"] == SIDE**2
    assert region["area um^2"] == pytest.approx(SIDE**2 * MPP**2)


def test_tables_tell_places_in_those_micrometres(client):
    for table in (
        pd.read_csv(io.BytesIO(downloaded(client, "csv"))),
        pd.read_parquet(io.BytesIO(downloaded(client, "parquet"))),
    ):
        steps = sorted(set(table["x_um"].round(6)))
        assert steps == pytest.approx([TILE * MPP * i for i in range(10)])
        assert table["width_um"].tolist() == pytest.approx([TILE * MPP] * len(table))


def test_a_slide_that_does_not_say_its_size_is_offered_as_a_map_with_that_of_the_table(tmp_path):
    _, slide = slide_case(tmp_path / "elsewhere")
    write_pyramid(tmp_path / "one.svs", planted(256, 320, X, Y, SIDE), mpp=None)
    frame = Frame((TILE * MPP, TILE * MPP), (1.0, 1.0), "um")
    case = renamed(slide, "one", coords=slide.coords * MPP, frame=frame)
    (tmp_path / "t.csv").write_text(f"id,slide,mpp\none,one.svs,{MPP}\n")
    client = client_of(ViewerData.read([save(tmp_path / "p", case)], slides=tmp_path / "t.csv"))
    assert "geojson" in client.get("/api/case/0").json()["exports"]
    border = json.loads(downloaded(client, "geojson"))["features"][0]["geometry"]["coordinates"][0]
    assert (min(border), max(border)) == ([X, Y], [X + SIDE, Y + SIDE])


def test_pictures_carry_that_resolution(client):
    import tifffile

    with tifffile.TiffFile(io.BytesIO(downloaded(client, "tiff"))) as file:
        page = file.pages[0]
        count, per = page.tags["XResolution"].value
        scale = 320 / page.imagewidth
    assert count / per == pytest.approx(1e4 / (MPP * scale), rel=1e-3)

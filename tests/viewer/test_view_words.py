"""Words about files in which names of people may stand: nothing but the id of the case is left of them."""

import numpy as np
from support.ct_makers import series
from support.export_makers import META, scan_case, slide_case
from support.viewer_cases import client_of, renamed, save

from smmil.frame import Frame
from smmil.viewer.data import ViewerData

PERSON = "MUELLER_Erika"


def test_folder_and_file_names_become_the_case_in_notes_about_another_scan(tmp_path):
    series(tmp_path / "ct" / PERSON, np.zeros((3, 5, 5), np.float32))
    _, _, scan = scan_case(tmp_path / "elsewhere")
    table = tmp_path / "t.csv"
    table.write_text(f"id,slide\nx1,ct/{PERSON}\n")
    client = client_of(ViewerData.read([save(tmp_path / "p", renamed(scan, "x1"))], slides=table))
    for text in (client.get("/api/case/0").text, client.get("/slice/0/0").text):
        assert "MUELLER" not in text
        assert "x1 only 3 slices" in text


def test_long_ids_arrive_whole_so_that_they_can_be_told_apart(tmp_path):
    _, slide = slide_case(tmp_path / "slides")
    ids = ["long " * 100 + end for end in "ab"]
    client = client_of(ViewerData.read([save(tmp_path / "p", *(renamed(slide, id_) for id_ in ids))]))
    assert [case["id"] for case in client.get("/api/cases").json()["cases"]] == ids
    assert client.get("/api/case/1").json()["id"] == ids[1]


def micrometres(prediction, **meta):
    """The same case with coordinates in micrometres, as it remembers a slide of 0.5 µm per pixel."""
    frame = Frame((16, 16), (1.0, 1.0), "um")
    return renamed(prediction, "one", coords=prediction.coords * 0.5, frame=frame, meta={**META, **meta})


def test_what_the_prediction_remembers_of_its_slide_is_used_when_the_slide_is_missing_or_refused(tmp_path):
    path, slide = slide_case(tmp_path / "slides")
    path.rename(path.with_name("one.svs"))
    for size in ([320, 256], [999, 999]):  # its own slide, left out below; another slide, refused
        remembering = micrometres(slide, slide={"size": size, "mpp": 0.5})
        where = save(tmp_path / f"p{size[0]}", remembering)
        study = ViewerData.read([where], slides=None if size[0] == 320 else tmp_path / "slides")
        client = client_of(study)
        case = client.get("/api/case/0").json()
        assert case["image"] is None
        assert (case["mpp"], case["size"], case["patch"], case["step"]) == (0.5, size, [32, 32], [32, 32])
        sent = np.frombuffer(client.get("/api/case/0/coords").content, "<f4").reshape(-1, 2)
        assert np.array_equal(sent, slide.coords)
        assert len(case["notes"]) == 1


def test_a_pixel_size_nobody_knows_is_asked_for_with_the_right_option(tmp_path):
    _, slide = slide_case(tmp_path / "slides")
    client = client_of(ViewerData.read([save(tmp_path / "p", micrometres(slide))]))
    notes = client.get("/api/case/0").json()["notes"]
    assert any("micro" in note or "um" in note for note in notes)
    assert all("--image" not in note for note in notes)
    assert any("--slides" in note for note in notes)

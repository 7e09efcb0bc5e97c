"""Damage that shows only while an image is looked at: told with its reason, and the rest is shown."""

import numpy as np
import tifffile
from support.viewer_cases import client_of, save, small_study

from smmil.frame import Frame
from smmil.prediction import Prediction
from smmil.synthetic import write_pyramid
from smmil.viewer.data import ViewerData


def test_a_damaged_part_of_a_slide_is_told_and_the_rest_is_shown(tmp_path):
    rng = np.random.default_rng(0)
    image = rng.integers(0, 255, (512, 512, 3), dtype=np.uint8)
    (tmp_path / "slides").mkdir()
    path = write_pyramid(tmp_path / "slides" / "s.svs", image, mpp=0.5, flavour="aperio", factors=(1, 4), tile=256)
    with tifffile.TiffFile(path) as file:
        start, length = file.pages[0].dataoffsets[3], file.pages[0].databytecounts[3]
    data = bytearray(path.read_bytes())
    data[start : start + length] = b"\x00" * length
    path.write_bytes(data)
    frame = Frame((256, 256))
    prediction = Prediction("s", [0.5], [[0.0], [1.0]], coords=[[0, 0], [256, 256]], frame=frame)
    client = client_of(ViewerData.read([save(tmp_path / "p", prediction)], slides=tmp_path / "slides"))
    assert client.get("/api/case/0").json()["notes"] == []
    broken = client.get("/tiles/0/9/1_1.jpg")
    assert broken.status_code == 422
    assert "damaged" in broken.json()["error"]
    assert client.get("/tiles/0/9/0_0.jpg").status_code == 200
    assert client.get("/patch/0/1.jpg").status_code == 422
    (note,) = client.get("/api/case/0").json()["notes"]
    assert note.startswith("parts of this image cannot be read and are left empty; the first: s: the region at x=256")


def test_a_slice_that_cannot_be_read_any_more_is_told_without_its_name(tmp_path):
    client = client_of(small_study(tmp_path))
    assert client.get("/api/case/1").json()["notes"] == []
    for file in (tmp_path / "slides" / "two").glob("*.dcm"):
        file.write_bytes(file.read_bytes()[:-40])
    answer = client.get("/slice/1/2")
    assert answer.status_code == 422
    (note,) = client.get("/api/case/1").json()["notes"]
    assert note.startswith("parts of this image cannot be read")
    assert ".dcm" not in note

"""Marks planted wherever a person can be named appear in no answer; strange names of cases do no harm."""

import json
from urllib.parse import unquote

import numpy as np
import pydicom
import pytest
import tifffile
from support.export_makers import scan_case, slide_case
from support.privacy import assert_clean, marks, spoil, spoiled
from support.viewer_cases import client_of, renamed, save, write_bags

from smmil.viewer.data import ViewerData


def label_image(path):
    """A label and a macro image as Aperio writes them, full of one colour, appended to the slide."""
    colours = {"label": (250, 1, 2), "macro": (3, 250, 4)}
    with tifffile.TiffWriter(path, append=True) as file:
        for number, (name, colour) in enumerate(colours.items()):
            image = np.full((64, 96, 3), colour, np.uint8)
            text = f"Aperio Q45XMARK\r\n{name} 96x64"
            file.write(image, photometric="rgb", description=text, subfiletype=1 + 8 * number, rowsperstrip=64)


@pytest.fixture(params=["aperio", "dicom"])
def named_everywhere(tmp_path, request):
    """A slide and a scan of somebody, in a folder with their name, and a table that leads there."""
    folder = tmp_path / "Q49XMARK"
    path, slide = slide_case(folder, request.param)
    if request.param == "aperio":
        path.write_bytes(path.read_bytes().replace(b"Aperio Image Library", b"Aperio Q45XMARK   XX"))
        label_image(path)
        assert path.read_bytes().count(b"Q45XMARK") > 2
    scans, _, scan = scan_case(folder / "Q48XMARK")
    for file in [*scans.glob("*.dcm"), *(path.glob("*.dcm") if path.is_dir() else [])]:
        dataset = pydicom.dcmread(file)
        assert spoil(dataset) >= 30
        dataset.save_as(file)
        if file.parent == scans:
            file.rename(file.with_name(f"Q47XMARK {file.name}"))
    predictions = [renamed(spoiled(p), id_) for p, id_ in ((slide, "one"), (scan, "two"))]
    table = tmp_path / "slides.csv"
    table.write_text(f"id,slide\none,{path}\ntwo,{scans}\n")
    features = np.random.default_rng(0).normal(size=(slide.n, 4)).astype(np.float32)
    bags = write_bags(folder / "Q46XMARK", predictions[0], features)
    study = ViewerData.read([save(tmp_path / "p", *predictions)], slides=table, bags=bags)
    yield client_of(study), path, scans, tmp_path
    study.close()


def everything(client):
    """Every answer there is for the two cases, with its headers."""
    for case in (0, 1):
        about = client.get(f"/api/case/{case}").json()
        paths = [
            f"/api/case/{case}",
            f"/api/case/{case}/coords",
            f"/api/case/{case}/scores/0",
            f"/thumbnail/{case}.png",
        ]
        paths += [f"/api/case/{case}/instance/{i}" for i in range(0, about["instances"], 9)]
        paths += [f"/export/{case}/0/{name}?threshold=0" for name in about["exports"]]
        if about["image"]:
            paths += [f"/tiles/{case}/{level}/0_0.jpg" for level in range(about["image"]["levels"])]
            paths += [f"/patch/{case}/{i}.jpg" for i in (0, 40)]
        paths += [f"/slice/{case}/{k}" for k in range(about["scan"]["slices"])] if about["scan"] else []
        yield from ((path, client.get(path)) for path in paths)
    yield "/api/cases", client.get("/api/cases")


def test_nothing_of_a_person_is_in_any_answer(named_everywhere):
    client, _, _, tmp_path = named_everywhere
    seen = 0
    for path, answer in everything(client):
        assert answer.status_code == 200, (path, answer.content[:200])
        told = answer.content + repr(answer.headers).encode()
        assert [mark for mark in marks() if mark.encode() in told] == [], path
        assert str(tmp_path).encode() not in told, path
        if path.startswith("/export/"):
            ending = {"parquet": ".parquet", "nifti": ".nii.gz"}.get(path.split("/")[4].split("?")[0], "")
            ending = ".dcm" if "dicom" in path else ending
            unpacked = tmp_path / f"unpacked{seen}{ending}"
            unpacked.write_bytes(answer.content)
            assert_clean(unpacked)
        seen += 1
    assert seen > 30


def test_neither_is_it_in_the_words_about_damaged_files(named_everywhere):
    client, path, scans, tmp_path = named_everywhere
    for file in [path, *scans.glob("*.dcm"), *(path.glob("*") if path.is_dir() else [])]:
        if file.is_file():
            file.write_bytes(file.read_bytes()[:400])
    bag = tmp_path / "Q49XMARK" / "Q46XMARK" / "bag.h5"
    bag.write_bytes(bag.read_bytes()[:100])
    asked = ["/api/case/0", "/api/case/1", "/tiles/0/9/0_0.jpg", "/patch/0/0.jpg", "/slice/1/0", "/export/1/0/nifti"]
    asked += ["/export/0/0/tiff", "/export/1/0/dicom-pm", "/api/case/0/instance/0", "/thumbnail/0.png"]
    for address in asked:
        answer = client.get(address)
        assert answer.status_code in (200, 400, 404, 422)
        assert [mark for mark in marks() if mark.encode() in answer.content] == [], answer.content
        assert str(tmp_path).encode() not in answer.content
        if answer.status_code != 200:
            assert "\n" not in answer.json()["error"]
    assert client.get("/api/case/0/instance/0").json()["similar"] is None


def test_label_and_macro_images_are_nowhere(tmp_path):
    import io

    import openslide
    from PIL import Image

    path, prediction = slide_case(tmp_path / "slides")
    label_image(path)
    path = path.rename(path.with_name("one.svs"))
    assert {"label", "macro"} & set(openslide.OpenSlide(path).associated_images)
    client = client_of(ViewerData.read([save(tmp_path / "p", renamed(prediction, "one"))], slides=tmp_path / "slides"))
    levels = client.get("/api/case/0").json()["image"]["levels"]
    shown = [f"/tiles/0/{level}/{column}_0.jpg" for level in range(levels) for column in (0, 1)] + ["/thumbnail/0.png"]
    for path in shown:
        answer = client.get(path)
        if answer.status_code == 200:
            pixels = np.asarray(Image.open(io.BytesIO(answer.content)).convert("RGB")).astype(int)
            for colour in ((250, 1, 2), (3, 250, 4)):
                assert np.abs(pixels - colour).max(2).min() > 30, path
    for name in ("label", "macro", "thumbnail"):
        for path in (
            f"/{name}/0",
            f"/{name}/0.jpg",
            f"/tiles/0/{name}",
            f"/tiles/0/{name}/0_0.jpg",
            f"/api/case/0/{name}",
        ):
            assert client.get(path).status_code == 404


NAMES = [
    'it\'s "quoted"',
    "<script>alert(1)</script>",
    "Größe 病理 🙂",
    "a\r\nSet-Cookie: x=y",
    "../../etc/passwd",
    "{{7*7}} ${x} %s %00",
    "\u202etxt.exe",
    "x" * 3000,
    "\ud800 lone",
    "con.nul;name=\\evil",
]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_strange_names_of_cases_arrive_as_text_and_harm_nothing(tmp_path, name):
    _, prediction = slide_case(tmp_path / "slides")
    study = ViewerData.read([save(tmp_path / "p", renamed(prediction, name))])
    client = client_of(study)
    listed = client.get("/api/cases")
    assert listed.status_code == 200
    (case,) = json.loads(listed.content.decode("ascii"))["cases"]
    assert case["id"].isprintable()
    assert client.get("/api/case/0").json()["id"] == case["id"]
    for format_ in ("csv", "geojson", "png"):
        answer = client.get(f"/export/0/0/{format_}")
        assert answer.status_code == 200
        line = answer.headers["content-disposition"]
        assert line.isascii()
        assert line.isprintable()
        kind, plain, exact = line.split("; ")
        assert kind == "attachment"
        assert set(plain.removeprefix('filename="').removesuffix('"')) & set("\"'\\/<>;%\r\n") == set()
        offered = unquote(exact.removeprefix("filename*=UTF-8''"))
        assert not set(offered) & set('/\\<>:"|?*\r\n\0')
        assert not offered.startswith(".")
        assert len(offered.encode()) < 255
    study.close()

"""Many predictions at once: one that cannot be used stops no other, and images are found by name or by table."""

import csv
import json

import pandas as pd
import pytest
from support.export_command import run, tile_case
from support.export_makers import TILE, slide_case

from smmil.errors import DataError
from smmil.exports import export
from smmil.frame import Frame
from smmil.images.matching import Original
from smmil.prediction import Prediction

HALF = "a\udc80b"


def failures(folder):
    with (folder / "export_failures.csv").open(newline="", encoding="utf-8") as file:
        return dict(list(csv.reader(file))[1:])


def test_a_damaged_file_is_listed_and_the_others_are_written(tmp_path):
    for name in "abc":
        tile_case(name).save(tmp_path / "in" / f"{name}.npz")
    (tmp_path / "in" / "b.npz").write_bytes((tmp_path / "in" / "b.npz").read_bytes()[:100])
    told = run(tmp_path / "in", "--to", "csv", "--out", tmp_path / "out", code=3)
    assert "2 written, 1 failed" in told
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["a.csv", "c.csv", "export_failures.csv"]
    (reason,) = failures(tmp_path / "out").values()
    assert "b.npz" in failures(tmp_path / "out")
    assert "not readable as a prediction" in reason


def test_of_two_files_the_sound_one_still_goes_into_a_folder(tmp_path):
    tile_case("a").save(tmp_path / "in" / "a.npz")
    (tmp_path / "in" / "b.npz").write_bytes(b"")
    done = export(tmp_path / "in", "csv", tmp_path / "out")
    assert (done.written, list(done.failed)) == ([tmp_path / "out" / "a.csv"], ["b.npz"])


def test_a_single_damaged_file_and_a_file_that_is_not_there_are_errors(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"PK nothing")
    with pytest.raises(DataError, match=r"a\.npz: not readable as a prediction"):
        export(tmp_path / "a.npz", "csv", tmp_path / "a.csv")
    tile_case("b").save(tmp_path / "b.npz")
    with pytest.raises(DataError, match=r"c\.npz: no such file"):
        export([tmp_path / "b.npz", tmp_path / "c.npz"], "csv", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_same_case_twice_is_refused(tmp_path):
    for name in ("one", "two"):
        tile_case("same").save(tmp_path / f"{name}.npz")
    with pytest.raises(DataError, match="id 'same' is already in"):
        export(tmp_path, "csv", tmp_path / "out")


@pytest.mark.parametrize("to", ["csv", "parquet", "geojson", "tiff", "png"])
def test_an_id_with_half_a_character_is_one_clear_error(tmp_path, to):
    with pytest.raises(DataError, match=r"id 'a\\udc80b': holds half a character .* rename the case"):
        export(tile_case(HALF), to, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_id_with_half_a_character_stops_no_other_case(tmp_path):
    for name, id_ in {"half": HALF, "good": "good"}.items():
        tile_case(id_).save(tmp_path / "in" / f"{name}.npz")
    told = run(tmp_path / "in", "--to", "csv", "--out", tmp_path / "out", code=3)
    assert "1 written, 1 failed" in told
    assert "half a character" in failures(tmp_path / "out")["half.npz"]


def test_the_list_of_failures_holds_no_formula(tmp_path):
    for id_ in ("=1+1", "fine"):
        Prediction(id_, [0.5], [1.0, 2.0]).save(tmp_path / "in" / f"{id_}.npz")
    export(tmp_path / "in", "geojson", tmp_path / "out")
    assert failures(tmp_path / "out").keys() == {"'=1+1", "fine"}
    assert all(reason.startswith(("'=1+1: ", "fine: ")) for reason in failures(tmp_path / "out").values())


def table_of(path, *rows):
    path.write_text("\n".join(["id,slide,mpp", *rows]) + "\n")
    return path


def test_a_table_names_the_slide_of_a_single_case_and_of_several(tmp_path):
    _, prediction = slide_case(tmp_path / "slides", "leica")
    (file,) = (tmp_path / "slides").iterdir()
    table = table_of(tmp_path / "t.csv", f"case,slides/{file.name},", f"other,slides/{file.name},")
    prediction.save(tmp_path / "in" / "1.npz")
    run(tmp_path / "in", "--to", "csv", "--image", table, "--out", tmp_path / "one.csv")
    Prediction(**{**vars(prediction), "id": "other"}).save(tmp_path / "in" / "2.npz")
    run(tmp_path / "in", "--to", "csv", "--image", table, "--out", tmp_path / "out")
    for path in (tmp_path / "one.csv", tmp_path / "out" / "case.csv", tmp_path / "out" / "other.csv"):
        bounds = pd.read_csv(path)[["bounds_x", "bounds_y"]]
        assert bounds.drop_duplicates().to_numpy().tolist() == [[64, 32]]


def test_a_case_that_the_table_does_not_name_is_said(tmp_path):
    path, prediction = slide_case(tmp_path / "slides", "generic")
    table = table_of(tmp_path / "t.csv", f"other,{path},")
    with pytest.raises(DataError, match=r"case: no image of this name in .*t\.csv"):
        export(prediction, "png", tmp_path / "a.png", image=table)
    (tmp_path / "wrong.csv").write_text("name,slide\ncase,x\n")
    with pytest.raises(DataError, match="columns name, slide; expected id and slide"):
        export(prediction, "png", tmp_path / "a.png", image=tmp_path / "wrong.csv")


def test_the_pixel_size_of_the_table_wins_over_the_file(tmp_path):
    path, prediction = slide_case(tmp_path / "slides", "generic")
    table = table_of(tmp_path / "t.csv", f"case,{path},0.25")
    for image in (table, Original(path, 0.25)):
        export(prediction, "geojson", tmp_path / "a.geojson", image=image)
        assert json.loads((tmp_path / "a.geojson").read_text())["smmil"]["um_per_pixel"] == 0.25


def test_places_in_pixels_are_told_in_micrometres_too_when_the_slide_says_their_size(tmp_path):
    path, prediction = slide_case(tmp_path / "slides", "leica", frame=Frame((TILE, TILE)))
    for image, mpp in ((path, 0.5), (Original(path, 0.25), 0.25)):
        export(prediction, "csv", tmp_path / "a.csv", image=image)
        table = pd.read_csv(tmp_path / "a.csv")
        for name, size in (("x", "width"), ("y", "height")):
            assert table[f"{name}_um"].tolist() == (table[name] * mpp).tolist()
            assert set(table[f"{size}_um"]) == {TILE * mpp}
    export(prediction, "csv", tmp_path / "a.csv")
    assert "x_um" not in pd.read_csv(tmp_path / "a.csv")


def test_a_file_that_is_no_table_does_not_serve_several_cases(tmp_path):
    path, prediction = slide_case(tmp_path / "slides", "generic")
    for name in "ab":
        Prediction(**{**vars(prediction), "id": name}).save(tmp_path / "in" / f"{name}.npz")
    with pytest.raises(DataError, match="give --image a folder of images or id,slide rows"):
        export(tmp_path / "in", "png", tmp_path / "out", image=path)

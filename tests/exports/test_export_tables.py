"""Tables: one row per instance, read back with pandas and pyarrow."""

import csv
import json

import numpy as np
import pandas as pd
import pytest
from pyarrow import parquet
from support.export_makers import META, scan_case, slide_case

from smmil.exports import export
from smmil.frame import Frame
from smmil.prediction import Prediction

FIRST = ["bag", "x", "y", "width", "height", "score", "probability", "label"]


def small(**changes):
    given = {
        "coords": np.array([[0, 512], [256, 512], [256, 768]]),
        "frame": Frame((256, 128), (0.5, 0.25), "um"),
        "y_inst": [1, 0, -1],
        "meta": {**META, "score_kind": "instance logit", "bounds": [100, 200, 5000, 4000]},
        **changes,
    }
    return Prediction("bag,1", [0.75], np.array([0, np.log(3), -2.5], np.float32), **given)


def test_every_row_of_the_csv_is_what_the_prediction_says(tmp_path):
    export(small(), "csv", tmp_path / "a.csv", threshold=0)
    table = pd.read_csv(tmp_path / "a.csv")
    assert list(table)[:8] == FIRST
    assert table["bag"].tolist() == ["bag,1"] * 3
    assert table[["x", "y"]].to_numpy().tolist() == [[0, 512], [256, 512], [256, 768]]
    assert set(zip(table["width"], table["height"], strict=True)) == {(256, 128)}
    assert np.array_equal(table["score"].to_numpy(np.float32), small().scores[:, 0])
    assert table["probability"].tolist() == pytest.approx([0.5, 0.75, 1 / (1 + np.exp(2.5))], rel=1e-6)
    assert table["label"].tolist()[:2] == [1, 0]
    assert pd.isna(table["label"][2])
    assert table["positive"].tolist() == [True, True, False]
    assert table["case_probability"].tolist() == [0.75] * 3
    assert table[["x_um", "y_um"]].to_numpy().tolist() == [[0, 128], [128, 128], [128, 192]]
    assert table[["width_um", "height_um"]].to_numpy()[0].tolist() == [128, 32]
    assert table[["bounds_x", "bounds_y"]].to_numpy()[0].tolist() == [100, 200]
    assert table[["model", "weights", "use"]].to_numpy()[2].tolist() == ["sm_ap", "ab" * 32, "research use only"]


def test_parquet_holds_the_same_rows_with_provenance_in_the_file(tmp_path):
    export(small(), "csv", tmp_path / "a.csv", threshold=0)
    export(small(), "parquet", tmp_path / "a.parquet", threshold=0)
    table = pd.read_parquet(tmp_path / "a.parquet")
    same = pd.read_csv(tmp_path / "a.csv")[list(table)]
    pd.testing.assert_frame_equal(table, same, check_dtype=False)
    facts = json.loads(parquet.read_schema(tmp_path / "a.parquet").metadata[b"smmil"])
    assert (facts["model"], facts["threshold"], facts["case"]) == ("sm_ap", 0, "bag,1")


def test_the_hottest_row_is_the_planted_place(tmp_path):
    path, prediction = slide_case(tmp_path, "leica")
    export(prediction, "csv", tmp_path / "a.csv", image=path)
    table = pd.read_csv(tmp_path / "a.csv")
    hot = table[table["score"] == 1]
    assert (hot["x"].min(), hot["y"].min()) == (64 + 128, 32 + 96)
    assert ((hot["x"] + hot["width"]).max(), (hot["y"] + hot["height"]).max()) == (64 + 192, 32 + 160)
    assert table[["bounds_x", "bounds_y"]].drop_duplicates().to_numpy().tolist() == [[64, 32]]
    assert table["probability"].isna().all()


def test_slices_count_along_z_in_millimetres(tmp_path):
    folder, _, prediction = scan_case(tmp_path / "ct")
    export(prediction, "csv", tmp_path / "a.csv")
    table = pd.read_csv(tmp_path / "a.csv")
    assert table["z"].tolist() == list(range(6))
    assert table["z_mm"].tolist() == pytest.approx([0, 5, 10, 15, 20, 25])
    assert table[["x", "y", "width", "height"]].isna().all(axis=None)
    export(prediction, "csv", tmp_path / "b.csv", image=folder)
    table = pd.read_csv(tmp_path / "b.csv")
    assert table[["x", "y", "width", "height"]].drop_duplicates().to_numpy().tolist() == [[0, 0, 7, 9]]


def test_boxes_have_three_coordinates_and_a_depth(tmp_path):
    _, _, prediction = scan_case(tmp_path / "ct", boxes=True)
    export(prediction, "csv", tmp_path / "a.csv")
    table = pd.read_csv(tmp_path / "a.csv")
    assert table[["x", "y", "z"]].to_numpy().tolist() == prediction.coords.tolist()
    assert table[["width", "height", "depth"]].to_numpy()[0].tolist() == [1, 1, 1]
    assert table["z_mm"].tolist() == pytest.approx((prediction.coords[:, 2] * 5.0).tolist())


def test_scores_of_several_classes_are_all_kept(tmp_path):
    scores = np.array([[0.0, 1.0, 2.0], [3.0, 0.0, -1.0]], np.float32)
    prediction = Prediction(
        "m", [0.2, 0.3, 0.5], scores, coords=[[0, 0], [1, 1]], meta={"score_kind": "instance logit"}
    )
    export(prediction, "csv", tmp_path / "a.csv", column=1)
    table = pd.read_csv(tmp_path / "a.csv")
    assert table["score"].tolist() == [1, 0]
    assert table[["score_0", "score_1", "score_2"]].to_numpy().tolist() == scores.tolist()
    assert table["probability"][0] == pytest.approx(np.exp(1) / np.exp([0, 1, 2]).sum())
    assert table["case_probability"].isna().all()


FORMULAS = ("=1+1", "+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "  =1+1", "＝1+1", '=HYPERLINK("http://x","y")')


@pytest.mark.parametrize("text", FORMULAS)
def test_a_spreadsheet_computes_no_text_of_a_csv(tmp_path, text):
    odd = Prediction(**{**vars(small()), "id": text, "meta": {**META, "model": text, "score_kind": text}})
    export(odd, "csv", tmp_path / "a.csv", threshold=0)
    with (tmp_path / "a.csv").open(newline="", encoding="utf-8") as file:
        heads, *rows = csv.reader(file)
    for row in rows:
        told = dict(zip(heads, row, strict=True))
        assert told["bag"] == "'" + text.replace("\r", "\n")
        assert all(told[key].startswith("'") for key in ("model", "score_kind"))
        assert not told["score"].startswith("'")


@pytest.mark.parametrize("text", ["case-1", "a=b", "1", "x@y", "'quoted", "ä"])
def test_other_texts_stay_as_they_are(tmp_path, text):
    export(Prediction(**{**vars(small()), "id": text}), "csv", tmp_path / "a.csv")
    assert set(pd.read_csv(tmp_path / "a.csv", dtype=str)["bag"]) == {text}


@pytest.mark.parametrize("text", FORMULAS)
def test_parquet_keeps_every_text(tmp_path, text):
    export(Prediction(**{**vars(small()), "id": text}), "parquet", tmp_path / "a.parquet")
    assert set(pd.read_parquet(tmp_path / "a.parquet")["bag"]) == {text}


@pytest.mark.parametrize("to", ["csv", "parquet"])
def test_a_case_without_coordinates_has_rows_with_empty_places(tmp_path, to):
    done = export(small(coords=None), to, tmp_path / f"a.{to}", threshold=0)
    table = pd.read_csv(done.written[0]) if to == "csv" else pd.read_parquet(done.written[0])
    assert list(table)[:8] == FIRST
    assert table[["x", "y", "width", "height"]].isna().all(axis=None)
    assert np.array_equal(table["score"].to_numpy(np.float32), small().scores[:, 0])
    assert table["positive"].tolist() == [True, True, False]
    assert [note for _, note in done.notes] == [
        "the prediction stores no coordinates: the places of its instances are empty"
    ]


def test_a_text_never_begins_a_row_of_its_own(tmp_path):
    export(Prediction(**{**vars(small()), "id": "a\r=1+1\r\n=2"}), "csv", tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(newline="", encoding="utf-8") as file:
        assert [row[0] for row in csv.reader(file)] == ["bag", *["a\n=1+1\n=2"] * 3]

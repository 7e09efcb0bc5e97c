"""How sure a map is: from the model into the file, the tables, the second map and the viewer."""

import json

import numpy as np
import pandas as pd
import pytest
from support.bags import grid_bag
from support.export_makers import scan_case, slide_case
from support.viewer_cases import client_of, save
from typer.testing import CliRunner

from smmil.bag import BagBatch
from smmil.cli import app
from smmil.errors import ConfigError, DataError
from smmil.exports import export
from smmil.models import create_model
from smmil.predict import predict
from smmil.prediction import Prediction
from smmil.viewer.data import ViewerData


def sure(prediction, seed=0):
    """The prediction with a standard deviation for every instance."""
    spread = np.random.default_rng(seed).uniform(0.1, 2, prediction.n).astype(np.float32)
    return Prediction(**{**vars(prediction), "uncertainty": spread})


def test_it_is_saved_and_loaded_again(tmp_path):
    case = Prediction("a", [0.5], [1.0, 2.0], uncertainty=np.array([[0.5], [0.25]], np.float32))
    case.save(tmp_path / "a.npz")
    again = Prediction.load(tmp_path / "a.npz")
    assert again.uncertainty.tolist() == [0.5, 0.25]
    assert again.uncertainty.dtype == np.float32


def test_a_file_without_it_has_no_trace_of_it(tmp_path):
    Prediction("a", [0.5], [1.0, 2.0]).save(tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as content:
        assert sorted(content.files) == ["facts", "probs", "scores", "sha256"]
    assert Prediction.load(tmp_path / "a.npz").uncertainty is None


@pytest.mark.parametrize("wrong", [[0.1], [0.1, -0.1], [0.1, np.nan], [[1, 2], [3, 4]]])
def test_what_is_no_deviation_is_refused(wrong):
    with pytest.raises(DataError, match="a: uncertainty"):
        Prediction("a", [0.5], [1.0, 2.0], uncertainty=np.array(wrong))


def test_predict_carries_what_the_model_says_bag_by_bag():
    model, bags = create_model("prob_sm_ap", 16), [grid_bag(30), grid_bag(9, seed=1)]
    found = predict(model, bags)
    model.eval()
    for prediction, bag in zip(found, bags, strict=True):
        out = model(BagBatch.pack([bag]))
        assert np.allclose(prediction.uncertainty, out.uncertainty[:, 0].numpy())
    assert predict(create_model("sm_ap", 16), bags)[0].uncertainty is None


def test_validation_does_not_pay_for_it():
    model, asked = create_model("prob_sm_ap", 16), []
    model.pool.register_forward_pre_hook(lambda _, given: asked.append(given[-1]))
    assert predict(model, [grid_bag(9)], spatial=False)[0].uncertainty is None
    assert asked == [False]
    assert predict(model, [grid_bag(9)])[0].uncertainty is not None
    assert model.gives_uncertainty


def test_tables_and_tiles_hold_it(tmp_path):
    path, prediction = slide_case(tmp_path)
    prediction = sure(prediction)
    export(prediction, "csv", tmp_path / "a.csv")
    export(prediction, "parquet", tmp_path / "a.parquet")
    export(prediction, "geojson", tmp_path / "a.geojson", image=path)
    tiles = json.loads((tmp_path / "a.geojson").read_text())["features"]
    for column in (
        pd.read_csv(tmp_path / "a.csv")["uncertainty"],
        pd.read_parquet(tmp_path / "a.parquet")["uncertainty"],
        [tile["properties"]["measurements"]["uncertainty"] for tile in tiles],
    ):
        assert np.allclose(column, prediction.uncertainty, rtol=1e-6)


def test_a_second_map_shows_it_in_the_geometry_of_the_first(tmp_path):
    nibabel = pytest.importorskip("nibabel")
    folder, _, prediction = scan_case(tmp_path / "scan")
    sure(prediction).save(tmp_path / "scan.npz")
    told = []
    for layer in ("score", "uncertainty"):
        arguments = ["export", tmp_path / "scan.npz", "--to", "nifti", "--image", folder, "--layer", layer]
        done = CliRunner().invoke(app, [*map(str, arguments), "--out", str(tmp_path / f"{layer}.nii.gz")])
        assert done.exit_code == 0, done.output
        told.append(nibabel.load(tmp_path / f"{layer}.nii.gz"))
    assert np.array_equal(told[0].affine, told[1].affine)
    by_slice = np.nanmax(told[1].get_fdata(), axis=(0, 1))
    assert sorted(by_slice) == pytest.approx(sorted(sure(prediction).uncertainty.tolist()))


def test_a_map_that_does_not_exist_is_one_clear_error(tmp_path):
    path, prediction = slide_case(tmp_path)
    with pytest.raises(DataError, match="case: the prediction holds no uncertainty"):
        export(prediction, "png", tmp_path / "a.png", image=path, layer="uncertainty")
    with pytest.raises(ConfigError, match="--layer uncertainty: --threshold and --column are about scores"):
        export(sure(prediction), "png", tmp_path / "a.png", image=path, layer="uncertainty", threshold=1.0)
    with pytest.raises(ConfigError, match="did you mean uncertainty"):
        export(sure(prediction), "png", tmp_path / "a.png", image=path, layer="uncertanty")


def test_the_viewer_offers_it_beside_the_scores(tmp_path):
    _, prediction = slide_case(tmp_path / "slides")
    save(tmp_path / "predictions" / "known", sure(prediction))
    save(tmp_path / "predictions" / "plain", prediction)
    places = [tmp_path / "predictions" / name for name in ("known", "plain")]
    client = client_of(ViewerData.read(places, threshold=0.5))
    models = client.get("/api/cases").json()["models"]
    assert [(m["name"], m["score_kind"]) for m in models] == [
        ("known", "attention logit"),
        ("known uncertainty", "standard deviation"),
        ("plain", "attention logit"),
    ]
    sent = np.frombuffer(client.get("/api/case/0/scores/1").content, "<f4")
    assert np.array_equal(sent, sure(prediction).uncertainty)
    assert models[1]["range"] == [sent.min(), sent.max()]
    assert client.get("/export/0/1/csv").status_code == 200

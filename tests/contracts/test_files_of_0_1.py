"""Files written by version 0.1.0 are read, and give the numbers they gave then.

`data_0_1` was written by 0.1.0: eight synthetic bags and their table, a run of two models with predictions of its test
part and a package each, and a small slide prepared with the embedded encoder.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from smmil.bag import BagBatch
from smmil.config import load_config
from smmil.data.manifest import Manifest
from smmil.formats import read_bag, read_provenance
from smmil.packaging import load_package
from smmil.predict import predict, predict_run
from smmil.prediction import Prediction, load_predictions
from smmil.prepare import load_recipe, plan, run
from smmil.synthetic import synthetic_slides
from smmil.train import train
from smmil.train.folder import _read_state

OLD = Path(__file__).parents[1] / "data_0_1"
MODELS = ("abmil", "sm_ap")


@pytest.fixture
def old(tmp_path):
    """A copy, so that no test can change what 0.1.0 wrote."""
    return Path(shutil.copytree(OLD, tmp_path / "old"))


def test_bags_and_their_table_hold_what_was_drawn():
    manifest = Manifest.read(OLD / "manifest.csv")
    manifest.check()
    drawn = synthetic_slides(8, seed=1, size=(9, 14), dim=4, lesion=(0.1, 0.3))
    assert list(manifest.ids) == [bag.id for bag in drawn]
    for expected in drawn:
        bag = manifest.bag(expected.id)
        np.testing.assert_allclose(bag.x.float(), expected.x.half().float())
        assert bag.coords.tolist() == expected.coords.tolist()
        assert bag.y_inst.tolist() == expected.y_inst.tolist()
        assert (bag.y, bag.frame) == (expected.y, expected.frame)
        assert bag.graph.same_as(expected.graph)


@pytest.mark.parametrize("model", MODELS)
def test_an_old_run_predicts_the_old_numbers_for_old_bags(model, old, tmp_path):
    done = predict_run(old / "trained" / model, out=tmp_path / "now", manifest=old / "manifest.csv", part="test")
    assert done.failed == {}
    then, now = (load_predictions(folder) for folder in (OLD / "predictions" / model, tmp_path / "now"))
    assert [p.id for p in now] == [p.id for p in then] != []
    for a, b in zip(then, now, strict=True):
        np.testing.assert_allclose(b.probs, a.probs, rtol=0, atol=1e-6)
        np.testing.assert_allclose(b.scores, a.scores, rtol=0, atol=1e-6)
        for name in ("coords", "edges", "y_inst"):
            assert np.array_equal(getattr(b, name), getattr(a, name))
        assert (b.y, b.frame) == (a.y, a.frame)
        assert b.meta["weights"] == a.meta["weights"]


@pytest.mark.parametrize("model", MODELS)
def test_a_finished_old_run_is_known_as_finished_and_its_checkpoints_are_read(model, old):
    folder = old / "trained" / model
    before = {path: path.read_bytes() for path in folder.rglob("*.safetensors")}
    state = _read_state(folder / "checkpoints/last.safetensors")
    assert state.epoch == 2
    config = load_config(folder / "config.yaml", [f"data.manifest={old / 'manifest.csv'}"])
    train(config, folder)
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"
    assert {path: path.read_bytes() for path in folder.rglob("*.safetensors")} == before


@pytest.mark.parametrize("model", MODELS)
def test_an_old_package_gives_the_old_numbers(model):
    package, manifest = load_package(OLD / "packages" / model), Manifest.read(OLD / "manifest.csv")
    for then in load_predictions(OLD / "predictions" / model):
        (now,) = predict(package.model, [BagBatch.pack([manifest.bag(then.id)])])
        np.testing.assert_allclose(now.probs, then.probs, rtol=0, atol=1e-6)
        np.testing.assert_allclose(now.scores, then.scores, rtol=0, atol=1e-6)


@pytest.mark.parametrize("model", MODELS)
def test_the_onnx_file_of_an_old_package_takes_bags_as_they_are_read_now(model):
    runtime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    manifest = Manifest.read(OLD / "manifest.csv")
    session = runtime.InferenceSession(OLD / "packages" / model / "model.onnx", providers=["CPUExecutionProvider"])
    for then in load_predictions(OLD / "predictions" / model):
        bag = manifest.bag(then.id)
        given = {"features": bag.x.float(), "edges": bag.graph.edges(), "edge_weight": bag.graph.weight.float()}
        logits, scores = session.run(None, {i.name: given[i.name].numpy() for i in session.get_inputs()})
        np.testing.assert_allclose(1 / (1 + np.exp(-logits[0])), then.probs, rtol=0, atol=1e-6)
        np.testing.assert_allclose(scores, then.scores, rtol=0, atol=1e-5)


def test_an_old_prediction_is_saved_and_read_again_unchanged(tmp_path):
    for path in sorted((OLD / "predictions").rglob("*.npz")):
        then = Prediction.load(path)
        then.save(tmp_path / "again.npz")
        now = Prediction.load(tmp_path / "again.npz")
        assert (now.id, now.y, now.frame, now.meta) == (then.id, then.y, then.frame, then.meta)
        for name in ("probs", "scores", "coords", "edges", "y_inst"):
            assert np.array_equal(getattr(now, name), getattr(then, name))


def test_a_slide_prepared_by_the_old_version_is_kept_under_the_same_recipe(old):
    """The digest of a recipe is the same as then: no slide is prepared again after an update."""
    recipe = load_recipe(None, {"tile_um": 32.0, "encoder_pixels": 32})
    before = (old / "prepared/bags/s0.h5").read_bytes()
    done = run(plan([old / "slides"], old / "prepared", recipe, device="cpu"))
    assert (done.count("kept"), done.failures) == (1, ())
    assert (old / "prepared/bags/s0.h5").read_bytes() == before
    assert read_bag(old / "prepared/bags/s0.h5").x.shape == (4, 1280)
    facts = read_provenance(old / "prepared/bags/s0.h5")
    assert facts["encoder"].startswith("efficientnet-lite0@")
    assert facts["settings"]["tile_um"] == 32.0

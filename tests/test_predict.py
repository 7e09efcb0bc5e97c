"""Predictions: what the model is shown, what is carried along, and what a run writes."""

import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from smmil.bag import BagBatch
from smmil.config import load_config
from smmil.data import Manifest
from smmil.errors import ConfigError, DataError
from smmil.files import file_name
from smmil.formats import read_bag, write_bag
from smmil.models import Output, create_model, list_models
from smmil.predict import feature_source, load_run, predict, predict_run
from smmil.prediction import Prediction
from smmil.synthetic import synthetic_scans, synthetic_slides, write_synthetic
from smmil.train import train


class Fixed(nn.Module):
    """Gives logits and scores that can be computed by hand, and remembers what it saw."""

    score_kind = "first feature"

    def __init__(self, classes=1):
        super().__init__()
        self.classes, self.drop, self.seen = classes, nn.Dropout(0.5), []

    def forward(self, batch):
        self.seen.append((batch.y, batch.y_inst, self.training, torch.is_grad_enabled(), batch.x.dtype))
        scores = self.drop(batch.x[:, :1])
        logits = torch.stack([torch.arange(self.classes) * rows.mean() + rows.mean() for rows in batch.split(scores)])
        return Output(logits, scores)


@pytest.fixture(scope="module")
def bags():
    return synthetic_slides(3, seed=1, size=(12, 20), dim=5)


def test_probabilities_are_the_sigmoid_of_one_logit_or_the_softmax_of_several(bags):
    means = [float(bag.x[:, 0].mean()) for bag in bags]
    one = predict(Fixed(), [BagBatch.pack(bags)])
    assert [p.probs.tolist() for p in one] == [pytest.approx([1 / (1 + np.exp(-m))], rel=1e-6) for m in means]
    three = predict(Fixed(3), [BagBatch.pack(bags)])
    for prediction, m in zip(three, means, strict=True):
        powers = np.exp(m * np.array([1, 2, 3]))
        assert prediction.probs == pytest.approx(powers / powers.sum(), rel=1e-6)


def test_the_model_sees_no_labels_no_gradients_and_no_training_mode(bags):
    model = Fixed().train()
    predict(model, [BagBatch.pack(bags)])
    ((y, y_inst, training, grad, dtype),) = model.seen
    assert y is None
    assert y_inst is None
    assert (training, grad, dtype) == (False, False, torch.float32)
    assert model.training


def test_labels_places_and_edges_come_back_with_each_case(bags):
    predictions = predict(Fixed(), [BagBatch.pack(bags[:2]), BagBatch.pack(bags[2:])], meta={"seed": 4})
    for bag, found in zip(bags, predictions, strict=True):
        assert (found.id, found.y, found.frame) == (bag.id, bag.y, bag.frame)
        assert np.array_equal(found.edges, bag.graph.edges().numpy())
        assert np.array_equal(found.coords, bag.coords.numpy())
        assert np.array_equal(found.y_inst, bag.y_inst.numpy())
        assert np.array_equal(found.scores[:, 0], bag.x[:, 0].float().numpy())
        assert found.scores.dtype == np.float32
        assert found.meta == {"score_kind": "first feature", "seed": 4}


@pytest.mark.parametrize("make", [synthetic_slides, synthetic_scans])
def test_packing_does_not_change_predictions(make):
    bags = make(4, seed=2, dim=5)
    torch.manual_seed(0)
    model = create_model("sm_ap", 5, dim=8)
    together = predict(model, [BagBatch.pack(bags)])
    alone = predict(model, [BagBatch.pack([bag]) for bag in bags])
    for a, b in zip(together, alone, strict=True):
        np.testing.assert_allclose(a.probs, b.probs, rtol=1e-5)
        np.testing.assert_allclose(a.scores, b.scores, rtol=1e-4, atol=1e-5)
        assert np.array_equal(a.edges, b.edges)


def test_a_nan_names_the_bag(bags):
    model = Fixed()
    model.forward = lambda batch: Output(torch.tensor([[0.0], [torch.nan], [0.0]]), batch.x[:, :1])
    with pytest.raises(DataError, match=f"{bags[1].id}: the model gives NaN or Inf"):
        predict(model, [BagBatch.pack(bags)])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run on a small study; `run.parent / study` holds its bags."""
    folder = tmp_path_factory.mktemp("road")
    manifest = write_synthetic(folder / "study", synthetic_slides(16, seed=3, size=(12, 25), dim=5))
    changes = ["training.epochs=2", "training.threads=1", "model.options.dim=8", "data.folds=2", "data.val_share=0.5"]
    train(load_config(None, [f"data.manifest={manifest}", "model.name=sm_ap", *changes]), folder / "run")
    return folder / "run"


@pytest.fixture
def bags_of(run, tmp_path):
    """A copy of the study whose files may be changed."""
    shutil.copytree(run.parent / "study", tmp_path / "study")
    return tmp_path / "study"


def test_a_run_gives_its_model_back_ready_for_use(run):
    model, config = load_run(run)
    assert not model.training
    assert config.model.name == "sm_ap"
    with pytest.raises(ConfigError, match="checkpoint: unknown value 'bset'; did you mean best"):
        load_run(run, "bset")
    with pytest.raises(DataError, match="give the --out folder of smmil train"):
        load_run(run.parent)


def test_parts_are_those_of_the_runs_split_and_together_are_everything(run, tmp_path):
    names = {
        part: {p.stem for p in predict_run(run, out=tmp_path / part, part=part).paths}
        for part in ("train", "val", "test", "all")
    }
    assert names["train"] | names["val"] | names["test"] == names["all"]
    assert sum(len(names[part]) for part in ("train", "val", "test")) == len(names["all"]) == 16
    assert {Prediction.load(p).meta["split"]["part"] for p in (tmp_path / "val").glob("*.npz")} == {"val"}


def test_a_prediction_says_where_it_comes_from(run, tmp_path):
    found = Prediction.load(predict_run(run, out=tmp_path).paths[0])
    assert found.meta["model"] == "sm_ap"
    assert found.meta["score_kind"] == "attention logit"
    assert found.meta["features"]["encoder"] == "synthetic-5"
    assert len(found.meta["weights"]) == len(found.meta["config"]) == 64


def test_repeating_keeps_good_files_and_mends_damaged_or_foreign_ones(run, tmp_path):
    paths = predict_run(run, out=tmp_path).paths
    before = [p.read_bytes() for p in paths]
    paths[0].write_bytes(before[0][:50])
    shutil.copy(paths[2], paths[1])
    again = predict_run(run, out=tmp_path)
    assert sorted(again.written) == paths[:2]
    assert sorted(again.kept) == paths[2:]
    assert [p.read_bytes() for p in paths] == before
    assert len(predict_run(run, out=tmp_path, checkpoint="lowest_loss").written) == len(paths)


def test_one_damaged_bag_is_reported_and_the_others_are_predicted(run, bags_of, tmp_path):
    broken = bags_of / "bags" / "slide_0003.h5"
    broken.write_bytes(broken.read_bytes()[:900])
    done = predict_run(run, out=tmp_path / "out", manifest=bags_of / "manifest.csv")
    assert list(done.failed) == ["slide_0003"]
    assert "slide_0003.h5" in done.failed["slide_0003"]
    assert len(done.written) == 15
    assert pd.read_csv(tmp_path / "out/failures.csv")["id"].tolist() == ["slide_0003"]
    shutil.copy(run.parent / "study/bags/slide_0003.h5", broken)
    mended = predict_run(run, out=tmp_path / "out", manifest=bags_of / "manifest.csv")
    assert (len(mended.written), len(mended.kept), mended.failed) == (1, 15, {})
    assert not (tmp_path / "out/failures.csv").exists()


def test_the_list_of_failures_holds_no_formula_and_ids_that_look_like_one_are_found_again(run, bags_of, tmp_path):
    table = pd.read_csv(bags_of / "manifest.csv", dtype=str).head(2)
    table["id"] = ["＝1+1", "＠broken"]  # in full width: no formula here, but one in some spreadsheets
    (bags_of / "bags" / "broken.h5").write_bytes(b"no bag")
    table.loc[1, "path"] = "bags/broken.h5"
    table.to_csv(bags_of / "odd.csv", index=False)
    done = predict_run(run, out=tmp_path / "out", manifest=bags_of / "odd.csv")
    assert pd.read_csv(tmp_path / "out/failures.csv")["id"].tolist() == ["'＠broken"]
    assert [Prediction.load(path).id for path in done.written] == ["＝1+1"]
    again = predict_run(run, out=tmp_path / "out", manifest=bags_of / "odd.csv")
    assert (len(again.written), again.kept) == (0, done.written)


def test_moved_bags_are_found_through_another_manifest(run, bags_of, tmp_path):
    here = predict_run(run, out=tmp_path / "a", part="test")
    there = predict_run(run, out=tmp_path / "b", part="test", manifest=bags_of / "manifest.csv")
    assert [p.read_bytes() for p in here.paths] == [p.read_bytes() for p in there.paths]


def test_cases_without_labels_can_be_predicted(run, bags_of, tmp_path):
    table = pd.read_csv(bags_of / "manifest.csv", dtype=str).drop(columns=["label", "instance_labels"])
    table.to_csv(bags_of / "unlabelled.csv", index=False)
    done = predict_run(run, out=tmp_path / "out", manifest=bags_of / "unlabelled.csv")
    assert len(done.written) == 16
    assert Prediction.load(done.written[0]).y is None


def rewrite(path, **provenance):
    write_bag(path, read_bag(path), provenance=provenance)


def test_features_of_another_encoder_are_refused_naming_both(run, bags_of, tmp_path):
    rewrite(bags_of / "bags/slide_0002.h5", encoder="resnet18")
    with pytest.raises(
        ConfigError, match=r"slide_0002: features of encoder 'resnet18'.*trained on encoder 'synthetic-5'"
    ):
        predict_run(run, out=tmp_path / "out", manifest=bags_of / "manifest.csv")
    assert not list((tmp_path / "out").glob("*.npz"))


def test_features_of_another_width_are_refused_naming_both(run, tmp_path):
    other = write_synthetic(tmp_path / "wide", synthetic_slides(4, size=(12, 20), dim=7))
    for path in (tmp_path / "wide/bags").glob("*.h5"):
        rewrite(path)
    with pytest.raises(ConfigError, match="7 features per instance, but the model was trained on 5"):
        predict_run(run, out=tmp_path / "out", manifest=other)


def test_a_mixture_of_encoders_is_refused_in_training(bags_of):
    rewrite(bags_of / "bags/slide_0004.h5", encoder="resnet50", recipe="r1")
    manifest = Manifest.read(bags_of / "manifest.csv")
    with pytest.raises(DataError, match=r"different encoder: slide_0000 has 'synthetic-5', slide_0004 has 'resnet50'"):
        feature_source(manifest, manifest.ids)
    assert feature_source(manifest, ["slide_0004"]) == {"encoder": "resnet50", "recipe": "r1"}


@pytest.mark.parametrize(
    ("id_", "name"),
    [
        ("007", "007.npz"),
        ("../up", "%2E./up.npz".replace("/", "%2F")),
        ("a/b", "a%2Fb.npz"),
        (".hidden", "%2Ehidden.npz"),
        ("50%", "50%25.npz"),
    ],
)
def test_an_id_can_never_leave_its_folder(id_, name, tmp_path):
    assert f"{file_name(id_)}.npz" == name
    assert (tmp_path / name).parent == tmp_path


def test_an_unknown_part_is_refused(run, tmp_path):
    with pytest.raises(ConfigError, match="part: unknown value 'tset'; did you mean test"):
        predict_run(run, out=tmp_path, part="tset")


def test_a_prediction_tells_which_cases_share_a_patient_without_naming_him(run, bags_of, tmp_path):
    table = pd.read_csv(bags_of / "manifest.csv").drop(columns=["group", "patient"], errors="ignore")
    table["group"] = ["Jane Doe" if n < 2 else f"patient {n}" for n in range(len(table))]
    table.to_csv(bags_of / "grouped.csv", index=False)
    predict_run(run, out=tmp_path / "p", manifest=bags_of / "grouped.csv")
    stored = {p.id: p.meta for p in map(Prediction.load, (tmp_path / "p").glob("*.npz"))}
    ids = list(table["id"])
    assert stored[ids[0]]["group"] == stored[ids[1]]["group"] == min(ids[:2])
    assert len({meta["group"] for meta in stored.values()}) == len(ids) - 1
    assert "Jane" not in str(stored)


def test_a_case_without_a_patient_in_the_manifest_has_no_group(run, bags_of, tmp_path):
    table = pd.read_csv(bags_of / "manifest.csv").drop(columns=["group", "patient"], errors="ignore")
    table.to_csv(bags_of / "bare.csv", index=False)
    first = predict_run(run, out=tmp_path / "p", manifest=bags_of / "bare.csv")
    assert all("group" not in Prediction.load(path).meta for path in first.paths)
    table["patient"] = ["", *(f"patient {n}" for n in range(1, len(table)))]
    table.to_csv(bags_of / "some.csv", index=False)
    again = predict_run(run, out=tmp_path / "p", manifest=bags_of / "some.csv")
    ids = list(table["id"])
    assert [Prediction.load(path).id for path in again.kept] == ids[:1]  # the others have got a patient
    assert {p.id: p.meta.get("group") for p in map(Prediction.load, again.paths)} == {
        id_: None if id_ == ids[0] else id_ for id_ in ids}  # fmt: skip


def test_a_file_of_a_patient_that_is_no_longer_named_is_written_anew(run, bags_of, tmp_path):
    table = pd.read_csv(bags_of / "manifest.csv").drop(columns=["group", "patient"], errors="ignore")
    table.assign(group="one patient").to_csv(bags_of / "joined.csv", index=False)
    table.to_csv(bags_of / "bare.csv", index=False)
    predict_run(run, out=tmp_path / "p", manifest=bags_of / "joined.csv")
    again = predict_run(run, out=tmp_path / "p", manifest=bags_of / "bare.csv")
    assert {p.meta.get("group", p.id) for p in map(Prediction.load, again.paths)} == set(table["id"])


def test_a_prediction_carries_what_exports_need_of_the_slide(run, bags_of, tmp_path):
    path = next((bags_of / "bags").glob("*.h5"))
    facts = {"level0_width": 4096, "level0_height": 2048, "bounds": [8, 16, 4000, 2000], "mpp_level0": 0.25}
    write_bag(path, read_bag(path), provenance={"encoder": "synthetic-5", "licence": "CC0", **facts})
    predict_run(run, out=tmp_path / "p", manifest=bags_of / "manifest.csv")
    found = {p.id: p.meta for p in map(Prediction.load, (tmp_path / "p").glob("*.npz"))}
    assert found[path.stem]["slide"] == {"size": [4096, 2048], "bounds": [8, 16, 4000, 2000], "mpp": 0.25}
    assert found[path.stem]["licence"] == "CC0"
    assert sum("slide" in meta for meta in found.values()) == 1


def test_a_single_bag_is_predicted_like_a_list_of_one(bags):
    model = create_model("abmil", bags[0].x.shape[1])
    (alone,), (listed,) = predict(model, bags[0]), predict(model, [bags[0]])
    assert np.array_equal(alone.scores, listed.scores)
    assert alone.id == bags[0].id


@pytest.mark.parametrize("name", list_models())
def test_what_a_model_cannot_take_is_said_in_words(name, bags):
    bag = bags[0]
    model = create_model(name, bag.x.shape[1])
    with pytest.raises(DataError, match=rf"model {name}: takes a BagBatch, got Bag; .*pack\(\[bag\]\)"):
        model(bag)
    with pytest.raises(
        DataError, match=rf"model {name}: takes a BagBatch, got Tensor; .*smmil.Bag\('name', x, coords\)"
    ):
        model(bag.x)
    with pytest.raises(DataError, match=rf"model {name}: takes a BagBatch, got list; .*pack\(bags\)"):
        model([bag])
    with pytest.raises(DataError, match=rf"{bag.id} has features of width {bag.x.shape[1]}, .* created for 99"):
        predict(create_model(name, 99), [bag])
    with pytest.raises(DataError, match="predicts bags, got Tensor"):
        predict(model, [bag.x])


def test_a_corrected_label_reaches_the_prediction_and_the_others_are_kept(run, bags_of, tmp_path):
    table = pd.read_csv(bags_of / "manifest.csv", dtype=str).drop(columns="instance_labels", errors="ignore")
    table.to_csv(bags_of / "first.csv", index=False)
    predict_run(run, out=tmp_path / "p", manifest=bags_of / "first.csv")
    negative, other = table[table["label"] == "0"].index[:2]
    table.loc[negative, "label"], table.loc[other, "label"] = "1", ""
    table.to_csv(bags_of / "second.csv", index=False)
    again = predict_run(run, out=tmp_path / "p", manifest=bags_of / "second.csv")
    found = {p.id: p.y for p in map(Prediction.load, again.written)}
    assert found == {table.loc[negative, "id"]: 1, table.loc[other, "id"]: None}
    assert len(again.kept) == len(table) - 2


def test_truth_of_instances_that_was_added_reaches_the_prediction(run, bags_of, tmp_path):
    table = pd.read_csv(bags_of / "manifest.csv", dtype=str)
    table.drop(columns="instance_labels").to_csv(bags_of / "bare.csv", index=False)
    before = predict_run(run, out=tmp_path / "p", manifest=bags_of / "bare.csv")
    assert all(Prediction.load(path).y_inst is None for path in before.written)
    after = predict_run(run, out=tmp_path / "p", manifest=bags_of / "manifest.csv")
    assert len(after.written) == table["instance_labels"].notna().sum() > 0
    assert all(Prediction.load(path).y_inst is not None for path in after.written)
    assert predict_run(run, out=tmp_path / "p", manifest=bags_of / "manifest.csv").written == []

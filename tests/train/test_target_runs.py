"""Training on planted risks, levels, numbers and labels: from a manifest to prediction files, byte by byte."""

import csv
import json

import numpy as np
import pytest
import torch
from support.listener import Listener
from support.quick import slow_unless
from typer.testing import CliRunner

import smmil
from smmil.bag import Bag, BagBatch
from smmil.cli import app
from smmil.config import load_config
from smmil.data import Manifest
from smmil.errors import ConfigError, DataError
from smmil.evaluate.calibration import calibrate
from smmil.evaluate.ranking import target_chance_in_words
from smmil.evaluate.suggestion import suggest_regions
from smmil.models import list_models
from smmil.packaging import load_package, write_package
from smmil.packaging.loading import predict_package
from smmil.predict import predict_run
from smmil.predict.ensemble import predict_ensemble
from smmil.prediction import load_predictions
from smmil.synthetic import planted_slides, write_planted
from smmil.train import Interrupted, train
from smmil.train.targets import _cindex, _kappa, _macro_auroc, _spearman
from smmil.weights import read_weights

PLANTED = {kind: kind for kind in ("multilabel", "ordinal", "regression", "survival")} | {"cox": "survival"}
METRIC = {"multilabel": "auroc", "ordinal": "kappa", "regression": "spearman", "survival": "cindex", "cox": "cindex"}
QUICK = ("training.epochs=2", "training.threads=1", "model.options.dim=8", "data.folds=2", "data.val_share=0.5",
         "training.lr=1e-2", "training.warmup_epochs=1", "training.batch_size=8", "target.intervals=3")  # fmt: skip
WEIGHTS = ("checkpoints/best.safetensors", "checkpoints/lowest_loss.safetensors", "checkpoints/last.safetensors")
SAME = (*WEIGHTS, "metrics.csv", "run.json", "split.json", "config.yaml")
every_kind = pytest.mark.parametrize("kind", list(PLANTED))
# Laws of runs hold for all models and targets; in `make test` for all targets, and a model whose training has state.
SMALLER = {"set_mil": ("model.options.size=8", "model.options.depth=2"), "iib_mil": ("model.options.hidden=16",)}
WITHOUT_DIM = ("dsmil", "set_mil", "max_pool", "mean_pool")
QUICK_PAIRS = {("abmil", kind) for kind in PLANTED} | {("iib_mil", "cox"), ("patch_gcn", "survival")}
PAIRS = [(name, kind) for name in list_models() for kind in PLANTED]
every_pair = pytest.mark.parametrize("pair", slow_unless(QUICK_PAIRS.__contains__, PAIRS), ids="-".join)


@pytest.fixture(scope="module")
def manifests(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted")
    made = {}
    for planted in sorted(set(PLANTED.values())):
        made[planted] = write_planted(folder / planted, planted_slides(40, planted, seed=2, size=(8, 14), dim=6))
    return {kind: made[planted] for kind, planted in PLANTED.items()}


@pytest.fixture(scope="module")
def settings(manifests):
    def make(kind, *changes, model="abmil", manifest=None):
        given = [f"data.manifest={manifest or manifests[kind]}", f"model.name={model}", f"target.kind={kind}"]
        quick = [change for change in QUICK if model not in WITHOUT_DIM or not change.startswith("model.options.dim")]
        return load_config(None, [*given, *quick, *SMALLER.get(model, ()), *changes])

    return make


@pytest.fixture(scope="module")
def runs(settings, tmp_path_factory):
    """A finished run of every kind and model, made when it is asked for."""
    folder, made = tmp_path_factory.mktemp("runs"), set()

    def run(kind, model="abmil"):
        place = folder / f"{model}-{kind}"
        if place not in made:
            train(settings(kind, model=model), place)
            made.add(place)
        return place

    return run


def content(folder, names=SAME):
    return {name: (folder / name).read_bytes() for name in names}


@every_kind
def test_a_run_tells_its_metric_and_stores_what_was_fitted_on_training_cases(kind, runs, manifests):
    rows = list(csv.DictReader((runs(kind) / "metrics.csv").open()))
    assert set(rows[0]) == {"epoch", "lr", "train_loss", f"val_{METRIC[kind]}", "val_loss", "best"}
    _, facts = read_weights(runs(kind) / "checkpoints/best.safetensors")
    assert facts["target"]["kind"] == kind
    assert set(json.loads((runs(kind) / "run.json").read_text())["best"]) == {"epoch", METRIC[kind], "loss", "weights"}
    split = json.loads((runs(kind) / "split.json").read_text())
    table = Manifest.read(manifests[kind]).table.set_index("id").loc[split["train"]]
    if kind == "regression":
        values = table["label"].astype(float).to_numpy()
        assert facts["target"]["mean"] == pytest.approx(values.mean())
        assert facts["target"]["deviation"] == pytest.approx(values.std())
    if kind in ("survival", "cox"):
        times = np.sort(table["time"].astype(float)[table["event"] == "1"])
        assert facts["target"]["edges"] == [times[int(np.ceil(q * len(times) / 3)) - 1] for q in (1, 2, 3)]


@every_pair
def test_an_interrupted_run_goes_on_to_the_same_bytes(pair, runs, settings, tmp_path):
    model, kind = pair
    with pytest.raises(Interrupted):
        train(settings(kind, model=model), tmp_path, progress=Listener(stop_at=3))
    train(settings(kind, model=model), tmp_path)
    assert content(tmp_path) == content(runs(kind, model))


@every_pair
def test_targets_of_test_cases_leave_the_weights_as_they_are(pair, runs, settings, manifests, tmp_path):
    """The split is kept in a file; the targets of its test cases are permuted."""
    model, kind = pair
    split = json.loads((runs(kind, model) / "split.json").read_text())
    (tmp_path / "splits.json").write_text(json.dumps([split]))
    original = Manifest.read(manifests[kind])
    columns = [c for c in original.table if c in ("label", "time", "event") or c.startswith("label_")]
    table = original.table.assign(path=[str(original.path_of(i)) for i in original.ids], instance_labels="")
    test = table["id"].isin(split["test"]).to_numpy()
    table.loc[test, columns] = table.loc[test, columns].to_numpy()[::-1]
    assert not table[columns].equals(original.table[columns])
    Manifest(table, tmp_path).write(tmp_path / "other.csv")
    place = f"data.splits={tmp_path / 'splits.json'}"
    train(settings(kind, place, model=model, manifest=tmp_path / "other.csv"), tmp_path / "run")
    assert content(tmp_path / "run", (*WEIGHTS, "metrics.csv")) == content(runs(kind, model), (*WEIGHTS, "metrics.csv"))


def test_other_targets_of_training_cases_are_noticed_when_a_run_goes_on(settings, manifests, tmp_path):
    with pytest.raises(Interrupted):
        train(settings("survival"), tmp_path / "run", progress=Listener(stop_at=2))
    split = json.loads((tmp_path / "run/split.json").read_text())
    original = Manifest.read(manifests["survival"])
    table = original.table.assign(path=[str(original.path_of(i)) for i in original.ids], instance_labels="")
    table.loc[table["id"] == split["train"][0], "event"] = "0"
    table.loc[table["id"] == split["train"][0], "time"] = "0.123"
    table["split"] = [next(part for part, ids in split.items() if id_ in ids) for id_ in table["id"]]
    Manifest(table, tmp_path).write(tmp_path / "other.csv")
    with pytest.raises(DataError, match="ids or labels of the training and validation bags have changed"):
        train(settings("survival", manifest=tmp_path / "other.csv"), tmp_path / "run")


@pytest.mark.parametrize("kind", slow_unless(("survival", "multilabel").__contains__, list(PLANTED)))
def test_predictions_of_a_run_an_ensemble_and_a_package_agree(kind, runs, manifests, tmp_path):
    run = runs(kind)
    predict_run(run, out=tmp_path / "run", part="all")
    found = {p.id: p for p in load_predictions(tmp_path / "run")}
    table = Manifest.read(manifests[kind]).table.set_index("id")
    for id_, p in found.items():
        assert p.target_kind == kind
        if kind in ("survival", "cox"):
            assert len(p.times) == len(p.probs) == 3
            assert p.target.tolist() == [float(table.loc[id_, "time"]), float(table.loc[id_, "event"])]
            assert p.y is None
        elif kind == "ordinal":
            assert (p.y, p.target) == (int(table.loc[id_, "label"]), None)
            assert p.value == pytest.approx(p.probs @ np.arange(4))
        elif kind == "regression":
            assert p.target.tolist() == [float(table.loc[id_, "label"])]
            assert p.probs.shape == (0,)
        else:
            assert p.target.tolist() == [float(table.loc[id_, f"label_{c}"]) for c in "abc"]
            assert p.y == max(p.target)
    write_package(run, tmp_path / "package")
    predict_package(load_package(tmp_path / "package"), [manifests[kind]], out=tmp_path / "packaged")
    for p in load_predictions(tmp_path / "packaged"):
        assert np.array_equal(p.probs, found[p.id].probs)
        assert np.array_equal(p.scores, found[p.id].scores)
        assert p.value == found[p.id].value
        assert str(p.target) == str(found[p.id].target)
    predict_ensemble([run, run], out=tmp_path / "twice", part="all")
    for p in load_predictions(tmp_path / "twice"):  # two equal members say what one says
        assert np.allclose(p.probs, found[p.id].probs)
        assert p.value == pytest.approx(found[p.id].value)
        assert p.meta["target"] == found[p.id].meta["target"]


def test_members_of_an_ensemble_and_draws_of_dropout_are_averaged(runs, settings, tmp_path):
    train(settings("cox", "training.seed=1"), tmp_path / "other")
    predict_ensemble([runs("cox"), tmp_path / "other"], out=tmp_path / "both")
    members = [load_predictions(place) for place in sorted((tmp_path / "both/members").glob("?_*"))]
    for p, a, b in zip(load_predictions(tmp_path / "both"), *members, strict=True):
        assert p.value == pytest.approx((a.value + b.value) / 2)
        assert np.allclose(p.probs, (a.probs + b.probs) / 2)
        assert p.meta["ensemble"]["value_deviation"] == pytest.approx(abs(a.value - b.value) / 2**0.5)
    train(settings("survival", model="patch_gcn"), tmp_path / "dropout")
    predict_run(tmp_path / "dropout", out=tmp_path / "drawn", mc_dropout=3)
    assert all(p.target_kind == "survival" and p.value is not None for p in load_predictions(tmp_path / "drawn"))
    mixed = predict_ensemble([runs("cox"), runs("survival")], out=tmp_path / "mixed")
    assert not mixed.written
    assert all("the runs predict different targets" in reason for reason in mixed.failed.values())


def test_the_baseline_of_cox_is_that_of_the_selected_weights_on_training_cases(runs, manifests):
    model, config = smmil.predict.load_run(runs("cox"))
    split = json.loads((runs("cox") / "split.json").read_text())
    table = Manifest.read(manifests["cox"]).for_target(config.target)
    bags = [table.bag(id_) for id_ in split["train"]]
    value = np.array([p.value for p in smmil.predict(model, bags)])
    rows = np.array([bag.target.tolist() for bag in bags])
    for edge, log_baseline in zip(model.target.edges, model.target.log_baseline, strict=True):
        steps = [1 / np.exp(value[rows[:, 0] >= t]).sum() for t, e in rows if e and t <= edge]
        assert np.exp(log_baseline) == pytest.approx(sum(steps), rel=1e-5)


def test_small_batches_of_cox_and_terms_that_need_classes_are_told_before_training(settings, tmp_path):
    listener = Listener()
    train(settings("cox", "training.batch_size=4", "training.epochs=1", model="clam"), tmp_path, progress=listener)
    told = " ".join(listener.heard)
    assert "target of kind cox: time, event; times" in told
    assert "CLAM: the clustering of the most and the least attended instances" in told
    assert "training.batch_size=4 gives it few pairs" in told


@every_kind
def test_fit_in_memory_gives_a_model_that_predicts_the_target(kind, tmp_path):
    bags = planted_slides(24, PLANTED[kind], size=(8, 14), dim=6)
    options = {
        "options": {"dim": 8},
        "epochs": 2,
        "batch_size": 8,
        "threads": 1,
        "target": {"kind": kind, "intervals": 2},
    }
    plain = smmil.fit("abmil", bags[:16], bags[16:], **options)
    stored = smmil.fit("abmil", bags[:16], bags[16:], out=tmp_path, **options)
    for one, other in zip(smmil.predict(plain.model, bags), smmil.predict(stored.model, bags), strict=True):
        assert one.target_kind == kind
        assert np.array_equal(one.probs, other.probs)
        assert one.value == other.value
    assert plain.best[METRIC[kind]] == stored.best[METRIC[kind]]
    if kind in ("multilabel", "ordinal"):
        weighed, same = (smmil.fit("abmil", bags[1:16], bags[16:], class_weights=w, **options) for w in (True, False))
        assert weighed.history != same.history
    else:
        with pytest.raises(ConfigError, match="has no classes"):
            smmil.fit("abmil", bags[:16], bags[16:], class_weights=True, **options)


def test_mistakes_of_a_fit_with_targets_are_explained():
    bags = planted_slides(24, "survival", size=(8, 14), dim=6)
    for target, words in (
        (None, "has a target; say its kind"),
        ("surival", "target: kind"),
        ("regression", "regression needs 1 numbers"),
        ({"kind": "survival", "columns": ["time"]}, "takes 2"),
    ):
        with pytest.raises((ConfigError, DataError), match=words):
            smmil.fit("abmil", bags[:16], bags[16:], target=target, epochs=1)
    with pytest.raises(ConfigError, match="n_classes: 3 was asked for, but a target of kind survival needs 4"):
        smmil.fit("abmil", bags[:16], bags[16:], target="survival", n_classes=3, epochs=1)
    with pytest.raises(ConfigError, match="create it with n_classes=4"):
        smmil.fit(smmil.create_model("abmil", 6), bags[:16], bags[16:], target="survival", epochs=1)
    lost = [Bag(bag.id, bag.x) for bag in bags[16:]]
    with pytest.raises(DataError, match=r"empty time or event for planted_0016"):
        smmil.fit("abmil", bags[:16], lost, target="survival", epochs=1)


def test_promises_and_suggestions_for_classes_refuse_other_targets(runs, tmp_path):
    predict_run(runs("survival"), out=tmp_path / "p")
    cases = load_predictions(tmp_path / "p")
    for verb, call in (("calibration", calibrate), ("suggest", suggest_regions)):
        with pytest.raises(ConfigError, match=rf"{verb}.* is for targets of kind class.* of kind survival"):
            call(cases)


@every_kind
def test_maps_by_other_methods_are_those_of_the_target(kind, runs, manifests):
    """One map, or one per label; that of single instances is the target's own number of each."""
    model, config = smmil.predict.load_run(runs(kind))
    bag = Manifest.read(manifests[kind]).for_target(config.target).bag("planted_0005")
    (alone,) = smmil.explain(model, [bag], "single")
    assert alone.scores.shape == (bag.n, 3 if kind == "multilabel" else 1)
    singles = [Bag(str(row), bag.x[row : row + 1]) for row in range(bag.n)]
    with torch.no_grad():
        logits = model(BagBatch.pack(singles)).logits
    f = {"ordinal": logits[:, :1], "survival": logits.mean(1, keepdim=True)}.get(kind, logits)
    assert np.allclose(alone.scores, f.numpy(), atol=1e-5)
    (integrated,) = smmil.explain(model, [bag], "integrated-gradients")
    empty = Bag("empty", torch.zeros_like(bag.x), graph=bag.graph)
    with torch.no_grad():
        ends = [target_f(kind, model(BagBatch.pack([one])).logits) for one in (bag, empty)]
    assert np.allclose(integrated.scores.sum(0), (ends[0] - ends[1]).numpy()[0], rtol=5e-3, atol=1e-4)
    rows = smmil.faithfulness(model, [bag], {"single": [alone]}, repeats=1)
    assert np.isfinite(rows[0]["deletion"])


def target_f(kind, logits):
    return {"ordinal": logits[:, :1], "survival": logits.mean(1, keepdim=True)}.get(kind, logits)


@pytest.mark.parametrize("kind", ["survival", "multilabel"])
def test_a_target_goes_from_the_command_line_to_prediction_files(kind, manifests, tmp_path):
    quick = [text for change in (*QUICK, f"target.kind={kind}") for text in ("--set", change)]
    out, done = str(tmp_path / "run"), CliRunner().invoke
    trained = done(app, ["train", "--manifest", str(manifests[kind]), "--model", "sm_ap", "--out", out, *quick])
    assert trained.exit_code == 0, trained.output
    assert f"val {METRIC[kind]}" in trained.output
    predicted = done(app, ["predict", out, "--out", str(tmp_path / "predictions")])
    assert predicted.exit_code == 0, predicted.output
    cases = load_predictions(tmp_path / "predictions")
    assert {p.target_kind for p in cases} == {kind}
    assert all(p.target is not None and p.scores.shape == (p.n, 1) for p in cases)
    other = ["train", "--manifest", str(manifests["ordinal"]), "--model", "sm_ap", "--out", out + "2"]
    wrong = done(app, [*other, *quick])
    assert "no column label_…" in str(wrong.exception) or "column 'time' is missing" in str(wrong.exception)
    assert not (tmp_path / "run2").exists()


def test_metrics_of_selection_are_those_worked_out_by_hand():
    known = np.array([[1.0, 1], [2.0, 0], [3.0, 1], [3.0, 0], [4.0, 1]])
    risk = np.array([5.0, 1.0, 2.0, 2.0, 3.0])
    # pairs: 1-2 1-3 1-4 1-5 right; 3-4 (leaves at the same time) tied; 3-5 wrong
    assert _cindex(risk, known) == pytest.approx((4 + 0.5) / 6)
    assert np.isnan(_cindex(risk, known * [1, 0]))
    assert _kappa(np.array([0.2, 1.4, 1.6, 2.0]), np.array([[0.0], [1], [2], [2]])) == 1.0
    from sklearn.metrics import cohen_kappa_score

    rng = np.random.default_rng(0)
    level, truth = rng.uniform(0, 3, 50), rng.integers(0, 4, 50)
    assert _kappa(level, truth[:, None]) == pytest.approx(cohen_kappa_score(np.rint(level), truth, weights="quadratic"))
    assert _spearman(np.array([1.0, 4, 9]), np.array([[1.0], [2], [3]])) == pytest.approx(1.0)
    assert np.isnan(_spearman(np.ones(3), np.array([[1.0], [2], [3]])))
    probs = np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.3], [0.2, 0.4]])
    labels = np.array([[1.0, 0], [1, 0], [0, 0], [np.nan, 0]])
    assert _macro_auroc(probs, labels) == 1.0


@every_kind
def test_the_command_doubts_a_model_that_learned_nothing(kind, settings, manifests, tmp_path):
    (tmp_path / "settings.yaml").write_text(settings(kind, "training.lr=1e-9").to_yaml())
    done = CliRunner().invoke(app, ["train", str(tmp_path / "settings.yaml"), "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    value = json.loads((tmp_path / "run/run.json").read_text())["best"][METRIC[kind]]
    validation = json.loads((tmp_path / "run/split.json").read_text())["val"]
    table = Manifest.read(manifests[kind]).table.set_index("id").loc[validation]
    cases = (table["event"] == "1").sum() if METRIC[kind] == "cindex" else len(table)
    words = target_chance_in_words(METRIC[kind], value, cases)
    assert (words or "next: smmil predict").replace(" ", "") in "".join(done.output.split())
    assert ("warning" in done.output) == (words is not None)

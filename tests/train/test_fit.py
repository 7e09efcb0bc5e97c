"""`smmil.fit`: the loop of `smmil train` on bags in memory."""

import pytest
import torch
from torch import nn

import smmil
from smmil.config import load_config
from smmil.data import Manifest
from smmil.errors import ConfigError, DataError
from smmil.models import Output
from smmil.predict import load_trained, predict_run
from smmil.train import Interrupted, Progress, train
from smmil.train.run import _choose_split
from smmil.weights import tensors_digest

QUICK = {"epochs": 3, "threads": 1, "lr": 1e-2, "warmup_epochs": 1}
SMALL = {"dim": 8, "att_dim": 4}


@pytest.fixture(scope="module")
def parts(study):
    """Training and validation bags of the split that the quick settings of this folder draw."""
    manifest = Manifest.read(study)
    split = _choose_split(manifest, load_config(None, [f"data.manifest={study}", "model.name=abmil", "data.folds=2",
                                                      "data.val_share=0.5"]).data)  # fmt: skip
    return [[manifest.bag(id_) for id_ in ids] for ids in (split.train, split.val)]


class Linear(nn.Module):
    """Mean of a linear layer's rows; remembers the mode of every forward pass."""

    def __init__(self, classes=1):
        super().__init__()
        self.head, self.modes, self.ids = nn.Linear(6, classes), [], []

    def forward(self, batch):
        self.modes.append((self.training, batch.y is not None))
        self.ids.append(batch.ids)
        scores = self.head(batch.x)
        return Output(torch.stack([rows.mean(0) for rows in batch.split(scores)]), scores)


def test_fit_in_memory_equals_train_from_files_to_the_bit(settings, parts, tmp_path):
    filed = train(settings("training.seed=5"), tmp_path / "run")
    fitted = smmil.fit("sm_ap", *parts, options=SMALL, seed=5, **QUICK)
    assert fitted.history == filed.history
    assert tensors_digest(fitted.model.state_dict()) == filed.best["weights"]
    assert fitted.best == {key: filed.best[key] for key in ("epoch", "auroc", "loss")}
    assert fitted.ended == filed.ended
    assert fitted.folder is None


def test_a_module_is_trained_in_place_and_left_in_eval_mode_with_the_weights_of_the_best_epoch(parts):
    class Recorder(Progress):
        def __init__(self):
            self.weights = []

        def epoch_done(self, row):
            self.weights.append(model.head.weight.detach().clone())

    model, recorder = Linear(), Recorder()
    before = model.head.weight.detach().clone()
    result = smmil.fit(model, *parts, progress=recorder, **{**QUICK, "epochs": 6, "lr": 0.3, "select": "loss"})
    assert result.model is model
    assert not model.training
    losses = [row["val_loss"] for row in result.history]
    best = losses.index(min(losses))
    assert best < 5, "the last epoch is the best: the test would not see which weights are kept"
    assert result.best["epoch"] == best + 1
    assert torch.equal(model.head.weight, recorder.weights[best])
    assert not torch.equal(model.head.weight, before)


def test_validation_runs_in_eval_mode_without_labels_and_training_sees_only_training_bags(parts):
    model = Linear()
    smmil.fit(model, *parts, **QUICK)
    seen = {mode: {i for m, ids in zip(model.modes, model.ids, strict=True) if m == mode for i in ids}
            for mode in set(model.modes)}  # fmt: skip
    assert seen == {(True, True): {b.id for b in parts[0]}, (False, False): {b.id for b in parts[1]}}


def test_the_same_call_gives_the_same_weights_and_another_seed_others(parts):
    digests = [
        tensors_digest(smmil.fit("abmil", *parts, options=SMALL, seed=seed, **QUICK).model.state_dict())
        for seed in (0, 0, 1)
    ]
    assert digests[0] == digests[1] != digests[2]


def test_a_folder_is_a_run_that_resumes_and_predicts(study, parts, tmp_path):
    class Stop(Progress):
        def step_done(self, epoch, step, loss):
            if (epoch, step) == (1, 1):
                import os
                import signal

                os.kill(os.getpid(), signal.SIGINT)

    call = {"options": SMALL, **QUICK}
    whole = smmil.fit("sm_ap", *parts, out=tmp_path / "whole", **call)
    assert whole.history == smmil.fit("sm_ap", *parts, **call).history
    with pytest.raises(Interrupted):
        smmil.fit("sm_ap", *parts, out=tmp_path / "cut", progress=Stop(), **call)
    again = smmil.fit("sm_ap", *parts, out=tmp_path / "cut", **call)
    assert again.history == whole.history
    assert again.folder == tmp_path / "cut"
    assert not again.model.training
    for file in ("checkpoints/best.safetensors", "checkpoints/last.safetensors", "metrics.csv", "split.json"):
        assert (tmp_path / "cut" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    assert tensors_digest(load_trained(tmp_path / "cut").model.state_dict()) == again.best["weights"]
    done = predict_run(tmp_path / "cut", manifest=study, part="val", out=tmp_path / "predictions")
    stored = {p.id: p.probs.tolist() for p in map(smmil.Prediction.load, done.paths)}
    assert stored == {p.id: p.probs.tolist() for p in smmil.predict(again.model, parts[1])}
    with pytest.raises(DataError, match="trained on bags in memory; give bags with --manifest"):
        predict_run(tmp_path / "cut", out=tmp_path / "other")


def test_a_folder_refuses_other_bags_and_other_settings(parts, tmp_path):
    call = {"options": SMALL, "out": tmp_path / "run", **QUICK, "epochs": 1}
    smmil.fit("abmil", *parts, **call)
    (tmp_path / "run" / "checkpoints" / "best.safetensors").rename(tmp_path / "run" / "kept")
    with pytest.raises(DataError, match="no such file"):
        smmil.fit("abmil", *parts, **call)
    with pytest.raises(ConfigError, match=r"holds another run: training\.lr"):
        smmil.fit("abmil", *parts, **{**call, "lr": 0.5})


@pytest.mark.parametrize("classes", [1, 2])
def test_class_weights_follow_the_logits_of_a_module(parts, classes):
    model, plain = Linear(classes), Linear(classes)
    plain.load_state_dict(model.state_dict())
    uneven = [b for b in parts[0] if b.y == 1] + [b for b in parts[0] if b.y == 0][:2]
    weighted = smmil.fit(model, uneven, parts[1], class_weights=True, **QUICK).history[0]["train_loss"]
    assert weighted != smmil.fit(plain, uneven, parts[1], **QUICK).history[0]["train_loss"]


def test_bags_in_memory_are_never_handed_to_workers(parts, monkeypatch):
    monkeypatch.setattr("smmil.data.loader._started", lambda *_: pytest.fail("a worker was started"))
    assert len(smmil.fit(Linear(), *parts, workers=2, **QUICK).history) == 3


def test_mistakes_are_named(parts):
    (first, *_), val_bags = parts
    unlabelled, narrow = smmil.Bag("new", first.x), smmil.Bag("narrow", first.x[:, :4], y=0)
    for model, bags, options, error, words in (
        ("abmil", parts, {"epoch": 3}, ConfigError, "epoch: unknown key; did you mean epochs"),
        ("abmill", parts, {}, ConfigError, "did you mean abmil"),
        (Linear(), parts, {"out": "x"}, ConfigError, "out= needs the model by name"),
        (Linear(), parts, {"options": {}}, ConfigError, "options= needs the model by name"),
        ("abmil", parts, {"tensorboard": True}, ConfigError, "give out="),
        ("abmil", (parts[0], []), {}, DataError, "val_bags is empty"),
        ("abmil", (parts[0], [first]), {}, DataError, f"{first.id}' is given twice"),
        ("abmil", ([first, unlabelled], val_bags), {}, DataError, "bag 'new' has no label"),
        (Linear(), ([unlabelled], val_bags), {}, DataError, "bag 'new' has no label"),
        ("abmil", ([first, narrow], val_bags), {}, DataError, f"narrow: 4 features .* but bag {first.id} has 6"),
    ):
        with pytest.raises(error, match=words):
            smmil.fit(model, *bags, **options)


@pytest.mark.parametrize("model", [smmil.create_model("sm_ap", 6), Linear()])
def test_bags_one_by_one_or_packed_in_the_precision_of_the_model_give_the_same_probabilities(parts, model):
    single = smmil.predict(model, parts[1])
    packed = smmil.predict(model, [smmil.BagBatch.pack(parts[1])])
    double = smmil.predict(model.double(), parts[1])
    for other in (packed, double):
        assert [p.id for p in other] == [p.id for p in single]
        assert [float(p.probs[0]) for p in other] == pytest.approx([float(p.probs[0]) for p in single], abs=1e-5)

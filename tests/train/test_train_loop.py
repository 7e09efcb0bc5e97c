"""The loop: laws of accumulation, validation, selection and randomness, on real small runs."""

import csv
import math

import pandas as pd
import pytest
import torch
from torch import nn

from smmil.data import BagDataset, Manifest
from smmil.errors import DataError
from smmil.models import Output
from smmil.train import train
from smmil.train.folder import State
from smmil.train.loop import Trainer, _is_better, _make_optimiser, _stop_reason
from smmil.weights import read_weights


class Spy(nn.Module):
    """A linear model with dropout that remembers what it was shown."""

    def __init__(self, in_dim, n_classes=1, *, dropout=0.0, spoil=""):
        super().__init__()
        self.drop, self.head, self.spoil = nn.Dropout(dropout), nn.Linear(in_dim, n_classes), spoil
        self.seen = []

    def forward(self, batch):
        self.seen.append((self.training, torch.is_grad_enabled(), batch.y is not None, batch.y_inst is not None))
        scores = self.head(self.drop(batch.x))
        logits = torch.stack([rows.mean(0) for rows in batch.split(scores)])
        if self.training and self.spoil in batch.ids:
            where = torch.tensor([name == self.spoil for name in batch.ids])
            logits = torch.where(where[:, None], logits * math.nan, logits)
        return Output(logits, scores)


def trainer(settings, ids, *, model=None, optimiser=None, **changes):
    manifest = Manifest.read(settings.data.manifest)
    torch.manual_seed(0)
    model = model or Spy(6)
    bags = BagDataset(manifest, ids)
    t = settings.training
    nothing = {"save": lambda _state: None, "save_selected": lambda _name, chosen: chosen}
    optimiser = optimiser or _make_optimiser(model.parameters(), t)
    return Trainer(t, model, optimiser, bags, bags, torch.device("cpu"), **{**nothing, **changes})


@pytest.fixture
def ids(study):
    return Manifest.read(study).ids[:10]


@pytest.fixture
def marked(study, tmp_path):
    """The study with every row marked train, val or test, alternating so that each part holds both classes."""
    manifest = Manifest.read(study)
    order = sorted(manifest.ids, key=lambda i: (manifest.labels[i], i))
    part = {i: ("train", "val", "test")[n % 3] for n, i in enumerate(order)}
    table = manifest.table.assign(
        split=[part[i] for i in manifest.ids], path=[str(manifest.path_of(i)) for i in manifest.ids]
    )
    table = table.drop(columns=["instance_labels", "group"])
    Manifest(table).write(tmp_path / "marked.csv")
    return tmp_path / "marked.csv"


def test_accumulating_batches_equals_one_large_batch_even_when_the_last_is_short(settings, ids):
    weights = []
    for size, times in ((6, 1), (2, 3), (1, 6), (3, 2)):
        run = trainer(
            settings(f"training.batch_size={size}", f"training.accumulate={times}", "training.optimiser=sgd"), ids
        )
        run.train_epoch(State())
        weights.append(run.model.head.weight.detach())
    for other in weights[1:]:
        torch.testing.assert_close(other, weights[0], rtol=1e-5, atol=1e-7)


def test_clipping_bounds_the_step(settings, ids):
    one_step = ("training.optimiser=sgd", "training.batch_size=10", "training.lr=1.0", "training.warmup_epochs=0")
    run = trainer(settings("training.clip_norm=1e-3", *one_step), ids)
    before = [p.detach().clone() for p in run.model.parameters()]
    run.train_epoch(State())
    moved = sum(((p - b) ** 2).sum() for p, b in zip(run.model.parameters(), before, strict=True)).sqrt()
    assert float(moved.detach()) == pytest.approx(1e-3, rel=1e-3)


def test_training_shows_labels_but_never_instance_labels_and_validation_shows_none(settings, ids):
    run = trainer(settings(), ids)
    assert BagDataset(Manifest.read(settings().data.manifest), ids)[0].y_inst is not None
    run.train_epoch(State())
    assert set(run.model.seen) == {(True, True, True, False)}
    run.model.seen.clear()
    run.validate(0)
    assert set(run.model.seen) == {(False, False, False, False)}
    assert run.model.training


def test_validation_does_not_depend_on_dropout_or_batch_size(settings, ids):
    found = [trainer(settings(f"training.batch_size={b}"), ids, model=Spy(6, dropout=0.9)).validate(0) for b in (1, 3)]
    model = Spy(6, dropout=0.9)
    again = [
        trainer(settings(f"training.batch_size={b}"), ids, model=model).validate(e)
        for b, e in ((1, 0), (4, 1), (10, 2))
    ]
    assert again[0]["auroc"] == again[1]["auroc"] == again[2]["auroc"]
    assert again[1]["loss"] == pytest.approx(again[0]["loss"], rel=1e-6)
    assert all(0 <= f["auroc"] <= 1 for f in found)


def test_randomness_depends_on_the_place_and_not_on_what_was_drawn_before(settings, ids):
    weights = []
    for wasted in (0, 17):
        run = trainer(settings(), ids, model=None)
        model = Spy(6, dropout=0.5)
        model.load_state_dict(run.model.state_dict())
        run = trainer(settings(), ids, model=model)
        torch.rand(wasted)
        run.train_epoch(State())
        weights.append(model.head.weight.detach().clone())
    assert torch.equal(*weights)


def test_higher_auroc_wins_then_lower_loss_then_the_earlier_epoch():
    def row(auroc, loss):
        return {"auroc": auroc, "loss": loss}

    assert _is_better(row(0.5, 9.0), None, "auroc")
    assert _is_better(row(0.8, 9.0), row(0.7, 0.1), "auroc")
    assert _is_better(row(0.8, 0.1), row(0.8, 0.2), "auroc")
    assert not _is_better(row(0.8, 0.2), row(0.8, 0.2), "auroc")
    assert not _is_better(row(math.nan, 0.1), row(0.3, 5.0), "auroc")
    assert _is_better(row(math.nan, 0.1), row(math.nan, 0.2), "auroc")
    assert _is_better(row(0.1, 0.1), row(0.9, 0.2), "loss")


def test_early_stopping_counts_epochs_since_the_best(settings):
    patient = settings("training.early_stopping=2", "training.epochs=9").training
    assert _stop_reason(patient, State(epoch=4, best={"epoch": 3})) is None
    assert _stop_reason(patient, State(epoch=5, best={"epoch": 3})) == "no better auroc for 2 epochs"
    assert _stop_reason(patient, State(epoch=9, best={"epoch": 9})) == "all 9 epochs done"


def test_the_kept_weights_are_those_of_the_selected_epoch(settings, tmp_path):
    result = train(settings("training.epochs=6"), tmp_path)
    rows = result.history
    chosen = max(rows, key=lambda r: (r["val_auroc"], -r["val_loss"], -r["epoch"]))
    assert (
        result.best["epoch"] == chosen["epoch"] == read_weights(tmp_path / "checkpoints/best.safetensors")[1]["epoch"]
    )
    lowest = min(rows, key=lambda r: (r["val_loss"], r["epoch"]))
    assert result.lowest_loss["epoch"] == lowest["epoch"]
    for row in rows:
        if row["epoch"] <= chosen["epoch"]:
            best_then = max(rows[: row["epoch"]], key=lambda r: (r["val_auroc"], -r["val_loss"], -r["epoch"]))
            assert row["best"] == (best_then is row)


def test_training_learns_something_and_logs_every_learned_alpha(settings, tmp_path):
    result = train(settings("training.epochs=25", "training.lr=3e-2"), tmp_path)
    rows = list(csv.DictReader((tmp_path / "metrics.csv").open()))
    assert [float(r["train_loss"]) for r in rows] == [r["train_loss"] for r in result.history]
    assert float(rows[-1]["train_loss"]) < 0.7 * float(rows[0]["train_loss"])
    assert 0 < float(rows[0]["alpha/pool.sm"]) < 1
    assert len({r["alpha/pool.sm"] for r in rows}) > 6
    assert float(rows[0]["lr"]) == pytest.approx(3e-3)
    assert float(rows[1]["lr"]) == pytest.approx(3e-2)


def test_class_weights_are_off_by_default_and_balance_the_loss_when_asked(marked, settings, tmp_path):
    table = pd.read_csv(marked, dtype=str)
    table.drop(table.index[(table["split"] == "train") & (table["label"] == "1")][1:]).to_csv(
        tmp_path / "few.csv", index=False
    )
    quiet = ("training.epochs=1", "training.lr=1e-12", "training.batch_size=50")
    rows = {
        flag: train(
            settings(*quiet, f"training.class_weights={flag}", manifest=tmp_path / "few.csv"), tmp_path / flag
        ).history[0]
        for flag in ("false", "true")
    }
    labels = [
        int(y)
        for y, part in zip(*(pd.read_csv(tmp_path / "few.csv")[c] for c in ("label", "split")), strict=True)
        if part == "train"
    ]
    positives, negatives = sum(labels), len(labels) - sum(labels)
    assert (positives, negatives > 1) == (1, True)
    untrained = math.log(2)
    assert rows["false"]["train_loss"] == pytest.approx(untrained, rel=0.3)
    assert rows["true"]["train_loss"] == pytest.approx(2 * negatives / len(labels) * untrained, rel=0.3)
    assert rows["true"]["val_loss"] == rows["false"]["val_loss"]


def test_bfloat16_autocast_trains_close_to_float32(settings, tmp_path):
    rows = [
        train(settings(f"training.autocast={v}"), tmp_path / v).history[-1]["train_loss"] for v in ("false", "true")
    ]
    assert rows[1] == pytest.approx(rows[0], rel=0.05)
    assert rows[0] != rows[1]


def test_three_classes_train_with_three_logits(study, settings, tmp_path):
    manifest = Manifest.read(study)
    table = manifest.table.assign(
        label=[str(i % 3) for i in range(len(manifest))], path=[str(manifest.path_of(i)) for i in manifest.ids]
    )
    table = table.drop(columns=["instance_labels", "group"])
    Manifest(table).write(tmp_path / "three.csv")
    train(settings(model="abmil", manifest=tmp_path / "three.csv"), tmp_path / "run")
    tensors, note = read_weights(tmp_path / "run/checkpoints/best.safetensors")
    assert note["model"]["n_classes"] == 3
    assert tensors["head.bias"].shape == (3,)


def test_labels_of_the_test_set_cannot_influence_the_weights(marked, settings, tmp_path):
    table = pd.read_csv(marked, dtype=str)
    test = table["split"] == "test"
    table.loc[test, "label"] = [str(1 - int(v)) for v in table.loc[test, "label"]]
    table.to_csv(tmp_path / "flipped.csv", index=False)
    for name in ("marked", "flipped"):
        train(settings(manifest=tmp_path / f"{name}.csv"), tmp_path / name)
    for file in ("best", "last", "lowest_loss"):
        same = [(tmp_path / n / "checkpoints" / f"{file}.safetensors").read_bytes() for n in ("marked", "flipped")]
        assert same[0] == same[1]


def test_test_bags_are_never_opened_in_training(marked, settings, tmp_path):
    table = pd.read_csv(marked, dtype=str)
    gone = table["split"] == "test"
    table.loc[gone, "path"] = [str(tmp_path / f"gone_{i}.h5") for i in table["id"][gone]]
    table.to_csv(tmp_path / "gone.csv", index=False)
    assert train(settings("training.epochs=1", manifest=tmp_path / "gone.csv"), tmp_path / "run").ended


def test_a_nan_in_a_logit_names_epoch_batch_and_bag(settings, ids):
    model = Spy(6, spoil=ids[4])
    with pytest.raises(DataError, match=rf"epoch 1, batch \d+: the logit of bag {ids[4]} is NaN or Inf"):
        trainer(settings(), ids, model=model).train_epoch(State())


class Explodes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, where):
        ctx.where = where
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return torch.where(ctx.where[:, None] & (grad != 0), math.inf, grad), None


class BadGradient(Spy):
    def forward(self, batch):
        output = super().forward(batch)
        where = torch.tensor([name == self.target for name in batch.ids])
        return Output(Explodes.apply(output.logits, where), output.scores)


def test_an_infinite_gradient_names_the_bag_it_comes_from(settings, ids):
    model = BadGradient(6)
    model.target = ids[7]
    before = model.head.weight.detach().clone()
    with pytest.raises(DataError, match=rf"epoch 1, batch \d+: the gradient of bag {ids[7]} is NaN or Inf"):
        trainer(settings("training.batch_size=10"), ids, model=model).train_epoch(State())
    assert torch.equal(model.head.weight, before)


def test_a_nan_in_the_features_names_bag_and_row(settings, ids):
    run = trainer(settings("training.batch_size=5"), ids)
    bag = run.train_set[3]
    bag.x[7, 2] = math.nan
    with pytest.raises(DataError, match=f"bag {bag.id} holds NaN or Inf in row 7"):
        run.train_epoch(State())


def test_a_nan_stops_the_run_and_leaves_the_last_good_checkpoint(settings, tmp_path, monkeypatch):
    config = settings("training.epochs=2", "training.checkpoint_minutes=0")
    train(config, tmp_path / "whole")
    from smmil.train import loop

    honest, calls = loop.total_loss, []

    def failing(output, y, **weights):
        calls.append(1)
        loss, parts = honest(output, y, **weights)
        return (loss * math.nan, {"bag": loss * math.nan}) if len(calls) == 4 else (loss, parts)

    monkeypatch.setattr(loop, "total_loss", failing)
    with pytest.raises(DataError, match="loss term bag is NaN or Inf, among bags"):
        train(config, tmp_path / "broken")
    monkeypatch.undo()
    train(config, tmp_path / "broken")
    for file in ("checkpoints/best.safetensors", "checkpoints/last.safetensors", "metrics.csv"):
        assert (tmp_path / "broken" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_hooks_of_a_model_run_around_every_step(settings, ids):
    """before_step sees complete gradients and old weights, after_step the new ones; bag_weight scales the loss."""

    steps = []

    class Hooked(Spy):
        bag_weight = 0.5

        def before_step(self):
            steps.append(("before", self.head.weight.grad is not None, self.head.weight.clone()))

        def after_step(self):
            steps.append(("after", True, self.head.weight.clone()))

    torch.manual_seed(0)
    hooked, state, plain = Hooked(6), State(), State()
    trainer(settings("training.batch_size=5"), ids, model=hooked).train_epoch(state)
    trainer(settings("training.batch_size=5", "training.lr=1e-12"), ids).train_epoch(plain)
    assert [name for name, _, _ in steps] == ["before", "after"] * 2
    assert all(complete for _, complete, _ in steps)
    assert not torch.equal(steps[0][2], steps[1][2])
    assert torch.equal(steps[1][2], steps[2][2])
    assert state.sums["loss"] < 0.8 * plain.sums["loss"]


def test_bags_come_in_another_order_in_every_epoch(settings, ids):
    orders, state = [], State()
    model = Spy(6)
    forward = model.forward
    model.forward = lambda batch: orders[-1].extend(batch.ids) or forward(batch)
    run = trainer(settings("training.batch_size=2"), ids, model=model)
    for _ in range(2):
        orders.append([])
        run.train_epoch(state)
        state.epoch, state.step = state.epoch + 1, 0
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(ids)
    assert orders[0] != orders[1]


def test_a_penalty_of_weight_zero_is_the_plain_run_to_the_bit_dropout_included(settings, tmp_path):
    def history(name, *changes):
        return train(settings("model.options={dim: 8}", *changes, model="clam"), tmp_path / name).history

    history("plain")
    unpunished = history("none", "training.penalty.kind=attention", "training.penalty.weight=0.0")
    punished = history("some", "training.penalty.kind=attention", "training.penalty.weight=1.0")
    tensors = [_tensors(tmp_path / name) for name in ("plain", "none", "some")]
    assert all(torch.equal(a, b) for a, b in zip(*tensors[:2], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(*tensors[::2], strict=True))
    assert "train_penalty" in punished[0]
    assert "train_penalty" not in unpunished[0]


def _tensors(folder):
    found, _ = read_weights(folder / "checkpoints" / "best.safetensors")
    return [found[k] for k in sorted(found)]

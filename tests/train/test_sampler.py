"""The balanced sampler: classes equally likely, bags in turn, the same batches for everybody, resumed to the byte."""

import os
import signal

import numpy as np
import pytest

import smmil
from smmil.config import load_config
from smmil.data import BagDataset, Manifest, balanced_order, batches
from smmil.errors import ConfigError
from smmil.train import Progress, train
from smmil.train.loop import Interrupted

RARE = [0] * 17 + [1] * 3 + [2] * 1


def test_every_class_has_its_share_of_the_places_and_of_every_place():
    strata, orders = np.array(RARE), [balanced_order(RARE, 0, epoch) for epoch in range(600)]
    drawn = strata[np.array(orders)]
    assert all(len(order) == len(RARE) for order in orders)
    assert all(np.bincount(row, minlength=3).tolist() == [7, 7, 7] for row in drawn)
    shares = np.stack([(drawn == kind).mean(0) for kind in range(3)])  # of each class at each place
    assert abs(shares - 1 / 3).max() < 5 * np.sqrt(2 / 9 / 600)


def test_a_place_too_many_goes_to_any_class():
    counts = [np.bincount(np.array([0, 0, 0, 0, 1])[balanced_order([0, 0, 0, 0, 1], 3, e)]).tolist() for e in range(60)]
    assert sorted(map(tuple, {tuple(c) for c in counts})) == [(2, 3), (3, 2)]


def test_bags_of_a_class_take_turns():
    """No bag comes a second time in an epoch before all of its class came once; over epochs all come equally often."""
    counts = np.zeros(len(RARE))
    for epoch in range(400):
        own = np.bincount(balanced_order(RARE, 1, epoch), minlength=len(RARE))
        assert own[:17].max() == 1
        assert sorted(own[17:20]) == [2, 2, 3]
        assert own[20] == 7
        counts += own
    assert abs(counts[:17] / 400 - 7 / 17).max() < 5 * np.sqrt(7 / 17 * 10 / 17 / 400)


def test_the_order_follows_seed_and_epoch_alone():
    assert balanced_order(RARE, 0, 5) == balanced_order(RARE, 0, 5)
    assert len({tuple(balanced_order(RARE, seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}) == 4
    with pytest.raises(ConfigError, match="needs a class of every training bag; use sampler: shuffle"):
        balanced_order([0, None, 1], 0, 0)


def test_batches_with_repeated_bags_are_the_same_for_any_number_of_workers(study):
    dataset = Manifest.read(study)
    order = balanced_order([0] * 16 + [1, 1], 0, 0)
    ids = [
        [batch.ids for batch in batches(BagDataset(dataset, cache=False), batch_size=4, order=order, workers=workers)]
        for workers in (0, 2)
    ]
    assert ids[0] == ids[1]
    assert [i for batch in ids[0] for i in batch] == [dataset.ids[n] for n in order]


class Stopper(Progress):
    def __init__(self):
        self.steps = 0

    def step_done(self, epoch, step, loss):
        self.steps += 1
        if self.steps == 3:
            os.kill(os.getpid(), signal.SIGINT)


def test_a_stopped_balanced_run_goes_on_to_the_same_bytes_and_differs_from_a_shuffled_one(settings, tmp_path):
    config = settings("training.sampler=balanced", "training.batch_size=2", "training.epochs=2")
    train(config, tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(config, tmp_path / "stopped", progress=Stopper())
    train(config, tmp_path / "stopped")
    plain = settings("training.batch_size=2", "training.epochs=2")
    train(plain, tmp_path / "shuffled")
    files = [
        (tmp_path / name / "checkpoints/last.safetensors").read_bytes() for name in ("whole", "stopped", "shuffled")
    ]
    assert files[0] == files[1] != files[2]
    assert config.digest() != plain.digest()


def test_bags_in_memory_are_balanced_too(study):
    manifest = Manifest.read(study)
    bags = [manifest.bag(i) for i in manifest.ids]
    quick = {"epochs": 1, "threads": 1, "options": {"dim": 4, "att_dim": 2}}
    plain, balanced = (
        smmil.fit("abmil", bags[:12], bags[12:], **quick, sampler=sampler) for sampler in ("shuffle", "balanced")
    )
    assert plain.history[0]["train_loss"] != balanced.history[0]["train_loss"]


def test_settings_that_are_new_are_not_written_unless_they_are_set(study):
    least = [f"data.manifest={study}", "model.name=abmil"]
    plain = load_config(None, least)
    text = plain.to_yaml()
    assert all(word not in text for word in ("sampler", "loggers", "test:", "target"))
    for key in ("training.sampler=balanced", "data.test=rotate"):
        changed = load_config(None, [*least, key])
        assert key.split(".")[1].replace("=", ": ") in changed.to_yaml()
        assert changed.digest() != plain.digest()
        assert changed.differing_keys(plain)
    logged = load_config(None, [*least, "training.loggers=[mlflow]"])
    assert "loggers:\n  - mlflow" in logged.to_yaml()
    assert logged.digest() == plain.digest()
    assert logged.differing_keys(plain) == []


def test_settings_that_contradict_each_other_are_refused(study):
    least = [f"data.manifest={study}", "model.name=abmil"]
    with pytest.raises(ConfigError, match="correct rare classes twice"):
        load_config(None, [*least, "training.sampler=balanced", "training.class_weights=true"])
    with pytest.raises(ConfigError, match=r"data\.test: rotate draws the folds, but data\.splits gives them"):
        load_config(None, [*least, "data.test=rotate", "data.splits=splits.json"])


class Listener(Progress):
    def __init__(self):
        self.messages = []

    def message(self, text):
        self.messages.append(text)


def test_a_small_fixed_test_set_is_told_before_training_and_a_rotating_one_is_not(settings, tmp_path):
    told = {}
    for test in ("fixed", "rotate"):
        listener = Listener()
        train(settings(f"data.test={test}", "training.epochs=1"), tmp_path / test, progress=listener)
        told[test] = [text for text in listener.messages if "data.test=rotate" in text]
    assert len(told["fixed"]) == 1
    assert told["fixed"][0].startswith("note: the test set holds 2 patients of class")
    assert told["rotate"] == []

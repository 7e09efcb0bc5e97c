"""A step that would take minutes is announced before it starts, and the estimate changes nothing else."""

from dataclasses import replace

import pytest
import torch
from support.bags import grid_bag

from smmil import models
from smmil.bag import BagBatch
from smmil.models import QUICK, create_model, list_models, model_class, step_seconds
from smmil.train import loop
from smmil.train.loop import Progress
from smmil.train.run import fit


def line(n, name="b", y=1):
    return replace(grid_bag(n, y=y), id=name)


@pytest.mark.parametrize(("name", "cost"), [("abmil", lambda n: 1 + 3e-5 * n), ("sm_tap", lambda n: 1 + 2e-9 * n**2)])
def test_the_estimate_follows_the_growth_of_the_model(monkeypatch, name, cost):
    monkeypatch.setattr(models, "_timed", lambda _, batch: cost(batch.x.shape[0]) - 0.9)
    monkeypatch.setattr(models, "_TIMED", (16, 32, 64))
    batch = BagBatch.pack([line(70), line(300, "large")])
    assert step_seconds(create_model(name, 16), batch) == pytest.approx(cost(70) + cost(300) - 1.8)


class Listener(Progress):
    def __init__(self):
        self.events = []

    def message(self, text):
        self.events.append(text)

    def step_done(self, epoch, step, loss):
        self.events.append(loss)


def trained(name, monkeypatch, *, large, slow=0.0):
    monkeypatch.setattr(loop, "_LARGE", large)
    monkeypatch.setattr(loop, "_SLOW_S", slow)
    listener = Listener()
    bags = [line(40, "a", 0), line(90, "b"), line(100, "c", 0)]
    result = fit(name, bags, [line(20, "d", 0), line(30, "e")], epochs=1, batch_size=1, progress=listener)
    return listener.events, result.model.state_dict()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in ("set_mil", "iib_mil"))) for name in list_models()]
)
def test_a_slow_step_is_announced_before_it_starts_and_weights_are_the_same(monkeypatch, name):
    monkeypatch.setattr(models, "_TIMED", (8, 16))
    told, weights = trained(name, monkeypatch, large=60)
    silent, wanted = trained(name, monkeypatch, large=10**9)
    (message,) = [e for e in told if isinstance(e, str)]
    size = 90 if "bag b" in message else 100
    assert f"has {size} instances: one step takes about " in message
    assert ("grows with their square" in message) == getattr(model_class(name), "all_pairs", False)
    assert all(quick in list_models() and quick in message for quick in QUICK)
    losses = [e for e in told if not isinstance(e, str)]
    assert told.index(message) < told.index(losses[-1])
    assert losses == silent
    assert all(torch.equal(weights[key], wanted[key]) for key in wanted)


def test_quick_steps_and_models_that_cannot_be_timed_train_in_silence(monkeypatch):
    assert len(trained("abmil", monkeypatch, large=60, slow=60.0)[0]) == 3

    def refuse(*_):
        raise RuntimeError("cannot be copied")

    monkeypatch.setattr(models, "deepcopy", refuse)
    assert len(trained("abmil", monkeypatch, large=60)[0]) == 3

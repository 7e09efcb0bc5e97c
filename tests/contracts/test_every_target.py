"""What every model keeps for every target that is no class: packed as single, nothing leaks, Sm at 0 is no Sm."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.bags import grid_bag

from smmil.bag import BagBatch
from smmil.config import TargetConfig
from smmil.losses import total_loss
from smmil.models import create_model, list_models, model_options
from smmil.predict.inference import predict
from smmil.target import fit_target
from smmil.train.loop import _bag_weight
from smmil.train.targets import _give_target

DIM = 16
TARGETS = {
    "multilabel": [[1, 0], [0, 1], [float("nan"), 1], [1, float("nan")], [0, 0], [1, 1], [0, 1], [1, 0]],
    "ordinal": [[0], [1], [2], [3], [0], [1], [2], [3]],
    "regression": [[3.5], [1.0], [8.25], [2.0], [2.0], [9.0], [4.0], [5.5]],
    "survival": [[2.0, 1], [3.5, 0], [1.0, 1], [2.0, 0], [5.0, 1], [7.0, 1], [6.0, 0], [4.0, 1]],
    "cox": [[2.0, 1], [3.5, 0], [1.0, 1], [2.0, 1], [5.0, 1], [7.0, 1], [6.0, 0], [4.0, 1]],
}
SMALLER = {"set_mil": {"size": 8, "depth": 2}, "iib_mil": {"dim": 32, "hidden": 64}}
# Models without a loss of their own differ in nothing but the loss; those with one sit in `make test` for two kinds.
# CLAM's and SMMILe's serve pseudo labels, which need classes; those of SETMIL larger bags than these.
IDLE = {"clam": {"instance_heads"}, "set_mil": {"blocks"}, "smmile": {"refine"}}
OWN_LOSSES = ("clam", "iib_mil", "dtfd_mil", "dsmil", "bayes_mil", "prob_smooth")
PAIRS = [(name, kind) for name in list_models() for kind in TARGETS]
QUICK = {("abmil", kind) for kind in TARGETS} | {(name, kind) for name in OWN_LOSSES for kind in ("multilabel", "cox")}


def sitting(pairs, quick):
    return pytest.mark.parametrize(
        ("name", "kind"), [pytest.param(*pair, marks=() if quick(pair) else pytest.mark.slow) for pair in pairs]
    )


every_pair = sitting(PAIRS, QUICK.__contains__)


def target_of_kind(kind):
    rows = np.array(TARGETS[kind], dtype=float)
    columns = {"multilabel": ("a", "b"), "survival": ("time", "event"), "cox": ("time", "event")}
    return fit_target(TargetConfig(kind=kind, intervals=3), columns.get(kind, ("label",)), rows, levels=4)


def bags_of(kind, dtype=torch.float32):
    bags = [grid_bag(7 + 3 * n, dim=DIM, seed=n, dtype=dtype) for n in range(8)]
    rows = [torch.tensor(row, dtype=torch.float64) for row in TARGETS[kind]]
    if kind == "ordinal":
        return [replace(bag, y=int(row[0])) for bag, row in zip(bags, rows, strict=True)]
    return [replace(bag, y=None, target=row) for bag, row in zip(bags, rows, strict=True)]


def build(name, kind, seed=0, **options):
    torch.manual_seed(seed)
    target = target_of_kind(kind)
    model = create_model(name, DIM, target.n_logits, **SMALLER.get(name, {}), **options)
    _give_target(model, target)
    return model, target


def loss_of(model, target, batch):
    torch.manual_seed(5)
    output = model(batch)
    bag = target.loss(output.logits, target.known(batch))
    return total_loss(output, None, bag=bag, bag_weight=_bag_weight(model))


@every_pair
def test_bags_predicted_together_are_predicted_as_alone(name, kind):
    model, _ = build(name, kind)
    model, bags = model.double(), bags_of(kind, torch.float64)
    alone, together = predict(model, bags), predict(model, [BagBatch.pack(bags)])
    for one, other in zip(alone, together, strict=True):
        assert np.allclose(one.probs, other.probs, atol=1e-9)
        assert np.allclose(one.scores, other.scores, atol=1e-5)
        assert (one.value is None) == (kind == "multilabel")
        assert one.value is None or np.isclose(one.value, other.value)
        assert one.scores.shape[1] in ((1, 2) if kind == "multilabel" else (1,))
        assert one.target_kind == kind


@every_pair
def test_what_is_known_of_a_case_does_not_leak_into_its_prediction(name, kind):
    model, _ = build(name, kind)
    bags = bags_of(kind)
    others = [replace(bag, y=None, y_inst=None, target=None) for bag in bags]
    for one, other in zip(predict(model, bags), predict(model, others), strict=True):
        assert np.array_equal(one.probs, other.probs)
        assert np.array_equal(one.scores, other.scores)
        assert one.value == other.value
        assert (other.y, other.target) == (None, None)


@every_pair
def test_the_loss_falls_when_the_model_follows_its_gradient(name, kind):
    """Every term is finite, reaches the weights, and is the loss of the target, not of a class."""
    model, target = build(name, kind)
    batch, losses = BagBatch.pack(bags_of(kind)), []
    steps = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.train()
    for _ in range(12):
        loss, parts = loss_of(model, target, batch)
        assert all(torch.isfinite(part) for part in parts.values())
        losses.append(loss.item())
        steps.zero_grad()
        loss.backward()
        steps.step()
    assert losses[-1] < losses[0]
    idle = {n.split(".")[0] for n, p in model.named_parameters() if p.requires_grad and p.grad is None}
    assert idle <= IDLE.get(name, set())


SMOOTHED = [(name, kind) for name in list_models() if "sm" in model_options(name) for kind in TARGETS]


@sitting(SMOOTHED, lambda pair: pair[1] == "survival" and pair[0] in ("clam", "dsmil", "patch_gcn"))
def test_sm_with_alpha_zero_trains_as_the_model_without_it(name, kind):
    batch = BagBatch.pack(bags_of(kind))
    found = []
    for options in ({}, {"sm": {"where": "early", "alpha": 0.0}}):
        model, target = build(name, kind, **options)
        loss, _ = loss_of(model.train(), target, batch)
        loss.backward()
        found.append([loss, *(p.grad for p in model.parameters() if p.grad is not None)])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("kind", TARGETS)
def test_sm_ap_with_alpha_zero_is_abmil(kind):
    batch = BagBatch.pack(bags_of(kind))
    plain, target = build("abmil", kind)
    smooth, _ = build("sm_ap", kind, alpha=0.0, spectral_norm=False)
    smooth.load_state_dict(plain.state_dict(), strict=False)
    (a, _), (b, _) = loss_of(plain, target, batch), loss_of(smooth, target, batch)
    torch.testing.assert_close(a, b)


def test_terms_that_need_classes_are_left_out_and_the_bag_loss_counts_in_full():
    for name, left in (("clam", {"bag"}), ("bayes_mil", {"bag", "weights"}), ("iib_mil", {"bag", "instance"})):
        model, target = build(name, "survival")
        _, parts = loss_of(model.train(), target, BagBatch.pack(bags_of("survival")))
        assert set(parts) == left
        assert _bag_weight(model) == 1.0
    _give_target(model := create_model("clam", DIM, 1), None)
    assert _bag_weight(model) == 0.7
    assert _bag_weight(build("dsmil", "survival")[0]) == 0.5


def test_pseudo_bags_and_critical_instances_are_judged_by_the_loss_of_the_target():
    batch = BagBatch.pack(bags_of("regression"))
    model, target = build("dtfd_mil", "regression", pseudo_bags=1)  # one pseudo-bag is the bag
    model.train()
    torch.manual_seed(0)
    tier1 = model(batch).losses["tier1"]
    model.eval()
    h = model.embed(batch.x)
    f = model.attention(h)
    pooled = [(torch.softmax(a, 0) * rows).sum(0) for a, rows in zip(batch.split(f), batch.split(h), strict=True)]
    answer = model.classifier(torch.stack(pooled))[:, 0]
    truth = (batch.target[:, 0] - target.mean) / target.deviation
    torch.testing.assert_close(tier1, (answer - truth.float()).square().mean())
    model, target = build("dsmil", "regression")
    output = model.train()(batch)
    top = torch.stack([rows.max() for rows in batch.split(model.instance(batch.x)[:, 0])])
    torch.testing.assert_close(output.losses["max"], (top - truth.float()).square().mean() / 2)

"""GTP in use against a slow reference written from its equations, and the properties they imply."""

from dataclasses import replace

import pytest
import torch
from support import literal_gtp
from support.bags import grid_bag, mixed_bags, reordered, woven_bag
from support.literal_gtp import assert_close, running, shaken

from smmil.bag import BagBatch
from smmil.errors import ConfigError, DataError
from smmil.graph import Graph
from smmil.models import create_model

DOUBLE = torch.float64
BAGS = mixed_bags(DOUBLE)


def pack(*bags):
    return BagBatch.pack(bags)


OPTIONS = [
    {},
    {"n_classes": 3},
    {"relu": True},
    {"layers": 1},
    {"layers": 3, "heads": 4},
    {"cam_start": "one"},
    {"cam_start": "probability"},
    {"cam_start": "probability", "n_classes": 3},
    {"score": "attention"},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_it_is_its_equations(options):
    model = shaken(**options).eval()
    asked = {"relu": model.relu, "start": model.cam_start, "scores": model.score}
    found, _ = literal_gtp.gtp(model, BAGS, running(model), **asked)
    for bag, (logits, scores, *_) in zip(BAGS, found, strict=True):
        out = model(pack(bag))
        assert torch.allclose(out.logits[0], logits, atol=1e-10), bag.id
        assert_close(out.scores, scores)
        assert out.losses == {}


def test_packed_bags_keep_to_themselves():
    model = shaken(n_classes=3).eval()
    batch = BagBatch.pack([b for b in BAGS if b.coords.shape[1] == 2])
    alone = [model(pack(b)) for b in BAGS if b.coords.shape[1] == 2]
    out = model(batch)
    assert torch.allclose(out.logits, torch.cat([o.logits for o in alone]), atol=1e-12)
    for found, one in zip(batch.split(out.scores), alone, strict=True):
        assert_close(found, one.scores, 1e-7)


@pytest.mark.parametrize("n_classes", [1, 3])
def test_a_patch_scores_between_its_lowest_and_its_highest_cluster(n_classes):
    model = shaken(n_classes).eval()
    for bag, (_, _, clusters, _) in zip(BAGS, literal_gtp.gtp(model, BAGS, running(model))[0], strict=True):
        scores = model(pack(bag)).scores
        assert scores.shape == (bag.n, n_classes)
        assert (scores >= clusters.min(0).values - 1e-12).all()
        assert (scores <= clusters.max(0).values + 1e-12).all()
        assert (scores >= 0).all()


def test_the_order_of_patches_does_not_matter():
    model, bag = shaken().eval(), woven_bag(40, dtype=DOUBLE)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    plain, moved = model(pack(bag)), model(pack(reordered(bag, order)))
    assert torch.allclose(plain.logits, moved.logits, atol=1e-12)
    assert_close(moved.scores, plain.scores[order], 1e-7)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_map_needs_no_gradients_from_outside_and_leaves_none(mode):
    model, batch = shaken(n_classes=2).eval(), pack(grid_bag(30, dtype=DOUBLE))
    with_gradients = model(batch)
    with mode():
        without = model(batch)
    assert torch.equal(with_gradients.scores, without.scores)
    assert not with_gradients.scores.requires_grad
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    with_gradients.logits.sum().backward()
    before = [p.grad.clone() for p in model.parameters()]
    model(batch)
    assert all(torch.equal(p.grad, old) for p, old in zip(model.parameters(), before, strict=True))


def test_a_frozen_model_gives_the_same_map():
    model, batch = shaken().eval(), pack(grid_bag(30, dtype=DOUBLE))
    assert torch.equal(model(batch).scores, model.requires_grad_(False)(batch).scores)


def test_single_precision_keeps_four_digits_of_the_map():
    model, bag = shaken(clusters=40).eval(), grid_bag(57, dtype=DOUBLE)
    truth = model(pack(bag)).scores
    assert_close(model.float()(pack(replace(bag, x=bag.x.float()))).scores.double(), truth, 1e-4)


def biased(model, shift):
    with torch.no_grad():
        model.transformer.head.bias.add_(shift)
    return model


def test_a_surely_negative_bag_gets_high_scores_unless_the_start_is_its_probability():
    """Relevance and gradient both carry the logit, so its sign cancels and its size counts twice."""
    batch = pack(grid_bag(30, dtype=DOUBLE))

    def top(shift, start):
        return float(biased(shaken(cam_start=start).eval(), shift)(batch).scores.max())

    middle = shaken().eval()(batch).logits.item()
    sure, unsure, yes = -middle - 20, -middle - 1, -middle + 20
    assert top(sure, "logit") == pytest.approx(top(yes, "logit"), rel=1e-6)
    assert top(sure, "logit") > 50 * top(unsure, "logit")
    assert top(sure, "one") == pytest.approx(top(unsure, "one"), rel=1e-6)
    assert top(sure, "probability") < 1e-6 * top(yes, "probability")


def test_edge_weights_count():
    model, bag = shaken().eval(), woven_bag(16, dtype=DOUBLE)
    plain = replace(bag, graph=Graph(bag.graph.indptr, bag.graph.indices, torch.ones_like(bag.graph.weight)))
    assert not torch.allclose(model(pack(bag)).logits, model(pack(plain)).logits, atol=1e-3)


def test_smoothing_with_alpha_zero_is_the_plain_model():
    batch = pack(grid_bag(30, dtype=DOUBLE))
    plain, same = (shaken(**o).eval()(batch) for o in ({}, {"sm": {"alpha": 0.0}}))
    assert torch.equal(plain.logits, same.logits)
    assert torch.equal(plain.scores, same.scores)


@pytest.mark.parametrize(("n_classes", "count"), [(1, 139_557), (2, 139_622), (3, 139_687)])
def test_the_number_of_parameters_is_that_of_the_published_model(n_classes, count):
    model = create_model("gtp", 512, n_classes)
    assert sum(p.numel() for p in model.parameters()) == count
    assert sum(b.numel() for b in model.buffers()) == 2 * 64 + 1


def test_what_it_needs_is_asked_for_by_name():
    bag = grid_bag(9, dtype=DOUBLE)
    with pytest.raises(DataError, match="'graph'"):
        shaken()(pack(replace(bag, graph=None)))
    with pytest.raises(DataError, match=r"grid_9_0.*'sym'.*as built"):
        shaken()(pack(replace(bag, graph=bag.graph.normalized())))
    with pytest.raises(ConfigError, match="multiple of heads"):
        create_model("gtp", 16, dim=60)
    for option in ("score", "cam_start"):
        with pytest.raises(ConfigError, match=option):
            create_model("gtp", 16, **{option: "logits"})


@pytest.mark.parametrize(("option", "value"), [("cam_start", "one"), ("train_cam", True)])
def test_options_of_the_map_that_is_not_drawn_are_refused(option, value):
    with pytest.raises(ConfigError, match=rf"{option}.* has no effect with score=attention; leave it out"):
        create_model("gtp", 16, score="attention", **{option: value})

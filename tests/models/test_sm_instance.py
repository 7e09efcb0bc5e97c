"""SmInstance against its equations, and what its pools and its smoothing imply."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from support.bags import grid_bag, mixed_bags, without_edges, woven_bag

from smmil.bag import Bag, BagBatch
from smmil.errors import ConfigError, DataError
from smmil.losses import total_loss
from smmil.models import create_model
from smmil.models.sm_instance import _log_mean_exp, _noisy_or

POOLS = pytest.mark.parametrize("pool", ["mean", "log_sum_exp", "noisy_or"])
WHOLE = torch.tensor([0, 5])


def make(n_classes=1, seed=0, **options):
    torch.manual_seed(seed)
    model = create_model("sm_instance", 16, n_classes, **{"dim": 12, **options}).double()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return model


def some_bags(n_classes=1):
    bags = enumerate(mixed_bags())
    return [replace(bag, y=i % max(2, n_classes), coords=None, frame=None) for i, bag in bags]


def propagation(graph, normalization):
    a = graph.dense()
    degree = a.sum(1)
    lonely = degree == 0
    safe = torch.where(lonely, 1.0, degree)
    p = a / safe[:, None] if normalization == "rw" else a / (safe[:, None] * safe[None, :]).sqrt()
    return p + torch.diag(lonely.double())


def literal(model, bags, pool, normalization="rw", steps=10, sharpness=1.0):
    """Logits and scores, bag by bag with dense matrices."""
    p, logits, scores = dict(model.named_parameters()), [], []
    alpha = 1 / (1 + torch.exp(-p["sm.logit"]))
    for bag in bags:
        u = torch.clamp(bag.x @ p["embed.weight"].T + p["embed.bias"], min=0) @ p["head.weight"].T + p["head.bias"]
        g, matrix = u, propagation(bag.graph, normalization)
        for _ in range(steps):
            g = alpha * matrix @ g + (1 - alpha) * u
        if pool == "mean":
            logits.append(g.sum(0) / bag.n)
        elif pool == "log_sum_exp":
            logits.append(torch.log(torch.exp(sharpness * g).sum(0) / bag.n) / sharpness)
        else:
            negative = torch.prod(1 - torch.sigmoid(g), 0)
            logits.append(torch.log((1 - negative) / negative))
        scores.append(g)
    return torch.stack(logits), torch.cat(scores)


@POOLS
@pytest.mark.parametrize(
    ("n_classes", "options"), [(1, {}), (3, {"normalization": "sym", "steps": 3, "sharpness": 4.0})]
)
def test_it_is_its_equations_gradients_included(pool, n_classes, options):
    model, bags = make(n_classes, pool=pool, **options).train(), some_bags(n_classes)
    batch = BagBatch.pack(bags)
    out, (logits, scores) = model(batch), literal(model, bags, pool, **options)
    assert torch.allclose(out.logits, logits, atol=1e-9)
    assert torch.allclose(out.scores, scores, atol=1e-10)
    ours, truth = (total_loss(replace(out, logits=f), batch.y)[0] + s.sin().sum()
                   for f, s in ((out.logits, out.scores), (logits, scores)))  # fmt: skip
    mine, true = (torch.autograd.grad(value, list(model.parameters())) for value in (ours, truth))
    for name, a, b in zip(dict(model.named_parameters()), mine, true, strict=True):
        assert torch.allclose(a, b, atol=1e-8, rtol=1e-8), name
    assert out.losses == {}


def test_with_the_mean_it_is_mean_pooling_with_late_sm():
    batch = BagBatch.pack([woven_bag(16, dtype=torch.float64)])
    ours = make(pool="mean", normalization="sym")
    other = create_model("mean_pool", 16, dim=12, sm={"where": "late"}).double()
    other.load_state_dict({k.replace("sm.logit", "sm.sm.logit"): v for k, v in ours.state_dict().items()})
    assert torch.allclose(ours(batch).logits, other(batch).logits, atol=1e-12)
    assert torch.allclose(ours(batch).scores, other(batch).scores, atol=1e-12)


def test_log_sum_exp_lies_between_mean_and_maximum_and_reaches_both():
    s = torch.randn(5, 3, dtype=torch.float64)
    mean, top = s.mean(0), s.amax(0)
    values = [_log_mean_exp(s, WHOLE, r)[0] for r in (1e-6, 0.5, 1.0, 4.0, 1e6)]
    assert torch.allclose(values[0], mean, atol=1e-5)
    assert torch.allclose(values[-1], top, atol=1e-5)
    assert all((a < b).all() for a, b in pairwise(values))
    assert torch.allclose(_log_mean_exp(s.repeat(7, 1), torch.tensor([0, 35]), 1.0)[0], values[2], atol=1e-12)


@pytest.mark.parametrize("level", [-700.0, -300.0, -40.0, -3.0, 0.0, 5.0, 300.0])
def test_noisy_or_keeps_its_digits_at_both_ends(level):
    """Five equal instances: for small probabilities log 5p, for large ones the sum of their logits."""
    s = torch.full((5, 1), level, dtype=torch.float64, requires_grad=True)
    found = _noisy_or(s, WHOLE)
    none = 5 * np.logaddexp(0, level)
    wanted = none if none > 30 else math.log(math.expm1(none))
    assert found.item() == pytest.approx(wanted, rel=1e-12, abs=1e-12)
    found.sum().backward()
    assert s.grad.isfinite().all()
    assert (s.grad > 0).all()


def test_noisy_or_of_one_instance_is_its_logit():
    s = torch.linspace(-30, 30, 13, dtype=torch.float64)[:, None]
    assert torch.allclose(_noisy_or(s, torch.arange(14)), s, atol=1e-9)


def test_noisy_or_starts_from_its_prior():
    model, bag = create_model("sm_instance", 16, pool="noisy_or", prior=0.002), grid_bag(300)
    with torch.no_grad():
        model.head.weight.zero_()
        chance = model(BagBatch.pack([bag])).logits.sigmoid().item()
    assert chance == pytest.approx(1 - (1 - 0.002) ** 300, abs=1e-4)


def test_smoothing_keeps_equal_logits_and_leaves_lonely_instances_alone():
    model, bag = make().eval(), grid_bag(40, dtype=torch.float64)
    same = replace(bag, x=bag.x[:1].repeat(40, 1))
    scores = model(BagBatch.pack([same])).scores
    assert torch.allclose(scores, scores[:1].expand_as(scores), atol=1e-12)
    alone = model(BagBatch.pack([without_edges(bag)])).scores
    with torch.no_grad():
        assert torch.allclose(alone, model.head(model.embed(bag.x).relu()), atol=1e-12)


def test_the_map_is_all_the_bag_knows():
    """Logits depend on the features through the scores alone: equal maps, equal bags."""
    model, bag = make(pool="log_sum_exp").eval(), without_edges(grid_bag(9, dtype=torch.float64))
    with torch.no_grad():
        out = model(BagBatch.pack([bag]))
        assert torch.allclose(_log_mean_exp(out.scores, torch.tensor([0, 9]), 1.0), out.logits, atol=1e-12)


def test_what_it_needs_and_what_it_refuses():
    with pytest.raises(DataError, match="'graph'"):
        make()(BagBatch.pack([Bag("bare", torch.zeros(3, 16, dtype=torch.float64))]))
    for wrong in ({"pool": "max"}, {"sharpness": 0.0}, {"prior": 1.0}, {"alpha": 1.0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            create_model("sm_instance", 16, **wrong)

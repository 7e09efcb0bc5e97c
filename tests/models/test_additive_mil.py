"""Additive MIL against its equations, and the sum that its map must have."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.bags import grid_bag, mixed_bags, woven_bag

from smmil.bag import BagBatch
from smmil.errors import ConfigError
from smmil.models import create_model

ATTENTIONS = pytest.mark.parametrize("attention", ["tanh", "gated", "mlp"])


def make(n_classes=1, seed=0, **options):
    """A small model with every weight moved off its starting value."""
    torch.manual_seed(seed)
    model = create_model("additive_mil", 16, n_classes, **{"dim": 12, "att_dim": 6, "hidden": 9, **options}).double()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return model


def some_bags():
    return [replace(bag, coords=None, frame=None) for bag in mixed_bags()]


def layer(p, name, x):
    return p[f"{name}.weight"] @ x + p.get(f"{name}.bias", 0)


def attention_logit(p, kind, h):
    """One instance, one number."""
    if kind == "gated":
        hidden = torch.tanh(layer(p, "attention.project", h)) / (1 + torch.exp(-layer(p, "attention.gate", h)))
        return layer(p, "attention.score", hidden)[0]
    hidden = layer(p, "attention.0", h)
    if kind == "tanh":
        return layer(p, "attention.2", torch.tanh(hidden))[0]
    hidden = layer(p, "attention.2", torch.where(hidden > 0, hidden, 0.2 * hidden))
    return layer(p, "attention.4", torch.where(hidden > 0, hidden, 0.2 * hidden))[0]


def classified(p, v, depth):
    for place in range(depth):
        v = torch.clamp(layer(p, f"classifier.{2 * place}", v), min=0)
    return layer(p, f"classifier.{2 * depth}", v)


def literal(model, bags, attention="tanh", depth=2, centred=False):
    """Logits and contributions, instance by instance."""
    p, logits, scores = dict(model.named_parameters()), [], []
    for bag in bags:
        rows = [torch.clamp(layer(p, "embed", x), min=0) for x in bag.x]
        e = torch.stack([attention_logit(p, attention, h) for h in rows]).exp()
        base = classified(p, 0 * rows[0], depth) if centred else 0
        found = [classified(p, a * h, depth) - base for a, h in zip(e / e.sum(), rows, strict=True)]
        logits.append(sum(found) + base)
        scores += found
    return torch.stack(logits), torch.stack(scores)


@ATTENTIONS
@pytest.mark.parametrize(("n_classes", "depth", "centred"), [(1, 2, False), (3, 1, True)])
def test_it_is_its_equations_gradients_included(attention, n_classes, depth, centred):
    options = {"attention": attention, "depth": depth, "centred": centred}
    model, bags = make(n_classes, **options).train(), some_bags()
    out, truth = model(BagBatch.pack(bags)), literal(model, bags, **options)
    wanted = [p for name, p in model.named_parameters() if name != "attention.score.bias"]
    ours = (out.logits, out.scores)
    grads = [torch.autograd.grad(f.sin().sum() + s.cos().sum(), wanted) for f, s in (ours, truth)]
    for mine, true in zip((*ours, *grads[0]), (*truth, *grads[1]), strict=True):
        assert torch.allclose(mine, true, atol=1e-10, rtol=1e-10)
    assert out.losses == {}


@ATTENTIONS
@pytest.mark.parametrize("where", [None, "early", "late", "map"])
def test_the_logit_is_the_sum_of_the_map_exactly(attention, where):
    sm = {} if where is None else {"sm": {"where": where}}
    model, bags = make(3, attention=attention, **sm).eval(), [woven_bag(16, dtype=torch.float64), *some_bags()[:4]]
    batch = BagBatch.pack([replace(bag, coords=None, frame=None) for bag in bags])
    out = model(batch)
    sums = torch.stack([part.sum(0) for part in batch.split(out.scores)])
    assert torch.equal(out.logits, sums) or torch.allclose(out.logits, sums, rtol=1e-14, atol=1e-14)


def test_instances_without_attention_add_nothing_once_the_map_is_centred():
    """Copies of a bag whose attention is spread over them: without centring, the classifier's biases are multiplied."""
    models = {centred: make(centred=centred).eval() for centred in (False, True)}
    few, many = grid_bag(30, dtype=torch.float64), grid_bag(3000, dtype=torch.float64)
    moved = {}
    for centred, model in models.items():
        with torch.no_grad():
            for p in model.attention.parameters():
                p.zero_()  # equal attention
            sizes = [model(BagBatch.pack([bag])).logits.abs().item() for bag in (few, many)]
        moved[centred] = sizes[1] / sizes[0]
    assert moved[False] > 50
    assert moved[True] < 3


def dense_sm(u, graph, alpha, steps):
    a = graph.dense().numpy()
    degree = a.sum(1)
    root = np.where(degree > 0, 1 / np.sqrt(np.maximum(degree, 1e-300)), 0)
    p = root[:, None] * a * root[None, :] + np.diag((degree == 0).astype(float))
    g = u = u.detach().numpy()
    for _ in range(steps):
        g = alpha * p @ g + (1 - alpha) * u
    return torch.from_numpy(g)


def test_sm_on_the_map_smooths_the_contributions_of_the_plain_model():
    bag = woven_bag(16, dtype=torch.float64)
    smooth, plain = (make(2, **sm).eval() for sm in ({"sm": {"where": "map", "alpha": 0.6, "steps": 4}}, {}))
    plain.load_state_dict(smooth.state_dict())
    wanted = dense_sm(plain(BagBatch.pack([bag])).scores, bag.graph, 0.6, 4)
    out = smooth(BagBatch.pack([bag]))
    assert torch.allclose(out.scores, wanted, atol=1e-12)
    assert torch.allclose(out.logits[0], wanted.sum(0), atol=1e-12)


def test_layers_of_the_attention_that_read_smoothed_rows_have_norm_one():
    for attention, names in (("tanh", ["0"]), ("gated", ["project", "gate"]), ("mlp", ["0"])):
        model = make(attention=attention, sm={"where": "early"}).train()
        for _ in range(50):
            model(BagBatch.pack([woven_bag(16, dtype=torch.float64)]))
        for name in names:
            weight = model.attention.get_submodule(name).weight.detach()
            assert float(torch.linalg.matrix_norm(weight, 2)) == pytest.approx(1, abs=1e-3)


def test_an_unknown_attention_is_refused():
    with pytest.raises(ConfigError, match="attention"):
        create_model("additive_mil", 16, attention="softmax")

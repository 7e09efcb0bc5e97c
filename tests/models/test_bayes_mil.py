"""Bayes-MIL against its equations, written out densely, and its divergences against numerical integrals."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.bags import chain_bag, grid_bag, mixed_bags, without_edges
from torch.distributions import Normal, kl_divergence

from smmil.bag import BagBatch
from smmil.errors import ConfigError
from smmil.losses import total_loss
from smmil.models import create_model
from smmil.models.bayes_mil import _attention_divergence, _log_mean_sigmoid, _weight_divergence
from smmil.predict import predict


def make(n_classes=1, seed=0, **options):
    torch.manual_seed(seed)
    options = {"dim": 24, "att_dim": 10, "dropout": 0.0, **options}
    model = create_model("bayes_mil", 16, n_classes, **options).double()
    for name, p in model.named_parameters():
        p.data *= 1 if name.endswith("log_alpha") else 2
        if name.endswith("log_alpha"):
            p.data += torch.randn_like(p)
    return model


def some_bags(n_classes=1):
    bags = enumerate(mixed_bags())
    return [replace(bag, y=i % max(2, n_classes), coords=None, frame=None) for i, bag in bags]


def drawn_layer(state, name, x, noise):
    w, alpha = state[f"{name}.weight"], state[f"{name}.log_alpha"].exp()
    spread = torch.stack([(row**2 * alpha * w**2).sum(1) for row in x])
    return x @ w.T + state[f"{name}.bias"] + (spread + 1e-12).sqrt() * noise


def literal(model, bags, noises, n_classes, crf):
    """Bag logits, bag loss, mean divergence of the instances and means, one bag after the other."""
    state, used = dict(model.named_parameters()), 0
    logits, losses, divergences, means = [], [], [], []
    for number, bag in enumerate(bags):
        project, gate, score, own = (noise[used : used + bag.n] for noise in noises[:4])
        used += bag.n
        h = torch.relu(bag.x @ state["embed.weight"].T + state["embed.bias"])
        hidden = torch.tanh(drawn_layer(state, "project", h, project))
        hidden = hidden / (1 + torch.exp(-drawn_layer(state, "gate", h, gate)))
        told = drawn_layer(state, "score", hidden, score)
        q = Normal(told[:, 0], torch.exp(told[:, 1] / 2))
        prior = Normal(*torch.tensor([(-5.0, np.exp(-0.5)), (0.0, np.exp(1.5))][bag.y > 0], dtype=torch.float64))
        divergences.append(kl_divergence(q, prior).mean())
        a = bag.graph.dense()
        lonely = a.sum(1) == 0
        a = (a + torch.diag(lonely.double())) / torch.where(lonely, 1.0, a.sum(1))[:, None]
        mean = (1 - crf) * told[:, 0] + crf * a @ told[:, 0]
        attention = torch.sigmoid(mean + q.stddev * own[:, 0])
        z = (attention @ h) / attention.sum()
        logit = drawn_layer(state, "head", z[None], noises[4][number : number + 1])[0]
        logits.append(logit)
        means.append(mean)
        target = torch.tensor([bag.y])
        if n_classes == 1:
            losses.append(torch.nn.functional.binary_cross_entropy(torch.sigmoid(logit), target.double()))
        else:
            losses.append(-torch.log_softmax(logit, 0)[bag.y])
    return torch.stack(logits), torch.stack(losses).mean(), torch.stack(divergences).mean(), torch.cat(means)[:, None]


@pytest.mark.parametrize(("n_classes", "crf"), [(1, 0.0), (3, 0.38)])
def test_training_is_its_equations_gradients_included(n_classes, crf):
    model, bags = make(n_classes, crf=crf, patch_weight=0.3, weights_kl=1e-3).train(), some_bags(n_classes)
    batch = BagBatch.pack(bags)
    torch.manual_seed(3)
    out = model(batch)
    torch.manual_seed(3)
    n, b = batch.x.shape[0], len(bags)
    shapes = ((n, 10), (n, 10), (n, 2), (n, 1), (b, n_classes))
    noises = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    logits, loss, divergence, means = literal(model, bags, noises, n_classes, crf)
    weights = sum(_weight_divergence(p).sum() for name, p in model.named_parameters() if name.endswith("log_alpha"))
    truth = loss + 0.3 * divergence + 1e-3 * weights
    ours, _ = total_loss(out, batch.y)
    assert torch.allclose(out.logits, logits, atol=1e-9)
    assert torch.allclose(out.scores, means, atol=1e-9)
    assert torch.allclose(out.losses["patches"], 0.3 * divergence, atol=1e-9)
    assert torch.allclose(ours, truth, atol=1e-9)
    wanted = list(model.parameters())
    mine, true = (torch.autograd.grad(value, wanted) for value in (ours, truth))
    for name, a, c in zip(dict(model.named_parameters()), mine, true, strict=True):
        assert torch.allclose(a, c, atol=1e-8, rtol=1e-8), name


def test_the_divergence_of_a_weight_is_the_integral():
    """KL from the log-uniform prior is E log|1 + √α ε| - ½ log α less its limit E log|ε|; the fit is within 0.01."""
    grid = (np.arange(400_000) + 0.5) / 20_000 - 10
    density = np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi) / 20_000
    at = np.array([-6.0, -3.0, -1.0, 0.0, 2.0, 5.0])
    found = [np.log(np.abs(1 + np.exp(a / 2) * grid)) @ density - a / 2 for a in at] - np.log(np.abs(grid)) @ density
    assert np.allclose(_weight_divergence(torch.from_numpy(at)).numpy(), found, atol=0.01)


def test_the_patch_regularizer_is_the_divergence_of_the_attention_itself():
    """Between the densities of σ(f) on (0, 1), by a sum over a grid of it."""
    mean, log_variance = torch.tensor([[-1.0]]).double(), torch.tensor([[-0.5]]).double()
    for positive, (m, v) in ((False, (-5.0, np.exp(-1.0))), (True, (0.0, np.exp(3.0)))):
        a = (np.arange(200_000) + 0.5) / 200_000
        f, jacobian = np.log(a / (1 - a)), -np.log(a * (1 - a))
        log_q = -((f + 1) ** 2) / (2 * np.exp(-0.5)) - np.log(2 * np.pi * np.exp(-0.5)) / 2 + jacobian
        log_p = -((f - m) ** 2) / (2 * v) - np.log(2 * np.pi * v) / 2 + jacobian
        wanted = (np.exp(log_q) * (log_q - log_p)).mean()
        told = _attention_divergence(mean, log_variance, torch.tensor([[positive]]))
        assert told.item() == pytest.approx(wanted, rel=1e-4)


def test_attention_is_held_low_in_negative_bags_only():
    low, high = (torch.full((1, 1), value) for value in (-5.0, 2.0))
    narrow, negative, positive = torch.full((1, 1), -1.0), torch.tensor([[False]]), torch.tensor([[True]])
    assert _attention_divergence(low, narrow, negative).item() == pytest.approx(0, abs=1e-6)
    assert _attention_divergence(high, narrow, negative) > 50
    assert _attention_divergence(high, narrow, positive) < 2


def test_in_use_bags_are_pooled_with_the_expected_attention():
    model, bag = make().eval(), grid_bag(40, dtype=torch.float64)
    out = model(BagBatch.pack([bag]))
    state = dict(model.named_parameters())
    with torch.no_grad():
        h = torch.relu(bag.x @ state["embed.weight"].T + state["embed.bias"])
        hidden = torch.tanh(h @ state["project.weight"].T + state["project.bias"])
        hidden = hidden * torch.sigmoid(h @ state["gate.weight"].T + state["gate.bias"])
        mean, log_variance = (hidden @ state["score.weight"].T + state["score.bias"]).T
        draws = np.random.default_rng(0).standard_normal((100_000, 1))
        sampled = (1 / (1 + np.exp(-mean.numpy() - draws * np.exp(log_variance.numpy() / 2)))).mean(0)
        attention = _log_mean_sigmoid(mean, log_variance.exp()).exp()
        z = attention @ h / attention.sum()
        assert np.allclose(attention, sampled, atol=0.01)
        assert torch.allclose(out.logits[0], state["head.weight"] @ z + state["head.bias"], atol=1e-12)
        assert torch.allclose(out.scores[:, 0], mean, atol=1e-12)


@pytest.mark.parametrize(("kind", "drawn"), [("data", False), ("model", True)])
def test_uncertainty_is_the_deviation_over_draws(kind, drawn):
    """Model: over the weights, first order in them, so that small α agree; data: what the network says of f."""
    model, bag = make(uncertainty=kind), grid_bag(12, dtype=torch.float64)
    for name, p in model.named_parameters():
        if name.endswith("log_alpha"):
            p.data.fill_(-6.0)
    told = model.eval()(BagBatch.pack([bag])).uncertainty
    if drawn:
        many = BagBatch.pack([bag] * 3000)
        torch.manual_seed(0)
        with torch.no_grad():
            seen = model.train()(many).scores.reshape(3000, 12).std(0)
        assert torch.allclose(told[:, 0], seen, rtol=0.1)
    else:
        total = make(uncertainty="total").eval()
        total.load_state_dict(model.state_dict())
        model_part = make(uncertainty="model").eval()
        model_part.load_state_dict(model.state_dict())
        parts = [m(BagBatch.pack([bag])).uncertainty ** 2 for m in (total, model_part)]
        assert torch.allclose(parts[0] - parts[1], told**2, atol=1e-12)
    assert np.allclose(predict(model, [bag])[0].uncertainty, told[:, 0].numpy(), rtol=1e-6)


def test_in_use_every_layer_is_computed_once():
    """The uncertainty is told from the projections that gave the mean, not from new ones."""
    model, calls = make().eval(), []
    for name in ("project", "gate"):
        getattr(model, name).register_forward_hook(lambda *_, name=name: calls.append(name))
    assert model(BagBatch.pack(some_bags())).uncertainty is not None
    assert sorted(calls) == ["gate", "project"]


def test_predictions_draw_nothing_and_without_crf_need_no_graph():
    model, bag = make().eval(), chain_bag(9, dtype=torch.float64)
    state = torch.get_rng_state()
    out = model(BagBatch.pack([bag]))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(out.scores, model(BagBatch.pack([type(bag)(bag.id, bag.x)])).scores)


def test_a_lonely_instance_keeps_its_mean_and_agreement_smooths():
    plain, agreed = make().eval(), make(crf=0.38).eval()
    bag = chain_bag(30, dtype=torch.float64)
    scores = [m(BagBatch.pack([bag])).scores for m in (plain, agreed)]
    assert bag.graph.roughness(scores[1]) < bag.graph.roughness(scores[0])
    alone = BagBatch.pack([without_edges(bag)])
    assert torch.allclose(plain(alone).scores, agreed(alone).scores, atol=1e-12)


def test_packed_bags_of_very_different_attention_do_not_starve_each_other():
    """The weights of a bag are divided by their own sum: a bag with attention e⁻⁸⁰ beside one near 1 stays finite."""
    model, bag = make().float().eval(), grid_bag(20)
    low = replace(bag, id="low", x=bag.x * 0)
    model.score.bias.data[0], model.score.weight.data[:] = -200.0, 0.0
    both, alone = model(BagBatch.pack([bag, low])), model(BagBatch.pack([low]))
    assert both.logits.isfinite().all()
    assert torch.allclose(both.logits[1], alone.logits[0], atol=1e-6)


@pytest.mark.parametrize("wrong", [{"crf": 1.0}, {"patch_weight": -1.0}, {"weights_kl": -1.0}, {"uncertainty": "all"}])
def test_options_that_cannot_be_meant_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        create_model("bayes_mil", 16, **wrong)

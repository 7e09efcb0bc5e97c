"""ProbSA against its equations, written out densely, and against the Gaussian divergence of any textbook."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.bags import chain_bag, grid_bag, mixed_bags, without_edges, woven_bag

from smmil.bag import BagBatch
from smmil.errors import ConfigError, DataError
from smmil.losses import _smoothness_penalty, total_loss
from smmil.models import create_model
from smmil.predict import predict


def make(n_classes=1, seed=0, **options):
    torch.manual_seed(seed)
    model = create_model(
        "prob_smooth", 16, n_classes, **{"dim": 24, "att_dim": 10, "kl_weight": 1.0, **options}
    ).double()
    for p in model.parameters():
        p.data *= 2  # attention and variances far from constant
    return model


def some_bags(n_classes=1):
    """One of every kind, labels in turn; without coordinates, which scans and slides have in different numbers."""
    bags = enumerate(mixed_bags())
    return [replace(bag, y=i % max(2, n_classes), coords=None, frame=None) for i, bag in bags]


def dense_prior(graph, strength, ridge):
    """strength (L + ridge I) as a dense matrix; a node without neighbours has the row of the identity."""
    a = graph.dense()
    scale = torch.where(a.sum(1) > 0, a.sum(1), 1.0).rsqrt()
    return strength * ((1 + ridge) * torch.eye(graph.n, dtype=a.dtype) - scale[:, None] * a * scale)


def gaussian_kl(mean, covariance, precision):
    """KL(N(mean, covariance) ‖ N(0, precision⁻¹))."""
    logdets = torch.logdet(precision) + torch.logdet(covariance)
    return (torch.trace(precision @ covariance) + mean @ precision @ mean - len(mean) - logdets) / 2


def literal(model, bags, noise, n_classes, strength, ridge, per):
    """Bag logits, mean bag loss over the maps, divergence (but for its constant) and means, bag by bag."""
    state = dict(model.named_parameters())
    losses, logits, divergences, means, used = [], [], [], [], 0
    for bag in bags:
        h = torch.relu(bag.x @ state["embed.weight"].T + state["embed.bias"])
        hidden = torch.tanh(h @ state["pool.project.weight"].T + state["pool.project.bias"])
        mean = hidden @ state["pool.score.weight"][0]
        variance = torch.exp(hidden @ state["pool.log_variance.weight"][0] + state["pool.log_variance.bias"])
        each = []
        for draw in noise[used : used + bag.n].T:
            f = mean + variance.sqrt() * draw
            each.append(state["head.weight"] @ (h.T @ (f.exp() / f.exp().sum())) + state["head.bias"])
        used += bag.n
        each = torch.stack(each)
        if n_classes == 1:
            p = torch.sigmoid(each[:, 0])
            losses.append(-torch.log(p if bag.y else 1 - p).mean())
        else:
            losses.append(-torch.log_softmax(each, 1)[:, bag.y].mean())
        prior = dense_prior(bag.graph, strength, ridge)
        shift = torch.logdet(prior / strength) / 2 if ridge else 0.0  # the constant that our term leaves out
        if ridge:
            divergence = gaussian_kl(mean, torch.diag(variance), prior) + shift
        else:  # the prior has no density: everything but its normaliser
            quadratic = torch.trace(prior @ torch.diag(variance)) + mean @ prior @ mean
            divergence = (quadratic - bag.n - (strength * variance).log().sum()) / 2
        divergences.append(divergence / (bag.n if per == "instance" else 1))
        logits.append(each.mean(0))
        means.append(mean)
    return torch.stack(logits), torch.stack(losses).mean(), torch.stack(divergences).mean(), torch.cat(means)[:, None]


@pytest.mark.parametrize("n_classes", [1, 3])
@pytest.mark.parametrize(("ridge", "per"), [(0.0, "instance"), (0.3, "bag")])
def test_the_loss_is_the_evidence_bound_gradients_included(n_classes, ridge, per):
    model, bags = make(n_classes, ridge=ridge, kl_per=per, strength=1.7, samples=5).train(), some_bags(n_classes)
    batch = BagBatch.pack(bags)
    torch.manual_seed(7)
    out = model(batch)
    torch.manual_seed(7)
    noise = torch.randn(batch.x.shape[0], 5, dtype=torch.float64)
    logits, loss, divergence, means = literal(model, bags, noise, n_classes, 1.7, ridge, per)
    ours, _ = total_loss(out, batch.y)
    assert torch.allclose(out.logits, logits, atol=1e-10)
    assert torch.allclose(out.scores, means, atol=1e-10)
    assert torch.allclose(out.losses["kl"], divergence, atol=1e-10, rtol=1e-10)
    assert torch.allclose(ours, loss + divergence, atol=1e-10, rtol=1e-10)
    wanted = list(model.parameters())
    mine, true = (torch.autograd.grad(value, wanted) for value in (ours, loss + divergence))
    for name, a, b in zip(dict(model.named_parameters()), mine, true, strict=True):
        assert torch.allclose(a, b, atol=1e-9, rtol=1e-9), name


def test_the_divergence_is_what_sampling_says():
    """E_q[log q - log p] over many maps, with the densities of scipy: the constant is known, the rest must agree."""
    from scipy.stats import multivariate_normal, norm

    model, bag = make(ridge=0.2, strength=1.5, kl_per="bag").train(), woven_bag(16, dtype=torch.float64)
    out = model(BagBatch.pack([bag]))
    spread = model.eval()(BagBatch.pack([bag])).uncertainty[:, 0].numpy()
    mean = out.scores[:, 0].detach().numpy()
    prior = dense_prior(bag.graph, 1.5, 0.2).numpy()
    maps = np.random.default_rng(0).normal(mean, spread, (20_000, bag.n))
    terms = norm.logpdf(maps, mean, spread).sum(1) - multivariate_normal.logpdf(maps, cov=np.linalg.inv(prior))
    constant = np.linalg.slogdet(prior / 1.5)[1] / 2
    error = terms.std() / len(terms) ** 0.5
    assert out.losses["kl"].item() == pytest.approx(terms.mean() + constant, abs=4 * error)


def test_the_best_variance_without_data_is_that_of_the_conditional_prior():
    """Minimising the divergence alone over q must end in mean 0 and σ_n² = 1 / Λ_nn, the mean-field optimum."""
    from smmil.models.prob_smooth import _divergence

    graph = grid_bag(12, dtype=torch.float64).graph.normalized("sym", "shrink")
    mean, log_variance = (torch.randn(12, 1, dtype=torch.float64, requires_grad=True) for _ in range(2))
    optimizer = torch.optim.LBFGS([mean, log_variance], max_iter=200, tolerance_grad=1e-12, tolerance_change=1e-14)

    def closure():
        optimizer.zero_grad()
        value = _divergence(mean, log_variance, graph, 2.0, 0.1).sum()
        value.backward()
        return value

    optimizer.step(closure)
    assert torch.allclose(mean, torch.zeros_like(mean), atol=1e-5)
    assert torch.allclose(log_variance.exp(), torch.full_like(mean, 1 / (2.0 * 1.1)), atol=1e-5)


def test_without_variance_it_is_abmil_with_the_smoothness_penalty():
    model, batch = make(covariance="zero"), BagBatch.pack(some_bags())
    abmil = create_model("abmil", 16, dim=24, att_dim=10).double()
    abmil.load_state_dict(model.state_dict())
    plain, ours = abmil.train()(batch), model.train()(batch)
    assert torch.allclose(ours.logits, plain.logits, atol=1e-12)
    connected = BagBatch.pack([chain_bag(n, seed=n, dtype=torch.float64) for n in (40, 57)])
    term = model(connected)
    penalty = _smoothness_penalty(term.scores, connected.graph, connected.offsets)
    assert torch.allclose(term.losses["kl"], penalty, atol=1e-12)
    assert list(term.losses) == ["kl"]
    assert model.eval()(batch).uncertainty is None
    assert predict(model, [grid_bag(9, dtype=torch.float64)])[0].uncertainty is None


def test_in_use_it_is_abmil_on_the_means_and_needs_no_graph():
    model, batch = make().eval(), BagBatch.pack(some_bags())
    abmil = create_model("abmil", 16, dim=24, att_dim=10).double().eval()
    abmil.load_state_dict({k: v for k, v in model.state_dict().items() if "log_variance" not in k})
    out, plain = model(batch.without_labels()), abmil(batch)
    assert torch.allclose(out.logits, plain.logits, atol=1e-12)
    assert torch.allclose(out.scores, plain.scores, atol=1e-12)
    bag = chain_bag(9, dtype=torch.float64)
    lonely = model(BagBatch.pack([type(bag)(bag.id, bag.x)]))
    assert torch.equal(lonely.scores, model(BagBatch.pack([bag])).scores)


def test_uncertainty_is_the_deviation_of_the_maps_drawn_in_training():
    model, bag = make(samples=4000), grid_bag(12, dtype=torch.float64)
    drawn = []
    original = model._classified
    model._classified = lambda h, maps, offsets: drawn.append(maps) or original(h, maps, offsets)
    model.train()(BagBatch.pack([bag]))
    told = model.eval()(BagBatch.pack([bag])).uncertainty
    assert torch.allclose(drawn[0].std(1, keepdim=True), told, rtol=0.1)
    assert torch.allclose(drawn[0].mean(1, keepdim=True), model(BagBatch.pack([bag])).scores, atol=0.1)
    found = predict(model, [bag])[0]
    assert np.allclose(found.uncertainty, told[:, 0].numpy(), rtol=1e-6)


def test_the_weight_multiplies_the_divergence_alone():
    batch, terms = BagBatch.pack(some_bags()), []
    for weight in (1.0, 0.1):
        model = make(kl_weight=weight).train()
        torch.manual_seed(0)
        terms.append(model(batch).losses)
    assert torch.allclose(terms[1]["kl"], 0.1 * terms[0]["kl"], atol=1e-12)
    assert torch.equal(terms[1]["samples"], terms[0]["samples"])


def test_one_sample_needs_no_second_term_and_predictions_draw_nothing():
    model, batch = make(samples=1).train(), BagBatch.pack(some_bags())
    assert list(model(batch).losses) == ["kl"]
    state = torch.get_rng_state()
    model.eval()(batch)
    assert torch.equal(torch.get_rng_state(), state)


def test_an_instance_without_neighbours_has_a_prior_of_its_own():
    model, bag = make(strength=3.0), without_edges(grid_bag(6, dtype=torch.float64))
    out = model.train()(BagBatch.pack([bag]))
    spread = model.eval()(BagBatch.pack([bag])).uncertainty
    mean, variance = out.scores.detach(), spread**2
    wanted = ((3 * variance + 3 * mean**2 - 1 - (3 * variance).log()) / 2).mean()
    assert torch.allclose(out.losses["kl"], wanted, atol=1e-12)


@pytest.mark.parametrize(
    "wrong", [{"covariance": "full"}, {"strength": 0}, {"ridge": -1.0}, {"kl_per": "slide"}, {"samples": 0}]
)
def test_options_that_cannot_be_meant_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        create_model("prob_smooth", 16, **wrong)


def test_training_without_a_graph_is_one_clear_error():
    bag = grid_bag(9, dtype=torch.float64)
    with pytest.raises(DataError, match="graph"):
        make().train()(BagBatch.pack([type(bag)(bag.id, bag.x, y=1)]))

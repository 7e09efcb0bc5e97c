"""SmGCN against a slow reference with dense matrices, and the properties that its equations imply."""

from dataclasses import replace

import pytest
import torch
from support.bags import chain_bag, grid_bag, mixed_bags, without_edges

from smmil.bag import Bag, BagBatch
from smmil.errors import ConfigError, DataError
from smmil.models import create_model


def shaken(seed=0, **options):
    """A small model with every weight moved off its starting value."""
    torch.manual_seed(seed)
    model = create_model("sm_gcn", 16, **{"dim": 8, "att_dim": 5, **options}).double()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return model.eval()


BAGS = [replace(bag, coords=None, frame=None) for bag in mixed_bags()]


def dense_sm(u, graph, alpha, steps):
    a = graph.dense()
    lonely = a.sum(1) == 0
    root = torch.where(lonely, 0.0, a.sum(1).clamp_min(1e-300).rsqrt())
    p, g = root[:, None] * a * root[None, :] + torch.diag(lonely.double()), u
    if steps == "exact":
        gamma = alpha / (1 - alpha)
        return torch.linalg.solve((1 + gamma) * torch.eye(len(a), dtype=a.dtype) - gamma * p, u)
    for _ in range(steps):
        g = alpha * p @ g + (1 - alpha) * u
    return g


def literal(model, bag, where="early", dense=True, norm=False, steps=10, gated=False):
    """Logits and scores of one bag, with the weights as the spectral norm leaves them."""

    def smooth(u, sm):
        alpha = sm.fixed if not sm.learned else 1 / (1 + torch.exp(-sm.logit))
        return dense_sm(u, bag.graph, alpha, steps)

    views = [torch.clamp(bag.x @ model.embed.weight.T + model.embed.bias, min=0)]
    for message in model.messages:
        x = views[-1]
        if norm:
            centred = x - x.mean(1, keepdim=True)
            x = centred / ((centred**2).mean(1, keepdim=True) + 1e-5).sqrt()
            x = x * message.norm.weight + message.norm.bias
        heard = smooth(x, message.sm) @ message.linear.weight.T + message.linear.bias
        views.append(views[-1] + torch.clamp(heard, min=0))
    h, pool = torch.cat(views, 1) if dense else views[-1], model.pool
    h = smooth(h, pool.sm) if where == "early" else h
    v = h @ pool.project.weight.T + pool.project.bias
    hidden = torch.tanh(smooth(v, pool.sm) if where == "mid" else v)
    if gated:
        gate = h @ pool.gate.weight.T + pool.gate.bias
        hidden = hidden / (1 + torch.exp(-(smooth(gate, pool.sm) if where == "mid" else gate)))
    scores = hidden @ pool.score.weight.T
    scores = smooth(scores, pool.sm) if where == "late" else scores
    z = sum(w * row for w, row in zip(scores.softmax(0), h, strict=True))
    return model.head.weight @ z + model.head.bias, scores


OPTIONS = [
    {},
    {"layers": 3, "steps": 3, "norm": True},
    {"where": "mid", "dense": False, "layers": 2, "gated": True},
    {"where": "late", "alpha": 0.7},
    {"where": "none", "n_classes": 3},
    {"alpha": 0.6, "steps": "exact", "gated": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_it_is_its_equations_gradients_included(options):
    model = shaken(**options)
    asked = {k: v for k, v in options.items() if k in ("where", "dense", "norm", "steps", "gated")}
    out, truth = model(BagBatch.pack(BAGS)), [literal(model, bag, **asked) for bag in BAGS]
    logits, scores = torch.stack([f for f, _ in truth]), torch.cat([s for _, s in truth])
    tolerance = 1e-5 if options.get("steps") == "exact" else 1e-9  # sm_exact stops at 1e-6
    assert torch.allclose(out.logits, logits, atol=tolerance)
    assert torch.allclose(out.scores, scores, atol=tolerance)
    assert out.losses == {}
    wanted = list(model.parameters())
    pairs = ((out.logits, out.scores), (logits, scores))
    mine, true = (torch.autograd.grad(f.sin().sum() + s.cos().sum(), wanted) for f, s in pairs)
    for (name, _), a, b in zip(model.named_parameters(), mine, true, strict=True):
        assert torch.allclose(a, b, atol=20 * tolerance, rtol=20 * tolerance), name


def test_with_silent_messages_the_last_view_gives_sm_ap():
    ours, batch = shaken(dense=False, layers=2), BagBatch.pack(BAGS)
    with torch.no_grad():
        for message in ours.messages:
            message.linear.weight.zero_()
            message.linear.bias.zero_()
    plain = create_model("sm_ap", 16, dim=8, att_dim=5).double().eval()
    plain.load_state_dict({k: v for k, v in ours.state_dict().items() if not k.startswith("messages")})
    assert torch.allclose(ours(batch).logits, plain(batch).logits, atol=1e-12)
    assert torch.allclose(ours(batch).scores, plain(batch).scores, atol=1e-12)


@pytest.mark.parametrize("off", [{"alpha": 0.0}, {"steps": 0}])
def test_without_smoothing_neighbours_do_not_count(off):
    model, bag = shaken(**off), grid_bag(30, dtype=torch.float64)
    with_edges, alone = (model(BagBatch.pack([b])) for b in (bag, without_edges(bag)))
    assert torch.allclose(with_edges.scores, alone.scores, atol=1e-12)
    assert torch.allclose(with_edges.logits, alone.logits, atol=1e-12)


@pytest.mark.parametrize(("layers", "steps"), [(1, 1), (1, 3), (2, 2)])
def test_an_instance_knows_as_far_as_rounds_times_steps(layers, steps):
    model, bag = shaken(layers=layers, steps=steps, where="none"), chain_bag(11, dtype=torch.float64)
    changed = replace(bag, x=bag.x.index_fill(0, torch.tensor([0]), 3.0))
    scores = [model(BagBatch.pack([b])).scores for b in (bag, changed)]
    moved = (scores[0] - scores[1]).abs()[:, 0] > 1e-12
    assert moved.tolist() == [i <= layers * steps for i in range(11)]


@pytest.mark.parametrize("in_dim", [64, 512, 1024])
def test_it_has_fewer_parameters_than_patch_gcn(in_dim):
    ours, theirs = (sum(p.numel() for p in create_model(name, in_dim).parameters()) for name in ("sm_gcn", "patch_gcn"))
    assert ours < theirs / 5


def test_every_round_learns_an_alpha_of_its_own():
    model = create_model("sm_gcn", 16, layers=3)
    assert [name for name, _ in model.named_parameters() if name.endswith("sm.logit")] == [
        *(f"messages.{j}.sm.logit" for j in range(3)),
        "pool.sm.logit",
    ]


def test_what_it_needs_and_what_it_refuses():
    with pytest.raises(DataError, match="'graph'"):
        shaken()(BagBatch.pack([Bag("bare", torch.zeros(3, 16, dtype=torch.float64))]))
    for wrong in ({"where": "everywhere"}, {"layers": 0}, {"alpha": 1.0}, {"steps": -1}, {"normalization": "none"}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            create_model("sm_gcn", 16, **wrong)

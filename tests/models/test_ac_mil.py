"""ACMIL against its equations, losses, masks and gradients included, and the properties they imply."""

import math
from dataclasses import replace

import pytest
import torch
from support.bags import grid_bag, mixed_bags
from support.laws import assert_blind_to_order_and_neighbours

from smmil.bag import BagBatch
from smmil.errors import ConfigError
from smmil.losses import total_loss
from smmil.models import create_model


def make(n_classes=1, seed=0, **options):
    torch.manual_seed(seed)
    model = create_model("ac_mil", 16, n_classes, **{"dim": 12, "att_dim": 6, **options}).double()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return model


def some_bags(n_classes=1):
    bags = enumerate(mixed_bags())
    return [replace(bag, y=i % max(2, n_classes), coords=None, frame=None) for i, bag in bags]


def masked_rows(f, branches, top_k, share, masking):
    """For every branch the instances it may not see; draws numbers in the order of the model."""
    k = min(top_k, len(f))
    draw, found = torch.rand(k, branches), []
    for m in range(branches):
        best = sorted(range(len(f)), key=lambda n: -f[n, m].item())[:k]
        if masking == "share":
            lucky = sorted(range(k), key=lambda i: draw[i, m].item())[: int(k * share)]
        else:
            lucky = [i for i in range(k) if draw[i, m] < share]
            lucky = [] if len(lucky) == len(f) else lucky
        found.append({best[i] for i in lucky})
    return found


def cross_entropy(logits, y):
    if len(logits) == 1:
        p = 1 / (1 + torch.exp(-logits[0]))
        return -torch.log(p if y else 1 - p)
    return -torch.log(logits[y].exp() / logits.exp().sum())


def literal(model, bags, options, train=True):
    """Logits, scores of both kinds, and losses, bag by bag, branch by branch."""
    p = dict(model.named_parameters())
    branches = options.get("branches", 5)
    logits, mean, pooled, own, alike = [], [], [], [], []
    for bag in bags:
        h = torch.clamp(bag.x @ p["embed.weight"].T, min=0)
        hidden = torch.tanh(h @ p["attention.project.weight"].T + p["attention.project.bias"])
        hidden = hidden / (1 + torch.exp(-(h @ p["attention.gate.weight"].T + p["attention.gate.bias"])))
        f = hidden @ p["attention.score.weight"].T + p["attention.score.bias"]
        asked = (branches, options.get("top_k", 10), options.get("mask_share", 0.6), options.get("masking", "share"))
        unseen = masked_rows(f, *asked) if train else [set()] * branches
        maps, vectors = [], []
        for m in range(branches):
            e = torch.stack([f[n, m].exp() * (n not in unseen[m]) for n in range(bag.n)])
            maps.append(e / e.sum())
            vectors.append(sum(w * row for w, row in zip(maps[-1], h, strict=True)))
            if branches > 1:
                head = f"branch_heads.{m}"
                own.append(cross_entropy(p[f"{head}.weight"] @ vectors[-1] + p[f"{head}.bias"], bag.y))
        z = sum(w * row for w, row in zip(sum(maps) / branches, h, strict=True))
        logits.append(p["head.weight"] @ z + p["head.bias"])
        pairs = [(i, j) for i in range(branches) for j in range(i)]
        cosines = [maps[i] @ maps[j] / (maps[i].norm() * maps[j].norm()) for i, j in pairs]
        alike.append(sum(cosines) / max(1, len(pairs)))
        mean.append(f.mean(1))
        pooled.append(torch.log(bag.n * f.softmax(0).mean(1)))
    scores = {"mean": torch.cat(mean)[:, None], "bag": torch.cat(pooled)[:, None]}
    losses = {"branches": sum(own) / len(own), "diversity": sum(alike) / len(alike)} if branches > 1 else {}
    return torch.stack(logits), scores[options.get("score", "mean")], losses


OPTIONS = [
    {},
    {"masking": "each", "score": "bag"},
    {"branches": 2, "top_k": 3, "mask_share": 0.9},
    {"branches": 1},
    {"mask_share": 0.0},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("n_classes", [1, 3])
def test_training_is_its_equations_gradients_included(options, n_classes):
    model = make(n_classes, branch_weight=0.7, diversity_weight=0.4, **options).train()
    bags = some_bags(n_classes)
    batch = BagBatch.pack(bags)
    torch.manual_seed(3)
    out = model(batch)
    torch.manual_seed(3)
    logits, scores, terms = literal(model, bags, options)
    bag = sum(cross_entropy(row, b.y) for row, b in zip(logits, bags, strict=True)) / len(bags)
    truth = bag + 0.7 * terms.get("branches", 0) + 0.4 * terms.get("diversity", 0)
    ours = total_loss(out, batch.y)[0]
    assert out.losses.keys() == terms.keys()
    assert torch.allclose(out.logits, logits, atol=1e-10)
    assert torch.allclose(out.scores, scores, atol=1e-10)
    assert torch.allclose(ours, truth, atol=1e-10)
    wanted = list(model.parameters())
    mine, true = (torch.autograd.grad(v + s.sin().sum(), wanted) for v, s in ((ours, out.scores), (truth, scores)))
    for name, a, b in zip(dict(model.named_parameters()), mine, true, strict=True):
        assert torch.allclose(a, b, atol=1e-9, rtol=1e-9), name


@pytest.mark.parametrize("options", OPTIONS[:2], ids=str)
def test_in_use_nothing_is_masked_and_nothing_drawn(options):
    model, bags = make(3, **options).eval(), some_bags(3)
    state = torch.get_rng_state()
    out = model(BagBatch.pack(bags).without_labels())
    assert torch.equal(torch.get_rng_state(), state)
    logits, scores, _ = literal(model, bags, options, train=False)
    assert torch.allclose(out.logits, logits, atol=1e-10)
    assert torch.allclose(out.scores, scores, atol=1e-10)
    assert out.losses == {}


@pytest.mark.parametrize("n", [1, 2, 5, 60])
def test_a_branch_is_denied_six_of_its_ten_favourites_and_never_all(n):
    model, f = make(), torch.randn(n, 5, dtype=torch.float64)
    k = min(10, n)
    for seed in range(20):
        torch.manual_seed(seed)
        hidden = model._hidden(f)
        assert hidden.sum(0).tolist() == [int(0.6 * k)] * 5
        least = f.topk(k, dim=0).values[-1]
        assert all((f[hidden[:, m], m] >= least[m]).all() for m in range(5))


def test_each_favourite_is_denied_with_its_probability_and_some_instance_is_left():
    model, f = make(masking="each", mask_share=0.3), torch.randn(40, 5, dtype=torch.float64)
    torch.manual_seed(0)
    shares = torch.stack([model._hidden(f).double().sum(0) for _ in range(400)]).mean() / 10
    assert shares.item() == pytest.approx(0.3, abs=0.02)
    greedy = make(masking="each", mask_share=0.99)
    for seed in range(50):
        torch.manual_seed(seed)
        assert not greedy._hidden(f[:2]).all(0).any()


def test_equal_branches_have_similarity_one_and_distant_ones_none():
    model, batch = make(branch_weight=0.0, mask_share=0.0).train(), BagBatch.pack([grid_bag(40, dtype=torch.float64)])
    with torch.no_grad():
        model.attention.score.weight[1:] = model.attention.score.weight[:1]
        model.attention.score.bias[1:] = model.attention.score.bias[:1]
        assert model(batch).losses["diversity"].item() == pytest.approx(1, abs=1e-12)
        directions = torch.linalg.qr(torch.randn(6, 5, dtype=torch.float64)).Q.T
        model.attention.score.weight.copy_(2000 * directions)
        assert model(batch).losses["diversity"].item() < 0.5


def test_scores_of_the_bag_are_its_attention():
    """exp(score) has mean 1 over each bag, whatever its size."""
    model, bags = make(score="bag").eval(), some_bags()
    batch = BagBatch.pack(bags)
    means = [part.exp().mean().item() for part in batch.split(model(batch).scores)]
    assert means == pytest.approx([1.0] * len(bags), abs=1e-12)
    assert model.score_kind == "log attention"


def test_neither_order_nor_neighbours_count():
    assert_blind_to_order_and_neighbours(make(mask_share=0.0).train(), "diversity")


@pytest.mark.parametrize(
    "wrong",
    [
        {"mask_share": 1.0},
        {"branch_weight": -1.0},
        {"diversity_weight": math.inf},
        {"score": "max"},
        {"masking": "all"},
    ],
)
def test_options_that_cannot_be_meant_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        create_model("ac_mil", 16, **wrong)

"""Patch-GCN against a slow reference written from its equations, and the properties they imply."""

from dataclasses import replace

import pytest
import torch
from support.bags import chain_bag, grid_bag, mixed_bags, reordered, without_edges, woven_bag
from torch.nn.functional import dropout

from smmil.bag import Bag, BagBatch
from smmil.errors import ConfigError, DataError
from smmil.graph import Graph
from smmil.models import create_model

DOUBLE = torch.float64


def shaken(**options):
    """A small model with every weight moved off its starting value (biases and t among them)."""
    torch.manual_seed(0)
    model = create_model("patch_gcn", 16, **{"dim": 8, **options}).double()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return model


BAGS = mixed_bags(DOUBLE)


def speakers(bag, knn):
    """For every instance those it hears."""
    if knn is None:
        return [row.nonzero()[:, 0].tolist() for row in bag.graph.dense()]
    points, hears = bag.coords.double(), [[] for _ in range(bag.n)]
    for i in range(bag.n):
        away = [(((points[j] - points[i]) ** 2).sum().item(), *(points[j] - points[i]).tolist()[::-1], j)
                for j in range(bag.n) if j != i]  # fmt: skip
        for *_, chosen in sorted(away)[:knn]:
            hears[chosen].append(i)
    return hears


def norm(x, weight, bias):
    centred = x - x.mean(1, keepdim=True)
    return centred / ((centred**2).mean(1, keepdim=True) + 1e-5).sqrt() * weight + bias


def gen(x, hears, p, name):
    """One generalised convolution, node by node and channel by channel."""
    m, t, summed = x.clamp_min(0) + 1e-7, p[f"{name}.t"], x.clone()
    for i, near in enumerate(hears):
        for c in range(x.shape[1] if near else 0):
            e = (t * m[near, c]).exp()
            summed[i, c] = x[i, c] + (e / e.sum() * m[near, c]).sum()
    hidden = summed @ p[f"{name}.mlp.0.weight"].T + p.get(f"{name}.mlp.0.bias", 0)
    hidden = norm(hidden, p[f"{name}.mlp.1.weight"], p[f"{name}.mlp.1.bias"]).clamp_min(0)
    return hidden @ p[f"{name}.mlp.3.weight"].T + p.get(f"{name}.mlp.3.bias", 0)


def literal(model, bag, layers=3, knn=None, drop=0.0, conv_drop=0.0):
    """Logits and scores of one bag; with dropout, drawn in the order of the equations."""
    p = {k: v.detach() for k, v in model.named_parameters()}

    def affine(x, name):
        return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    hears = speakers(bag, knn)
    x = dropout(affine(bag.x, "embed.0").clamp_min(0), drop)
    views = [x, gen(x, hears, p, "convs.0")]
    for j in range(1, layers):
        y = gen(views[-1], hears, p, f"convs.{j}")
        y = norm(y, p[f"norms.{j - 1}.weight"], p[f"norms.{j - 1}.bias"]).clamp_min(0)
        views.append(dropout(views[-1] + y, conv_drop))
    h = dropout(affine(torch.cat(views, 1), "joint.0").clamp_min(0), drop)
    a = dropout(affine(h, "attention.project").tanh(), drop)
    b = dropout(affine(h, "attention.gate").sigmoid(), drop)
    scores = affine(a * b, "attention.score")
    z = sum(w * row for w, row in zip(scores.softmax(0), h, strict=True))
    return affine(affine(z, "bag.0").clamp_min(0), "head"), scores


OPTIONS = [{}, {"conv_bias": False}, {"knn": 8}, {"knn": 2}, {"layers": 1}, {"layers": 4}, {"n_classes": 3}]


@pytest.mark.parametrize("options", OPTIONS)
def test_it_is_its_equations(options):
    model = shaken(**options).eval()
    asked = {k: v for k, v in options.items() if k in ("layers", "knn")}
    for bag in BAGS:
        out = model(BagBatch.pack([bag]))
        logits, scores = literal(model, bag, **asked)
        assert torch.allclose(out.logits[0], logits, atol=1e-10), bag.id
        assert torch.allclose(out.scores, scores, atol=1e-10), bag.id
        assert out.losses == {}


@pytest.mark.parametrize("options", [{}, {"knn": 3}])
def test_packed_bags_keep_to_themselves(options):
    model, bags = shaken(**options).eval(), [b for b in BAGS if b.coords.shape[1] == 2]
    out = model(BagBatch.pack(bags))
    truth = [literal(model, bag, **options) for bag in bags]
    assert torch.allclose(out.logits, torch.stack([logits for logits, _ in truth]), atol=1e-10)
    assert torch.allclose(out.scores, torch.cat([scores for _, scores in truth]), atol=1e-10)


def test_dropout_falls_where_the_equations_put_it():
    model, bag = shaken(dropout=0.4, conv_dropout=0.15).train(), BAGS[3]
    torch.manual_seed(7)
    out = model(BagBatch.pack([bag]))
    torch.manual_seed(7)
    logits, scores = literal(model, bag, drop=0.4, conv_drop=0.15)
    assert torch.allclose(out.logits[0], logits, atol=1e-10)
    assert torch.allclose(out.scores, scores, atol=1e-10)
    assert out.losses == {}


def test_the_rates_of_the_article_are_the_default():
    torch.manual_seed(0)
    model, bag = create_model("patch_gcn", 16).double().train(), BAGS[3]
    torch.manual_seed(7)
    out = model(BagBatch.pack([bag]))
    torch.manual_seed(7)
    assert torch.allclose(out.scores, literal(model, bag, drop=0.25, conv_drop=0.1)[1], atol=1e-10)


@pytest.mark.parametrize(
    ("count", "classes", "options"),
    [
        (1_317_125, 1, {}),  # published counts, less the 256 weights of a LayerNorm that is never used
        (1_317_381 - 256, 1, {}),
        (1_317_894 - 256, 2, {}),
        (1_315_973, 1, {"conv_bias": False}),
        (1_316_229 - 256, 1, {"conv_bias": False}),
        (1_317_125, 1, {"knn": 8}),
    ],
)
def test_the_number_of_parameters_is_the_published_one(count, classes, options):
    model = create_model("patch_gcn", 512, classes, **options)
    assert sum(p.numel() for p in model.parameters()) == count
    assert model.joint[0].in_features == 4 * 128


def outputs(model, bag):
    out = model(BagBatch.pack([bag]))
    return out.logits, out.scores


@pytest.mark.parametrize("options", [{}, {"knn": 8}])
def test_the_order_of_instances_does_not_matter(options):
    model, bag = shaken(**options).eval(), grid_bag(120, dtype=DOUBLE)
    order = torch.randperm(120, generator=torch.Generator().manual_seed(1))
    (logits, scores), (same, moved) = (outputs(model, b) for b in (bag, reordered(bag, order)))
    assert torch.allclose(logits, same, atol=1e-10)
    assert torch.allclose(scores[order], moved, atol=1e-10)


def test_without_edges_every_instance_is_judged_alone():
    model, bag = shaken().eval(), without_edges(grid_bag(7, dtype=DOUBLE))
    alone = [outputs(model, without_edges(Bag("one", bag.x[i : i + 1])))[1] for i in range(7)]
    assert torch.allclose(outputs(model, bag)[1], torch.cat(alone), atol=1e-12)


def test_attention_sums_to_one():
    """Many copies of one lonely instance are that instance."""
    model, bag = shaken().eval(), grid_bag(1, dtype=DOUBLE)
    copies = without_edges(Bag("copies", bag.x.repeat(9, 1)))
    assert torch.allclose(outputs(model, copies)[0], outputs(model, bag)[0], atol=1e-12)


@pytest.mark.parametrize("layers", [1, 3])
def test_an_instance_knows_as_far_as_there_are_layers(layers):
    model, bag = shaken(layers=layers).eval(), chain_bag(11, dtype=DOUBLE)
    changed = replace(bag, x=bag.x.index_fill(0, torch.tensor([0]), 1.0))
    moved = (outputs(model, bag)[1] - outputs(model, changed)[1]).abs()[:, 0] > 1e-12
    assert moved.tolist() == [i <= layers for i in range(11)]


def test_one_way_neighbours_hear_only_those_that_chose_them():
    """Slices at 0, 1, 3, 7 with one nearest each: the last chooses the third, and hears nobody itself."""
    model, place = shaken(knn=1, layers=1).eval(), torch.tensor([[0], [1], [3], [7]])
    bag = Bag("line", chain_bag(4, dtype=DOUBLE).x, place)
    deaf, same = outputs(model, bag)[1], outputs(model, replace(bag, x=bag.x.index_fill(0, torch.tensor([3]), 1.0)))[1]
    moved = (deaf - same).abs()[:, 0] > 1e-12
    assert moved.tolist() == [False, False, True, True]
    other = outputs(model, replace(bag, x=bag.x.index_fill(0, torch.tensor([2]), 1.0)))[1]
    assert ((deaf - other).abs()[:, 0] > 1e-12).tolist() == [False, True, True, False]


def test_edge_weights_do_not_count():
    model, bag = shaken().eval(), woven_bag(16, dtype=DOUBLE)
    plain = replace(bag, graph=Graph(bag.graph.indptr, bag.graph.indices, torch.ones_like(bag.graph.weight)))
    assert torch.equal(outputs(model, bag)[0], outputs(model, plain)[0])


def test_what_it_needs_is_asked_for_by_name():
    bag = grid_bag(9, dtype=DOUBLE)
    with pytest.raises(DataError, match="'graph'"):
        outputs(shaken(), replace(bag, graph=None))
    with pytest.raises(DataError, match="'coords'"):
        outputs(shaken(knn=8), replace(bag, coords=None))
    with pytest.raises(DataError, match="as built"):
        outputs(shaken(), replace(bag, graph=bag.graph.normalized()))
    assert outputs(shaken(knn=8), replace(bag, graph=None))[0].isfinite()
    for wrong in ({"layers": 0}, {"knn": 0}):
        with pytest.raises(ConfigError, match="at least 1"):
            create_model("patch_gcn", 16, **wrong)


@pytest.mark.parametrize("options", [{}, {"knn": 8}, {"conv_bias": False}])
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_gradients_are_finite_for_features_of_any_size(options, scale):
    torch.manual_seed(0)
    model = create_model("patch_gcn", 16, dim=8, **options).train()
    bag = grid_bag(57)
    for one in (replace(bag, x=bag.x * scale), grid_bag(1), without_edges(grid_bag(5))):
        model.zero_grad()
        model(BagBatch.pack([one])).logits.sum().backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())


def test_it_trains_under_autocast():
    torch.manual_seed(0)
    model, batch = create_model("patch_gcn", 16, dim=8).eval(), BagBatch.pack([grid_bag(40), grid_bag(7, seed=1)])
    plain = model(batch).logits
    with torch.autocast("cpu", torch.bfloat16):
        mixed = model(batch).logits
    mixed.sum().backward()
    assert torch.allclose(plain, mixed.float(), atol=0.05)
    assert all(p.grad.isfinite().all() for p in model.parameters())

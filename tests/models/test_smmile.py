"""SMMILe against its equations, both stages, losses, draws and gradients included, and the properties they imply."""

import copy
import os
import signal
from dataclasses import replace

import pytest
import torch
from support.bags import chain_bag, grid_bag, reordered, without_edges, woven_bag
from support.quick import slow_unless

import smmil
from smmil.bag import Bag, BagBatch
from smmil.errors import ConfigError, DataError
from smmil.graph import grid_graph
from smmil.losses import total_loss
from smmil.models import create_model
from smmil.models import smmile as module
from smmil.target import _Multilabel, _Regression
from smmil.train import Interrupted, Progress

WIDE = torch.float64


def make(n_classes=1, seed=0, **options):
    torch.manual_seed(seed)
    given = {"dim": 12, "att_dim": 6, "dropout": 0.0, "warmup": 0, **options}
    model = create_model("smmile", 16, n_classes, **given).double()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return model


def slides(n_classes=1):
    bags = [grid_bag(n, seed=n, dtype=WIDE) for n in (1, 2, 3, 30, 57, 130)]
    bags += [woven_bag(40, dtype=WIDE), without_edges(grid_bag(25, dtype=WIDE)), grid_bag(40, seed=9, dtype=WIDE)]
    return [replace(bag, y=(i + 1) % max(2, n_classes)) for i, bag in enumerate(bags)]


def scans(n_classes=1):
    return [chain_bag(n, seed=n, y=n % max(2, n_classes), dtype=WIDE) for n in (2, 33, 200, 41)]


def blocks(bag, size):
    """Superpatch of every instance, by name of its block, numbered in the order of the names."""
    axes = bag.coords.shape[1]
    edge = max(1, round(min(size, max(1, bag.n / 10)) ** (1 / axes)))
    lowest = [int(bag.coords[:, a].min()) for a in range(axes)]
    step = bag.frame.patch
    cells = [tuple(round((int(row[a]) - lowest[a]) / step[a]) // edge for a in range(axes)) for row in bag.coords]
    order = sorted(set(cells))
    return [order.index(cell) for cell in cells]


def probabilities(z, single):
    """Of one instance: σ(z), or the softmax."""
    return 1 / (1 + (-z).exp()) if single else z.exp() / z.exp().sum()


def bag_probability(f, p, kept):
    """Y (c,): rows of f and p by number; what is not kept has p = 0."""
    found = []
    for c in range(f.shape[1]):
        weights = [f[n, c].exp() for n in range(len(f))]
        found.append(sum(w * p[n, c] * bool(kept[n][c]) for n, w in enumerate(weights)) / sum(weights))
    return torch.stack(found)


def survivors(f, p, draw, has, single):
    """Which (row, class) stays, by the draws (n, c): the more it adds, the sooner it goes."""
    n, classes = f.shape
    kept = [[True] * classes for _ in range(n)]
    for c in range(classes):
        if not (has[c] or single):
            continue
        adds = [(f[i, c].exp() * p[i, c]).item() for i in range(n)]
        low, high = min(adds), max(adds)
        column = [high > low and draw[i, c].item() > (adds[i] - low) / (high - low) for i in range(n)]
        for i in range(n):
            kept[i][c] = column[i] or not any(column)
    return kept


def entropy(y, has):
    return -sum(torch.log(y[c] if has[c] else 1 - y[c]) for c in range(len(has))) / len(has)


def ranked(values, k, largest=True):
    return sorted(range(len(values)), key=lambda i: -values[i] if largest else values[i])[:k]


def first_candidates(adds, has, k):
    """(row, taken for) pairs of a bag, from what its instances add, a list of rows."""
    n, classes, found = len(adds), len(has), []
    columns = [[adds[i][c] for i in range(n)] for c in range(classes)]
    if any(max(column) == min(column) for column in columns):
        return []
    scaled = [[(v - min(column)) / (max(column) - min(column)) for v in column] for column in columns]
    if not any(has):
        return [(i, 0) for i in ranked(scaled[0], k)]
    for c in range(classes):
        if has[c]:
            found += [(i, c + 1) for i in ranked(scaled[c], k) if scaled[c][i] > 0.5]
    low = scaled[0] if classes == 1 else [sum(adds[i]) / classes for i in range(n)]
    return found + [(i, 0) for i in ranked(low, k, largest=False) if low[i] < 0.5]


def later_candidates(p, has, k):
    columns = p.T.tolist()
    if not any(has):
        return [(i, 0) for i in ranked(columns[0], k, largest=False)]
    wanted = [0, *(c + 1 for c in range(len(has)) if has[c])]
    return [(i, c) for c in wanted for i in ranked(columns[c], k) if columns[c][i] > 0.5]


def thinned_sum(groups, draws):
    """Σ over groups of the mean of their kept terms; groups: {name: [(number of its draw, term)]}."""
    total = 0.0
    for terms in groups.values():
        values = [term.item() for _, term in terms]
        low, high = min(values), max(values)
        told = high - low > 1e-5 * high
        kept = [t for (d, t) in terms if told and draws[d].item() > (t.item() - low) / (high - low)]
        total = total + sum(kept) / len(terms)
    return total


def energy(p, patch, bags, pairwise):
    """MRF energy of probabilities (n, c) with the superpatch (bag, number) of every row."""
    names = sorted(set(patch))
    members = {name: [i for i in range(len(p)) if patch[i] == name] for name in names}
    mean = {name: sum(p[i] for i in rows) / len(rows) for name, rows in members.items()}
    draws = torch.rand(len(p))
    inside = {name: [(i, ((p[i] - mean[name]) ** 2).mean()) for i in rows] for name, rows in members.items()}
    pairs, start = set(), 0
    for bag in bags:
        for a, b in bag.graph.edges().T.tolist():
            if patch[start + a] != patch[start + b]:
                pairs.add((patch[start + a], patch[start + b]))
        start += bag.n
    more, between = torch.rand(len(pairs)), {}
    for number, (one, other) in enumerate(sorted(pairs)):
        between.setdefault(one, []).append((number, ((mean[one] - mean[other]) ** 2).mean()))
    return (1 - pairwise) * thinned_sum(inside, draws) + pairwise * thinned_sum(between, more)


DEFAULTS = {
    "norm": "batch",
    "superpatch": 16,
    "drops": 1,
    "groups": 10,
    "consistency_weight": 1.0,
    "refiners": 3,
    "pseudo_share": 0.1,
    "candidates": "instance",
    "pairwise": 0.2,
    "mrf_weight": 0.1,
}


def embedded(p, bags, norm):
    h = torch.cat([bag.x for bag in bags]) @ p["embed.weight"].T
    axis = {"batch": 0, "layer": 1}.get(norm)
    if axis is not None:
        centre = h - h.mean(axis, keepdim=True)
        h = centre / ((centre**2).mean(axis, keepdim=True) + 1e-5).sqrt() * p["norm.weight"] + p["norm.bias"]
    return torch.clamp(h, min=0)


def looks(f, p, has, patch, o):
    """Further looks at one bag, and what ranks its instances for the first refiner."""
    single, classes, n = len(has) == 1, len(has), len(f)
    soft = torch.stack([f[:, c].exp() / f[:, c].exp().sum() * p[:, c] for c in range(classes)], 1)
    adds = soft.tolist()
    if not any(has) and o["consistency_weight"]:
        return [], adds
    number = max(patch) + 1
    rows = [[i for i in range(n) if patch[i] == s] for s in range(number)]
    chosen = torch.rand(o["groups"], number)
    whole = torch.rand(o["drops"], n, classes)
    found = [bag_probability(f, p, survivors(f, p, draw, has, single)) for draw in whole]
    less = torch.rand(o["groups"], number, classes) if o["drops"] else None
    shares = torch.zeros(number, classes, dtype=WIDE)
    for g in range(o["groups"]):
        at = [rows[s][int(chosen[g, s].item() * len(rows[s]))] for s in range(number)]
        fg, pg = f[at], p[at]
        found.append(bag_probability(fg, pg, [[True] * classes] * number))
        if less is not None and (not single or found[-1][0] > 0.5):
            found.append(bag_probability(fg, pg, survivors(fg, pg, less[g], has, single)))
        shares += torch.stack([fg[:, c].softmax(0) * pg[:, c] for c in range(classes)], 1).detach() / o["groups"]
    if o["candidates"] == "superpatch":
        adds = [shares[s].tolist() for s in patch]
    return found, adds


def literal(model, bags, given):
    """Bag probabilities, scores and unweighted losses in training, instance by instance; draws as the model does."""
    o, p, classes = DEFAULTS | given, dict(model.named_parameters()), model.n_classes
    h = embedded(p, bags, o["norm"])
    tanh = torch.tanh(h @ p["attention.project.weight"].T + p["attention.project.bias"])
    gate = 1 / (1 + torch.exp(-(h @ p["attention.gate.weight"].T + p["attention.gate.bias"])))
    f = (tanh * gate) @ p["attention.score.weight"].T + p["attention.score.bias"]
    z = h @ p["classifier.weight"].T + p["classifier.bias"]
    prob = torch.stack([probabilities(row, classes == 1) for row in z])
    said = [h @ p[f"refine.{r}.weight"].T + p[f"refine.{r}.bias"] for r in range(o["refiners"])]
    said = [torch.stack([probabilities(row, False) for row in rows]) for rows in said]
    spans, start = [], 0
    for bag in bags:
        spans.append(slice(start, start + bag.n))
        start += bag.n
    has = [[bag.y == 1] if classes == 1 else [bag.y == c for c in range(classes)] for bag in bags]
    patch = [list(range(b.n)) if o["superpatch"] == 1 else blocks(b, o["superpatch"]) for b in bags]
    ys, views, flat, ranks = [], 0.0, 0.0, []
    for span, own, numbers in zip(spans, has, patch, strict=True):
        ys.append(bag_probability(f[span], prob[span], [[True] * classes] * (span.stop - span.start)))
        seen, adds = looks(f[span], prob[span], own, numbers, o)
        views = views + (sum(entropy(y, own) for y in seen) / len(seen) if seen else 0.0) / len(bags)
        if not any(own) and o["consistency_weight"]:
            flat = flat + ((f[span] - f[span].mean(0)) ** 2).mean() / len(bags)
        ranks.append(adds)
    refinement, mrf = 0.0, 0.0
    names = [(b, number) for b, numbers in enumerate(patch) for number in numbers]
    for r, now in enumerate(said):
        for place, (span, own) in enumerate(zip(spans, has, strict=True)):
            k = max(1, int(bags[place].n * o["pseudo_share"]))
            chosen = first_candidates(ranks[place], own, k) if not r else later_candidates(said[r - 1][span], own, k)
            told = [-torch.log(now[span][i, c]) for i, c in chosen]
            refinement = refinement + (sum(told) / len(told) / len(bags) if told else 0.0)
        if o["mrf_weight"]:
            mrf = mrf + energy(now, names, bags, o["pairwise"]) / len(said) / len(bags)
    scores = torch.log(said[-1][:, 1:] / (1 - said[-1][:, 1:]))
    losses = {"views": views, "consistency": flat, "refinement": refinement, "mrf": mrf}
    if classes > 1 or not o["consistency_weight"]:
        del losses["consistency"]
    if not o["mrf_weight"]:
        del losses["mrf"]
    return torch.stack(ys), scores, losses


def _number(value):
    return float(value.detach()) if isinstance(value, torch.Tensor) else value


OPTIONS = [
    {},
    {"norm": "layer", "superpatch": 9, "groups": 3, "candidates": "superpatch", "drops": 2},
    {"norm": "none", "superpatch": 1, "consistency_weight": 0.0, "pseudo_share": 0.3, "refiners": 2},
    {"drops": 0, "pairwise": 1.0},
    {"groups": 0, "mrf_weight": 0.0},
]


# `make test` takes all options for slides of one class, and some of the rest; `make test-all` every combination.
CASES = [(some, n, options) for some in (slides, scans) for n in (1, 3) for options in OPTIONS]
QUICK = [case for case in CASES if case[:2] == (slides, 1) or case in ((scans, 3, OPTIONS[0]), (slides, 3, OPTIONS[1]))]


@pytest.mark.parametrize("case", slow_unless(QUICK.__contains__, CASES))
def test_training_is_its_equations_gradients_included(case):
    some, n_classes, options = case
    weights = {"view_weight": 0.7, "consistency_weight": 0.6, "refine_weight": 0.4, "mrf_weight": 0.3, **options}
    model, bags = make(n_classes, **weights).train(), some(n_classes)
    batch = BagBatch.pack(bags)
    torch.manual_seed(3)
    out = model(batch)
    torch.manual_seed(3)
    ys, scores, terms = literal(model, bags, weights)
    factors = {"views": 0.7, "consistency": weights["consistency_weight"], "refinement": 0.4, "mrf": 0.3}
    assert out.losses.keys() == terms.keys()
    assert torch.allclose(out.logits.sigmoid(), ys, atol=1e-10)
    assert torch.allclose(out.scores, scores, atol=1e-9)
    for name, value in terms.items():
        assert float(out.losses[name].detach()) == pytest.approx(factors[name] * _number(value), abs=1e-10), name
    ours = sum(out.losses.values()) + out.logits.sin().sum() + out.scores.sin().sum()
    truth = sum(factors[k] * v for k, v in terms.items()) + (ys / (1 - ys)).log().sin().sum() + scores.sin().sum()
    wanted = list(model.parameters())
    mine, true = (torch.autograd.grad(v, wanted, allow_unused=True) for v in (ours, truth))
    for name, a, b in zip(dict(model.named_parameters()), mine, true, strict=True):
        assert torch.allclose(a, b, atol=1e-8, rtol=1e-8), name


def test_with_one_class_the_bag_loss_is_the_published_one():
    model, bags = make().train(), slides()
    batch = BagBatch.pack(bags)
    out = model(batch)
    y = out.logits.sigmoid()[:, 0]
    published = -sum(torch.log(v if bag.y else 1 - v) for v, bag in zip(y, bags, strict=True)) / len(bags)
    assert torch.allclose(total_loss(out, batch.y)[0] - sum(out.losses.values()), published, atol=1e-12)


@pytest.mark.parametrize("n_classes", [1, 3])
def test_the_map_adds_up_to_the_bag_and_no_attention_is_lost(n_classes):
    """Stage 1: shares exp(score) / Σ exp(f) add up to the probability of the bag; in use nothing is drawn."""
    model, bag = make(n_classes, warmup=5).eval(), grid_bag(57, dtype=WIDE)
    state = torch.get_rng_state()
    with torch.no_grad():
        out = model(BagBatch.pack([bag]).without_labels())
        f = model.attention(model.norm(model.embed(bag.x)).relu())
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.allclose(out.scores.exp().sum(0) / f.exp().sum(0), out.logits[0].sigmoid(), atol=1e-12)


def test_far_logits_stay_finite_where_probabilities_would_be_rounded_away():
    model = make().float().train()
    with torch.no_grad():
        model.classifier.weight.mul_(0)
        model.classifier.bias.fill_(300.0)
    out = model(BagBatch.pack([grid_bag(40, y=0), grid_bag(40, y=1)]))
    assert torch.allclose(out.logits, torch.full((2, 1), 300.0))
    total_loss(out, torch.tensor([0, 1]))[0].backward()
    assert model.classifier.bias.grad.isfinite().all()
    assert model.classifier.bias.grad.abs().max() > 0


def test_the_top_instance_always_falls_the_bottom_one_never_and_one_between_by_its_share():
    shares, torch_draws = torch.tensor([[0.1], [0.3], [0.5], [0.9]], dtype=WIDE), 4000
    torch.manual_seed(0)
    fallen = module._hidden(shares.expand(torch_draws, -1, -1), torch.tensor([True])).double().mean(0)[:, 0]
    assert fallen[0] == 0
    assert fallen[3] == 1
    assert fallen[1:3].tolist() == pytest.approx([0.25, 0.5], abs=0.03)
    assert not module._hidden(shares, torch.tensor([False])).any()
    assert not module._hidden(torch.full((5, 1), 0.3), torch.tensor([True])).any()


def test_samples_hold_one_instance_of_every_superpatch_each_equally_often():
    model, patches = make(groups=3000), torch.tensor([1, 0, 1, 2, 1, 0])
    rows = torch.arange(6, dtype=WIDE)[:, None]
    torch.manual_seed(0)
    drawn = model._samples(module._Judged(rows, rows, rows), patches).f[:, :, 0].long()
    assert (patches[drawn] == torch.arange(3)).all()
    often = drawn.flatten().bincount() / 3000
    assert often.tolist() == pytest.approx([1 / 3, 1 / 2, 1 / 3, 1, 1 / 3, 1 / 2], abs=0.03)


@pytest.mark.parametrize("n", [1, 9, 57, 300])
def test_superpatches_are_squares_that_follow_neither_order_nor_origin(n):
    bag = grid_bag(n)
    own = module._superpatches(BagBatch.pack([bag]), 16)[0]
    order = torch.randperm(n, generator=torch.Generator().manual_seed(1))
    moved = replace(reordered(bag, order), coords=bag.coords[order] + 512 * torch.tensor([7, 3]))
    assert torch.equal(module._superpatches(BagBatch.pack([moved]), 16)[0], own[order])
    assert own.bincount().max() <= 16
    assert len(own.unique()) >= min(n, 10) * 0.6
    cells = bag.coords // 512
    for number in own.unique():
        assert (cells[own == number].amax(0) - cells[own == number].amin(0)).max() <= 3


def test_superpatches_without_a_frame_find_the_lattice_or_do_without():
    bag = grid_bag(300)
    plain = module._superpatches(BagBatch.pack([bag]), 16)[0]
    bare = Bag("bare", bag.x, bag.coords, None, bag.graph, 1)
    assert torch.equal(module._superpatches(BagBatch.pack([bare]), 16)[0], plain)
    scattered = Bag("dots", bag.x, torch.rand(300, 2, dtype=WIDE) * 1e4, None, bag.graph, 1)
    assert 10 <= int(module._superpatches(BagBatch.pack([scattered]), 16)[0].max()) <= 60
    with pytest.raises(DataError, match="coord"):
        make().train()(BagBatch.pack([replace(bag, x=bag.x.double(), coords=None, frame=None)]))
    out = make(superpatch=1).train()(BagBatch.pack([replace(bag, x=bag.x.double(), coords=None, frame=None)]))
    assert all(v.isfinite() for v in out.losses.values())


def test_the_energy_of_a_map_that_is_one_on_every_superpatch_lies_between_them_alone():
    bag = grid_bag(300, dtype=WIDE)
    patches = module._superpatches(BagBatch.pack([bag]), 16)
    field = module._Field.of(patches, bag.graph)
    flat = torch.full((300, 2), 0.5, dtype=WIDE)
    by_patch = (patches[0][:, None] % 5 / 5).double().expand(-1, 2)
    assert field.energy(flat, 0.2) == 0
    assert field.energy(by_patch, 0.0) == pytest.approx(0, abs=1e-25)
    assert field.energy(by_patch, 1.0) > 0


def step(model, batch):
    torch.manual_seed(0)
    out = model(batch)
    model.after_step()
    return out.losses.keys()


def test_the_second_stage_begins_after_as_many_epochs_as_asked_and_survives_a_resume():
    model = make(warmup=2).train()
    batches = [BagBatch.pack([grid_bag(20, seed=s, dtype=WIDE)]) for s in range(3)]
    courses = []
    for _ in range(4):
        courses += [["refinement" in step(model, batch) for batch in batches]]
        resumed = make(warmup=2, seed=1).train()
        resumed.load_state_dict(copy.deepcopy(model.state_dict()))
        model = resumed
    # the third visit of the first bag ends the warm-up
    assert courses == [[False] * 3, [False] * 3, [False, True, True], [True] * 3]
    assert "refinement" in step(make().train(), batches[0])


def test_scores_change_with_the_stage_and_looking_or_failed_steps_do_not_count():
    model, batch = make(warmup=1), BagBatch.pack([grid_bag(20, dtype=WIDE)])
    first = model.eval()(batch).scores
    model.train()(batch), model(batch)
    assert model.visits == 0
    model.after_step()
    assert model.visits == 1
    assert torch.equal(make(warmup=1).eval()(batch).scores, first)
    step(model, batch)
    refined = model.eval()(batch).scores
    with torch.no_grad():
        h = model.norm(model.embed(batch.x)).relu()
        z = model.refine[-1](h)
    assert torch.allclose(refined, z[:, 1:] - z[:, :1], atol=1e-12)


def test_a_bag_of_equal_instances_teaches_the_refiners_nothing_first():
    rows, labels = module._first_candidates(torch.full((5, 1), 0.2), torch.tensor([True]), 0.1)
    assert len(rows) == len(labels) == 0


def test_labels_of_other_bags_and_of_instances_do_not_change_a_loss():
    bag = grid_bag(40, dtype=WIDE)
    model = make().train()
    found = []
    for y_inst in (bag.y_inst, 1 - bag.y_inst):
        torch.manual_seed(0)
        found.append(model(BagBatch.pack([replace(bag, y_inst=y_inst)])).losses)
    assert all(torch.equal(found[0][k], found[1][k]) for k in found[0])


def test_order_of_instances_changes_no_loss_where_nothing_is_drawn():
    bag, order = grid_bag(130, dtype=WIDE), torch.randperm(130, generator=torch.Generator().manual_seed(1))
    model = make(drops=0, superpatch=1, mrf_weight=0.0).train()
    one, other = (model(BagBatch.pack([b])) for b in (bag, reordered(bag, order)))
    assert torch.allclose(one.scores[order], other.scores, atol=1e-10)
    for name, value in one.losses.items():
        assert torch.allclose(value, other.losses[name], atol=1e-10), name


@pytest.mark.parametrize(
    ("target", "columns"),
    [(_Multilabel(("a", "b")), [[1.0, 0.0], [0.0, 1.0]]), (_Regression(("a",), 0.0, 1.0), [[0.3], [2.0]])],
)
def test_other_targets_have_sampled_looks_and_sigmoids_alone(target, columns):
    model = make(len(columns[0])).train()
    model.target = target
    batch = replace(BagBatch.pack([grid_bag(40, dtype=WIDE), grid_bag(9, dtype=WIDE)]), target=torch.tensor(columns))
    out = model(batch)
    assert out.losses.keys() == {"views"}
    model.eval()
    with torch.no_grad():
        h = model.norm(model.embed(batch.x)).relu()
        p, a = model.classifier(h).sigmoid(), torch.cat([part.softmax(0) for part in batch.split(model.attention(h))])
        sums = torch.stack([part.sum(0) for part in batch.split(a * p)])
        assert torch.allclose(model(batch).logits.sigmoid(), sums, atol=1e-12)


def planted(seed):
    """Sixteen bags of 49 patches; the positive ones hold a square of 2 × 2 to 3 × 3 lesions."""
    g = torch.Generator().manual_seed(seed)
    kinds, lesion, bags = torch.randn(6, 16, generator=g), 3 * torch.randn(16, generator=g), []
    for i in range(16):
        bag = grid_bag(49, seed=i, y=i % 2)
        cells = torch.cartesian_prod(torch.arange(7), torch.arange(7))
        x = kinds[torch.randint(6, (49,), generator=g)] + 0.1 * torch.randn(49, 16, generator=g)
        labels = torch.zeros(49, dtype=torch.long)
        if bag.y:
            corner, side = torch.randint(5, (2,), generator=g), 2 + i % 3 // 2
            labels[((cells >= corner) & (cells < corner + side)).all(1)] = 1
            x[labels == 1] = lesion + 0.1 * torch.randn(int(labels.sum()), 16, generator=g)
        coords = cells * 512
        bags.append(replace(bag, x=x, coords=coords, graph=grid_graph(coords, 512), y_inst=labels))
    return bags


@pytest.mark.parametrize("drops", [0, 1])
def test_both_stages_learn_planted_lesions_and_rank_every_lesion_first(drops):
    """Instance dropout takes clear lesions away and calls the rest positive: bags are then told by rank alone."""
    bags = planted(0)
    batch = BagBatch.pack(bags)
    torch.manual_seed(0)
    model = create_model("smmile", 16, dim=32, att_dim=16, warmup=60, drops=drops).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(100):
        optimizer.zero_grad()
        total_loss(model(batch), batch.y)[0].backward()
        optimizer.step()
        model.after_step()
    model.eval()
    with torch.no_grad():
        out = model(batch)
    assert model.visits > 60
    assert out.logits[batch.y == 1].min() > out.logits[batch.y == 0].max()
    if not drops:
        assert total_loss(out, batch.y)[0] < 0.1
    for bag, scores in zip(bags, batch.split(out.scores), strict=True):
        if bag.y:
            assert scores[bag.y_inst == 1].min() > scores[bag.y_inst == 0].max(), bag.id


@pytest.mark.parametrize("moment", [(1, 1), (2, 1), (4, 2)])
def test_training_that_is_interrupted_in_either_stage_goes_on_to_the_same_bytes(moment, tmp_path):
    class Stop(Progress):
        def step_done(self, epoch, step, loss):
            if (epoch, step) == moment:
                os.kill(os.getpid(), signal.SIGINT)

    bags, options = planted(0), {"dim": 8, "att_dim": 4, "warmup": 2}
    given = (bags[:12], bags[12:])
    settings = {"options": options, "epochs": 6, "threads": 1, "lr": 1e-2, "warmup_epochs": 1}
    whole = smmil.fit("smmile", *given, out=tmp_path / "whole", **settings)
    with pytest.raises(Interrupted):
        smmil.fit("smmile", *given, out=tmp_path / "cut", progress=Stop(), **settings)
    again = smmil.fit("smmile", *given, out=tmp_path / "cut", **settings)
    assert again.history == whole.history
    for file in ("best.safetensors", "last.safetensors"):
        found = [(tmp_path / name / "checkpoints" / file).read_bytes() for name in ("cut", "whole")]
        assert found[0] == found[1]
    second = ["train_refinement" in row for row in whole.history]
    assert second[:2] == [False] * 2  # and the third is of both stages, or of the first where its last step ends it
    assert second[3:] == [True] * 3


@pytest.mark.parametrize(
    "options",
    [
        {"pseudo_share": 0.0},
        {"pseudo_share": 0.7},
        {"pairwise": 1.5},
        {"mrf_weight": -1.0},
        {"view_weight": "much"},
        {"norm": "group"},
        {"candidates": "bag"},
        {"drops": -1},
        {"refiners": 0},
    ],
)
def test_options_that_mean_nothing_are_refused_by_name(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        create_model("smmile", 16, **options)

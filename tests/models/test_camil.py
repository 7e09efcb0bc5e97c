"""CAMIL against a literal reading of its equations, and the properties they imply."""

from dataclasses import replace

import pytest
import torch
from support.bags import chain_bag, grid_bag, mixed_bags, reordered, without_edges
from support.literal_camil import camil, graph_weights, nearest_weights

from smmil.bag import Bag, BagBatch
from smmil.errors import ConfigError, DataError
from smmil.models import create_model

HEADS, DIM = 2, 8
FORMS = ("article", "released")


def build(seed=0, n_classes=1, in_dim=16, dim=DIM, **options):
    torch.manual_seed(seed)
    options = {"heads": HEADS, "context_dim": 6, "att_dim": 5, **options}
    model = create_model("camil", in_dim, n_classes, dim=dim, **options).double()
    for name, p in model.named_parameters():  # biases too, every part speaks, and no softmax is saturated
        torch.nn.init.normal_(p, std=0.05 if name in ("query.weight", "key.weight") else 0.5)
    return model


def pack(*bags):
    return BagBatch.pack(bags)


def bags(*sizes):
    return [grid_bag(n, seed=n, dtype=torch.float64) for n in sizes]


def literal(model, bag, *, knn=None, self_loops=True, landmarks=256, **options):
    a = graph_weights(bag, self_loops) if knn is None else nearest_weights(bag, knn, self_loops)
    return camil(model, bag, a, heads=HEADS, m=landmarks, **options)


OPTIONS = [
    {"landmarks": 4},
    {"landmarks": 1, "score": "m"},
    {"landmarks": 16, "iterations": 2, "conv": "heads"},
    {"landmarks": 4, "knn": 7},
    {"landmarks": 4, "self_loops": False},
    {"landmarks": 4, "form": "released"},
    {"landmarks": 16, "form": "released", "score": "t", "conv": "sequence"},
    {"landmarks": 4, "form": "released", "knn": 7},
    {"landmarks": 4, "form": "released", "knn": 2, "self_loops": False},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(("n_classes", "dim"), [(1, 8), (3, 16)])
def test_the_model_is_its_definition(options, n_classes, dim):
    """Tiny, lattice, woven, scan, without edges; with a projection (to 8) and without (features are 16 wide)."""
    model, some = build(n_classes=n_classes, dim=dim, **options).eval(), mixed_bags()
    with torch.no_grad():
        out = [model(pack(bag)) for bag in some]
        truth = [literal(model, bag, **options) for bag in some]
    for ours, (logits, scores, _, _) in zip(out, truth, strict=True):
        assert torch.allclose(ours.logits, logits, atol=1e-10)
        assert torch.allclose(ours.scores, scores, atol=1e-10)
        assert ours.losses == {}


@pytest.mark.parametrize("form", FORMS)
def test_a_scan_with_all_landmarks_is_its_definition_too(form):
    model, scan = build(form=form).eval(), chain_bag(35, dtype=torch.float64)
    with torch.no_grad():
        out, (logits, scores, _, _) = model(pack(scan)), literal(model, scan, form=form)
    assert torch.allclose(out.logits, logits, atol=1e-10)
    assert torch.allclose(out.scores, scores, atol=1e-10)


@pytest.mark.parametrize("options", [{}, {"form": "released"}, {"score": "m", "knn": 3}])
def test_gradients_are_those_of_the_definition(options):
    model, some = build(landmarks=4, **options), bags(3, 7, 20)
    wanted = list(model.parameters())
    out = model(pack(*some))
    truth = [literal(model, bag, landmarks=4, **options)[:2] for bag in some]
    ours = out.logits.sin().sum() + out.scores.square().sum()
    true = sum(logits.sin().sum() + scores.square().sum() for logits, scores in truth)
    for a, b in zip(torch.autograd.grad(ours, wanted), torch.autograd.grad(true, wanted), strict=True):
        assert a.isfinite().all()
        assert torch.allclose(a, b, atol=1e-9)


@pytest.mark.parametrize(
    ("count", "options"),
    [(1_706_889, {}), (1_722_497, {"form": "released"}), (1_705_865, {"form": "released", "conv": "sequence"})],
)
def test_the_number_of_parameters_is_the_published_one(count, options):
    assert sum(p.numel() for p in create_model("camil", 512, **options).parameters()) == count


def test_features_of_another_width_are_projected_and_only_those():
    plain, wide = (create_model("camil", width) for width in (512, 1024))
    more = sum(p.numel() for p in wide.parameters()) - sum(p.numel() for p in plain.parameters())
    assert more == 1024 * 512 + 512


def without_some_edges(bag):
    """The same case with the edges of its first half cut."""
    return replace(bag, graph=bag.graph.within(torch.arange(bag.n).clamp(max=bag.n // 2)))


@pytest.mark.parametrize(
    ("options", "sees"),
    [({}, False), ({"score": "m"}, True), ({"form": "released"}, True), ({"form": "released", "score": "t"}, False)],
)
def test_scores_of_t_know_nothing_of_the_neighbours_and_scores_of_m_do(options, sees):
    """The Sm paper's remark holds for the article's equations, not for the released program; logits always see them."""
    model, (bag,) = build(**options).eval(), bags(20)
    a, b = model(pack(bag)), model(pack(without_some_edges(bag)))
    assert torch.equal(a.scores, b.scores) is not sees
    assert (a.logits - b.logits).abs().max() > 1e-6


@pytest.mark.parametrize("form", FORMS)
def test_the_pool_weighs_by_the_scores_it_shows(form):
    model, (bag,) = build(form=form).eval(), bags(20)
    out, (_, _, share, blend) = model(pack(bag)), literal(model, bag, form=form)
    assert share.sum().item() == pytest.approx(1)
    z = (out.scores.softmax(0) * blend).sum(0)
    assert torch.allclose(out.logits[0], model.head(z), atol=1e-10)


@pytest.mark.parametrize("form", FORMS)
def test_where_nobody_listens_to_anybody_all_shares_are_equal(form):
    """No edges and no self: neither queries nor keys can matter."""
    model, (bag,) = build(form=form, self_loops=False).eval(), bags(20)
    lonely = without_edges(bag)
    before = model(pack(lonely)).logits
    assert torch.allclose(literal(model, lonely, form=form, self_loops=False)[2], torch.full((20, 1), 0.05).double())
    torch.nn.init.normal_(model.query.weight, std=9)
    assert torch.equal(model(pack(lonely)).logits, before)
    assert not torch.allclose(model(pack(bag)).logits, before, atol=1e-4)


@pytest.mark.parametrize(("form", "factor"), [("article", 0.5), ("released", 1.5)])
def test_without_a_local_view_the_blend_is_t_up_to_a_factor(form, factor):
    """What large bags come to, where each share is about 1/n."""
    model, (bag,) = build(form=form).eval(), bags(20)
    for p in model.value.parameters():
        torch.nn.init.zeros_(p)
    h = model.embed(bag.x)
    t = h + model.attention(model.norm(h), torch.tensor([0, bag.n]))
    weights = model._attend(t * (factor if form == "released" else 1)).softmax(0)
    assert torch.allclose(model(pack(bag)).logits, model.head(factor * (weights * t).sum(0, keepdim=True)), atol=1e-10)


@pytest.mark.parametrize("conv", ["sequence", "heads"])
def test_order_matters_through_the_convolution_along_the_sequence_or_through_shared_landmarks(conv):
    model = build(conv=conv, landmarks=32).eval()
    for n in (20, 40):
        (bag,), order = bags(n), torch.randperm(n, generator=torch.Generator().manual_seed(1))
        same = torch.allclose(model(pack(bag)).scores[order], model(pack(reordered(bag, order))).scores, atol=1e-9)
        assert same is (conv == "heads" and n <= 32)


def smoothed(bag, u):
    """Literal: three times G ← ½ P G + ½ U."""
    root = bag.graph.dense().sum(1).rsqrt()
    p, g = root[:, None] * bag.graph.dense() * root, u
    for _ in range(3):
        g = (p @ g + u) / 2
    return g


SM = {"alpha": 0.5, "steps": 3, "spectral_norm": False}


@pytest.mark.parametrize("form", FORMS)
def test_sm_early_smooths_what_the_instances_bring(form):
    """With features of the model's width, the features themselves."""
    model, scan = build(form=form, dim=16, sm=SM).eval(), chain_bag(12, dtype=torch.float64)
    out, (logits, scores, _, _) = model(pack(scan)), literal(model, replace(scan, x=smoothed(scan, scan.x)), form=form)
    assert torch.allclose(out.logits, logits, atol=1e-10)
    assert torch.allclose(out.scores, scores, atol=1e-10)


@pytest.mark.parametrize("score", ["t", "m"])
def test_sm_late_smooths_the_attention_logits_shown_and_pooled_by(score):
    model, scan = build(score=score, sm={**SM, "where": "late"}).eval(), chain_bag(12, dtype=torch.float64)
    _, scores, _, blend = literal(model, scan, score=score)
    weigh = smoothed(scan, literal(model, scan, score="t")[1])
    out = model(pack(scan))
    assert torch.allclose(out.scores, smoothed(scan, scores), atol=1e-10)
    assert torch.allclose(out.logits, model.head((weigh.softmax(0) * blend).sum(0, keepdim=True)), atol=1e-10)


def test_layers_that_read_smoothed_rows_are_normalised_spectrally():
    layers = [(build(form=form, sm={}).attention.qkv, form == "released") for form in FORMS]
    assert [hasattr(layer, "parametrizations") for layer, _ in layers] == [on for _, on in layers]


@pytest.mark.parametrize("options", [{}, {"form": "released", "knn": 7}])
def test_another_bag_in_the_batch_changes_nothing(options):
    model = build(landmarks=4, **options).eval()
    quiet, loud = bags(7, 23)
    alone, together = model(pack(quiet)), model(pack(quiet, replace(loud, x=1000 * loud.x)))
    assert torch.allclose(alone.logits, together.logits[:1], atol=1e-12)
    assert torch.allclose(alone.scores, together.scores[:7], atol=1e-12)


def test_graphs_and_coordinates_are_asked_for_when_needed_only():
    (bag,) = bags(20)
    placed, joined = Bag("placed", bag.x, bag.coords), Bag("joined", bag.x, graph=bag.graph)
    assert build()(pack(joined)).scores.shape == build(knn=7)(pack(placed)).scores.shape == (20, 1)
    with pytest.raises(DataError, match="'graph', which is missing in placed"):
        build()(pack(placed))
    with pytest.raises(DataError, match="'coords', which is missing in joined"):
        build(knn=7)(pack(joined))


@pytest.mark.parametrize("options", [{}, {"form": "released", "knn": 7}])
def test_the_start_is_glorots(options):
    torch.manual_seed(0)
    model = create_model("camil", 512, **options)
    for layer, bound in ((model.attention.qkv, (6 / 2048) ** 0.5), (model.gate, (6 / 640) ** 0.5)):
        assert bound * 0.99 < layer.weight.abs().max() <= bound
    assert not model.value.bias.any()
    kernel = model.attention.across if "form" in options else model.attention.local.weight
    bound = (6 / (33 * 8 + 33 * 64)) ** 0.5 if "form" in options else (6 / (33 + 33 * 8)) ** 0.5
    assert bound * 0.9 < kernel.abs().max() <= bound


def test_mixed_precision_runs_and_stays_close():
    torch.manual_seed(0)
    model, batch = create_model("camil", 16, knn=7, form="released").eval(), pack(grid_bag(60))
    with torch.autocast("cpu", torch.bfloat16):
        mixed = model(batch)
    assert mixed.scores.dtype == torch.float32
    assert torch.allclose(mixed.scores, model(batch).scores, atol=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 100}, "dim=100 must be a multiple of heads=8"),
        ({"form": "articel"}, "did you mean article"),
        ({"conv": "head"}, "did you mean heads"),
        ({"knn": 0}, "knn must be a whole number of at least 1"),
        ({"conv": "heads", "dim": 96}, "head_dim a multiple of heads"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        create_model("camil", 16, **options)

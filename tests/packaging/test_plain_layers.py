"""Layers written with plain operations give what the models give, and leave the models as they are."""

import pytest
import torch
from bags import grid_bag, without_edges, woven_bag

from smmil.bag import BagBatch
from smmil.errors import ConfigError
from smmil.models import create_model
from smmil.packaging.plain_layers import PlainSm, plain_model
from smmil.packaging.traced import OneBag, TracedGraph

VARIANTS = [
    ("mean_pool", {}),
    ("mean_pool", {"sm": {"where": "late"}}),
    ("max_pool", {"sm": {"where": "early", "isolated": "shrink"}}),
    ("abmil", {"gated": True, "spectral_norm": True}),
    *(
        ("sm_ap", {"where": where, "normalization": kind})
        for where in ("early", "mid", "late")
        for kind in ("sym", "rw")
    ),
    ("sm_ap", {"normalization": "sym_loop", "gated": True, "att_bias": False}),
    ("sm_ap", {"isolated": "shrink", "alpha": 0.9}),
    ("sm_ap", {"steps": "exact", "alpha": 0.9}),
    ("sm_ap", {"alpha": 0.0}),
    ("sm_ap", {"steps": 0}),
    ("sm_ap", {"steps": 3}),
    ("transformer_abmil", {}),
    ("sm_tap", {"where": "mid"}),
    ("sm_tap", {"smooth": "encoder", "sm_encoder": "output"}),
    ("clam", {"branches": "multi", "sm": {"where": "early"}}),
    ("dsmil", {"sm": {"where": "early"}}),
    ("deep_graph_surv", {}),
    ("deep_graph_surv", {"variant": "gin"}),
    ("patch_gcn", {}),
    ("gtp", {"score": "attention"}),
]


def with_drawn_weights(name, n_classes=1, **options):
    """A model whose every weight was drawn, also those that start at 0 or 1, in double precision."""
    model = create_model(name, 16, n_classes, **options).double().eval()
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=draw, dtype=torch.float64))
    return model


def traced(bag) -> OneBag:
    rows, columns = bag.graph.edges()
    return OneBag(bag.x, TracedGraph(rows, columns, bag.graph.weight, bag.n))


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=lambda value: str(value))
def test_plain_layers_compute_the_same(name, options):
    model = with_drawn_weights(name, 3, **options)
    plain = plain_model(model)
    bags = [woven_bag(23, dtype=torch.float64), without_edges(grid_bag(4, dtype=torch.float64))]
    for bag in [*bags, grid_bag(1, dtype=torch.float64)]:
        with torch.no_grad():
            wanted, got = model(BagBatch.pack([bag])), plain(traced(bag))
        tolerance = 1e-5 if options.get("steps") == "exact" else 1e-11
        assert torch.allclose(got.logits, wanted.logits, rtol=tolerance, atol=tolerance)
        assert torch.allclose(got.scores, wanted.scores, rtol=tolerance, atol=tolerance)


def test_messages_of_any_spread_are_weighed_without_overflow():
    model = with_drawn_weights("patch_gcn").float()
    bag = woven_bag(23)
    bag.x.mul_(3000)
    with torch.no_grad():
        wanted, got = model(BagBatch.pack([bag])), plain_model(model)(traced(bag))
    assert torch.isfinite(got.logits).all()
    assert torch.allclose(got.logits, wanted.logits, rtol=1e-3)


def test_the_model_itself_is_left_as_it_was():
    model = create_model("sm_ap", 16, spectral_norm=True).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    kinds = [type(layer) for layer in model.modules()]
    plain_model(model)
    assert [type(layer) for layer in model.modules()] == kinds
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training
    assert model.pool.project.weight.shape == (100, 512)  # torch's own way to fix spectral norms would break this


def test_an_exact_smoother_whose_length_depends_on_the_bag_is_refused():
    with pytest.raises(ConfigError, match="needs more steps the more degrees differ"):
        PlainSm(create_model("sm_ap", 4, steps="exact", normalization="rw").pool.sm)


@pytest.mark.parametrize("kind", ["sym", "sym_loop", "rw"])
@pytest.mark.parametrize("isolated", ["keep", "shrink"])
def test_a_traced_graph_is_the_matrix_of_the_graph(kind, isolated):
    bag = woven_bag(23, dtype=torch.float64)
    one, other = (graph.normalized(kind, isolated) for graph in (bag.graph, traced(bag).graph))
    assert torch.allclose(other.propagate(bag.x), one.dense() @ bag.x, atol=1e-13)
    assert torch.allclose(other.transposed().propagate(bag.x), one.dense().T @ bag.x, atol=1e-13)

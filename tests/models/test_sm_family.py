"""Properties of ABMIL, SmAP and SmTAP that the specification of the paper implies."""

import pytest
import torch
from support.bags import chain_bag, grid_bag, without_edges

from smmil.bag import BagBatch
from smmil.errors import ConfigError
from smmil.models import create_model
from smmil.nn import sm

BATCH = BagBatch.pack([grid_bag(1), grid_bag(40, seed=1), grid_bag(7, seed=2)])
PARAMETERS = [
    (314_569, "abmil", 512, {}),
    (314_469, "abmil", 512, {"att_bias": False}),
    (1_101_001, "abmil", 2048, {}),
    (445_641, "abmil", 768, {}),
    (314_570, "sm_ap", 512, {}),
    (314_570, "sm_ap", 512, {"where": "mid"}),
    (314_570, "sm_ap", 512, {"where": "late"}),
    (314_569, "sm_ap", 512, {"alpha": 0.3}),
    (695_625, "transformer_abmil", 512, {}),
    (695_625, "sm_tap", 512, {"smooth": "none"}),
    (695_626, "sm_tap", 512, {"smooth": "pool"}),
    (695_627, "sm_tap", 512, {"smooth": "encoder"}),
    (695_628, "sm_tap", 512, {}),
    (432_204, "sm_tap", 512, {"mlp": False}),
    (8_451_788, "sm_tap", 512, {"trans_dim": 512, "head_dim": 128}),
    (1_485_132, "sm_tap", 2048, {}),
    (827_212, "sm_tap", 768, {}),
]


@pytest.mark.parametrize(("count", "name", "width", "options"), PARAMETERS)
def test_models_have_the_papers_number_of_parameters(count, name, width, options):
    assert sum(p.numel() for p in create_model(name, width, **options).parameters()) == count


def twins(name, other, options, other_options):
    """Two models with the same weights, as far as both have them."""
    torch.manual_seed(0)
    a, b = create_model(name, 16, **options), create_model(other, 16, **other_options)
    missing = b.load_state_dict(a.state_dict(), strict=False)
    assert not missing.missing_keys
    return a.eval(), b.eval()


def assert_same(a, b):
    x, y = a(BATCH), b(BATCH)
    assert torch.allclose(x.logits, y.logits, atol=1e-6)
    assert torch.allclose(x.scores, y.scores, atol=1e-6)


@pytest.mark.parametrize("steps", [10, "exact"])
def test_alpha_zero_is_abmil(steps):
    assert_same(*twins("abmil", "sm_ap", {"spectral_norm": True}, {"alpha": 0.0, "steps": steps}))
    for where in ("early", "mid", "late"):
        plain = {"where": where, "alpha": 0.0, "spectral_norm": False}
        assert_same(*twins("abmil", "sm_ap", {}, plain))


def test_late_scores_are_the_smoothed_scores_of_abmil_and_smoother():
    options = {"where": "late", "alpha": 0.8, "spectral_norm": False}
    plain, late = twins("abmil", "sm_ap", {}, options)
    p, f = BATCH.graph.normalized(), plain(BATCH).scores
    assert torch.allclose(late(BATCH).scores, sm(f, p, 0.8), atol=1e-6)
    assert p.roughness(late(BATCH).scores) < p.roughness(f)


@pytest.mark.parametrize("where", ["early", "mid", "late"])
def test_without_neighbours_sm_ap_is_abmil(where):
    plain, smooth = twins("abmil", "sm_ap", {}, {"where": where, "alpha": 0.9, "spectral_norm": False})
    for bag in (grid_bag(1), without_edges(grid_bag(30))):
        batch = BagBatch.pack([bag])
        assert torch.allclose(plain(batch).logits, smooth(batch).logits, atol=1e-6)


def test_the_four_variants_agree_when_nothing_is_smoothed():
    for norm in (True, False):
        for variant in ("both", "encoder", "pool", "none"):
            options = {"smooth": variant, "alpha": 0.0, "spectral_norm": norm}
            assert_same(*twins("transformer_abmil", "sm_tap", {"spectral_norm": norm}, options))


def test_without_edges_sm_tap_is_the_plain_transformer():
    plain, smooth = twins("transformer_abmil", "sm_tap", {}, {"alpha": 0.9, "spectral_norm": False})
    batch = BagBatch.pack([without_edges(grid_bag(20)), without_edges(grid_bag(5, seed=1))])
    assert torch.allclose(plain(batch).logits, smooth(batch).logits, atol=1e-6)


def test_the_plain_transformer_does_not_see_the_graph():
    torch.manual_seed(0)
    model = create_model("transformer_abmil", 16).eval()
    a, b = (model(BagBatch.pack([bag])) for bag in (grid_bag(20), without_edges(grid_bag(20))))
    assert torch.equal(a.logits, b.logits)


@pytest.mark.parametrize("variant", ["both", "encoder", "pool"])
@pytest.mark.parametrize("place", ["layers", "output"])
def test_the_smoothed_variants_do(variant, place):
    torch.manual_seed(0)
    model = create_model("sm_tap", 16, smooth=variant, sm_encoder=place).eval()
    a, b = (model(BagBatch.pack([bag])) for bag in (grid_bag(20), without_edges(grid_bag(20))))
    assert not torch.allclose(a.scores, b.scores, atol=1e-4)


def test_every_alpha_is_trained():
    torch.manual_seed(0)
    model = create_model("sm_tap", 16)
    model(BATCH).logits.sum().backward()
    alphas = {n: p.grad for n, p in model.named_parameters() if n.endswith("sm.logit")}
    assert len(alphas) == 3
    assert all(g.abs() > 0 for g in alphas.values())


def test_the_alphas_differ_in_effect_the_right_way_round():
    """alpha = 0.9 gives a smoother map than 0.1 (a swapped convention would not)."""
    p = BATCH.graph.normalized()
    rough = []
    for alpha in (0.1, 0.9):
        torch.manual_seed(0)
        rough.append(p.roughness(create_model("sm_ap", 16, where="late", alpha=alpha).eval()(BATCH).scores).item())
    assert rough[1] < rough[0]


def test_abmil_twice_the_bag_is_the_same_bag():
    torch.manual_seed(0)
    model, bag = create_model("abmil", 16).eval(), chain_bag(9)
    doubled = type(bag)("twice", torch.cat([bag.x, bag.x]), y=1)
    a, b = model(BagBatch.pack([bag])), model(BagBatch.pack([doubled]))
    assert torch.allclose(a.logits, b.logits, atol=1e-6)


def test_the_plain_variant_needs_no_graph():
    bare = BagBatch.pack([type(chain_bag(3))("bare", chain_bag(3).x)])
    assert create_model("sm_tap", 16, smooth="none").eval()(bare).scores.shape == (3, 1)


def test_lonely_instances_can_be_asked_to_fade():
    torch.manual_seed(0)
    keep = create_model("sm_ap", 16, where="late", alpha=0.5, isolated="keep").eval()
    fade = create_model("sm_ap", 16, where="late", alpha=0.5, isolated="shrink").eval()
    fade.load_state_dict(keep.state_dict())
    batch = BagBatch.pack([without_edges(grid_bag(4))])
    assert torch.allclose(fade(batch).scores, 0.5 * keep(batch).scores)


@pytest.mark.parametrize("options", [{"dim": 0}, {"att_dim": -1}, {"dim": 1.5}, {"in_dim": 0}, {"n_classes": 0}])
def test_impossible_sizes_are_refused(options):
    with pytest.raises(ConfigError, match="at least 1"):
        create_model("abmil", **{"in_dim": 4, **options})


CITIZENS = [("abmil", {}), ("sm_ap", {}), ("sm_ap", {"where": "mid", "gated": True}), ("sm_ap", {"where": "late"})]


@pytest.mark.parametrize(("name", "options"), CITIZENS)
def test_compiled_models_have_no_graph_breaks_and_the_same_gradients(name, options):
    torch.manual_seed(0)
    model = create_model(name, 16, dim=12, att_dim=6, **options).eval()
    whole = torch.compile(model, backend="aot_eager", fullgraph=True)
    batch = BagBatch.pack([grid_bag(23)]).without_labels()
    found = []
    for one in (whole, model):
        out = one(batch)
        total = out.logits.sum() + out.scores.square().sum()
        found.append([out.logits, out.scores, *torch.autograd.grad(total, list(model.parameters()), allow_unused=True)])
    for got, wanted in zip(*found, strict=True):
        assert (got is None) == (wanted is None)
        assert got is None or torch.allclose(got, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("name", "options"), CITIZENS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_layers_can_be_quantized(name, options):
    torch.manual_seed(0)
    model = create_model(name, 16, spectral_norm=False, **options).eval()  # torch quantizes no parametrised layer
    small = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
    got, wanted = small(BATCH), model(BATCH)
    assert not torch.equal(got.logits, wanted.logits)
    assert torch.allclose(got.logits, wanted.logits, atol=0.02)
    assert torch.allclose(got.scores, wanted.scores, atol=0.05)


class LowRank(torch.nn.Module):
    """A frozen layer plus a trained product of two thin matrices."""

    def __init__(self, layer, rank=2):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = torch.nn.Linear(layer.in_features, rank, bias=False)
        self.up = torch.nn.Linear(rank, layer.out_features, bias=False)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


class LowRankLinear(torch.nn.Linear):
    """The same as a linear layer of its own kind, which adds the product in its forward."""

    def __init__(self, layer, rank=2):
        super().__init__(layer.in_features, layer.out_features, bias=layer.bias is not None)
        self.load_state_dict(layer.state_dict())
        self.requires_grad_(False)
        self.down = torch.nn.Linear(layer.in_features, rank, bias=False)
        self.up = torch.nn.Linear(rank, layer.out_features, bias=False)

    def forward(self, x):
        return super().forward(x) + self.up(self.down(x))


@pytest.mark.parametrize(("name", "options"), CITIZENS)
@pytest.mark.parametrize("part", ["embed", "pool.project", "pool.score", "head"])
@pytest.mark.parametrize("kind", [LowRank, LowRankLinear])
def test_a_layer_with_a_low_rank_update_is_used_and_trained(name, options, part, kind):
    torch.manual_seed(0)
    model, same = (create_model(name, 16, dim=12, att_dim=6, spectral_norm=False, **options).eval() for _ in range(2))
    same.load_state_dict(model.state_dict())
    updated = kind(model.get_submodule(part))
    model.set_submodule(part, updated)
    with torch.no_grad():
        same.get_submodule(part).weight += updated.up.weight @ updated.down.weight
    found, wanted = model(BATCH), same(BATCH)
    assert torch.allclose(found.logits, wanted.logits, atol=1e-5)
    assert torch.allclose(found.scores, wanted.scores, atol=1e-5)
    found.logits.sum().backward()
    assert updated.down.weight.grad.abs().max() > 0

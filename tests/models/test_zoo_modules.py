"""The models are ordinary PyTorch modules: every layer is called, can be quantized, and has second derivatives."""

import warnings

import pytest
import torch
from support.bags import grid_bag
from torch import nn

from smmil.bag import BagBatch
from smmil.models import create_model

DIM = 16
SMALL = {
    "set_mil": {"size": 4, "depth": 2, "reduced": 8, "level_dim": 8, "heads": 2},
    "iib_mil": {"dim": 16, "hidden": 32, "depth": 2},
    "camil": {"dim": 32, "heads": 4, "landmarks": 8},
    "trans_mil": {"dim": 32, "heads": 4, "landmarks": 8},
    "gtp": {"dim": 16, "clusters": 5, "heads": 2},
    "dtfd_mil": {"dim": 24, "att_dim": 8},
    "patch_gcn": {"dim": 16},
    "clam": {"dim": 24},
    "sm_gcn": {"dim": 8, "att_dim": 6},
    "sm_instance": {"dim": 24},
    "attri_mil": {"dim": 24, "att_dim": 8},
    "smmile": {"dim": 24, "att_dim": 8, "warmup": 0},
    "ac_mil": {"dim": 24, "att_dim": 8},
    "additive_mil": {"dim": 24, "att_dim": 8, "hidden": 16},
}
CASES = [
    ("ac_mil", {}),
    ("additive_mil", {}),
    ("additive_mil", {"attention": "gated"}),
    ("attri_mil", {}),
    ("camil", {}),
    ("camil", {"form": "released"}),
    ("camil", {"knn": 3}),
    ("clam", {}),
    ("clam", {"branches": "multi"}),
    ("deep_graph_surv", {}),
    ("dsmil", {"passing_v": True}),
    ("dtfd_mil", {"residual_blocks": 1}),
    ("dtfd_mil", {"distill": "maxmins", "splits": 2}),
    ("gtp", {"score": "attention"}),
    ("iib_mil", {}),
    ("patch_gcn", {}),
    ("set_mil", {}),
    ("sm_gcn", {"where": "late"}),
    ("sm_gcn", {"layers": 2, "norm": True, "where": "none"}),
    ("sm_instance", {}),
    ("sm_instance", {"pool": "noisy_or"}),
    ("smmile", {}),
    ("smmile", {"norm": "layer"}),
    ("trans_mil", {}),
    ("trans_mil", {"ppeg": "chain"}),
]
every_case = pytest.mark.parametrize(("name", "options"), CASES, ids=lambda value: str(value))


def build(name, options):
    torch.manual_seed(0)
    return create_model(name, DIM, **SMALL.get(name, {}), **options)


def batch(dtype=torch.float32):
    return BagBatch.pack([grid_bag(n, seed=n, dim=DIM, y=y, dtype=dtype) for n, y in ((9, 0), (6, 1))])


def silent_layers(model):
    """Layers with parameters whose forward hooks do not fire."""
    called = set()
    for name, layer in model.named_modules():
        layer.register_forward_hook(lambda *_, name=name: called.add(name))
    model(batch())
    holders = {name for name, layer in model.named_modules() if not isinstance(layer, nn.ModuleList)}
    return {n for n in holders - called if any(True for _ in model.get_submodule(n).parameters())}


@every_case
def test_every_layer_is_called_in_training(name, options):
    assert silent_layers(build(name, options).train()) == set()


@every_case
def test_every_layer_is_called_in_use(name, options):
    """Except classifiers of instances (CLAM) and of branches (ACMIL), which serve in training only."""
    silent = silent_layers(build(name, options).eval())
    assert {layer for layer in silent if not layer.startswith(("instance_heads.", "branch_heads."))} == set()


@every_case
def test_linear_layers_can_be_quantized(name, options):
    model = build(name, options).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantized = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
    assert any("quantized" in type(layer).__module__ for layer in quantized.modules())
    with torch.no_grad():
        out, wide = quantized(batch()), model(batch())
    assert torch.allclose(out.logits, wide.logits, atol=0.1)
    assert out.scores.isfinite().all()


def gradient(model, bags, **options):
    out = model(bags)
    parameters = [p for p in model.parameters() if p.requires_grad]
    found = torch.autograd.grad(out.logits.square().sum() + out.scores.sum(), parameters, allow_unused=True, **options)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


# Sums over neighbours are differentiable once.
ONCE: tuple[str, ...] = ()
# Tier 2 does not train tier 1 by default, so that gradients are not those of one function.
JOINT = {"dtfd_mil": {"joint": True}}


@pytest.mark.parametrize(("name", "options"), [case for case in CASES if case[0] not in ONCE], ids=lambda v: str(v))
def test_second_derivatives_agree_with_differences_of_gradients(name, options):
    model, bags = build(name, options | JOINT.get(name, {})).double().eval(), batch(torch.float64)
    g = torch.Generator().manual_seed(1)
    # A short step: no ReLU may change its side on the way.
    direction = [1e-2 * torch.randn(p.shape, generator=g, dtype=p.dtype) for p in model.parameters()]
    slopes = gradient(model, bags, create_graph=True)
    along = sum((s * d).sum() for s, d in zip(slopes, direction, strict=True))
    second = torch.autograd.grad(along, list(model.parameters()), allow_unused=True)
    step, sides = 1e-5, []
    for sign in (1, -1):
        with torch.no_grad():
            for p, d in zip(model.parameters(), direction, strict=True):
                p.add_(sign * step * d)
        sides.append(gradient(model, bags))
        with torch.no_grad():
            for p, d in zip(model.parameters(), direction, strict=True):
                p.sub_(sign * step * d)
    largest = max(float(s.abs().max()) for s in second if s is not None)
    for exact, up, down in zip(second, *sides, strict=True):
        truth = (up - down) / (2 * step)
        assert torch.allclose(torch.zeros_like(truth) if exact is None else exact, truth, atol=1e-4 * largest)

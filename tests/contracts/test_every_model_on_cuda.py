"""Every model on a CUDA card: a training step and a prediction equal those of the processor within tolerance."""

import copy

import pytest
import torch
from support.bags import chain_bag, grid_bag

from smmil import fit
from smmil.bag import BagBatch
from smmil.losses import total_loss
from smmil.models import create_model, list_models
from smmil.predict import predict

pytestmark = pytest.mark.gpu

SMALLER = {"set_mil": {"size": 8, "depth": 2}, "iib_mil": {"dim": 32, "hidden": 64}, "smmile": {"warmup": 0}}
# What a training step draws: numbers of a card are not those of the processor.
DRAWN = {
    "ac_mil": {"mask_share": 0.0},
    "dtfd_mil": {"pseudo_bags": 1},
    "set_mil": {"augment": False},
    "smmile": {"groups": 0, "drops": 0, "warmup": 20},
}
BAGS = [grid_bag(n, seed=n, y=n % 2) for n in (3, 57, 120)]


def built(name, **options):
    """A small model without dropout."""
    torch.manual_seed(0)
    model = create_model(name, 16, **{**SMALLER.get(name, {}), **options})
    for module in model.modules():
        for share in ("p", "dropout"):
            if isinstance(getattr(module, share, None), float):
                setattr(module, share, 0.0)
    return model


def step(model, batch):
    """Loss and gradients of a training step, on the processor."""
    output = model.train()(batch)
    loss, _ = total_loss(output, batch.y)
    loss.backward()
    return loss.detach().cpu(), {name: p.grad.cpu() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", list_models())
def test_a_prediction_equals_that_of_the_processor(name):
    model = built(name).eval()
    with torch.no_grad():
        here, there = model(BagBatch.pack(BAGS)), copy.deepcopy(model).cuda()(BagBatch.pack(BAGS).to("cuda"))
    for a, b in ((here.logits, there.logits), (here.scores, there.scores)):
        assert torch.allclose(a, b.cpu(), rtol=1e-3, atol=1e-4)
    probs = predict(copy.deepcopy(model).cuda(), BAGS)
    for a, b in zip(predict(model, BAGS), probs, strict=True):
        assert abs(a.probs - b.probs).max() < 1e-4


@pytest.mark.parametrize("name", [m for m in list_models() if m not in ("bayes_mil", "prob_sm_ap", "prob_smooth")])
def test_a_step_equals_that_of_the_processor(name):
    """But for models whose step is a draw (their weights or maps are random)."""
    model = built(name, **DRAWN.get(name, {}))
    other = copy.deepcopy(model).cuda()
    loss, gradients = step(model, BagBatch.pack(BAGS))
    its_loss, its_gradients = step(other, BagBatch.pack(BAGS).brought_to("cuda"))
    assert torch.allclose(loss, its_loss, rtol=1e-3, atol=1e-4)
    assert gradients.keys() == its_gradients.keys()
    for key, gradient in gradients.items():
        assert torch.allclose(gradient, its_gradients[key], rtol=1e-2, atol=1e-4), key


@pytest.mark.parametrize("name", ["abmil", "sm_ap", "clam"])
def test_a_training_on_a_card_repeats_and_ends_near_that_of_the_processor(name):
    options = {"dropout": 0.0} if name == "clam" else {}
    bags, val = [chain_bag(20 + n, seed=n, y=n % 2) for n in range(8)], BAGS
    runs = [fit(name, bags, val, options=options, epochs=2, device=device) for device in ("cpu", "cuda", "cuda")]
    losses = [[row["train_loss"] for row in run.history] for run in runs]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert losses[1] == pytest.approx(losses[2], rel=1e-6)

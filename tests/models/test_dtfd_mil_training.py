"""How DTFD-MIL trains: which tier teaches which, clipping, randomness, tiny bags, mixed precision, memory."""

import pytest
import torch
from support.bags import chain_bag
from support.literal_dtfd_mil import Literal, gradients, loss_of, make, make_batch
from torch.utils._python_dispatch import TorchDispatchMode

from smmil.bag import BagBatch
from smmil.errors import DataError


@pytest.mark.parametrize("distill", ["afs", "maxs", "maxmins", "mas"])
def test_tier_two_trains_tier_one_only_when_asked(distill):
    batch = make_batch()
    for joint in (False, True):
        model = make(distill=distill, joint=joint).train()
        found = gradients(loss_of(model(batch).logits, batch.y), model)
        reached = {name for name, g in found.items() if g.abs().max() > 1e-12}
        assert ("embed.0.weight" in reached) == joint
        assert "tier2.classifier.weight" in reached
        assert "classifier.weight" not in reached


def test_tier_one_never_trains_tier_two():
    model = make().train()
    found = gradients(model(make_batch()).losses["tier1"], model)
    assert all(g.abs().max() == 0 for name, g in found.items() if name.startswith("tier2"))


LARGE = 1e6  # makes every gradient worth clipping


def test_one_clipped_step_is_the_authors_two():
    """One optimiser on the sum, clipped by `before_step`, moves the weights as two optimisers taking turns."""
    batch = make_batch(sizes=(41,))
    ours, theirs = make(2), make(2)
    _one_step(ours, batch)
    _two_steps(theirs, batch)
    moved = ours.state_dict()
    assert all(torch.allclose(v, moved[k], atol=1e-10) for k, v in theirs.state_dict().items())
    assert not torch.allclose(ours.embed[0].weight, make(2).embed[0].weight, atol=1e-3)


def _one_step(model, batch):
    torch.manual_seed(5)
    out = model.train()(batch)
    (LARGE * (loss_of(out.logits, 1 - batch.y) + out.losses["tier1"])).backward()
    parts = [model.get_submodule(name) for name in model.clip_modules]
    assert min(_norm(part) for part in parts) > model.clip_norm_per_module
    model.before_step()
    assert max(_norm(part) for part in parts) <= model.clip_norm_per_module * (1 + 1e-6)
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def _norm(part):
    return float(torch.nn.utils.get_total_norm([p.grad for p in part.parameters()]))


def _two_steps(model, batch):
    torch.manual_seed(5)
    logits, tier1 = Literal(model).training(batch)
    first = [p for n, p in model.named_parameters() if not n.startswith("tier2")]
    second = list(model.tier2.parameters())
    for loss, parameters in ((tier1, first), (loss_of(logits, 1 - batch.y), second)):
        for p, g in zip(parameters, torch.autograd.grad(LARGE * loss, parameters, retain_graph=True), strict=True):
            p.grad = g
    for part in (model.embed, model.attention, model.classifier, model.tier2):
        torch.nn.utils.clip_grad_norm_(part.parameters(), 5.0)
    for parameters in (first, second):
        torch.optim.SGD(parameters, lr=0.1).step()


def test_the_modules_to_clip_hold_every_parameter_once():
    model = make(residual_blocks=1)
    assert model.clip_norm_per_module == 5.0
    held = [id(p) for name in model.clip_modules for p in model.get_submodule(name).parameters()]
    assert sorted(held) == sorted(id(p) for p in model.parameters())


def test_training_draws_its_cut_from_the_global_generator():
    model, batch = make().train(), make_batch(sizes=(41,))
    logits = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        logits.append(model(batch).logits)
    assert torch.equal(logits[0], logits[1])
    assert not torch.allclose(logits[0], logits[2], atol=1e-9)


@pytest.mark.parametrize("distill", ["afs", "maxs", "maxmins", "mas"])
@pytest.mark.parametrize("n_classes", [1, 3])
def test_gradients_are_finite_on_tiny_and_identical_instances(distill, n_classes):
    same = chain_bag(6, dtype=torch.float64)
    same = type(same)("same", same.x[:1].repeat(6, 1), y=0)
    batches = [make_batch(n_classes, (n,)) for n in (1, 2, 3, 5)] + [BagBatch.pack([same])]
    for batch in batches:
        model = make(n_classes, distill=distill, k=1 if distill == "afs" else 2, joint=True).train()
        out = model(batch)
        (loss_of(out.logits, batch.y) + out.losses["tier1"]).backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("distill", ["afs", "maxs", "maxmins", "mas"])
def test_mixed_precision_trains(distill):
    model, batch = make(3, distill=distill, joint=True).float().train(), make_batch(3)
    batch = BagBatch(**{**vars(batch), "x": batch.x.float()})
    with torch.autocast("cpu", torch.bfloat16):
        out = model(batch)
    assert out.losses["tier1"].dtype == out.scores.dtype == torch.float32
    (loss_of(out.logits.float(), batch.y) + out.losses["tier1"]).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


class Widest(TorchDispatchMode):
    """The largest number of elements any tensor had."""

    most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for t in result if isinstance(result, tuple | list) else (result,):
            if isinstance(t, torch.Tensor):
                self.most = max(self.most, t.numel())
        return result


@pytest.mark.parametrize("distill", ["afs", "maxmins", "mas"])
def test_sixty_thousand_instances_need_no_more_than_their_own_rows(distill):
    """Forward and backward: no tensor is wider than the features (16) or the embedding (10) of all instances."""
    x = torch.randn(60_000, 16, generator=torch.Generator().manual_seed(0))
    batch = BagBatch.pack([type(chain_bag(1))("slide", x, y=1)])
    model = make(distill=distill, joint=True, k=1 if distill == "afs" else 5).float().train()
    with Widest() as seen:
        out = model(batch)
        (loss_of(out.logits, batch.y) + out.losses["tier1"]).backward()
    assert seen.most <= 60_000 * 16


def test_training_without_labels_is_refused():
    with pytest.raises(DataError, match="needs 'y'"):
        make().train()(make_batch().without_labels())
    with pytest.raises(DataError, match="label 2 does not fit a model with n_classes=1"):
        make().train()(make_batch(3))

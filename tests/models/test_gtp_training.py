"""GTP in training: batch statistics, its two losses, tiny bags, memory."""

from dataclasses import replace

import pytest
import torch
from support import literal_gtp
from support.bags import chain_bag, grid_bag, mixed_bags, without_edges
from support.literal_gtp import SMALL, assert_close, running, shaken

from smmil.bag import BagBatch
from smmil.models import create_model

DOUBLE = torch.float64
BAGS = mixed_bags(DOUBLE)


def pack(*bags):
    return BagBatch.pack(bags)


@pytest.mark.parametrize("train_cam", [False, True])
def test_training_is_its_equations_with_the_statistics_of_all_patches_of_the_batch(train_cam):
    model = shaken(n_classes=2, train_cam=train_cam).train()
    bags = [b for b in BAGS if b.coords.shape[1] == 2]
    mean, variance = running(model)
    found, rows = literal_gtp.gtp(model, bags, scores="graphcam" if train_cam else "attention")
    out = model(BagBatch.pack(bags))
    assert torch.allclose(out.logits, torch.stack([logits for logits, *_ in found]), atol=1e-10)
    assert_close(out.scores, torch.cat([scores for _, scores, *_ in found]))
    cuts, orthogonalities = zip(*[both for *_, both in found], strict=True)
    assert torch.allclose(out.losses["cut"], sum(cuts) / len(bags), atol=1e-12)
    assert torch.allclose(out.losses["orthogonality"], sum(orthogonalities) / len(bags), atol=1e-12)
    assert torch.allclose(model.norm.running_mean, 0.9 * mean + 0.1 * rows.mean(0), atol=1e-12)
    assert torch.allclose(model.norm.running_var, 0.9 * variance + 0.1 * rows.var(0), atol=1e-12)


def test_one_lonely_patch_trains_with_the_running_statistics_and_leaves_them_alone():
    model, bag = shaken().train(), grid_bag(1, dtype=DOUBLE)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    out = model(pack(bag))
    assert torch.equal(out.logits, shaken().eval()(pack(bag)).logits)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert out.losses["cut"] == 0
    (out.logits.sum() + sum(out.losses.values())).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_without_edges_nothing_is_cut():
    model = shaken().train()
    assert model(pack(without_edges(grid_bag(7, dtype=DOUBLE)))).losses["cut"] == 0
    pair = [grid_bag(30, dtype=DOUBLE), without_edges(grid_bag(30, dtype=DOUBLE, seed=1))]
    losses = model(BagBatch.pack(pair)).losses
    assert 2 * losses["cut"].item() == pytest.approx(literal_gtp.gtp(model, pair)[0][0][-1][0].item())


def test_losses_stay_in_their_ranges():
    for seed in range(10):
        model = shaken(seed=seed, scale=2.0).train()
        for bag in BAGS[1:]:
            losses = model(pack(bag)).losses
            assert -1 - 1e-12 <= losses["cut"] <= 0
            assert 0 <= losses["orthogonality"] <= 2**0.5


def test_scores_of_training_can_be_penalised_unless_they_are_graphcam():
    batch = pack(grid_bag(30, dtype=DOUBLE))
    assert shaken().train()(batch).scores.requires_grad
    assert not shaken(train_cam=True).train()(batch).scores.requires_grad


def test_it_starts_as_published():
    torch.manual_seed(0)
    model = create_model("gtp", 512)
    assert float(model.embed.weight.detach().std()) == pytest.approx((2 / (512 + 64)) ** 0.5, rel=0.02)
    assert model.embed.bias.abs().max() == model.token.abs().max() == 0
    assert [block.heads for block in model.transformer.blocks] == [8, 8, 8]
    assert model.score_kind == "GraphCAM"
    assert create_model("gtp", 8, score="attention").score_kind == "class token attention"


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_gradients_and_maps_are_finite_for_features_of_any_size(scale):
    torch.manual_seed(0)
    model = create_model("gtp", 16)
    for bag in (grid_bag(57), grid_bag(1), chain_bag(2), without_edges(grid_bag(5))):
        bag = replace(bag, x=bag.x * scale)
        model.zero_grad()
        out = model.train()(pack(bag))
        (out.logits.sum() + sum(out.losses.values())).backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())
        assert model.eval()(pack(bag)).scores.isfinite().all()


def test_a_bag_of_nothing_but_zeros_is_finite():
    bag = grid_bag(9)
    model = create_model("gtp", 16).train()
    out = model(pack(replace(bag, x=torch.zeros_like(bag.x))))
    (out.logits.sum() + sum(out.losses.values())).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    assert model.eval()(pack(replace(bag, x=torch.zeros_like(bag.x)))).scores.isfinite().all()


def test_it_trains_under_autocast():
    torch.manual_seed(0)
    model, batch = create_model("gtp", 16), pack(grid_bag(40), grid_bag(7, seed=1))
    plain = model.eval()(batch)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = model(batch)
        trained = model.train()(batch)
    (trained.logits.sum() + sum(trained.losses.values())).backward()
    assert torch.allclose(plain.logits, mixed.logits.float(), atol=0.05)
    assert mixed.scores.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_training_builds_nothing_of_patches_by_patches():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        most = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            for t in result if isinstance(result, tuple | list) else (result,):
                if isinstance(t, torch.Tensor) and t.layout == torch.strided:
                    self.most = max(self.most, t.numel())
            return result

    model, n = create_model("gtp", 16, **{**SMALL, "clusters": 20}).train(), 2000
    batch = pack(grid_bag(n))
    with Watch() as watch:
        out = model(batch)
        (out.logits.sum() + sum(out.losses.values())).backward()
    assert watch.most <= 20 * n


def test_a_batch_of_eight_planted_bags_is_learned_and_known_again_in_use():
    """All bags in one batch, as published: then the running statistics are those the model has learned with."""
    g = torch.Generator().manual_seed(0)
    kinds, lesion = torch.randn(6, 16, generator=g), torch.randn(16, generator=g) * 4
    bags = []
    for i in range(8):
        bag = grid_bag(20 + i // 2, seed=i, y=i % 2)
        x = kinds[torch.arange(bag.n) % 6].clone()
        x[i % 2 * 3] = lesion if i % 2 else x[0]
        bags.append(replace(bag, x=x))
    torch.manual_seed(0)
    model, batch = create_model("gtp", 16, clusters=10, layers=1).train(), BagBatch.pack(bags)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    criterion = torch.nn.functional.binary_cross_entropy_with_logits
    for _ in range(50):
        optimizer.zero_grad()
        out = model(batch)
        (criterion(out.logits[:, 0], batch.y.float()) + sum(out.losses.values())).backward()
        optimizer.step()
    assert criterion(model.eval()(batch).logits[:, 0], batch.y.float()) < 0.1

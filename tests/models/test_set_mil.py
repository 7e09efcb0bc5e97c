"""SETMIL against a literal reading of its equations, and the properties they imply."""

from dataclasses import replace

import pytest
import torch
from support.bags import STEP, grid_bag
from support.literal_set_mil import (
    SMALL,
    assert_is,
    bags,
    build,
    expected,
    full_square,
    grid_spots,
    pack,
)

from smmil.errors import ConfigError
from smmil.models import create_model


@pytest.mark.parametrize("n_classes", [1, 3])
@pytest.mark.parametrize("size", [1, 6, 7])
def test_the_model_is_its_definition_on_slides(size, n_classes):
    model, some = build(n_classes=n_classes, size=size).eval(), bags()
    with torch.no_grad():
        out = model(pack(*some))
        assert_is(out, [expected(model, bag, grid_spots(bag.coords, STEP), size) for bag in some])
    assert out.losses == {}


@pytest.mark.parametrize("options", [{}, {"depth": 1}, {"heads": 3, "level_dim": 5}, {"reduced": 2}])
def test_other_widths_follow_the_same_definition(options):
    model, some = build(**options).eval(), bags((3, 16))
    with torch.no_grad():
        assert_is(model(pack(*some)), [expected(model, bag, grid_spots(bag.coords, STEP)) for bag in some])


def test_gradients_are_those_of_the_definition():
    model, some = build(), bags((3, 16))
    out = model(pack(*some))
    truth = [expected(model, bag, grid_spots(bag.coords, STEP)) for bag in some]
    wanted = [p for name, p in model.named_parameters() if name != "blocks.2.table"]
    ours = out.logits.sin().sum() + 9 * out.scores.square().sum()
    true = sum(logits.sin().sum() + 9 * scores.square().sum() for logits, scores in truth)
    for a, b in zip(torch.autograd.grad(ours, wanted), torch.autograd.grad(true, wanted), strict=True):
        assert a.isfinite().all()
        assert torch.allclose(a, b, atol=1e-9)


def test_the_last_table_changes_nothing():
    """Only the class token is read behind the last block, and all pairs of its row share one bucket."""
    model, some = build().eval(), bags((16,))
    before = model(pack(*some)).logits
    with torch.no_grad():
        model.blocks[-1].table.normal_(std=5)
        truth = [expected(model, bag, grid_spots(bag.coords, STEP)) for bag in some]
    assert torch.equal(model(pack(*some)).logits, before)
    assert torch.allclose(truth[0][0], before, atol=1e-10)


def test_features_can_be_learned_through():
    model, (bag,) = build(), bags((16,))
    x = bag.x.clone().requires_grad_()
    (ours,) = torch.autograd.grad(model(pack(replace(bag, x=x))).logits.sum(), x)
    (true,) = torch.autograd.grad(expected(model, replace(bag, x=x), grid_spots(bag.coords, STEP))[0].sum(), x)
    assert torch.allclose(ours, true, atol=1e-9)


@pytest.mark.parametrize(
    ("count", "width", "n_classes"), [(9_756_930, 512, 2), (9_756_737, 512, 1), (17_168_130, 1280, 2)]
)
def test_the_number_of_parameters_is_the_published_one(count, width, n_classes):
    with torch.device("meta"):
        for size in (48, 60):
            model = create_model("set_mil", width, n_classes, size=size)
            assert sum(p.numel() for p in model.parameters()) == count


def test_scores_are_constant_on_two_by_two_cells():
    scores = build().eval()(pack(full_square(8))).scores.reshape(4, 2, 4, 2)
    assert torch.equal(scores, scores[:, :1, :, :1].expand_as(scores))
    assert len(scores.unique()) == 16


def test_scores_of_a_full_map_and_of_the_class_token_share_out_one():
    """Every token stands over four patches of the 8 × 8; what is missing, the class token keeps for itself."""
    total = build().eval()(pack(full_square(8))).scores.sum().item() / 4
    assert 0.5 < total < 1


def test_training_follows_the_seed():
    model, batch = build(dropout=0.2, augment=True).train(), pack(*bags())

    def run(seed):
        torch.manual_seed(seed)
        out = model(batch)
        return out.logits, torch.autograd.grad(out.logits.sum(), model.token)[0]

    assert all(torch.equal(a, b) for a, b in zip(run(1), run(1), strict=True))
    assert not torch.equal(run(1)[0], run(2)[0])


def test_dropout_stays_out_of_the_first_windows():
    model = build(dropout=0.5).train()
    seen = []
    model.reduce.register_forward_hook(lambda _, inputs, out: seen.append(out))
    for _ in range(2):
        model(pack(*bags((16,))))
    assert torch.equal(seen[0], seen[1])


def test_bfloat16_training_gives_finite_slopes():
    torch.manual_seed(0)
    model = create_model("set_mil", 5, **SMALL).train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(pack(*(replace(bag, x=bag.x.float()) for bag in bags())))
    out.logits.float().sum().backward()
    assert out.scores.dtype == torch.float32
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_weights_start_small_and_tables_at_zero():
    torch.manual_seed(0)
    model = create_model("set_mil", 64)
    for name, p in model.named_parameters():
        if "table" in name or name.endswith("bias"):
            assert (p == 0).all()
        elif "norm" in name:
            assert (p == 1).all()
        else:
            assert p.std().item() == pytest.approx(0.02, rel=0.15)


def test_choices_that_cannot_be_meant_are_refused():
    with pytest.raises(ConfigError, match="heads=7 must divide the width of the tokens, 192"):
        create_model("set_mil", 16, heads=7)
    with pytest.raises(ConfigError, match="fold"):
        create_model("set_mil", 16, fold="grids")
    with pytest.raises(ConfigError, match=r"dropout must be a number in \[0, 1\), got 1"):
        create_model("set_mil", 16, dropout=1)


@pytest.mark.slow
def test_ten_thousand_patches_train_within_four_gigabytes():
    import resource

    torch.manual_seed(0)
    bag = grid_bag(10_000, dim=512)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    create_model("set_mil", 512).train()(pack(replace(bag, graph=None))).logits.sum().backward()
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20 < 4

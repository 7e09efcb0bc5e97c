"""IIB-MIL against a literal reading of its equations, and the properties they imply."""

import pytest
import torch
from support.bags import chain_bag, grid_bag, reordered
from support.literal_iib_mil import Literal, loss_of, make, make_batch, shake
from torch.utils._python_dispatch import TorchDispatchMode

from smmil.bag import Bag, BagBatch
from smmil.errors import ConfigError, DataError
from smmil.models import create_model

SHAPES = [{}, {"depth": 1}, {"depth": 3, "dim": 12}, {"dim": 16}, {"queries": 1}, {"hidden": 5}]


@pytest.mark.parametrize("n_classes", [1, 2, 3])
@pytest.mark.parametrize("options", SHAPES)
def test_logits_and_scores_are_those_of_the_definition(n_classes, options):
    model, batch = make(n_classes, **options).eval(), make_batch(n_classes)
    out = model(batch)
    logits, scores = Literal(model).use(batch)
    assert torch.allclose(out.logits, logits, rtol=0, atol=1e-10)
    assert torch.allclose(out.scores, scores, rtol=0, atol=1e-9)
    assert out.losses == {}


OPTIONS = [
    {},
    {"negatives": "zero"},
    {"label_ema": 0.3, "prototype_ema": 0.9},
    {"label_ema": 0.3, "prototype_ema": 0.9, "negatives": "zero"},
    {"label_ema": "falling"},
    {"warmup": 2, "label_ema": 0.5},
    {"instance_weight": 0.25},
]


@pytest.mark.parametrize("n_classes", [1, 3])
@pytest.mark.parametrize("options", OPTIONS)
def test_the_instance_loss_is_that_of_the_definition_step_after_step(n_classes, options):
    """Losses, prototypes and beliefs over four epochs, the weights moving between them."""
    model, batch = make(n_classes, **options).train(), make_batch(n_classes)
    literal = Literal(model, **options)
    for epoch in range(4):
        expected, seen = literal.loss(batch)
        found = model(batch).losses["instance"]
        model.after_step()
        literal.step(seen)
        assert torch.allclose(found, expected, rtol=0, atol=1e-10)
        assert torch.allclose(model.memory.prototypes, torch.stack(literal.prototypes), rtol=0, atol=1e-10)
        shake(model, epoch, size=0.1)
    moved = torch.cat([q[:, 1] for q in literal.q.values()])
    assert ((moved > 0.001) & (moved < 0.999)).any()  # some beliefs have left their label


@pytest.mark.parametrize("n_classes", [1, 3])
def test_gradients_are_those_of_the_definition(n_classes):
    model, batch = make(n_classes, label_ema=0.5).train(), make_batch(n_classes, (1, 3, 11))
    literal = Literal(model, label_ema=0.5)
    model(batch)
    model.after_step()
    literal.step(literal.loss(batch)[1])
    out = model(batch)
    truth = loss_of(literal.use(batch)[0], batch.y) + literal.loss(batch)[0]
    wanted = list(model.parameters())
    found = torch.autograd.grad(loss_of(out.logits, batch.y) + out.losses["instance"], wanted)
    for a, b in zip(found, torch.autograd.grad(truth, wanted), strict=True):
        assert a.isfinite().all()
        assert torch.allclose(a, b, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("count", "n_classes", "options"),
    [
        (10_800_644, 2, {}),
        (10_800_644, 2, {"dim": 256, "depth": 3}),
        (1_493_412, 2, {"dim": 32, "depth": 8}),
    ],
)
def test_the_number_of_parameters_is_the_published_one(count, n_classes, options):
    model = create_model("iib_mil", 512, n_classes, **options)
    assert sum(p.numel() for p in model.parameters()) == count


def test_weights_begin_as_in_the_published_program():
    model = create_model("iib_mil", 512)
    attention, bound = model.blocks[0].layer.attention, (6 / (4 * 256)) ** 0.5
    assert 0.99 * bound < attention.qkv.weight.abs().max() <= bound
    assert not attention.qkv.bias.any()
    assert not attention.merge.bias.any()
    assert float(model.decoder.queries.detach().std()) == pytest.approx(1, abs=0.1)
    assert not model.memory.prototypes.any()


@pytest.mark.parametrize("n", [2, 41, 200])
def test_scores_follow_the_instances_and_logits_do_not_care_about_their_order(n):
    model, bag = make(2).eval(), grid_bag(n, dtype=torch.float64)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(1))
    a, b = model(BagBatch.pack([bag])), model(BagBatch.pack([reordered(bag, order)]))
    assert torch.allclose(a.logits, b.logits, rtol=0, atol=1e-12)
    assert torch.allclose(a.scores[order], b.scores, rtol=0, atol=1e-12)


def test_one_logit_says_the_same_as_two():
    """With the differences of the two logits as weights."""
    two, one = make(2).eval(), make(1).eval()
    state = two.state_dict()
    for name in ("head", "instance_head.1"):
        state |= {f"{name}.{k}": two.get_submodule(name).state_dict()[k].diff(dim=0) for k in ("weight", "bias")}
    one.load_state_dict(state)
    a, b = two(make_batch()), one(make_batch())
    assert torch.allclose(a.logits.diff(dim=1), b.logits, rtol=0, atol=1e-12)
    assert torch.allclose(a.scores[:, 1:], b.scores, rtol=0, atol=1e-12)
    assert torch.allclose(a.scores[:, :1], -b.scores, rtol=0, atol=1e-12)


def test_neighbours_and_places_play_no_part():
    model, bag = make().eval(), grid_bag(20, dtype=torch.float64)
    full, bare = (model(BagBatch.pack([b])) for b in (bag, Bag(bag.id, bag.x)))
    assert torch.equal(full.logits, bare.logits)
    assert torch.equal(full.scores, bare.scores)


@pytest.mark.parametrize("n_classes", [1, 3])
def test_gradients_are_finite_on_tiny_and_identical_instances(n_classes):
    same = chain_bag(6, dtype=torch.float64)
    same = Bag("same", same.x[:1].repeat(6, 1), y=0)
    for batch in [make_batch(n_classes, (n,)) for n in (1, 2, 3, 9)] + [BagBatch.pack([same])]:
        model = make(n_classes, dropout=0.1).train()
        for _ in range(3):
            out = model(batch)
            (loss_of(out.logits, batch.y) + out.losses["instance"]).backward()
            model.after_step()
        assert all(p.grad.isfinite().all() for p in model.parameters())
        assert model.memory.prototypes.isfinite().all()


class Widest(TorchDispatchMode):
    """The largest number of elements any tensor had."""

    most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for t in result if isinstance(result, tuple | list) else (result,):
            self.most = max(self.most, t.numel() if isinstance(t, torch.Tensor) else 0)
        return result


def test_no_matrix_of_all_pairs_exists_in_training_with_dropout():
    torch.manual_seed(0)
    model, n = create_model("iib_mil", 16, dim=8, depth=1, hidden=16).train(), 2200
    batch = BagBatch.pack([Bag("large", torch.randn(n, 16), y=1)])
    with Widest() as watch:
        out = model(batch)
        (loss_of(out.logits, batch.y) + out.losses["instance"]).backward()
        model.after_step()
    assert watch.most < n**2 / 2


def test_wrong_options_are_refused_by_name():
    for options, words in [
        ({"negatives": "none"}, "negatives: unknown value 'none'"),
        ({"dim": 30}, "dim must be a multiple of 4"),
        ({"dropout": 1.0}, r"dropout must be a number in \[0, 1\)"),
        ({"label_ema": "rising"}, "label_ema must be a number in .* or \"falling\", got 'rising'"),
        ({"prototype_ema": 1.5}, "prototype_ema must be"),
        ({"instance_weight": -1.0}, "instance_weight must not be negative"),
        ({"warmup": -1}, "warmup must be a whole number of at least 0"),
        ({"warmup": 1.5}, "warmup must be a whole number of at least 0"),
    ]:
        with pytest.raises(ConfigError, match=words):
            create_model("iib_mil", 16, **options)


def test_training_without_labels_and_with_strange_ones_is_refused():
    with pytest.raises(DataError, match="needs 'y'"):
        make().train()(make_batch().without_labels())
    with pytest.raises(DataError, match="bag grid_3_3: label 2 does not fit a model with n_classes=1"):
        make().train()(make_batch(3))

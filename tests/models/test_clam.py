"""CLAM against its equations, which `literal_clam` writes out, and the properties they imply."""

import itertools
import math

import pytest
import torch
from support.bags import chain_bag, grid_bag
from support.laws import assert_blind_to_order_and_neighbours
from support.literal_clam import literal, literal_cluster
from torch.utils._python_dispatch import TorchDispatchMode

from smmil.bag import BagBatch
from smmil.errors import ConfigError, DataError
from smmil.losses import total_loss
from smmil.models import create_model

SIZES = (1, 2, 3, 7, 17, 40)
branches = pytest.mark.parametrize("branches", ["single", "multi"])


def make(n_classes=1, seed=0, dropout=0.0, **options):
    torch.manual_seed(seed)
    model = create_model("clam", 16, n_classes, dropout=dropout, **options).double()
    for head in model.instance_heads:
        head.weight.data *= 25  # far enough apart for both sides of the switch of the SVM loss
    return model


def some_bags(n_classes=1):
    labels = itertools.cycle(range(max(2, n_classes)))
    return BagBatch.pack([grid_bag(n, seed=n, y=next(labels), dtype=torch.float64) for n in SIZES])


@branches
@pytest.mark.parametrize("kind", ["svm", "ce"])
@pytest.mark.parametrize("subtyping", [False, True])
@pytest.mark.parametrize("n_classes", [1, 2, 3])
def test_clam_is_its_equations_gradients_included(branches, kind, subtyping, n_classes):
    model, batch = make(n_classes, branches=branches, inst_loss=kind, subtyping=subtyping), some_bags(n_classes)
    batch.x.requires_grad_()
    out = model.train()(batch)
    truth = literal(model, batch, n_classes, branches, kind, subtyping)
    ours = (out.logits, out.scores, out.losses["instance"])
    wanted = [batch.x, *model.parameters()]
    grads = [torch.autograd.grad(f.sin().sum() + s.cos().sum() + loss, wanted) for f, s, loss in (ours, truth)]
    for mine, true in zip((*ours, *grads[0]), (*truth, *grads[1]), strict=True):
        assert mine.shape == true.shape
        assert torch.allclose(mine, true, atol=1e-10, rtol=1e-10), (mine - true).abs().max()
    assert list(out.losses) == ["instance"]


@branches
@pytest.mark.parametrize("n_classes", [1, 3])
def test_in_use_nothing_is_dropped_and_no_loss_is_asked_for(branches, n_classes):
    model, batch = make(n_classes, dropout=0.5, branches=branches).eval(), some_bags(n_classes)
    out, truth = model(batch.without_labels()), literal(model, batch, n_classes, branches)
    assert torch.allclose(out.logits, truth[0], atol=1e-10)
    assert torch.allclose(out.scores, truth[1], atol=1e-10)
    assert out.losses == {}


def test_both_sides_of_the_svm_switch_were_met():
    model, batch = make(), some_bags()
    h = model.embed(batch.x).relu()
    gaps = torch.cat([head(h).diff(dim=1).abs() for head in model.instance_heads])
    assert 0.05 < (gaps >= math.log(1000)).double().mean() < 0.95


def test_the_big_one_is_wider():
    model, batch = make(size="big"), some_bags()
    assert model.attention.project.weight.shape == (384, 512)
    out, truth = model.train()(batch), literal(model, batch, 1)
    assert torch.allclose(out.logits, truth[0], atol=1e-10)
    assert torch.allclose(out.losses["instance"], truth[2], atol=1e-10)


PARAMETERS = [
    (528_647, 512, 2, {}),
    (790_791, 1024, 2, {}),
    (528_904, 512, 2, {"branches": "multi"}),
    (528_904, 512, 1, {"branches": "multi"}),
    (528_134, 512, 1, {}),
]


@pytest.mark.parametrize(("count", "width", "n_classes", "options"), PARAMETERS)
def test_clam_has_the_authors_number_of_parameters(count, width, n_classes, options):
    assert sum(p.numel() for p in create_model("clam", width, n_classes, **options).parameters()) == count


def test_without_instance_loss_it_is_gated_abmil():
    clam, abmil = make(2, bag_weight=1.0), create_model("abmil", 16, 2, gated=True, att_dim=256).double()
    theirs = {k: v for k, v in clam.state_dict().items() if not k.startswith("instance_heads")}
    shift = theirs.pop("attention.score.bias")
    abmil.load_state_dict({k.replace("attention.", "pool."): v for k, v in theirs.items()})
    batch = some_bags(2)
    a, b = clam.train()(batch), abmil(batch)
    assert torch.allclose(a.logits, b.logits, atol=1e-12)
    assert torch.allclose(a.scores, b.scores + shift, atol=1e-12)
    assert total_loss(a, batch.y, bag_weight=clam.bag_weight)[0] == total_loss(b, batch.y)[0]


def test_the_total_is_seven_tenths_bag_and_three_tenths_instances():
    model, batch = make(2), some_bags(2)
    out = model.train()(batch)
    bag = torch.nn.functional.cross_entropy(out.logits, batch.y)
    instance = literal(model, batch, 2)[2] / 0.3
    total, _ = total_loss(out, batch.y, bag_weight=model.bag_weight)
    assert torch.allclose(total, 0.7 * bag + 0.3 * instance, atol=1e-10)
    other = make(2, bag_weight=0.4).train()
    assert torch.allclose(other(batch).losses["instance"], 0.6 * instance, atol=1e-10)


@branches
def test_classifiers_of_other_classes_learn_only_when_subtyping(branches):
    batch = BagBatch.pack([grid_bag(40, y=1, dtype=torch.float64)])
    for subtyping in (False, True):
        model = make(1, branches=branches, subtyping=subtyping).train()
        out = model(batch)
        (out.logits.sum() + out.losses["instance"]).backward()
        assert (model.instance_heads[0].weight.grad is not None) == subtyping
        assert model.instance_heads[1].weight.grad.abs().max() > 0


def shown(model, bag):
    """What each instance classifier was given."""
    given = []
    hooks = [h.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0])) for h in model.instance_heads]
    model.train()(BagBatch.pack([bag]))
    for hook in hooks:
        hook.remove()
    return given


def test_a_small_bag_gives_half_its_instances_to_either_end():
    sizes = {1: [], 2: [2], 3: [2], 7: [6], 15: [14], 16: [16], 17: [16], 40: [16]}
    for n, rows in sizes.items():
        assert [len(g) for g in shown(make(), grid_bag(n, dtype=torch.float64))] == rows
    assert [len(g) for g in shown(make(k=3), grid_bag(40, dtype=torch.float64))] == [6]
    assert [len(g) for g in shown(make(subtyping=True), grid_bag(7, dtype=torch.float64))] == [3, 6]


def test_no_instance_stands_at_both_ends_even_when_all_scores_are_equal():
    model = make()
    model.attention.score.weight.data.zero_()
    for n in (2, 9, 16, 40):
        (rows,) = shown(model, chain_bag(n, dtype=torch.float64))
        assert len(rows.unique(dim=0)) == len(rows)


def test_a_lonely_instance_counts_as_a_bag_without_instance_loss():
    model, one, many = make().train(), grid_bag(1, dtype=torch.float64), grid_bag(40, dtype=torch.float64)
    alone, full, both = (model(BagBatch.pack(b)).losses["instance"] for b in ([one], [many], [one, many]))
    assert alone == 0
    assert torch.allclose(both, full / 2, atol=1e-12)


def test_the_instance_loss_teaches_the_embedding_but_not_the_attention():
    model, batch = make().train(), BagBatch.pack([grid_bag(40, dtype=torch.float64)])
    batch.x.requires_grad_()
    out = model(batch)
    out.losses["instance"].backward()
    assert all(p.grad is None for p in model.attention.parameters())
    assert model.embed.weight.grad.abs().max() > 0
    touched = batch.x.grad.abs().sum(1) > 0
    ranked = out.scores[:, 0].argsort()
    assert not touched[ranked[8:-8]].any()
    assert touched[ranked[:8]].any()
    assert touched[ranked[-8:]].any()


@branches
def test_order_and_neighbours_do_not_matter_losses_included(branches):
    assert_blind_to_order_and_neighbours(make(branches=branches).train(), "instance")


def test_one_logit_of_two_branches_is_the_difference_of_two_logits():
    two, one = make(2, branches="multi").eval(), make(1, branches="multi").eval()
    one.load_state_dict(two.state_dict())
    batch = some_bags(2)
    a, b = two(batch), one(batch)
    assert torch.allclose(a.logits[:, 1] - a.logits[:, 0], b.logits[:, 0], atol=1e-12)
    assert torch.equal(a.scores[:, 1:], b.scores)
    assert torch.allclose(a.logits.softmax(1)[:, 1], b.logits.sigmoid()[:, 0], atol=1e-12)


def test_dropout_sits_behind_the_embedding_and_a_quarter_in_the_attention():
    assert (make(dropout=0.6).drop.p, make(dropout=0.6).attention.drop.p) == (0.6, 0.25)
    assert (make().drop.p, make().attention.drop.p) == (0.0, 0.0)
    assert create_model("clam", 16).drop.p == 0.25


def test_pool_and_instance_loss_see_the_same_silenced_features():
    model, batch, seen = make(dropout=0.5).train(), some_bags(), {}
    model.drop.register_forward_hook(lambda _, i, out: seen.update(h=out))
    model.attention.register_forward_hook(lambda _, i, out: seen.update(scores=out))
    out = model(batch)
    assert 0.4 < (seen["h"] == 0).double().mean() - (model.embed(batch.x) <= 0).double().mean() / 2 < 0.6
    z = [s.softmax(0).T @ h for s, h in zip(batch.split(seen["scores"]), batch.split(seen["h"]), strict=True)]
    assert torch.allclose(out.logits, model.head(torch.cat(z)), atol=1e-12)
    parts = zip(batch.split(seen["h"]), batch.split(seen["scores"]), batch.y.tolist(), strict=True)
    loss = torch.stack([literal_cluster(model, h, s, y, "svm", False) for h, s, y in parts]).mean()
    assert torch.allclose(out.losses["instance"], 0.3 * loss, atol=1e-10)


def test_labels_outside_the_classes_are_explained_not_crashed_on():
    batch = BagBatch.pack([grid_bag(9, y=2, dtype=torch.float64)])
    with pytest.raises(DataError, match="bag grid_9_0: label 2 does not fit a model with n_classes=1"):
        total_loss(make().train()(batch), batch.y)
    with pytest.raises(DataError, match="needs 'y'"):
        make().train()(batch.without_labels())


@pytest.mark.parametrize("wrong", [{"k": 0}, {"bag_weight": 1.5}, {"branches": "both"}, {"inst_loss": "hinge"}])
def test_options_that_cannot_be_meant_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        create_model("clam", 16, **wrong)


@branches
@pytest.mark.parametrize("subtyping", [False, True])
def test_bfloat16_training_stays_finite(branches, subtyping):
    torch.manual_seed(0)
    model = create_model("clam", 16, 3, branches=branches, subtyping=subtyping).train()
    batch = BagBatch.pack([grid_bag(n, seed=n, y=n % 3) for n in SIZES])
    with torch.autocast("cpu", torch.bfloat16):
        out = model(batch)
    loss, _ = total_loss(out, batch.y, bag_weight=model.bag_weight)
    loss.backward()
    assert out.losses["instance"].dtype == torch.float32
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_training_never_holds_more_than_the_embedded_bag_in_one_tensor():
    class Watch(TorchDispatchMode):
        most = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            parts = result if isinstance(result, tuple | list) else (result,)
            self.most = max([self.most, *(t.numel() for t in parts if isinstance(t, torch.Tensor))])
            return result

    model, batch = create_model("clam", 16, branches="multi").train(), BagBatch.pack([chain_bag(3000)])
    with Watch() as watch:
        sum(model(batch).losses.values()).backward()
    assert watch.most <= 3000 * 512

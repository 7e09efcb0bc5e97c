"""DSMIL against its equations, written out bag by bag and instance by instance."""

import itertools
import math

import pytest
import torch
from support.bags import grid_bag
from support.laws import assert_blind_to_order_and_neighbours

from smmil.bag import Bag, BagBatch
from smmil.errors import ConfigError, DataError
from smmil.losses import total_loss
from smmil.models import create_model

SIZES = (1, 2, 3, 7, 40)


def make(n_classes=1, seed=0, **options):
    torch.manual_seed(seed)
    model = create_model("dsmil", 16, n_classes, **options).double()
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            p.data.normal_()  # a bias that starts at 0 would hide its own absence
    return model


def some_bags(n_classes=1):
    labels = itertools.cycle(range(max(2, n_classes)))
    return BagBatch.pack([grid_bag(n, seed=n, y=next(labels), dtype=torch.float64) for n in SIZES])


def literal_query(model, x, nonlinear):
    if not nonlinear:
        return model.query.weight @ x + model.query.bias
    first, _, second, _ = model.query
    hidden = torch.clamp(first.weight @ x + first.bias, min=0)
    return torch.tanh(second.weight @ hidden + second.bias)


def literal_value(model, x, passing_v):
    return torch.clamp(model.value[1].weight @ x + model.value[1].bias, min=0) if passing_v else x


def literal_bag(model, bag, n_classes, nonlinear, passing_v):
    """Bag logits of the second stream, highest instance logits, similarities and instance logits of one bag."""
    found = torch.stack([model.instance.weight @ x + model.instance.bias for x in bag])
    queries = [literal_query(model, x, nonlinear) for x in bag]
    kernel = model.head.weight.reshape(n_classes, n_classes, -1)
    alike, pooled, top = [], [], []
    for c in range(n_classes):
        m = max(range(len(bag)), key=found[:, c].tolist().__getitem__)
        a = torch.stack([q @ queries[m] / math.sqrt(128) for q in queries])
        weights = a.exp() / a.exp().sum()
        pooled.append(sum(w * literal_value(model, x, passing_v) for w, x in zip(weights, bag, strict=True)))
        alike.append(a)
        top.append(found[m, c])
    logits = [sum(kernel[c, d] @ pooled[d] for d in range(n_classes)) + model.head.bias[c] for c in range(n_classes)]
    return torch.stack(logits), torch.stack(top), torch.stack(alike, 1), found


def literal(model, batch, n_classes, nonlinear=True, passing_v=False):
    parts = [literal_bag(model, x, n_classes, nonlinear, passing_v) for x in batch.split(batch.x)]
    logits, top, alike, found = zip(*parts, strict=True)
    return torch.stack(logits), torch.stack(top), torch.cat(alike), torch.cat(found)


def literal_criterion(logits, y):
    if logits.shape[1] == 1:
        p = 1 / (1 + torch.exp(-logits[:, 0]))
        return -sum(torch.log(q if label else 1 - q) for q, label in zip(p, y.tolist(), strict=True)) / len(y)
    p = logits.exp() / logits.exp().sum(1, keepdim=True)
    return -sum(torch.log(row[label]) for row, label in zip(p, y.tolist(), strict=True)) / len(y)


@pytest.mark.parametrize("nonlinear", [True, False])
@pytest.mark.parametrize("passing_v", [True, False])
@pytest.mark.parametrize("n_classes", [1, 2, 3])
def test_dsmil_is_its_equations_gradients_included(nonlinear, passing_v, n_classes):
    model, batch = make(n_classes, nonlinear=nonlinear, passing_v=passing_v), some_bags(n_classes)
    batch.x.requires_grad_()
    out = model.train()(batch)
    logits, top, alike, _ = literal(model, batch, n_classes, nonlinear, passing_v)
    truth = (logits, alike, 0.5 * literal_criterion(top, batch.y))
    ours = (out.logits, out.scores, out.losses["max"])
    wanted = [batch.x, *model.parameters()]
    grads = [torch.autograd.grad(f.sin().sum() + s.cos().sum() + loss, wanted) for f, s, loss in (ours, truth)]
    for mine, true in zip((*ours, *grads[0]), (*truth, *grads[1]), strict=True):
        assert mine.shape == true.shape
        assert torch.allclose(mine, true, atol=1e-10, rtol=1e-10), (mine - true).abs().max()
    assert list(out.losses) == ["max"]


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("score", ["similarity", "instance"])
@pytest.mark.parametrize("n_classes", [1, 3])
def test_in_use_the_streams_are_averaged_and_either_gives_the_map(average, score, n_classes):
    model, batch = make(n_classes, average=average, score=score), some_bags(n_classes)
    logits, top, alike, found = literal(model, batch, n_classes)
    out = model.eval()(batch)
    assert torch.allclose(out.logits, (logits + top) / 2 if average else logits, atol=1e-10)
    assert torch.allclose(out.scores, alike if score == "similarity" else found, atol=1e-10)
    assert out.losses == {}
    kind = {"similarity": "similarity to the critical instance", "instance": "instance logit"}[score]
    assert model.score_kind == kind


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("n_classes", [1, 3])
def test_the_total_is_half_of_either_stream(average, n_classes):
    model, batch = make(n_classes, average=average).train(), some_bags(n_classes)
    total, _ = total_loss(model(batch), batch.y, bag_weight=model.bag_weight)
    logits, top, _, _ = literal(model, batch, n_classes)
    expected = 0.5 * literal_criterion(logits, batch.y) + 0.5 * literal_criterion(top, batch.y)
    assert torch.allclose(total, expected, atol=1e-10)


PARAMETERS = [(83_202, 1, {}), (85_252, 2, {}), (345_858, 1, {"passing_v": True})]


@pytest.mark.parametrize(("count", "n_classes", "options"), PARAMETERS)
def test_dsmil_has_the_authors_number_of_parameters(count, n_classes, options):
    assert sum(p.numel() for p in create_model("dsmil", 512, n_classes, **options).parameters()) == count


def test_weights_start_orthogonal_and_biases_at_zero():
    torch.manual_seed(0)
    model = create_model("dsmil", 16, 3, passing_v=True)
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            assert not p.any()
        else:
            short = p if p.shape[0] <= p.shape[1] else p.T
            assert torch.allclose(short @ short.T, torch.eye(len(short)), atol=1e-5), name


def test_attention_of_a_single_instance_is_one():
    model, bag = make(), grid_bag(1, dtype=torch.float64)
    out = model.train()(BagBatch.pack([bag]))
    assert torch.allclose(out.logits, model.head(bag.x), atol=1e-12)


def test_a_bag_of_copies_is_one_of_them():
    model, bag = make(3).eval(), grid_bag(1, dtype=torch.float64)
    copies = Bag("copies", bag.x.repeat(6, 1), y=1)
    a, b = model(BagBatch.pack([bag])), model(BagBatch.pack([copies]))
    assert torch.allclose(a.logits, b.logits, atol=1e-12)
    assert torch.allclose(a.scores.expand(6, -1), b.scores, atol=1e-12)


def test_equal_queries_give_the_mean_of_the_bag():
    model, bag = make(nonlinear=False).train(), grid_bag(40, dtype=torch.float64)
    model.query.weight.data.zero_()
    out = model(BagBatch.pack([bag]))
    assert torch.allclose(out.logits, model.head(bag.x.mean(0, keepdim=True)), atol=1e-12)


def test_attention_sums_to_one():
    """A feature that is the same in all instances arrives unchanged, whatever the weights."""
    model, bag = make(2).train(), grid_bag(40, dtype=torch.float64)
    bag.x[:, 3] = 7.0
    model.head.weight.data.zero_()
    model.head.weight.data[0, 3] = model.head.weight.data[1, 16 + 3] = 1.0
    out = model(BagBatch.pack([bag]))
    assert torch.allclose(out.logits[0] - model.head.bias, torch.full((2,), 7.0, dtype=torch.float64), atol=1e-12)


@pytest.mark.parametrize("n_classes", [1, 3])
def test_order_and_neighbours_do_not_matter_losses_included(n_classes):
    assert_blind_to_order_and_neighbours(make(n_classes).train(), "max")


def test_the_max_stream_touches_only_the_critical_instances():
    model, batch = make(score="instance").train(), some_bags()
    batch.x.requires_grad_()
    out = model(batch)
    out.losses["max"].backward()
    touched = [rows.abs().sum(1).nonzero().flatten().tolist() for rows in batch.split(batch.x.grad)]
    assert touched == [[int(scores.argmax())] for scores in batch.split(out.scores)]
    assert all(p.grad is None for name, p in model.named_parameters() if not name.startswith("instance"))


def test_the_bag_stream_does_not_train_the_instance_classifier():
    model, batch = make().train(), some_bags()
    model(batch).logits.sum().backward()
    assert model.instance.weight.grad is None
    assert all(p.grad.abs().max() > 0 for p in (*model.query.parameters(), *model.head.parameters()))


def test_of_equally_suspicious_instances_the_first_is_critical():
    model, bag = make().eval(), grid_bag(7, dtype=torch.float64)
    model.instance.weight.data.zero_()
    q = model.query(bag.x)
    assert torch.allclose(model(BagBatch.pack([bag])).scores[:, 0], q @ q[0] / math.sqrt(128), atol=1e-12)


def test_value_dropout_acts_in_training_only():
    model, batch = make(passing_v=True, dropout_v=0.5), some_bags()
    plain = make(passing_v=True)
    plain.load_state_dict(model.state_dict())
    assert torch.equal(model.eval()(batch).logits, plain.eval()(batch).logits)
    assert not torch.allclose(model.train()(batch).logits, plain.train()(batch).logits)


@pytest.mark.parametrize("n_classes", [1, 3])
def test_labels_outside_the_classes_are_explained_not_crashed_on(n_classes):
    batch = BagBatch.pack([grid_bag(9, y=3, dtype=torch.float64)])
    with pytest.raises(DataError, match=f"bag grid_9_0: label 3 does not fit a model with n_classes={n_classes}"):
        total_loss(make(n_classes).train()(batch), batch.y)
    with pytest.raises(DataError, match="needs 'y'"):
        make(n_classes).train()(batch.without_labels())


def test_an_unknown_score_is_refused():
    with pytest.raises(ConfigError, match="score"):
        create_model("dsmil", 16, score="attention")


def test_dropout_before_a_layer_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match=r"model dsmil: dropout_v=0.2 acts on what passing_v reads; set passing_v"):
        create_model("dsmil", 16, dropout_v=0.2)


@pytest.mark.parametrize("n_classes", [1, 3])
def test_bfloat16_training_stays_finite(n_classes):
    torch.manual_seed(0)
    model = create_model("dsmil", 16, n_classes, passing_v=True).train()
    batch = BagBatch.pack([grid_bag(n, seed=n, y=n % 2) for n in SIZES])
    with torch.autocast("cpu", torch.bfloat16):
        out = model(batch)
    loss, _ = total_loss(out, batch.y, bag_weight=model.bag_weight)
    loss.backward()
    assert out.losses["max"].dtype == torch.float32
    assert all(p.grad.isfinite().all() for p in model.parameters())

"""AttriMIL against its equations over several steps, its memory included, and the properties they imply."""

from collections import deque
from dataclasses import replace

import pytest
import torch
from support.bags import chain_bag, grid_bag, mixed_bags, without_edges

from smmil.bag import BagBatch
from smmil.errors import ConfigError, DataError
from smmil.losses import total_loss
from smmil.models import create_model
from smmil.models.attri_mil import _ranking_terms, _salient_neighbour
from smmil.train.loop import _lasting_state


def make(n_classes=1, seed=0, **options):
    torch.manual_seed(seed)
    model = create_model("attri_mil", 16, n_classes, **{"dim": 9, "att_dim": 6, **options}).double()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return model


def some_bags(n_classes=1, shift=0):
    bags = enumerate(mixed_bags())
    labels = max(2, n_classes)
    return [
        replace(bag, x=bag.x.roll(shift, 1), y=(i + i // labels) % labels, coords=None, frame=None) for i, bag in bags
    ]


def attributes(p, x, classes):
    """Attention logits and instance logits of rows, class by class."""
    h = x + torch.clamp(x @ p["adaptor.0.weight"].T + p["adaptor.0.bias"], min=0) @ p["adaptor.2.weight"].T
    h = h + p["adaptor.2.bias"]
    f, said = [], []
    for c in range(classes):
        name = f"attentions.{c}"
        hidden = torch.tanh(h @ p[f"{name}.project.weight"].T + p[f"{name}.project.bias"])
        hidden = hidden / (1 + torch.exp(-(h @ p[f"{name}.gate.weight"].T + p[f"{name}.gate.bias"])))
        f.append(hidden @ p[f"{name}.score.weight"][0] + p[f"{name}.score.bias"][0])
        said.append(h @ p["classifier.weight"][c] + p["classifier.bias"][c])
    return torch.stack(f, 1), torch.stack(said, 1)


def spatial(scores, graph):
    total, near = 0, graph.dense() > 0
    for c in range(1, scores.shape[1]):
        apart = []
        for n in range(len(scores)):
            around = [n, *near[n].nonzero()[:, 0].tolist()]
            most = max(around, key=lambda m: abs(scores[m, c].item()))
            apart.append(torch.tanh(scores[n, c] - scores[most, c]).abs())
        total = total + sum(apart) / len(apart)
    return total


def ranking(p, bag, scores, queues):
    """The published constraint, class by class, with queues as they are published."""
    total, classes = 0, scores.shape[1]
    for c in range(classes):
        best = scores[:, c].argmax()
        value, has = scores[best, c], bag.y == c
        queues[c][has].append(bag.x[best])
        if not queues[c][not has]:
            continue
        queues[c][not has].rotate(-1)
        f, said = attributes(p, queues[c][not has][-1][None], classes)
        other = (torch.exp(f) * said)[0, c]
        relu = torch.nn.functional.relu
        if has:
            total = total + relu(-value) + relu(other) + (relu(other - value) if c else 0)
        else:
            total = total + relu(value) + (relu(value - other) if c else relu(-other))
    return total / classes


def literal(model, bags, queues, n_classes):
    p, classes = dict(model.named_parameters()), max(2, n_classes)
    logits, scores, spatials, rankings = [], [], [], []
    for bag in bags:
        f, said = attributes(p, bag.x, classes)
        e = torch.exp(f)
        row = (e * said).sum(0) / e.sum(0) + p["bias"]
        logits.append(row[1:] - row[:1] if n_classes == 1 else row)
        scores.append((e * said)[:, 1:] if n_classes == 1 else e * said)
        spatials.append(spatial(e * said, bag.graph))
        rankings.append(ranking(p, bag, e * said, queues) + 0 * row.sum())
    means = [sum(terms) / len(bags) for terms in (spatials, rankings)]
    return torch.stack(logits), torch.cat(scores), *means


@pytest.mark.parametrize("n_classes", [1, 2, 3])
@pytest.mark.parametrize("batched", [True, False])
def test_training_is_its_equations_gradients_included(n_classes, batched):
    """Over four rounds of bags, more than the queues hold, packed or one by one."""
    model = make(n_classes, spatial_weight=0.7, ranking_weight=2.0).train()
    queues = [{kind: deque(maxlen=4) for kind in (False, True)} for _ in range(max(2, n_classes))]
    wanted, seen = list(model.parameters()), set()
    for shift in range(4):
        bags = some_bags(n_classes, shift)
        for group in [bags] if batched else [[bag] for bag in bags]:
            batch = BagBatch.pack(group)
            out = model(batch)
            logits, scores, near, rank = literal(model, group, queues, n_classes)
            truth, _ = total_loss(replace(out, logits=logits, losses={"a": 0.7 * near, "b": 2 * rank}), batch.y)
            ours = total_loss(out, batch.y)[0]
            assert torch.allclose(out.logits, logits, atol=1e-10)
            assert torch.allclose(out.scores, scores, atol=1e-10)
            assert torch.allclose(out.losses["spatial"], 0.7 * near, atol=1e-10)
            assert torch.allclose(out.losses["ranking"], 2 * rank, atol=1e-10)
            mine, true = (torch.autograd.grad(v, wanted, allow_unused=True) for v in (ours, truth))
            for name, a, b in zip(dict(model.named_parameters()), mine, true, strict=True):
                assert torch.allclose(a, b, atol=1e-9, rtol=1e-9), name
            seen.add(round(rank.item(), 6))
            model.after_step()
    assert len(seen) > 3


def test_in_use_nothing_is_remembered_and_no_graph_needed():
    model, bag = make(3).eval(), grid_bag(30, dtype=torch.float64)
    plain = type(bag)(bag.id, bag.x)
    out = model(BagBatch.pack([plain]))
    model.after_step()
    assert out.losses == {}
    assert [name for name, _ in model.named_buffers()] == []
    assert torch.equal(out.logits, model(BagBatch.pack([bag])).logits)


def test_an_attribute_does_not_depend_on_the_rest_of_the_bag():
    model, bag = make(3).eval(), grid_bag(30, dtype=torch.float64)
    alone = torch.cat([model(BagBatch.pack([type(bag)("one", row[None])])).scores for row in bag.x])
    assert torch.allclose(model(BagBatch.pack([bag])).scores, alone, atol=1e-12)


def test_the_salient_neighbour_is_the_farthest_from_zero_and_may_be_oneself():
    scores = torch.tensor([[1.0], [-3.0], [2.0], [0.5], [0.4]])
    found = _salient_neighbour(scores, chain_bag(5).graph)
    assert found[:, 0].tolist() == [-3.0, -3.0, -3.0, 2.0, 0.5]
    assert torch.equal(_salient_neighbour(scores, without_edges(chain_bag(5)).graph), scores)


@pytest.mark.parametrize("first", [False, True])
def test_instances_in_their_places_cost_nothing(first):
    high, low = torch.tensor([2.0]), torch.tensor([-1.0])
    background = torch.tensor([first])
    assert _ranking_terms(high, low, torch.tensor([True]), background).item() == 0
    assert _ranking_terms(low, high, torch.tensor([False]), background).item() == 0
    assert _ranking_terms(low, high, torch.tensor([True]), background).item() == (3.0 if first else 6.0)
    assert _ranking_terms(high, low, torch.tensor([False]), background).item() == (3.0 if first else 5.0)


def test_a_repeated_step_sees_the_same_memory_until_it_is_settled():
    model, batch = make().train(), BagBatch.pack([replace(b, coords=None, frame=None) for b in some_bags()])
    model(batch)
    model.after_step()
    first, second = (model(batch).losses["ranking"].item() for _ in range(2))
    assert first == second
    model.after_step()
    assert {name: len(rows) for name, rows in model.named_buffers()} == {
        f"queue.rows_{column}_{side}": 4 for column in range(2) for side in range(2)
    }


def test_memory_resumes_exactly_and_stays_out_of_finished_weights():
    model, bags = make().train(), some_bags()
    for bag in bags:
        model(BagBatch.pack([bag]))
        model.after_step()
    other = make(seed=1).train()
    other.load_state_dict(model.state_dict())
    again = [m(BagBatch.pack([bags[3]])).losses["ranking"].item() for m in (model, other)]
    assert again[0] == again[1] > 0
    lasting = _lasting_state(model)
    assert not [name for name in lasting if "queue" in name]
    other.load_state_dict(lasting)
    assert [name for name, _ in other.named_buffers()] == []


def test_memory_is_bounded_in_a_loop_that_never_settles():
    model, bag = make().train(), grid_bag(3, dtype=torch.float64)
    for _ in range(3):
        model(BagBatch.pack([bag] * 1500))
    assert len(model.queue.noted) == 4096


def test_without_weights_there_are_no_constraints_and_the_spatial_one_needs_a_graph():
    bag = grid_bag(9, dtype=torch.float64)
    bare = BagBatch.pack([replace(bag, graph=None)])
    assert make(spatial_weight=0.0, ranking_weight=0.0).train()(bare).losses == {}
    with pytest.raises(DataError, match="'graph'"):
        make().train()(bare)


@pytest.mark.parametrize("wrong", [{"spatial_weight": -1.0}, {"ranking_weight": float("inf")}, {"queue": 0}])
def test_options_that_cannot_be_meant_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        create_model("attri_mil", 16, **wrong)

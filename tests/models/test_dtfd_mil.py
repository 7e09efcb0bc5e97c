"""DTFD-MIL against a literal reading of its equations, and the properties its specification lists."""

import numpy as np
import pytest
import torch
from support.bags import chain_bag, grid_bag, reordered
from support.literal_dtfd_mil import Literal, gradients, loss_of, make, make_batch

from smmil.bag import BagBatch
from smmil.errors import ConfigError
from smmil.models import create_model


def probabilities(logits):
    return logits.sigmoid() if logits.shape[1] == 1 else logits.softmax(1)


OPTIONS = [
    {},
    {"pseudo_bags": 1},
    {"pseudo_bags": 7, "residual_blocks": 2},
    {"distill": "maxs"},
    {"distill": "maxs", "k": 3, "score": "instance"},
    {"distill": "maxmins"},
    {"distill": "maxmins", "k": 2, "pseudo_bags": 3},
    {"distill": "mas"},
    {"distill": "mas", "k": 2, "splits": 2},
    {"splits": 3},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("n_classes", [1, 3])
@pytest.mark.parametrize("joint", [False, True])
def test_training_is_the_literal_equations_gradients_included(options, n_classes, joint):
    model, batch = make(n_classes, joint=joint, **options), make_batch(n_classes)
    torch.manual_seed(11)
    out = model.train()(batch)
    torch.manual_seed(11)
    literal = Literal(model)
    logits, tier1 = literal.training(batch)
    scores = torch.cat([literal.scores(x) for x in batch.split(batch.x)])
    assert torch.allclose(out.logits, logits, atol=1e-10)
    assert torch.allclose(out.scores, scores, atol=1e-10)
    assert list(out.losses) == ["tier1"]
    assert torch.allclose(out.losses["tier1"], tier1, atol=1e-10)
    ours = gradients(loss_of(out.logits, batch.y) + out.losses["tier1"], model)
    first, second = gradients(tier1, model), gradients(loss_of(logits, batch.y), model)
    for name, mine in ours.items():
        true = second[name] if name.startswith("tier2") else first[name] + joint * second[name]
        assert torch.allclose(mine, true, atol=1e-9), name


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("n_classes", [1, 2, 3])
def test_use_is_the_literal_equations(options, n_classes):
    model, batch = make(n_classes, **options).eval(), make_batch(n_classes, make_bag=chain_bag)
    out, literal = model(batch.without_labels()), Literal(model)
    assert torch.allclose(probabilities(out.logits), literal.use(batch), atol=1e-10)
    assert torch.allclose(out.scores, torch.cat([literal.scores(x) for x in batch.split(batch.x)]), atol=1e-10)
    assert out.scores.shape[1] == n_classes


def test_two_classes_score_the_difference_of_the_two_weights():
    model, batch = make(2).eval(), make_batch(sizes=(18,))
    w1_minus_w0 = model.classifier.weight[1] - model.classifier.weight[0]
    h = model.embed(batch.x)
    a = model.attention(h).softmax(0)
    assert torch.allclose(model(batch).scores[:, 1], 18 * (a * h) @ w1_minus_w0)
    model.score = "instance"
    assert torch.allclose(model(batch).scores[:, 1], h @ w1_minus_w0)


def test_class_activations_and_the_bias_add_up_to_the_logit_of_a_pseudo_bag():
    """The mean score of a bag that is one pseudo-bag is its tier-1 logit without the bias."""
    model, batch = make(pseudo_bags=1).train(), make_batch(sizes=(18,))
    out = model(batch)
    assert torch.allclose(
        out.losses["tier1"], loss_of(out.scores.mean(0, keepdim=True) + model.classifier.bias, batch.y)
    )


TOKENS = [("afs", 1, 4), ("maxs", 1, 4), ("maxs", 3, 12), ("maxmins", 2, 16), ("mas", 2, 8)]


@pytest.mark.parametrize(("distill", "k", "count"), TOKENS)
def test_tier_two_sees_m_mk_or_2mk_vectors_per_bag(distill, k, count):
    model, seen = make(distill=distill, k=k), []
    model.tier2.register_forward_hook(lambda _, args, out: seen.append((len(args[0]), args[1].tolist())))
    model(make_batch(sizes=(18, 41)))
    model(make_batch(sizes=(2,)))
    assert seen[0] == (2 * count, [0, count, 2 * count])
    assert seen[1][0] == 2 * (2 if distill == "maxmins" else 1)


def test_one_pseudo_bag_leaves_tier_two_nothing_to_weigh():
    model, batch = make(pseudo_bags=1).eval(), make_batch()
    before = model(batch).logits
    with torch.no_grad():
        for p in model.tier2.attention.parameters():
            p.normal_()
    assert torch.allclose(model(batch).logits, before)


PARAMETERS = [(527_110, 512, 2, {}), (789_254, 1024, 2, {}), (526_084, 512, 1, {})]
PARAMETERS += [(527_110, 512, 2, {"distill": "maxmins", "k": 2, "joint": True, "splits": 3})]


@pytest.mark.parametrize(("count", "width", "n_classes", "options"), PARAMETERS)
def test_it_has_the_authors_number_of_parameters(count, width, n_classes, options):
    model = create_model("dtfd_mil", width, n_classes, **options)
    assert sum(p.numel() for p in model.parameters()) == count


def test_the_same_cut_comes_back_in_use_whatever_the_global_seed():
    model, batch = make(splits=2).eval(), make_batch()
    torch.manual_seed(1)
    state, first = torch.get_rng_state(), model(batch).logits
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(model(batch).logits, first)


@pytest.mark.parametrize("options", [{"pseudo_bags": 1}, {"pseudo_bags": 57}])
@pytest.mark.parametrize("distill", ["afs", "maxs", "maxmins", "mas"])
def test_order_does_not_matter_where_the_cut_cannot(options, distill):
    bag, model = grid_bag(57, dtype=torch.float64), make(distill=distill, **options).eval()
    order = torch.randperm(57, generator=torch.Generator().manual_seed(1))
    a, b = model(BagBatch.pack([bag])), model(BagBatch.pack([reordered(bag, order)]))
    assert torch.allclose(a.logits, b.logits)
    assert torch.allclose(a.scores[order], b.scores)


def test_scores_never_depend_on_order_or_cut():
    bag = grid_bag(57, dtype=torch.float64)
    order = torch.randperm(57, generator=torch.Generator().manual_seed(1))
    a = make().eval()(BagBatch.pack([bag]))
    b = make(pseudo_bags=9, splits=2).eval()(BagBatch.pack([reordered(bag, order)]))
    assert torch.allclose(a.scores[order], b.scores)


def test_more_splits_move_less_when_instances_are_reordered():
    def spread(splits):
        model, bag, found = make(splits=splits).eval(), grid_bag(57, dtype=torch.float64), []
        for seed in range(12):
            order = torch.randperm(57, generator=torch.Generator().manual_seed(seed))
            found.append(model(BagBatch.pack([reordered(bag, order)])).logits.item())
        return np.std(found)

    assert spread(16) < 0.6 * spread(1)


def test_scores_of_a_bag_twice_are_the_scores_of_the_bag():
    """The factor N undoes the softmax: duplicated instances keep their scores."""
    model, bag = make().eval(), chain_bag(9, dtype=torch.float64)
    twice = type(bag)("twice", torch.cat([bag.x, bag.x]), y=1)
    a, b = model(BagBatch.pack([bag])).scores, model(BagBatch.pack([twice])).scores
    assert torch.allclose(torch.cat([a, a]), b)


def test_the_score_kind_names_the_score():
    assert make().score_kind == "class activation"
    assert make(score="instance").score_kind == "instance logit"


WRONG = [("distill", "max"), ("score", "attention"), ("pseudo_bags", 0), ("k", 0), ("splits", 1.5), ("k", True)]


@pytest.mark.parametrize(("option", "value"), WRONG)
def test_options_that_cannot_be_meant_are_refused_by_name(option, value):
    with pytest.raises(ConfigError, match=option):
        make(**{option: value})


def test_a_number_of_instances_that_nobody_takes_is_refused():
    with pytest.raises(ConfigError, match="model dtfd_mil: k=3 has no effect with distill=afs; leave it out"):
        create_model("dtfd_mil", 16, k=3)
    assert create_model("dtfd_mil", 16, k=3, distill="mas").k == 3

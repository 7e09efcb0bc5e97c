"""Embeddings: what the head of a model reads of a bag, so that the head gives the logits back."""

import numpy as np
import pytest
import torch
from support.bags import grid_bag
from torch import nn
from torch.nn.functional import linear

import smmil
from smmil.bag import BagBatch
from smmil.errors import ConfigError
from smmil.models import Output, create_model, list_models
from smmil.nn.covariates import WithCovariates
from smmil.predict import embed

SMALLER = {"set_mil": {"size": 8, "depth": 2}, "iib_mil": {"dim": 32, "hidden": 64}}
# Logits that are a head's alone: DSMIL gives the mean of two streams unless it is asked for the second.
HEADS = {"dsmil": {"average": False}, "sm_instance": {"pool": "mean"}}
OTHER_HEADS = ("additive_mil", "attri_mil", "smmile")  # several layers, a difference of classes, a sum of probabilities
BAGS = [grid_bag(n, seed=n) for n in (1, 9, 30)]


def built(name, n_classes, **options):
    torch.manual_seed(0)
    return create_model(name, 16, n_classes, **SMALLER.get(name, {}), **HEADS.get(name, {}), **options)


def logits(model):
    model.eval()
    with torch.no_grad():
        return torch.cat([model(BagBatch.pack([bag])).logits for bag in BAGS])


@pytest.mark.parametrize("name", [name for name in list_models() if name not in OTHER_HEADS])
@pytest.mark.parametrize("n_classes", [1, 3])
def test_the_head_of_an_embedding_gives_the_logits(name, n_classes):
    model = built(name, n_classes)
    vectors = torch.from_numpy(embed(model, BAGS))
    head = model.get_submodule(getattr(model, "head_name", "head"))
    if name == "max_pool":  # every class has an instance of its own
        own = vectors.view(len(BAGS), n_classes, -1)
        found = (own * head.weight).sum(2) + head.bias
    else:
        found = linear(vectors, head.weight, head.bias)
    assert torch.allclose(found, logits(model), atol=1e-4)


def test_several_branches_of_clam_are_concatenated():
    model = built("clam", 3, branches="multi")
    vectors = torch.from_numpy(embed(model, BAGS)).view(len(BAGS), 3, -1)
    found = (vectors * model.head.weight).sum(2) + model.head.bias
    assert torch.allclose(found, logits(model), atol=1e-4)


@pytest.mark.parametrize("n_classes", [1, 3])
def test_attri_mil_embeds_what_each_class_attends_to(n_classes):
    model = built("attri_mil", n_classes)
    classes = max(2, n_classes)
    vectors = torch.from_numpy(embed(model, BAGS)).view(len(BAGS), classes, -1)
    found = (vectors * model.classifier.weight).sum(2) + model.classifier.bias + model.bias
    found = found[:, 1:] - found[:, :1] if n_classes == 1 else found
    assert torch.allclose(found, logits(model), atol=1e-4)


def test_smmile_embeds_what_each_class_attends_to():
    model = built("smmile", 3).eval()
    with torch.no_grad():
        hidden = [model.norm(model.embed(bag.x)).relu() for bag in BAGS]
        sums = [(model.attention(h).softmax(0).T @ h).flatten() for h in hidden]
    assert np.allclose(embed(model, BAGS), torch.stack(sums).numpy(), atol=1e-5)


@pytest.mark.parametrize("centred", [False, True])
def test_additive_mil_embeds_the_sum_of_its_weighed_instances(centred):
    model = built("additive_mil", 1, centred=centred).eval()
    with torch.no_grad():
        hidden = [model.embed(bag.x).relu() for bag in BAGS]
        sums = [(model.attention(h).softmax(0) * h).sum(0) for h in hidden]
    assert np.allclose(embed(model, BAGS), torch.stack(sums).numpy(), atol=1e-5)


def test_pools_embed_the_mean_and_the_chosen_instance():
    for name in ("mean_pool", "max_pool"):
        model = built(name, 1)
        with torch.no_grad():
            hidden = [model.embed(bag.x).relu() for bag in BAGS]
            chosen = [h.mean(0) if name == "mean_pool" else h[model.head(h).argmax()] for h in hidden]
        assert np.allclose(embed(model, BAGS), torch.stack(chosen).numpy(), atol=1e-6)


def test_covariates_are_added_behind_the_vector():
    model = built("abmil", 1)
    wrapped = WithCovariates(model, 2, 1)
    from dataclasses import replace

    known = [replace(bag, covariates=torch.tensor([1.0, 2.0])) for bag in BAGS]
    assert np.array_equal(embed(wrapped, known), embed(model, BAGS))


def test_packed_bags_give_the_vectors_of_single_ones_and_modes_come_back():
    model = built("clam", 1).train()
    together = smmil.embed(model, [BagBatch.pack(BAGS)])
    assert np.allclose(together, smmil.embed(model, BAGS), atol=1e-5)
    assert model.training
    assert not model.head._forward_pre_hooks


class Headless(nn.Module):
    def __init__(self, in_dim=16, n_classes=1):
        super().__init__()
        self.last = nn.Linear(in_dim, n_classes)

    def forward(self, batch):
        scores = self.last(batch.x)
        return Output(torch.stack([rows.mean(0) for rows in batch.split(scores)]), scores)


def test_models_of_others_say_where_their_vector_is():
    with pytest.raises(ConfigError, match=r"Headless: has no layer 'head'.*head_name"):
        embed(Headless(), BAGS)
    named = Headless()
    named.head_name = "last"
    with pytest.raises(ConfigError, match=r"reads 9 rows of 1 bags; add a method bag_vectors"):
        embed(named, BAGS[1:])
    named.bag_vectors = lambda rows, batch: torch.stack([part.mean(0) for part in batch.split(rows)])
    found = linear(torch.from_numpy(embed(named, BAGS)), named.last.weight, named.last.bias)
    assert torch.allclose(found, logits(named), atol=1e-5)

"""Covariates: standardised on training patients alone, words as indicators, what is missing as the mean."""

import copy
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from support.bags import grid_bag

from smmil.bag import BagBatch
from smmil.data import Manifest
from smmil.data.covariates import Covariates
from smmil.data.patients import StudyBags
from smmil.errors import ConfigError, DataError
from smmil.models import create_model, list_models
from smmil.nn.covariates import WithCovariates

SMALLER = {"set_mil": {"size": 8, "depth": 2}, "iib_mil": {"dim": 32, "hidden": 64}}


def table(**columns):
    n = len(next(iter(columns.values())))
    ids = [f"c{k}" for k in range(n)]
    return Manifest(pd.DataFrame({"id": ids, "path": [f"{i}.h5" for i in ids], **columns}), name="study")


def rows(covariates, manifest):
    return np.array([covariates.row(manifest, [i]).numpy() for i in manifest.ids])


def test_numbers_have_mean_0_and_deviation_1_over_the_training_patients():
    """Each patient counts once, however many cases there are."""
    study = table(age=["40", "50", "50", "50", "90", "70"], group=["a", "b", "b", "b", "c", "d"])
    learned = Covariates.learned(study, ["age"], ["c0", "c1", "c2", "c3", "c4"])
    by_hand = (np.array([40, 50, 50, 50, 90, 70]) - 60) / np.std([40, 50, 90])
    assert rows(learned, study)[:, 0] == pytest.approx(by_hand, rel=1e-6)


def test_cases_that_do_not_train_change_nothing():
    ages = ["40", "50", "90", "70", "20"]
    sexes = ["F", "M", "F", "F", "M"]
    training = ["c0", "c1", "c2"]
    one = Covariates.learned(table(age=ages, sex=sexes), ["age", "sex"], training)
    other = table(age=[*ages[:3], "1", "1000"], sex=[*sexes[:3], "M", "other"])
    assert Covariates.learned(other, ["age", "sex"], training) == one


def test_words_become_one_indicator_each_and_an_unknown_one_is_named():
    study = table(site=["lung", "skin", "skin", "bone"])
    learned = Covariates.learned(study, ["site"], study.ids)
    share = np.array([0.25, 0.25, 0.5])
    by_hand = (np.eye(3)[[1, 2, 2, 0]] - share) / np.sqrt(share * (1 - share))
    assert rows(learned, study) == pytest.approx(by_hand, rel=1e-6)
    with pytest.raises(DataError, match=r"new: c0: site: 'liver' was not seen in training, which knows 'bone', 'lung'"):
        learned.need(Manifest(study.table.assign(site=["liver"] * 4), name="new"), study.ids)
    one = Manifest(study.table.assign(site=["lung", "liver", "", "bone"]), name="new")
    assert list(learned.unusable(one, one.ids)) == [one.ids[1]]
    learned.need(one, [one.ids[0], one.ids[2]])  # a word in other cases is no matter


def test_what_is_missing_is_the_mean_and_an_indicator_and_is_said():
    study = table(age=["40", "", "80", "60"])
    learned = Covariates.learned(study, ["age"], study.ids)
    found = rows(learned, study)
    assert found.shape == (4, 2)
    assert found[1, 0] == 0
    assert found[[0, 2, 3], 0] == pytest.approx((np.array([40, 80, 60]) - 60) / np.std([40, 60, 80]), rel=1e-6)
    assert found[:, 1] == pytest.approx((np.array([0, 1, 0, 0]) - 0.25) / np.sqrt(0.25 * 0.75), rel=1e-6)
    assert learned.missing_in_words(study, study.ids) == [
        "covariate age: missing in 1 of 4 cases; the mean of training is used and an indicator says so"
    ]
    later = table(age=["", "60"])
    complete = Covariates.learned(table(age=["40", "80"]), ["age"], ["c0", "c1"])
    assert rows(complete, later).tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize("values", [["5", "5", "5.0"], ["F", "F", "F"], ["", "", ""], ["", "F", "F"]])
def test_columns_that_tell_nothing_apart_are_refused(values):
    with pytest.raises(ConfigError, match="leave it out"):
        Covariates.learned(table(age=values), ["age"], ["c0", "c1", "c2"])


def test_columns_that_are_no_covariates_are_refused():
    names = table(name=[f"Name {k}" for k in range(30)], label=["0"] * 30)
    with pytest.raises(ConfigError, match="names and free text"):
        Covariates.learned(names, ["name"], names.ids)
    with pytest.raises(ConfigError, match="'label' is a column of the study itself"):
        Covariates.learned(names, ["label"], names.ids)
    with pytest.raises(DataError, match=r"'nam', which is no column here.*name"):
        Covariates.learned(names, ["nam"], names.ids)
    with pytest.raises(ConfigError, match="given twice"):
        Covariates.learned(names, ["name", "name"], names.ids)


def test_a_word_among_numbers_is_an_error_where_training_knew_numbers():
    learned = Covariates.learned(table(age=["40", "60"]), ["age"], ["c0", "c1"])
    for text, what in (("sixty", "is no number"), ("inf", "is no finite number")):
        with pytest.raises(DataError, match=f"c1: age: '{text}' {what}"):
            learned.need(table(age=["40", text]), ["c0", "c1"])


def test_facts_come_back_and_damaged_ones_are_refused():
    study = table(age=["40", "", "80"], sex=["F", "M", "F"])
    learned = Covariates.learned(study, ["age", "sex"], study.ids)
    assert Covariates.from_facts(learned.facts(), "file") == learned
    assert learned.width == 4
    for damage in ({"deviation": [0.0, 1.0]}, {"mean": [1.0]}, {"kind": "tensor"}, {"more": 1}):
        broken = [{**learned.facts()[0], **damage}]
        with pytest.raises((DataError, ConfigError), match="file"):
            Covariates.from_facts(broken, "file")


def test_cases_of_one_bag_must_not_contradict_each_other():
    study = table(age=["40", "41", "", "60"], group=["a", "a", "b", "b"], label=["0", "0", "1", "1"])
    learned = Covariates.learned(study, ["age"], study.ids)
    with pytest.raises(DataError, match=r"different age \(c0: '40', c1: '41'\)"):
        learned.row(study, ["c0", "c1"])
    assert torch.equal(learned.row(study, ["c2", "c3"]), learned.row(study, ["c3"]))
    assert StudyBags(study, covariates=learned).members == {i: (i,) for i in study.ids}


def with_covariates(name, q=3, n_classes=1):
    torch.manual_seed(0)
    model = create_model(name, 16, n_classes, **SMALLER.get(name, {}))
    torch.manual_seed(1)
    return WithCovariates(model, q, n_classes), model


def batch_of(bags, q=3):
    known = torch.randn(len(bags), q, generator=torch.Generator().manual_seed(5))
    return BagBatch.pack([replace(b, covariates=c) for b, c in zip(bags, known, strict=True)])


@pytest.mark.parametrize("name", list_models())
def test_training_starts_as_without_covariates_and_their_weights_learn(name):
    wrapped, model = with_covariates(name)
    batch = batch_of([grid_bag(9, seed=1, y=1), grid_bag(12, seed=2, y=0)])
    torch.manual_seed(3)
    plain = copy.deepcopy(model).train()(batch)
    torch.manual_seed(3)
    found = wrapped.train()(batch)
    assert torch.equal(found.logits, plain.logits)
    assert torch.equal(found.scores, plain.scores)
    found.logits.sum().backward()
    assert torch.allclose(wrapped.covariates.grad, batch.covariates.sum(0)[None])


def test_the_sum_is_a_head_on_vector_and_covariates_together():
    wrapped, model = with_covariates("abmil", n_classes=2)
    torch.nn.init.normal_(wrapped.covariates)
    batch = batch_of([grid_bag(9, seed=1), grid_bag(12, seed=2)])
    seen = []
    model.head.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    found = wrapped.eval()(batch).logits
    together = torch.nn.Linear(512 + 3, 2)
    together.weight.data = torch.cat([model.head.weight, wrapped.covariates], 1).data
    together.bias.data = model.head.bias.data
    assert torch.allclose(found, together(torch.cat([seen[0], batch.covariates], 1)), atol=1e-5)


def test_hooks_of_the_model_are_reached_and_set_through_the_wrapper():
    dtfd, _ = with_covariates("dtfd_mil")
    assert (dtfd.score_kind, dtfd.clip_norm_per_module) == ("class activation", 5.0)
    iib, inner = with_covariates("iib_mil")
    iib.train()(batch_of([grid_bag(9, seed=1, y=1)]))
    assert inner.memory.noted
    iib.after_step()
    assert not inner.memory.noted
    assert all(any(key.startswith(p) for key in iib.state_dict()) for p in iib.training_state[1:])
    prob, inner = with_covariates("prob_sm_ap")
    prob.gives_uncertainty = False
    assert inner.gives_uncertainty is False
    assert not hasattr(prob, "parameter_groups")
    assert with_covariates("dsmil")[0].bag_weight == 0.5


def test_parameter_groups_of_a_model_gain_the_weights_of_the_covariates():
    _, model = with_covariates("abmil")
    model.parameter_groups = lambda: [{"params": list(model.parameters()), "lr_scale": 0.1}]
    wrapped = WithCovariates(model, 2, 1)
    grouped = [p for group in wrapped.parameter_groups() for p in group["params"]]
    assert {id(p) for p in grouped} == {id(p) for p in wrapped.parameters()}


def test_covariates_that_are_missing_or_others_are_refused():
    wrapped, _ = with_covariates("abmil")
    with pytest.raises(DataError, match=r"needs 'covariates', which is missing in grid_9_0"):
        wrapped(BagBatch.pack([grid_bag(9)]))
    with pytest.raises(DataError, match="2 covariates, but the model reads 3"):
        wrapped(batch_of([grid_bag(9)], q=2))

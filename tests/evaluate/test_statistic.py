"""Metrics by name: the same numbers as the functions, also when cases count several times."""

from dataclasses import replace

import numpy as np
import pytest
from support.metric_cases import bags, random_cases

from smmil.errors import ConfigError
from smmil.evaluate import METRIC_NAMES, bag_metrics, energies, froc, instance_metrics
from smmil.evaluate.bootstrap import Settings, statistic
from smmil.evaluate.metrics import METRICS, _full_name
from smmil.prediction import Prediction

_DOUBTS = np.random.default_rng(3)
SOME = [
    replace(p, uncertainty=_DOUBTS.integers(1, 4, p.n) / 2, meta={**p.meta, "score_kind": "instance logit"})
    for p in random_cases(24, levels=2)
]


def by_the_function(predictions, name, pool):
    part, _, key = name.partition("_")
    if name == "froc":
        return froc(predictions, pool=pool)["froc"]
    if part == "bag":
        return bag_metrics(predictions, 0.4)[key]
    return energies(predictions)[key] if part == "energy" else instance_metrics(predictions, 0.4, pool)[key]


CLASSES = [name for name in METRIC_NAMES if "class" in METRICS[name].targets]  # the others: test_targets.py
QUESTIONS = [(name, "all") for name in CLASSES]
QUESTIONS += [(name, "positive_bags") for name in (*(n for n in METRIC_NAMES if n.startswith("inst_")), "froc")]
QUESTIONS += [(name, "per_bag") for name in METRIC_NAMES if name.startswith("inst_")]


@pytest.mark.parametrize(("name", "pool"), QUESTIONS)
def test_every_metric_equals_its_function_on_repeated_cases(name, pool):
    measured = statistic(SOME, name, Settings(0.4, pool))
    assert measured.estimate == pytest.approx(by_the_function(SOME, name, pool), rel=1e-12)
    rng = np.random.default_rng(1)
    for _ in range(5):
        weights = rng.integers(0, 4, len(measured.cases))
        repeated = [p for p, times in zip(measured.cases, weights, strict=True) for _ in range(times)]
        assert measured.value(weights) == pytest.approx(by_the_function(repeated, name, pool), rel=1e-12, nan_ok=True)


@pytest.mark.parametrize("name", [n for n in CLASSES if n.startswith("bag_") and "area" not in n])
def test_every_bag_metric_of_four_classes_equals_its_function(name):
    rng = np.random.default_rng(0)
    some = bags(rng.dirichlet(np.ones(4), 40), rng.integers(0, 4, 40))
    measured = statistic(some, name)
    weights = rng.integers(0, 3, 40)
    repeated = [p for p, times in zip(some, weights, strict=True) for _ in range(times)]
    assert measured.estimate == pytest.approx(bag_metrics(some)[name[4:]])
    assert measured.value(weights) == pytest.approx(bag_metrics(repeated)[name[4:]])


@pytest.mark.parametrize(("name", "pool"), QUESTIONS)
def test_the_order_of_the_cases_does_not_change_a_single_bit(name, pool):
    order = np.random.default_rng(2).permutation(len(SOME))
    turned = [SOME[i] for i in order]
    assert statistic(SOME, name, Settings(0.4, pool)).estimate == statistic(turned, name, Settings(0.4, pool)).estimate
    assert by_the_function(SOME, name, pool) == by_the_function(turned, name, pool)


def test_auroc_is_the_same_with_and_without_the_table_of_pairs(monkeypatch):
    weights = np.random.default_rng(0).integers(0, 4, 24)
    tables = [statistic(SOME, name) for name in ("bag_auroc", "inst_auroc")]
    monkeypatch.setattr("smmil.evaluate.bootstrap._FEW_CASES", 0)
    for fast, slow in zip(tables, (statistic(SOME, name) for name in ("bag_auroc", "inst_auroc")), strict=True):
        drawn = weights[: len(fast.cases)]
        assert fast.value(drawn) == slow.value(drawn)
        assert fast.estimate == slow.estimate


def test_only_cases_that_can_be_judged_take_part():
    assert all(p.y is not None for p in statistic(SOME, "bag_auroc").cases)
    assert all(p.y_inst is not None for p in statistic(SOME, "inst_auroc").cases)
    assert {p.y for p in statistic(SOME, "inst_auroc", Settings(pool="positive_bags")).cases} == {1}


def test_names_have_short_and_long_forms_and_neighbours():
    assert _full_name("auroc") == "bag_auroc"
    assert _full_name("instance_f1") == "inst_f1"
    with pytest.raises(ConfigError, match=r"did you mean .*inst_auroc"):
        _full_name("inst_aurok")


def test_a_metric_at_a_threshold_asks_for_it():
    with pytest.raises(ConfigError, match="inst_f1: no threshold given"):
        statistic(SOME, "inst_f1")


def test_any_function_of_predictions_is_a_metric():
    def largest_case(predictions):
        return max((p.n for p in predictions), default=float("nan"))

    measured = statistic(SOME, largest_case)
    assert (measured.name, measured.estimate) == ("largest_case", 14)
    assert np.isnan(measured.value(np.zeros(len(SOME), dtype=int)))


def test_nothing_to_judge_is_nan_for_every_metric():
    for name in CLASSES:
        for nothing in ([], [Prediction("a", [0.5], [1.0])]):
            assert np.isnan(statistic(nothing, name, Settings(0.5)).estimate)

"""Mean ranks, worked out by hand."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import rankdata

from smmil.errors import DataError
from smmil.evaluate import mean_ranks


def test_ranks_by_hand_with_a_tie():
    found = mean_ranks({"a": {"x": 0.9, "y": 0.5}, "b": {"x": 0.8, "y": 0.7}, "c": {"x": 0.8, "y": 0.6}})
    assert found["a"] == pytest.approx((2.0, np.sqrt(2)))
    assert found["b"] == pytest.approx((1.75, np.std([2.5, 1], ddof=1)))
    assert found["c"] == pytest.approx((2.25, np.std([2.5, 2], ddof=1)))


def test_all_forms_of_the_table_give_the_same_ranks():
    rows = {"a": [0.9, 0.5, 0.1], "b": [0.8, 0.7, 0.1], "c": [0.8, 0.6, 0.3]}
    table = pd.DataFrame.from_dict(rows, orient="index", columns=["x", "y", "z"])
    assert mean_ranks(rows) == mean_ranks(table) == mean_ranks(table.to_dict(orient="index"))


def test_ranks_agree_with_scipy_on_tables_full_of_ties():
    rng = np.random.default_rng(0)
    table = rng.integers(0, 4, (7, 20)).astype(float)
    expected = rankdata(-table, axis=0)
    for row, (mean, std) in enumerate(mean_ranks(dict(enumerate(table.tolist()))).values()):
        assert mean == pytest.approx(expected[row].mean())
        assert std == pytest.approx(expected[row].std(ddof=1))


def test_values_are_ranked_as_given_not_rounded():
    assert mean_ranks({"a": [0.80001], "b": [0.80002]})["b"][0] == 1


def test_one_column_has_no_deviation():
    assert np.isnan(mean_ranks({"a": [1.0], "b": [2.0]})["a"][1])


def test_a_hole_in_the_table_is_named():
    with pytest.raises(DataError, match="b has no value for y"):
        mean_ranks({"a": {"x": 1.0, "y": 2.0}, "b": {"x": 1.0}})
    with pytest.raises(DataError, match="empty"):
        mean_ranks({})


def test_a_published_table_gives_its_published_ranks():
    # instance AUROC and F1 on three data sets, five models without global interactions; printed to three digits
    scores = {
        "ABMIL": [0.819, 0.766, 0.768, 0.602, 0.806, 0.486],
        "CLAM": [0.849, 0.821, 0.727, 0.568, 0.523, 0.076],
        "DSMIL": [0.760, 0.654, 0.765, 0.598, 0.554, 0.180],
        "DTFD-MIL": [0.884, 0.742, 0.795, 0.637, 0.747, 0.453],
        "SmAP": [0.960, 0.840, 0.799, 0.635, 0.798, 0.477],
    }
    published = {"ABMIL": (2.5, 1.225), "CLAM": (4.167, 1.329), "DSMIL": (4.333, 0.516), "DTFD-MIL": (2.5, 1.049)}
    found = mean_ranks(scores)
    for model, expected in {**published, "SmAP": (1.5, 0.548)}.items():
        assert found[model] == pytest.approx(expected, abs=5e-4)

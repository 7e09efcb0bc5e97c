"""Rows to chosen learning rates, means and deviations: values computed by hand."""

import math

import pandas as pd
import pytest

from smmil.experiments.results import _aggregate, _choose_learning_rates, _chosen_rows, _results_table, _write_results


def row(lr, fold, auroc, loss=0.5, test=0.0, variant="A", set_="s"):
    facts = {"run": f"{variant}{lr}{fold}", "set": set_, "dataset": set_, "extractor": "", "group": "no_global"}
    numbers = {"val_auroc": auroc, "val_loss": loss, "bag_auroc": test}
    return {**facts, "family": "local", "variant": variant, "lr": lr, "seed": 0, "fold": fold, **numbers}


def test_the_rate_with_the_higher_mean_validation_auroc_is_chosen():
    table = _results_table([row(1e-4, 0, 0.9), row(1e-4, 1, 0.5), row(1e-5, 0, 0.8), row(1e-5, 1, 0.7)])
    assert _choose_learning_rates(table) == {("s", "A"): 1e-5}  # 0.70 against 0.75, although one fold is highest


def test_a_tie_goes_to_the_lower_loss():
    table = _results_table([row(1e-4, 0, 0.8, 0.6), row(1e-5, 0, 0.8, 0.4)])
    assert _choose_learning_rates(table)["s", "A"] == 1e-5


def test_test_results_do_not_choose():
    table = _results_table([row(1e-4, 0, 0.8, test=0.1), row(1e-5, 0, 0.7, test=0.99)])
    assert _choose_learning_rates(table)["s", "A"] == 1e-4


def test_a_rate_that_lacks_folds_does_not_compete():
    table = _results_table([row(1e-4, 0, 0.99), row(1e-5, 0, 0.6), row(1e-5, 1, 0.6)])
    assert _choose_learning_rates(table)["s", "A"] == 1e-5


def test_rates_with_as_many_runs_are_compared_over_the_folds_both_have():
    """Fold 1 is easy and fold 2 hard: over all its folds 1e-4 looks better, on the common fold 0 it is worse."""
    rows = [row(1e-4, 0, 0.7), row(1e-4, 1, 0.99), row(1e-5, 0, 0.8), row(1e-5, 2, 0.6)]
    assert _choose_learning_rates(_results_table(rows))["s", "A"] == 1e-5


def test_rates_without_a_fold_in_common_are_not_compared():
    table = _results_table([row(1e-4, 0, 0.6), row(1e-5, 1, 0.9)])
    assert _choose_learning_rates(table)["s", "A"] == 1e-4  # the larger, whatever their folds gave


def test_no_run_at_all_is_no_rate():
    nothing = _results_table([row(1e-4, 0, 0.6)]).iloc[:0]
    assert _choose_learning_rates(nothing) == {}
    assert list(_chosen_rows(nothing).columns) == list(nothing.columns)


def test_an_auroc_that_does_not_exist_is_never_the_best():
    table = _results_table([row(1e-4, 0, math.nan), row(1e-5, 0, 0.1)])
    assert _choose_learning_rates(table)["s", "A"] == 1e-5


def test_every_variant_and_data_set_chooses_for_itself():
    rows = [row(1e-4, 0, 0.9), row(1e-5, 0, 0.8), row(1e-4, 0, 0.1, variant="B"), row(1e-5, 0, 0.8, variant="B")]
    assert _choose_learning_rates(_results_table(rows)) == {("s", "A"): 1e-4, ("s", "B"): 1e-5}


@pytest.mark.parametrize(("ddof", "std"), [(1, 0.1), (0, 0.1 * math.sqrt(2 / 3))])
def test_mean_and_deviation_by_hand(ddof, std):
    table = _results_table([row(1e-4, f, 0.9, test=t) for f, t in enumerate((0.7, 0.8, 0.9))])
    found = _aggregate(table, ["bag_auroc"], ddof).iloc[0]
    assert found["mean"] == pytest.approx(0.8)
    assert found["std"] == pytest.approx(std)
    assert (found["n"], found["lr"], found["model"]) == (3, 1e-4, "A")


def test_a_metric_without_a_value_in_some_runs_has_no_mean_and_says_why():
    table = _results_table([row(1e-4, f, 0.9, test=t) for f, t in enumerate((0.8, math.nan, 0.9))])
    found = _aggregate(table, ["bag_auroc", "val_loss"]).set_index("metric")
    assert math.isnan(found["mean"]["bag_auroc"])
    assert dict(found["state"]) == {"bag_auroc": "undefined in 1 of 3 runs", "val_loss": ""}
    one = _aggregate(_results_table([row(1e-4, 0, 0.9, test=math.nan)]), ["bag_auroc"])
    assert list(one["state"]) == ["undefined in 1 of 1 run"]


def test_only_runs_of_the_chosen_rate_are_averaged():
    table = _results_table([row(1e-4, 0, 0.9, test=0.6), row(1e-5, 0, 0.1, test=1.0)])
    assert list(_chosen_rows(table)["bag_auroc"]) == [0.6]


def test_the_order_in_which_runs_ended_does_not_change_a_byte(tmp_path):
    rows = [row(lr, fold, 0.5, variant=v) for v in "AB" for lr in (1e-4, 1e-5) for fold in range(3)]
    for name, listed in (("one", rows), ("two", rows[::-1])):
        _write_results(_results_table(listed), tmp_path / name)
    for kind in ("csv", "parquet"):
        assert (tmp_path / f"one/results.{kind}").read_bytes() == (tmp_path / f"two/results.{kind}").read_bytes()
    assert pd.read_parquet(tmp_path / "one/results.parquet").equals(pd.read_csv(tmp_path / "one/results.csv").astype(
        pd.read_parquet(tmp_path / "one/results.parquet").dtypes.to_dict()).fillna({"extractor": ""}))  # fmt: skip

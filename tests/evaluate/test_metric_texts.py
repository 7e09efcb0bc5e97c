"""Every metric has a name, a direction and one line that says what it is."""

from smmil.evaluate import METRIC_NAMES
from smmil.evaluate.metrics import direction, explained, metric_heading, metric_name


def test_every_metric_has_a_name_of_its_own_and_a_line():
    names = [metric_name(metric) for metric in METRIC_NAMES]
    assert len(set(names)) == len(METRIC_NAMES)
    lines = explained(METRIC_NAMES)
    assert all(any(line.startswith(f"{name}: ") for line in lines) for name in names)


def test_less_is_better_for_errors_and_ranks_and_neither_for_energies():
    less = {metric for metric in (*METRIC_NAMES, "inst_rank", "bag_rank") if direction(metric) == -1}
    assert less == {
        "bag_area_to_read_positive",
        "bag_area_to_read_negative",
        "bag_brier",
        "bag_ece",
        "bag_integrated_brier",
        "bag_level_mae",
        "bag_loss",
        "bag_mae",
        "bag_rmse",
        "inst_brier",
        "inst_ece",
        "inst_risk_coverage",
        "inst_risk_coverage_distance",
        "inst_rank",
        "bag_rank",
    }
    assert {m for m in METRIC_NAMES if direction(m) == 0} == {m for m in METRIC_NAMES if m.startswith("energy")}


def test_a_pool_is_named_in_a_line_of_its_own_and_explained_once():
    assert metric_heading("inst_auroc@positive_bags") == ["instance AUROC ↑", "in positive bags"]
    assert metric_heading("bag_ece") == ["bag ECE ↓"]
    lines = explained(["inst_auroc", "inst_auroc@per_bag", "inst_f1@per_bag"])
    assert sum(line.startswith("instance AUROC: ") for line in lines) == 1
    assert sum(line.startswith("… per bag: ") for line in lines) == 1


def test_arrows_are_explained_only_where_there_are_some():
    assert "↑" in explained(["inst_auroc"])[-1]
    assert "↑" not in explained(["energy_mean"])[-1]
    assert "docs/evaluate.md" in explained(["energy_mean"])[-1]

"""Paired tests of means over folds: against the single-fold tools, and by construction."""

import numpy as np
import pandas as pd
import pytest

from smmil.errors import DataError
from smmil.evaluate import bootstrap_ci, compare, holm
from smmil.experiments.certainty import comparisons, comparisons_markdown, resampled_mean
from smmil.prediction import Prediction


def cases(seed, gain, n=40):
    rng = np.random.default_rng(seed)
    found = []
    for number in range(n):
        y = number % 2
        said = 1 / (1 + np.exp(-(gain * (2 * y - 1) + rng.normal())))
        meta = {"patient": f"p{number // 2}"}
        found.append(Prediction(f"c{number:02d}", [said], [0.0, 1.0], y=y, y_inst=[0, y], meta=meta))
    return found


def test_with_one_fold_it_is_the_ordinary_bootstrap():
    mine, other = cases(0, 1.0), cases(1, 0.3)
    found = resampled_mean([mine], "bag_auroc", [None], n=300)
    plain = bootstrap_ci(mine, "bag_auroc", n=300)
    assert found.value == plain["value"]
    assert np.nanstd(found.drawn, ddof=1) == pytest.approx(plain["std"])
    gap = found.minus(resampled_mean([other], "bag_auroc", [None], n=300))
    assert gap.value == pytest.approx(compare(mine, other, "bag_auroc", n=300)["difference"])


def test_the_value_is_the_mean_over_folds():
    folds = [cases(seed, 0.5) for seed in range(3)]
    singles = [bootstrap_ci(fold, "bag_auroc", n=10)["value"] for fold in folds]
    assert resampled_mean(folds, "bag_auroc", [None] * 3, n=10).value == pytest.approx(np.mean(singles))


def test_folds_with_different_test_cases_are_refused():
    with pytest.raises(DataError, match="different cases"):
        resampled_mean([cases(0, 1.0), cases(0, 1.0, n=30)], "bag_auroc", [None, None], n=10)


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """Three variants on disk: a strong one, a weak one, and a copy of the weak one."""
    out, rows = tmp_path_factory.mktemp("judged"), []
    for name, gain in (("strong", 3.0), ("weak", 0.0), ("copy", 0.0)):
        for fold in range(2):
            key = f"{name}{fold}"
            for p in cases(fold, gain):
                p.save(out / "runs" / key / "test" / f"{p.id}.npz")
            facts = {"run": key, "set": "s", "dataset": "s", "extractor": "", "variant": name, "lr": 1e-4, "seed": 0}
            rows.append({**facts, "fold": fold, "val_auroc": 0.5, "val_loss": 0.5, "threshold": 0.5})
    return pd.DataFrame(rows), out


def test_a_real_difference_is_found_and_a_copy_does_not_differ(judged):
    rows = comparisons(*judged, ["bag_auroc"], "weak", n=400).set_index("variant")
    assert rows["difference"]["strong"] > 0.2
    assert rows["p_holm"]["strong"] < 0.02
    assert rows["difference_low"]["strong"] > 0
    assert rows["difference"]["copy"] == 0
    assert rows["p"]["copy"] == 1
    assert np.isnan(rows["p"]["weak"])
    assert list(rows["p_holm"][["strong", "copy"]]) == holm(list(rows["p"][["strong", "copy"]]))


def test_the_comparisons_can_be_read(judged):
    text = comparisons_markdown(comparisons(*judged, ["bag_auroc"], "weak", n=50), "Compared with weak")
    assert "| s | bag_auroc | weak |" in text
    assert "too few patients" not in text
    assert text.count("–") >= 3


def test_few_patients_are_mentioned_and_names_do_not_break_the_table(judged):
    rows = comparisons(*judged, ["bag_auroc"], "weak", n=50).assign(patients=4, variant="a|b")
    text = comparisons_markdown(rows, "Compared with weak")
    assert "too few patients for intervals and p values to be relied on: s (4)" in text
    assert "| a\\|b |" in text

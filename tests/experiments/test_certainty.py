"""Paired tests of means over folds: against the single-fold tools, and by construction."""

import numpy as np
import pandas as pd
import pytest

from smmil.errors import DataError
from smmil.evaluate import bootstrap_ci, compare, holm
from smmil.experiments.certainty import comparisons, pair_differences, resampled_mean
from smmil.experiments.certainty_page import comparisons_markdown, p_text, pairs_markdown
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
            facts |= {"group": "global" if name == "copy" else "no_global", "family": "local"}
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


def read(rows, resamples=50):
    return comparisons_markdown(rows, "Compared with weak", "weak", resamples)


def test_the_comparisons_can_be_read(judged):
    text = read(comparisons(*judged, ["bag_auroc", "inst_auroc@positive_bags"], "weak", n=50))
    assert "### s · bag AUROC" in text
    assert "### s · instance AUROC in positive bags" in text
    assert "| weak (reference) | local |" in text
    assert "- bag AUROC: chance that a positive bag" in text
    assert "too few patients" not in text
    assert "‡" not in text


def test_the_reference_comes_first_and_the_others_by_group_in_the_order_of_the_study(judged):
    rows = comparisons(*judged, ["bag_auroc"], "weak", n=50, order=["copy", "strong", "weak"])
    assert list(rows["variant"]) == ["weak", "strong", "copy"]  # copy is of the other group
    text = read(rows)
    assert (
        text.index("*without global interactions*")
        < text.index("| strong")
        < text.index("*with global")
        < text.index("| copy")
    )


def test_a_difference_is_taken_over_the_folds_that_both_have_and_marked(judged):
    results, out = judged
    only_first = results[~((results["variant"] == "strong") & (results["fold"] == 1))]
    rows = comparisons(only_first, out, ["bag_auroc"], "weak", n=50).set_index("variant")
    first = results[results["fold"] == 0]
    alone = comparisons(first, out, ["bag_auroc"], "weak", n=50).set_index("variant")
    assert rows["difference"]["strong"] == alone["difference"]["strong"]
    assert rows["value"]["weak"] != alone["value"]["weak"]  # its own value still rests on both folds
    text = read(rows.reset_index())
    assert "]‡ |" in text
    assert "s · strong (1 of 2)" in text


def test_a_p_value_is_never_shown_as_zero():
    assert [p_text(p) for p in (1e-9, 0.0009, 0.001, 0.02, 1.0, float("nan"))] == [
        "<0.001", "<0.001", "0.001", "0.020", "1.000", "–"]  # fmt: skip


def test_the_least_p_that_the_resamples_can_show_is_told(judged):
    assert "the least p that 1999 resamples can show is 0.001" in read(
        comparisons(*judged, ["bag_auroc"], "weak", n=50), 1999
    )


def test_few_patients_are_mentioned_and_names_do_not_break_the_table(judged):
    rows = comparisons(*judged, ["bag_auroc"], "weak", n=50).assign(patients=4, variant="a|b")
    text = read(rows)
    assert "too few patients for intervals and p values to be relied on: s (4)" in text
    assert "| a\\|b |" in text


def test_a_pair_is_tested_as_against_a_reference(judged):
    results, out = judged
    pairs = pair_differences(results, out, ["bag_auroc"], {"strong": "weak"}, n=200)
    whole = comparisons(results, out, ["bag_auroc"], "weak", n=200)
    mine, same = pairs.iloc[0], whole[whole["variant"] == "strong"].iloc[0]
    assert len(pairs) == 1
    for key in ("value", "difference", "difference_low", "difference_high", "p"):
        assert mine[key] == same[key]
    assert mine["p_holm"] == mine["p"] < same["p_holm"]  # one comparison instead of two
    assert mine["reference_value"] == whole[whole["variant"] == "weak"].iloc[0]["value"]


def test_equal_partners_differ_by_nothing_and_a_pair_without_partner_is_left_out(judged):
    results, out = judged
    pairs = pair_differences(results, out, ["bag_auroc"], {"copy": "weak", "strong": "missing"}, n=50)
    assert list(pairs["variant"]) == ["copy"]
    assert pairs["difference"].tolist() == [0.0]
    page = pairs_markdown(pairs, "Each beside its partner", 50)
    assert "| copy | 0." in page
    assert "| weak | 0." in page
    assert "strong" not in page

"""Paired tests of means over folds: against the single-fold tools, and by construction."""

import numpy as np
import pandas as pd
import pytest

from smmil.errors import DataError
from smmil.evaluate import bootstrap_ci, compare, holm
from smmil.evaluate.resampling import p_text
from smmil.experiments.variant_tests import _comparisons, _pair_differences, _resampled_mean
from smmil.experiments.writing import _comparisons_markdown, _for_spreadsheets, _pairs_markdown
from smmil.prediction import Prediction


def cases(seed, gain, n=40, named=True):
    rng = np.random.default_rng(seed)
    found = []
    for number in range(n):
        y = number % 2
        said = 1 / (1 + np.exp(-(gain * (2 * y - 1) + rng.normal())))
        meta = {"patient": f"p{number // 2}"} if named else {}
        found.append(Prediction(f"c{number:02d}", [said], [0.0, 1.0], y=y, y_inst=[0, y], meta=meta))
    return found


def test_with_one_fold_it_is_the_ordinary_bootstrap():
    mine, other = cases(0, 1.0), cases(1, 0.3)
    found = _resampled_mean([mine], "bag_auroc", [None], n=300)
    plain = bootstrap_ci(mine, "bag_auroc", n=300)
    assert found.value == plain["value"]
    assert np.nanstd(found.drawn, ddof=1) == pytest.approx(plain["std"])
    gap = found.minus(_resampled_mean([other], "bag_auroc", [None], n=300))
    assert gap.value == pytest.approx(compare(mine, other, "bag_auroc", n=300)["difference"])


def test_the_value_is_the_mean_over_folds():
    folds = [cases(seed, 0.5) for seed in range(3)]
    singles = [bootstrap_ci(fold, "bag_auroc", n=10)["value"] for fold in folds]
    assert _resampled_mean(folds, "bag_auroc", [None] * 3, n=10).value == pytest.approx(np.mean(singles))


def test_folds_with_different_test_cases_are_refused():
    with pytest.raises(DataError, match="different cases"):
        _resampled_mean([cases(0, 1.0), cases(0, 1.0, n=30)], "bag_auroc", [None, None], n=10)


def test_models_tested_on_different_cases_are_not_subtracted():
    mine, other = (_resampled_mean([cases(0, 1.0, n=n)], "bag_auroc", [None], n=10) for n in (40, 30))
    with pytest.raises(DataError, match="tested on different cases"):
        mine.minus(other)


def saved(out, variants, folds=2):
    """Rows of results of {variant: fold -> test cases}, and the cases on disk."""
    rows = []
    for name, make in variants.items():
        for fold in range(folds):
            key = f"{name}{fold}"
            for p in make(fold):
                p.save(out / "runs" / key / "test" / f"{p.id}.npz")
            facts = {"run": key, "set": "s", "dataset": "s", "extractor": "", "variant": name, "lr": 1e-4, "seed": 0}
            facts |= {"group": "global" if name == "copy" else "no_global", "family": "local"}
            rows.append({**facts, "fold": fold, "val_auroc": 0.5, "val_loss": 0.5, "threshold": 0.5})
    return pd.DataFrame(rows), out


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """Three variants on disk: a strong one, a weak one, and a copy of the weak one."""
    gains = {"strong": 3.0, "weak": 0.0, "copy": 0.0}
    makers = {name: lambda fold, gain=gain: cases(fold, gain) for name, gain in gains.items()}
    return saved(tmp_path_factory.mktemp("judged"), makers)


def without(results, variant, *folds):
    return results[~((results["variant"] == variant) & results["fold"].isin(folds))]


def test_a_real_difference_is_found_and_a_copy_does_not_differ(judged):
    rows = _comparisons(*judged, ["bag_auroc"], "weak", n=400).set_index("variant")
    assert rows["difference"]["strong"] > 0.2
    assert rows["p_holm"]["strong"] < 0.02
    assert rows["difference_low"]["strong"] > 0
    assert rows["difference"]["copy"] == 0
    assert rows["p"]["copy"] == 1
    assert np.isnan(rows["p"]["weak"])
    assert list(rows["p_holm"][["strong", "copy"]]) == holm(list(rows["p"][["strong", "copy"]]))


def read(rows, resamples=50):
    return _comparisons_markdown(rows, "Compared with weak", "weak", resamples)


def test_the_comparisons_can_be_read(judged):
    text = read(_comparisons(*judged, ["bag_auroc", "inst_auroc@positive_bags"], "weak", n=50))
    assert "### s · bag AUROC" in text
    assert "### s · instance AUROC in positive bags" in text
    assert "| weak (reference) | local |" in text
    assert "- bag AUROC: chance that a positive bag" in text
    assert "too few patients" not in text
    assert "‡" not in text


def test_the_reference_comes_first_and_the_others_by_group_in_the_order_of_the_study(judged):
    rows = _comparisons(*judged, ["bag_auroc"], "weak", n=50, order=["copy", "strong", "weak"])
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
    rows = _comparisons(only_first, out, ["bag_auroc"], "weak", n=50).set_index("variant")
    first = results[results["fold"] == 0]
    alone = _comparisons(first, out, ["bag_auroc"], "weak", n=50).set_index("variant")
    assert rows["difference"]["strong"] == alone["difference"]["strong"]
    assert rows["value"]["weak"] != alone["value"]["weak"]  # its own value still rests on both folds
    text = read(rows.reset_index())
    assert "]‡ |" in text
    assert "s · strong (1 of 2)" in text


def test_a_p_value_is_never_shown_as_zero():
    assert [p_text(p) for p in (1e-9, 0.0009, 0.001, 0.02, 1.0, float("nan"))] == [
        "<0.001", "<0.001", "0.001", "0.020", "1.000", "–"]  # fmt: skip


def test_a_few_patients_carry_neither_interval_nor_p_and_the_cells_say_so(tmp_path):
    makers = {name: lambda fold, gain=gain: cases(fold, gain, n=12) for name, gain in (("a|b", 3.0), ("weak", 0.0))}
    rows = _comparisons(*saved(tmp_path, makers), ["bag_auroc"], "weak", n=50)
    text, table = read(rows), _for_spreadsheets(rows)
    assert "[– (6 patients)] | – (6 patients) | – (6 patients) |" in text
    assert "| a\\|b |" in text
    row = next(line for line in table.splitlines() if line.startswith("s,bag_auroc,a|b"))
    assert row.count("– (6 patients)") == 6  # two intervals, p and p by Holm
    assert "shortage" not in table


def test_one_fold_gives_the_numbers_of_evaluate(judged):
    results, out = judged
    first = results[results["fold"] == 0]
    rows = _comparisons(first, out, ["bag_auroc", "inst_auroc@positive_bags"], "weak", n=300)
    row = rows[(rows["metric"] == "bag_auroc") & (rows["variant"] == "strong")].iloc[0]
    found, alone = compare(cases(0, 3.0), cases(0, 0.0), n=300), bootstrap_ci(cases(0, 3.0), n=300)
    keys = ["value", "low", "high", "method"]
    np.testing.assert_equal(list(row[keys]), [alone[key] for key in keys])
    ours = [row[f"difference{k}"] for k in ("", "_low", "_high", "_method")]
    assert ours == [found[k] for k in ("difference", "low", "high", "method")]
    assert row["p"] == found["p"]
    assert row["units"] == found["n_units"]


def test_p_and_interval_of_a_mean_over_folds_never_contradict(tmp_path):
    gains = {"ref": 0.8, **{f"v{i}": 0.2 + 0.5 * i for i in range(4)}}
    makers = {v: lambda fold, v=v, g=g: cases(hash_of(v, fold), g, n=24) for v, g in gains.items()}
    rows = _comparisons(*saved(tmp_path, makers), ["bag_auroc", "bag_f1"], "ref", n=200)
    rows = rows[rows["p"].notna()]
    excluded = (rows["difference_low"] > 0) | (rows["difference_high"] < 0)
    assert ((rows["p"] < 0.05) == excluded).all()
    assert 0 < excluded.sum() < len(rows)


def hash_of(name, fold):
    return sum(map(ord, name)) * 10 + fold


def test_equal_models_whose_fold_means_are_rounded_otherwise_do_not_differ():
    # the mean of the same three numbers in another order
    folds = [cases(seed, 0.5) for seed in range(3)]
    one, other = (_resampled_mean(order, "bag_brier", [None] * 3, n=100) for order in (folds, folds[::-1]))
    assert (one.drawn != other.drawn).any()  # rounded otherwise indeed
    between = one.minus(other)
    assert between.value == 0
    assert not between.drawn.any()


def test_bags_are_cut_where_the_tables_cut_them(judged):
    results, out = judged
    rows = _comparisons(results.assign(threshold=-3.0), out, ["bag_f1"], "weak", n=20).set_index("variant")
    expected = np.mean([bootstrap_ci(cases(fold, 3.0), "bag_f1", n=10)["value"] for fold in range(2)])
    assert rows["value"]["strong"] == pytest.approx(expected)


def test_a_variant_without_threshold_has_no_value_and_the_others_are_compared(judged):
    results, out = judged
    blind = results.assign(threshold=np.where(results["run"] == "copy1", np.nan, 0.5))
    rows = _comparisons(blind, out, ["inst_f1", "bag_auroc"], "weak", n=50).set_index(["metric", "variant"])
    assert np.isnan(rows["value"]["inst_f1", "copy"])
    assert np.isnan(rows["p"]["inst_f1", "copy"])
    assert rows["notes"]["inst_f1", "copy"] == "no value: 1 of 2 runs have no threshold from validation"
    assert rows["p"]["inst_f1", "strong"] == rows["p_holm"]["inst_f1", "strong"] == 1  # one test, not two
    assert rows["difference"]["bag_auroc", "copy"] == 0
    text = read(rows.reset_index())
    assert "| copy | local | –§ | –§ | – | – |" in text
    assert "§ no value: 1 of 2 runs have no threshold from validation (s · instance F1: copy, copy − weak)" in text


def test_an_interval_that_says_nothing_is_marked_and_explained(tmp_path):
    rows, out = saved(tmp_path, {v: lambda fold, g=g: cases(fold, g, n=40) for v, g in (("perfect", 99), ("weak", 0))})
    found = _comparisons(rows, out, ["bag_auroc"], "weak", n=50)
    row = found.set_index("variant").loc["perfect"]
    assert row["method"] == "none"
    assert row["notes"] == "; ".join(bootstrap_ci(cases(0, 99, n=40), n=50)["notes"])
    text = read(found)
    assert "| perfect | local | 1.000 [–]§ |" in text
    assert "- § no interval: all resamples give the same value, which says nothing about uncertainty" in text
    assert text.count("§") == 2
    assert "(s · bag AUROC: perfect)" in text


def test_who_was_resampled_stands_above_each_table(tmp_path, judged):
    metrics = ["bag_auroc", "inst_auroc@positive_bags"]
    text = read(_comparisons(*judged, metrics, "weak", n=20))
    assert text.count("\n20 patients resampled.\n") == 2
    bare = {name: lambda fold, g=g: cases(fold, g, n=16, named=False) for name, g in (("a", 1.0), ("weak", 0.0))}
    rows = _comparisons(*saved(tmp_path, bare), metrics, "weak", n=20)
    text = read(rows)
    assert "### s · bag AUROC\n\n16 cases resampled, patients unknown.\n" in text
    assert "### s · instance AUROC in positive bags\n\n8 cases resampled, patients unknown.\n" in text
    assert "patients resampled" not in text
    assert dict(zip(rows["metric"], rows["units"], strict=True)) == {metrics[0]: 16, metrics[1]: 8}


def test_fewer_runs_than_planned_are_marked_even_where_all_have_equally_few(judged):
    planned = {("s", name): 3 for name in ("strong", "weak", "copy")}
    rows = _comparisons(*judged, ["bag_auroc"], "weak", n=20, planned=planned)
    text = read(rows)
    assert text.count("‡") == 3 + 2 + 1  # values, differences, the note
    assert "s · weak (2 of 3)" in text


def test_where_the_reference_lacks_a_fold_the_differences_are_marked(judged):
    results, out = judged
    rows = _comparisons(without(results, "weak", 1), out, ["bag_auroc"], "weak", n=20)
    row = rows.set_index("variant").loc["strong"]
    assert (row["runs"], row["difference_runs"], row["planned"]) == (2, 1, 2)
    text = read(rows)
    assert "s · strong − weak (1 of 2)" in text
    assert text.count("‡") == 1 + 2 + 1


def test_variants_without_a_common_fold_are_not_compared_and_a_note_says_so(judged):
    results, out = judged
    apart = without(without(results, "strong", 0), "weak", 1)
    rows = _comparisons(apart, out, ["bag_auroc"], "weak", n=20).set_index("variant")
    assert np.isnan(rows["difference"]["strong"])
    assert "no fold in common" in rows["difference_notes"]["strong"]
    assert rows["difference"]["copy"] == 0
    pairs = _pair_differences(apart, out, ["bag_auroc"], {"strong": "weak", "copy": "weak"}, n=20)
    assert "| strong | –‡ | weak | –‡ | –‡§ | – | – |" in _pairs_markdown(pairs, "t", 20)


def test_a_pair_is_tested_as_against_a_reference(judged):
    results, out = judged
    pairs = _pair_differences(results, out, ["bag_auroc"], {"strong": "weak"}, n=200)
    whole = _comparisons(results, out, ["bag_auroc"], "weak", n=200)
    mine, same = pairs.iloc[0], whole[whole["variant"] == "strong"].iloc[0]
    assert len(pairs) == 1
    for key in ("value", "difference", "difference_low", "difference_high", "p"):
        assert mine[key] == same[key]
    assert mine["p_holm"] == mine["p"] < same["p_holm"]  # one comparison instead of two
    assert mine["reference_value"] == whole[whole["variant"] == "weak"].iloc[0]["value"]


def test_equal_partners_differ_by_nothing_and_a_pair_without_partner_is_left_out(judged):
    results, out = judged
    pairs = _pair_differences(results, out, ["bag_auroc"], {"copy": "weak", "strong": "missing"}, n=50)
    assert list(pairs["variant"]) == ["copy"]
    assert pairs["difference"].tolist() == [0.0]
    page = _pairs_markdown(pairs, "Each beside its partner", 50)
    assert "| copy | 0." in page
    assert "| weak | 0." in page
    assert "strong" not in page


def test_both_values_of_a_pair_are_over_the_folds_that_both_have(judged):
    results, out = judged
    pairs = _pair_differences(without(results, "weak", 1), out, ["bag_auroc"], {"strong": "weak", "copy": "weak"}, n=50)
    first = _pair_differences(results[results["fold"] == 0], out, ["bag_auroc"], {"strong": "weak"}, n=50).iloc[0]
    row = pairs.set_index("variant").loc["strong"]
    for key in ("value", "reference_value", "difference", "difference_low", "p"):
        assert row[key] == first[key]
    assert row["difference"] == pytest.approx(row["value"] - row["reference_value"])
    assert (row["runs"], row["planned"]) == (1, 2)
    page = _pairs_markdown(pairs, "Each beside its partner", 50)
    assert f"| strong | {row['value']:.3f}‡ | weak | {row['reference_value']:.3f}‡ | {row['difference']:+.3f} " in page
    assert "fewer runs than planned; a difference is taken over the folds both have: s · strong (1 of 2)" in page


def test_p_by_holm_is_bold_below_five_percent_only(judged):
    results, out = judged
    pairs = _pair_differences(results, out, ["bag_auroc"], {"strong": "weak", "copy": "weak"}, n=50)
    page = _pairs_markdown(pairs.assign(p_holm=[0.049, 0.051]), "Pairs", 50)
    assert "| **0.049** |" in page
    assert "| 0.051 |" in page

"""Numbers, curves and order of a report against hand-made values and the rooms they come from."""

import inspect
import re
from dataclasses import replace

import numpy as np
import pytest
from support.lesion_cases import save_all, slide_case

from smmil.cli.options import Resamples, _number_of_resamples
from smmil.errors import ConfigError
from smmil.evaluate import bag_metrics, bootstrap_ci, compare, position_prior, uncertainty_metrics
from smmil.evaluate.instances import POOLS
from smmil.evaluate.ranking import OperatingPoints
from smmil.evaluate.resampling import RESAMPLES
from smmil.experiments.trust import trust_report
from smmil.packaging import write_package
from smmil.prediction import Prediction, load_predictions
from smmil.report import write_report
from smmil.report.cases import _all_cases, _outcome, verdict
from smmil.report.charts import _figures, _froc_lines, _precision_lines, _reliability_lines, _roc_lines
from smmil.report.numbers import _measure, _metric_rows, _remarks


def bag(name, p, y):
    return Prediction(name, np.atleast_1d(p), [0.0], y=y)


def random_bags(n=60, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, n)
    said = np.clip(0.25 + 0.5 * labels + 0.3 * rng.normal(size=n), 0, 1)
    return [bag(f"c{i:03}", p, int(y)) for i, (p, y) in enumerate(zip(said, labels, strict=True))]


def test_the_area_below_the_drawn_roc_is_the_auroc():
    cases = random_bags(400)
    line = _roc_lines({"m": cases})[0]
    probs, y = np.array([p.positive_prob for p in cases]), np.array([p.y for p in cases])
    assert np.trapezoid(line.y, line.x) == pytest.approx(OperatingPoints.of(probs, y > 0).roc_area(), abs=0.004)
    assert (line.x[0], line.y[0], line.x[-1], line.y[-1]) == (0, 0, 1, 1)
    assert len(line.x) <= len(cases) + 1


def test_a_long_curve_is_thinned_without_losing_area_or_ends():
    cases = random_bags(20_000)
    line = _roc_lines({"m": cases})[0]
    probs, y = np.array([p.positive_prob for p in cases]), np.array([p.y for p in cases])
    assert len(line.x) < 3000
    assert np.trapezoid(line.y, line.x) == pytest.approx(OperatingPoints.of(probs, y > 0).roc_area(), abs=3e-4)
    assert (line.x[-1], line.y[-1]) == (1, 1)


def test_a_hand_made_roc_and_precision_curve():
    cases = [bag("a", 0.9, 1), bag("b", 0.8, 0), bag("c", 0.7, 1), bag("d", 0.1, 0)]
    roc = _roc_lines({"m": cases})[0]
    assert list(zip(roc.x, roc.y, strict=True)) == [(0, 0), (0, 0.5), (0.5, 0.5), (0.5, 1), (1, 1)]
    curve = _precision_lines({"m": cases})[0]
    np.testing.assert_allclose(curve.x, [0, 0.5, 0.5, 1, 1])
    np.testing.assert_allclose(curve.y, [1, 1, 0.5, 2 / 3, 0.5])
    steps = np.sum(np.diff(curve.x) * curve.y[1:])
    points = OperatingPoints.of(np.array([0.9, 0.8, 0.7, 0.1]), np.array([1, 0, 1, 0]) > 0)
    assert steps == pytest.approx(points.average_precision())


def test_several_classes_get_a_curve_each():
    rng = np.random.default_rng(0)
    cases = [bag(f"c{i}", rng.dirichlet([1, 1, 1]), i % 3) for i in range(30)]
    assert [line.name for line in _roc_lines({"m": cases})] == ["m, class 0", "m, class 1", "m, class 2"]
    assert {line.slot for line in _roc_lines({"a": random_bags(), "b": random_bags()})} == {0, 1}


def test_empty_bins_are_not_drawn_as_zero():
    line = _reliability_lines({"m": [bag("a", 0.95, 1), bag("b", 0.95, 0), bag("c", 0.05, 0)]})[0]
    np.testing.assert_allclose(line.x, [0.05, 0.95])
    np.testing.assert_allclose(line.y, [0, 0.5])
    assert list(line.sizes) == [1, 2]


def test_the_froc_line_is_a_staircase_that_ends_at_eight():
    cases = {"m": [slide_case(f"s{i}", i, y=i % 2, noise=2.0) for i in range(8)]}
    line = _froc_lines(_measure(cases, resamples=0))[0]
    assert (line.x[0], line.x[-1]) == (0, 8)
    assert (np.diff(line.y) >= 0).all()
    assert not ((np.diff(line.x) > 0.02) & (np.diff(line.y) > 0.004)).any()


def test_numbers_are_those_of_the_evaluation():
    cases = random_bags()
    found = _measure({"m": cases}, resamples=200)["m"]
    row = _metric_rows()[0]
    ci = bootstrap_ci(cases, "bag_auroc", n=200)
    assert row.value(found) == bag_metrics(cases)["auroc"]
    assert row.ends(found) == (ci["low"], ci["high"])
    assert all(r.value(found) is None for r in _metric_rows() if r.group.startswith("Where"))


def test_nothing_labelled_still_gives_a_report():
    cases = [Prediction(f"c{i}", [0.4], [1.0, 2.0]) for i in range(3)]
    found = _measure({"m": cases}, resamples=50)
    assert all(row.value(found["m"]) is None for row in _metric_rows())
    assert _figures({"m": cases}, found) == []
    assert any("no case has a label" in note for note in _remarks(found))


def test_instance_f1_appears_with_a_threshold_only():
    cases = [slide_case(f"s{i}", i, y=i % 2, noise=0.6) for i in range(24)]
    f1 = next(row for row in _metric_rows() if row.interval == "inst_f1")
    assert f1.value(_measure({"m": cases}, resamples=0)["m"]) is None
    found = _measure({"m": cases}, resamples=50, threshold=1.5)["m"]
    assert f1.value(found) > 0.7
    assert f1.ends(found) is not None
    few = _measure({"m": cases[:6]}, resamples=50, threshold=1.5)["m"]
    assert f1.ends(few) is None
    assert f1.without_interval(few) == "– (3 cases with positive instances)"


def test_the_threshold_is_chosen_on_validation_cases(tmp_path):
    (tmp_path / "m").mkdir()
    save_all(tmp_path / "m", [slide_case(f"v{i}", i + 20, y=1, noise=0.2) for i in range(4)])
    found = _measure({"m": [slide_case("t", 1)]}, validation=[tmp_path / "m"], resamples=0)["m"]
    assert 0.5 < found["threshold"]["value"] < 3.5
    assert "validation" in found["threshold"]["source"]


@pytest.mark.parametrize(
    ("y", "answer", "classes", "word"),
    [(1, 1, 2, "true positive"), (1, 0, 2, "false negative"), (0, 1, 2, "false positive"),
     (0, 0, 2, "true negative"), (None, 1, 2, "unlabelled"),
     (2, 1, 3, "wrong"), (0, 0, 3, "correct")],
)  # fmt: skip
def test_outcomes_in_one_word(y, answer, classes, word):
    assert _outcome(y, answer, classes) == word


def test_error_is_one_minus_the_probability_of_the_true_class():
    assert verdict(bag("a", 0.3, 1))["error"] == pytest.approx(0.7)
    assert verdict(bag("a", 0.3, 0))["error"] == pytest.approx(0.3)
    three = verdict(bag("a", [0.2, 0.5, 0.3], 2))
    assert (three["answer"], three["p"], three["outcome"]) == (1, 0.5, "wrong")
    assert three["error"] == pytest.approx(0.7)
    assert verdict(bag("a", 0.5, None))["error"] is None


def test_worst_mistakes_come_first_and_unlabelled_last():
    cases = [bag("fine", 0.9, 1), bag("awful", 0.95, 0), bag("unknown", 0.5, None), bag("bad", 0.3, 1)]
    assert [case.id for case in _all_cases({"m": cases})] == ["awful", "bad", "fine", "unknown"]


def test_a_case_that_one_model_lacks_is_kept():
    both = _all_cases({"a": [bag("x", 0.2, 1)], "b": [bag("x", 0.9, 1), bag("y", 0.9, 0)]})
    assert {case.id: [one is None for one in case.facts["verdicts"]] for case in both} == {
        "x": [False, False],
        "y": [True, False],
    }


def scans_at_one_place(score, n=14):
    """Scans whose lesions lie around one relative height."""
    rng, found = np.random.default_rng(0), []
    for i in range(n):
        height = np.linspace(0, 1, 20 + i)
        truth = (np.abs(height - 0.3 - 0.05 * rng.normal()) < 0.1).astype(int)
        scores, coords = score(height, truth, rng), np.arange(20 + i)[:, None]
        found.append(Prediction(f"c{i:02}", [0.5], scores, coords=coords, y=1, y_inst=truth))
    return found


def test_a_map_no_better_than_position_is_told_above_the_table_and_beside_the_number(tmp_path):
    save_all(tmp_path / "habit", scans_at_one_place(lambda height, truth, rng: -np.abs(height - 0.3)))
    write_report([tmp_path / "habit"], tmp_path / "r.html", resamples=100)
    text = " ".join((tmp_path / "r.html").read_text().split())
    found = _measure({"m": load_predictions(tmp_path / "habit")}, resamples=100)["m"]["prior"]
    assert "<strong>This map is no better than knowing where lesions usually lie: mean AUROC within each case" in text
    assert f"position alone reaches {found['positive_bags']['truth']:.3f}" in text
    assert "Is it more than position?" in text
    row = next(row for row in _metric_rows() if row.path == ("prior", "per_bag", "difference"))
    ends = found["per_bag"]["difference_low"], found["per_bag"]["difference_high"]
    assert row.ends({"prior": found}) == ends
    assert row.ends(_measure({"m": load_predictions(tmp_path / "habit")}, resamples=0)["m"]) is None


def test_a_map_that_finds_lesions_is_not_warned_of_and_no_truth_is_no_verdict(tmp_path):
    save_all(tmp_path / "finder", scans_at_one_place(lambda h, truth, rng: truth + 0.1 * rng.normal(size=len(h))))
    write_report([tmp_path / "finder"], tmp_path / "r.html", resamples=100)
    assert "This map is better than knowing" in (tmp_path / "r.html").read_text()
    assert "<strong>This map" not in (tmp_path / "r.html").read_text()
    save_all(tmp_path / "bare", random_bags(10))
    write_report([tmp_path / "bare"], tmp_path / "r.html", resamples=20)
    assert "position prior" not in (tmp_path / "r.html").read_text()


def test_training_cases_can_make_the_prior_of_a_report_as_in_evaluate(tmp_path):
    cases = scans_at_one_place(lambda h, truth, rng: truth + rng.normal(size=len(h)))
    save_all(tmp_path / "m", cases)
    turned = [replace(p, id=f"t{p.id}", y_inst=p.y_inst[::-1].copy()) for p in cases]
    save_all(tmp_path / "train", turned)
    write_report([tmp_path / "m"], tmp_path / "r.html", resamples=20, prior=[tmp_path / "train"])
    text = (tmp_path / "r.html").read_text()
    expected = position_prior(cases, reference=turned, intervals=POOLS, n=20)
    assert expected["per_bag"]["truth"] < 0.3  # those lesions lie at the other end
    assert f"position alone reaches {expected['positive_bags']['truth']:.3f}" in text
    assert "Position prior: lesions of 14 patients, 14 cases given for it." in text
    (tmp_path / "train" / "broken.npz").write_bytes(b"no prediction")
    done = write_report([tmp_path / "m"], tmp_path / "r.html", resamples=0, prior=[tmp_path / "train"])
    assert [path.name for path in done.left_out] == ["broken.npz"]


NOISES = {"sharp": 0.5, "vague": 6.0}


def test_differences_on_the_same_patients_are_those_of_compare_and_say_what_kind_they_are(tmp_path):
    cohort = [(i, i % 2) for i in range(26)]
    models = {name: [slide_case(f"s{i}", i, y=y, noise=noise) for i, y in cohort] for name, noise in NOISES.items()}
    for name, cases in models.items():
        (tmp_path / name).mkdir()
        save_all(tmp_path / name, cases)
    write_report([tmp_path / "sharp", tmp_path / "vague"], tmp_path / "r.html", resamples=100)
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    found = compare(models["sharp"], models["vague"], "inst_auroc", n=100)  # as evaluate sharp --compare vague
    assert f"<td>sharp − vague</td>\n<td>{found['difference']:+.3f}<small>{found['low']:+.3f} to" in page
    assert "a difference in pointing, for sharp" in page
    write_report([tmp_path / "sharp"], tmp_path / "one.html", resamples=100)
    assert "Differences on the same patients" not in (tmp_path / "one.html").read_text(encoding="utf-8")


def test_one_number_of_resamples_is_usual_everywhere():
    """The command, the report, a package and the library print an interval with the same digits."""
    usual = (bootstrap_ci, compare, position_prior, write_report, write_package, trust_report, uncertainty_metrics)
    for function in usual:
        found = inspect.signature(function).parameters
        assert found["n" if "n" in found else "resamples"].default == RESAMPLES
    assert f"{RESAMPLES} unless given" in Resamples.__metadata__[0].help
    assert (_number_of_resamples(None), _number_of_resamples(0, least=0)) == (RESAMPLES, 0)
    with pytest.raises(ConfigError, match=f"--resamples 1: expected 0 .*{RESAMPLES} are usual"):
        _number_of_resamples(1, least=0)
    rng = np.random.default_rng(0)
    cases = [Prediction(f"c{i:02}", [rng.beta(2 + i % 2, 3)], [[0.0]], y=i % 2) for i in range(24)]
    found = _measure({"m": cases})["m"]["ci"]["bag_auroc"]
    expected = bootstrap_ci(cases)
    assert (found["low"], found["high"]) == (expected["low"], expected["high"])


def rows_of(page):
    """{metric: [(class of the cell, number, what stands below it) of each model]} of the first table of a report."""
    table = page.split('<table class="metrics">')[1].split("</table>")[0]
    found = {}
    for name, cells in re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', table, re.DOTALL):
        found[name] = re.findall(r"<td( class=\"best\")?>(.*?)<small>(.*?)</small>", cells)
    return found


def test_every_number_of_too_few_patients_says_so_and_none_of_them_is_best(tmp_path):
    """Three positive patients carry neither an interval nor a metric that has none in a report."""
    for model, noise in (("one", 0.5), ("two", 6.0)):
        cases = [
            slide_case(f"s{i:02}", i, y=int(i < 3), p=0.3 + 0.02 * i * (noise > 1), noise=noise) for i in range(15)
        ]
        save_all(tmp_path / model, cases)
    write_report([tmp_path / "one", tmp_path / "two"], tmp_path / "r.html", resamples=20, threshold=1.5)
    rows = rows_of((tmp_path / "r.html").read_text(encoding="utf-8"))
    needs_both = ["AUROC", "AUPRC", "F1", "Sensitivity at 90 % specificity", "Calibration error (ECE) ↓", "IoU",
                  "AUPRC, all cases", "Precision", "Recall", "FROC (lesions found at ¼ to 8 false alarms)"]  # fmt: skip
    for name in needs_both:
        assert all(re.fullmatch(r"– \(3 cases with .*\)|– \(3 positive cases\)", below) for *_, below in rows[name]), (
            name
        )
    assert [below for *_, below in rows["Hottest instance is right"]] == ["– (3 cases)"] * 2
    short = [cells for cells in rows.values() if any(below.startswith("– (") for *_, below in cells)]
    assert not any(best for cells in short for best, *_ in cells)
    assert rows["Cross-entropy ↓"][0][2] == ""  # a mean over fifteen cases
    assert any(best for best, *_ in rows["Cross-entropy ↓"])


def test_a_perfect_number_has_a_dash_and_an_undefined_one_a_row(tmp_path):
    cases = [bag(f"c{i:02}", 0.3 + 0.4 * (i % 2), i % 2) for i in range(24)]
    save_all(tmp_path / "one", cases)
    write_report([tmp_path / "one"], tmp_path / "r.html", resamples=20)
    rows = rows_of((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert rows["AUROC"] == [("", "1.000", "–")]
    assert all("Hottest" not in name for name in rows)  # nothing was measured about instances
    save_all(tmp_path / "negative", [bag(f"c{i:02}", 0.3, 0) for i in range(12)])
    write_report([tmp_path / "negative"], tmp_path / "r.html", resamples=20)
    rows = rows_of((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert rows["AUROC"] == [("", "–", "")]

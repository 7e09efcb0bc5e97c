"""The page about targets other than classes: figures, tables and rows hold the numbers of the predictions."""

import json
import re

import numpy as np
import pytest
from support.target_cases import KINDS, LABELS, survival_case, target_case, target_cohort

from smmil.evaluate import bag_metrics
from smmil.evaluate.risk_groups import risk_groups
from smmil.report import write_report
from smmil.report.numbers import _measure, _other_cases
from smmil.report.targets import _target_figures


def saved(cases, folder):
    for p in cases:
        p.save(folder / f"{p.id}.npz")
    return folder


def page_of(models, tmp_path, resamples=50):
    places = [saved(cases, tmp_path / name) for name, cases in models.items()]
    write_report(places, tmp_path / "report.html", resamples=resamples)
    return (tmp_path / "report.html").read_text()


def data_of(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


def figures_of(cases, name="one"):
    return _target_figures({name: cases}, _measure({name: cases}, resamples=0))


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_says_what_was_predicted_and_what_is_true(kind, tmp_path):
    cases = target_cohort(kind, 24)
    page = page_of({"one": cases, "two": target_cohort(kind, 24, model=1)}, tmp_path)
    data, known = data_of(page), {p.id: p for p in cases}
    assert data["models"][0]["target"] == kind
    for row in data["cases"]:
        p, verdict = known[row["id"]], row["verdicts"][0]
        assert verdict["value"] == p.value
        if kind == "multilabel":
            assert all(f"{name} {q:.2f}" in verdict["words"] for name, q in zip(LABELS, p.probs, strict=True))
        elif kind == "ordinal":
            assert (verdict["words"], row["truth"]) == (f"level {p.probs.argmax()}", f"level {p.y}")
        elif kind != "regression":
            place = 1 + sum(other.value > p.value for other in cases)
            assert re.match(rf"risk \S+ \({place}(st|nd|rd|th) of 24\), P\(event by 24\) \d+ %", verdict["words"])
    errors = [row["verdicts"][0]["error"] for row in data["cases"] if row["verdicts"][0]["error"] is not None]
    assert errors == sorted(errors, reverse=True)
    assert "Differences on the same patients" in page


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_of_metrics_holds_every_metric_of_the_target(kind, tmp_path):
    cases = target_cohort(kind, 24)
    text = re.sub(r"<[^>]+>", " ", page_of({"one": cases}, tmp_path, resamples=0))
    found = bag_metrics(cases)
    names = {"survival": "C-index (Harrell)", "cox": "C-index (Uno)", "ordinal": "Quadratic weighted kappa",
             "regression": "Spearman's correlation", "multilabel": "oedema: AUROC"}  # fmt: skip
    keys = {"survival": "c_index", "cox": "c_index_uno", "ordinal": "kappa", "regression": "spearman"}
    value = found["labels"]["oedema"]["auroc"] if kind == "multilabel" else found[keys[kind]]
    plain = text.replace("&#39;", "'")
    assert re.search(rf"{re.escape(names[kind])}\s+{value:.3f}", plain)
    if "times" in found:
        assert re.search(rf"Until 12: AUROC\s+{found['times']['12']['auroc']:.3f}", plain)


def test_survival_curves_are_steps_through_the_estimates_with_numbers_at_risk():
    cases = target_cohort("survival", 40)
    figure, groups = figures_of(cases)[0], risk_groups(cases)
    assert f"log-rank p {groups.p_text}" in figure
    curves = re.findall(r'<polyline class="line [^"]*" points="([^"]*)"', figure)
    latest = max(p.target[0] for p in cases)
    for drawn, group in zip(curves, groups.groups, strict=True):
        points = np.array([[float(v) for v in pair.split(",")] for pair in drawn.split()])
        assert ((np.diff(points, axis=0) == 0).any(1)).all()  # steps, no slopes
        time, share = (points[:, 0] - 56) / 272 * latest, 1 - (points[:, 1] - 12) / 214
        for t in np.linspace(0.1, 0.9 * group.curve.times[-1], 15):
            if np.abs(time - t).min() > latest / 272:  # not at an upright
                assert share[time < t][-1] == pytest.approx(group.curve.after(t), abs=0.01)
    rows = re.findall(r'<tr><th scope="row">(low|high) risk</th>((?:<td>\d+</td>)+)', figure)
    for (_, cells), group in zip(rows, groups.groups, strict=True):
        assert int(re.findall(r"\d+", cells)[0]) == group.n == 20


def test_few_events_leave_a_dash_in_place_of_p():
    cases = [
        survival_case(f"c{i:02}", i / 10, 30.0 - i, int(i % 3 == 0 and i < 21), patient=f"p{i}") for i in range(24)
    ]
    assert "log-rank p – (7 patients with an event)" in figures_of(cases)[0]


def test_the_confusion_table_counts_true_levels_by_row():
    rows = [(0, 0), (0, 0), (0, 1), (1, 1), (2, 0), (2, 2), (2, 2)]
    cases = [
        target_case("ordinal", f"c{i}", np.eye(3)[said], y=true, value=said) for i, (true, said) in enumerate(rows)
    ]
    figure = figures_of(cases)[0]
    cells = [re.findall(r"<td style[^>]*>(\d+)</td>", row) for row in figure.split("<tr>")[3:]]
    assert cells == [["2", "1", "0"], ["0", "1", "0"], ["1", "0", "2"]]


def test_dots_of_numbers_lie_at_truth_and_prediction():
    truth, said = [0.0, 10.0, 5.0], [2.0, 8.0, 5.0]
    cases = [target_case("regression", f"c{i}", [], target=[t], value=v, names=("size",))
             for i, (t, v) in enumerate(zip(truth, said, strict=True))]  # fmt: skip
    figure = figures_of(cases)[0]
    places = np.array(re.findall(r'<circle [^>]*cx="([\d.]+)" cy="([\d.]+)"', figure), dtype=float)
    across, up = (places[:, 0] - 56) / 272 * 11 - 0.5, (1 - (places[:, 1] - 12) / 214) * 11 - 0.5
    np.testing.assert_allclose(across, truth, atol=0.03)
    np.testing.assert_allclose(up, said, atol=0.03)
    assert "predicted size" in figure
    assert "diagonal" in figure


def test_every_label_has_a_curve_and_a_label_of_one_class_has_none():
    cases = [
        target_case("multilabel", p.id, p.probs, target=[p.target[0], p.target[1], 0.0], names=LABELS)
        for p in target_cohort("multilabel", 30)
    ]
    roc = figures_of(cases)[0]
    assert re.findall(r"</svg>([a-z]+)</li>", roc) == ["blood", "oedema"]


def test_models_of_other_truth_or_other_targets_are_not_compared():
    cases = target_cohort("survival", 12)
    moved = [survival_case(p.id, p.value, p.target[0] + 1, p.target[1]) for p in cases]
    assert _other_cases({"a": cases, "b": cases}) is None
    assert "another label" in _other_cases({"a": cases, "b": moved})
    assert "kind of target" in _other_cases({"a": cases, "b": target_cohort("cox", 12)})


def test_cases_without_any_truth_still_have_a_page(tmp_path):
    cases = [survival_case(f"c{i}", i / 10) for i in range(4)]
    page = page_of({"one": cases}, tmp_path)
    assert [row["truth"] for row in data_of(page)["cases"]] == [""] * 4
    assert "Survival by predicted risk" not in page


def test_scores_at_a_time_say_how_many_they_rest_on(tmp_path):
    """Until the last times hardly anybody was followed without an event: too few to tell the two apart."""
    cases = target_cohort("survival", 40)
    times = bag_metrics(cases)["times"]
    page = page_of({"one": cases}, tmp_path)
    few = [time for time, row in times.items() if min(row["n_events"], row["n_without"]) < 10]
    assert 0 < len(few) < len(times)
    for time, row in times.items():
        words = f"{row['n_events']} with, {row['n_without']} without an event"
        words = f"– ({row['shortage']})" if time in few else words
        assert bool(row["shortage"]) == (time in few)
        assert f"Until {float(time):.4g}: AUROC</th><td>{row['auroc']:.3f}<small>{words}</small>" in page
    smaller = min(times[few[0]]["n_events"], times[few[0]]["n_without"])
    assert re.fullmatch(
        rf"{smaller} (case|patient)s? with(out)? an event until {float(few[0]):.4g}", times[few[0]]["shortage"]
    )

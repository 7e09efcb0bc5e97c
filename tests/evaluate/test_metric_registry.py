"""One registration is enough: a new metric appears in every list of metrics, with the value of its function."""

import importlib.util
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer
from support.metric_cases import bags, random_cases
from typer.testing import CliRunner

from smmil.cli.evaluate import evaluate
from smmil.errors import ConfigError
from smmil.evaluate import (
    METRIC_NAMES,
    Metric,
    bag_metrics,
    bootstrap_ci,
    compare,
    energies,
    froc,
    instance_metrics,
    register_metric,
    unregister_metric,
)
from smmil.evaluate.bootstrap import Settings, statistic
from smmil.evaluate.metrics import METRICS, metrics_table
from smmil.experiments.run import _measured_row
from smmil.experiments.study import _measured_metric
from smmil.packaging.facts import _measure as packaged
from smmil.report import write_report
from smmil.report.numbers import _measure, _metric_rows

DOCS = Path(__file__).parents[2] / "docs"
SOME = [p for p in random_cases(24, levels=2) if p.y is not None]


def specificity(counts):
    return counts.tn / (counts.tn + counts.fp) if counts.tn + counts.fp else float("nan")


def by_hand(predictions):
    negative = [p for p in predictions if p.y == 0]
    return sum(p.positive_prob < 0.5 for p in negative) / len(negative)


NEW = Metric(
    name="bag_specificity",
    level="bag",
    label="bag specificity",
    direction=1,
    explanation="share of negative bags called negative",
    function=specificity,
    basis="counts",
    title="Specificity",
    interval=True,
    hub=("specificity", "specificity of cases"),
)


@pytest.fixture
def registered():
    added = []

    def add(metric):
        register_metric(metric)
        added.append(metric.name)
        return metric

    yield add
    for name in added:
        unregister_metric(name)


@pytest.fixture
def folders(tmp_path, registered):
    registered(NEW)
    for name, noise in (("first", 1.0), ("second", 2.0)):
        for p in random_cases(48, noise=noise):
            replace(p, meta={**p.meta, "weights": "w"}).save(tmp_path / name / f"{p.id}.npz")
    return tmp_path / "first", tmp_path / "second"


def command(*arguments):
    app = typer.Typer()
    app.command()(evaluate)
    found = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "200"})
    assert found.exit_code == 0, found.output
    return found.output


def test_a_new_metric_is_in_the_tables_of_the_command(folders, tmp_path):
    first, second = folders
    expected, other = by_hand(random_labelled(1.0)), by_hand(random_labelled(2.0))
    options = ("--resamples", "50", "--metric", "bag_specificity")
    out = command(first, "--compare", second, "--ci", *options, "--csv", tmp_path / "n.csv")
    assert re.search(rf"│ +specificity +│ +{expected:.3f} │", out)
    assert re.search(rf"bag_specificity +│ +{expected:.3f} \(", out)
    assert re.search(r"│ first − second +│", out)
    assert re.search(rf"bag_specificity +│ +{expected:.3f} − {other:.3f} = ", out)
    table = pd.read_csv(tmp_path / "n.csv").query("metric == 'specificity'")
    assert table[["part", "value"]].values.tolist() == [["bag", pytest.approx(expected)]]


def random_labelled(noise):
    return [p for p in random_cases(48, noise=noise) if p.y is not None]


def test_a_new_metric_is_listed_by_the_command_and_in_the_docs_table(registered):
    assert "bag_specificity" not in command("--list-metrics") + metrics_table()
    registered(NEW)
    assert re.search(r"bag_specificity +│ higher +│ share of negative bags called negative", command("--list-metrics"))
    assert "| `bag_specificity` | bag | class | bag specificity | higher | 0.5 | share of negative" in metrics_table()


def test_a_new_metric_is_in_the_report_with_its_interval(folders, tmp_path):
    write_report(folders, tmp_path / "report.html", resamples=50)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    interval = bootstrap_ci(random_cases(48), "bag_specificity", n=50)
    row = page[page.index(">Specificity</th>") :].split("</tr>")[0]
    assert f"{by_hand(random_labelled(1.0)):.3f}" in row
    assert f"{by_hand(random_labelled(2.0)):.3f}" in row
    assert f"{interval['low']:.3f} – {interval['high']:.3f}" in row


def test_a_new_metric_is_in_results_of_studies_and_may_be_asked_for(registered):
    with pytest.raises(ValueError, match="unknown metric 'bag_specificity'"):
        _measured_metric("bag_specificity")
    registered(NEW)
    assert _measured_metric("bag_specificity") == "bag_specificity"
    row = _measured_row(SOME, SOME)
    assert row["bag_specificity"] == pytest.approx(by_hand(SOME))
    registered(replace(NEW, name="inst_specificity", level="instance", hub=None))
    assert _measured_metric("inst_specificity@per_bag") in _measured_row(SOME, SOME)


def test_a_new_metric_is_stated_by_packages(folders):
    found = packaged(folders[0], "w", resamples=50)
    row = next(row for row in found["metrics"] if row["type"] == "specificity")
    assert (row["name"], row["value"]) == ("specificity of cases", pytest.approx(by_hand(random_labelled(1.0))))


def test_a_metric_that_was_removed_is_nowhere(registered):
    register_metric(NEW)
    unregister_metric(NEW.name)
    assert NEW.name not in METRIC_NAMES
    assert "specificity" not in bag_metrics(SOME)
    assert all(row.name != "Specificity" for row in _metric_rows())
    with pytest.raises(ConfigError, match="unknown value 'bag_specificity'"):
        bootstrap_ci(SOME, "bag_specificity")


def mean_margin(probs, y):
    return float(np.mean(probs[np.arange(len(y)), y] - 0.5)) if len(y) else float("nan")


def gap(scores, truth):
    return float(scores[truth].mean() - scores[~truth].mean()) if 0 < truth.sum() < len(truth) else float("nan")


def largest(predictions):
    return float(max((p.n for p in predictions), default=np.nan))


def best_f1(points):
    found, called = points.true_positives, points.true_positives + points.false_positives
    return float((2 * found / (called + found[-1])).max()) if len(found) and found[-1] else float("nan")


def longest_step(f, pairs):
    return float(np.abs(f[pairs[0]] - f[pairs[1]]).max(initial=0.0))


def sensitivity_without_alarm(alarms, share):
    return float(share[alarms == 0].max(initial=0.0))


KINDS = [
    ("bag_new", "bag", "counts", specificity, False),
    ("bag_new", "bag", "points", best_f1, False),
    ("bag_new", "bag", "arrays", mean_margin, False),
    ("bag_new", "bag", "arrays", mean_margin, True),
    ("bag_new", "bag", "predictions", largest, False),
    ("inst_new", "instance", "counts", specificity, False),
    ("inst_new", "instance", "points", best_f1, False),
    ("inst_new", "instance", "arrays", gap, False),
    ("inst_new", "instance", "arrays", gap, True),
    ("inst_new", "instance", "predictions", largest, False),
    ("energy_new", "energy", "arrays", longest_step, True),
    ("new", "lesion", "arrays", sensitivity_without_alarm, False),
]


POOLED = [(*kind, pool) for kind in KINDS for pool in ("all", "positive_bags", "per_bag")]
POOLED = [kind for kind in POOLED if kind[1] == "instance" or kind[-1] == "all"]


@pytest.mark.parametrize(("name", "level", "basis", "function", "per_case", "pool"), POOLED)
def test_every_kind_of_metric_is_resampled_as_if_cases_were_repeated(
    registered, name, level, basis, function, per_case, pool
):
    registered(Metric(name, level, "new", 1, "a new one", function, basis, per_case))

    def directly(cases):
        by_level = {"bag": lambda: bag_metrics(cases, 0.4), "instance": lambda: instance_metrics(cases, 0.4, pool),
                    "energy": lambda: energies(cases), "lesion": lambda: froc(cases)}  # fmt: skip
        return by_level[level]()["new"]

    measured = statistic(SOME, name, Settings(0.4, pool))
    assert np.isfinite(measured.estimate)
    rng = np.random.default_rng(1)
    for weights in (np.ones(len(measured.cases), dtype=int), *(rng.integers(0, 4, (3, len(measured.cases))))):
        repeated = [p for p, times in zip(measured.cases, weights, strict=True) for _ in range(times)]
        assert measured.value(weights) == pytest.approx(directly(repeated), rel=1e-12)
    assert compare(SOME, SOME, name, n=5, threshold=0.4, pool=pool)["difference"] == 0


@pytest.mark.parametrize("classes", [1, 3, 11])
def test_metrics_of_all_cases_at_once_are_those_of_each_case_alone(classes):
    rng = np.random.default_rng(classes)
    probs = rng.random(40) if classes == 1 else rng.dirichlet(np.ones(classes), 40)
    cases = bags(probs.tolist(), rng.integers(0, max(classes, 2), 40).tolist())
    vectorized = [metric for metric in METRICS.values() if metric.vectorized]
    assert {metric.name for metric in vectorized} == {"bag_brier", "bag_loss"}
    for metric in vectorized:
        alone = [bag_metrics([case])[metric.key] for case in cases]
        assert bag_metrics(cases)[metric.key] == math.fsum(alone) / 40
        assert statistic(cases, metric.name).value(np.arange(40)) == np.arange(40) @ alone / np.arange(40).sum()


def test_values_of_new_metrics_by_hand(registered):
    cases = bags([0.9, 0.2, 0.6, 0.4], [1, 0, 0, 1])
    registered(Metric("bag_new", "bag", "new", 1, "a new one", mean_margin, "arrays"))
    assert bag_metrics(cases)["new"] == pytest.approx((0.4 + 0.3 - 0.1 - 0.1) / 4)
    registered(NEW)
    assert bag_metrics(cases)["specificity"] == 0.5
    three = bags([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1], [0.1, 0.8, 0.1]], [0, 1, 2])
    assert bag_metrics(three)["specificity"] == pytest.approx((1 + 1 / 2 + 1) / 3)  # class 1: 1 of 2 is wrong


def test_a_new_metric_of_instances_is_left_out_of_reports_without_threshold(registered):
    row_name = "Specificity of tiles"
    registered(replace(NEW, name="inst_specificity", level="instance", title=row_name, hub=None))
    row = next(row for row in _metric_rows() if row.name == row_name)
    without, given = (_measure({"m": SOME}, resamples=20, threshold=cut)["m"] for cut in (None, 0.4))
    assert row.value(without) is None
    assert row.value(given) == instance_metrics(SOME, 0.4)["specificity"]
    assert "inst_specificity" in given["ci"]
    assert "inst_specificity" not in without["ci"]
    assert "specificity are left out: no threshold was given" in " ".join(without["instance"]["all"]["notes"])


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"name": "bag_auroc"}, "is registered already"), ({"name": "inst_new"}, "expected a name such as bag_new"),
     ({"name": "bag_two words"}, "expected a name such as bag_new"), ({"direction": 2}, "expected 1, -1 or 0"),
     ({"name": "bag_new", "level": "lesion"}, "expected a name such as new"),
     ({"name": "energy_new", "level": "energy"}, "basis for the level energy: unknown value 'counts'")],
)  # fmt: skip
def test_entries_that_make_no_sense_are_refused(change, reason):
    before = dict(METRICS)
    with pytest.raises(ConfigError, match=re.escape(reason)):
        register_metric(replace(NEW, **change))
    assert before == METRICS


def test_the_table_of_the_docs_is_that_of_the_registry():
    spec = importlib.util.spec_from_file_location("metrics_table", DOCS / "metrics_table.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    page = (DOCS / "evaluate.md").read_text(encoding="utf-8")
    assert metrics_table() in page
    assert script.renewed(page) == page, "run python docs/metrics_table.py"

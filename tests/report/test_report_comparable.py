"""Nothing is called best where the models were not asked the same."""

from dataclasses import replace

import numpy as np
import pytest
from support.lesion_cases import save_all, slide_case

from smmil.evaluate import summary
from smmil.evaluate.folders import summarize_models
from smmil.report import write_report
from smmil.report.numbers import _other_cases, _other_instances, leaders


def cases(p=0.0, noise=0.5):
    return [slide_case(f"s{i}", i, y=i % 2, p=abs(i % 2 - 0.1 - p - 0.05 * i), noise=noise) for i in range(6)]


def relabelled():
    first, *rest = cases(0.3, 1.5)
    return [replace(first, y=1), *rest]


def fewer_labels():
    *rest, last = cases(0.3, 1.5)
    return [*rest, replace(last, y_inst=np.where(np.arange(last.n) < 9, -1, last.y_inst))]


def three_classes():
    return [replace(p, probs=[0.2, 0.3, 0.5]) for p in cases()]


@pytest.mark.parametrize(
    ("other", "whole", "parts"),
    [(cases(0.3, 1.5), None, None),
     (cases()[1:], "not given the same cases (5 of at most 6 in common)", "not given the same cases"),
     (relabelled(), "1 of 6 cases have another label", "1 of 6 cases have another label"),
     (three_classes(), "number of classes", "number of classes"),
     (fewer_labels(), None, "1 cases have other instances or instance labels")],
)  # fmt: skip
def test_what_may_be_compared(other, whole, parts):
    models = {"a": cases(), "b": other}
    for reason, words in ((_other_cases(models), whole), (_other_instances(models), parts)):
        assert (reason is None) == (words is None), reason
        assert words is None or words in reason
    assert _other_instances({"a": other}) is None


def test_the_order_of_cases_and_instances_does_not_matter():
    turned = [replace(p, scores=p.scores[::-1], coords=p.coords[::-1], y_inst=p.y_inst[::-1], edges=None)
              for p in cases()[::-1]]  # fmt: skip
    assert _other_instances({"a": cases(), "b": turned}) is None


def rows_of(page, group, until):
    return page[page.index(group) : page.index(until)]


def written(folder, other):
    for name, some in (("a", cases()), ("b", other)):
        (folder / name).mkdir(parents=True)
        save_all(folder / name, some)
    write_report([folder / "a", folder / "b"], folder / "r.html", resamples=0, threshold=1.5)
    page = (folder / "r.html").read_text(encoding="utf-8")
    body = page[page.index('<table class="metrics">') : page.index('<section id="curves">')]
    whole, instances = (rows_of(body, a, b) for a, b in (("Is it there?", "Where is it?"), ("Where is it?", "smooth")))
    return body, 'class="best"' in whole, 'class="best"' in instances


def test_best_values_are_marked_only_where_they_can_be_compared(tmp_path):
    body, whole, instances = written(tmp_path / "fair", cases(0.3, 1.5))
    assert (whole, instances) == (True, True)
    assert "Not comparable" not in body
    body, whole, instances = written(tmp_path / "labels", fewer_labels())
    assert (whole, instances) == (True, False)
    assert "No best value is marked in: Where is it? (instances)." in body
    body, whole, instances = written(tmp_path / "cases", cases(0.3, 1.5)[1:])
    assert (whole, instances) == (False, False)
    assert "Not comparable: the models were not given the same cases (5 of at most 6 in common)." in body
    assert "Marked: best" not in body


def test_no_model_leads_where_the_cases_differ():
    uneven = {"a": summary(cases()), "b": summary(cases(0.3, 1.5)[1:])}
    assert leaders(uneven)[0] == "Of 5 comparisons a leads in 0, b leads in 0; 0 are ties, 5 are not comparable."
    # as many cases, but others: only the note of the evaluation knows
    others = summarize_models({"a": cases()[:5], "b": cases(0.3, 1.5)[1:]})
    assert not any("leads with" in line for line in leaders(others))
    even = {"a": summary(cases()), "b": summary(cases(0.3, 1.5))}
    assert "not comparable" not in leaders(even)[0]

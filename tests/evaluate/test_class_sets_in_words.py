"""What a calibration says about whole cases, in words for clinicians: probability, classes excluded, what was lost."""

from dataclasses import replace

import pytest
from support.drift_cases import compared
from support.lesion_cases import slide_case

from smmil.evaluate.calibration import calibrate
from smmil.evaluate.conformal import applied_calibration, calibrated_case
from smmil.evaluate.folder_drift import class_sets_in_words, folder_drift, promise_of_case
from smmil.evaluate.folders import summary
from smmil.prediction import Prediction


def p_of(i, y):
    return 0.5 + (0.1 + 0.02 * i) * (1 if y else -1)


@pytest.fixture(scope="module")
def made():
    return calibrate([slide_case(f"c{i}", i, y=i % 2, p=p_of(i % 12, i % 2)) for i in range(40)], target=0.1)


def said(case):
    return calibrated_case(case, applied_calibration(case))


@pytest.mark.parametrize(
    ("p", "classes", "words"),
    [
        (
            0.99,
            (1,),
            "Negative can be excluded (happens to at most 10 % of negative cases, on average); positive remains",
        ),
        (
            0.01,
            (0,),
            "Positive can be excluded (happens to at most 10 % of positive cases, on average); negative remains",
        ),
    ],
)
def test_an_excluded_class_is_named_with_how_often_that_is_wrong(made, p, classes, words):
    found = said(made.applied(slide_case("new", 50, p=p)))
    assert found.classes == classes
    assert f" {words} possible." in found.text
    near = "above 99 %" if p > 0.5 else "below 1 %"
    assert found.text.startswith(f"Calibrated probability of a positive case: {near} (an estimate from held-out")


def with_set(made, classes, **more):
    case = made.applied(slide_case("new", 50))
    return replace(case, meta={**case.meta, "calibration": {**case.meta["calibration"], "set": classes, **more}})


def test_several_classes_are_undecided_and_none_is_unusual(made):
    assert "Undecided: negative and positive are both possible." in said(with_set(made, [0, 1])).text
    assert "of a positive case: 37 % (an estimate" in said(with_set(made, [0, 1], probability=0.371)).text
    never = said(with_set(made, [0, 1], never_excluded=[0])).text
    assert "(negative never can be: too few patients in the calibration)" in never
    assert "No class fits: each would be excluded" in said(with_set(made, [])).text


def test_too_few_patients_of_a_class_are_remembered_with_the_case():
    few = calibrate([slide_case(f"c{i}", i, y=int(i > 3), p=0.9 if i > 3 else 0.1) for i in range(20)])
    facts = few.applied(slide_case("new", 50)).meta["calibration"]
    assert facts["never_excluded"] == [0]
    assert 0 in facts["set"]


def test_more_than_two_classes_have_numbers(made):
    case = with_set(made, [0, 2], probability=None)
    three = Prediction("x", [0.2, 0.3, 0.5], case.scores, meta=case.meta)
    assert said(three).text == (
        "Class 1 can be excluded (happens to at most 10 % of class 1 cases, on average); "
        "class 0 and class 2 remain possible."
    )


@pytest.mark.parametrize(
    "damage", [{"set": [7]}, {"set": "01"}, {"set": [True]}, {"probability": 2.0}, {"probability": "x"}]
)
def test_what_nobody_wrote_is_not_repeated(made, damage):
    found = said(with_set(made, [1], **{"probability": 0.5, **damage}))
    assert (found.classes is None) == ("set" in damage)
    assert (found.probability is None) == ("probability" in damage)


def test_the_alarm_takes_the_promise_of_the_sets_too(made):
    case = compared(made.applied(slide_case("new", 50, p=0.99)), True, 1 / 31)
    assert "Negative can be excluded (without a promise here)" in said(case).text
    beside = [
        compared(made.applied(slide_case(f"n{i}", 50 + i, p=0.99)), i > 0, 1 / 31 if i else 0.5) for i in range(8)
    ]
    folder = folder_drift(beside)
    assert folder.alarm
    assert "without a promise here" in calibrated_case(beside[0], promise_of_case(beside[0], folder)).text
    assert "(without a promise)" in class_sets_in_words(beside, folder)


def test_the_summary_counts_cases_and_measures_what_was_lost(made):
    probs = {"a": (0.99, 1), "b": (0.98, 1), "c": (0.01, 1), "d": (0.01, 0), "e": (0.02, 0), "u": (0.97, None)}
    cases = [made.applied(replace(slide_case(id_, 60, p=p), y=y)) for id_, (p, y) in probs.items()]
    text = class_sets_in_words(cases, None)
    assert text == (
        "Of 6 cases 3 can only be negative, 3 can only be positive (at most 10 % of the cases of each class lose "
        "their class, on average). Measured here: 0 of 2 negative cases, 1 of 3 positive cases lost their true class."
    )
    assert text in summary(cases, prior=False)["notes"]
    own = [made.applied(slide_case(f"c{i}", i, y=i % 2, p=p_of(i % 12, i % 2))) for i in range(4)]
    assert "Measured" not in class_sets_in_words(own, None)  # they set the thresholds
    assert class_sets_in_words([slide_case("plain", 1)], None) == ""

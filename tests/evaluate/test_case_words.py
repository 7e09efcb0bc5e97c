"""A case in words: what was predicted, what is true, how far apart."""

import numpy as np
import pytest
from support.target_cases import KINDS, survival_case, target_case, target_cohort

from smmil.evaluate.case_words import case_numbers, case_words, positives_in_words, predicted_values


def test_a_risk_says_its_place_and_the_chance_of_an_event():
    cases = [survival_case(f"c{i}", risk) for i, risk in enumerate((2.0, 0.5, 0.83, -1.0))]
    words = case_words(cases[2], predicted_values(cases))
    chance = 1 - np.exp(-np.exp(0.83) * 24 / 24)
    assert words.said == f"risk 0.83 (2nd of 4), P(event by 24) {100 * chance:.0f} %"
    assert (words.truth, words.error, words.outcome) == ("", None, "unlabelled")
    assert words.share == pytest.approx(chance)


def test_an_event_is_compared_at_every_time_and_a_censored_case_until_it_was_lost():
    probs = np.array([0.1, 0.4, 0.6, 0.9])
    event = target_case("survival", "a", probs, target=[20, 1], value=0.0, times=(6.0, 12.0, 24.0, 48.0))
    assert case_words(event).error == pytest.approx(np.mean([0.1, 0.4, 1 - 0.6, 1 - 0.9]))
    assert case_words(event).truth == "event at 20"
    lost = target_case("survival", "b", probs, target=[12, 0], value=0.0, times=(6.0, 12.0, 24.0, 48.0))
    assert case_words(lost).error == pytest.approx(np.mean([0.1, 0.4]))
    assert case_words(lost).text.endswith("(no event until 12)")
    early = target_case("survival", "b", probs, target=[1, 0], value=0.0, times=(6.0, 12.0, 24.0, 48.0))
    assert case_words(early).error is None


def test_levels_numbers_and_labels_stand_beside_the_truth():
    level = target_case("ordinal", "a", [0.1, 0.2, 0.1, 0.5, 0.1], y=4, value=2.3, names=("grade",))
    assert case_words(level).text == "level 3 (true 4)"
    assert case_words(level).error == pytest.approx(1.7)
    number = target_case("regression", "a", [], target=[10.9], value=12.44, names=("size",))
    assert case_words(number).text == "12.4 (true 10.9)"
    assert case_words(number).outcome == "too high"
    labels = target_case("multilabel", "a", [0.91, 0.12, 0.7], target=[1, 0, np.nan], names=("blood", "air", "bone"))
    assert case_words(labels).text == "blood 0.91, air 0.12, bone 0.70 (true blood)"
    assert (case_words(labels).outcome, case_words(labels).error) == ("correct", pytest.approx(0.12))


def test_places_are_counted_as_people_do():
    cases = [survival_case(f"c{i:03}", -float(i)) for i in range(113)]
    values = predicted_values(cases)
    said = [case_words(p, values).said.split("(")[1].split(" of")[0] for p in cases]
    assert [said[i] for i in (0, 1, 2, 3, 10, 11, 12, 20, 110)] == [
        "1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "111th",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_columns_hold_every_probability(kind):
    case = target_cohort(kind, 1)[0]
    found = case_numbers(case)
    assert [v for k, v in found.items() if k != "case_value"] == case.probs.tolist()
    assert found.get("case_value") == case.value


def test_positives_are_named_after_their_target():
    kinds = ("class", "survival", "regression", "ordinal")
    assert [positives_in_words(kind, 3) for kind in kinds] == [
        "3 positive",
        "3 with an event",
        "",
        "3 above the lowest level",
    ]

"""Exports of targets other than classes: the case in words, its numbers as columns."""

import json

import pandas as pd
import pytest
from support.target_cases import KINDS, LABELS, target_cohort

from smmil.evaluate.case_words import case_words
from smmil.exports import export
from smmil.maps.canvas import headline


@pytest.mark.parametrize("kind", KINDS)
def test_tables_hold_the_number_and_every_probability(kind, tmp_path):
    case = target_cohort(kind, 3)[2]
    export(case, "csv", tmp_path / "case.csv")
    table = pd.read_csv(tmp_path / "case.csv")
    assert "case_probability" not in table
    names = {"multilabel": LABELS, "ordinal": [f"level_{k}" for k in range(4)], "regression": []}
    names = names.get(kind, [f"event_by_{t:g}" for t in case.times])
    for name, p in zip(names, case.probs, strict=True):
        assert table[f"case_probability_{name}"].tolist() == pytest.approx([p] * case.n)
    if case.value is not None:
        assert table["case_value"].tolist() == pytest.approx([case.value] * case.n)


@pytest.mark.parametrize("kind", KINDS)
def test_geojson_says_what_was_predicted_and_what_is_true(kind, tmp_path):
    case = target_cohort(kind, 3)[2]
    export(case, "geojson", tmp_path / "case.geojson")
    text = json.dumps(json.loads((tmp_path / "case.geojson").read_text()), ensure_ascii=False)
    words = case_words(case)
    assert f'"target": "{kind}"' in text
    assert f'"case_prediction": "{words.said}"' in text
    assert f'"case_truth": "{words.truth}"' in text


@pytest.mark.parametrize("kind", KINDS)
def test_pictures_are_headed_by_the_same_words(kind, tmp_path):
    case = target_cohort(kind, 3)[2]
    assert headline(case) == f"{case.id}  ·  {case_words(case).text}"
    export(case, "png", tmp_path / "case.png")
    assert (tmp_path / "case.png").stat().st_size > 1000

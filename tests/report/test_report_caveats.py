"""Damaged files and mixed models are told on the page and by the command; the others go on."""

import re
from dataclasses import replace

import numpy as np
import pytest
from support.lesion_cases import META, save_all, slide_case
from support.report_pictures import app
from typer.testing import CliRunner

from smmil.errors import DataError
from smmil.prediction import Prediction
from smmil.report import write_report
from smmil.report.numbers import _measure
from smmil.report.sources import _doubts, _load_sources, _model_card, _PredictionSource


def folder_with_damage(tmp_path):
    folder = tmp_path / "m"
    folder.mkdir()
    save_all(folder, [slide_case("a", 1), slide_case("b", 2, y=0), slide_case("c", 3)])
    broken = folder / "0001.npz"
    broken.write_bytes(broken.read_bytes()[:-200])
    return folder


def test_a_damaged_prediction_is_left_out_and_named(tmp_path):
    folder, out = folder_with_damage(tmp_path), tmp_path / "r.html"
    done = CliRunner().invoke(app(), [str(folder), "--out", str(out), "--resamples", "0"])
    assert done.exit_code == 3
    assert f"left out: {folder / '0001.npz'}: not readable as a prediction" in done.output
    page = out.read_text(encoding="utf-8")
    assert "Not all cases: m lacks 0001 (not readable as a prediction" in page
    assert str(tmp_path) not in page
    assert "0001.npz" not in page
    assert re.findall(r'"id":"(\w+)"', page) == ["a", "c"]


def test_nothing_but_damage_is_an_error(tmp_path):
    (tmp_path / "0.npz").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"0\.npz: not readable as a prediction .* no other prediction"):
        _load_sources([tmp_path])


def test_the_same_case_twice_is_refused_and_not_left_out(tmp_path):
    save_all(tmp_path, [slide_case("a", 1), slide_case("a", 2)])
    with pytest.raises(DataError, match=r"0001.npz: id 'a' is already in .*0000\.npz"):
        _load_sources([tmp_path])


def test_two_weights_in_one_folder_are_told(tmp_path):
    mixed = [slide_case("a", 1), slide_case("b", 2, y=0, meta={**META, "weights": "e" * 64, "epoch": 3})]
    (tmp_path / "m").mkdir()
    save_all(tmp_path / "m", mixed)
    write_report([tmp_path / "m"], tmp_path / "r.html", resamples=0)
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "Not one model: the predictions of m come from 2 different weights" in page
    card = dict(_model_card(_PredictionSource("m", mixed), {}))
    assert card["Weights (SHA-256)"] == "several (2)"
    assert card["Trained until"] == "checkpoint best, epoch several (2)"
    assert card["Settings (SHA-256)"] == "not stated"


def test_one_model_is_not_called_several(tmp_path):
    silent = replace(slide_case("b", 2), meta={**META, "weights": None})
    card = dict(_model_card(_PredictionSource("m", [slide_case("a", 1), silent, slide_case("c", 3)]), {}))
    assert card["Weights (SHA-256)"] == "f" * 12
    (tmp_path / "m").mkdir()
    save_all(tmp_path / "m", [slide_case("a", 1), silent])
    write_report([tmp_path / "m"], tmp_path / "r.html", resamples=0)
    assert "Not one model" not in (tmp_path / "r.html").read_text(encoding="utf-8")


def cases_of_chance(n, told):
    """Cases of n patients of each class; `told`: probabilities that follow the label."""
    random = np.random.default_rng(3).random(2 * n)
    return [
        slide_case(f"c{k}", k, y=k % 2, p=float((k % 2) * 0.9 if told else random[k]), meta={**META, "group": str(k)})
        for k in range(2 * n)
    ]


@pytest.mark.parametrize(
    ("n", "told", "words"),
    [
        (12, False, "No better than chance: the interval of m's case AUROC"),
        (4, True, "Not known how good it is: the case AUROC of m, 1.000, rests on 4"),  # by chance once in 70 orders
        (2, True, "Not known whether it learned"),  # once in 6
        (12, True, None),
    ],
)
def test_a_model_that_may_have_learned_nothing_is_told_on_top(tmp_path, n, told, words):
    cases = {"m": cases_of_chance(n, told)}
    found = [f"{headline}: {text}" for headline, text in _doubts(_measure(cases, resamples=200), cases)]
    assert [words in text for text in found] == ([True] if words else [])


def test_cases_without_labels_are_not_doubted():
    unknown = [replace(p, y=None) for p in cases_of_chance(4, told=True)]
    assert _doubts(_measure({"m": unknown}, resamples=20), {"m": unknown}) == []


def test_slides_of_few_patients_are_no_exact_test():
    cases = cases_of_chance(8, told=True)
    shared = [replace(p, meta={**p.meta, "group": str(i // 2 % 2)}) for i, p in enumerate(cases)]
    found = _doubts(_measure({"m": shared}, resamples=20), {"m": shared})
    assert [headline for headline, _ in found] == ["Not known whether it learned"]


@pytest.mark.parametrize(
    ("patients", "sign", "words"),
    [
        (40, 1, []),
        (40, -1, ["No better than chance: m's C-index is below 0.5"]),
        (40, 0, ["No better than chance: the interval of m's C-index"]),
        (6, 1, ["Not known whether it learned: the C-index of m"]),
    ],
)
def test_a_risk_that_may_be_chance_is_told_as_well(patients, sign, words):
    rng = np.random.default_rng(0)
    facts = {"kind": "survival", "columns": ["time", "event"], "edges": [10.0]}
    times, noise = rng.uniform(1, 20, patients), rng.normal(size=patients)
    risk = noise if sign == 0 else -sign * times + noise
    cases = [
        Prediction(f"c{i}", [0.5], [0.0], value=float(risk[i]), target=[times[i], 1.0],
                   meta={"target": facts, "patient": f"p{i}", "score_kind": "attention logit"})
        for i in range(patients)
    ]  # fmt: skip
    found = [f"{headline}: {text}" for headline, text in _doubts(_measure({"m": cases}, resamples=200), {"m": cases})]
    assert [text[: len(word)] for text, word in zip(found, words, strict=True)] == words

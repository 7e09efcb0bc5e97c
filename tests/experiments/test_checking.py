"""A model or option that does not exist is one line before anything is trained."""

import pytest
from support.studies import tiny_study, variant

from smmil.errors import ConfigError
from smmil.experiments import grid
from smmil.experiments.grid import check_models
from smmil.experiments.runner import run_study


def problem_of(wrong):
    with pytest.raises(ConfigError) as found:
        check_models(tiny_study(variants=[variant("Good"), wrong]), "lab/study.yaml")
    return str(found.value)


def test_an_unknown_option_is_named_with_config_variant_and_what_the_model_takes():
    text = problem_of(variant("Mine", options={"gatde": True}))
    assert text.startswith("lab/study.yaml: variant 'Mine': model abmil: unknown option 'gatde'; did you mean gated?")
    assert "(options of abmil: dim, att_dim, gated" in text
    assert "\n" not in text


def test_an_unknown_model_is_named_with_its_neighbours():
    assert "variant 'Mine': model: unknown name 'abmli'; did you mean abmil" in problem_of(variant("Mine", "abmli"))


def test_a_value_that_cannot_be_is_refused_too():
    text = problem_of(variant("Mine", "sm_ap", options={"where": "nowhere"}))
    assert "where: unknown value 'nowhere'" in text
    assert "options of sm_ap: " in text


def test_of_code_from_elsewhere_only_names_are_checked():
    check_models(tiny_study(variants=[variant("Mine", "support.broken_model:Picky", options={})]), "s")
    text = problem_of(variant("Mine", "support.broken_model:Picky", options={"widht": 3}))
    assert "unknown option 'widht'; did you mean width?" in text
    assert "cannot be loaded" in problem_of(variant("Mine", "experiments.no_such_module:Mine", options={}))


def test_the_same_model_is_built_once(monkeypatch):
    built = []
    real = grid.create_model
    monkeypatch.setattr(grid, "create_model", lambda *a, **k: (built.append(a), real(*a, **k))[1])
    study = tiny_study(variants=[variant("A", options={"dim": 11}), variant("B", options={"dim": 11})])
    check_models(study, "s")
    check_models(study, "s")
    assert len(built) == 1


def test_nothing_is_trained_when_one_variant_is_wrong(tmp_path):
    bad = variant("Bad", "sm_ap", options={"where": "nowhere"})
    with pytest.raises(ConfigError, match="tiny: variant 'Bad'"):
        run_study(tiny_study(variants=[variant("ABMIL"), bad]), tmp_path)
    assert not list(tmp_path.rglob("*"))

"""Laws of image quality in the drift alarm: level, power to both sides, words, and nothing changed without facts."""

from dataclasses import replace

import numpy as np
import pytest
from support.drift_cases import case, together

from smmil.errors import DataError
from smmil.evaluate import quality
from smmil.evaluate.alarm import _REASONS
from smmil.evaluate.drift import fit_drift
from smmil.evaluate.quality import _QUALITY
from smmil.images.quality import TILE_FACTS
from smmil.predict.drift import read_drift, save_drift
from smmil.weights import read_weights, save_weights

# (seed, shift, p, share, score) of `case` against 60 others
BEFORE = (
    (1000, 0.0, 0.12903225806451613, 0.0, 1.801557),
    (1001, 0.3, 0.3225806451612903, 0.0, 0.92509),
    (1002, 0.6, 0.03225806451612903, 0.6363636363636364, 6.773406),
    (1003, 1.0, 0.03225806451612903, 1.0, 7.522388),
)
SPREAD = np.array([0.1, 0.05, 0.05, 0.3, 0.3, 0.4, 0.0])


def measured(seed, shift=None, **options):
    """A case whose facts vary between cases as their instances do; `shift` moves some of them, in deviations."""
    plain, rng = case(seed, **options), np.random.default_rng([13, seed])
    facts = (rng.standard_normal(7) + rng.standard_normal((len(plain.x), 7))) * SPREAD
    for name, deviations in (shift or {}).items():
        facts[:, TILE_FACTS.index(name)] += deviations * SPREAD[TILE_FACTS.index(name)]
    return replace(plain, quality=facts.astype(np.float32), quality_names=TILE_FACTS)


def all_measured(ids):
    return {f"c{i}": measured(i) for i in ids}


@pytest.fixture(scope="module")
def summary():
    cases = all_measured(range(60))
    return fit_drift({id_: id_ for id_ in cases}, cases.__getitem__)


def test_false_alarms_stay_at_the_level_over_random_divisions_of_patients():
    rng, alarms, cases = np.random.default_rng(0), [], all_measured(range(60))
    for turn in range(8):
        names = rng.permutation(list(cases)).tolist()
        made = fit_drift({n: f"{turn} {n}" for n in names[:44]}, cases.__getitem__)
        alarms += [made.examine(cases[n]).alarm for n in names[44:]]
    assert np.mean(alarms) <= made.level + 3 * np.sqrt(made.level / len(alarms))


@pytest.mark.parametrize("name", [name for name in TILE_FACTS if name != "ink"])
@pytest.mark.parametrize(("deviations", "side"), [(8, "high"), (-8, "low")])
def test_a_fact_that_moves_to_either_side_raises_the_alarm_and_is_named(summary, name, deviations, side):
    found = [summary.examine(measured(100 + i, {name: deviations})) for i in range(6)]
    assert all(one.alarm for one in found)
    assert all(f"{name} {side}" in one.why for one in found)


def test_the_alarm_grows_with_the_fact(summary):
    scores = [
        np.mean([summary.examine(measured(200 + i, {"sharpness": -s})).score for i in range(10)]) for s in (2, 4, 8)
    ]
    assert scores == sorted(scores)
    assert not summary.examine(measured(201)).alarm


def test_a_stroke_of_pen_on_a_few_instances_raises_the_alarm_and_shows_on_the_map(summary):
    marked = measured(300, n=40)
    marked.quality[:3, TILE_FACTS.index("ink")] = 0.5
    found = summary.examine(marked)
    assert found.alarm
    assert "ink high" in found.why
    assert found.strangeness[:3].min() == found.strangeness.max() == pytest.approx(1 - 1 / (summary.patients + 1))
    assert np.median(found.strangeness[3:]) < 0.9


def test_norms_are_those_of_a_plain_count():
    """Two cases of one patient weigh half each; facts that a case does not have do not count."""
    tables = [quality._quality_table("c", measured(i).quality, TILE_FACTS, len(measured(i).quality)) for i in range(5)]
    tables[1][:, 0] = np.nan
    weights = np.array([0.5, 0.5, 1, 1, 1])
    energies = [np.zeros(len(table)) for table in tables]
    norms = quality._QualityNorms.fit(tables, energies, weights, 0.95)
    medians = np.array([np.median(table[:, 0]) for table in tables])[[0, 2, 3, 4]]
    w = np.array([0.5, 1, 1, 1]) / 3.5
    mean = (w * medians).sum()
    assert norms.cases[0, 0] == pytest.approx(mean, abs=1e-6)
    assert norms.cases[1, 0] == pytest.approx(np.sqrt((w * (medians - mean) ** 2).sum()), abs=1e-6)
    np.testing.assert_allclose(norms.deviations(tables[2])[0], (medians[1] - mean) / norms.cases[1, 0], rtol=1e-4)
    ink = _QUALITY.index("ink")
    assert norms.cases[0, ink] == 0
    assert norms.cases[1, ink] == pytest.approx(quality._FLOORS["ink"])
    assert np.isnan(norms.cases[:, _QUALITY.index("density")]).all()


def test_without_facts_everything_is_as_it_was_without_them():
    """Numbers of the version that knew no facts."""
    plain = fit_drift(*together(60))
    for seed, shift, p, share, score in BEFORE:
        found = plain.examine(case(seed, shift=shift))
        assert (found.p, found.share) == (pytest.approx(p, abs=1e-12), pytest.approx(share, abs=1e-12))
        assert found.score == pytest.approx(score, abs=1e-5)


def test_a_case_without_facts_is_compared_by_its_features(summary):
    bare = replace(measured(400, shift=None), quality=None, quality_names=())
    assert not summary.examine(bare).alarm
    foreign = replace(bare, quality=np.full((len(bare.x), 1), 99.0), quality_names=("taste",))
    assert summary.examine(foreign).score == summary.examine(bare).score
    assert summary.examine(replace(case(401, shift=4.0))).alarm


def test_columns_are_known_by_their_names(summary):
    one = measured(500, {"blocks": 3})
    turned = replace(one, quality=one.quality[:, ::-1], quality_names=TILE_FACTS[::-1])
    assert summary.examine(turned).score == summary.examine(one).score
    with pytest.raises(DataError, match="prepare this case again"):
        summary.examine(replace(one, quality=one.quality[:, :3]))


def test_the_file_keeps_the_facts_and_wrong_ones_are_refused(summary, tmp_path):
    save_drift(summary, tmp_path / "drift.safetensors")
    again, strange = read_drift(tmp_path / "drift.safetensors"), measured(600, {"eosin": -9})
    assert again.digest == summary.digest
    assert again.examine(strange).why == summary.examine(strange).why
    np.testing.assert_array_equal(again.examine(strange).strangeness, summary.examine(strange).strangeness)
    for change in ({"quality": ["taste"]}, {"quality_offset": None}, {"format": 1}):
        tensors, facts = read_weights(tmp_path / "drift.safetensors")
        save_weights(tmp_path / "other.safetensors", tensors, {**facts, **change})
        with pytest.raises(DataError, match=r"not a drift summary of this version.*write it with smmil drift"):
            read_drift(tmp_path / "other.safetensors")
    tensors, facts = read_weights(tmp_path / "drift.safetensors")
    tensors["quality_cases"] = -tensors["quality_cases"]
    save_weights(tmp_path / "other.safetensors", tensors, facts)
    with pytest.raises(DataError, match="not a drift summary of this version"):
        read_drift(tmp_path / "other.safetensors")


def test_every_fact_has_words_to_both_sides():
    assert {f"{name} {side}" for name in _QUALITY for side in ("low", "high")} <= _REASONS.keys()

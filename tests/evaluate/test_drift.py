"""Laws of the drift alarm: p-values that keep their level, power, invariances, and a file that can be trusted."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.drift_cases import WIDTH, case, together

from smmil.errors import ConfigError, DataError
from smmil.evaluate import drift, drift_norms
from smmil.evaluate.alarm import _AppliedDrift, applied_drift
from smmil.evaluate.drift import DriftCase, DriftSummary, _Tail, fit_drift
from smmil.evaluate.folder_drift import _two_sample_p, folder_drift
from smmil.frame import Frame
from smmil.predict.drift import read_drift, save_drift
from smmil.prediction import Prediction
from smmil.weights import read_weights, save_weights


@pytest.fixture(scope="module")
def summary():
    return fit_drift(*together(60))


def literal_p(score, patients):
    """The definition, word for word: patients are lists of cases, cases lists of scores."""
    total = 1.0
    for cases in patients:
        shares = [sum(value >= score for value in scores) / len(scores) for scores in cases]
        total += sum(shares) / len(shares)
    return total / (len(patients) + 1)


def tail_of(patients):
    scores = [np.array(s, dtype=float) for cases in patients for s in cases]
    weights = np.array([1 / len(cases) for cases in patients for _ in cases])
    return _Tail.fit(scores, weights, len(patients))


def drawn_patients(rng, count):
    """Patients of one to three cases of one to six scores, some of them equal."""
    return [
        [np.round(rng.normal(m, 1, rng.integers(1, 7)), 1).tolist() for _ in range(rng.integers(1, 4))]
        for m in rng.normal(0, 1, count)
    ]


def test_p_values_are_those_of_the_definition():
    rng = np.random.default_rng(0)
    patients = drawn_patients(rng, 13)
    at = np.round(rng.normal(0, 3, 60), 1)
    np.testing.assert_allclose(tail_of(patients).p(at), [literal_p(s, patients) for s in at], atol=1e-8)


def test_with_fewer_knots_a_p_value_is_never_smaller_and_hardly_larger():
    rng = np.random.default_rng(1)
    patients = [[rng.normal(m, 1, 100).tolist()] for m in rng.normal(0, 0.3, 20)]
    at = rng.normal(0, 2, 100)
    exact = np.array([literal_p(s, patients) for s in at])
    tail = tail_of(patients)
    assert len(tail.knots) <= drift._MOST_KNOTS
    assert (tail.p(at) >= exact - 1e-9).all()
    assert (tail.p(at) - exact).max() < 0.01
    assert tail.p(np.array([99.0]))[0] == 1 / 21


def test_p_values_of_a_new_patient_keep_every_level():
    """The chance of p <= a is at most a, for a random case of a random patient, however patients differ."""
    rng, rounds = np.random.default_rng(2), 1200
    found = []
    for _ in range(rounds):
        *known, new = drawn_patients(rng, 12)
        scores = new[rng.integers(len(new))]
        found.append(tail_of(known).p(np.array([scores[rng.integers(len(scores))]]))[0])
    for level in (1 / 13, 0.1, 0.2, 0.5):
        assert np.mean(np.array(found) <= level) <= level + 3 * np.sqrt(level / rounds)


def test_false_alarms_stay_at_the_level_over_random_divisions_of_patients():
    """More features than patients: cases that had a part in the norms would look far too usual to be compared with."""
    rng, alarms, level = np.random.default_rng(4), [], None
    means = rng.normal(0, 0.5, (60, 50))
    cases = {f"c{i}": DriftCase(f"c{i}", rng.normal(means[i // 2], 1, (8, 50))) for i in range(120)}
    for turn in range(10):
        order = rng.permutation(60)
        # two cases of each patient; names change with the turn, so that the halves do
        chosen = {f"c{2 * p + k}": f"{turn} {p}" for p in order[:44] for k in (0, 1)}
        made = fit_drift(chosen, cases.__getitem__)
        level = made.level
        alarms += [made.examine(cases[f"c{2 * p + int(rng.integers(2))}"]).alarm for p in order[44:]]
    assert np.mean(alarms) <= level + 3 * np.sqrt(level / len(alarms))


def test_the_alarm_grows_with_the_shift_and_ends_at_certainty(summary):
    rates = [np.mean([summary.examine(case(1000 + i, shift=s)).alarm for i in range(30)]) for s in (0, 0.5, 1, 2, 4)]
    assert rates == sorted(rates)
    assert rates[0] <= 0.2
    assert rates[-1] == 1


@pytest.mark.parametrize(("spread", "why"), [(0.3, "variety"), (3.0, "variety")])
def test_cases_whose_instances_differ_too_little_or_too_much_are_noticed(summary, spread, why):
    found = [summary.examine(case(2000 + i, spread=spread)) for i in range(10)]
    assert np.mean([one.alarm for one in found]) >= 0.9
    assert sum(why in one.why for one in found) >= 8


def test_a_stroke_of_pen_shows_where_it_is(summary):
    stained = case(3000, n=40, planted=0.25)
    found = summary.examine(stained)
    assert found.alarm
    assert found.strangeness[:10].min() == found.strangeness.max() == pytest.approx(1 - 1 / (summary.patients + 1))
    assert np.median(found.strangeness[10:]) < 0.9
    assert found.share >= 0.25


def test_p_values_fall_as_instances_move_away(summary):
    middle = np.asarray(summary.norms.space.mean, dtype=float)
    away = middle + np.linspace(0, 20, 40)[:, None] * np.asarray(summary.norms.space.axes)[:, 0]
    strange = summary.examine(replace(case(0), x=away, coords=None, edges=None)).strangeness
    assert (np.diff(strange) >= 0).all()
    assert strange[0] < strange[-1]


def test_missing_slices_and_other_distances_are_noticed_although_all_slices_look_as_usual(summary):
    usual = case(4001, n=24)
    assert not summary.examine(usual).alarm
    positions = np.r_[0:10, 14:24] * 5.0
    rows = np.r_[0:10, 14:24]
    places = {"coords": np.arange(20)[:, None], "edges": usual.edges[:, :19], "positions_mm": positions}
    gap = replace(usual, x=usual.x[rows], **places)
    assert "gap" in summary.examine(gap).why
    wide = replace(usual, frame=Frame((1.0,), (10.0,), "mm"))
    assert set(summary.examine(wide).why) & {"distance", "size"}
    assert "count" in summary.examine(case(4002, n=300)).why


def test_the_order_of_instances_does_not_matter(summary):
    usual = case(5000, shift=0.4)
    order = np.random.default_rng(0).permutation(len(usual.x))
    place = np.argsort(order)
    mixed = replace(usual, x=usual.x[order], coords=usual.coords[order], edges=place[usual.edges])
    one, other = summary.examine(usual), summary.examine(mixed)
    assert (one.p, one.alarm, one.share, one.why) == (other.p, other.alarm, other.share, other.why)
    np.testing.assert_allclose(one.strangeness[order], other.strangeness, atol=1e-6)


def test_the_order_of_cases_does_not_matter_and_the_patients_are_kept_together(summary):
    patients, read = together(60)
    again = fit_drift(dict(reversed(patients.items())), read)
    assert again.digest == summary.digest
    folds, held_out = drift._parts(together(60, per_patient=3)[0])
    sides = [{int(id_[1:]) // 3 for id_ in part} for part in (*folds, held_out)]
    assert sum(map(len, sides)) == len(set.union(*sides)) == 20
    assert all(weight == pytest.approx(1 / 3) for part in (*folds, held_out) for weight in part.values())


def test_the_level_is_what_the_held_out_patients_allow():
    few = fit_drift(*together(22))
    assert (few.reference, few.patients, few.level) == (10, 12, 1 / 13)
    assert fit_drift(*together(40)).level == 0.05
    with pytest.raises(DataError, match="19 patients are too few"):
        fit_drift(*together(19))
    with pytest.raises(ConfigError, match="level 5: expected a share"):
        fit_drift(*together(40), level=5)


def test_the_summary_holds_no_case(summary):
    """Its size does not grow with the cases, but for one number each, and no row of features is in it."""
    sizes = {name: array.size for name, array in summary.arrays().items()}
    more = {name: array.size for name, array in fit_drift(*together(120)).arrays().items()}
    assert {name for name in sizes if sizes[name] != more[name]} <= {
        "cases_knots", "cases_beyond", "instances_knots", "instances_beyond"}  # fmt: skip
    assert max(more["instances_knots"], more["cases_knots"]) <= drift._MOST_KNOTS + 2
    rows = np.concatenate([case(i).x for i in range(60)])
    for array in summary.arrays().values():
        numbers = array.ravel()[: array.size // WIDTH * WIDTH].reshape(-1, WIDTH)
        assert not any(np.abs(rows - candidate).max(1).min() <= 1e-3 for candidate in numbers)  # unknown facts are nan


def test_a_file_gives_the_same_summary_and_a_changed_one_is_refused(summary, tmp_path):
    save_drift(summary, tmp_path / "drift.safetensors")
    again = read_drift(tmp_path / "drift.safetensors")
    assert again.digest == summary.digest
    strange = case(7, shift=1.0)
    one, other = summary.examine(strange), again.examine(strange)
    assert (one.p, one.share, one.why) == (other.p, other.share, other.why)
    data = bytearray((tmp_path / "drift.safetensors").read_bytes())
    data[-20] ^= 1
    (tmp_path / "drift.safetensors").write_bytes(bytes(data))
    with pytest.raises(DataError, match="does not match its seal"):
        read_drift(tmp_path / "drift.safetensors")


@pytest.mark.parametrize("wrong", ["shape", "patients", "scale", "kind", "knots", "noise", "more"])
def test_a_sealed_file_of_other_numbers_is_refused(summary, tmp_path, wrong):
    save_drift(summary, tmp_path / "drift.safetensors")
    tensors, facts = read_weights(tmp_path / "drift.safetensors")
    if wrong == "shape":
        tensors["mean"] = tensors["mean"][:-1]
    elif wrong == "patients":
        facts["patients"] = 3
    elif wrong == "scale":
        tensors["axes_scale"] = -tensors["axes_scale"]
    elif wrong == "kind":
        facts = {"note": 1}
    elif wrong == "noise":
        facts["noise"] = 1.0  # although the axes hold all there is
    elif wrong == "knots":
        tensors["cases_knots"] = tensors["cases_knots"].flip(0)
    else:
        tensors["patient_7"] = tensors["mean"]
    save_weights(tmp_path / "other.safetensors", tensors, facts)
    with pytest.raises(DataError, match="not a drift summary of this version"):
        read_drift(tmp_path / "other.safetensors")


WEAK = np.where(np.arange(90) < 60, 1.0, 0.1)


def wide_case(seed, lean=0.0):
    """More features than axes; the last thirty hardly vary, and `lean` moves these alone."""
    rng = np.random.default_rng([12, seed])
    mean = 0.3 * rng.standard_normal(90) * WEAK
    return DriftCase(f"c{seed}", mean + rng.standard_normal((30, 90)) * WEAK + lean * (WEAK < 1))


@pytest.fixture(scope="module")
def wide():
    cases = {f"c{i}": wide_case(i) for i in range(48)}
    return fit_drift({id_: id_ for id_ in cases}, cases.__getitem__)


def test_norms_are_those_of_a_plain_decomposition(wide):
    """Every patient counts alike; strangeness is the mean square on the axes plus that off them."""
    folds, _ = drift._parts({f"c{i}": f"c{i}" for i in range(48)})
    rows = np.concatenate([wide_case(int(id_[1:])).x for id_ in {**folds[0], **folds[1]}])  # of equal sizes
    values, axes = np.linalg.eigh(np.cov(rows.T, bias=True))
    values, axes = values[::-1], axes[:, ::-1]
    new = wide_case(77, lean=0.05)
    moved = (new.x - rows.mean(0)) @ axes
    off, noise = moved[:, 64:], values[64:].mean()
    look = drift_norms._describe(wide.norms.space, new)
    expected = np.log((moved[:, :64] ** 2 / values[:64]).mean(1) + (off**2).mean(1) / noise)
    np.testing.assert_allclose(look.energy, expected, atol=1e-4)
    assert look.lean == pytest.approx(np.log((off.mean(0) ** 2).sum() / 90 / noise), abs=1e-4)


def test_a_lean_of_all_instances_where_cases_hardly_differ_is_noticed(wide):
    found = [wide.examine(wide_case(100 + i, lean=0.15)) for i in range(10)]
    assert np.mean([one.alarm for one in found]) >= 0.9
    assert sum("lean" in one.why for one in found) >= 8
    assert np.mean([wide.examine(wide_case(100 + i)).alarm for i in range(10)]) <= 0.3


def test_large_cases_are_read_in_parts_with_the_same_result(wide, monkeypatch):
    strange = wide_case(200, lean=0.1)
    before = wide.examine(strange)
    monkeypatch.setattr(drift_norms, "_ROWS", 7)
    cases = {f"c{i}": wide_case(i) for i in range(48)}
    after = fit_drift({id_: id_ for id_ in cases}, cases.__getitem__).examine(strange)
    assert (after.p, after.share, after.why) == (before.p, before.share, before.why)
    np.testing.assert_allclose(after.strangeness, before.strangeness, atol=1e-6)
    assert after.score == pytest.approx(before.score, abs=1e-3)


def test_features_of_another_width_are_refused(summary):
    with pytest.raises(DataError, match="7 features per instance, but the summary is of 12"):
        summary.examine(replace(case(0), x=np.zeros((4, 7)), coords=None, edges=None))


def test_a_case_of_one_instance_and_one_without_places_can_be_examined(summary):
    for alone in (case(8, n=1), replace(case(8), coords=None, frame=None, edges=None)):
        found = summary.examine(replace(alone, edges=None))
        assert 0 < found.p <= 1
        assert len(found.strangeness) == len(alone.x)


def folder(summary, cases, patients=None):
    plain = [Prediction(c.id, [0.5], np.zeros(len(c.x)), meta={"group": g} if (g := (patients or {}).get(c.id)) else {})
             for c in cases]  # fmt: skip
    return [summary.applied(p, c) for p, c in zip(plain, cases, strict=True)]


def test_a_prediction_carries_the_alarm_and_what_it_means(summary, tmp_path):
    [strange] = folder(summary, [case(9, shift=4.0)])
    strange.save(tmp_path / "c9.npz")
    found = applied_drift(Prediction.load(tmp_path / "c9.npz"))
    assert found.alarm
    assert found.p == 1 / (summary.patients + 1)
    assert found.text.startswith("This case looks unlike the cases that the model learned from: of 30 comparison")
    assert "none looked as unusual" in found.text
    np.testing.assert_array_equal(Prediction.load(tmp_path / "c9.npz").strangeness, strange.strangeness)
    assert strange.layer("strangeness").scores.shape == (strange.n, 1)
    assert folder(summary, [case(9)])[0].meta["drift"]["alarm"] is False


@pytest.mark.parametrize("damage", [{"p": 2.0}, {"why": ["<b>"]}, {"patients": 0}, {"alarm": "yes"}, {"level": None}])
def test_a_statement_that_nobody_wrote_is_none(summary, damage):
    [strange] = folder(summary, [case(9, shift=4.0)])
    assert applied_drift(replace(strange, meta={"drift": {**strange.meta["drift"], **damage}})) is None


def test_a_folder_of_usual_cases_is_like_the_rest_and_a_shifted_one_is_not(summary):
    usual = folder_drift(folder(summary, [case(6000 + i) for i in range(12)]))
    assert not usual.alarm
    assert (
        f"As a whole no difference was shown (12 cases of 12 patients against 30 patients, p = {usual.p:.2g})."
        in usual.text
    )
    assert "look like them" not in usual.text
    slight = folder(summary, [case(6000 + i, shift=0.8) for i in range(12)])
    found = folder_drift(slight)
    assert found.alarm
    assert found.unlike == tuple(p.id for p in slight if p.meta["drift"]["alarm"])
    assert "No promise holds here" in found.text
    assert f"they differ from them (12 cases of 12 patients against 30 patients, p = {found.p:.2g})" in found.text


def test_many_cases_of_one_patient_are_no_folder_of_evidence(summary):
    """Twelve times the same slightly unusual patient says no more than once."""
    cases = [replace(case(6100, shift=0.45), id=f"s{i}") for i in range(12)]
    alone = folder_drift(folder(summary, cases[:1])).p
    assert folder_drift(folder(summary, cases, {c.id: "anna" for c in cases})).p == pytest.approx(alone, abs=0.02)
    assert folder_drift(folder(summary, cases)).p < alone


def test_the_test_of_folders_keeps_its_level():
    rng, rounds, level = np.random.default_rng(5), 150, 0.05
    found = []
    for _ in range(rounds):
        known, new = rng.random(20), rng.random(7)
        found.append(_two_sample_p(np.array([(1 + (known >= v).sum()) / 21 for v in new]), 20, level))
    assert np.mean(np.array(found) <= level) <= level + 3 * np.sqrt(level / rounds)
    assert _two_sample_p(np.full(7, 1 / 21), 20, level) < 0.01
    assert _two_sample_p(np.full(7, 1.0), 20, level) < 0.05


def test_predictions_compared_with_several_summaries_have_no_test_together(summary):
    other = fit_drift(*together(60, first=200))
    assert folder_drift([*folder(summary, [case(1)]), *folder(other, [case(2)])]) is None
    assert folder_drift([Prediction("a", [0.5], [0.0])]) is None


def test_every_reason_has_words():
    known = _AppliedDrift(0.05, True, 0.1, 0.05, 19, (*drift._BLOCKS[:-2], *drift_norms._FACTS), "d")
    assert all(word in known.text for word in ("staining", "focus", "blur", "pixel size", "gaps"))


def test_the_summary_needs_what_it_states(summary):
    arrays, facts = summary.arrays(), summary.facts()
    assert DriftSummary.of(arrays, facts).digest == summary.digest


def test_the_example_of_the_page_holds():
    page = (Path(__file__).parents[2] / "docs" / "drift.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    exec(compile(example, "docs/drift.md", "exec"), {})

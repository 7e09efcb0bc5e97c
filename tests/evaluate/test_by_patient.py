"""Patients counted once: parts of their bags put together again, and probabilities of their cases aggregated."""

from dataclasses import replace

import numpy as np
import pytest

from smmil.errors import ConfigError, DataError
from smmil.evaluate import bag_metrics, bootstrap_ci, compare, energies, froc, instance_metrics, reliability_curve
from smmil.evaluate.bags import (
    as_patient,
    by_patient,
    judged_by,
    own_case,
    patients_in_notes,
    patients_in_words,
    resampled_in_words,
    whole_bags,
    whole_patients,
)
from smmil.evaluate.calibration import _class_sets, _probability_maps
from smmil.evaluate.folders import summary
from smmil.evaluate.prior import position_prior
from smmil.frame import Frame
from smmil.prediction import Prediction


def whole(patient, sizes, *, y, p, seed=0):
    """A patient's bag as one prediction, and its parts as smmil predict writes them."""
    rng = np.random.default_rng(seed)
    parts, n = [], sum(sizes)
    scores, labels = rng.standard_normal((n, 1)), (rng.random(n) < 0.3).astype(int) * y
    edges = []
    meta = {"score_kind": "attention logit", "group": f"{patient}_0"}
    for k, size in enumerate(sizes):
        rows = slice(sum(sizes[:k]), sum(sizes[: k + 1]))
        own = np.stack([np.arange(size - 1), np.arange(1, size)])
        own = np.concatenate([own, own[::-1]], 1)
        edges.append(own + rows.start)
        facts = {**meta, "patient_bag": {"patient": f"{patient}_0", "cases": len(sizes), "part": k}}
        grid = np.stack([np.arange(size), np.zeros(size, int)], 1)
        coords = {"coords": grid, "frame": Frame((1, 1))}
        parts.append(
            Prediction(f"{patient}_{k}", [p], scores[rows], edges=own, y=y, y_inst=labels[rows], meta=facts, **coords)
        )
    edges = np.concatenate(edges, 1)
    return Prediction(f"{patient}_0", [p], scores, edges=edges, y=y, y_inst=labels, meta=meta), parts


@pytest.fixture(scope="module")
def study():
    """24 patients: their bags, and the same as files of single cases in any order."""
    rng = np.random.default_rng(1)
    bags, cases = [], []
    for k in range(24):
        y = k % 2
        sizes = rng.integers(6, 15, rng.integers(1, 4)).tolist()
        bag, parts = whole(f"p{k:02d}", sizes, y=y, p=float(rng.beta(2 + 2 * y, 4 - 2 * y)), seed=k)
        bags.append(bag)
        cases += parts
    order = rng.permutation(len(cases))
    return bags, [cases[k] for k in order]


def plain(result):
    """What a summary measures, without notes."""
    return {k: v for k, v in result.items() if isinstance(v, float | int)}


def test_parts_of_a_bag_count_as_the_bag_itself_in_every_number(study):
    bags, cases = study
    assert len(cases) > len(bags)
    for measure in (bag_metrics, energies, froc):
        assert plain(measure(cases)) == pytest.approx(plain(measure(bags)), nan_ok=True)
    for pool in ("all", "per_bag", "positive_bags"):
        ours, theirs = (plain(instance_metrics(p, 0.3, pool)) for p in (cases, bags))
        assert ours == pytest.approx(theirs, nan_ok=True)
    assert reliability_curve(cases)["n"] == reliability_curve(bags)["n"]


@pytest.mark.parametrize("metric", ["bag_auroc", "bag_f1", "bag_brier", "inst_auroc", "froc", "energy_geary"])
def test_intervals_and_comparisons_are_those_of_the_bags(study, metric):
    bags, cases = study
    ours, theirs = (bootstrap_ci(p, metric, n=50) for p in (cases, bags))
    assert [ours[k] for k in ("value", "low", "high")] == pytest.approx(
        [theirs[k] for k in ("value", "low", "high")], nan_ok=True
    )
    assert ours["n_cases"] == theirs["n_cases"]
    changed = [[replace(p, probs=p.probs**2) for p in these] for these in (cases, bags)]
    first, second = (compare(a, b, metric, n=50) for a, b in zip((cases, bags), changed, strict=True))
    assert (first["difference"], first["low"]) == pytest.approx((second["difference"], second["low"]), nan_ok=True)


def test_sets_of_classes_are_calibrated_on_patients(study):
    bags, cases = study
    assert _class_sets(cases, 0.2) == _class_sets(bags, 0.2)
    ours, theirs = (_probability_maps(p, "platt", None)[0] for p in (cases, bags))
    assert (*ours.x, *ours.y) == pytest.approx((*theirs.x, *theirs.y), rel=1e-9)


def test_the_position_prior_is_one_of_places_and_its_numbers_count_bags(study):
    bags, cases = study
    found = position_prior(cases)
    judged = [p for p in bags if p.y and 0 < p.y_inst.sum() < p.n]
    assert found["n_cases"] == len(judged)
    assert found["per_bag"]["model"] == pytest.approx(instance_metrics(judged, pool="per_bag")["auroc"])


def test_what_is_put_together_stays_as_it_is(study):
    bags, cases = study
    again = whole_bags(whole_bags(cases))
    assert [p.id for p in again] == [p.id for p in whole_patients(cases)]
    assert whole_bags(bags) is bags
    single = next(p for p in again if p.coords is not None)
    assert np.array_equal(single.coords, next(p for p in cases if p.id == single.id).coords)


def test_parts_that_contradict_each_other_are_refused(study):
    parts = whole("q", [5, 6], y=1, p=0.7)[1]
    with pytest.raises(DataError, match="q_0 and q_1 are parts of one patient with other results"):
        bag_metrics([parts[0], replace(parts[1], probs=[0.1])])


@pytest.mark.parametrize("damage", [None, 3, {}, {"patient": ""}, {"patient": "a", "cases": "b", "part": 0}])
def test_a_damaged_note_about_a_patient_is_none(damage):
    part = replace(whole("q", [5], y=1, p=0.7)[1][0], meta={"patient_bag": damage})
    assert whole_patients([part])[0] is part


def case(id_, p, y=None, who=None, **more):
    return Prediction(id_, p, np.zeros((2, 1)), y=y, meta={} if who is None else {"group": who}, **more)


PAIR = {"mean": 0.5, "max": 0.8, "noisy-or": 1 - 0.2 * 0.8}


@pytest.mark.parametrize("aggregate", PAIR)
def test_probabilities_of_a_patient_become_one_as_by_hand(aggregate):
    cases = [case("b", [0.8], 1, "x"), case("a", [0.2], 0, "x"), case("c", [0.3], 0, "y")]
    found = by_patient(cases, aggregate)
    assert [p.id for p in found] == ["b", "a", "c"]
    assert [float(p.probs[0]) for p in found] == pytest.approx([PAIR[aggregate]] * 2 + [0.3])
    assert [p.y for p in found] == [1, 0, 0]  # labels of cases stay
    facts = {"patient": "a", "cases": 2, "aggregate": aggregate, "y": 1, "part": 1}
    assert found[0].meta["patient_bag"] == {**facts, "own": {"probs": [0.8], "value": None}}
    assert [(float(own_case(p).probs[0]), own_case(p).y) for p in found] == [(0.8, 1), (0.2, 0), (0.3, 0)]
    assert [as_patient(p).y for p in found] == [1, 1, 0]
    numbers = bag_metrics(found)
    assert (numbers["n"], numbers["n_positive"], numbers["auroc"]) == (2, 1, 1.0)
    two = by_patient([case("a", [0.8, 0.2], 0, "x"), case("b", [0.2, 0.8], 1, "x")], aggregate)
    assert two[0].probs == pytest.approx([1 - PAIR[aggregate], PAIR[aggregate]])


def test_several_classes_have_a_mean_only_and_labels_must_agree():
    cases = [case("a", [0.2, 0.3, 0.5], 2, "x"), case("b", [0.4, 0.5, 0.1], 2, "x")]
    assert by_patient(cases)[0].probs == pytest.approx([0.3, 0.4, 0.3])
    for aggregate in ("max", "noisy-or"):
        with pytest.raises(ConfigError, match=f"aggregate {aggregate}: is defined for one positive class.*use mean"):
            by_patient(cases, aggregate)
    with pytest.raises(DataError, match="a: 2, b: 1"):
        by_patient([cases[0], replace(cases[1], y=1)])


def test_an_unknown_label_is_none_unless_a_case_is_positive():
    cases = [
        case("a", [0.2], 0, "x"),
        case("b", [0.8], None, "x"),
        case("c", [0.8], 1, "y"),
        case("d", [0.8], None, "y"),
    ]
    assert [p.y for p in whole_patients(by_patient(cases))] == [None, 1]


def test_instances_stay_those_of_the_cases(study):
    _, cases = study
    separate = [replace(p, meta={k: v for k, v in p.meta.items() if k != "patient_bag"}) for p in cases]
    found = by_patient(separate, "max")
    for pool in ("all", "per_bag", "positive_bags"):
        assert instance_metrics(found, 0.3, pool) == instance_metrics(separate, 0.3, pool)
    assert energies(found) == energies(separate)
    assert bag_metrics(found)["n"] == 24
    both = summary(found)["bag"]["notes"][0]
    assert both == f"counted by patient: {len(cases)} cases of 24 patients, highest probability of their cases"


def test_bags_of_patients_are_by_patient_on_their_own(study):
    _, cases = study
    assert by_patient(cases, "max") == cases
    assert all(own_case(p) is None for p in cases)
    assert patients_in_notes(cases)[0].endswith("24 patients, one bag each")
    assert patients_in_notes([]) == []


def test_who_the_patients_are_must_be_known_and_an_idle_aggregate_is_refused():
    with pytest.raises(DataError, match="no prediction says whose case it is"):
        by_patient([case("a", [0.5])])
    with pytest.raises(ConfigError, match="by patient only"):
        judged_by({"m": []}, "case", "max")
    with pytest.raises(ConfigError, match="did you mean mean"):
        judged_by({"m": [case("a", [0.5], who="x")]}, "patient", "median")


def test_patients_who_are_counted_are_known_to_intervals_and_comparisons(study):
    """They are called by the id of their first case; that is no sign of files without patients."""
    bags, cases = study
    apart = [replace(p, meta={"group": p.meta["group"]}) for p in cases]
    for known in (cases, by_patient(apart, "max")):
        patients = whole_patients(known)
        assert (resampled_in_words(patients), patients_in_words(patients)) == ("24 patients resampled", "24 patients")
        for found in (bootstrap_ci(known, n=20), compare(known, known, n=20)):
            assert not any("patients are unknown" in note for note in found["notes"])
    assert "patients unknown or of one case each" in resampled_in_words(bags)  # cases that name only themselves

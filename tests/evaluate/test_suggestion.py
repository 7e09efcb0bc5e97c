"""Where marks are worth most: laws of doubt, budget, regions and diversity."""

import numpy as np
import pytest

from smmil.errors import ConfigError, DataError
from smmil.evaluate.suggestion import LIKELY, UNCERTAIN, _doubts, _middle_threshold, suggest_regions
from smmil.frame import Frame
from smmil.prediction import Prediction

COORDS = np.array([(x, y) for y in range(6) for x in range(6)]) * 100
STEPS = [(i, j) for i in range(36) for j in range(36) if np.abs(COORDS[i] - COORDS[j]).sum() == 100]
EDGES = np.array(STEPS).T


def case(id_="a", seed=0, y=1, **more):
    scores = np.random.default_rng(seed).normal(size=36)
    return Prediction(id_, [0.7], scores, COORDS, Frame((100, 100)), EDGES, y, **more)


def test_doubt_is_one_at_the_threshold_falls_away_from_it_and_grows_with_uncertainty():
    scores = np.array([0.0, 1.0, -1.0, 3.0])
    plain = Prediction("a", [0.5], scores)
    found = _doubts([plain], 0.0)[0]
    assert found[0] == 1
    assert found[1] == pytest.approx(found[2])
    assert found[1] > found[3]
    surer = Prediction("a", [0.5], scores, uncertainty=np.array([0.1, 0.1, 5.0, 0.1]))
    found = _doubts([surer], 0.0)[0]
    assert found[2] == pytest.approx(2 * 0.42074, abs=1e-4)  # the normal tail below -1/5, from a table
    assert found[2] > found[1]


def test_the_middle_threshold_is_where_two_groups_part():
    assert _middle_threshold(np.array([0.0, 0.1, 0.2, 5.0, 5.2])) == pytest.approx(2.6)
    assert _middle_threshold(np.array([3.0])) == 3
    values = np.random.default_rng(0).normal(size=40)
    cuts = np.sort(values)
    literal = min(
        range(1, 40), key=lambda k: cuts[:k].var() * k + cuts[k:].var() * (40 - k)
    )  # least spread within the groups is largest spread between them
    assert _middle_threshold(values) == pytest.approx((cuts[literal - 1] + cuts[literal]) / 2)


@pytest.mark.parametrize("patches", [1, 7, 50, 500])
def test_the_budget_is_kept_no_patch_comes_twice_and_regions_hang_together(patches):
    cases = [case("a"), case("b", 1)]
    found = suggest_regions(cases, patches=patches, region=5)
    chosen = [(one.id, i) for one in found for i in one.instances.tolist()]
    assert len(chosen) == len(set(chosen)) == min(patches, 72)
    for one in found:
        assert 1 <= len(one.instances) <= 5
        reached, inside = {one.instances[0]}, set(one.instances.tolist())
        while more := {b for a, b in STEPS if a in reached and b in inside} - reached:
            reached |= more
        assert reached == inside


def test_the_first_region_begins_at_the_most_doubtful_instance():
    one = suggest_regions([case()], patches=1, threshold=0.4)[0]
    assert one.instances.tolist() == [int(np.abs(case().scores[:, 0] - 0.4).argmin())]


def test_the_same_input_gives_the_same_regions_and_the_order_of_cases_does_not_matter():
    cases = [case("a"), case("b", 1), case("c", 2)]
    looks = {p.id: np.random.default_rng(9).normal(size=(36, 4)) + n for n, p in enumerate(cases)}
    first, again, turned = (
        [(r.id, r.instances.tolist()) for r in suggest_regions(given, patches=20, features=looks)]
        for given in (cases, cases, cases[::-1])
    )
    assert first == again == turned


def test_cases_labelled_negative_are_left_alone_and_unlabelled_ones_are_not():
    found = suggest_regions([case("sick"), case("well", 1, y=0), case("open", 2, y=None)], patches=72)
    assert {one.id for one in found} == {"sick", "open"}
    with pytest.raises(DataError, match="all cases are labelled negative"):
        suggest_regions([case(y=0)])
    with pytest.raises(ConfigError, match="patches=0"):
        suggest_regions([case()], patches=0)


def test_what_is_marked_is_not_suggested_again_and_what_looks_like_it_comes_late():
    looks = np.vstack([np.tile([1.0, 0.0], (18, 1)), np.tile([0.0, 1.0], (18, 1))])
    marked = np.full(36, -1)
    marked[0] = 1
    found = suggest_regions([case()], patches=17, region=1, marked={"a": marked}, features={"a": looks})
    chosen = np.concatenate([one.instances for one in found])
    assert 0 not in chosen
    assert chosen[0] >= 18  # the other kind first, though some of the marked kind are more doubtful


def test_two_kinds_are_both_seen_within_two_marks():
    looks = np.where(np.arange(36)[:, None] < 30, [1.0, 0.0], [0.0, 1.0])
    found = suggest_regions([case()], patches=2, region=1, features={"a": looks})
    assert len({int(one.instances[0] < 30) for one in found}) == 2


def undecided_about_healthy_tissue(id_, seed, level):
    """A map whose lesion (instances 0 to 3) stands out, while its threshold lies in the middle of the rest."""
    rng = np.random.default_rng(seed)
    scores = level + rng.normal(size=36) + np.where(np.arange(36) < 4, 6.0, 0.0)
    return Prediction(id_, [0.7], scores, COORDS, Frame((100, 100)), EDGES, 1)


def test_lesions_are_among_the_suggestions_where_doubt_alone_meets_healthy_tissue_only():
    cases = [undecided_about_healthy_tissue(f"c{i}", i, level=3.0 * i) for i in range(6)]
    found = suggest_regions(cases, patches=48, region=4, threshold=7.0)
    by = {why: [i for one in found if one.why == why for i in one.instances.tolist()] for why in (UNCERTAIN, LIKELY)}
    assert len(by[UNCERTAIN]) == len(by[LIKELY]) == 24
    assert np.mean(np.array(by[LIKELY]) < 4) > 0.5
    assert np.mean(np.array(by[UNCERTAIN]) < 4) < 0.2


def test_once_both_kinds_are_marked_doubt_alone_chooses():
    marked = np.full(36, -1)
    marked[[0, 9]] = 1, 0
    both = suggest_regions([case("a"), case("b", 1)], patches=20, marked={"a": marked})
    assert {one.why for one in both} == {UNCERTAIN}
    marked[9] = 1
    assert {one.why for one in suggest_regions([case("a"), case("b", 1)], patches=20, marked={"a": marked})} == {
        UNCERTAIN,
        LIKELY,
    }


def test_the_likely_half_looks_at_every_case_whatever_the_level_of_its_scores():
    """Attention has no common level: the hottest place of a case with low scores counts as much as that of another."""
    cases = [undecided_about_healthy_tissue(f"c{i}", i, level=30.0 * i) for i in range(4)]
    looks = {p.id: np.random.default_rng(n).normal(size=(36, 8)) for n, p in enumerate(cases)}
    found = suggest_regions(cases, patches=32, region=4, features=looks)
    assert {one.id for one in found if one.why == LIKELY} == {"c0", "c1", "c2", "c3"}


def test_the_budget_is_halved_and_one_half_takes_what_the_other_leaves():
    spent = {UNCERTAIN: 0, LIKELY: 0}
    for one in suggest_regions([case("a"), case("b", 1)], patches=30, region=3):
        assert one.why == (UNCERTAIN if spent[UNCERTAIN] <= spent[LIKELY] else LIKELY)
        spent[one.why] += len(one.instances)
    assert abs(spent[UNCERTAIN] - spent[LIKELY]) <= 3
    everything = suggest_regions([case("a")], patches=100)
    assert sum(len(one.instances) for one in everything) == 36


def test_expected_lesions_are_calibrated_probabilities_else_those_above_the_threshold():
    rough = suggest_regions([case()], patches=36, threshold=0.4)
    assert sum(one.lesions for one in rough) == (case().scores >= 0.4).sum()
    curve = {"method": "platt", "x": [2.0], "y": [-1.0]}
    known = case(meta={"calibration": {"column": None, "instance": curve}})
    expected = (1 / (1 + np.exp(1 - 2 * case().scores))).sum()
    assert sum(one.lesions for one in suggest_regions([known], patches=36)) == pytest.approx(expected, rel=1e-6)

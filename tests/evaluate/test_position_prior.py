"""The position prior: planted cohorts, no leak of one's own labels, and a slow reference."""

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from smmil.evaluate import bootstrap_ci, compare, position_prior
from smmil.evaluate.instances import POOLS
from smmil.evaluate.prior import CELLS, MAPS, _cells_of, prior_maps
from smmil.prediction import Prediction


def scan(case, place, scores=None, *, n=40, width=0.2, patient=None, y=1, seed=0):
    """A scan with a lesion around the relative height `place`; scores by position alone unless given."""
    height = np.arange(n) / (n - 1)
    truth = (np.abs(height - place) < width / 2).astype(int) if y else np.zeros(n, int)
    scores = -np.abs(height - 0.3) if scores is None else scores(height, truth, np.random.default_rng([seed, n]))
    meta = {} if patient is None else {"patient": patient}
    return Prediction(case, [0.5], scores, coords=np.arange(n)[:, None], y=y, y_inst=truth, meta=meta)


def position_cohort(cases=24, scores=None, spread=0.0, seed=0):
    """Scans of 30 to 50 slices whose lesions lie around the relative height 0.3."""
    rng = np.random.default_rng(seed)
    return [
        scan(f"c{i:02}", 0.3 + spread * rng.normal(), scores, n=int(rng.integers(30, 51)), seed=i) for i in range(cases)
    ]


def slides(cases=30, seed=0, side=20):
    """Slides whose lesions lie anywhere; the map is noise. Every third case shares the patient of the one before."""
    rng, found = np.random.default_rng(seed), []
    for i in range(cases):
        cells = np.argwhere(rng.random((side, side)) < 0.7)
        centre = cells[rng.integers(len(cells))]
        truth = (np.hypot(*(cells - centre).T) < 4).astype(int)
        meta = {"patient": f"p{i - (i % 3 == 2)}"}
        coords = cells * 512 + rng.integers(0, 9999, 2)
        found.append(
            Prediction(f"s{i:02}", [0.5], rng.normal(size=len(cells)), coords=coords, y=1, y_inst=truth, meta=meta)
        )
    return found


def hot_where_true(height, truth, rng):
    return truth + 0.3 * rng.normal(size=len(height))


def habit_and_noise(height, truth, rng):
    return -np.abs(height - 0.3) + 0.05 * rng.normal(size=len(height))


def test_a_map_of_positions_alone_is_no_better_than_the_prior_and_that_is_said():
    found = position_prior(position_cohort(spread=0.05))
    inside = found["per_bag"]
    assert inside["model"] > 0.95
    assert inside["difference"] == pytest.approx(0, abs=0.01)
    assert inside["own_difference"] == pytest.approx(0, abs=0.01)
    assert found["better"] is False
    assert found["words"][0].startswith(
        "This map is no better than knowing where lesions usually lie: mean AUROC within"
    )


def test_a_map_that_is_cold_where_lesions_lie_is_worse_and_points_the_wrong_way():
    found = position_prior(position_cohort(scores=lambda *facts: -hot_where_true(*facts), spread=0.05), n=200)
    assert found["better"] is False
    assert found["per_bag"]["difference_high"] < 0
    assert found["words"][0].startswith("This map is worse than knowing where lesions usually lie: mean AUROC within")
    assert found["words"][1].startswith("It points the wrong way")
    alike = position_prior(position_cohort(spread=0.05), n=200)["words"]
    assert not any("worse" in text or "wrong way" in text for text in alike)


def test_what_is_left_of_a_map_of_positions_without_its_mean_finds_nothing():
    cohorts = [position_cohort(40, habit_and_noise, spread=0.05, seed=seed) for seed in range(3)]
    found = [position_prior(cohort, n=200) for cohort in cohorts]
    assert min(one["per_bag"]["own"] for one in found) > 0.9
    assert np.mean([one["per_bag"]["residual"] for one in found]) == pytest.approx(0.5, abs=0.02)
    assert any("shows the same place in every case" in words for one in found for words in one["words"])


def test_a_map_that_follows_lesions_beats_the_prior_and_keeps_its_worth_without_its_mean():
    found = position_prior(position_cohort(24, hot_where_true, spread=0.25, seed=3))
    inside = found["per_bag"]
    assert found["better"] is True
    assert found["words"][0].startswith("This map is better than knowing where lesions usually lie")
    assert inside["difference_low"] > 0
    assert inside["residual"] > 0.9


def ring(case, rng, y):
    """A scan whose ends are joined, so that a lesion of 8 slices may begin at every one of 40 with the same chance."""
    truth = np.zeros(40, int)
    if y:
        truth[(rng.integers(40) + np.arange(8)) % 40] = 1
    return Prediction(case, [0.5], rng.normal(size=40), coords=np.arange(40)[:, None], y=y, y_inst=truth)


def test_where_lesions_lie_anywhere_the_prior_is_one_half():
    rng, values = np.random.default_rng(0), []
    for _ in range(40):
        cohort = [ring(f"c{i:02}", rng, i % 2) for i in range(40)]
        found = position_prior(cohort, intervals=())
        values.append([[found[pool][name] for name in MAPS] for pool in POOLS])
    rows = zip(POOLS, np.mean(values, 0), strict=True)
    means = {(pool, name): value for pool, row in rows for name, value in zip(MAPS, row, strict=True)}
    assert means["per_bag", "truth"] == pytest.approx(0.5, abs=0.03)
    for pool in POOLS:  # one whose level told who was left out would be far below
        assert means[pool, "truth"] == pytest.approx(0.5, abs=0.06)
        assert means[pool, "own"] == pytest.approx(0.5, abs=0.02)
        assert means[pool, "residual"] == pytest.approx(0.5, abs=0.02)


def test_that_slides_share_no_frame_is_said():
    found = position_prior(slides(), n=200)
    assert found["per_bag"]["truth_low"] < 0.5 < found["per_bag"]["truth_high"]
    assert any("Position alone tells nothing here" in words and "tissue on slides" in words for words in found["words"])


@pytest.mark.parametrize("cohort", [slides(12), position_cohort(8, spread=0.1)])
def test_own_labels_and_own_scores_cannot_change_the_own_prior(cohort):
    before = prior_maps(cohort)
    patient = cohort[1].meta.get("patient")
    mine = {p.id for p in cohort if p.meta.get("patient") == patient and (patient or p is cohort[1])}
    assert len(mine) == (2 if patient else 1)
    rng = np.random.default_rng(1)
    changed = [
        replace(p, y_inst=rng.permutation(p.y_inst), scores=rng.normal(size=p.n)) if p.id in mine else p for p in cohort
    ]
    after = prior_maps(changed)
    for one, other in zip((*before.truth, *before.own), (*after.truth, *after.own), strict=True):
        if one.id in mine:
            assert np.array_equal(one.scores, other.scores)
    assert any(not np.array_equal(a.scores, b.scores) for a, b in zip(before.truth, after.truth, strict=True))


@pytest.mark.parametrize("cohort", [slides(8), position_cohort(8, hot_where_true)])
@pytest.mark.parametrize(("scale", "shift"), [(0.3, 17.0), (4.0, -1e5), (1e-3, 0.7)])
def test_shift_and_scale_of_a_case_change_nothing(cohort, scale, shift):
    moved = [replace(p, coords=p.coords * scale + shift) if i % 2 else p for i, p in enumerate(cohort)]
    for name in MAPS:
        for one, other in zip(getattr(prior_maps(cohort), name), getattr(prior_maps(moved), name), strict=True):
            assert np.array_equal(one.scores, other.scores)


def slow_mean_map(sources, patient, shape):
    """(T + N) / (S + 1) in every cell by loops over patients, cells and neighbours; sources: (patient, cell, value)."""
    cells = list(np.ndindex(*shape))
    total, seen = dict.fromkeys(cells, 0.0), dict.fromkeys(cells, 0)
    for who in sorted({name for name, _, _ in sources} - {patient}):
        mine: dict = {}
        for name, cell, value in sources:
            if name == who:
                mine.setdefault(cell, []).append(value)
        for cell, values in mine.items():
            total[cell] += sum(values) / len(values)
            seen[cell] += 1
    overall, found = sum(total.values()) / sum(seen.values()), np.zeros(shape)
    bell = np.exp(-(np.arange(-4, 5) ** 2) / 2)
    bell /= bell.sum()
    for cell in cells:
        up = down = 0.0
        for step in np.ndindex(*(9,) * len(shape)):
            near = tuple(c + s - 4 for c, s in zip(cell, step, strict=True))
            if near in total:
                weight = np.prod(bell[list(step)])
                up, down = up + weight * total[near], down + weight * seen[near]
        found[cell] = (total[cell] + (up + 1e-6 * overall) / (down + 1e-6)) / (seen[cell] + 1)
    return found, overall


def slow_places(p, k):
    low, high = p.coords.min(0), p.coords.max(0)
    return [[float((c - a) / (b - a) * k) for c, a, b in zip(row, low, high, strict=True)] for row in p.coords]


def slow_cells(p, k):
    return [tuple(min(int(c + 1e-9), k - 1) for c in place) for place in slow_places(p, k)]


def between_centres(grid, place):
    """Multilinear interpolation at one place, cell by cell."""
    value = 0.0
    centred = [min(max(c - 0.5, 0.0), n - 1.0) for c, n in zip(place, grid.shape, strict=True)]
    for corner in np.ndindex(*(2,) * grid.ndim):
        index = tuple(min(int(c) + up, n - 1) for c, up, n in zip(centred, corner, grid.shape, strict=True))
        parts = [c - int(c) if up else 1 - (c - int(c)) for c, up in zip(centred, corner, strict=True)]
        value += float(np.prod(parts)) * grid[index]
    return value


def normal_score(scores, one):
    below, up_to = float(np.sum(scores < one)), float(np.sum(scores <= one))
    return NormalDist().inv_cdf((below + up_to) / 2 / len(scores))


def one_axis():
    cohort = [scan(f"c{i}", 0.2 + 0.1 * i, hot_where_true, n=9 + 2 * i, patient=f"p{i // 2}", seed=i) for i in range(5)]
    cohort[3].y_inst[4] = -1
    return [*cohort, scan("healthy", 0.0, hot_where_true, n=15, y=0)]


@pytest.mark.parametrize("cohort", [one_axis(), slides(4, side=6)])
def test_priors_by_loops(cohort):
    axes, maps = cohort[0].coords.shape[1], prior_maps(cohort)
    k, who = CELLS[axes], {p.id: p.meta.get("patient", p.id) for p in cohort}
    cells = {p.id: slow_cells(p, k) for p in cohort}
    truth = [
        (who[p.id], cells[p.id][i], float(p.y_inst[i] > 0))
        for p in cohort
        for i in range(p.n)
        if (p.y_inst > 0).any() and p.y_inst[i] >= 0
    ]
    level = {p.id: [normal_score(p.scores[:, 0], s) for s in p.scores[:, 0]] for p in cohort}
    habits = [(who[p.id], cell, value) for p in cohort for cell, value in zip(cells[p.id], level[p.id], strict=True)]
    assert [p.id for p in maps.truth] == [p.id for p in cohort]
    for number, p in enumerate(cohort):
        prior, mean = slow_mean_map(truth, who[p.id], (k,) * axes)
        own, _ = slow_mean_map(habits, who[p.id], (k,) * axes)
        habit = [between_centres(own, place) for place in slow_places(p, k)]
        expected = [between_centres(prior / mean, place) for place in slow_places(p, k)]
        assert maps.truth[number].scores[:, 0] == pytest.approx(expected, abs=1e-6)
        assert maps.own[number].scores[:, 0] == pytest.approx(habit, abs=1e-6)
        assert maps.residual[number].scores[:, 0] == pytest.approx(np.subtract(level[p.id], habit), abs=1e-6)
        assert np.array_equal(maps.model[number].scores, p.scores)


def test_numbers_and_intervals_are_those_of_the_usual_metrics():
    cohort = [*slides(24), *slides(24, seed=1)]
    cohort = [replace(p, id=f"{i}") for i, p in enumerate(cohort)]
    found, maps = position_prior(cohort, intervals=POOLS, n=80, seed=4), prior_maps(cohort)
    plain = position_prior(cohort, intervals=(), n=80)
    for pool in POOLS:
        for name in MAPS:
            ci = bootstrap_ci(getattr(maps, name), "inst_auroc", pool=pool, n=80, seed=4)
            ends = [found[pool][f"{name}_{end}"] for end in ("low", "high")]
            assert [found[pool][name], *ends] == pytest.approx([ci["value"], ci["low"], ci["high"]])
            assert plain[pool][name] == pytest.approx(ci["value"])
        test = compare(maps.model, maps.truth, "inst_auroc", pool=pool, n=80, seed=4)
        keys = ("difference", "difference_low", "difference_high", "difference_p")
        assert [found[pool][k] for k in keys] == pytest.approx([test[k] for k in ("difference", "low", "high", "p")])
    inside = [roc_auc_score(p.y_inst, p.scores[:, 0]) for p in maps.truth]
    assert found["per_bag"]["truth"] == pytest.approx(np.mean(inside))
    assert plain["better"] is None


def test_training_cases_make_the_prior_where_they_are_given():
    judged = position_cohort(6, hot_where_true)
    training = [replace(p, id=f"t{p.id}") for p in position_cohort(12, seed=8)]
    found = position_prior(judged, reference=training, n=50)
    assert found["n_patients"] == 12
    assert found["source"] == "12 cases given for it"
    assert found["per_bag"]["truth"] > 0.95
    elsewhere = [scan(f"e{i}", 0.8) for i in range(12)]
    assert position_prior(judged, reference=elsewhere, n=50)["per_bag"]["truth"] < 0.5
    same = [replace(p, meta={"patient": "one"}) for p in training]
    mine = [replace(p, meta={"patient": "one"}) for p in judged[:3]] + judged[3:]
    assert position_prior(mine, reference=same, n=50)["n_cases"] == 3  # its own patient is no prior


@pytest.mark.parametrize(
    ("cohort", "reason"),
    [
        ([scan("a", 0.3), scan("b", 0.3, y=0)], "one patient has coordinates and a positive instance"),
        ([scan("a", 0.3, patient="p"), scan("b", 0.4, patient="p")], "one patient has"),
        ([scan("a", 0.3, y=0), scan("b", 0.3, y=0)], "no patient has coordinates and a positive instance"),
        ([replace(scan("a", 0.3), coords=None), replace(scan("b", 0.3), coords=None)], "no case has coordinates"),
        ([replace(scan("a", 0.3), y_inst=None), replace(scan("b", 0.3), y_inst=None)], "no patient has"),
    ],
)
def test_without_two_patients_with_lesions_there_is_none_and_the_reason_is_said(cohort, reason):
    found = position_prior(cohort)
    assert found["words"][0].startswith("There is no position prior: ")
    assert reason in found["words"][0]
    assert found["better"] is None
    assert "per_bag" not in found


def test_cases_without_coordinates_are_left_out_and_counted():
    cohort = position_cohort(8)
    found = position_prior([*cohort, replace(scan("x", 0.3), coords=None)], n=50)
    assert found["n_cases"] == 8
    assert any("1 of 9 cases have no coordinates" in note for note in found["notes"])
    assert any("no interval: 8 cases, and at least 10" in note for note in found["notes"])


def test_wild_coordinates_do_no_harm():
    wild = Prediction("w", [0.5], [1.0, 2.0, 3.0], coords=[[-1.7e308], [0.0], [1.7e308]])
    assert _cells_of(wild).tolist() == [0, 16, 31]
    tiny = Prediction("t", [0.5], [1.0, 2.0], coords=[[5e-324], [0.0]])
    assert set(_cells_of(tiny).tolist()) <= set(range(32))


def test_a_single_instance_or_a_flat_axis_lies_in_the_middle():
    flat = Prediction("f", [0.5], [1.0, 2.0], coords=[[5, 0], [5, 9]])
    assert _cells_of(flat).tolist() == [8 * 16, 8 * 16 + 15]
    assert _cells_of(Prediction("g", [0.5], [1.0], coords=[[7]])).tolist() == [16]

"""Thresholds that keep a promise: against literal references, and over many planted calibrations."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from smmil.errors import ConfigError, DataError
from smmil.evaluate import bag_metrics
from smmil.evaluate.bags import units_of
from smmil.evaluate.conformal import (
    _binomial_p,
    _check_level,
    _class_thresholds,
    _hoeffding_bentkus_p,
    _lesion_values,
    _MissedShares,
    _needed_patients,
    _patient_values,
    area_to_read,
)
from smmil.prediction import Prediction

TARGETS = (0.05, 0.1, 0.2)


def planted(rng, n, ties=None):
    """Scores of the lesion instances of n patients: some easy, some hard, from 1 to 30 instances each."""
    hard = rng.normal(0, 1, n)
    values = [hard[i] + rng.normal(0, 1, rng.integers(1, 31)) for i in range(n)]
    return [np.round(v * ties) / ties for v in values] if ties else values


class Population:
    """The risk of patients without end, as a function of the threshold."""

    def __init__(self, values):
        self.values = values
        pooled, weight = np.concatenate(values), np.concatenate([np.full(len(v), 1 / len(v)) for v in values])
        order = np.argsort(pooled)
        self.scores, self.sums = pooled[order], np.append(0, np.cumsum(weight[order]))

    def risk(self, t):
        return self.sums[np.searchsorted(self.scores, t)] / len(self.values)

    def sample(self, rng, n):
        return [self.values[i] for i in rng.integers(0, len(self.values), n)]


def literal_losses(values, t):
    return [sum(v < t for v in patient) / len(patient) for patient in values]


def literal_crc(values, target):
    """The highest of all scores at which the definition holds, in exact arithmetic where it matters."""
    n, candidates = len(values), sorted({v for patient in values for v in patient})
    good = [t for t in candidates if math.fsum(literal_losses(values, t)) + 1 <= target * (n + 1) + 1e-12]
    return max(good, default=None)


@pytest.mark.parametrize("ties", [None, 2])
@pytest.mark.parametrize("target", TARGETS)
def test_the_controlled_threshold_is_that_of_the_definition(target, ties):
    rng = np.random.default_rng(3)
    for n in (3, 4, 5, 9, 10, 19, 24):
        values = [v[:6] for v in planted(rng, n, ties)]
        missed = _MissedShares(values)
        assert missed.controlled(target) == literal_crc(values, target)
        others = [literal_crc(values[:i] + values[i + 1 :], target) for i in range(n if n < 12 else 3)]
        assert missed.controlled_by_others(target)[: len(others)] == others
        for t in (-1.5, 0.0, values[0][0]):
            assert missed.losses(t) == pytest.approx(literal_losses(values, t))


def test_no_threshold_between_or_above_the_chosen_one_keeps_the_definition():
    rng = np.random.default_rng(4)
    values = planted(rng, 30)
    t = _MissedShares(values).controlled(0.1)
    assert sum(literal_losses(values, t)) + 1 <= 3.1
    assert sum(literal_losses(values, np.nextafter(t, np.inf))) + 1 > 3.1


def test_the_loss_of_every_kind_only_grows_with_the_threshold():
    rng = np.random.default_rng(5)
    cases = [scan(f"c{i}", rng) for i in range(6)]
    for kind in ("instances", "lesions", "patients"):
        missed = _MissedShares(list(_patient_values(cases, kind).values()))
        curve = np.array([missed.losses(t) for t in np.linspace(-4, 4, 50)])
        assert (np.diff(curve, axis=0) >= 0).all()
        assert curve[0].max() == 0
        assert curve[-1].min() == 1


@pytest.mark.parametrize("target", TARGETS)
def test_over_many_calibrations_the_mean_risk_is_within_the_target(target):
    """And not far below it: at most 2 / (n + 1), as the theorem says for scores without ties."""
    rng, n = np.random.default_rng(6), 39
    population = Population(planted(rng, 4000))
    risks = [population.risk(_MissedShares(population.sample(rng, n)).controlled(target)) for _ in range(200)]
    error = np.std(risks) / math.sqrt(len(risks))
    assert np.mean(risks) <= target + 3 * error
    assert np.mean(risks) >= target - 2 / (n + 1) - 3 * error


def test_without_the_correction_the_promise_breaks():
    """The threshold at which the calibration patients themselves are missed to the target is too high for others."""
    rng, n, target = np.random.default_rng(7), 14, 0.1
    population = Population(planted(rng, 4000))
    naive, kept = [], []
    for _ in range(300):
        sample = Population(population.sample(rng, n))
        naive.append(population.risk(max(t for t in sample.scores if sample.risk(t) <= target)))
        kept.append(population.risk(_MissedShares(sample.values).controlled(target)))
    assert np.mean(naive) > target + 3 * np.std(naive) / math.sqrt(300)
    assert np.mean(kept) <= target


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(("target", "delta"), [(0.1, 0.1), (0.2, 0.05)])
def test_the_tested_threshold_fails_at_most_as_often_as_was_said(target, delta, binary):
    rng, n, runs = np.random.default_rng(8), 60, 200
    values = planted(rng, 3000)
    population = Population([v[:1] for v in values] if binary else values)
    fails = 0
    for _ in range(runs):
        t = _MissedShares(population.sample(rng, n)).tested(target, delta, binary=binary)
        fails += t is not None and population.risk(t) > target
    assert fails <= binom.ppf(0.999, runs, delta)
    if binary:  # an exact test wastes little: with losses that vary as much, it fails sometimes
        assert fails > 0


def test_the_tested_threshold_is_that_of_testing_one_after_the_other():
    rng = np.random.default_rng(9)
    for n in (30, 45, 80):
        values = planted(rng, n, ties=4)
        missed, last = _MissedShares(values), None
        for t in sorted({v for patient in values for v in patient}):
            mean = math.fsum(literal_losses(values, t)) / n
            if literal_hoeffding_bentkus(mean, n, 0.2) > 0.1:
                break
            last = t
        assert missed.tested(0.2, 0.1) == last


def literal_hoeffding_bentkus(mean, n, a):
    if mean >= a:
        hoeffding = 1.0
    else:
        first = mean * math.log(mean / a) if mean else 0.0
        hoeffding = math.exp(-n * (first + (1 - mean) * math.log((1 - mean) / (1 - a))))
    k = math.ceil(round(n * mean, 9))
    tail = sum(math.comb(n, i) * a**i * (1 - a) ** (n - i) for i in range(k + 1))
    return min(1.0, hoeffding, math.e * tail)


@pytest.mark.parametrize("a", [0.05, 0.1, 0.3])
def test_p_values_are_those_of_their_formulas_and_never_too_small(a):
    for n in (5, 20, 50):
        sums = np.linspace(0, n, 4 * n + 1)
        for total in sums:
            expected = literal_hoeffding_bentkus(total / n, n, a)
            assert _hoeffding_bentkus_p(total, n, a) == pytest.approx(expected, rel=1e-9)
            k = math.floor(total)
            exact = sum(math.comb(n, i) * a**i * (1 - a) ** (n - i) for i in range(k + 1))
            assert _binomial_p(total, n, a) == pytest.approx(exact, rel=1e-9)
        # valid where the losses are 0 and 1 with mean a: P(p <= u) <= u for all u
        for test in (_hoeffding_bentkus_p, _binomial_p):
            p = np.array([test(float(k), n, a) for k in range(n + 1)])
            chance = binom.pmf(np.arange(n + 1), n, a)
            assert all(chance[p <= u].sum() <= u + 1e-12 for u in p)


@pytest.mark.parametrize(("target", "delta"), [(0.05, None), (0.1, None), (0.2, None), (0.1, 0.1), (0.1, 0.05)])
def test_one_patient_less_than_needed_is_too_few(target, delta):
    needed = _needed_patients(target, delta)

    def threshold(n):
        missed = _MissedShares([np.ones(1)] * n)
        return missed.controlled(target) if delta is None else missed.tested(target, delta)

    assert threshold(needed) == 1.0
    assert threshold(needed - 1) is None
    assert needed == {(0.05, None): 19, (0.1, None): 9, (0.2, None): 4, (0.1, 0.1): 22, (0.1, 0.05): 29}[target, delta]


def test_the_order_of_patients_and_values_changes_nothing():
    rng = np.random.default_rng(10)
    values = planted(rng, 40, ties=3)
    turned = [rng.permutation(values[i]) for i in rng.permutation(40)]
    one, other = _MissedShares(values), _MissedShares(turned)
    assert one.controlled(0.1) == other.controlled(0.1)
    assert one.tested(0.2, 0.2) == other.tested(0.2, 0.2)


def scan(name, rng, y=1, patient=None, shift=0.0, n=12):
    """Two lesions on a chain, slices 2-4 and 8; scores higher there."""
    truth = np.isin(np.arange(n), (2, 3, 4, 8)) & bool(y)
    scores = rng.normal(0, 1, n) + 2 * truth + shift
    meta = {} if patient is None else {"group": patient}
    edges = np.stack([np.arange(n - 1), np.arange(1, n)])
    return Prediction(name, [0.8 if y else 0.2], scores, edges=edges, y=y, y_inst=truth.astype(int), meta=meta)


def test_values_by_hand():
    case = scan("a", np.random.default_rng(0))
    s = case.scores[:, 0]
    assert _lesion_values(case, "instances").tolist() == s[[2, 3, 4, 8]].tolist()
    assert sorted(_lesion_values(case, "lesions")) == sorted([s[[2, 3, 4]].max(), s[8]])
    twin = scan("b", np.random.default_rng(1), patient="p")
    both = [Prediction("a", [0.8], s, edges=case.edges, y=1, y_inst=case.y_inst, meta={"group": "p"}), twin]
    (joined,) = _patient_values(both, "instances").values()
    assert sorted(joined) == sorted([*s[[2, 3, 4, 8]], *twin.scores[[2, 3, 4, 8], 0]])
    (worst,) = _patient_values(both, "patients").values()
    lesions = [*_lesion_values(case, "lesions"), *_lesion_values(twin, "lesions")]
    assert worst.tolist() == [min(lesions)]
    assert _patient_values([scan("n", np.random.default_rng(2), y=0)], "lesions") == {}


def test_lesions_need_edges_and_unknown_labels_are_no_lesions():
    bare = Prediction("bare", [0.9], [1.0, 2.0, 3.0], y=1, y_inst=[1, -1, 0])
    assert _lesion_values(bare, "instances").tolist() == [1.0]
    with pytest.raises(DataError, match=r"bare: lesions are connected positive instances.*no edges"):
        _lesion_values(bare, "lesions")


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(ConfigError, match=r"--target .*: expected a share between 0 and 1"):
        _check_level(share, "--target")


def study(rng, positive=30, negative=10):
    cases = [scan(f"p{i:02}", rng, patient=f"x{i // 2}", shift=rng.normal()) for i in range(positive)]
    return cases + [scan(f"n{i:02}", rng, y=0, patient=f"y{i}") for i in range(negative)]


def test_the_area_to_read_is_that_of_leaving_each_patient_out():
    rng = np.random.default_rng(11)
    cases = study(rng)
    units = units_of(cases)[0]
    for positive in (True, False):
        shares = []
        for i, case in enumerate(cases):
            if (case.y > 0) == positive:
                others = [c for j, c in enumerate(cases) if units[j] != units[i]]
                values = [v.tolist() for v in _patient_values(others).values()]
                shares.append(np.mean(case.scores[:, 0].astype(float) >= literal_crc(values, 0.1)))
        assert area_to_read(cases, positive=positive) == pytest.approx(np.mean(shares), rel=1e-12)


def test_a_patient_drawn_several_times_counts_as_often_for_the_others_and_never_for_itself():
    rng = np.random.default_rng(13)
    cases = study(rng)
    units = units_of(cases)[0]
    times = rng.integers(0, 4, units.max() + 1)
    drawn = [c for c, u in zip(cases, units, strict=True) for _ in range(times[u])]
    values = {u: v.tolist() for u, v in _patient_values(cases).items()}
    for positive in (True, False):
        shares = []
        for case, unit in zip(cases, units, strict=True):
            if (case.y > 0) == positive:
                others = [v for u, v in values.items() if u != unit for _ in range(times[u])]
                flagged = np.mean(case.scores[:, 0].astype(float) >= literal_crc(others, 0.1))
                shares += [flagged] * times[unit]
        assert area_to_read(drawn, positive=positive) == pytest.approx(np.mean(shares), rel=1e-12)


def test_the_area_is_undefined_with_too_few_patients_without_lesions_or_classes():
    rng = np.random.default_rng(12)
    few = [scan(f"p{i}", rng) for i in range(9)] + [scan("n", rng, y=0)]
    assert math.isnan(area_to_read(few, positive=True))  # of 9 patients each has 8 others
    assert math.isfinite(area_to_read(few, positive=False))
    assert math.isfinite(area_to_read([*few, scan("p9", rng)], positive=True))
    assert math.isnan(area_to_read([scan("n", rng, y=0)], positive=False))
    assert math.isnan(area_to_read([Prediction("m", [0.2, 0.3, 0.5], np.eye(3), y=2)], positive=True))


def test_too_few_patients_for_the_area_are_noted():
    rng = np.random.default_rng(12)
    cases = [scan(f"p{i}", rng) for i in range(10)] + [scan("n", rng, y=0)]
    few = "area to read: 9 patients have marked lesions, 10 are needed"
    assert few in bag_metrics(cases[1:])["notes"]
    assert bag_metrics(cases)["notes"] == []
    assert not any("area" in note for note in bag_metrics(cases[-1:])["notes"])  # nothing is marked


def test_each_patient_left_out_is_missed_within_the_target_on_average():
    rng, risks = np.random.default_rng(13), []
    for _ in range(150):
        missed = _MissedShares(planted(rng, 25))
        cuts = missed.controlled_by_others(0.1)
        risks.append(np.mean([np.searchsorted(v, t) / len(v) for v, t in zip(missed.values, cuts, strict=True)]))
    assert np.mean(risks) <= 0.1 + 3 * np.std(risks) / math.sqrt(150)


@pytest.mark.parametrize("classes", [2, 3])
def test_sets_hold_the_true_class_of_each_class_by_itself(classes):
    rng, target, runs = np.random.default_rng(14), 0.1, 200
    covered = np.zeros(classes)
    for _ in range(runs):
        y = np.concatenate([np.full(20 + 15 * c, c) for c in range(classes)])
        logits = rng.normal(0, 1, (len(y), classes)) + np.eye(classes)[y] * np.arange(classes)  # class 0 is hard
        probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        new = rng.permutation(len(y)) < classes * 10
        cuts, sizes = _class_thresholds(probs[~new], y[~new], np.arange(len(y))[~new], target)
        assert sizes == [(y[~new] == c).sum() for c in range(classes)]
        for c in range(classes):
            own = probs[new & (y == c), c]
            covered[c] += 1.0 if cuts[c] is None or not len(own) else np.mean(own >= cuts[c])
    assert (covered / runs >= 1 - target - 3 * math.sqrt(target * (1 - target) / runs / 5)).all()


def test_with_one_case_per_patient_sets_are_the_usual_conformal_ones():
    rng = np.random.default_rng(15)
    for n in (9, 10, 25, 38):
        p = rng.random(n)
        probs = np.stack([1 - p, p], 1)
        cuts, _ = _class_thresholds(probs, np.ones(n, dtype=int), np.arange(n), 0.1)
        rank = math.ceil(0.9 * (n + 1) - 1e-9)  # of the scores 1 - p, ascending
        assert cuts[1] == pytest.approx(1 - np.sort(1 - p)[rank - 1], abs=1e-15)
        assert cuts[0] is None

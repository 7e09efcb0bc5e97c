"""Confidence intervals and paired tests of the variants of a study: means over folds, patients resampled."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from pandas import DataFrame

from smmil.errors import DataError
from smmil.evaluate.bags import resampled_in_words, units_of
from smmil.evaluate.bootstrap import Settings, Statistic, statistic
from smmil.evaluate.folds import pooled_statistic
from smmil.evaluate.metrics import PooledMetric, registered
from smmil.evaluate.resampling import RESAMPLES, Carriers, Resampling, carriers_of, interval, subtract
from smmil.evaluate.significance import holm
from smmil.experiments.results import _chosen_rows
from smmil.experiments.study import FAMILIES
from smmil.prediction import Prediction, load_predictions

LEVEL = 0.95
Key = tuple[int, int]  # seed, fold
Judged = Callable[[Sequence[Prediction]], Sequence[Prediction]]  # by case or by patient
Planned = Mapping[tuple[str, str], int]  # runs by data set and variant


class _Resampled(NamedTuple):
    """A metric over folds: its value, those on resamples, those with each patient left out.

    cases      ids of those that take part            units  how many patients (or cases without one) are drawn
    resampled  the same in words                      notes  why there is no value
    carriers   how many patients of each kind it needs
    bounds     lowest and highest value of the metric
    folds      where folds have test cases of their own and the value is over all of them: the value of each, by name
    """

    value: float
    drawn: np.ndarray
    left_out: list[np.ndarray]
    cases: tuple[str, ...] = ()
    units: int = 0
    resampled: str = ""
    notes: tuple[str, ...] = ()
    carriers: Carriers = Carriers({"cases": 0})
    folds: Mapping[str, float] = MappingProxyType({})
    bounds: tuple[float, float] = (-math.inf, math.inf)

    @property
    def fold_mean(self) -> float:
        """The mean of the folds' values; nan where the test set is one."""
        return float(np.mean(list(self.folds.values()))) if self.folds else float("nan")

    def away_from(self, middle: float) -> np.ndarray:
        """How far each fold's value lies from a number."""
        return np.asarray(subtract(np.array(list(self.folds.values())), middle))

    def interval(self, *, difference: bool = False) -> Any:
        """Of a value by BCa, of a difference by percentiles: BCa would reject too often there, see docs/evaluate.md."""
        how, left_out = ("percentile", list) if difference else ("bca", lambda: self.left_out)
        kinds: dict[str, Any] = {"difference": difference, "bounds": self.bounds}
        return interval(self.drawn, self.value, self.carriers, left_out, how, LEVEL, **kinds)

    def minus(self, other: "_Resampled") -> "_Resampled":
        """The difference of two variants on the same resamples; nothing where one of them has no value."""
        if self.notes or other.notes:
            return _without_value(len(self.drawn), *dict.fromkeys([*self.notes, *other.notes]))
        if self.cases != other.cases:
            raise DataError("the two models were tested on different cases; paired tests need one test set")
        gaps = [subtract(a, b) for a, b in zip(self.left_out, other.left_out, strict=True)]
        value = float(subtract(self.value, other.value))
        folds = {name: float(subtract(one, other.folds[name])) for name, one in self.folds.items()}
        return self._replace(value=value, drawn=subtract(self.drawn, other.drawn), left_out=gaps, folds=folds)


def _without_value(n: int, *notes: str) -> _Resampled:
    """A metric without a value, and the reason."""
    return _Resampled(float("nan"), np.full(n, np.nan), [], notes=notes)


def _resampled_mean(
    folds: Sequence[Sequence[Prediction]],
    metric: str,
    thresholds: Sequence[float | None],
    *,
    n: int = RESAMPLES,
    seed: int = 0,
    numbers: Sequence[int] | None = None,
) -> _Resampled:
    """A metric over folds, with patients drawn n times.

    One test set: the mean over the folds, which see the same draws. Test sets that have no case in common (rotating
    folds): one value over all cases, compared within folds only (`pooled_statistic`) and averaged over seeds; patients
    are drawn within their fold. The spread is that of the patients; the folds' own spread stands in the tables.
    thresholds are those of instances; bags are cut at their usual one. Without a threshold that the metric needs there
    is no value but a note. numbers are those of the folds, by which a shortage names them; else 0, 1, …
    """
    measure = PooledMetric.parse(metric)
    cuts = list(thresholds) if measure.metric.startswith("inst_") else [None] * len(thresholds)
    if measure.needs_threshold and None in cuts:
        return _without_value(n, f"no value: {cuts.count(None)} of {len(cuts)} runs have no threshold from validation")
    settings = [Settings(cut, measure.pool) for cut in cuts]
    parts = _test_sets(folds)
    if len(parts) > 1:
        names = _names_of_folds(parts, range(len(folds)) if numbers is None else numbers)
        statistics, strata, single = _over_all_patients(folds, parts, measure.metric, settings)
        alone = dict(zip(names, single, strict=True))
    else:
        statistics = [statistic(cases, measure.metric, one) for cases, one in zip(folds, settings, strict=True)]
        strata, alone = None, {}
    ids = {tuple(p.id for p in one.cases) for one in statistics}
    if len(ids) > 1:
        raise DataError(f"{metric}: the folds were tested on different cases; paired tests need one test set")
    plan = Resampling(units_of(statistics[0].cases)[0], strata)

    def value(weights: np.ndarray) -> float:
        return float(np.mean([one.value(weights) for one in statistics]))

    drawn = np.array([value(weights) for weights in plan.draws(n, seed)])
    whole, words = value(np.ones(len(statistics[0].cases), dtype=np.int64)), resampled_in_words(statistics[0].cases)
    carriers = carriers_of(statistics[0].cases, statistics[0].kinds)._replace(strata=len(plan.strata))
    weighty = {number: name for number, (name, values) in enumerate(alone.items()) if not np.isnan(values).all()}
    carriers = carriers._replace(parts=_carriers_of_folds(statistics[0], strata, weighty))
    left_out = plan.without_each(value)
    means = {name: float(np.mean(values)) for name, values in alone.items()}
    return _Resampled(whole, drawn, left_out, ids.pop(), plan.n_units, words, (), carriers, means, statistics[0].bounds)


def _names_of_folds(parts: list[list[int]], numbers: Sequence[int]) -> list[str]:
    """What the folds with test cases of their own are called: by the number of the first seed, where these differ."""
    first = [numbers[part[0]] for part in parts]
    return [f"fold {number}" for number in (first if len(set(first)) == len(first) else range(len(first)))]


def _carriers_of_folds(
    measured: Statistic, strata: np.ndarray | None, names: Mapping[int, str]
) -> dict[str, dict[str, int]]:
    """How many patients of each kind are in each of the folds that have names; strata: the fold of each patient."""
    if strata is None:
        return {}
    home = strata[units_of(measured.cases)[0]]
    found = {}
    for number, name in names.items():
        kinds = {kind: is_it[home == number] for kind, is_it in measured.kinds.items()}
        cases = [p for p, fold in zip(measured.cases, home, strict=True) if fold == number]
        found[name] = carriers_of(cases, kinds).counts
    return found


def _test_sets(folds: Sequence[Sequence[Prediction]]) -> list[list[int]]:
    """Numbers of the folds (of several seeds) that share a test set, for each set; sets that overlap are one."""
    found: dict[frozenset[str], list[int]] = {}
    for number, cases in enumerate(folds):
        found.setdefault(frozenset(p.id for p in cases), []).append(number)
    together = sum(map(len, found)) == len(frozenset().union(*found))
    return list(found.values()) if together else [list(range(len(folds)))]


def _over_all_patients(
    folds: Sequence[Sequence[Prediction]], parts: list[list[int]], metric: str, settings: Sequence[Settings]
) -> tuple[list[Statistic], np.ndarray, list[list[float]]]:
    """A statistic over all cases for every seed, the fold of each patient, and each fold's values of the seeds.

    A fold that lacks runs of some seeds stands in their place with those it has.
    """
    statistics, values = list[Statistic](), [list[float]() for _ in parts]
    for seed in range(max(map(len, parts))):
        used = [numbers[seed % len(numbers)] for numbers in parts]
        found, single = pooled_statistic([folds[i] for i in used], metric, [settings[i] for i in used])
        statistics.append(found)
        for own, one in zip(values, single, strict=True):
            own.append(one)
    cases = statistics[0].cases
    home = {p.id: number for number, numbers in enumerate(parts) for p in folds[numbers[0]]}
    units = units_of(cases)[0]
    strata = np.zeros(units.max(initial=-1) + 1, dtype=np.int64)
    strata[units] = [home[p.id] for p in cases]
    return statistics, strata, values


def _comparisons(
    results: DataFrame,
    out: str | Path,
    metrics: Sequence[str],
    reference: str,
    *,
    n: int = RESAMPLES,
    order: Sequence[str] = (),
    planned: Planned | None = None,
    judged: Judged | None = None,
) -> DataFrame:
    """Compare every variant with the reference on every data set: value, difference, intervals, p and p by Holm.

    A difference is taken over the folds and seeds that both have. Holm's correction counts the variants compared for
    one metric of one data set. `order` is that of the rows: the reference first, then group, family and this order.
    planned  else the most runs that any variant of the data set has
    judged   gives predictions by patient; None: as they are
    """
    rows: list[dict[str, Any]] = []
    for tests in _metric_tests(_chosen_rows(results), Path(out), metrics, n, planned, judged):
        mine = [tests.row(variant) for variant in tests.variants]
        if reference in tests.variants:
            mine = [row | tests.difference_columns(row["variant"], reference) for row in mine]
        rows += _corrected(mine)

    def place(row: dict[str, Any]) -> tuple[Any, ...]:
        name = row["variant"]
        kind = (row["group"] != "no_global", row["group"], list(FAMILIES).index(row["family"]))
        number = list(order).index(name) if name in order else len(order)
        return row["set"], list(metrics).index(row["metric"]), name != reference, *kind, number, name

    rows.sort(key=place)
    return DataFrame(rows)


def _pair_differences(
    results: DataFrame,
    out: str | Path,
    metrics: Sequence[str],
    pairs: Mapping[str, str],
    *,
    n: int = RESAMPLES,
    planned: Planned | None = None,
    judged: Judged | None = None,
) -> DataFrame:
    """Compare each variant of `pairs` with its partner, as in `_comparisons`; Holm's correction counts the pairs.

    All numbers of a row, also `value` and `reference_value`, are over the folds and seeds that both have.
    """
    chosen, rows = _chosen_rows(results), list[dict[str, Any]]()
    chosen = chosen[chosen["variant"].isin({*pairs, *pairs.values()})]
    for tests in _metric_tests(chosen, Path(out), metrics, n, planned, judged):
        there = [(one, other) for one, other in pairs.items() if one in tests.variants and other in tests.variants]
        rows += _corrected([tests.paired_row(one, other) for one, other in there])
    return DataFrame(rows)


def _values_of_all_patients(
    results: DataFrame, out: Path, metrics: Sequence[str], judged: Judged | None = None
) -> dict[tuple[str, str, str], float]:
    """The value over all patients of each data set with rotating test sets, variant and metric."""
    found = {}
    for tests in _metric_tests(_chosen_rows(results), out, metrics, 0, None, judged):
        for name, one in tests.variants.items():
            mine = tests._resampled(name, list(one.folds))
            found[one.facts["set"], name, tests.metric] = mine.value
    return found


def _corrected(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    tested = [row for row in rows if "p" in row]
    for row, corrected in zip(tested, holm([row["p"] for row in tested]), strict=True):
        row["p_holm"] = corrected
    return rows


class _VariantRuns(NamedTuple):
    """A variant on one data set: its test predictions and thresholds by (seed, fold), its facts, and runs planned."""

    folds: dict[Key, Sequence[Prediction]]
    cuts: dict[Key, float | None]
    facts: dict[str, Any]
    planned: int

    @classmethod
    def load(cls, rows: DataFrame, out: Path, planned: int, judged: Judged | None = None) -> "_VariantRuns":
        rows = rows.sort_values(["seed", "fold"])
        keys = list(zip(rows["seed"].astype(int), rows["fold"].astype(int), strict=True))
        cuts = [None if np.isnan(cut) else float(cut) for cut in rows["threshold"]]
        folds: list[Sequence[Prediction]] = [load_predictions(out / "runs" / key / "test") for key in rows["run"]]
        folds = folds if judged is None else [judged(fold) for fold in folds]
        facts = {key: str(rows[key].iloc[0]) for key in ("set", "variant", "group", "family")}
        return cls(dict(zip(keys, folds, strict=True)), dict(zip(keys, cuts, strict=True)), facts, planned)


def _metric_tests(
    chosen: DataFrame,
    out: Path,
    metrics: Sequence[str],
    n: int,
    planned: Planned | None,
    judged: Judged | None = None,
) -> Iterator["_MetricTests"]:
    """Every metric of every data set, with all variants that have runs there."""
    for set_, part in chosen.groupby("set", sort=True):
        variants = {str(name): mine for name, mine in part.groupby("variant", sort=True)}
        most = max(map(len, variants.values()))
        counts = {name: (planned or {}).get((str(set_), name), most) for name in variants}
        runs = {name: _VariantRuns.load(mine, out, counts[name], judged) for name, mine in variants.items()}
        yield from (_MetricTests(metric, runs, n, {}) for metric in metrics)


class _MetricTests(NamedTuple):
    """One metric on one data set with all its variants; resamples over the same folds are computed once."""

    metric: str
    variants: dict[str, _VariantRuns]
    n: int
    known: dict[tuple[str, tuple[Key, ...]], _Resampled]

    def row(self, variant: str, keys: Sequence[Key] | None = None) -> dict[str, Any]:
        """Row of one variant, over all its folds or those given."""
        one = self.variants[variant]
        keys = list(one.folds) if keys is None else keys
        mine = self._resampled(variant, keys)
        found = mine.interval()
        row = {"set": one.facts["set"], "metric": self.metric, **one.facts, "runs": len(keys), "planned": one.planned}
        row |= {"units": mine.units, "resampled": mine.resampled, "value": mine.value}
        row |= _of_folds("", mine, found, registered(PooledMetric.parse(self.metric).metric).chance)
        return row | _interval_columns("", found, mine.notes)

    def difference_columns(self, variant: str, other: str) -> dict[str, Any]:
        """Columns of the difference from another variant, over the folds and seeds that both have; none for itself."""
        if variant == other:
            return {}
        both = self._common_folds(variant, other)
        between = self._resampled(variant, both).minus(self._resampled(other, both))
        found = between.interval(difference=True)
        row = {"reference": other, "difference": between.value, **_of_folds("difference_", between, found, 0.0)}
        row |= _interval_columns("difference_", found, between.notes)
        return row | {"difference_runs": len(both), "p": found.p}

    def paired_row(self, variant: str, other: str) -> dict[str, Any]:
        """Row of a variant and its partner, all numbers over the folds and seeds that both have."""
        both = self._common_folds(variant, other)
        planned = max(self.variants[name].planned for name in (variant, other))
        row = self.row(variant, both) | self.difference_columns(variant, other)
        return row | {"reference_value": self._resampled(other, both).value, "planned": planned}

    def _common_folds(self, variant: str, other: str) -> list[Key]:
        return [key for key in self.variants[variant].folds if key in self.variants[other].folds]

    def _resampled(self, variant: str, keys: Sequence[Key]) -> _Resampled:
        if not keys:
            return _without_value(self.n, "no value: the two have no fold in common; run the rest")
        one, key = self.variants[variant], (variant, tuple(keys))
        if key not in self.known:
            folds, cuts = [one.folds[k] for k in keys], [one.cuts[k] for k in keys]
            numbers = [fold for _, fold in keys]
            self.known[key] = _resampled_mean(folds, self.metric, cuts, n=self.n, numbers=numbers)
        return self.known[key]


def _of_folds(prefix: str, measured: _Resampled, ends: Any, middle: float | None) -> dict[str, Any]:
    """Columns of the mean of the folds' values, of these values, and whether they lie on both sides of `middle`
    although no interval holds it; nothing where the value is that mean.
    """
    if not measured.folds:
        return {}
    each = ", ".join(f"{name} {value:{'+' if prefix else ''}.3f}" for name, value in measured.folds.items())
    sides = set() if middle is None or ends.low <= middle <= ends.high else set(np.sign(measured.away_from(middle)))
    columns = {"fold_mean": measured.fold_mean, "folds": each, "folds_disagree": {-1, 1} <= sides}
    return {f"{prefix}{name}": value for name, value in columns.items()}


def _interval_columns(prefix: str, found: Any, notes: Sequence[str]) -> dict[str, Any]:
    """Columns of an interval: its ends, its method, and its notes as one text."""
    text = "; ".join(notes or found.notes)
    ends = {f"{prefix}low": found.low, f"{prefix}high": found.high}
    return ends | {f"{prefix}method": found.method, f"{prefix}notes": text, f"{prefix}shortage": found.shortage}

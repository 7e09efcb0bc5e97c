"""Which differences of a study are real: intervals and paired tests of means over folds, as tables and a page."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smmil.errors import DataError
from smmil.evaluate import holm
from smmil.evaluate.bags import resampled_in_words, units_of
from smmil.evaluate.bootstrap import Resampling, gap, interval
from smmil.evaluate.folders import PooledMetric
from smmil.evaluate.statistic import Settings, statistic
from smmil.experiments.results import chosen_rows
from smmil.experiments.study import FAMILIES
from smmil.prediction import Prediction, load_predictions

if TYPE_CHECKING:
    from pandas import DataFrame

LEVEL = 0.95
RESAMPLES = 2000  # of the patients, for tables and figures
Key = tuple[int, int]  # seed, fold
Planned = Mapping[tuple[str, str], int]  # runs by data set and variant


class Resampled(NamedTuple):
    """A metric averaged over folds: its value, those on resamples, those with each patient left out.

    cases      ids of those that take part            units  how many patients (or cases without one) are drawn
    resampled  the same in words                      notes  why there is no value
    """

    value: float
    drawn: np.ndarray
    left_out: list[np.ndarray]
    cases: tuple[str, ...] = ()
    units: int = 0
    resampled: str = ""
    notes: tuple[str, ...] = ()

    def minus(self, other: "Resampled") -> "Resampled":
        """The difference of two models judged on the same resamples; nothing where one of them has no value."""
        if self.notes or other.notes:
            return without_value(len(self.drawn), *dict.fromkeys([*self.notes, *other.notes]))
        if self.cases != other.cases:
            raise DataError("the two models were tested on different cases; paired tests need one test set")
        gaps = [gap(a, b) for a, b in zip(self.left_out, other.left_out, strict=True)]
        value = float(gap(self.value, other.value))
        return self._replace(value=value, drawn=gap(self.drawn, other.drawn), left_out=gaps)


def without_value(n: int, *notes: str) -> Resampled:
    """A metric that cannot be taken, and why."""
    return Resampled(float("nan"), np.full(n, np.nan), [], notes=notes)


def resampled_mean(
    folds: Sequence[Sequence[Prediction]],
    metric: str,
    thresholds: Sequence[float | None],
    *,
    n: int = 1000,
    seed: int = 0,
) -> Resampled:
    """The mean over folds of a metric on one test set, with patients drawn n times; every fold sees the same draws.

    The spread is that of the patients; the folds' own spread stands in the tables. thresholds are those of instances;
    bags are cut at their usual one. Without a threshold that the metric needs there is no value, and a note says so.
    """
    measure = PooledMetric.parse(metric)
    cuts = list(thresholds) if measure.metric.startswith("inst_") else [None] * len(thresholds)
    if measure.needs_threshold and None in cuts:
        return without_value(n, f"no value: {cuts.count(None)} of {len(cuts)} runs have no threshold from validation")
    judged = [
        statistic(cases, measure.metric, Settings(cut, measure.pool)) for cases, cut in zip(folds, cuts, strict=True)
    ]
    ids = {tuple(p.id for p in one.cases) for one in judged}
    if len(ids) > 1:
        raise DataError(f"{metric}: the folds were tested on different cases; paired tests need one test set")
    plan = Resampling(units_of(judged[0].cases)[0])

    def value(weights: np.ndarray) -> float:
        return float(np.mean([one.value(weights) for one in judged]))

    drawn = np.array([value(weights) for weights in plan.draws(n, seed)])
    whole, words = value(np.ones(len(judged[0].cases), dtype=np.int64)), resampled_in_words(judged[0].cases)
    return Resampled(whole, drawn, plan.without_each(value), ids.pop(), plan.n_units, words)


def comparisons(
    results: "DataFrame",
    out: str | Path,
    metrics: Sequence[str],
    reference: str,
    *,
    n: int = RESAMPLES,
    order: Sequence[str] = (),
    planned: Planned | None = None,
) -> "DataFrame":
    """Every variant against the reference on every data set: value, difference, intervals, p and p by Holm.

    A difference is taken over the folds and seeds that both have. Holm's correction counts the variants compared for
    one metric of one data set. `order` is that of the rows: the reference first, then group, family and this order.
    planned  else the most runs that any variant of the data set has
    """
    from pandas import DataFrame

    rows: list[dict[str, Any]] = []
    for family in _families(chosen_rows(results), Path(out), metrics, n, planned):
        mine = [family.row(variant) for variant in family.judged]
        if reference in family.judged:
            mine = [row | family.against(row["variant"], reference) for row in mine]
        rows += _corrected(mine)
    rows.sort(key=lambda row: _place(row, metrics, reference, list(order)))
    return DataFrame(rows)


def pair_differences(
    results: "DataFrame",
    out: str | Path,
    metrics: Sequence[str],
    pairs: Mapping[str, str],
    *,
    n: int = RESAMPLES,
    planned: Planned | None = None,
) -> "DataFrame":
    """Each variant of `pairs` against its own partner, as in `comparisons`; Holm's correction counts the pairs.

    All numbers of a row, also `value` and `reference_value`, are over the folds and seeds that both have.
    """
    from pandas import DataFrame

    chosen, rows = chosen_rows(results), list[dict[str, Any]]()
    chosen = chosen[chosen["variant"].isin({*pairs, *pairs.values()})]
    for family in _families(chosen, Path(out), metrics, n, planned):
        there = [(one, other) for one, other in pairs.items() if one in family.judged and other in family.judged]
        rows += _corrected([family.beside(one, other) for one, other in there])
    return DataFrame(rows)


def _place(row: dict[str, Any], metrics: Sequence[str], reference: str, order: list[str]) -> tuple[Any, ...]:
    name = row["variant"]
    kind = (row["group"] != "no_global", row["group"], list(FAMILIES).index(row["family"]))
    number = order.index(name) if name in order else len(order)
    return row["set"], list(metrics).index(row["metric"]), name != reference, *kind, number, name


def _corrected(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    tested = [row for row in rows if "p" in row]
    for row, corrected in zip(tested, holm([row["p"] for row in tested]), strict=True):
        row["p_holm"] = corrected
    return rows


class _Judged(NamedTuple):
    """A variant on one data set: its test predictions and thresholds by (seed, fold), its facts, and runs planned."""

    folds: dict[Key, list[Prediction]]
    cuts: dict[Key, float | None]
    facts: dict[str, Any]
    planned: int


def _judged(rows: "DataFrame", out: Path, planned: int) -> _Judged:
    rows = rows.sort_values(["seed", "fold"])
    keys = list(zip(rows["seed"].astype(int), rows["fold"].astype(int), strict=True))
    cuts = [None if np.isnan(cut) else float(cut) for cut in rows["threshold"]]
    folds = [load_predictions(out / "runs" / key / "test") for key in rows["run"]]
    facts = {key: str(rows[key].iloc[0]) for key in ("set", "variant", "group", "family")}
    return _Judged(dict(zip(keys, folds, strict=True)), dict(zip(keys, cuts, strict=True)), facts, planned)


def _families(
    chosen: "DataFrame", out: Path, metrics: Sequence[str], n: int, planned: Planned | None
) -> Iterator["_Family"]:
    """Every metric of every data set, with all variants that have runs there."""
    for set_, part in chosen.groupby("set", sort=True):
        most, variants = int(part.groupby("variant").size().max()), part.groupby("variant", sort=True)
        counts = {str(name): (planned or {}).get((str(set_), str(name)), most) for name, _ in variants}
        judged = {str(name): _judged(mine, out, counts[str(name)]) for name, mine in variants}
        yield from (_Family(metric, judged, n, {}) for metric in metrics)


class _Family(NamedTuple):
    """A metric on one data set: rows of its variants; resamples over the same folds are computed once."""

    metric: str
    judged: dict[str, _Judged]
    n: int
    known: dict[tuple[str, tuple[Key, ...]], Resampled]

    def row(self, variant: str, keys: Sequence[Key] | None = None) -> dict[str, Any]:
        """A variant by itself, over all its folds or those given."""
        one = self.judged[variant]
        keys = list(one.folds) if keys is None else keys
        mine = self._over(variant, keys)
        found = interval(mine.drawn, mine.value, lambda: mine.left_out, "bca", LEVEL)
        row = {"set": one.facts["set"], "metric": self.metric, **one.facts, "runs": len(keys), "planned": one.planned}
        row |= {"units": mine.units, "resampled": mine.resampled, "value": mine.value}
        return row | _ends("", found, mine.notes)

    def against(self, variant: str, other: str) -> dict[str, Any]:
        """What a row says about the other variant, over the folds and seeds that both have; nothing about itself."""
        if variant == other:
            return {}
        both = self._both(variant, other)
        between = self._over(variant, both).minus(self._over(other, both))
        # BCa would reject too often here: see docs/evaluate.md
        found = interval(between.drawn, between.value, lambda: between.left_out, "percentile", LEVEL)
        row = {"reference": other, "difference": between.value, **_ends("difference_", found, between.notes)}
        return row | {"difference_runs": len(both), "p": found.p}

    def beside(self, variant: str, other: str) -> dict[str, Any]:
        """A variant and its partner, all numbers over the folds and seeds that both have."""
        both, planned = self._both(variant, other), max(self.judged[name].planned for name in (variant, other))
        row = self.row(variant, both) | self.against(variant, other)
        return row | {"reference_value": self._over(other, both).value, "planned": planned}

    def _both(self, variant: str, other: str) -> list[Key]:
        return [key for key in self.judged[variant].folds if key in self.judged[other].folds]

    def _over(self, variant: str, keys: Sequence[Key]) -> Resampled:
        if not keys:
            return without_value(self.n, "no value: the two have no fold in common; run the rest")
        one, key = self.judged[variant], (variant, tuple(keys))
        if key not in self.known:
            folds, cuts = [one.folds[k] for k in keys], [one.cuts[k] for k in keys]
            self.known[key] = resampled_mean(folds, self.metric, cuts, n=self.n)
        return self.known[key]


def _ends(prefix: str, found: Any, notes: Sequence[str]) -> dict[str, Any]:
    """An interval as columns: its ends, how it was made, and what is to be said about it in one text."""
    told = "; ".join(notes or found.notes)
    return {f"{prefix}low": found.low, f"{prefix}high": found.high} | {
        f"{prefix}method": found.method,
        f"{prefix}notes": told,
    }

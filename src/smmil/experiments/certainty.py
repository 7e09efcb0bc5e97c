"""Which differences of a study are real: intervals and paired tests of means over folds, patients resampled."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smmil.errors import DataError
from smmil.evaluate import holm
from smmil.evaluate.cases import units_of
from smmil.evaluate.comparison import two_sided_p
from smmil.evaluate.resampling import Resampling, interval
from smmil.evaluate.statistic import Settings, statistic
from smmil.experiments.results import chosen_rows
from smmil.experiments.writing import FAMILIES
from smmil.prediction import Prediction, load_predictions

if TYPE_CHECKING:
    from pandas import DataFrame

LEVEL = 0.95
RESAMPLES = 2000  # of the patients, for tables and figures


class Resampled(NamedTuple):
    """A metric averaged over folds: its value, those on resamples, those with each patient left out."""

    value: float
    drawn: np.ndarray
    left_out: list[np.ndarray]
    patients: int

    def minus(self, other: "Resampled") -> "Resampled":
        """The difference of two models judged on the same resamples."""
        gaps = [a - b for a, b in zip(self.left_out, other.left_out, strict=True)]
        return Resampled(self.value - other.value, self.drawn - other.drawn, gaps, self.patients)


def resampled_mean(
    folds: Sequence[Sequence[Prediction]],
    metric: str,
    thresholds: Sequence[float | None],
    *,
    n: int = 1000,
    seed: int = 0,
) -> Resampled:
    """The mean over folds of a metric on one test set, with patients drawn n times; every fold sees the same draws.

    The spread is that of the patients; the folds' own spread stands in the tables.
    """
    name, _, pool = metric.partition("@")
    judged = [
        statistic(cases, name, Settings(cut, pool or "all")) for cases, cut in zip(folds, thresholds, strict=True)
    ]
    ids = {tuple(p.id for p in one.cases) for one in judged}
    if len(ids) > 1:
        raise DataError(f"{metric}: the folds were tested on different cases; paired tests need one test set")
    units = units_of(judged[0].cases)[0]
    plan = Resampling(units)

    def value(weights: np.ndarray) -> float:
        return float(np.mean([one.value(weights) for one in judged]))

    drawn = np.array([value(weights) for weights in plan.draws(n, seed)])
    return Resampled(
        value(np.ones(len(judged[0].cases), dtype=np.int64)), drawn, plan.without_each(value), len(set(units))
    )


def comparisons(
    results: "DataFrame",
    out: str | Path,
    metrics: Sequence[str],
    reference: str,
    *,
    n: int = RESAMPLES,
    order: Sequence[str] = (),
) -> "DataFrame":
    """Every variant against the reference on every data set: value, difference, intervals, p and p by Holm.

    A difference is taken over the folds and seeds that both have. Holm's correction counts the variants compared for
    one metric of one data set. `order` is that of the rows: the reference first, then group, family and this order.
    """
    from pandas import DataFrame

    chosen = chosen_rows(results)
    rows: list[dict[str, Any]] = []
    for set_, part in chosen.groupby("set", sort=True):
        judged = {variant: _judged(mine, Path(out)) for variant, mine in part.groupby("variant", sort=True)}
        for metric in metrics:
            against = {v: reference for v in judged if v != reference} if reference in judged else {}
            rows += [{"set": set_, **row} for row in _family(metric, judged, against, n)]
    rows.sort(key=lambda row: _place(row, metrics, reference, list(order)))
    return DataFrame(rows)


def pair_differences(
    results: "DataFrame", out: str | Path, metrics: Sequence[str], pairs: Mapping[str, str], *, n: int = RESAMPLES
) -> "DataFrame":
    """Each variant of `pairs` against its own partner, as in `comparisons`; Holm's correction counts the pairs."""
    from pandas import DataFrame

    chosen = chosen_rows(results)
    rows: list[dict[str, Any]] = []
    for set_, part in chosen[chosen["variant"].isin({*pairs, *pairs.values()})].groupby("set", sort=True):
        judged = {variant: _judged(mine, Path(out)) for variant, mine in part.groupby("variant", sort=True)}
        against = {one: other for one, other in pairs.items() if one in judged and other in judged}
        for metric in metrics:
            found = {row["variant"]: row for row in _family(metric, judged, against, n)}
            rows += [{"set": set_, **found[one], "reference_value": found[against[one]]["value"]} for one in against]
    return DataFrame(rows)


def _place(row: dict[str, Any], metrics: Sequence[str], reference: str, order: list[str]) -> tuple[Any, ...]:
    name = row["variant"]
    kind = (row["group"] != "no_global", row["group"], list(FAMILIES).index(row["family"]))
    number = order.index(name) if name in order else len(order)
    return row["set"], list(metrics).index(row["metric"]), name != reference, *kind, number, name


class _Judged(NamedTuple):
    """A variant on one data set: its test predictions and thresholds by (seed, fold), and its facts."""

    folds: dict[tuple[int, int], list[Prediction]]
    cuts: dict[tuple[int, int], float | None]
    facts: dict[str, Any]

    def resampled(self, metric: str, n: int, keys: Sequence[tuple[int, int]]) -> Resampled:
        return resampled_mean([self.folds[k] for k in keys], metric, [self.cuts[k] for k in keys], n=n)


def _judged(rows: "DataFrame", out: Path) -> _Judged:
    rows = rows.sort_values(["seed", "fold"])
    keys = list(zip(rows["seed"].astype(int), rows["fold"].astype(int), strict=True))
    cuts = [None if np.isnan(cut) else float(cut) for cut in rows["threshold"]]
    folds = [load_predictions(out / "runs" / key / "test") for key in rows["run"]]
    facts = {key: str(rows[key].iloc[0]) for key in ("variant", "group", "family")}
    return _Judged(dict(zip(keys, folds, strict=True)), dict(zip(keys, cuts, strict=True)), facts)


def _family(metric: str, judged: dict[Any, _Judged], against: Mapping[Any, str], n: int) -> list[dict[str, Any]]:
    """The rows of one metric on one data set; `against` says whom each variant is compared with."""
    whole = {variant: one.resampled(metric, n, list(one.folds)) for variant, one in judged.items()}
    rows = []
    for variant, one in judged.items():
        mine = whole[variant]
        own = interval(mine.drawn, mine.value, lambda mine=mine: mine.left_out, "bca", LEVEL)  # type: ignore[misc]
        row = {"metric": metric, **one.facts, "runs": len(one.folds), "patients": mine.patients}
        row |= {"value": mine.value, "low": own.low, "high": own.high}
        if variant in against:
            other = against[variant]
            row |= _against(_gap(metric, n, (one, mine), (judged[other], whole[other])), other)
        rows.append(row)
    tested = [row for row in rows if "p" in row]
    for row, corrected in zip(tested, holm([row["p"] for row in tested]) if tested else [], strict=True):
        row["p_holm"] = corrected
    return rows


def _gap(metric: str, n: int, mine: tuple[_Judged, Resampled], other: tuple[_Judged, Resampled]) -> Resampled:
    """The difference over the folds and seeds that both have."""
    (a, whole_a), (b, whole_b) = mine, other
    both = [key for key in a.folds if key in b.folds]
    if not both:
        raise DataError(f"{metric}: {a.facts['variant']} and {b.facts['variant']} have no fold in common; run the rest")
    left = whole_a if len(both) == len(a.folds) else a.resampled(metric, n, both)
    right = whole_b if len(both) == len(b.folds) else b.resampled(metric, n, both)
    return left.minus(right)


def _against(gap: Resampled, reference: str) -> dict[str, Any]:
    found = interval(gap.drawn, gap.value, lambda: gap.left_out, "bca", LEVEL)
    shown = {"difference": gap.value, "difference_low": found.low, "difference_high": found.high}
    return {"reference": reference, **shown, "p": two_sided_p(gap.drawn)}

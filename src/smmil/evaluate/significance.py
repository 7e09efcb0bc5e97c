"""Statistical tests and p values of numbers: DeLong, Holm's correction, mean ranks, Friedman and Nemenyi."""

from collections.abc import Mapping
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from smmil.errors import ConfigError, DataError
from smmil.evaluate.ranking import OperatingPoints, _count_below


class DeLong(NamedTuple):
    """Difference of two AUROCs (first minus second) with its standard error, z, two-sided p and interval."""

    auroc_a: float
    auroc_b: float
    difference: float
    std_error: float
    z: float
    p: float
    low: float
    high: float


def delong(scores_a: np.ndarray, scores_b: np.ndarray, truth: np.ndarray, level: float = 0.95) -> DeLong:
    """Compare two scores of the same independent cases (DeLong, DeLong, Clarke-Pearson 1988).

    Without difference and without variance (such as two perfect scores) p is 1; with fewer than two cases of a class
    everything but the AUROCs is nan.
    """
    from scipy.special import ndtr, ndtri

    truth = np.asarray(truth).astype(bool)
    pair = np.stack([np.asarray(scores_a, dtype=np.float64), np.asarray(scores_b, dtype=np.float64)])
    if not np.isfinite(pair).all():
        raise DataError("DeLong's test needs finite scores; at least one is not a number or infinite")
    first, second = (OperatingPoints.of(row, truth).roc_area() for row in pair)
    covariance = _auroc_covariance(pair, truth)
    error = float(np.sqrt(max(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1], 0.0)))
    gap = first - second
    z = gap / error if error else (0.0 if gap == 0 else float("nan"))
    z = float("nan") if np.isnan(covariance).any() else z
    reach = float(ndtri((1 + level) / 2)) * (error if not np.isnan(z) else float("nan"))
    low, high = (float(np.clip(end, -1, 1)) for end in (gap - reach, gap + reach))
    return DeLong(first, second, gap, error, z, float(2 * ndtr(-abs(z))), low, high)


def _auroc_covariance(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Covariance (m, m) of the AUROCs of m scores (m, n) of the same n cases; nan with fewer than two of a class.

    Each positive case gets the share of negatives it beats, each negative the share of positives that beat it, ties
    half; the sample covariances of these shares over their numbers add up. O(m n log n), by ranks.
    """
    positive, negative = int(truth.sum()), int((~truth).sum())
    if min(positive, negative) < 2:
        return np.full((len(scores), len(scores)), np.nan)
    beaten = np.stack([_count_below(row[truth], row[~truth]) / negative for row in scores])
    beating = np.stack([1 - _count_below(row[~truth], row[truth]) / positive for row in scores])
    return np.atleast_2d(np.cov(beaten)) / positive + np.atleast_2d(np.cov(beating)) / negative


def holm(pvalues: Any) -> Any:
    """p values corrected for the number of tests (Holm 1979): a mapping gives a dict, a sequence a list.

    The smallest is multiplied by m, the next by m - 1 and so on, never falling below the one before, at most 1.
    Undefined ones (nan) stay so and are not counted as tests.
    """
    if isinstance(pvalues, Mapping):
        return dict(zip(pvalues, holm(list(pvalues.values())), strict=True))
    p = np.array(pvalues, dtype=np.float64)
    if ((p < 0) | (p > 1)).any():
        raise ConfigError(f"holm: p values lie between 0 and 1, got {p[(p < 0) | (p > 1)][0]:g}")
    order = np.argsort(p)[: int((~np.isnan(p)).sum())]
    steps = p[order] * np.arange(len(order), 0, -1)
    result = np.full(len(p), np.nan)
    result[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return result.tolist()


def mean_ranks(values: Any, ddof: int = 1) -> dict[str, tuple[float, float]]:
    """Mean and standard deviation of each model's rank over the columns; rank 1 is best, higher values are better.

    values  a DataFrame (one row per model), or a mapping {model: {column: value}} or {model: [values]}
    ddof    1 for the sample deviation (as in the paper), 0 for the population's
    Equal values share the mean of their ranks. Values are ranked as given: round before, if ties at three digits
    should count as ties. With one column the sample deviation is nan.
    """
    models, ranks = _rank_table(values)
    many = ranks.shape[1] > ddof
    spread = ranks.std(1, ddof=ddof) if many else np.full(len(models), np.nan)
    return {model: (float(m), float(s)) for model, m, s in zip(models, ranks.mean(1), spread, strict=True)}


def _rank_table(values: Any) -> tuple[list[str], np.ndarray]:
    """Names of the models and their rank in each column, (models, columns); ties share the mean rank."""
    if hasattr(values, "columns") and hasattr(values, "to_numpy"):
        models, columns, table = list(values.index), list(values.columns), values.to_numpy(dtype=np.float64)
    else:
        rows = {model: row if isinstance(row, Mapping) else dict(enumerate(row)) for model, row in values.items()}
        models, columns = list(rows), list(dict.fromkeys(name for row in rows.values() for name in row))
        table = np.array([[row.get(name, np.nan) for name in columns] for row in rows.values()], dtype=np.float64)
    if not table.size:
        raise DataError("mean_ranks: the table is empty; give at least one model and one column")
    if np.isnan(table).any():
        row, column = np.argwhere(np.isnan(table))[0]
        raise DataError(f"mean_ranks: {models[row]} has no value for {columns[column]}; leave out one of the two")
    better = (table[None, :, :] > table[:, None, :]).sum(1)
    equal = (table[None, :, :] == table[:, None, :]).sum(1) - 1
    return models, np.asarray(1 + better + equal / 2)


def friedman_nemenyi(values: Any, alpha: float = 0.05) -> dict[str, Any]:
    """Friedman's test over the columns of a table, then Nemenyi's test for every pair of models (Demšar 2006).

    values  as for `mean_ranks`: models x columns, higher is better; at least three models and two columns
    Keys: mean_ranks {model: mean rank, best first}, statistic (chi-squared, corrected for ties), p, n_models,
    n_columns, alpha, critical_difference (models whose mean ranks differ by at least this much differ at alpha),
    pairs [{model, other, difference, p}], groups (runs of models that Nemenyi's test does not tell apart).
    """
    from scipy.stats import friedmanchisquare, studentized_range

    models, ranks = _rank_table(values)
    k, n = ranks.shape
    if k < 3 or n < 2:
        raise DataError(
            f"friedman_nemenyi: got {k} models and {n} columns, expected at least 3 and 2; for two models use compare"
        )
    means = dict(sorted(zip(models, ranks.mean(1).tolist(), strict=True), key=lambda item: item[1]))
    alike = (ranks == ranks[0, 0]).all()
    statistic, p = (0.0, 1.0) if alike else map(float, friedmanchisquare(*ranks))
    step = float(np.sqrt(k * (k + 1) / (6 * n)))
    reach = float(studentized_range.isf(alpha, k, np.inf) / np.sqrt(2)) * step
    pairs = []
    for model, other in combinations(means, 2):
        gap = means[other] - means[model]
        chance = min(1.0, float(studentized_range.sf(np.sqrt(2) * gap / step, k, np.inf)))
        pairs.append({"model": model, "other": other, "difference": gap, "p": chance})
    return {
        "mean_ranks": means,
        "statistic": statistic,
        "p": p,
        "n_models": k,
        "n_columns": n,
        "alpha": alpha,
        "critical_difference": reach,
        "pairs": pairs,
        "groups": _not_different(means, reach),
    }


def _not_different(means: dict[str, float], reach: float) -> list[list[str]]:
    """The longest runs of models, by rank, whose first and last are less than `reach` apart; single models left out."""
    ranked = sorted(means.items(), key=lambda item: item[1])
    runs, end = [], 0
    for start, (_, rank) in enumerate(ranked):
        stop = max(i for i, (_, other) in enumerate(ranked) if other - rank < reach or i == start) + 1
        if stop > end and stop - start > 1:
            runs.append([name for name, _ in ranked[start:stop]])
        end = max(end, stop)
    return runs

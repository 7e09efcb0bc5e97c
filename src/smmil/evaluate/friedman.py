"""Whether models differ over several data sets: Friedman's test and Nemenyi's critical difference."""

from itertools import combinations
from typing import Any

import numpy as np

from smmil.errors import DataError
from smmil.evaluate.ranks import rank_table


def friedman_nemenyi(values: Any, alpha: float = 0.05) -> dict[str, Any]:
    """Friedman's test over the columns of a table, then Nemenyi's test for every pair of models (Demšar 2006).

    values  as for `mean_ranks`: models x columns, higher is better; at least three models and two columns
    Keys: mean_ranks {model: mean rank, best first}, statistic (chi-squared, corrected for ties), p, n_models,
    n_columns, alpha, critical_difference (models whose mean ranks differ by at least this much differ at alpha),
    pairs [{model, other, difference, p}], groups (runs of models that Nemenyi's test does not tell apart).
    """
    models, ranks = rank_table(values)
    k, n = ranks.shape
    if k < 3 or n < 2:
        raise DataError(
            f"friedman_nemenyi: got {k} models and {n} columns, expected at least 3 and 2; for two models use compare"
        )
    means = dict(sorted(zip(models, ranks.mean(1).tolist(), strict=True), key=lambda item: item[1]))
    statistic, p = _friedman(ranks)
    step = float(np.sqrt(k * (k + 1) / (6 * n)))
    reach = _largest_chance_difference(k, alpha) * step
    return {
        "mean_ranks": means,
        "statistic": statistic,
        "p": p,
        "n_models": k,
        "n_columns": n,
        "alpha": alpha,
        "critical_difference": reach,
        "pairs": _pairs(means, step),
        "groups": not_different(means, reach),
    }


def not_different(means: dict[str, float], reach: float) -> list[list[str]]:
    """The longest runs of models, by rank, whose first and last are less than `reach` apart; single models left out."""
    ranked = sorted(means.items(), key=lambda item: item[1])
    runs, end = [], 0
    for start, (_, rank) in enumerate(ranked):
        stop = max(i for i, (_, other) in enumerate(ranked) if other - rank < reach or i == start) + 1
        if stop > end and stop - start > 1:
            runs.append([name for name, _ in ranked[start:stop]])
        end = max(end, stop)
    return runs


def _friedman(ranks: np.ndarray) -> tuple[float, float]:
    from scipy.stats import friedmanchisquare

    if (ranks == ranks[0, 0]).all():
        return 0.0, 1.0
    found = friedmanchisquare(*ranks)
    return float(found.statistic), float(found.pvalue)


def _largest_chance_difference(k: int, alpha: float) -> float:
    """Quantile of the studentised range of k normal variables, over the square root of 2."""
    from scipy.stats import studentized_range

    return float(studentized_range.isf(alpha, k, np.inf) / np.sqrt(2))


def _pairs(means: dict[str, float], step: float) -> list[dict[str, Any]]:
    from scipy.stats import studentized_range

    rows = []
    for model, other in combinations(means, 2):
        gap = means[other] - means[model]
        p = min(1.0, float(studentized_range.sf(np.sqrt(2) * gap / step, len(means), np.inf)))
        rows.append({"model": model, "other": other, "difference": gap, "p": p})
    return rows

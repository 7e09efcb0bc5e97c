"""Does the map stay the same when only chance changes, and does it point to the right side at all?"""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from smmil.evaluate import bootstrap_ci
from smmil.evaluate.instances import instance_score
from smmil.prediction import Prediction


def map_stability(runs: Sequence[Sequence[Prediction]]) -> dict[str, Any]:
    """Rank correlation of the scores of each case between runs that differ by chance only, averaged over cases.

    1: the same order of instances every time; 0: unrelated maps. Cases with constant scores in a run do not count.
    """
    values: list[float] = []
    for a, b in combinations(runs, 2):
        other = {p.id: p for p in b}
        values += [v for p in a if p.id in other and not np.isnan(v := _correlation(p, other[p.id]))]
    return {
        "stability": float(np.mean(values)) if values else float("nan"),
        "stability_worst": float(np.min(values)) if values else float("nan"),
        "n_stability_pairs": len(values),
    }


def _correlation(a: Prediction, b: Prediction) -> float:
    x, y = instance_score(a), instance_score(b)
    if len(x) != len(y) or len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    return float(spearmanr(x, y).statistic)


def inverted_maps(runs: Sequence[Sequence[Prediction]], *, n: int = 1000) -> dict[str, Any]:
    """`inverted_map` of every run: the mean, the lowest with its interval, and how many raise the alarm."""
    found = [inverted_map(run, n=n) for run in runs]
    lowest = min(found, key=lambda one: np.inf if np.isnan(one["inside"]) else one["inside"])
    alarms = sum(one["inverted"] for one in found)
    return {
        **lowest,
        "inside": float(np.mean([one["inside"] for one in found])),
        "inside_lowest": lowest["inside"],
        "inverted": alarms > 0,
        "inverted_runs": f"{alarms} of {len(found)}",
    }


def inverted_map(predictions: Sequence[Prediction], *, n: int = 1000) -> dict[str, Any]:
    """Whether the map is high on the wrong side: AUROC within positive cases whose whole interval lies below 0.5.

    A model may classify well with such a map; used as it is it would show the clinician the healthy part.
    """
    found = bootstrap_ci(predictions, "inst_auroc", pool="positive_bags", n=n)
    value, low, high = found["value"], found["low"], found["high"]
    below = high < 0.5 if not np.isnan(high) else value < 0.5
    return {"inside": value, "inside_low": low, "inside_high": high, "inverted": bool(below)}

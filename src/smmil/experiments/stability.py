"""Does the map stay the same when only chance changes, and does it point to the right side at all?"""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from smmil.evaluate import bootstrap_ci, instance_metrics
from smmil.evaluate.instances import bags_of_pool, instance_score
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
    """Whether the map is high on the wrong side: `inside_positives` whose whole 95 % interval lies below 0.5.

    A model may classify well with such a map; used as it is it would show the clinician the healthy part. Without an
    interval (undefined, or from one patient only) there is no alarm.
    """
    found = bootstrap_ci(bags_of_pool(predictions, "positive_bags"), "inst_auroc", pool="per_bag", n=n)
    several = found["n_units"] > 1  # one patient, drawn again and again, always gives the same value
    low, high = (found["low"], found["high"]) if several else (float("nan"), float("nan"))
    return {"inside": found["value"], "inside_low": low, "inside_high": high, "inverted": bool(high < 0.5)}


def inside_positives(predictions: Sequence[Prediction]) -> float:
    """Instance AUROC of each positive case by itself, averaged; how high a map is from case to case plays no part.

    Pooled over cases, a map that is right in every case can come out below 0.5: where large lesions have low levels.
    """
    return float(instance_metrics(bags_of_pool(predictions, "positive_bags"), pool="per_bag")["auroc"])

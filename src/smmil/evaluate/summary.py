"""Everything that can be said about one model's predictions, in one plain dict."""

from collections.abc import Sequence
from typing import Any

from smmil.evaluate.bags import bag_metrics
from smmil.evaluate.energy import energies
from smmil.evaluate.instances import POOLS, instance_metrics
from smmil.evaluate.thresholds import Threshold, choose_threshold
from smmil.prediction import Prediction


def summary(
    predictions: Sequence[Prediction],
    *,
    validation: Sequence[Prediction] | None = None,
    threshold: float | None = None,
    column: int | None = None,
) -> dict[str, Any]:
    """Bag metrics, instance metrics in every pool, energies, and which instance threshold was used.

    The threshold is the given one, else the best on `validation`, else none. Result: {"bag": ..., "instance":
    {"all": ..., "per_bag": ..., "positive_bags": ...}, "energy": ..., "threshold": {"value": ..., "source": ...}}.
    """
    cut = _threshold(validation, threshold, column)
    return {
        "bag": bag_metrics(predictions),
        "instance": {pool: instance_metrics(predictions, cut.value, pool, column) for pool in POOLS},
        "energy": energies(predictions, column),
        "threshold": cut._asdict(),
    }


def _threshold(validation: Sequence[Prediction] | None, given: float | None, column: int | None) -> Threshold:
    if given is not None:
        return Threshold(float(given), "given by the user")
    if validation is None:
        return Threshold(None, "no validation predictions were given")
    return choose_threshold(validation, column)

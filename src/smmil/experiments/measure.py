"""Predictions of one run to one flat row of numbers."""

import math
from collections.abc import Sequence
from typing import Any

from smmil.evaluate import froc, summary
from smmil.evaluate.bags import BAG_METRICS
from smmil.evaluate.energy import NAMES as ENERGIES
from smmil.evaluate.instances import INSTANCE_METRICS, POOLS
from smmil.prediction import Prediction


def measured_row(validation: Sequence[Prediction], test: Sequence[Prediction]) -> dict[str, Any]:
    """Bag metrics at 0.5, instance metrics at the threshold that is best on validation, energies and FROC of the test.

    Names are those of METRIC_NAMES; inst_auroc@positive_bags is the same metric in another pool. Numbers that do not
    exist are nan.
    """
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):  # sums of several threads differ in the last digits
        found = summary(test, validation=validation)
        lesions = froc(test)
    row: dict[str, Any] = {
        "n_test": found["bag"]["n"],
        "n_test_positive": found["bag"]["n_positive"],
        "n_instances": found["instance"]["all"]["n_instances"],
        "score_kind": found["instance"]["all"]["score_kind"],
        "threshold": _number(found["threshold"]["value"]),
        "threshold_source": found["threshold"]["source"],
    }
    row |= {f"bag_{name}": _number(found["bag"][name]) for name in BAG_METRICS}
    for pool in POOLS:
        suffix = "" if pool == "all" else f"@{pool}"
        inside = found["instance"][pool]
        row |= {f"inst_{name}{suffix}": _number(inside.get(name)) for name in INSTANCE_METRICS}
    row |= {f"energy_{name}": _number(found["energy"][name]) for name in ENERGIES}
    return row | {"froc": _number(lesions["froc"])}


def learned_alpha(history: Sequence[dict[str, Any]], epoch: int) -> float:
    """Mean of the smoothing strengths a model had learned in the selected epoch; nan when it learns none."""
    chosen = next((row for row in history if row.get("epoch") == epoch), {})
    found = [float(value) for name, value in chosen.items() if name.startswith("alpha/")]
    return math.fsum(found) / len(found) if found else float("nan")


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)

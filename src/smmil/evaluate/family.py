"""Several models at once: every comparison, corrected for their number."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from smmil.errors import ConfigError, suggest
from smmil.evaluate.comparison import compare
from smmil.evaluate.statistic import Metric
from smmil.prediction import Prediction


def compare_models(
    models: Mapping[str, Sequence[Prediction]],
    metric: Metric = "bag_auroc",
    reference: str | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Every pair of models, or every model against `reference`; `p_holm` is corrected for the number of comparisons.

    Each row is that of `compare` with `model` and `other`; options as there. Thresholds may be a mapping by model.
    """
    if reference is not None and reference not in models:
        raise ConfigError(f"reference: unknown model {reference!r}; {suggest(reference, models)}")
    others = [(name, reference) for name in models if name != reference]
    pairs = list(combinations(models, 2)) if reference is None else others
    cuts = options.pop("threshold", None)
    rows = []
    for name, other in pairs:
        both = (cuts.get(name), cuts.get(other)) if isinstance(cuts, Mapping) else cuts
        found = compare(models[name], models[str(other)], metric, threshold=both, **options)
        rows.append({"model": name, "other": other, **found})
    _correct(rows, "p_holm", [row["p"] for row in rows])
    if all(row["delong"] for row in rows):
        _correct(rows, "p_holm_delong", [row["delong"]["p"] for row in rows])
    return rows


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


def _correct(rows: list[dict[str, Any]], key: str, pvalues: list[float]) -> None:
    for row, corrected in zip(rows, holm(pvalues), strict=True):
        row[key] = corrected

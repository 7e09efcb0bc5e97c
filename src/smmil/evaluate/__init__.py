"""Predictions to numbers, with numpy only."""

from smmil import make_callable
from smmil.evaluate.bags import reliability_curve
from smmil.evaluate.bootstrap import bootstrap_ci
from smmil.evaluate.comparison import compare, compare_models
from smmil.evaluate.folders import summary
from smmil.evaluate.levels import bag_metrics, best_f1_threshold, energies, froc, instance_metrics
from smmil.evaluate.metrics import METRIC_NAMES, Metric, register_metric, unregister_metric
from smmil.evaluate.prior import position_prior
from smmil.evaluate.ranking import spread
from smmil.evaluate.significance import delong, friedman_nemenyi, holm, mean_ranks
from smmil.evaluate.uncertainty import uncertainty_metrics

__all__ = [
    "METRIC_NAMES",
    "Metric",
    "bag_metrics",
    "best_f1_threshold",
    "bootstrap_ci",
    "compare",
    "compare_models",
    "delong",
    "energies",
    "friedman_nemenyi",
    "froc",
    "holm",
    "instance_metrics",
    "mean_ranks",
    "position_prior",
    "register_metric",
    "reliability_curve",
    "spread",
    "summary",
    "uncertainty_metrics",
    "unregister_metric",
]

make_callable(__name__, summary)

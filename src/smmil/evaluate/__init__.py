"""Predictions to numbers, with numpy only."""

from smmil import make_callable
from smmil.evaluate.bags import bag_metrics, reliability_curve
from smmil.evaluate.bootstrap import bootstrap_ci
from smmil.evaluate.comparison import compare, compare_models, delong, holm
from smmil.evaluate.detection import froc
from smmil.evaluate.folders import summary
from smmil.evaluate.instances import best_f1_threshold, energies, instance_metrics
from smmil.evaluate.ranking import spread
from smmil.evaluate.ranks import friedman_nemenyi, mean_ranks
from smmil.evaluate.statistic import METRIC_NAMES

__all__ = [
    "METRIC_NAMES",
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
    "reliability_curve",
    "spread",
    "summary",
]

make_callable(__name__, summary)

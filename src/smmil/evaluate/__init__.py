"""Predictions to numbers, with numpy only."""

from smmil.evaluate.average import spread
from smmil.evaluate.bags import bag_metrics
from smmil.evaluate.bootstrap import bootstrap_ci
from smmil.evaluate.calibration import reliability_curve
from smmil.evaluate.comparison import compare
from smmil.evaluate.detection import froc
from smmil.evaluate.energy import energies
from smmil.evaluate.family import compare_models, holm
from smmil.evaluate.friedman import friedman_nemenyi
from smmil.evaluate.instances import instance_metrics
from smmil.evaluate.ranks import mean_ranks
from smmil.evaluate.roc_test import delong
from smmil.evaluate.statistic import METRIC_NAMES
from smmil.evaluate.summary import summary
from smmil.evaluate.thresholds import best_f1_threshold

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

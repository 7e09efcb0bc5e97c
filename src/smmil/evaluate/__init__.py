"""Predictions to numbers, with numpy only."""

from smmil.evaluate.bags import bag_metrics
from smmil.evaluate.energy import energies
from smmil.evaluate.instances import instance_metrics
from smmil.evaluate.ranks import mean_ranks
from smmil.evaluate.summary import summary
from smmil.evaluate.thresholds import best_f1_threshold

__all__ = ["bag_metrics", "best_f1_threshold", "energies", "instance_metrics", "mean_ranks", "summary"]

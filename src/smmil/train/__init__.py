"""Training: one loop, one folder per run, exact resuming."""

from smmil.train.loop import Interrupted, Progress
from smmil.train.run import FitResult, RunResult, check_settings, fit, train

__all__ = ["FitResult", "Interrupted", "Progress", "RunResult", "check_settings", "fit", "train"]

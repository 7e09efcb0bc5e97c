"""Training: one readable loop, one folder per run, and resuming to the bit."""

from smmil.train.progress import Interrupted, Progress
from smmil.train.run import RunResult, check_settings, train

__all__ = ["Interrupted", "Progress", "RunResult", "check_settings", "train"]

"""Where to cut instance scores, chosen on validation and never on the cases being judged."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from smmil.evaluate.instances import gather, known_instances
from smmil.evaluate.ranking import operating_points
from smmil.prediction import Prediction


class Threshold(NamedTuple):
    """A cut (score >= value is positive) and where it came from; value None: there is none, for that reason."""

    value: float | None
    source: str


def choose_threshold(predictions: Sequence[Prediction], column: int | None = None) -> Threshold:
    """The observed score that maximises pooled instance F1; among equals the highest, which calls fewest instances."""
    known = gather([known_instances(p, column) for p in predictions])
    if len(known.truth) == 0:
        return Threshold(None, "validation has no instance labels")
    positives = int(known.truth.sum())
    if positives == 0:
        return Threshold(None, "validation has no positive instance")
    points = operating_points(known.scores, known.truth)
    f1 = 2 * points.true_positives / (points.true_positives + points.false_positives + positives)
    best = int(np.argmax(f1))
    return Threshold(float(points.threshold[best]), f"best instance F1 on validation ({f1[best]:.3f})")


def best_f1_threshold(predictions: Sequence[Prediction], column: int | None = None) -> float | None:
    """The value of `choose_threshold`; None when validation has no positive or no labelled instance."""
    return choose_threshold(predictions, column).value

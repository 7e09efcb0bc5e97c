"""How good yes/no answers are."""

from typing import NamedTuple

import numpy as np


class Counts(NamedTuple):
    """Answers by kind: true and false positives, false and true negatives."""

    tp: int
    fp: int
    fn: int
    tn: int


def count(called: np.ndarray, truth: np.ndarray) -> Counts:
    """Counts of boolean answers against the boolean truth."""
    tp, said, real = int((called & truth).sum()), int(called.sum()), int(truth.sum())
    return Counts(tp, said - tp, real - tp, len(truth) - said - real + tp)


def ratio(part: float, whole: float) -> float:
    """part / whole; nan when there is nothing to divide by."""
    return part / whole if whole else float("nan")


def f1(c: Counts) -> float:
    """2 TP / (2 TP + FP + FN); nan when nothing is positive and nothing was called."""
    return ratio(2 * c.tp, 2 * c.tp + c.fp + c.fn)


def precision(c: Counts) -> float:
    return ratio(c.tp, c.tp + c.fp)


def recall(c: Counts) -> float:
    return ratio(c.tp, c.tp + c.fn)


def specificity(c: Counts) -> float:
    return ratio(c.tn, c.tn + c.fp)


def iou(c: Counts) -> float:
    """TP / (TP + FP + FN): overlap of the called and the true area over their union."""
    return ratio(c.tp, c.tp + c.fp + c.fn)


def accuracy(c: Counts) -> float:
    return ratio(c.tp + c.tn, sum(c))


def balanced_accuracy(c: Counts) -> float:
    """Mean of sensitivity and specificity; nan with one class."""
    return (recall(c) + specificity(c)) / 2

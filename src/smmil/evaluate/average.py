"""Means that do not depend on the order of what is averaged."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Spread(NamedTuple):
    """Mean of n values with both conventions of the standard deviation; nan where undefined."""

    mean: float
    sample_std: float
    population_std: float
    n: int


def exact_mean(values: Sequence[float]) -> float:
    """Mean of the values, summed without rounding; nan when there are none."""
    return math.fsum(values) / len(values) if len(values) else float("nan")


def defined(values: Iterable[float]) -> list[float]:
    """The values that are numbers."""
    return [float(v) for v in values if not math.isnan(v)]


def spread(values: Iterable[float]) -> Spread:
    """Mean and deviations of the values of repeated runs: divided by n - 1 (sample) and by n (population).

    The two differ by sqrt(n / (n - 1)): 12 % for five runs. A table should say which one it shows.
    """
    values = [float(v) for v in values]
    mean, n = exact_mean(values), len(values)
    squares = math.fsum((v - mean) ** 2 for v in values)
    sample = math.sqrt(squares / (n - 1)) if n > 1 else float("nan")
    return Spread(mean, sample, math.sqrt(squares / n) if n else float("nan"), n)

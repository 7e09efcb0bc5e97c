"""Metrics of scores against labels: ROC, precision-recall, F1, thresholds, and errors of probabilities."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

_BINS = 10
_CLIP = 1e-7


class Spread(NamedTuple):
    """Mean of n values with both conventions of the standard deviation; nan where undefined."""

    mean: float
    sample_std: float
    population_std: float
    n: int


def exact_mean(values: Sequence[float]) -> float:
    """Mean of the values, summed without rounding; nan when there are none."""
    return math.fsum(values) / len(values) if len(values) else float("nan")


def _defined(values: Iterable[float]) -> list[float]:
    """Values that are not nan."""
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


def chance_probability(auroc: float, positives: int, negatives: int) -> float:
    """Chance of an AUROC at least this high among so many cases when scores say nothing: exact Mann-Whitney, one-sided.

    From 30 cases of the smaller class on the normal approximation is used. Ties count as half wins, rounded down.
    """
    from scipy.stats import mannwhitneyu

    wins = math.floor(auroc * positives * negatives + _TOLERANCE)
    above, rest = divmod(wins, negatives)
    low = np.arange(negatives) + 0.5  # scores of negatives; positives stand above as many of them as they win against
    won = [negatives] * above + [rest] * (above < positives) + [0] * (positives - above - 1)
    high = np.array(won) + np.linspace(0.1, 0.2, positives) - 0.5
    method = "exact" if min(positives, negatives) < 30 else "asymptotic"
    return float(mannwhitneyu(high, low, alternative="greater", method=method).pvalue)


def chance_in_words(auroc: float | None, labels: Sequence[int], level: float = 0.05, what: str = "cases") -> str | None:
    """Why the AUROC of the best epoch on validation cases with these labels may be chance, and what to try; else None.

    With more than two classes only a mean AUROC of 0.5 or less counts as chance. The best of many epochs is higher than
    chance by itself, so silence is no proof.
    """
    positives, negatives = sum(y > 0 for y in labels), sum(y == 0 for y in labels)
    if auroc is None or auroc != auroc or not positives or not negatives:
        return None
    cases = f"{len(labels)} validation {what} ({positives} positive)"
    if max(labels) == 1 and chance_probability(1.0, positives, negatives) > level:
        return f"{cases} are too few to tell a model that learned from chance, even one that is always right: {_MORE}"
    p = chance_probability(auroc, positives, negatives) if max(labels) == 1 else float(auroc <= 0.5)
    if p <= level:
        return None
    shown = f" (p = {p:.2f})" if max(labels) == 1 else ""
    return f"on {cases} the best AUROC, {auroc:.3f}, is no better than chance{shown}: {_TO_TRY}"


def _chance_deviation(metric: str, cases: int) -> float:
    """Standard deviation of a metric over all orders of so many cases without ties, all equally likely.

    Of a mean AUROC that of one label which half of the cases have.
    """
    n = cases
    if metric == "auroc":
        return math.sqrt((n + 1) / 3) / n
    return math.sqrt((2 * n + 5) / (18 * n * (n - 1))) if metric == "cindex" else 1 / math.sqrt(n - 1)


# Of a target that is no class: what chance gives, and what the metric is called.
_BY_CHANCE = {"cindex": (0.5, "C-index"), "spearman": (0.0, "Spearman correlation"), "kappa": (0.0, "kappa"),
              "auroc": (0.5, "mean AUROC")}  # fmt: skip


def target_chance_in_words(metric: str, value: float | None, cases: int, what: str = "cases") -> str | None:
    """Why a C-index, correlation or kappa of the best epoch on validation cases may be chance; else None.

    It is doubted below 1.64 deviations of unrelated orders (one-sided 5 %; of kappa that of a correlation, of a mean
    AUROC that of one balanced label). cases: of survival those with an event, which is careful.
    """
    if value is None or value != value:
        return None
    chance, called = _BY_CHANCE[metric]
    words = f"{cases} validation {what}{' with an event' if metric == 'cindex' else ''}"
    margin = 1.645 * _chance_deviation(metric, cases) if cases > 1 else math.inf
    if margin >= 1 - chance:
        return f"{words} are too few to tell a model that learned from chance, even one that is always right: {_MORE}"
    if value > chance + margin:
        return None
    return f"on {words} the best {called}, {value:.3f}, is no better than chance ({chance:g} ± {margin:.2f}): {_TO_TRY}"


_MORE = (
    "do not read the maps yet; give validation more (--set data.val_share), add cases, or test every case once "
    "(--set data.test=rotate)"
)
_TO_TRY = (
    "do not read the maps yet; try more epochs, --lr 1e-3, more cases, another encoder (docs/train.md, When it does "
    "not learn)"
)
# Shares such as 0.1 of 10 negatives are not exact in binary; this much is forgiven when they are compared.
_TOLERANCE = 1e-9


class OperatingPoints(NamedTuple):
    """Counts when everything with score >= threshold is called positive, from the strictest threshold down."""

    threshold: np.ndarray
    true_positives: np.ndarray
    false_positives: np.ndarray

    @classmethod
    def of(cls, scores: np.ndarray, truth: np.ndarray) -> "OperatingPoints":
        """One row per distinct score, so tied scores are always called together. O(n log n)."""
        truth = np.asarray(truth).astype(bool)
        return _SortedScores(np.asarray(scores), truth, ~truth).points()

    @property
    def both_classes(self) -> bool:
        return bool(len(self.threshold) and self.true_positives[-1] > 0 and self.false_positives[-1] > 0)

    def roc_area(self) -> float:
        """AUROC: chance that a positive scores above a negative, ties counting half; nan with one class."""
        hits, alarms = np.append(0, self.true_positives), np.append(0, self.false_positives)
        area = float(np.sum(np.diff(alarms) * (hits[1:] + hits[:-1]) / 2))
        return _ratio(area, float(hits[-1]) * float(alarms[-1]))

    def average_precision(self) -> float:
        """Precision at each threshold weighted by the recall gained there; nan with one class."""
        hits = self.true_positives
        if not self.both_classes:
            return float("nan")
        called = np.maximum(hits + self.false_positives, 1)
        return float(np.sum(np.diff(hits, prepend=0) * (hits / called)) / hits[-1])

    def risk_coverage_area(self) -> float:
        """Where positives are errors and scores doubts: mean over k of the share of errors among the k least doubtful.

        Ties are taken in every order alike.
        """
        errors, total = np.append(0, self.true_positives), np.append(0, self.true_positives + self.false_positives)
        if not total[-1]:
            return float("nan")
        kept = np.arange(1, total[-1] + 1)
        left = errors[-1] - np.interp(total[-1] - kept, total, errors)
        return float(np.mean(left / kept))

    def sensitivity_at(self, specificity: float) -> float:
        """The highest sensitivity of a threshold that leaves at least this specificity; nan with one class."""
        if not self.both_classes:
            return float("nan")
        allowed = (1 - specificity) * self.false_positives[-1] + _TOLERANCE
        within = self.true_positives[self.false_positives <= allowed]
        return float(within.max(initial=0) / self.true_positives[-1])


class _SortedScores:
    """Scores sorted once and counted with any weights; hits, alarms: how much of a true or false positive each is."""

    def __init__(self, scores: np.ndarray, hits: np.ndarray, alarms: np.ndarray):
        # shares of a hit are summed in an order of their own, so that the order of the cases leaves no rounding behind
        whole = hits.dtype.kind in "bi"
        self.order = np.argsort(-scores, kind="stable") if whole else np.lexsort((hits, alarms, -scores))
        ranked = scores[self.order]
        self.last_of_tie = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)[: len(ranked)]
        self.threshold = ranked[self.last_of_tie]
        kind = np.int64 if whole else np.float64
        self.hits, self.alarms = hits[self.order].astype(kind), alarms[self.order].astype(kind)

    def points(self, weights: np.ndarray | None = None) -> OperatingPoints:
        """One row per distinct score: ties are called together. `weights`: how often each row of `order` counts."""
        hits, alarms = self.hits, self.alarms
        if weights is not None:
            hits, alarms = hits * weights, alarms * weights
        found, wrong = (np.cumsum(kind)[self.last_of_tie] for kind in (hits, alarms))
        return OperatingPoints(self.threshold, found, wrong)


def _count_below(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """For each value the number of others below it, ties counting half. O(n log n)."""
    ranked = np.sort(others)
    return (np.searchsorted(ranked, values, "left") + np.searchsorted(ranked, values, "right")) / 2


def _ratio(part: float, whole: float) -> float:
    """part / whole; nan when there is nothing to divide by."""
    return part / whole if whole else float("nan")


class Counts(NamedTuple):
    """Confusion counts: true and false positives, false and true negatives."""

    tp: int
    fp: int
    fn: int
    tn: int

    @classmethod
    def of(cls, called: np.ndarray, truth: np.ndarray) -> "Counts":
        """Confusion counts of boolean calls against the boolean truth."""
        tp, positive_calls, positives = int((called & truth).sum()), int(called.sum()), int(truth.sum())
        fp, fn = positive_calls - tp, positives - tp
        return cls(tp, fp, fn, len(truth) - tp - fp - fn)

    def f1(self) -> float:
        """2 TP / (2 TP + FP + FN); nan when nothing is positive and nothing was called."""
        return _ratio(2 * self.tp, 2 * self.tp + self.fp + self.fn)

    def precision(self) -> float:
        return _ratio(self.tp, self.tp + self.fp)

    def recall(self) -> float:
        return _ratio(self.tp, self.tp + self.fn)

    def iou(self) -> float:
        """TP / (TP + FP + FN): overlap of the called and the true area over their union."""
        return _ratio(self.tp, self.tp + self.fp + self.fn)

    def accuracy(self) -> float:
        return _ratio(self.tp + self.tn, sum(self))

    def balanced_accuracy(self) -> float:
        """Mean of sensitivity and specificity; nan with one class."""
        return (self.recall() + _ratio(self.tn, self.tn + self.fp)) / 2


def _ece(probs: np.ndarray, y: np.ndarray, bins: int = _BINS) -> float:
    """Expected calibration error of a (b, C) table of probabilities."""
    return _mean_gap(*_binned(*_confidence_and_hit(probs, y), np.linspace(0, 1, bins + 1)))


def _brier_of_cases(probs: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Squared error of the probabilities: (p - y)^2 for two classes in [0, 1], summed over classes in [0, 2]."""
    if probs.shape[1] == 2:
        return np.asarray(np.square(probs[:, 1] - (y > 0)))
    return np.asarray(np.square(probs - np.eye(probs.shape[1])[y]).sum(1))


def _loss_of_cases(probs: np.ndarray, y: np.ndarray) -> np.ndarray:
    """-log P(true class), clipped."""
    return np.asarray(-np.log(np.clip(probs[np.arange(len(y)), y], _CLIP, 1 - _CLIP)))


def _confidence_and_hit(probs: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Probability of the predicted event of each case, and whether it occurred."""
    if probs.shape[1] == 2:
        return probs[:, 1], (y > 0).astype(np.float64)
    return probs.max(1), (probs.argmax(1) == y).astype(np.float64)


def _binned(claimed: np.ndarray, occurred: np.ndarray, edges: np.ndarray) -> tuple[list[int], list[float], list[float]]:
    """Per bin: number of cases, mean probability, share that occurred."""
    place = np.searchsorted(edges[1:-1], claimed)
    members = [place == b for b in range(len(edges) - 1)]
    mean, observed = ([exact_mean(values[m]) for m in members] for values in (claimed, occurred))
    return [int(m.sum()) for m in members], mean, observed


def _mean_gap(counts: list[int], mean: list[float], observed: list[float]) -> float:
    """Mean over the cases of |mean probability - observed share| of their bin; nan without cases."""
    gaps = [n * abs(m - o) for n, m, o in zip(counts, mean, observed, strict=True) if n]
    return math.fsum(gaps) / sum(counts) if gaps else float("nan")

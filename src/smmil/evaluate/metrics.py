"""Registry of metrics (AUROC, …): one entry gives name, level, label, direction, explanation and function.

A metric is added by one entry at the end of this file, or at run time by `register_metric`. Command line, reports,
comparisons, packages, tables and figures read it; `python docs/metrics_table.py` renews the table in the docs.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from smmil.errors import ConfigError, check_choice
from smmil.evaluate import instances, ranking
from smmil.evaluate.instances import POOLS
from smmil.evaluate.ranking import Counts, OperatingPoints, _defined, exact_mean

Level = Literal["bag", "instance", "energy", "lesion"]
Basis = Literal["points", "counts", "arrays", "predictions", "target"]
_ANYTHING, SHARE, NOT_NEGATIVE = (-math.inf, math.inf), (0.0, 1.0), (0.0, math.inf)
_PREFIXES: dict[Level, str] = {"bag": "bag_", "instance": "inst_", "energy": "energy_", "lesion": ""}
_ANY: tuple[Basis, ...] = ("points", "counts", "arrays", "predictions")  # order of the keys in results of bags
_BASES: dict[Level, tuple[Basis, ...]] = {
    "bag": (*_ANY, "target"),
    "instance": _ANY,
    "energy": ("arrays",),
    "lesion": ("arrays",),
}


@dataclass(frozen=True)
class Metric:
    """A metric: how it is called, which side is better, and how it is computed.

    function     gives the value, nan where undefined, from what `basis` names
    basis        points: OperatingPoints; in resamples some have equal counts
                 counts: Counts at the threshold, 0.5 for bags, for instances chosen on validation
                 predictions: list of those that can be judged
                 arrays: of bags probabilities (b, C) and labels (b,); of instances scores and truth; of energies
                 scores and undirected pairs of a case; of lesions false alarms per bag and share of lesions found
                 target: of bags, a TargetTable and how often each of its cases counts
    multiclass   for counts of bags: value from the Counts of each class; None: mean over classes where defined
    bounds       lowest and highest value there can be (with more than two classes many_class_bounds): ends of intervals
                 are never outside, nor those of a difference further from 0 than these are apart
    chance       what guessing reaches, whatever the cases; None: it depends on them
    rows         of instances: what takes the place of their scores and truth, from the prediction, its known instances,
                 the threshold and the score column; None where a case has it not
    """

    name: str  # begins with bag_, inst_ or energy_ as its level says; those of lesions have no prefix
    level: Level  # whole cases; scores against instance labels; roughness of maps; FROC
    label: str  # short name in tables and figures
    direction: int  # 1: higher is better, -1: lower is better, 0: neither
    explanation: str  # what it is, in one line
    function: Callable[..., Any]
    basis: Basis = "predictions"
    per_case: bool = False  # arrays of each case by itself (instances: where both classes are known), then the mean
    multiclass: Callable[[Sequence[Counts]], float] | None = None
    title: str = ""  # name in a report, below the heading of its level; empty: the label
    pools: tuple[str, ...] = ("all",)  # pools of instances that reports and packages list; (): listed in neither
    interval: bool = False  # whether reports compute a confidence interval
    hub: tuple[str, str] | None = None  # (type, name) in the model index of a package; None: not stated there
    same_as: str | None = None  # a metric with the same value; tables list that one only
    listed: Level | None = None  # heading of another level below which reports list it
    vectorized: bool = False  # with per_case, of bags: all cases at once give their values (b,)
    rows: Callable[..., instances.KnownInstances | None] | None = None
    of_calls: bool = False  # its rows depend on which side of the threshold a score lies
    bounds: tuple[float, float] = _ANYTHING
    many_class_bounds: tuple[float, float] | None = None
    chance: float | None = None
    targets: tuple[str, ...] = ("class",)  # of bags: the kinds of target it judges (`smmil.prediction.TARGETS`)

    @property
    def key(self) -> str:
        """Key in the results of its level: the name without prefix."""
        return self.name.removeprefix(_PREFIXES[self.level])

    @property
    def needs_threshold(self) -> bool:
        return self.basis == "counts" or self.of_calls

    def with_pool(self, text: str, pool: str) -> str:
        """The text, followed by the pool of instances where several are listed."""
        names = {"all": "all cases", "positive_bags": "positive cases", "per_bag": "mean over cases"}
        return f"{text}, {names[pool]}" if len(self.pools) > 1 else text


METRICS: dict[str, Metric] = {}
METRIC_NAMES = METRICS.keys()  # a live view: metrics registered later are in it


def register_metric(metric: Metric) -> None:
    """Add a metric to everything that lists metrics; a name that is taken or does not fit its level is refused."""
    prefix, others = _PREFIXES[metric.level], [p for p in _PREFIXES.values() if p]
    fits = metric.name.startswith(prefix) if prefix else not metric.name.startswith(tuple(others))
    if not fits or not metric.key.isidentifier():
        raise ConfigError(f"metric {metric.name!r}: expected a name such as {prefix}new for the level {metric.level}")
    if metric.name in METRICS:
        raise ConfigError(f"metric {metric.name!r}: is registered already; choose another name")
    if metric.direction not in (-1, 0, 1):
        raise ConfigError(f"metric {metric.name!r}: direction {metric.direction}, expected 1, -1 or 0")
    if not metric.bounds[0] < metric.bounds[1]:
        raise ConfigError(
            f"metric {metric.name!r}: bounds {metric.bounds}, expected the lowest value, then the highest"
        )
    check_choice(metric.basis, _BASES[metric.level], f"metric {metric.name!r}: basis for the level {metric.level}")
    METRICS[metric.name] = metric


def unregister_metric(name: str) -> None:
    """Remove a metric from the registry."""
    del METRICS[check_choice(name, METRICS, "metric")]


def metrics_of(level: Level, target: str = "class") -> list[Metric]:
    """The metrics of a level, in the order of registration; of bags those that judge this kind of target."""
    return [m for m in METRICS.values() if m.level == level and (level != "bag" or target in m.targets)]


def _refuse_other_target(metric: Metric, kind: str) -> None:
    """Refuse a metric of whole cases that does not judge this kind of target, and say which do."""
    if kind not in metric.targets:
        others = ", ".join(m.name for m in metrics_of("bag", kind) if m.interval)
        words = f"is for targets of kind {' or '.join(metric.targets)}; these predictions are of kind {kind}"
        raise ConfigError(f"{metric.name}: {words}; use {others}")


def _full_name(metric: str) -> str:
    """The registered name: a bare key such as auroc means the bags, instance_ is another word for inst_.

    What follows a colon is one label of several: bag_auroc:NAME.
    """
    key, colon, label = metric.partition(":")
    name = f"bag_{key}" if f"bag_{key}" in METRICS else key.replace("instance_", "inst_", 1)
    return check_choice(name, METRICS, "metric") + colon + label


def registered(name: str) -> Metric:
    """The metric of a full name; that of a single label is the metric itself."""
    return METRICS[name.partition(":")[0]]


def pooled_names() -> list[str]:
    """Every metric name; those of instances also as name@pool, since only they depend on a pool."""
    others = [pool for pool in POOLS if pool != "all"]
    return [*METRICS, *(f"{metric.name}@{pool}" for pool in others for metric in metrics_of("instance"))]


class PooledMetric(NamedTuple):
    """A metric and the pool of instances it is taken over; written metric, metric@pool, or metric:label."""

    metric: str
    pool: str = "all"

    @classmethod
    def parse(cls, text: str) -> "PooledMetric":
        name, _, pool = (text, "", "") if ":" in text else text.partition("@")
        return cls(_full_name(name), check_choice(pool or "all", POOLS, f"pool of {name}"))

    @property
    def label(self) -> str:
        return self.metric if self.pool == "all" else f"{self.metric}@{self.pool}"

    @property
    def needs_threshold(self) -> bool:
        """Whether a threshold must be chosen on validation cases; bags have a usual one."""
        metric = registered(self.metric)
        return metric.level == "instance" and metric.needs_threshold


class _ScoredLabels:
    """Scores, their truth and a threshold; sorted and counted once for all metrics."""

    def __init__(self, scores: np.ndarray, truth: np.ndarray, threshold: float | None):
        self.scores, self.truth, self.threshold = scores, truth, threshold

    @cached_property
    def points(self) -> OperatingPoints:
        return OperatingPoints.of(self.scores, self.truth)

    @cached_property
    def counts(self) -> Counts:
        return Counts.of(self.scores >= self.threshold, self.truth)

    def value(self, metric: Metric) -> float:
        if metric.basis == "arrays":
            return float(metric.function(self.scores, self.truth))
        return float(metric.function(self.points if metric.basis == "points" else self.counts))


def _bag_values(metrics: Iterable[Metric], probs: np.ndarray, y: np.ndarray, threshold: float) -> dict[str, float]:
    """Values by key from probabilities (b, C) and labels (b,), nan without cases; many classes as in `bag_metrics`."""
    if len(y) == 0:
        return {metric.key: float("nan") for metric in metrics}
    two = _ScoredLabels(probs[:, 1], y > 0, threshold)
    classes = [_ScoredLabels(probs[:, c], y == c, None) for c in range(probs.shape[1])]
    counts = _class_counts(probs, y)

    def value(metric: Metric) -> float:
        if metric.per_case:
            return exact_mean(_defined(_values_of_cases(metric, probs, y)))
        if metric.basis == "arrays":
            return float(metric.function(probs, y))
        return two.value(metric) if len(classes) == 2 else _macro(metric, classes, counts)

    return {metric.key: value(metric) for metric in metrics}


def _values_of_cases(metric: Metric, probs: np.ndarray, y: np.ndarray) -> Sequence[float]:
    """The value of each case by itself."""
    if metric.vectorized:
        return list(metric.function(probs, y))
    return [metric.function(probs[i : i + 1], y[i : i + 1]) for i in range(len(y))]


def _class_counts(probs: np.ndarray, y: np.ndarray) -> list[Counts]:
    """Counts of each class against the rest when the most probable class is the answer."""
    called = probs.argmax(1)
    return [Counts.of(called == c, y == c) for c in range(probs.shape[1])]


def _macro(metric: Metric, classes: Sequence[_ScoredLabels], counts: Sequence[Counts]) -> float:
    if metric.basis == "points":
        return exact_mean([metric.function(c.points) for c in classes if c.truth.any() and not c.truth.all()])
    if metric.multiclass is not None:
        return metric.multiclass(counts)
    return exact_mean(_defined(metric.function(c) for c in counts))


def _share_right(counts: Sequence[Counts]) -> float:
    return ranking._ratio(sum(c.tp for c in counts), sum(counts[0]))


def _mean_recall(counts: Sequence[Counts]) -> float:
    """Mean recall of the classes that have cases and are not all cases."""
    return exact_mean([Counts.recall(c) for c in counts if c.tp + c.fn and c.fp + c.tn])


# Columns that tables of experiments compute from their own rows: label, direction, explanation.
_RANK = "mean rank within the group over the {} columns of this table; 1 is best"
_RANKS = {
    "inst_rank": ("instance rank", -1, _RANK.format("instance")),
    "bag_rank": ("bag rank", -1, _RANK.format("bag")),
}
_POOL_TEXTS = {
    "positive_bags": (" in positive bags", "only instances of positive bags are compared"),
    "per_bag": (" per bag", "computed in each bag that has both classes, then averaged"),
}
_ARROWS = {1: " ↑", -1: " ↓", 0: ""}


def _texts(name: str) -> tuple[str, int, str]:
    """Label, direction and explanation of a metric or of a column of ranks."""
    if name in _RANKS:
        return _RANKS[name]
    metric = METRICS[name]
    return metric.label, metric.direction, metric.explanation


def metric_name(metric: str) -> str:
    """Label of a metric with its pool: `inst_auroc@positive_bags` is `instance AUROC in positive bags`."""
    if ":" in metric:
        return "{0} of {2}".format(_texts(metric.partition(":")[0])[0], *metric.partition(":")[1:])
    name, _, pool = metric.partition("@")
    return _texts(name)[0] + _POOL_TEXTS.get(pool, ("", ""))[0]


def metric_heading(metric: str) -> list[str]:
    """Lines above a column: the label with an arrow to the better side (energies have none), and the pool."""
    name, _, pool = metric.partition("@")
    label, side, _ = _texts(name)
    return [label + _ARROWS[side], *([_POOL_TEXTS[pool][0].strip()] if pool in _POOL_TEXTS else [])]


def direction(metric: str) -> int:
    """1 where higher is better, -1 where lower is better, 0 where neither is; a pool does not matter."""
    return _texts(metric.partition("@")[0])[1]


def explained(metrics: Iterable[str]) -> list[str]:
    """One line for each metric and each pool of instances; then where the definitions are."""
    metrics = list(dict.fromkeys(metrics))
    texts = [_texts(name) for name in dict.fromkeys(m.partition("@")[0] for m in metrics)]
    lines = [f"{label}: {explanation}" for label, _, explanation in texts]
    pools = dict.fromkeys(pool for m in metrics if (pool := m.partition("@")[2]))
    lines += [f"…{_POOL_TEXTS[pool][0]}: {_POOL_TEXTS[pool][1]}" for pool in pools if pool in _POOL_TEXTS]
    arrows = "↑ higher is better, ↓ lower is better; " if any(map(direction, metrics)) else ""
    return [*lines, f"{arrows}every definition with a worked example: docs/evaluate.md"]


def metrics_table() -> str:
    """The registry as a table in Markdown, for the documentation."""
    lines = ["| name | level | target | label | better | threshold | what it is |", "|---|---|---|---|---|---|---|"]
    sides = {1: "higher", -1: "lower", 0: "neither"}
    for m in METRICS.values():
        cut = "–" if not m.needs_threshold else "0.5" if m.level == "bag" else "of validation"
        kinds = ", ".join(m.targets) if m.level == "bag" else "any"
        facts = f"{m.level} | {kinds} | {m.label} | {sides[m.direction]} | {cut}"
        lines.append(f"| `{m.name}` | {facts} | {m.explanation} |")
    return "\n".join(lines) + "\n"


# Metrics of --ci and --compare unless others are asked for.
_USUAL_OF_INSTANCES = ("inst_auroc", "inst_auroc@positive_bags", "inst_f1")
USUAL = ("bag_auroc", "bag_f1", *_USUAL_OF_INSTANCES)
_USUAL_OF_TARGET = {
    "class": USUAL,
    "multilabel": USUAL,
    "ordinal": ("bag_kappa", "bag_level_mae", *_USUAL_OF_INSTANCES),
    "regression": ("bag_spearman", "bag_mae", "bag_r2", *_USUAL_OF_INSTANCES),
    "survival": ("bag_c_index", "bag_c_index_uno", "bag_time_auroc", "bag_integrated_brier", *_USUAL_OF_INSTANCES),
}
_USUAL_OF_TARGET["cox"] = _USUAL_OF_TARGET["survival"]
_RANKED, _EXCLUSIVE = ("class", "ordinal", "multilabel"), ("class", "ordinal")
_BEST = "at the threshold that is best on validation"


def usual_measures(target: str) -> tuple[str, ...]:
    """Metrics of --ci and --compare for a kind of target, unless others are asked for."""
    return _USUAL_OF_TARGET[target]


for _metric in (
    Metric("bag_auroc", "bag", "bag AUROC", 1,
           "chance that a positive bag has a higher probability than a negative one",
           OperatingPoints.roc_area, "points", title="AUROC", interval=True, hub=("roc_auc", "AUROC of cases"),
           targets=_RANKED, bounds=SHARE, chance=0.5),
    Metric("bag_auprc", "bag", "bag AUPRC", 1,
           "average precision over bags; the share of positive bags is what chance gives",
           OperatingPoints.average_precision, "points", title="AUPRC", interval=True,
           hub=("average_precision", "average precision of cases"), targets=_RANKED, bounds=SHARE),
    Metric("bag_f1", "bag", "bag F1", 1, "2TP / (2TP + FP + FN) over bags at probability 0.5",
           Counts.f1, "counts", title="F1", interval=True, hub=("f1", "F1 of cases"), targets=_RANKED, bounds=SHARE),
    Metric("bag_accuracy", "bag", "bag accuracy", 1, "share of bags called rightly at probability 0.5",
           Counts.accuracy, "counts", multiclass=_share_right, title="Accuracy", interval=True,
           hub=("accuracy", "accuracy of cases"), targets=_EXCLUSIVE, bounds=SHARE),
    Metric("bag_balanced_accuracy", "bag", "bag balanced accuracy", 1,
           "mean of sensitivity and specificity at probability 0.5",
           Counts.balanced_accuracy, "counts", multiclass=_mean_recall, title="Balanced accuracy", interval=True,
           hub=("balanced_accuracy", "balanced accuracy of cases"), targets=_EXCLUSIVE, bounds=SHARE),
    Metric("bag_sensitivity_at_90", "bag", "bag sensitivity at 90 %", 1,
           "highest sensitivity at a specificity of at least 90 %",
           lambda points: points.sensitivity_at(0.90), "points", title="Sensitivity at 90 % specificity", bounds=SHARE),
    Metric("bag_sensitivity_at_95", "bag", "bag sensitivity at 95 %", 1,
           "highest sensitivity at a specificity of at least 95 %",
           lambda points: points.sensitivity_at(0.95), "points", title="Sensitivity at 95 % specificity", bounds=SHARE),
    Metric("bag_brier", "bag", "bag Brier score", -1, "mean squared error of the probabilities",
           ranking._brier_of_cases, "arrays", per_case=True, vectorized=True, title="Brier score", interval=True,
           hub=("brier_score", "Brier score of cases (lower is better)"), targets=_EXCLUSIVE,
           bounds=SHARE, many_class_bounds=(0.0, 2.0)),
    Metric("bag_ece", "bag", "bag ECE", -1,
           "expected calibration error: mean gap between said probability and observed share",
           ranking._ece, "arrays", title="Calibration error (ECE)", bounds=SHARE),
    Metric("bag_loss", "bag", "bag loss", -1, "cross-entropy: mean of -log P(true class)",
           ranking._loss_of_cases, "arrays", per_case=True, vectorized=True, title="Cross-entropy",
           bounds=NOT_NEGATIVE),
    Metric("inst_auroc", "instance", "instance AUROC", 1,
           "chance that a positive instance scores higher than a negative one",
           OperatingPoints.roc_area, "points", title="AUROC", pools=("all", "positive_bags"), interval=True,
           hub=("roc_auc", "AUROC of instances"), bounds=SHARE, chance=0.5),
    Metric("inst_auprc", "instance", "instance AUPRC", 1, "average precision over instances",
           OperatingPoints.average_precision, "points", title="AUPRC, all cases", bounds=SHARE),
    Metric("inst_f1", "instance", "instance F1", 1, f"2TP / (2TP + FP + FN) over instances {_BEST}",
           Counts.f1, "counts", title="F1 = Dice", interval=True, bounds=SHARE),
    Metric("inst_dice", "instance", "map Dice", 1, f"2 overlap / (called + true area) {_BEST}",
           Counts.f1, "counts", same_as="inst_f1", bounds=SHARE),
    Metric("inst_iou", "instance", "map IoU", 1, f"overlap / union of called and true area {_BEST}",
           Counts.iou, "counts", title="IoU", bounds=SHARE),
    Metric("inst_precision", "instance", "instance precision", 1, f"TP / (TP + FP) {_BEST}",
           Counts.precision, "counts", title="Precision", bounds=SHARE),
    Metric("inst_recall", "instance", "instance recall", 1, f"TP / (TP + FN) {_BEST}",
           Counts.recall, "counts", title="Recall", bounds=SHARE),
    Metric("inst_pointing_game", "instance", "pointing game", 1,
           "share of bags with both classes whose hottest instance is positive",
           instances._pointing, "arrays", per_case=True, title="Hottest instance is right", pools=("positive_bags",),
           bounds=SHARE),
    Metric("energy_geary", "energy", "Geary's C", 0,
           "mean squared step between neighbours, against that between any two instances: 0 smooth, 1 as rough as the "
           "same scores in any order; neither level nor scale of the scores counts",
           instances._geary_energy, "arrays", per_case=True,
           title="Roughness: step between neighbours, 1 = scores in random order (Geary's C)", bounds=NOT_NEGATIVE),
    Metric("energy_rayleigh", "energy", "energy fᵀL̃f / fᵀf", 0,
           "roughness of the map for its size, 0 to 2; 0 is smoothest, not best; a high mean level makes it small",
           instances._rayleigh_energy, "arrays", per_case=True, pools=(), bounds=(0.0, 2.0)),
    Metric("energy_mean", "energy", "energy fᵀL̃f / N", 0,
           "roughness per instance; grows with the square of the scores",
           instances._mean_energy, "arrays", per_case=True, pools=(), bounds=NOT_NEGATIVE),
    Metric("energy_minmax", "energy", "energy, scaled map", 0,
           "mean squared step between neighbours, scores scaled to [0, 1]",
           instances._minmax_energy, "arrays", per_case=True, pools=(), bounds=(0.0, 0.5)),
    Metric("froc", "lesion", "FROC", 1, "mean share of lesions found at ¼, ½, 1, 2, 4 and 8 false alarms per bag",
           instances._mean_share, "arrays", title="FROC (lesions found at ¼ to 8 false alarms)", interval=True,
           bounds=SHARE),
):  # fmt: skip
    register_metric(_metric)

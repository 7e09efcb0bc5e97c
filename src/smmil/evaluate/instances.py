"""Instance-level metrics: how well scores find the lesion, thresholds, and Dirichlet energies of maps."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from smmil.errors import ConfigError, DataError, check_choice
from smmil.evaluate import ranking
from smmil.evaluate.bags import score_kind
from smmil.evaluate.ranking import average_precision, defined, exact_mean, operating_points, roc_area
from smmil.prediction import Prediction

POOLS = ("all", "per_bag", "positive_bags")
INSTANCE_METRICS = ("auroc", "auprc", "f1", "dice", "iou", "precision", "recall", "pointing_game")
AT_A_THRESHOLD = {
    "f1": ranking.f1,
    "dice": ranking.f1,
    "iou": ranking.iou,
    "precision": ranking.precision,
    "recall": ranking.recall,
}
_NO_THRESHOLD = "f1, dice, iou, precision and recall are left out: no threshold was given (choose it on validation)"


class Known(NamedTuple):
    """Scores of the instances whose label is known, and whether each is positive."""

    scores: np.ndarray
    truth: np.ndarray

    @property
    def both_classes(self) -> bool:
        return bool(self.truth.any() and not self.truth.all())


def instance_metrics(
    predictions: Sequence[Prediction], threshold: float | None = None, pool: str = "all", column: int | None = None
) -> dict[str, Any]:
    """Localization metrics of the scores against instance labels; unknown labels (-1) never take part.

    pool="all" mixes the instances of all bags, "positive_bags" those of bags with y > 0, "per_bag" averages the metrics
    of single bags over those where both classes are present. An instance is called positive when its score is at least
    `threshold`; without one f1, dice, iou, precision and recall are absent and `notes` says so. Dice of the thresholded
    map is the same number as f1 of the same instances. pointing_game is the share of the pool's bags with both classes
    whose hottest instance is positive. `column` picks the score of models with more than two per instance.
    """
    check_choice(pool, POOLS, "pool")
    bags = bags_of_pool(predictions, pool)
    parts = [k for p in bags if len((k := known_instances(p, column)).truth)]
    used = [k for k in parts if k.both_classes] if pool == "per_bag" else parts
    everything = gather(used)
    values, notes = (_averaged if pool == "per_bag" else _pooled)(used, threshold)
    values["pointing_game"] = exact_mean(defined(pointing(known) for known in used))
    notes += _about_bags(bags, parts, used, pool) + ([_NO_THRESHOLD] if threshold is None else [])
    kind, kind_notes = score_kind(predictions)
    return {
        **values,
        "threshold": None if threshold is None else float(threshold),
        "pool": pool,
        "score_kind": kind,
        "n_instances": len(everything.truth),
        "n_positive": int(everything.truth.sum()),
        "n_bags_used": len(used),
        "notes": notes + kind_notes,
    }


def known_instances(prediction: Prediction, column: int | None = None) -> Known:
    """Score and truth (label > 0) of the instances of one bag whose label is known; empty without labels."""
    scores = instance_score(prediction, column)
    if prediction.y_inst is None:
        return Known(scores[:0], np.zeros(0, dtype=bool))
    known = prediction.y_inst >= 0
    return Known(scores[known], prediction.y_inst[known] > 0)


def instance_score(prediction: Prediction, column: int | None = None) -> np.ndarray:
    """The one score per instance that counts: the only column, the second of two, or the one asked for. float64."""
    k = prediction.scores.shape[1]
    if column is None and k > 2:
        raise ConfigError(f"{prediction.id}: scores have {k} columns, one per class; choose one (--column)")
    chosen = k - 1 if column is None else column
    if not 0 <= chosen < k:
        raise ConfigError(f"{prediction.id}: column {chosen} does not exist; scores have columns 0..{k - 1}")
    return prediction.scores[:, chosen].astype(np.float64)


def gather(parts: Sequence[Known]) -> Known:
    """The known instances of several bags as one set."""
    if not parts:
        return Known(np.zeros(0), np.zeros(0, dtype=bool))
    return Known(np.concatenate([k.scores for k in parts]), np.concatenate([k.truth for k in parts]))


def case_of_row(lengths: Sequence[int]) -> np.ndarray:
    """Number of the case each row belongs to when the rows of cases of these lengths are gathered."""
    return np.repeat(np.arange(len(lengths)), np.array(lengths, dtype=np.int64))


def bags_of_pool(predictions: Sequence[Prediction], pool: str) -> list[Prediction]:
    """The bags a pool looks at: those labelled positive for "positive_bags", else all."""
    return [p for p in predictions if pool != "positive_bags" or (p.y is not None and p.y > 0)]


def pointing(known: Known) -> float:
    """1 when the hottest known instance of a bag is positive, 0 when not; equally hot ones share the answer.

    nan unless both classes are present: where everything is lesion, or nothing, pointing proves nothing.
    """
    if not known.both_classes:
        return float("nan")
    return float(known.truth[known.scores == known.scores.max()].mean())


def _metrics(known: Known, threshold: float | None) -> dict[str, float]:
    points = operating_points(known.scores, known.truth)
    values = {"auroc": roc_area(points), "auprc": average_precision(points)}
    if threshold is None:
        return values
    c = ranking.count(known.scores >= threshold, known.truth)
    return {**values, **{name: measure(c) for name, measure in AT_A_THRESHOLD.items()}}


def _pooled(parts: Sequence[Known], threshold: float | None) -> tuple[dict[str, float], list[str]]:
    known = gather(parts)
    values = _metrics(known, threshold)
    if len(known.truth) == 0:
        return values, ["no instance label is known: nothing can be measured"]
    notes = []
    if not known.both_classes:
        kind = "positive" if known.truth.all() else "negative"
        notes.append(f"all {len(known.truth):,} known instances are {kind}: auroc and auprc are undefined")
    if np.isnan(values.get("precision", 0)):
        notes.append("no instance reaches the threshold: precision is undefined")
    return values, notes


def _averaged(parts: Sequence[Known], threshold: float | None) -> tuple[dict[str, float], list[str]]:
    rows = [_metrics(known, threshold) for known in parts]
    if not rows:
        return _metrics(gather([]), threshold), ["no bag has known instances of both classes"]
    values, notes = {}, []
    for name in rows[0]:
        numbers = defined(row[name] for row in rows)
        values[name] = exact_mean(numbers)
        if len(numbers) < len(rows):
            notes.append(f"{name} is averaged over the {len(numbers)} of {len(rows)} bags where it is defined")
    return values, notes


def _about_bags(bags: Sequence[Prediction], parts: Sequence[Known], used: Sequence[Known], pool: str) -> list[str]:
    notes = []
    if parts and len(parts) < len(bags):
        notes.append(f"{len(bags) - len(parts)} of {len(bags)} bags have no known instance label and are left out")
    if used and len(used) < len(parts):
        notes.append(f"{len(parts) - len(used)} bags with known instances of one class only are left out")
    if pool == "positive_bags" and not bags:
        notes.append("no bag is labelled positive")
    return notes


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


NAMES = ("rayleigh", "mean", "minmax")


def energies(predictions: Sequence[Prediction], column: int | None = None) -> dict[str, Any]:
    """Each energy averaged over the bags where it is defined, with their number: n_rayleigh, n_mean, n_minmax.

    Bags without edges are left out, counted in n_without_edges and mentioned in `notes`.
    """
    rows = [bag_energies(p, column) for p in predictions if p.edges is not None]
    result: dict[str, Any] = {}
    for name in NAMES:
        numbers = defined(row[name] for row in rows)
        result[name] = exact_mean(numbers)
        result[f"n_{name}"] = len(numbers)
    missing = len(predictions) - len(rows)
    notes = [f"{missing} of {len(predictions)} bags have no edges stored and no energy"] if missing else []
    return {**result, "n_bags": len(rows), "n_without_edges": missing, "notes": notes}


def bag_energies(prediction: Prediction, column: int | None = None) -> dict[str, float]:
    """Roughness of the scores f of one bag on its graph, 0 is smoothest; nan where undefined.

    rayleigh  f'L~f / f'f in [0, 2], with the symmetrically normalised Laplacian L~ (undefined for f = 0)
    mean      f'L~f / N
    minmax    E_L(f scaled to [0, 1]) / sum(A) with the plain Laplacian (undefined for constant f or without edges)

    Every edge has weight 1; pairs count once however often they are listed, self-loops do not count. Isolated
    instances have L~_ii = 0.
    """
    if prediction.edges is None:
        raise DataError(f"{prediction.id}: energies need edges, which this prediction does not store; predict it again")
    f = instance_score(prediction, column)
    a, b = undirected_pairs(prediction.edges, len(f))
    degree = np.bincount(np.concatenate([a, b]), minlength=len(f))
    smooth = f / np.sqrt(np.maximum(degree, 1))
    rough = float(np.square(smooth[a] - smooth[b]).sum())
    size, span = float(f @ f), float(f.max() - f.min())
    apart = float(np.square(f[a] - f[b]).sum())
    return {
        "rayleigh": rough / size if size else float("nan"),
        "mean": rough / len(f),
        "minmax": apart / span**2 / (2 * len(a)) if span and len(a) else float("nan"),
    }


def undirected_pairs(edges: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Each undirected edge once, smaller instance first."""
    low, high = edges.min(0), edges.max(0)
    keys = np.unique((low * n + high)[low != high])
    return keys // n, keys % n

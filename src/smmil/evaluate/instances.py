"""Instance scores, connected lesions, peaks of a map, and FROC."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from smmil.errors import ConfigError
from smmil.evaluate.ranking import _TOLERANCE, OperatingPoints, _SortedScores, exact_mean
from smmil.prediction import Prediction

POOLS = ("all", "per_bag", "positive_bags")


class KnownInstances(NamedTuple):
    """Scores of the instances whose label is known, and whether each is positive."""

    scores: np.ndarray
    truth: np.ndarray

    @classmethod
    def of(cls, prediction: Prediction, column: int | None = None) -> "KnownInstances":
        """Those of one bag; empty without labels. A label above 0 is positive."""
        scores = instance_score(prediction, column)
        labels = np.full(len(scores), -1) if prediction.y_inst is None else prediction.y_inst
        return cls(scores[labels >= 0], labels[labels >= 0] > 0)

    @classmethod
    def together(cls, parts: "Sequence[KnownInstances]") -> "KnownInstances":
        """Those of several bags as one set."""
        none = np.zeros(0)
        return cls(
            np.concatenate([none, *(k.scores for k in parts)]), np.concatenate([none > 0, *(k.truth for k in parts)])
        )

    @property
    def both_classes(self) -> bool:
        return bool(self.truth.any() and not self.truth.all())


def instance_score(prediction: Prediction, column: int | None = None) -> np.ndarray:
    """One score per instance, float64: the only column, the second of two, or the column asked for.

    Of several labels with a map each, the highest of them: whether any label is there.
    """
    k = prediction.scores.shape[1]
    if column is None and k > 1 and prediction.target_kind == "multilabel":
        return np.asarray(prediction.scores.max(1), dtype=np.float64)
    if column is None and k > 2:
        raise ConfigError(f"{prediction.id}: scores have {k} columns, one per class; choose one (--column)")
    chosen = k - 1 if column is None else column
    if not 0 <= chosen < k:
        raise ConfigError(f"{prediction.id}: column {chosen} does not exist; scores have columns 0..{k - 1}")
    return prediction.scores[:, chosen].astype(np.float64)


# Scores of these kinds are log-odds of the instance itself, so they can be read as probabilities.
_LOG_ODDS = ("instance logit", "instance log-odds")


def instance_probability(prediction: Prediction, column: int | None = None) -> np.ndarray:
    """(n,) probability of each instance, from log-odds or probabilities; else nan: attention weights are none."""
    kind, scores = str(prediction.meta.get("score_kind", "")), prediction.scores.astype(np.float64)
    if kind in _LOG_ODDS:
        from scipy.special import expit, softmax

        chosen = -1 if column is None else column
        return np.asarray(expit(scores[:, 0]) if scores.shape[1] == 1 else softmax(scores, axis=1)[:, chosen])
    chosen_scores = instance_score(prediction, column)
    if "probability" in kind and chosen_scores.min() >= 0 and chosen_scores.max() <= 1:
        return chosen_scores
    return np.full(len(scores), np.nan)


def _score_kind(predictions: Sequence[Prediction]) -> tuple[str, list[str]]:
    """Kind of the scores as stored in meta["score_kind"], and a note when the predictions disagree."""
    kinds = sorted({str(p.meta.get("score_kind", "unknown")) for p in predictions})
    if len(kinds) < 2:
        return (kinds or ["unknown"])[0], []
    return " + ".join(kinds), ["scores of different kinds are mixed; they are not comparable between bags"]


def _case_of_row(lengths: Sequence[int]) -> np.ndarray:
    """Index of the case each row belongs to when the rows of cases of these lengths are concatenated."""
    return np.repeat(np.arange(len(lengths)), np.array(lengths, dtype=np.int64))


def bags_of_pool(predictions: Sequence[Prediction], pool: str) -> list[Prediction]:
    """The bags a pool uses: positive ones for "positive_bags", else all."""
    return [p for p in predictions if pool != "positive_bags" or _is_positive(p)]


def _is_positive(prediction: Prediction) -> bool:
    """Whether a bag is labelled positive; where its target is no class and it has no label, any instance must be."""
    if prediction.y is not None or prediction.target_kind == "class":
        return prediction.y is not None and prediction.y > 0
    return prediction.y_inst is not None and bool((prediction.y_inst > 0).any())


def _pointing(scores: np.ndarray, truth: np.ndarray) -> float:
    """Share of positives among the hottest instances of a bag; nan unless both classes are present."""
    if truth.all() or not truth.any():
        return float("nan")
    return float(truth[scores == scores.max()].mean())


def _undirected_pairs(edges: np.ndarray, n: int) -> np.ndarray:
    """(2, e): each undirected edge once, smaller instance first, without self-loops."""
    low, high = edges.min(0), edges.max(0)
    keys = np.unique((low * n + high)[low != high])
    return np.stack([keys // n, keys % n])


def _laplacian_form(f: np.ndarray, pairs: np.ndarray) -> float:
    """f'L~f with the symmetrically normalised Laplacian of undirected pairs; isolated instances have L~_ii = 0."""
    a, b = pairs
    degree = np.bincount(pairs.ravel(), minlength=len(f))
    scaled = f / np.sqrt(np.maximum(degree, 1))
    return float(np.square(scaled[a] - scaled[b]).sum())


def _geary_energy(f: np.ndarray, pairs: np.ndarray) -> float:
    """Geary's C: mean squared step between neighbours over that between any two instances; nan where either has none.

    (N - 1) sum (f_i - f_j)^2 / (2 E sum (f - mean f)^2) over the E pairs: the plain Dirichlet energy of the
    standardised scores. The mean over all orders of the same scores is exactly 1.
    """
    a, b = pairs
    spread = float(np.square(f - f.mean()).sum())
    steps = float(np.square(f[a] - f[b]).sum())
    return (len(f) - 1) * steps / (2 * len(a) * spread) if spread and len(a) else float("nan")


def _rayleigh_energy(f: np.ndarray, pairs: np.ndarray) -> float:
    """f'L~f / f'f in [0, 2]; nan for f = 0."""
    size = float(f @ f)
    return _laplacian_form(f, pairs) / size if size else float("nan")


def _mean_energy(f: np.ndarray, pairs: np.ndarray) -> float:
    """f'L~f / N."""
    return _laplacian_form(f, pairs) / len(f)


def _minmax_energy(f: np.ndarray, pairs: np.ndarray) -> float:
    """E_L(f scaled to [0, 1]) / sum(A) with the plain Laplacian; nan for constant f or without edges."""
    a, b = pairs
    span, steps = float(f.max() - f.min()), float(np.square(f[a] - f[b]).sum())
    return steps / span**2 / (2 * len(a)) if span and len(a) else float("nan")


RATES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


class _Marks(NamedTuple):
    """Peaks of maps as rows (score, share of a lesion found, share of a false alarm), and an instance of each.

    lesion  number of the lesion of each instance, -1 outside
    """

    scores: np.ndarray
    hits: np.ndarray
    alarms: np.ndarray
    place: np.ndarray
    lesion: np.ndarray
    n_peaks: int


def _components(edges: np.ndarray, member: np.ndarray) -> np.ndarray:
    """Index of the connected component of each member, -1 outside; only edges between two members connect."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    n, inside = len(member), edges[:, member[edges].all(0)]
    links = coo_matrix((np.ones(inside.shape[1]), tuple(inside)), shape=(n, n))
    piece = connected_components(links, directed=False)[1]
    found = np.full(n, -1)
    found[member] = np.unique(piece[member], return_inverse=True)[1]
    return found


def _peaks(scores: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Peak of each instance, -1 outside: connected instances of equal score with no neighbour that scores higher."""
    n, equal = len(scores), edges[:, scores[edges[0]] == scores[edges[1]]]
    plateau = _components(equal, np.ones(n, dtype=bool))
    beaten = np.zeros(plateau.max(initial=-1) + 1, dtype=bool)
    for here, there in (edges, edges[::-1]):
        beaten[plateau[here[scores[there] > scores[here]]]] = True
    return _components(equal, ~beaten[plateau])


def _marks(scores: np.ndarray, edges: np.ndarray, y_inst: np.ndarray) -> _Marks:
    """Peaks of a map, each with the lesion (connected positive instances) it finds or the false alarm it is.

    Several cases at once are one map without edges between them.

    A peak of several equally hot instances points at each of them with equal chance, so its shares are expectations:
    it finds a lesion with the share of its instances inside, is a false alarm with the share known to be negative, and
    neither with the share of unknown label. A lesion found twice counts once.
    """
    lesion, peak = _components(edges, y_inst > 0), _peaks(scores, edges)
    rows = np.flatnonzero(peak >= 0)
    size = np.bincount(peak[rows])
    instance = np.zeros(len(size), dtype=np.int64)
    instance[peak[rows]] = rows
    height = scores[instance]
    false_share = np.bincount(peak[rows], weights=y_inst[rows] == 0, minlength=len(size)) / size
    finder, gain = _first_finds(peak[rows], lesion[rows], size, height)
    wrong = np.flatnonzero(false_share)
    place = np.concatenate([instance[finder], instance[wrong]])
    return _Marks(
        scores[place],
        np.concatenate([gain, np.zeros(len(wrong))]),
        np.concatenate([np.zeros(len(gain)), false_share[wrong]]),
        place,
        lesion,
        len(size),
    )


def _first_finds(
    peak: np.ndarray, lesion: np.ndarray, size: np.ndarray, height: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Peaks that find lesions, hottest first, and the chance that some lesion is found there for the first time."""
    inside = lesion >= 0
    pairs, count = np.unique(np.stack([lesion[inside], peak[inside]]), axis=1, return_counts=True)
    missed: dict[int, float] = {}
    order = np.argsort(-height[pairs[1]], kind="stable")
    finder, shares, gain = pairs[1][order], (count / size[pairs[1]])[order].tolist(), []
    for which, share in zip(pairs[0][order].tolist(), shares, strict=True):
        before = missed.get(which, 1.0)
        gain.append(before * share)
        missed[which] = before * (1 - share)
    return finder, np.array(gain, dtype=np.float64)


def has_lesion_labels(prediction: Prediction) -> bool:
    """Whether a case has the edges and at least one of the instance labels that FROC needs."""
    return prediction.edges is not None and prediction.y_inst is not None and bool((prediction.y_inst >= 0).any())


class _FrocCurve:
    """Marks of the usable cases, sorted once; weights say how often each of them counts."""

    def __init__(self, predictions: Sequence[Prediction], column: int | None = None):
        usable = [(p.edges, p.y_inst, instance_score(p, column)) for p in predictions if has_lesion_labels(p)]
        case = _case_of_row([len(scores) for _, _, scores in usable])
        start, none = np.searchsorted(case, np.arange(len(usable))), np.zeros((2, 0), dtype=np.int64)
        edges = np.concatenate([none, *(e + first for (e, _, _), first in zip(usable, start, strict=True))], axis=1)
        truth, scores = (np.concatenate([np.zeros(0), *(case[k] for case in usable)]) for k in (1, 2))
        marks = _marks(scores, edges, truth)  # of all cases at once, which is many times faster
        known, first = np.unique(marks.lesion, return_index=True)
        self.n_lesions = np.bincount(case[first[known >= 0]], minlength=len(usable))
        self.n_peaks = marks.n_peaks
        self.ranking = _SortedScores(marks.scores, marks.hits, marks.alarms)
        self.case_of_mark = case[marks.place][self.ranking.order]

    def rates(self, weights: np.ndarray | None = None) -> tuple[OperatingPoints, np.ndarray, np.ndarray]:
        """Thresholds, false alarms per bag and share of the lesions found, strictest first; nan without lesions."""
        weights = np.ones(len(self.n_lesions), dtype=np.int64) if weights is None else weights
        points = self.ranking.points(weights[self.case_of_mark])
        total, bags = float(weights @ self.n_lesions), float(weights.sum())
        share = points.true_positives / total if total else np.full(len(points.threshold), np.nan)
        return points, points.false_positives / max(bags, 1.0), np.minimum(share, 1.0)

    def value(self, function: Callable[[np.ndarray, np.ndarray], float], weights: np.ndarray | None = None) -> float:
        """A function of (false alarms per bag, share of the lesions found); nan without lesions."""
        lesions = self.n_lesions.sum() if weights is None else weights @ self.n_lesions
        return function(*self.rates(weights)[1:]) if lesions else float("nan")


def _share_at(alarms: np.ndarray, share: np.ndarray, rates: Sequence[float], interpolate: bool = False) -> list[float]:
    """Highest share of lesions within each number of false alarms per bag, or on straight lines between thresholds."""
    if not interpolate:
        within = np.searchsorted(alarms, np.add(rates, _TOLERANCE), "right")  # both never fall from row to row
        return [float(share[n - 1]) if n else 0.0 for n in within]
    alarms, share = np.append(0.0, alarms), np.append(0.0, share)
    top = np.append(np.diff(alarms) > 0, True)  # where the curve climbs upright, its top counts
    return [float(value) for value in np.interp(rates, alarms[top], share[top])]


def _mean_share(alarms: np.ndarray, share: np.ndarray) -> float:
    """Mean share of the lesions found at the usual numbers of false alarms per bag."""
    return exact_mean(_share_at(alarms, share, RATES))

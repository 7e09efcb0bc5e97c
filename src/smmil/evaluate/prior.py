"""The position prior: how well a map finds lesions that knows only where lesions usually lie.

Frame. Coordinates of a case are scaled to the bounding box of its instances, 0 to 1 along each axis: relative height
for the slices of a scan, relative place for patches. What is shifted, scanned at another scale or cut into fewer slices
stays in place. Boxes are divided into cells (CELLS along each axis).

Mean map of others. A patient's map is, in each cell, the mean over that patient's instances there. Of the S patients
other than one's own that have instances in a cell, with sum T of their maps, and with N the Gaussian-weighted mean over
its neighbourhood (sigma one cell), the mean map is (T + N) / (S + 1): the neighbourhood counts as one patient more,
so that a cell that few have seen is smooth and one that many have seen is not. The own patient takes no part in any
sum, not even by rounding (prefix plus suffix sums), so that own labels cannot change the own prior. An instance gets
the value at its place on straight lines between the centres of the cells.

truth     mean map of the instance labels of cases that hold a positive one, divided by its mean over the cells: it says
          where, never how much, which leaving out a patient would change
own       mean map of the model's own scores; no label is used. Scores are first brought to normal scores of their case
          (the normal quantiles of their ranks), so that cases of any level and scale are comparable
residual  normal scores minus `own`: what the map adds to its own habit. (With plain ranks, which are bounded, noise is
          skewed where the map is hot, and a map of pure habit and noise would come out above one half.)
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from smmil.evaluate.bags import patient_bag, patient_of, patients_in_words, units_of, whole_bags
from smmil.evaluate.bootstrap import Settings, Statistic, _averaged, statistic
from smmil.evaluate.instances import POOLS, KnownInstances, bags_of_pool, instance_score
from smmil.evaluate.metrics import METRICS
from smmil.evaluate.ranking import _count_below, _ratio
from smmil.evaluate.resampling import RESAMPLES, _resampling_plan, carriers_of, interval, p_text, subtract
from smmil.prediction import Prediction

CELLS = {1: 32, 2: 16, 3: 8}  # cells along an axis, by the number of axes
MAPS = {
    "model": "the map itself",
    "truth": "where lesions of other patients lie",
    "own": "the model's own mean map of other patients",
    "residual": "the map minus its own mean map",
}
DIFFERENCES = {"difference": ("model", "truth"), "own_difference": ("model", "own")}
_DIGITS = 9  # of a place: the scale of coordinates leaves its rounding behind
_FAINT = 1e-6  # share of a patient with which the overall mean counts where no neighbour has been seen
_WHERE = "where lesions usually lie"


class PriorMaps(NamedTuple):
    """The cases that a prior can be compared on, once for each of MAPS: same ids, labels and patients, other scores."""

    model: list[Prediction]
    truth: list[Prediction]
    own: list[Prediction]
    residual: list[Prediction]
    n_patients: int  # with a known lesion, of whom the prior is made
    notes: list[str]


def prior_maps(
    predictions: Sequence[Prediction], column: int | None = None, reference: Sequence[Prediction] | None = None
) -> PriorMaps:
    """The map, both priors and the residual of every case with coordinates that some other patient can be prior for.

    reference  cases with known lesions, such as those of training, that the prior is made of; None: the other patients
               among `predictions`. Cases of one's own patient never take part. Time and memory grow with the number of
               instances, plus patients times cells.
    """
    axes = _common_axes(predictions)
    cases = [p for p in predictions if _axes(p) == axes and axes in CELLS]
    notes = []
    if len(cases) < len(predictions):
        left = len(predictions) - len(cases)
        notes.append(f"{left} of {len(predictions)} cases have no coordinates, or of other axes, and no position prior")
    sources = cases if reference is None else [p for p in reference if _axes(p) == axes]
    sources = [p for p in sources if _has_lesion(p)]
    units = units_of([*sources, *cases])[0]
    lesions, own_units = units[: len(sources)], units[len(sources) :]
    n_patients, shape = len(set(lesions.tolist())), (CELLS.get(axes, 1),) * axes
    if not cases or not n_patients or len(set(units.tolist())) < 2:
        return PriorMaps([], [], [], [], n_patients, notes)
    level = [_normal_scores(instance_score(p, column)).astype(np.float32) for p in cases]
    n_units = int(units.max()) + 1
    truth, seen = _mean_of_others(map(_known_labels, sources), lesions, n_units, shape, relative=True)
    own, others = _mean_of_others(zip(map(_cells_of, cases), level, strict=True), own_units, n_units, shape)
    found: dict[str, list[Prediction]] = {name: [] for name in MAPS}
    for p, unit, mine in zip(cases, own_units, level, strict=True):
        if not (seen[unit] and others[unit]):
            continue
        said = instance_score(p, column).astype(p.scores.dtype)
        prior, habit = (_at_instances(p, mean[unit].reshape(shape)) for mean in (truth, own))
        for name, scores in zip(MAPS, (said, prior, habit, mine - habit), strict=True):
            found[name].append(_rescored(p, scores, name))
    bags = {name: list(whole_bags(cases)) for name, cases in found.items()}
    return PriorMaps(**bags, n_patients=n_patients, notes=notes)


def _axes(p: Prediction) -> int:
    return 0 if p.coords is None else p.coords.shape[1]


def _common_axes(predictions: Sequence[Prediction]) -> int:
    """The most frequent number of axes; of equally frequent ones the lower. 0: no case has coordinates."""
    counts = np.bincount([_axes(p) for p in predictions if _axes(p)], minlength=1)
    return int(counts.argmax())


def _has_lesion(p: Prediction) -> bool:
    return p.y_inst is not None and bool((p.y_inst > 0).any())


def _relative_coords(p: Prediction) -> np.ndarray:
    """(n, axes) place of each instance in cells, from 0 to CELLS; an axis without extent lies in the middle."""
    assert p.coords is not None
    coords = p.coords.astype(np.float64) / 4  # exact, and the extent of the wildest coordinates is still a number
    low, high = coords.min(0), coords.max(0)
    place = np.where(high > low, (coords - low) / np.where(high > low, high - low, 1.0), 0.5)
    return np.asarray(np.round(place * CELLS[coords.shape[1]], _DIGITS))


def _cells_of(p: Prediction) -> np.ndarray:
    """Number of the cell of each instance."""
    places = _relative_coords(p)
    k = CELLS[places.shape[1]]
    index = np.minimum(places.astype(np.int64), k - 1)
    return np.asarray(np.ravel_multi_index(tuple(index.T), (k,) * places.shape[1]))


def _at_instances(p: Prediction, mean: np.ndarray) -> np.ndarray:
    """The mean map at each instance; beyond the centres of the outermost cells it stays as it is there."""
    from scipy.ndimage import map_coordinates

    return np.asarray(map_coordinates(mean, _relative_coords(p).T - 0.5, order=1, mode="nearest", output=np.float32))


def _known_labels(p: Prediction) -> tuple[np.ndarray, np.ndarray]:
    """Cells and labels (0 or 1) of the instances whose label is known."""
    assert p.y_inst is not None
    known = p.y_inst >= 0
    return _cells_of(p)[known], (p.y_inst[known] > 0).astype(np.float64)


def _normal_scores(scores: np.ndarray) -> np.ndarray:
    """Normal quantiles of the ranks within the case; equal scores share the mean of their ranks."""
    from scipy.special import ndtri

    order = np.argsort(scores, kind="stable")
    ranked = scores[order]
    first = np.flatnonzero(np.append(True, ranked[1:] != ranked[:-1]))
    last = np.append(first[1:], len(ranked))
    found = np.empty(len(scores))
    found[order] = np.repeat(ndtri((first + last) / 2 / len(scores)), last - first)
    return found


def _mean_of_others(
    values: Any, units: np.ndarray, n_units: int, shape: tuple[int, ...], *, relative: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """(n_units, cells) mean map over the other units, and whether there is any; values: (cells, numbers) per case."""
    from scipy.ndimage import gaussian_filter

    size = int(np.prod(shape))
    sums, counts = np.zeros((n_units, size)), np.zeros((n_units, size))
    for unit, (place, numbers) in zip(units, values, strict=True):
        sums[unit] += np.bincount(place, weights=numbers, minlength=size)
        counts[unit] += np.bincount(place, minlength=size)
    there = (counts > 0).astype(np.float64)
    total, seen = _without_own(sums / np.maximum(counts, 1)), _without_own(there)
    weight = seen.sum(1, keepdims=True)
    overall = total.sum(1, keepdims=True) / np.maximum(weight, 1)
    sigma = (0, *(1,) * len(shape))
    near, close = (
        gaussian_filter(part.reshape(-1, *shape), sigma, mode="constant").reshape(-1, size) for part in (total, seen)
    )
    mean = (total + (near + _FAINT * overall) / (close + _FAINT)) / (seen + 1)
    if relative:
        mean = mean / np.where(overall > 0, overall, 1.0)
    return mean, (weight > 0).ravel()


def _without_own(maps: np.ndarray) -> np.ndarray:
    """Sum over all rows but one's own; subtracting it from the total would leave its rounding behind."""
    before, after = np.zeros_like(maps), np.zeros_like(maps)
    np.cumsum(maps[:-1], axis=0, out=before[1:])
    after[:-1] = np.cumsum(maps[:0:-1], axis=0)[::-1]
    others: np.ndarray = before + after
    return others


def _rescored(p: Prediction, scores: np.ndarray, name: str) -> Prediction:
    """The case with other scores and only the facts that metrics and patients need."""
    who = patient_of(p)
    kind = p.meta.get("score_kind", "unknown") if name == "model" else MAPS[name]
    meta: dict[str, Any] = {"score_kind": kind, **({} if who is None else {"patient": who})}
    meta |= {} if (part := patient_bag(p)) is None else {"patient_bag": part}
    meta |= {"target": p.meta["target"]} if p.target_kind != "class" else {}
    return Prediction(p.id, p.probs, scores, y=p.y, y_inst=p.y_inst, meta=meta)


def position_prior(
    predictions: Sequence[Prediction],
    *,
    column: int | None = None,
    reference: Sequence[Prediction] | None = None,
    intervals: Sequence[str] = ("per_bag",),
    unit: str = "patient",
    n: int = RESAMPLES,
    seed: int = 0,
    level: float = 0.95,
    stratified: bool = False,
) -> dict[str, Any]:
    """Instance AUROC of the map, of both priors and of the residual in every pool, and what that means in words.

    Each pool of `intervals` also has the ends of the intervals (`truth_low`, …) as of `bootstrap_ci`, and for the
    differences `difference` (model - truth) and `own_difference` (model - own) those of `compare`, with `p`. `better`
    is whether within cases (pool "per_bag") the intervals of both differences lie above 0, None where that is unknown.
    Both, because a prior of few patients is a weak one: a map that has learned positions from many would beat it.

    Keys: all, per_bag, positive_bags, better, words, n_patients, n_cases, source, notes
    """
    maps = prior_maps(predictions, column, reference)
    source = "the other patients among these cases" if reference is None else f"{len(reference)} cases given for it"
    judged = [p for p in maps.truth if KnownInstances.of(p).both_classes]
    facts = {"n_patients": maps.n_patients, "n_cases": len(judged), "source": source}
    if not judged:
        return {"better": None, "words": [_why_none(predictions, maps, reference)], **facts, "notes": []}
    draws = {"unit": unit, "n": n, "seed": seed, "level": level, "stratified": stratified}
    found: dict[str, Any] = {pool: _in_pool(maps, pool, pool in intervals, draws) for pool in POOLS}
    inside = found["per_bag"]
    lows = np.array([_low_end(inside, key) for key in DIFFERENCES])
    better = None if np.isnan(lows).any() else bool((lows > 0).all())
    notes = list(dict.fromkeys([*maps.notes, *(note for pool in POOLS for note in found[pool].pop("notes"))]))
    return {
        **found,
        "better": better,
        "words": _in_words(inside, better, patients_in_words(judged)),
        **facts,
        "notes": notes,
    }


def _in_pool(maps: PriorMaps, pool: str, with_intervals: bool, draws: dict[str, Any]) -> dict[str, Any]:
    """AUROC of every map in a pool, the two differences, and their intervals and p values where asked for."""
    if not with_intervals:
        block = {name: _value(getattr(maps, name), pool) for name in MAPS}
        return block | {key: float(subtract(block[a], block[b])) for key, (a, b) in DIFFERENCES.items()} | {"notes": []}
    inside = pool == "per_bag"
    measured = {
        name: _within_cases(cases) if inside else statistic(cases, "inst_auroc", Settings(pool=pool))
        for name, cases in ((name, getattr(maps, name)) for name in MAPS)
    }
    cases, bounds = measured["model"].cases, measured["model"].bounds
    plan, notes = _resampling_plan(cases, draws["unit"], draws["stratified"])
    drawn = np.array([[one.value(w) for one in measured.values()] for w in plan.draws(draws["n"], draws["seed"])])
    columns = dict(zip(MAPS, drawn.T, strict=True))
    block = {name: one.estimate for name, one in measured.items()}
    carriers = carriers_of(cases, measured["model"].kinds, draws["unit"])
    for name, one in measured.items():
        left_out = partial(plan.without_each, one.value)
        ends = interval(columns[name], block[name], carriers, left_out, "bca", draws["level"], bounds=bounds)
        block |= {f"{name}_low": ends.low, f"{name}_high": ends.high}
    for key, (a, b) in DIFFERENCES.items():
        block[key] = float(subtract(block[a], block[b]))
        gaps = subtract(columns[a], columns[b])
        ends = interval(gaps, block[key], carriers, list, "percentile", draws["level"], difference=True, bounds=bounds)
        block |= {f"{key}_low": ends.low, f"{key}_high": ends.high, f"{key}_p": ends.p}
    return block | {"n_units": plan.n_units, "shortage": carriers.shortage, "notes": [*notes, *ends.notes]}


def _value(cases: Sequence[Prediction], pool: str) -> float:
    if pool == "per_bag":
        return _within_cases(cases).estimate
    return _auroc(KnownInstances.together([KnownInstances.of(p) for p in bags_of_pool(cases, pool)]))


def _auroc(known: KnownInstances) -> float:
    """Share of pairs in which the positive scores higher, as `OperatingPoints.roc_area`, by the quickest way."""
    short = known.scores.astype(np.float32)
    scores = short if np.array_equal(short, known.scores) else known.scores  # half the bytes are sorted twice as fast
    positive, negative = np.sort(scores[known.truth]), scores[~known.truth]
    return _ratio(float(_count_below(positive, negative).sum()), float(len(positive)) * float(len(negative)))


def _within_cases(cases: Sequence[Prediction]) -> Statistic:
    """The mean over cases of their AUROC, where both classes are known."""
    ordered = sorted(cases, key=lambda p: p.id)
    known = [(p, k) for p in ordered if (k := KnownInstances.of(p)).both_classes]
    value, bounds = _averaged([_auroc(k) for _, k in known]), METRICS["inst_auroc"].bounds
    return Statistic("inst_auroc", [p for p, _ in known], value, {}, bounds)


def _why_none(predictions: Sequence[Prediction], maps: PriorMaps, reference: Sequence[Prediction] | None) -> str:
    if not any(_axes(p) in CELLS for p in predictions):
        reason = "no case has coordinates with one to three axes"
    elif reference is not None and not maps.n_patients:
        reason = "no case given for it has coordinates and a positive instance"
    elif maps.n_patients < 2:
        held = "one patient has" if maps.n_patients else "no patient has"
        reason = f"{held} coordinates and a positive instance, and a prior needs at least two such patients"
    else:
        reason = "no case of another patient holds positive and negative instances"
    return f"There is no position prior: {reason}."


def _low_end(inside: dict[str, Any], key: str) -> float:
    """Low end of a difference; 0 where the maps rank equally in every resample, so that there is no interval."""
    low = float(inside.get(f"{key}_low", np.nan))
    return 0.0 if low != low and inside.get(f"{key}_p") == 1 else low


def _in_words(inside: dict[str, Any], better: bool | None, who: str) -> list[str]:
    """What the numbers within cases of so many patients say, in sentences."""

    def number(name: str, sign: str = "") -> str:
        low, high = inside[f"{name}_low"], inside[f"{name}_high"]
        perfect = ", since it is the same in every resample" if not inside.get("shortage") else ""
        ends = f"{low:{sign}.3f} to {high:{sign}.3f}" if low == low else f"no interval{perfect}"
        return f"{inside[name]:{sign}.3f} ({ends})"

    if better is None:
        few = inside.get("shortage")
        reason = f"{few} are too few for an" if few else f"in {who} there is no"
        return [
            f"Whether this map is better than knowing {_WHERE} cannot be said: {reason} interval of the difference."
        ]
    closest = min(DIFFERENCES, key=lambda key: _low_end(inside, key))
    verdict = "better than" if better else "worse than" if inside[f"{closest}_high"] < 0 else "no better than"
    source = {"truth": "of the position prior", "own": "of its own mean map of other patients"}[DIFFERENCES[closest][1]]
    numbers = f"mean AUROC within each case {number('model')}, {source} {number(DIFFERENCES[closest][1])}, difference "
    p = inside[f"{closest}_p"]
    sure = f", p {p_text(p)}, in {who}"
    words = [f"This map is {verdict} knowing {_WHERE}: {numbers}{number(closest, '+')}{sure}."]
    if inside["model_high"] < 0.5:
        words.append("It points the wrong way: within a case lesions have lower scores than the rest.")
    if inside["truth_low"] <= 0.5 <= inside["truth_high"]:
        words.append(
            f"Position alone tells nothing here (prior {number('truth')}): lesions lie anywhere, or the cases share no "
            "frame, as tissue on slides."
        )
    if inside["residual_low"] <= 0.5 < inside["model_low"]:
        words.append(
            f"Less its own mean map this map does not find lesions (AUROC {number('residual')}): it shows the same "
            "place in every case."
        )
    return words

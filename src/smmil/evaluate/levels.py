"""Metrics of each level from predictions: whole cases, instances, energies of maps, lesions, and the threshold."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from smmil.errors import ConfigError, DataError, check_choice
from smmil.evaluate import instances
from smmil.evaluate.bags import _brier_of_cases, _ece, _patients_in_words, labelled_table, units_of
from smmil.evaluate.conformal import _area_notes, area_to_read
from smmil.evaluate.instances import POOLS, RATES, KnownInstances, bags_of_pool, instance_probability, instance_score
from smmil.evaluate.metrics import _ANY, Metric, _bag_values, _class_counts, _ScoredLabels, metrics_of, register_metric
from smmil.evaluate.probability import calibrated_probability
from smmil.evaluate.ranking import OperatingPoints, _defined, _SortedScores, exact_mean
from smmil.prediction import Prediction, corrections_text


def bag_metrics(predictions: Sequence[Prediction], threshold: float = 0.5) -> dict[str, Any]:
    """Metrics over all labelled cases at once, by key: auroc, auprc, f1, … and what else is registered.

    A case is called positive when its probability is at least `threshold`. With more than two classes the ranking
    metrics and f1 are macro averages (one class against the rest), the answer is the most probable class and
    `threshold` is unused; a class without cases is left out, except that f1 counts 0 for it if it was answered. What
    is undefined is nan, and `notes` says why.
    """
    labelled = [p for p in predictions if p.y is not None]
    probs, y = labelled_table(labelled)
    many, left_out = probs.shape[1] > 2, len(predictions) - len(labelled)
    metrics = sorted(metrics_of("bag"), key=lambda m: _ANY.index(m.basis))
    values = _bag_values([m for m in metrics if m.basis != "predictions"], probs, y, threshold)
    values |= {m.key: m.function(labelled) if labelled else float("nan") for m in metrics if m.basis == "predictions"}
    if len(y) == 0:
        notes = ["no case has a label; nothing can be measured"]
    else:
        notes = _many_class_notes(probs, y) if many else _two_class_notes(y > 0, values["f1"])
        notes += [f"{left_out} cases without a label are left out"] if left_out else []
        notes += _area_notes(labelled)
    return {
        "n": len(y),
        "n_positive": int((y > 0).sum()),
        "n_unlabelled": left_out,
        **values,
        "threshold": None if many else float(threshold),
        "notes": notes,
    }


def _two_class_notes(truth: np.ndarray, f1: float) -> list[str]:
    notes = []
    if truth.all() or not truth.any():
        kind = "positive" if truth.all() else "negative"
        notes.append(
            f"all {len(truth)} labelled cases are {kind}: auroc, auprc, balanced accuracy and "
            "sensitivity at a specificity are undefined"
        )
    if np.isnan(f1):
        notes.append("no case is positive and none was called positive: f1 is undefined")
    return notes


def _many_class_notes(probs: np.ndarray, y: np.ndarray) -> list[str]:
    """Which classes have no case, and which of them were answered all the same: wrongly, so their f1 is 0."""
    counts, notes = _class_counts(probs, y), []
    if (y == y[0]).all():
        notes.append(f"all {len(y)} labelled cases are of class {y[0]}: auroc, auprc, balanced accuracy undefined")
    absent = [c for c, found in enumerate(counts) if found.tp + found.fn == 0]
    wrong = [c for c in absent if counts[c].fp]
    but = f"; f1 counts 0 for those that were answered all the same: {wrong}" if wrong else ""
    return [*notes, f"classes without cases are left out of the macro averages: {absent}{but}"] if absent else notes


def instance_metrics(
    predictions: Sequence[Prediction], threshold: float | None = None, pool: str = "all", column: int | None = None
) -> dict[str, Any]:
    """Localization metrics of the scores against instance labels; unknown labels (-1) never take part.

    pool="all" mixes the instances of all bags, "positive_bags" those of bags with y > 0, "per_bag" averages the metrics
    of single bags over those where both classes are present. An instance is called positive when its score is at least
    `threshold`; without one the metrics that need it (f1, dice, iou, …) are absent and `notes` says so. Dice of the
    thresholded map is the same number as f1 of the same instances. pointing_game is the share of the pool's bags with
    both classes whose hottest instance is positive. `column` picks the score of models with more than two per instance.
    """
    check_choice(pool, POOLS, "pool")
    bags = bags_of_pool(predictions, pool)
    parts = [(p, known) for p in bags if len((known := KnownInstances.of(p, column)).truth)]
    used = [(p, known) for p, known in parts if known.both_classes] if pool == "per_bag" else parts
    n_instances, n_positive = sum(len(k.truth) for _, k in used), sum(int(k.truth.sum()) for _, k in used)
    if pool == "per_bag":
        values, notes = _averaged(used, threshold, column)
    else:
        values = _instance_values(used, threshold, column)
        notes = _instance_notes(n_instances, n_positive, values)
    notes += _pool_notes(len(bags), len(parts), len(used), pool)
    if pool == "positive_bags" and (lost := _lost_truth(parts)) is not None:
        notes.insert(0, lost)
    if threshold is None:
        *first, last = [metric.key for metric in metrics_of("instance") if metric.basis == "counts"]
        notes.append(f"{', '.join(first)} and {last} are left out: no threshold was given (choose it on validation)")
    kind, kind_notes = instances._score_kind(predictions)
    return {
        **values,
        "threshold": None if threshold is None else float(threshold),
        "pool": pool,
        "score_kind": kind,
        "n_instances": n_instances,
        "n_positive": n_positive,
        "n_bags_used": len(used),
        "notes": notes + kind_notes + _correction_notes(predictions),
    }


_Parts = Sequence[tuple[Prediction, KnownInstances]]


def _instance_values(parts: _Parts, threshold: float | None, column: int | None) -> dict[str, float]:
    """Values by key of the instances of several bags together; without threshold only those that need none.

    Metrics with rows of their own, such as probabilities, are absent where no bag has such rows.
    """
    known = KnownInstances.together([known for _, known in parts])
    pooled = _ScoredLabels(known.scores, known.truth, threshold)

    def value(metric: Metric) -> float | None:
        if metric.rows is not None:
            rows = [own for p, k in parts if (own := metric.rows(p, k, threshold, column)) is not None]
            return _ScoredLabels(*KnownInstances.together(rows), threshold).value(metric) if rows else None
        if metric.per_case:
            return exact_mean(_defined(metric.function(*known) for _, known in parts if known.both_classes))
        if metric.basis == "predictions":
            return float(metric.function([p for p, _ in parts])) if parts else float("nan")
        return pooled.value(metric) if len(known.truth) else float("nan")

    possible = [m for m in metrics_of("instance") if threshold is not None or not m.needs_threshold]
    return {metric.key: found for metric in possible if (found := value(metric)) is not None}


def _correction_notes(predictions: Sequence[Prediction]) -> list[str]:
    """That the model saw instance labels in training, which others did not: to be known when they are compared."""
    found = dict.fromkeys(corrections_text(p.meta.get("corrections")) for p in predictions)
    return [f"the model also learned from {text}" for text in found if text is not None]


def _instance_notes(total: int, positive: int, values: dict[str, float]) -> list[str]:
    if total == 0:
        return ["no instance label is known: nothing can be measured"]
    notes = []
    if positive in (0, total):
        kind = "positive" if positive else "negative"
        notes.append(f"all {total:,} known instances are {kind}: auroc and auprc are undefined")
    if np.isnan(values.get("precision", 0)):
        notes.append("no instance reaches the threshold: precision is undefined")
    return notes


def _averaged(parts: _Parts, threshold: float | None, column: int | None) -> tuple[dict[str, float], list[str]]:
    rows = [_instance_values([part], threshold, column) for part in parts]
    if not rows:
        return _instance_values([], threshold, column), ["no bag has known instances of both classes"]
    values, notes = {}, []
    for name in dict.fromkeys(name for row in rows for name in row):
        numbers = _defined(row[name] for row in rows if name in row)
        values[name] = exact_mean(numbers)
        if len(numbers) < len(rows):
            notes.append(f"{name} is averaged over the {len(numbers)} of {len(rows)} bags where it is defined")
    return values, notes


def _pool_notes(bags: int, labelled: int, used: int, pool: str) -> list[str]:
    notes = (
        (0 < labelled < bags, f"{bags - labelled} of {bags} bags have no known instance label and are left out"),
        (0 < used < labelled, f"{labelled - used} bags with known instances of one class only are left out"),
        (pool == "positive_bags" and not bags, "no bag is labelled positive"),
    )
    return [text for holds, text in notes if holds]


def _lost_truth(parts: _Parts) -> str | None:
    """How many of these positive bags hold no positive instance, and the coverage that the annotations propose."""
    from smmil.annotations.labels import lost_truth  # brings pandas, which exports do without

    lost = sum(not known.truth.any() for _, known in parts)
    facts = [found for p, _ in parts if isinstance(found := p.meta.get("annotation"), dict)]
    pairs = [(fact.get("coverage"), fact.get("largest_share")) for fact in facts]
    known = [(float(c), float(s)) for c, s in pairs if isinstance(c, float | int) and isinstance(s, float | int)]
    if len(known) < len(parts) or len({coverage for coverage, _ in known}) > 1:
        return lost_truth(len(parts), lost)
    return lost_truth(len(parts), lost, [share for _, share in known], known[0][0] if known else None)


class _Threshold(NamedTuple):
    """A cut (score >= value is positive) and where it came from; value None: there is none, for that reason."""

    value: float | None
    source: str


def _choose_threshold(predictions: Sequence[Prediction], column: int | None = None) -> _Threshold:
    """The observed score that maximises pooled instance F1; among equals the highest, which calls fewest instances."""
    known = KnownInstances.together([KnownInstances.of(p, column) for p in predictions])
    if len(known.truth) == 0:
        return _Threshold(None, "validation has no instance labels")
    positives = int(known.truth.sum())
    if positives == 0:
        return _Threshold(None, "validation has no positive instance")
    points = OperatingPoints.of(known.scores, known.truth)
    f1 = 2 * points.true_positives / (points.true_positives + points.false_positives + positives)
    best = int(np.argmax(f1))
    return _Threshold(float(points.threshold[best]), f"best instance F1 on validation ({f1[best]:.3f})")


def best_f1_threshold(predictions: Sequence[Prediction], column: int | None = None) -> float | None:
    """The value of `choose_threshold`; None when validation has no positive or no labelled instance."""
    return _choose_threshold(predictions, column).value


def uncertainty_metrics(
    predictions: Sequence[Prediction],
    threshold: float,
    column: int | None = None,
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, Any]:
    """What the uncertainty of instance scores is worth: does it tell which calls are wrong?

    An instance is called positive from `threshold` on; a call that differs from its label is an error. Each number
    stands beside that of the baseline -|score - threshold|, which every map has: an uncertainty that does not beat it,
    alone or `combined` as -|score - threshold| / uncertainty (the chance of a wrong call, if errors are normal), adds
    nothing.

    error_auroc           chance that an error is less certain than a right call; 0.5 is chance
    risk_coverage_area    mean share of errors among the k most certain calls, over k = 1 … n; lower is better; ties are
                          taken in every order alike
    …_combined, …_baseline; …_difference and …_combined_difference from the baseline, and their …_interval by resampling
    patients (left out with resamples=0)
    error_auroc_own_interval   of error_auroc itself
    brier, ece            of instance probabilities, nan where scores are none; ece has ten bins of equal width
    verdict               what these numbers say, in words
    Of predictions of several models (other weights, as those of the folds of a cross-validation) each model is judged
    by itself, and the mean over the models is given: deviations have a scale of their own in each, and would else tell
    the models apart in place of the calls. Cases without uncertainty or without known instance labels are left out and
    counted in `notes`.
    """
    usable = [p for p in predictions if p.uncertainty is not None and p.y_inst is not None and (p.y_inst >= 0).any()]
    notes = [f"{len(predictions) - len(usable)} of {len(predictions)} cases hold no uncertainty or no instance label"]
    table = [_calls(p, threshold, column) for p in usable] or [np.zeros((5, 0))]
    wrong, unsure, both, near, probs = np.concatenate(table, axis=1)
    found: dict[str, Any] = {"n_instances": len(wrong), "n_errors": int(wrong.sum()), "threshold": float(threshold)}
    case = instances._case_of_row([part.shape[1] for part in table])
    model = _models_of(usable)
    parts = [np.flatnonzero(model[case] == m) for m in np.unique(model)] if len(wrong) else [case]
    rankings = [
        [(rows, _SortedScores(doubt[rows], wrong[rows] > 0, wrong[rows] == 0)) for doubt in (unsure, both, near)]
        for rows in parts
    ]

    def values(weights: np.ndarray | None) -> np.ndarray:
        """(3, 2): AUROC and area of the uncertainty, of it combined with the distance, of the baseline."""
        found = []
        for of_model in rankings:
            points = [r.points(None if weights is None else weights[case[rows[r.order]]]) for rows, r in of_model]
            found.append([[p.roc_area(), p.risk_coverage_area()] for p in points])
        return np.array(
            [[exact_mean(_defined(column)) for column in row] for row in np.moveaxis(np.array(found), 0, 2)]
        )

    measured = values(None)
    draws = _patient_weights(usable, resamples, seed) if len(wrong) else []
    drawn = np.array([values(weights) for weights in draws]).reshape(-1, 3, 2)
    for k, metric in enumerate(("error_auroc", "risk_coverage_area")):
        found |= {metric + end: float(measured[row, k]) for row, end in enumerate(("", "_combined", "_baseline"))}
        for row, name in enumerate((metric, f"{metric}_combined")):
            found[f"{name}_difference"] = float(measured[row, k] - measured[2, k])
            gaps = drawn[:, row, k] - drawn[:, 2, k]
            if not np.isnan(gaps).all():
                found[f"{name}_interval"] = np.nanquantile(gaps, [(1 - level) / 2, (1 + level) / 2]).tolist()
    own = drawn[:, 0, 0]
    if not np.isnan(own).all():
        found["error_auroc_own_interval"] = np.nanquantile(own, [(1 - level) / 2, (1 + level) / 2]).tolist()
    truth = np.concatenate([np.zeros(0), *(p.y_inst[p.y_inst >= 0] > 0 for p in usable if p.y_inst is not None)])
    known = bool(len(probs)) and not np.isnan(probs).any()
    two = _two_columns(probs)
    found["brier"] = exact_mean(_brier_of_cases(two, truth.astype(int)).tolist()) if known else float("nan")
    found["ece"] = _ece(two, truth.astype(int)) if known else float("nan")
    found["verdict"] = _uncertainty_verdict(found, _patients_in_words(usable))
    return {**found, "notes": notes if len(usable) < len(predictions) else []}


def _models_of(predictions: Sequence[Prediction]) -> np.ndarray:
    """Number of the model of each prediction, by its weights; all 0 where none are stated."""
    names = [str(p.meta.get("weights")) for p in predictions]
    return np.unique(["", *names], return_inverse=True)[1][1:]


def _uncertainty_verdict(found: Mapping[str, Any], who: str) -> str:
    """What `uncertainty_metrics` found in so many patients: by its intervals where there are some, else by values."""
    auroc, errors = found["error_auroc"], found["n_errors"]
    if np.isnan(auroc):
        few = "no call is wrong" if not errors else "every call is wrong"
        return f"cannot be judged: {few} ({who})" if found["n_instances"] else "cannot be judged: no instance has both"
    low, high = found.get("error_auroc_own_interval", (auroc, auroc))
    bounds = f"AUROC of wrong calls {auroc:.3f}" + (f" [{low:.3f}, {high:.3f}]" if low < high else ", without interval")
    bounds += f", in {who}"
    if high < 0.5:
        return f"ranks backwards: wrong calls are the more certain ones ({bounds}); do not read it as certainty"
    if low <= 0.5:
        return f"no better than chance at telling wrong calls ({bounds}); do not read it as certainty"
    gains = [
        found.get(f"error_auroc{end}_interval", [found[f"error_auroc{end}_difference"]])[0] for end in ("", "_combined")
    ]
    distance = f"the distance from the threshold, which every map has ({found['error_auroc_baseline']:.3f})"
    if gains[0] > 0:
        return f"tells wrong calls better than {distance} ({bounds})"
    if gains[1] > 0:
        return f"tells wrong calls ({bounds}), no better than {distance}, but better together with it"
    return f"tells wrong calls ({bounds}), but no better than {distance}"


def _calls(prediction: Prediction, threshold: float, column: int | None) -> np.ndarray:
    """(5, n) of the instances of known label: whether the call is wrong, three uncertainties of it, probability."""
    assert prediction.y_inst is not None
    assert prediction.uncertainty is not None
    score, known = instance_score(prediction, column), prediction.y_inst >= 0
    wrong = (score >= threshold) != (prediction.y_inst > 0)
    near, spread = -np.abs(score - threshold), prediction.uncertainty.astype(np.float64)
    combined = near / np.maximum(spread, np.finfo(np.float32).tiny)
    rows = (wrong, spread, combined, near, _probabilities(prediction, column))
    return np.stack([np.asarray(row, np.float64)[known] for row in rows])


def _probabilities(prediction: Prediction, column: int | None) -> np.ndarray:
    """Probability of each instance: calibrated where a calibration was applied, else what its score says, else nan."""
    calibrated = calibrated_probability(prediction, column)
    return instance_probability(prediction, column) if calibrated is None else calibrated


def _probability_rows(
    prediction: Prediction, known: KnownInstances, threshold: float | None, column: int | None
) -> KnownInstances | None:
    """Probabilities of the known instances and their truth."""
    assert prediction.y_inst is not None
    probs = _probabilities(prediction, column)[prediction.y_inst >= 0]
    return None if np.isnan(probs).any() else KnownInstances(probs, known.truth)


def _doubt_rows(
    prediction: Prediction, known: KnownInstances, threshold: float | None, column: int | None, *, own: bool = True
) -> KnownInstances | None:
    """Doubt about the call of each known instance, its uncertainty or (own=False) its nearness to the threshold, and
    whether the call is wrong; of cases that hold uncertainty, so that both are about the same calls.
    """
    if prediction.uncertainty is None or prediction.y_inst is None or threshold is None:
        return None
    wrong = (known.scores >= threshold) != known.truth
    doubt = prediction.uncertainty[prediction.y_inst >= 0] if own else -np.abs(known.scores - threshold)
    return KnownInstances(doubt.astype(np.float64), wrong)


def _two_columns(probs: np.ndarray) -> np.ndarray:
    return np.stack([1 - probs, probs], 1)


def _patient_weights(predictions: Sequence[Prediction], resamples: int, seed: int) -> list[np.ndarray]:
    """How often each case counts when its patients are drawn again, once per resample."""
    patient, _ = units_of(predictions)
    rng, count = np.random.default_rng(seed), int(patient.max()) + 1
    return [np.bincount(rng.integers(count, size=count), minlength=count)[patient] for _ in range(resamples)]


def energies(predictions: Sequence[Prediction], column: int | None = None) -> dict[str, Any]:
    """Each energy averaged over the bags where it is defined, with their number: n_rayleigh, n_mean, n_minmax, …

    Bags without edges are left out, counted in n_without_edges and mentioned in `notes`.
    """
    rows = [_bag_energies(p, column) for p in predictions if p.edges is not None]
    result: dict[str, Any] = {}
    for metric in metrics_of("energy"):
        numbers = _defined(row[metric.key] for row in rows)
        result[metric.key] = exact_mean(numbers)
        result[f"n_{metric.key}"] = len(numbers)
    missing = len(predictions) - len(rows)
    notes = [f"{missing} of {len(predictions)} bags have no edges stored and no energy"] if missing else []
    return {**result, "n_bags": len(rows), "n_without_edges": missing, "notes": notes}


def _bag_energies(prediction: Prediction, column: int | None = None) -> dict[str, float]:
    """Roughness of one bag on its graph by key; pairs count once, self-loops never; nan where undefined."""
    if prediction.edges is None:
        raise DataError(f"{prediction.id}: energies need edges, which this prediction does not store; predict it again")
    f = instance_score(prediction, column)
    pairs = instances._undirected_pairs(prediction.edges, len(f))
    return {metric.key: metric.function(f, pairs) for metric in metrics_of("energy")}


def froc(
    predictions: Sequence[Prediction],
    rates: Sequence[float] = RATES,
    pool: str = "all",
    column: int | None = None,
    interpolate: bool = False,
) -> dict[str, Any]:
    """Share of lesions found at each number of false alarms per bag, and their mean under the key `froc`.

    A lesion is a connected piece of positive instances, a mark is a local maximum of the scores on the same edges. A
    mark finds the lesion it lies in and is a false alarm outside; marks on instances of unknown label are neither. At
    each rate stands the highest share of lesions that some threshold reaches with at most that many alarms per bag.
    interpolate=True draws straight lines between thresholds instead, as the script of the CAMELYON16 challenge does.

    pool  "all" bags, or "positive_bags" only; bags without edges or without any instance label are left out
    Keys: froc, rates, sensitivities, curve {threshold, false_alarms_per_bag, sensitivity}, n_lesions, n_bags, notes, …
    """
    check_choice(pool, ("all", "positive_bags"), "pool of froc (it counts alarms per bag already)")
    if not len(rates) or min(rates) < 0:
        raise ConfigError(f"rates: got {list(rates)}, expected false alarms per bag such as {list(RATES)}")
    bags = bags_of_pool(predictions, pool)
    curve, (kind, notes) = instances._FrocCurve(bags, column), instances._score_kind(predictions)
    n_lesions, n_bags = int(curve.n_lesions.sum()), len(curve.n_lesions)
    without = f"{len(bags) - n_bags} of {len(bags)} bags have no edges or no known instance label and are left out"
    left_out = [without] if n_bags < len(bags) else []
    points, alarms, share = curve.rates()
    sensitivities = instances._share_at(alarms, share, rates, interpolate) if n_lesions else [float("nan")] * len(rates)
    return {
        **{metric.key: curve.value(metric.function) for metric in metrics_of("lesion")},
        "froc": exact_mean(sensitivities),
        "rates": [float(r) for r in rates],
        "sensitivities": sensitivities,
        "curve": {
            "threshold": points.threshold.tolist(),
            "false_alarms_per_bag": alarms.tolist(),
            "sensitivity": share.tolist(),
        },
        "n_lesions": n_lesions,
        "n_bags": n_bags,
        "n_marks": curve.n_peaks,
        "interpolated": interpolate,
        "pool": pool,
        "score_kind": kind,
        "notes": [*left_out, *([] if n_lesions else ["no lesion is known: froc is undefined"]), *notes],
    }


_AREA = (
    "share of the instances of {} bags flagged where at most 10 % of a patient's lesion instances are missed on "
    "average; threshold of the calibration, else for each patient that of the others (10 with lesions are needed)"
)
for _class in ("positive", "negative"):
    register_metric(
        Metric(
            f"bag_area_to_read_{_class}",
            "bag",
            f"area to read at 90 %, {_class} bags",
            -1,
            _AREA.format(_class),
            partial(area_to_read, positive=_class == "positive"),
            listed="instance",
            title=f"Area to read at guaranteed 90 % sensitivity, {_class} cases",
        )
    )


_NEAR = partial(_doubt_rows, own=False)
_NEARNESS = "nearness of the score to the threshold in place of the uncertainty: what every map has"
for _metric in (
    Metric("inst_brier", "instance", "instance Brier score", -1,
           "mean squared error of instance probabilities, calibrated ones where there are; attention has none",
           lambda probs, truth: exact_mean(np.square(probs - truth)), "arrays", rows=_probability_rows,
           title="Brier score of probabilities"),
    Metric("inst_ece", "instance", "instance ECE", -1,
           "expected calibration error of instance probabilities: mean gap between said probability and observed share",
           lambda probs, truth: _ece(_two_columns(probs), truth.astype(int)), "arrays", rows=_probability_rows,
           title="Calibration error (ECE) of probabilities"),
    Metric("inst_error_auroc", "instance", "error AUROC of uncertainty", 1,
           "chance that a wrong call is less certain than a right one; 0.5 is chance, below it ranks backwards",
           OperatingPoints.roc_area, "points", rows=_doubt_rows, of_calls=True,
           title="Wrong calls told by uncertainty (AUROC)"),
    Metric("inst_error_auroc_distance", "instance", "error AUROC of distance", 1, f"the same with {_NEARNESS}",
           OperatingPoints.roc_area, "points", rows=_NEAR, of_calls=True,
           title="Wrong calls told by the distance from the threshold (AUROC)"),
    Metric("inst_risk_coverage", "instance", "risk-coverage area", -1,
           "mean share of wrong calls among the k most certain ones, over all k",
           OperatingPoints.risk_coverage_area, "points", rows=_doubt_rows, of_calls=True,
           title="Risk-coverage area of uncertainty"),
    Metric("inst_risk_coverage_distance", "instance", "risk-coverage area of distance", -1,
           f"the same with {_NEARNESS}", OperatingPoints.risk_coverage_area, "points", rows=_NEAR, of_calls=True,
           title="Risk-coverage area of the distance from the threshold"),
):  # fmt: skip
    register_metric(_metric)

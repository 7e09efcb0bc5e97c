"""What the uncertainty of instance scores is worth: does it tell which calls are wrong?"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smmil.evaluate import instances
from smmil.evaluate.bags import patients_in_words, units_of
from smmil.evaluate.instances import KnownInstances, instance_probability, instance_score
from smmil.evaluate.probability import calibrated_probability
from smmil.evaluate.ranking import _brier_of_cases, _defined, _ece, _SortedScores, exact_mean
from smmil.evaluate.resampling import RESAMPLES
from smmil.prediction import Prediction


def uncertainty_metrics(
    predictions: Sequence[Prediction],
    threshold: float,
    column: int | None = None,
    *,
    resamples: int = RESAMPLES,
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
    found["verdict"] = _uncertainty_verdict(found, patients_in_words(usable))
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

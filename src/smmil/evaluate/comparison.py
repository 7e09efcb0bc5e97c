"""Paired comparison of models on the same cases: differences with intervals, p values and corrections."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from smmil.errors import ConfigError, DataError, suggest
from smmil.evaluate import bootstrap
from smmil.evaluate.bags import patient_of, units_of
from smmil.evaluate.bootstrap import MetricOrFunction, Models, Results, Settings, statistic
from smmil.evaluate.instances import _score_kind
from smmil.evaluate.metrics import USUAL
from smmil.evaluate.resampling import RESAMPLES, _resampled, subtract
from smmil.evaluate.significance import delong, holm
from smmil.prediction import Prediction


def _paired(a: Sequence[Prediction], b: Sequence[Prediction]) -> tuple[list[Prediction], list[Prediction], int, int]:
    """Common cases of two models sorted by id, and how many only one has; other labels or patients are refused."""
    first, second = _by_id(a, "first"), _by_id(b, "second")
    common = sorted(first.keys() & second.keys())
    if not common:
        some, others = (", ".join(sorted(cases)[:2]) or "none" for cases in (first, second))
        raise DataError(f"compare: the two models have no case in common ({some} / {others}); predict the same cases")
    for case in common:
        _refuse_different(first[case], second[case])
        who = patient_of(second[case])
        if who is not None and patient_of(first[case]) is None:  # a patient that only the second names
            first[case] = replace(first[case], meta={**first[case].meta, "patient": who})
    same = [first[case] for case in common], [second[case] for case in common]
    return *same, len(first) - len(common), len(second) - len(common)


def _by_id(predictions: Sequence[Prediction], which: str) -> dict[str, Prediction]:
    found = {p.id: p for p in predictions}
    if len(found) < len(predictions):
        raise DataError(
            f"compare: the {which} model has {len(predictions)} predictions of {len(found)} cases; keep one each"
        )
    return found


def _refuse_different(a: Prediction, b: Prediction) -> None:
    if a.y != b.y:
        raise DataError(
            f"{a.id}: label {a.y} in the first model's file but {b.y} in the second's; predict one of them again"
        )
    _refuse_other_truth(a, b)
    same = a.y_inst is b.y_inst if a.y_inst is None or b.y_inst is None else np.array_equal(a.y_inst, b.y_inst)
    if not same:
        raise DataError(f"{a.id}: instance labels differ between the two models; predict both from the same bag files")
    people = {patient_of(p) for p in (a, b)} - {None}
    if len(people) > 1:
        raise DataError(f"{a.id}: belongs to patient {' and '.join(sorted(map(str, people)))}; correct the manifest")


def _refuse_other_truth(a: Prediction, b: Prediction) -> None:
    if a.target_kind != b.target_kind:
        raise DataError(f"{a.id}: a target of kind {a.target_kind} and one of kind {b.target_kind} cannot be compared")
    one, other = (np.zeros(0) if p.target is None else p.target for p in (a, b))
    if not np.array_equal(one, other, equal_nan=True):
        words = f"{a.id}: target {one.tolist()} in the first model's file but {other.tolist()} in the second's"
        raise DataError(f"{words}; predict one of them again")


Thresholds = float | tuple[float | None, float | None] | None


def compare(
    a: Sequence[Prediction],
    b: Sequence[Prediction],
    metric: MetricOrFunction = "bag_auroc",
    unit: str = "patient",
    method: str = "percentile",
    n: int = RESAMPLES,
    seed: int = 0,
    level: float = 0.95,
    *,
    stratified: bool = False,
    threshold: Thresholds = None,
    pool: str = "all",
    column: int | None = None,
) -> dict[str, Any]:
    """The difference a - b of a metric on the same cases, with interval and p value; options as for bootstrap_ci.

    Cases are paired by id; those that only one model predicted are left out and counted. Each resample of patients
    judges both models. p is two-sided and read off the interval: below 1 - level exactly where it excludes 0. The
    interval is a percentile one unless asked otherwise: with twenty cases and no true difference BCa ones exclude 0
    about twice as often as they say. threshold may be a pair, one for each model. For "bag_auroc" with two classes
    `delong` holds DeLong's test too, where every patient has one case, else None. Where fewer than 10 patients carry
    the metric there is no interval, no p and no DeLong's test, and `shortage` says how many there are.

    Keys: a, b, difference, low, high, p, delong, n_units, n_cases, only_in_a, only_in_b, notes, …
    """
    one, other, only_in_a, only_in_b = _paired(a, b)
    cuts = threshold if isinstance(threshold, tuple) else (threshold, threshold)
    first, second = (
        statistic(side, metric, Settings(cut, pool, column)) for side, cut in zip((one, other), cuts, strict=True)
    )
    if [p.id for p in first.cases] != [p.id for p in second.cases]:
        raise DataError(f"{first.name}: not the same cases can be judged for both models; predict both in the same way")

    def between(weights: np.ndarray) -> float:
        return float(subtract(first.value(weights), second.value(weights)))

    difference = float(subtract(first.estimate, second.estimate))
    found, facts, notes = _resampled(
        first.cases, first.kinds, between, difference, True, unit, method, n, seed, level, stratified, first.bounds
    )
    if only_in_a or only_in_b:
        counts = f"{only_in_a} cases only of the first model and {only_in_b} only of the second"
        notes = [f"{counts} are left out", *notes]
    test, test_notes = (None, []) if found.shortage else _delong(first, second, level)
    return {
        "metric": first.name,
        "a": first.estimate,
        "b": second.estimate,
        "difference": difference,
        "low": found.low,
        "high": found.high,
        "p": found.p,
        "delong": test,
        **facts,
        "only_in_a": only_in_a,
        "only_in_b": only_in_b,
        "method": found.method,
        "level": level,
        "unit": unit,
        "stratified": stratified,
        "seed": seed,
        "threshold": list(cuts),
        "pool": pool,
        "column": column,
        "score_kind": [_score_kind(side.cases)[0] for side in (first, second)],
        "notes": notes + test_notes,
    }


def _delong(a: bootstrap.Statistic, b: bootstrap.Statistic, level: float) -> tuple[dict[str, float] | None, list[str]]:
    """DeLong's test, which takes cases as independent: none where a patient has several, with a remark."""
    two = all(len(p.probs) < 3 and p.target_kind == "class" for p in (*a.cases, *b.cases))
    if a.name.partition(":")[0] != "bag_auroc" or not two:
        return None, []
    if (patients := len(np.unique(units_of(a.cases)[0]))) < len(a.cases):
        return None, [f"no DeLong's test: it takes {len(a.cases)} cases of {patients} patients as independent"]
    scores = [np.array([p.positive_prob for p in side.cases]) for side in (a, b)]
    test = delong(scores[0], scores[1], np.array([p.y == 1 for p in a.cases], dtype=bool), level)
    return test._asdict(), []


POOLED, INSIDE = "inst_auroc", "inst_auroc@positive_bags"


def pointing_or_telling(model: str, other: str, rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Whether a difference of instance AUROC is one in pointing or in telling bags apart, in a sentence.

    rows  {measure: difference, low, high} for `POOLED` and `INSIDE`. Pooled over bags, instances of positive bags can
          win because all scores of those bags are higher, wherever the lesion is. That is said where the interval
          inside positive bags excludes the pooled difference. Empty where an interval is missing, or where neither
          excludes 0.
    """
    if not {POOLED, INSIDE} <= rows.keys():
        return ""
    pooled, inside = (_side(rows[measure]) for measure in (POOLED, INSIDE))
    if pooled is None or inside is None or not (pooled or inside):
        return ""
    numbers = {measure: _with_ends(rows[measure]) for measure in (POOLED, INSIDE)}
    who = f"{model} against {other}: pooled instance AUROC {numbers[POOLED]}, inside positive bags {numbers[INSIDE]}"
    if pooled == inside:
        return f"{who}: a difference in pointing, {'for' if pooled > 0 else 'to the cost of'} {model}."
    if not inside and rows[INSIDE]["low"] <= rows[POOLED]["difference"] <= rows[INSIDE]["high"]:
        return (
            f"{who}: whether it is a difference in pointing or in telling bags apart cannot be told; inside positive "
            "bags both no difference and the pooled one are possible."
        )
    if not inside:
        return (
            f"{who}: a difference in telling bags apart, not in pointing; inside positive bags it is smaller, or none."
        )
    if not pooled:
        return f"{who}: a difference in pointing that pooling over bags hides."
    return f"{who}: the two disagree; {model} tells bags apart {_better(pooled)} but points {_better(inside)}."


def _side(row: Mapping[str, Any]) -> int | None:
    """1 or -1: the side of 0 on which the whole interval lies; 0: neither; None: there is no interval."""
    if math.isnan(row["low"]) or math.isnan(row["high"]):
        return None
    return int(row["low"] > 0) - int(row["high"] < 0)


def _better(side: int) -> str:
    return "better" if side > 0 else "worse"


def _with_ends(row: Mapping[str, Any]) -> str:
    return f"{row['difference']:+.3f} ({row['low']:+.3f} to {row['high']:+.3f})"


def compare_models(
    models: Mapping[str, Sequence[Prediction]],
    metric: MetricOrFunction = "bag_auroc",
    reference: str | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Every pair of models, or every model against `reference`; `p_holm` is corrected for the number of comparisons.

    Each row is that of `compare` with `model` and `other`; options as there. Thresholds may be a mapping by model.
    """
    if reference is not None and reference not in models:
        raise ConfigError(f"reference: unknown model {reference!r}; {suggest(reference, models)}")
    others = [(name, reference) for name in models if name != reference]
    pairs = list(combinations(models, 2)) if reference is None else others
    cuts = options.pop("threshold", None)
    rows = []
    for name, other in pairs:
        both = (cuts.get(name), cuts.get(other)) if isinstance(cuts, Mapping) else cuts
        found = compare(models[name], models[str(other)], metric, threshold=both, **options)
        rows.append({"model": name, "other": other, **found})
    _correct(rows, "p_holm", [row["p"] for row in rows])
    if all(row["delong"] for row in rows):
        _correct(rows, "p_holm_delong", [row["delong"]["p"] for row in rows])
    return rows


def _correct(rows: list[dict[str, Any]], key: str, pvalues: list[float]) -> None:
    for row, corrected in zip(rows, holm(pvalues), strict=True):
        row[key] = corrected


def add_comparisons(
    results: Results,
    models: Models,
    others: Models,
    other_results: Results,
    measures: Sequence[str] = USUAL,
    **options: Any,
) -> None:
    """Under "comparisons" of each model: `compare` with its namesake or the only one; p_holm corrects per measure.

    A number that the summary of either model holds back is not compared: `withheld` of its row says why. A note says
    whether a difference is one in pointing or in telling bags apart.
    """
    rows: dict[str, list[dict[str, Any]]] = {}
    for name, found in results.items():
        other = name if name in others or len(others) != 1 else next(iter(others))
        if other not in others:
            choice = f"{', '.join(others)}; give one model, or folders of equal names"
            raise DataError(f"--compare: no model {name} among {choice}")
        found["comparisons"] = []
        for measure in bootstrap._possible_measures(measures, [found, other_results[other]]):
            words = [
                (who, bootstrap._withheld(measure, s)) for who, s in ((name, found), (other, other_results[other]))
            ]
            if any(word for _, word in words):
                found["comparisons"].append({"measure": measure.label, "other": other, **_held_back(words)})
                continue
            cuts = bootstrap.threshold_for(measure, found), bootstrap.threshold_for(measure, other_results[other])
            settings = {**options, "pool": measure.pool, "threshold": cuts}
            row = {
                "measure": measure.label,
                "other": other,
                **compare(models[name], others[other], measure.metric, **settings),
            }
            found["comparisons"].append(row)
            rows.setdefault(measure.label, []).append(row)
        if kind := pointing_or_telling(name, other, {row["measure"]: row for row in found["comparisons"]}):
            found.setdefault("notes", []).append(kind)
    for family in rows.values():
        _correct(family, "p_holm", [row["p"] for row in family])


def _held_back(words: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """A comparison without numbers, and why; words: each model and why its own number is held back, if it is."""
    why = dict.fromkeys(word for _, word in words if word)
    nothing = dict.fromkeys(("a", "b", "difference", "low", "high", "p", "p_holm"), float("nan"))
    whose = ", ".join(f"{who} ({word})" for who, word in words if word)
    notes = [f"not compared: its number is held back for {whose}"]
    return {**nothing, "delong": None, "shortage": "", "withheld": ", ".join(why), "notes": notes}

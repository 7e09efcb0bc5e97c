"""Summaries of models: folders of predictions to nested results, and these to rows of a table."""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from smmil.errors import DataError
from smmil.evaluate.conformal import AppliedCalibration, _promised, realised, shared_calibration
from smmil.evaluate.folder_drift import FolderDrift, class_sets_in_words, folder_drift
from smmil.evaluate.instances import POOLS
from smmil.evaluate.levels import (
    _choose_threshold,
    _Threshold,
    bag_metrics,
    energies,
    froc,
    instance_metrics,
)
from smmil.evaluate.prior import DIFFERENCES, MAPS, position_prior
from smmil.evaluate.resampling import missing_text
from smmil.evaluate.uncertainty import uncertainty_metrics
from smmil.prediction import Prediction, load_predictions


def summary(
    predictions: Sequence[Prediction],
    *,
    validation: Sequence[Prediction] | None = None,
    threshold: float | None = None,
    column: int | None = None,
    prior: Mapping[str, Any] | bool = True,
    resamples: int = 200,
) -> dict[str, Any]:
    """Bag metrics, instance metrics in every pool, energies, the position prior, and which threshold was used.

    The threshold is the given one, else the best on `validation`, else that of the calibration which the predictions
    carry, else none. Result: {"bag": ..., "instance": {"all": ..., "per_bag": ..., "positive_bags": ...}, "energy":
    ..., "prior": ..., "threshold": {"value": ..., "source": ...}}. prior: False leaves it out, a mapping holds options
    of `position_prior`. With a threshold, and where predictions hold uncertainty, also {"uncertainty": ...}, its
    intervals and verdict from `resamples` of the patients; where they were compared with a drift summary, {"drift":
    {"cases", "alarmed", "patients", "held_out", "p"}}. The area to read at the threshold of a promise that the drift
    alarm withdrew is nan, and "withheld" of "bag" says so.
    """
    options = prior if isinstance(prior, Mapping) else {}
    stated = shared_calibration(predictions, column) if threshold is None and validation is None else None
    drift = folder_drift(predictions)
    said = [] if stated is None else [*_promise_in_words(stated, drift), realised(predictions, stated)]
    said += [] if stated is None else [class_sets_in_words(predictions, drift)]
    if threshold is not None:
        cut = _Threshold(float(threshold), "given by the user")
    elif stated is not None:
        kept = stated.promise and not (drift is not None and drift.alarm)
        cut = _Threshold(stated.threshold, "calibrated" if kept else "calibrated, without a promise")
    elif validation is None:
        cut = _Threshold(None, "no validation predictions were given")
    else:
        cut = _choose_threshold(validation, column)
    known = cut.value is not None and any(p.uncertainty is not None and p.y_inst is not None for p in predictions)
    worth = uncertainty_metrics(predictions, cut.value or 0.0, column, resamples=resamples) if known else {}
    return {
        "bag": _without_withdrawn_area(bag_metrics(predictions), predictions, drift),
        "instance": {pool: instance_metrics(predictions, cut.value, pool, column) for pool in POOLS},
        "energy": energies(predictions, column),
        **({"prior": position_prior(predictions, column=column, **options)} if prior is not False else {}),
        "threshold": cut._asdict(),
        **({"uncertainty": worth} if known else {}),
        **({} if drift is None else {"drift": _drift_numbers(drift)}),
        **({} if stated is None else {"notes": list(filter(None, said))}),
    }


def _drift_numbers(drift: FolderDrift) -> dict[str, Any]:
    sizes = {"cases": drift.cases, "alarmed": drift.alarmed, "patients": drift.patients, "held_out": drift.held_out}
    return {**sizes, "p": drift.p}


def load_models(places: Sequence[str | Path], left_out: dict[Path, str] | None = None) -> dict[str, list[Prediction]]:
    """{model: its predictions, sorted by id} of folders of .npz files; a folder of such folders is all of them.

    left_out  receives files that cannot be read, with the reason; without it they are an error
    """
    return {name: load_predictions(files, left_out) for name, files in named_folders(places).items()}


def summarize_models(
    models: Mapping[str, Sequence[Prediction]],
    *,
    validation: Sequence[str | Path] = (),
    threshold: float | None = None,
    column: int | None = None,
    left_out: dict[Path, str] | None = None,
    prior: Mapping[str, Any] | bool = True,
) -> dict[str, dict[str, Any]]:
    """{model: summary}; `validation` is one place per model in the same order, or folders of equal names."""
    checks = _matching(list(models), named_folders(validation)) if validation else {}
    result = {}
    for name, cases in models.items():
        held_out = load_predictions(checks[name], left_out) if name in checks else None
        both = sorted({p.id for p in cases} & {p.id for p in held_out or ()})
        if both:
            raise DataError(
                f"{name}: {len(both)} cases are both judged and used to choose the threshold ({', '.join(both[:3])}); "
                "give predictions of the validation part"
            )
        if held_out is not None:
            _refuse_other_scores(name, cases, held_out)
        result[name] = summary(cases, validation=held_out, threshold=threshold, column=column, prior=prior)
    if len({tuple(p.id for p in cases) for cases in models.values()}) > 1:
        for found in result.values():
            found["bag"]["notes"].append("the models were not given the same cases; their numbers are not comparable")
    return result


def _refuse_other_scores(name: str, cases: Sequence[Prediction], held_out: Sequence[Prediction]) -> None:
    """Raise an error where validation holds scores of another kind: their threshold says nothing about these."""
    kinds = [{str(p.meta["score_kind"]) for p in part if "score_kind" in p.meta} for part in (cases, held_out)]
    if all(kinds) and kinds[0] != kinds[1]:
        ours, theirs = (" and ".join(sorted(found)) for found in kinds)
        raise DataError(
            f"{name}: its scores are {ours}, those of validation {theirs}; a threshold of one kind says nothing about "
            "the other: give validation predictions of the same map"
        )
    scales = [{str(_member_scales(p)) for p in part} for part in (cases, held_out)]
    if scales[0] != scales[1]:
        raise DataError(
            f"{name}: the runs of this ensemble were brought to one scale on other cases than those of validation, so "
            "a threshold of one says nothing about the other; predict both again where the runs' own bags can be read"
        )


def _member_scales(prediction: Prediction) -> Any:
    """Mean and deviation of the scores of each run of an ensemble, which became 0 and 1; None: no ensemble."""
    stated = prediction.meta.get("ensemble")
    return stated.get("scales") if isinstance(stated, dict) else None


def named_folders(places: Sequence[str | Path]) -> dict[str, list[Path]]:
    """Name and files or folders of each model; single files together are one model."""
    files, found = [Path(p) for p in places if Path(p).is_file()], {}
    for folder in (Path(p) for p in places if not Path(p).is_file()):
        if not folder.is_dir():
            raise DataError(f"{folder}: no such file or folder")
        inner = sorted({p.parent for p in folder.glob("*/*.npz")})
        for path in [folder] if any(folder.glob("*.npz")) or not inner else inner:
            name = Path(os.path.abspath(path)).name  # of a link its own, not that of the folder behind it
            found[name if name not in found else str(path)] = [path]
    return {**found, **({"files": files} if files else {})}


def without_nan(value: Any) -> Any:
    """The same content with None for nan, as JSON wants it."""
    if isinstance(value, dict):
        return {key: without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _matching(models: list[str], checks: dict[str, list[Path]]) -> dict[str, list[Path]]:
    if set(checks) >= set(models):
        return checks
    if len(checks) != len(models):
        raise DataError(
            f"validation: {len(checks)} folders ({', '.join(checks)}) for {len(models)} models ({', '.join(models)}); "
            "give one per model, in the same order"
        )
    return dict(zip(models, checks.values(), strict=True))


def add_froc(
    results: dict[str, dict[str, Any]], models: Mapping[str, Sequence[Prediction]], column: int | None = None
) -> None:
    """Under "froc" of each model: sensitivities at the usual rates and their mean (the curve itself is left out)."""
    for name, found in results.items():
        found["froc"] = {k: v for k, v in froc(models[name], column=column).items() if k != "curve"}


def long_table(results: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every number as a row: model, part, metric, value, low, high; for a CSV file."""
    rows = []
    for model, found in results.items():
        parts = {"bag": found["bag"], **{f"instance@{p}": m for p, m in found["instance"].items()}}
        parts |= {"energy": found["energy"]} | {p: found[p] for p in ("froc", "uncertainty", "drift") if p in found}
        for part, values in parts.items():
            numbers = {k: v for k, v in values.items() if isinstance(v, int | float) and not isinstance(v, bool)}
            rows += [{"model": model, "part": part, "metric": k, "value": v} for k, v in numbers.items()]
        rows += [{"model": model, **row} for row in _target_rows(found["bag"])]
        for label, ci in found.get("ci", {}).items():
            numbers = {"value": ci["value"], **_cells(ci, ("low", "high"))}
            rows.append({"model": model, "part": "ci", "metric": label, **numbers})
        rows += [{"model": model, **row} for row in _prior_rows(found.get("prior", {}))]
        for row in found.get("comparisons", []):
            numbers = {"value": row["difference"], **_cells(row, ("low", "high", "p", "p_holm"))}
            rows.append({"model": model, "part": f"difference to {row['other']}", "metric": row["measure"], **numbers})
    return rows


def _target_rows(bag: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of each label, of each time and of the risk groups, where a target has them."""
    rows = [
        {"part": "label", "metric": f"{key}:{name}", "value": value}
        for name, values in bag.get("labels", {}).items()
        for key, value in values.items()
    ]
    for time, values in bag.get("times", {}).items():
        numbers = {key: value for key, value in values.items() if key not in ("time", "shortage")}
        rows += [{"part": f"until {time}", "metric": k, "value": v} for k, v in numbers.items()]
    if groups := bag.get("risk_groups"):
        rows += [{"part": "risk groups", "metric": f"n: {g['name']}", "value": g["n"]} for g in groups["groups"]]
        rows.append(
            {"part": "risk groups", "metric": "log_rank", "value": groups["log_rank"], **_cells(groups, ("p",))}
        )
    return rows


def _cells(found: Mapping[str, Any], keys: Sequence[str], prefix: str = "") -> dict[str, Any]:
    """Ends and p values by these keys; where too few patients carry them a cell says so: "– (3 patients)"."""
    short = found.get("shortage", "")
    return {key: missing_text(short) if short else found[prefix + key] for key in keys if prefix + key in found}


def _prior_rows(prior: Mapping[str, Any]) -> list[dict[str, Any]]:
    """AUROC of every map and the differences, by pool; ends and p where they were computed."""
    rows = []
    for pool in (pool for pool in POOLS if pool in prior):
        for name in (*MAPS, *DIFFERENCES):
            known = _cells(prior[pool], ("low", "high", "p"), f"{name}_")
            rows.append({"part": f"prior@{pool}", "metric": name, "value": prior[pool][name], **known})
    return rows


def _promise_in_words(stated: AppliedCalibration, drift: FolderDrift | None) -> list[str]:
    """Sentence and conditions for a folder of cases, withdrawn for all or some where the drift alarm is raised."""
    if drift is not None and drift.alarm:
        return [drift.withdrawal]
    unlike = "" if drift is None or not drift.alarmed else f"Withdrawn for {drift.alarmed:,} unlike cases."
    return [*stated.texts, unlike]


def _without_withdrawn_area(
    bag: dict[str, Any], predictions: Sequence[Prediction], drift: FolderDrift | None
) -> dict[str, Any]:
    """Bag metrics without the area to read where it rests on a promise that is withdrawn for the folder or all cases.

    Without such a promise each patient is read at a threshold of the other patients here, which stays guaranteed.
    """
    lost = drift is not None and (drift.alarm or drift.alarmed == len(predictions))
    areas = [key for key in bag if key.startswith("area_to_read_") and not math.isnan(bag[key])]
    if not lost or not areas or _promised([p for p in predictions if p.y is not None]) is None:
        return bag
    note = "area to read: its sensitivity was guaranteed by the promise that is withdrawn here, as the cases are unlike"
    withheld = dict.fromkeys(areas, "promise withdrawn")
    notes = [*bag["notes"], f"{note} those of training"]
    return {**bag, **dict.fromkeys(areas, math.nan), "notes": notes, "withheld": withheld}

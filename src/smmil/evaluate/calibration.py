"""Calibration of a trained model on held-out annotated cases: a threshold that keeps a promise, and probabilities.

`calibration.json` is written and read here only. It names no case and no patient.
"""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from smmil import __version__
from smmil.config import Count, checked
from smmil.errors import ConfigError, DataError, check_choice
from smmil.evaluate.bags import labelled_table, need_target, units_of, whole_bags, whole_patients
from smmil.evaluate.conformal import (
    _LOSSES,
    _check_level,
    _class_thresholds,
    _label_set,
    _MissedShares,
    _needed_patients,
    _patient_values,
)
from smmil.evaluate.instances import KnownInstances
from smmil.evaluate.probability import ProbabilityMap, _Section
from smmil.files import digest, read_json, write_json
from smmil.prediction import Prediction

FORMAT = 1
METHODS = ("platt", "isotonic", "none")
_OTHER_SCORES = {"ensemble": "made by --ensemble", "mc_dropout": "made by --mc-dropout", "explained": "made by explain"}
_SOURCE = ("model", "weights", "config", "encoder", "recipe", "score_kind")
_SEEN = ("train", "val")  # parts of a split that trained the model or selected its weights
_CLIP = 1e-7  # of probabilities whose log-odds are taken
_MISSES = {
    "instances": "misses, on average over patients with lesions, at most {share} of a patient's lesion instances",
    "lesions": "misses, on average over patients with lesions, at most {share} of a patient's lesions (missed means "
    "that none of its instances is flagged)",
    "patients": "leaves some lesion without a flagged instance in at most {share} of the patients with lesions",
}
_CONDITIONS = (
    "It holds for patients drawn like those of the calibration: same population, scanner, staining or protocol, "
    "preparation and way of marking lesions. It is about patients on average, not about a single one, and about "
    "lesions as they were marked."
)
_UNRECORDED = " That the calibration cases did not train the model is not recorded with them; it is supposed."
_UNCHECKED = " That the calibration cases did not train the model could be checked in part only: {}."


class _ClassSets(_Section):
    """Sets of classes for whole cases: a class stays from its threshold on; None: it is in every set."""

    target: float
    thresholds: list[float | None]
    patients: list[int]


class Calibration(_Section):
    """Content of calibration.json: what was promised for which model, and on how many patients it rests."""

    format: int
    smmil_version: str
    kind: Literal["instances", "lesions", "patients"]
    target: float = Field(gt=0, lt=1)
    delta: float | None = Field(gt=0, lt=1)  # None: on average over calibrations; else with confidence 1 - delta
    threshold: float
    column: int | None
    patients: Count  # with lesions
    cases: Count  # all that were given
    source: dict[str, str | None]
    sets: _ClassSets | None
    bag: ProbabilityMap | None
    instance: ProbabilityMap | None
    promise: bool  # False: forced although the model has seen the cases
    sentence: str
    conditions: str
    notes: list[str]
    own_cases: list[str] = Field(
        default_factory=list
    )  # fingerprints of the cases it rests on: of their scores, not of who they are

    def save(self, path: str | Path) -> None:
        """Write the file, atomically."""
        write_json(path, {**self.model_dump(), "sha256": self.digest})

    @classmethod
    def load(cls, path: str | Path) -> "Calibration":
        """Read a file written by `save`; an error if it does not match its checksum or format."""
        content = read_json(path, dict)
        seal, version = content.pop("sha256", None), content.get("format")
        if seal is None or "kind" not in content:
            raise DataError(f"{path}: not a calibration; give a file written by smmil calibrate")
        if seal != _checksum(content):
            raise DataError(f"{path}: its content does not match its checksum; calibrate again")
        if version != FORMAT:
            raise DataError(f"{path}: written as format {version!r}, but this version reads {FORMAT}; update smmil")
        try:
            return checked(cls, content, str(path))
        except ConfigError as problem:
            raise DataError(f"{problem}; calibrate again") from None

    @property
    def digest(self) -> str:
        """SHA-256 of the content."""
        return _checksum(self.model_dump())

    def refuse_other(self, meta: Mapping[str, Any], where: object, keys: Sequence[str] = _SOURCE) -> None:
        """Raise an error unless model, weights, settings, encoder, recipe and kind of score are the calibrated ones."""
        ours = _source(meta)
        for key in keys:
            if ours[key] != self.source.get(key):
                word, other = key.replace("_", " "), _short(self.source.get(key))
                raise ConfigError(
                    f"{where}: calibrated for {word} {other}, but here it is {_short(ours[key])}; "
                    "a promise holds only for the model it was made for: calibrate with predictions of this one"
                )

    def refuse_other_model(self, meta: Mapping[str, Any], where: object) -> None:
        """The same before any case was predicted, when the kind of score is not known yet."""
        self.refuse_other(meta, where, [key for key in _SOURCE if key != "score_kind"])

    def mark(self, probs: bool = False) -> dict[str, str]:
        """By what a prediction shows that just this calibration was applied to it."""
        return {"digest": self.digest, "probs": "calibrated" if probs else "as the model gave them"}

    def applied(self, prediction: Prediction, *, probs: bool = False) -> Prediction:
        """The prediction with threshold, sentence, calibrated probability and set of classes in meta["calibration"].

        probs  also replace the probabilities of the case by the calibrated ones
        """
        self.refuse_other(prediction.meta, prediction.id)
        facts = self.model_dump(include={"kind", "target", "delta", "threshold", "column", "patients"})
        facts |= self.model_dump(include={"promise", "sentence", "conditions", "instance"})
        facts |= {**self.mark(probs), "own_case": _fingerprint(prediction) in self.own_cases}
        table = labelled_table([replace(prediction, y=0)])[0]
        if self.sets is not None:
            facts["set"] = _label_set(table[0], self.sets.thresholds)
            facts["never_excluded"] = [c for c, cut in enumerate(self.sets.thresholds) if cut is None]
        if self.bag is not None:
            facts["probability"] = float(self.bag(_log_odds(table[:, 1]))[0])
        if probs and self.bag is None:
            raise ConfigError(f"{prediction.id}: the calibration holds no probabilities of cases; leave probs out")
        meta = {**prediction.meta, "calibration": facts}
        if not probs:
            return replace(prediction, meta=meta)
        p = facts["probability"]
        return replace(prediction, meta=meta, probs=np.array([p] if len(prediction.probs) == 1 else [1 - p, p]))


def calibrate(
    predictions: Sequence[Prediction],
    *,
    kind: str = "instances",
    target: float = 0.1,
    delta: float | None = None,
    probabilities: str = "platt",
    column: int | None = None,
    seen: Collection[str] = (),
    unchecked: Sequence[str] | None = None,
    force: bool = False,
) -> Calibration:
    """A threshold that promises a missed share of at most `target`, from held-out cases with instance labels.

    kind           what may be missed: instances of lesions, lesions, or patients with a missed lesion
    delta          None: on average (conformal risk control); else with confidence 1 - delta (learn-then-test)
    probabilities  platt, isotonic or none: how probabilities of cases and instances are fitted
    seen           ids of cases known to have trained or selected the model, besides what the predictions say
    unchecked      what could not be compared with the run that trained the model; None: nothing was compared
    force          go on with such cases; the result makes no promise and says so
    """
    check_choice(kind, _LOSSES, "--kind")
    check_choice(probabilities, METHODS, "--probabilities")
    _check_level(target, "--target")
    if delta is not None:
        _check_level(delta, "--delta")
    predictions = sorted(predictions, key=lambda p: p.id)
    need_target(predictions, "calibration")
    source = _one_source(predictions)
    for other, what in _OTHER_SCORES.items():
        made = next((p.id for p in predictions if other in p.meta), None)
        if made is not None:
            raise DataError(f"{made}: {what}; no later prediction has such scores, calibrate those of one run itself")
    again = next((p.id for p in predictions if _probs_replaced(p)), None)
    if again is not None:
        raise DataError(f"{again}: its probabilities were calibrated before; predict again without --calibrated-probs")
    leaked = [p.id for p in predictions if p.id in seen or _part(p) in _SEEN]
    if leaked and not force:
        raise DataError(
            f"{leaked[0]}: this case trained the model or selected its weights, as {len(leaked)} of {len(predictions)} "
            "did; a promise needs cases the model has not seen: predict the test part, or other cases"
        )
    if not any(p.y_inst is not None and (p.y_inst >= 0).any() for p in predictions):
        raise DataError("no case has instance labels; calibration needs cases in which lesions are marked")
    values = _patient_values(predictions, kind, column)
    missed, needed = _MissedShares(list(values.values())), _needed_patients(target, delta)
    if missed.n < needed:
        raise DataError(_too_few(missed.n, needed, target, delta))
    cut = missed.controlled(target) if delta is None else missed.tested(target, delta, binary=kind == "patients")
    assert cut is not None  # with as many patients the lowest value is always possible
    sets, notes = _class_sets(predictions, target)
    bag, instance, more = _probability_maps(predictions, probabilities, column)
    promise = not leaked
    return Calibration(
        format=FORMAT,
        smmil_version=__version__,
        kind=kind,  # type: ignore[arg-type]
        target=float(target),
        delta=None if delta is None else float(delta),
        threshold=cut,
        column=column,
        patients=missed.n,
        cases=len(predictions),
        source=source,
        sets=sets,
        bag=bag,
        instance=instance,
        promise=promise,
        sentence=_sentence(kind, target, delta, cut, missed.n) if promise else _withdrawn(cut, leaked, predictions),
        conditions=_conditions(predictions, unchecked) if promise else "",
        notes=[*_label_notes(predictions), *units_of(predictions)[1], *notes, *more],
        own_cases=[_fingerprint(p) for p in predictions],
    )


def _fingerprint(prediction: Prediction) -> str:
    """What tells a case again without naming it: some digits of the digest of its scores by the calibrated model."""
    return digest(np.ascontiguousarray(prediction.scores, dtype="<f4").tobytes())[:16]


def _too_few(n: int, needed: int, target: float, delta: float | None) -> str:
    sure = "" if delta is None else f" with a confidence of {1 - delta:.4g}"
    possible = 1.0 if n == 0 else 1 / (n + 1) if delta is None else 1 - delta ** (1 / n)
    least = math.ceil(100 * possible - 1e-9) / 100
    also = f", or promise --target {least:g}" if least < 1 else ""
    return (
        f"{n} patients with marked lesions are too few to promise at most {target:g} missed{sure}: at least {needed} "
        f"are needed; annotate {needed - n} more{also}"
    )


def _sentence(kind: str, target: float, delta: float | None, cut: float, n: int) -> str:
    start = "Flagging" if delta is None else f"With a confidence of {100 * (1 - delta):.4g} %, flagging"
    method = "conformal risk control" if delta is None else "learn-then-test"
    misses = _MISSES[kind].format(share=f"{100 * target:.4g} %")
    return (
        f"{start} every instance with a score of at least {_not_above(cut)} {misses}. Set by {method} on {n:,} "
        "patients with lesions that the model had not seen."
    )


def _not_above(cut: float) -> str:
    """Four digits of a threshold, rounded down: what is flagged from there on is never less than was promised."""
    digit = 10.0 ** (math.floor(math.log10(abs(cut))) - 3) if cut else 0.0
    return f"{cut:.4g}" if float(f"{cut:.4g}") <= cut else f"{cut - digit:.4g}"


def _withdrawn(cut: float, leaked: Sequence[str], predictions: Sequence[Prediction]) -> str:
    return (
        f"No promise: {len(leaked):,} of the {len(predictions):,} calibration cases trained the model or selected its "
        f"weights, so more may be missed at the threshold {_not_above(cut)} than was asked for."
    )


def _conditions(predictions: Sequence[Prediction], unchecked: Sequence[str] | None) -> str:
    """What a promise supposes; that the model has not seen the cases, as far as nobody has checked it."""
    if unchecked is None:
        return _CONDITIONS + (_UNRECORDED if any(_part(p) is None for p in predictions) else "")
    return _CONDITIONS + (_UNCHECKED.format("; ".join(unchecked)) if unchecked else "")


def _label_notes(predictions: Sequence[Prediction]) -> list[str]:
    """How many positive cases have no marked lesion, and how many are marked in part only."""
    positive = [p for p in whole_bags(predictions) if p.y]
    bare = sum(p.y_inst is None or not (p.y_inst > 0).any() for p in positive)
    partly = sum(p.y_inst is not None and bool((p.y_inst < 0).any()) and bool((p.y_inst > 0).any()) for p in positive)
    notes = ((bare, "have no marked lesion and take no part"), (partly, "are marked in part; the rest is left out"))
    return [f"{count} of {len(positive)} positive cases {words}" for count, words in notes if count]


def _class_sets(predictions: Sequence[Prediction], target: float) -> tuple[_ClassSets | None, list[str]]:
    labelled = [p for p in whole_patients(predictions) if p.y is not None]
    if not labelled or any(p.meta.get("link") == "sigmoid" for p in labelled):
        return None, ["no sets of classes: no case has a label, or classes do not exclude each other"]
    probs, y = labelled_table(labelled)
    cuts, sizes = _class_thresholds(probs, y, units_of(labelled)[0], target)
    short = [f"{c} ({n})" for c, (cut, n) in enumerate(zip(cuts, sizes, strict=True)) if cut is None]
    few = f"too few patients of class {', '.join(short)} to ever exclude it; {_needed_patients(target)} are needed"
    return _ClassSets(target=float(target), thresholds=cuts, patients=sizes), [few] if short else []


def _probability_maps(
    predictions: Sequence[Prediction], method: str, column: int | None
) -> tuple[ProbabilityMap | None, ProbabilityMap | None, list[str]]:
    """Maps from the log-odds of cases and from the scores of instances; None and a note where one cannot be fitted."""
    if method == "none":
        return None, None, []
    labelled, notes, maps = [p for p in whole_patients(predictions) if p.y is not None], [], []
    known = KnownInstances.together([KnownInstances.of(p, column) for p in predictions])
    probs, y = labelled_table(labelled)
    exclusive = probs.shape[1] == 2 and not any(p.meta.get("link") == "sigmoid" for p in labelled)
    pairs = {"cases": (_log_odds(probs[:, 1]), y > 0) if exclusive else (np.zeros(0), np.zeros(0, dtype=bool)),
             "instances": (known.scores, known.truth)}  # fmt: skip
    for what, (scores, truth) in pairs.items():
        both = bool(truth.any() and not truth.all())
        maps.append(ProbabilityMap.fit(method, scores, truth) if both else None)
        notes += [] if both else [f"probabilities of {what} are not calibrated: labels of two classes are needed"]
    return maps[0], maps[1], notes


def _one_source(predictions: Sequence[Prediction]) -> dict[str, str | None]:
    """Model and features that made all predictions; a mixture is refused."""
    if not predictions:
        raise DataError("no predictions given; name a folder of .npz files written by smmil predict")
    first = _source(predictions[0].meta)
    for prediction in predictions:
        for key, value in _source(prediction.meta).items():
            if value != first[key]:
                raise DataError(
                    f"{prediction.id}: its {key.replace('_', ' ')} is {_short(value)}, that of {predictions[0].id} "
                    f"{_short(first[key])}; calibrate one model at a time"
                )
    return first


def _source(meta: Mapping[str, Any]) -> dict[str, str | None]:
    features = meta.get("features")
    facts = {**meta, **(features if isinstance(features, dict) else {})}
    return {key: None if facts.get(key) is None else str(facts[key]) for key in _SOURCE}


def _part(prediction: Prediction) -> Any:
    split = prediction.meta.get("split")
    return split.get("part") if isinstance(split, dict) else None


def _probs_replaced(prediction: Prediction) -> bool:
    stated = prediction.meta.get("calibration")
    return isinstance(stated, dict) and stated.get("probs") == "calibrated"


def _log_odds(probs: np.ndarray) -> np.ndarray:
    inside = np.clip(probs, _CLIP, 1 - _CLIP)
    return np.asarray(np.log(inside) - np.log1p(-inside))


def _short(value: str | None) -> str:
    return "not stated" if value is None else repr(value if len(value) <= 40 else f"{value[:12]}…")


def _checksum(content: Mapping[str, Any]) -> str:
    return digest(json.dumps(content, sort_keys=True))

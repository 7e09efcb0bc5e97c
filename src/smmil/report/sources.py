"""Models of a report: their predictions, model card, data card and caveats."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from smmil.errors import DataError
from smmil.evaluate.bags import is_labelled, units_of
from smmil.evaluate.conformal import applied_calibration, realised, shared_calibration
from smmil.evaluate.folder_drift import class_sets_in_words, folder_drift
from smmil.evaluate.folders import named_folders
from smmil.evaluate.ranking import chance_probability
from smmil.evaluate.targets import TargetTable
from smmil.files import read_json
from smmil.prediction import Prediction, corrections_text, load_predictions
from smmil.redact import safe_text, without_names


@dataclass(frozen=True)
class _PredictionSource:
    """One model: its name, its predictions, and run.json of its run (empty when there is none)."""

    name: str
    predictions: Sequence[Prediction]
    run: dict[str, Any] = field(default_factory=dict)
    left_out: dict[Path, str] = field(default_factory=dict)  # reasons why files could not be read


def _load_sources(places: Sequence[str | Path]) -> list[_PredictionSource]:
    """One source per model; a run stands for its folder `predictions`, and damaged files are left out and named."""
    return [_load(*found) for found in find_sources(places)]


def _load(name: str, places: Sequence[Path], run: dict[str, Any]) -> _PredictionSource:
    damaged: dict[Path, str] = {}
    return _PredictionSource(name, load_predictions(places, damaged), run, damaged)


def find_sources(places: Sequence[str | Path]) -> list[tuple[str, Sequence[Path], dict[str, Any]]]:
    """Name, files or folders of predictions, and run.json of each model, before anything is read."""
    runs = {Path(p): run for p in places if (run := _run_of(Path(p))) is not None}
    found = [(Path(os.path.abspath(run)).name, _predictions_of(run), _facts(run)) for run in runs.values()]
    others = named_folders([p for p in places if Path(p) not in runs])
    found += [(Path(name).name, files, {}) for name, files in others.items()]
    if not found:
        raise DataError("nothing to report; name a run or a folder of predictions written by smmil predict")
    names = _distinct([name for name, _, _ in found])
    return [(name, files, run) for name, (_, files, run) in zip(names, found, strict=True)]


def _run_of(place: Path) -> Path | None:
    """The run that a folder is, or whose `predictions` it is; the folder may be a link, inside the run or elsewhere."""
    ways = [Path(os.path.abspath(place)), place.resolve()]
    candidates = (place, *(way.parent for way in ways if way.name == "predictions"))
    return next((p for p in candidates if (p / "run.json").is_file()), None)


def _facts(run: Path) -> dict[str, Any]:
    return read_json(run / "run.json", dict)


def _predictions_of(run: Path) -> list[Path]:
    """The folder with the run's predictions: `predictions`, or its only subfolder, or the one called test."""
    folder = run / "predictions"
    if any(folder.glob("*.npz")):
        return [folder]
    inner = {p.parent.name: p.parent for p in sorted(folder.glob("*/*.npz"))}
    if len(inner) == 1 or "test" in inner:
        return [inner.get("test", next(iter(inner.values())))]
    if inner:
        raise DataError(f"{folder}: holds {', '.join(inner)}; name one of these folders")
    raise DataError(f"{run}: has no predictions yet; run: smmil predict {run} --out {folder}")


def _distinct(names: Iterable[str]) -> list[str]:
    """Names without repetition: the second `a` becomes `a (2)`."""
    given: list[str] = []
    for name in names:
        numbered = (name if number == 1 else f"{name} ({number})" for number in count(1))
        given.append(next(shown for shown in numbered if shown not in given))
    return given


_UNSTATED = "not stated"
_OF_THE_MODEL = ("model", "score_kind", "checkpoint", "epoch", "seed", "weights", "config")
INTENDED_USE = (
    "Research use only. Not a medical device: not for diagnosis, treatment or any decision about a patient.",
    "Scores show where a model looked, not where disease is. A hot region is a hint, its absence proves nothing.",
    "Numbers hold for cases like these: same scanners, staining, patients and way of choosing them.",
)


def _model_card(source: _PredictionSource, licences: Mapping[str, str]) -> list[tuple[str, str]]:
    """(fact, value) rows of one model; missing facts are called not stated. No other field of the meta is shown."""
    meta, run = _common(source.predictions), source.run
    features = _mapping(meta.get("features")) or _mapping(run.get("features"))
    split, made = _mapping(meta.get("split")), _mapping(run.get("model"))
    encoder, bags, parts = features.get("encoder"), _mapping(run.get("bags")), " + ".join(_parts_of(source.predictions))
    named = str(encoder).split("@")[0]  # name@revision
    licence = features.get("licence") or meta.get("licence") or licences.get(named)
    rows = [
        ("Model", meta.get("model") or made.get("name")),
        *([("Options", _pairs(_mapping(made.get("options"))) or "all as by default")] if made else []),
        ("Parameters", f"{run['parameters']:,}" if isinstance(run.get("parameters"), int) else None),
        ("Scores are", meta.get("score_kind")),
        ("Encoder", encoder),
        ("Encoder licence", licence or f"{_UNSTATED}; check the terms of the encoder before use"),
        ("Features made by recipe", _short(features.get("recipe"))),
        ("Trained until", _pairs({"checkpoint": meta.get("checkpoint"), "epoch": meta.get("epoch")})),
        ("Seed", meta.get("seed")),
        ("Split", _pairs({"part": parts, "fold": split.get("fold"), "id": _short(split.get("digest"))})),
        ("Split sizes (cases)", _pairs({part: bags.get(part) for part in ("train", "val", "test")})),
        ("Weights (SHA-256)", _short(meta.get("weights"))),
        ("Settings (SHA-256)", _short(meta.get("config") or run.get("config"))),
        ("Software", _pairs(_mapping(meta.get("versions")) or _mapping(run.get("versions")))),
    ]
    return [(name, _UNSTATED if value in (None, "") else safe_text(value)) for name, value in rows]


def _distinct_values(predictions: Sequence[Prediction], key: str) -> list[Any]:
    """Values under a key of the predictions' meta, each once, in the order of the cases."""
    found: list[Any] = []
    for stated in (p.meta.get(key) for p in predictions):
        if stated is not None and stated not in found:
            found.append(stated)
    return found


def _common(predictions: Sequence[Prediction]) -> dict[str, Any]:
    """The meta of the first prediction; facts on which predictions differ are called several."""
    changing = {key: len(_distinct_values(predictions, key)) for key in _OF_THE_MODEL}
    several = {key: f"several ({number})" for key, number in changing.items() if number > 1}
    return {**predictions[0].meta, **several}


def _data_card(predictions: Sequence[Prediction]) -> list[tuple[str, str]]:
    """Size and labels of the cases in this report; of patients only their number."""
    labelled, kind = [p for p in predictions if is_labelled(p)], predictions[0].target_kind
    labels = [p.y for p in labelled if p.y is not None]
    word = "level" if kind == "ordinal" else "class"
    counts = {f"{word} {label}:": labels.count(label) for label in sorted(set(labels))}
    said = _pairs(counts) if kind in ("class", "ordinal") else _target_in_words(labelled, kind)
    instances = sum(p.n for p in predictions)
    known = sum(int((p.y_inst >= 0).sum()) for p in predictions if p.y_inst is not None)
    positive = sum(int((p.y_inst > 0).sum()) for p in predictions if p.y_inst is not None)
    sizes = sorted(p.n for p in predictions)
    units, notes = units_of(predictions)
    patients = f"{len(set(units)):,}"
    if notes and len(set(units)) == len(predictions):
        named = any(p.meta.get("group") or p.meta.get("patient") for p in predictions)
        patients = f"{patients} of one case each, or {_UNSTATED}" if named else _UNSTATED
    return [
        ("Cases", f"{len(predictions):,}"),
        ("Labels", said or "none"),
        ("Without label", f"{len(predictions) - len(labelled):,}"),
        ("Patients", patients),
        ("Instances", f"{instances:,} (per case {sizes[0]:,} to {sizes[-1]:,}, median {sizes[len(sizes) // 2]:,})"),
        ("Instance labels", f"{known:,} known, {positive:,} of them positive" if known else "none"),
        ("Parts of the split", _parts(predictions)),
        ("Coordinates", _coordinates(predictions)),
    ]


def _target_in_words(labelled: Sequence[Prediction], kind: str) -> str:
    """Events and times, positive cases of each label, or the range of numbers."""
    table = TargetTable(labelled)
    if not len(table):
        return ""
    low, high = table.target[:, 0].min(), table.target[:, 0].max()
    if kind == "multilabel":
        counts = np.nansum(table.target, axis=0).astype(int).tolist()
        return safe_text(_pairs({f"{name}:": n for name, n in zip(table.names, counts, strict=True)}), 400)
    if kind == "regression":
        return f"numbers from {low:.4g} to {high:.4g}, median {np.median(table.target[:, 0]):.4g}"
    return f"{int(table.target[:, 1].sum()):,} with an event, times from {low:.4g} to {high:.4g}"


def _parts_of(predictions: Sequence[Prediction]) -> list[str]:
    """Parts of the split that the cases come from, as far as they are stated."""
    parts = {_mapping(p.meta.get("split")).get("part") for p in predictions}
    return sorted(str(part) for part in parts if part)


def _parts(predictions: Sequence[Prediction]) -> str:
    parts = [_mapping(p.meta.get("split")).get("part") or _UNSTATED for p in predictions]
    return _pairs({str(part): parts.count(part) for part in dict.fromkeys(parts)})


def _coordinates(predictions: Sequence[Prediction]) -> str:
    frames = {p.frame for p in predictions}
    if len(frames) > 1:
        return f"{len(frames)} different frames"
    frame = next(iter(frames))
    if frame is None:
        return _UNSTATED
    size = " x ".join(f"{v:g}" for v in frame.patch)
    spacing = "size unknown" if frame.spacing is None else f"{frame.spacing[0]:g} {frame.unit.replace('um', 'µm')}"
    return f"instances of {size} steps, one step = {spacing}"


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items() if value is not None)


def _short(digest: Any) -> str | None:
    return None if digest in (None, "") else safe_text(digest)[:12]


_MOST_NAMED = 10
_LONGEST_PROMISE = 1000
_WITHDRAWN = "Withdrawn for cases that look unlike those the model learned from: {cases}."


def _caveats(sources: Sequence[_PredictionSource]) -> list[tuple[str, str]]:
    """(headline, sentence) for cases seen in training, weights that were mixed, and predictions that were left out."""
    seen = [(s.name, [part for part in _parts_of(s.predictions) if part in ("train", "val")]) for s in sources]
    names = ", ".join(f"{name} ({' and '.join(parts)})" for name, parts in seen if parts)
    text = f"{names} includes cases the model was trained or selected on. Use --part test."
    found = [("Not a fair test", text)] if names else []
    counts = {source.name: len(_distinct_values(source.predictions, "weights")) for source in sources}
    mixed = "the predictions of {} come from {} different weights; its numbers describe none of them."
    found += [("Not one model", mixed.format(name, number)) for name, number in counts.items() if number > 1]
    return found + [("Not all cases", _lacking(source)) for source in sources if source.left_out]


# Metrics that say whether a model learned anything: what each is called, and what chance gives.
_BY_CHANCE = {
    "bag_auroc": ("case AUROC", 0.5),
    "bag_c_index": ("C-index", 0.5),
    "bag_kappa": ("kappa", 0.0),
    "bag_spearman": ("Spearman's correlation", 0.0),
}


def _told_from_chance(cases: Sequence[Prediction], auroc: float) -> bool:
    """Whether an exact test tells the case AUROC from chance: of two classes, and of patients with one case each."""
    labels = [p.y for p in cases if p.y is not None]
    if set(labels) != {0, 1} or len(np.unique(units_of(cases)[0])) < len(cases):
        return False
    return chance_probability(auroc, sum(labels), labels.count(0)) <= _RARE


_RARE = 0.05


def _doubts(
    results: Mapping[str, Mapping[str, Any]], cases: Mapping[str, Sequence[Prediction]]
) -> list[tuple[str, str]]:
    """(headline, sentence) where the main metric may be chance, or rests on too few patients to tell how good it is."""
    found = []
    for name, measured in results.items():
        key = next((key for key in _BY_CHANCE if key in measured.get("ci", {})), None)
        if key is None or (ci := measured["ci"][key])["value"] != ci["value"]:
            continue
        (called, chance), value, low, high = _BY_CHANCE[key], ci["value"], ci["low"], ci["high"]
        if ci["shortage"]:
            text = f"the {called} of {name}, {value:.3f}, rests on {ci['shortage']}: too few for an interval"
            if key == "bag_auroc" and _told_from_chance(cases[name], value):
                more = "By chance alone it would rarely be as high (exact test), but it may be much lower in new cases"
                found.append(("Not known how good it is", f"{text}. {more}."))
                continue
            found.append(("Not known whether it learned", f"{text}, so its maps may be chance. Predict more cases."))
        elif low <= chance:
            text = f"the interval of {name}'s {called}, {low:.3f} to {high:.3f}, holds {chance:g}"
            text = text if high >= chance else f"{name}'s {called} is below {chance:g} ({low:.3f} to {high:.3f})"
            found.append(
                ("No better than chance", f"{text}. Do not read its maps: see docs/train.md, When it does not learn.")
            )
    return found


_TAUGHT = "Models without corrections saw labels of whole cases only; comparing them with this one compares both."


def _promises(
    sources: Sequence[_PredictionSource], results: Mapping[str, Mapping[str, Any]], column: int | None
) -> tuple[list[tuple[str, str, str]], list[str]]:
    """(headline, sentence, more) of the calibration and the corrections of each model, and the conditions, once.

    Nothing is promised where the numbers of a model (`results`) are read at another threshold than the calibrated one.
    """
    found: list[tuple[str, str, str]] = []
    conditions: dict[str, None] = {}
    for source in sources:
        taught = {corrections_text(p.meta.get("corrections")) for p in source.predictions} - {None}
        for text in sorted(filter(None, taught)):
            found.append((f"Learned from corrections ({source.name})", f"{text}.", _TAUGHT))
        stated = {applied_calibration(p) for p in source.predictions}
        one, drift = shared_calibration(source.predictions, column), folder_drift(source.predictions)
        cut = results[source.name]["threshold"]
        if one is not None and not cut["source"].startswith("calibrated"):
            found.append((f"Nothing is promised ({source.name})", _other_threshold(cut, one.threshold), ""))
        elif one is not None and drift is not None and drift.alarm:
            found.append((f"Nothing is promised ({source.name})", drift.withdrawal, realised(source.predictions, one)))
        elif one is not None:
            headline = f"{'What is promised' if one.promise else 'Nothing is promised'} ({source.name})"
            unlike = _WITHDRAWN.format(cases=_named(drift.unlike)) if drift is not None and drift.unlike else ""
            rest = " ".join(filter(None, [unlike, realised(source.predictions, one)]))
            texts = one.sentence, rest, one.conditions
            sentence, more, limits = (safe_text(text, _LONGEST_PROMISE) for text in texts)
            found.append((headline, sentence, more))
            conditions |= {limits: None} if limits else {}
        elif stated != {None}:
            mixed = "the cases carry different calibrations, none, or one of another score column; predict them again"
            found.append((f"Nothing is promised ({source.name})", f"{mixed} with one.", ""))
    return found, list(conditions)


def _class_sets(sources: Sequence[_PredictionSource]) -> list[tuple[str, str]]:
    """(headline, sentence) about the classes that the calibration of each model leaves to its cases."""
    said = [(s.name, class_sets_in_words(s.predictions, folder_drift(s.predictions))) for s in sources]
    return [(f"Which classes can be excluded ({name})", text) for name, text in said if text]


def _other_threshold(cut: Mapping[str, Any], calibrated: float) -> str:
    """Why a calibration promises nothing here: the maps are read at another threshold, or at none."""
    used = "no threshold" if cut["value"] is None else f"the threshold {cut['value']:.4g}"
    return f"{used} is used here ({cut['source']}), and the promise of the calibration is about {calibrated:.4g} only."


def _alarms(sources: Sequence[_PredictionSource]) -> list[tuple[str, str]]:
    """(headline, sentences) about cases unlike those that a model learned from; nothing where none is."""
    found = [(source, folder_drift(source.predictions)) for source in sources]
    return [
        (f"Unlike the training cases ({source.name})", one.text + f" Unlike: {_named(one.unlike)}." * bool(one.unlike))
        for source, one in found
        if one is not None and (one.alarm or one.alarmed)
    ]


def _named(ids: Sequence[str]) -> str:
    """Cases by name, the first of them if there are many."""
    more = f" and {len(ids) - _MOST_NAMED} more" if len(ids) > _MOST_NAMED else ""
    return ", ".join(safe_text(id_) for id_ in ids[:_MOST_NAMED]) + more


def _lacking(source: _PredictionSource) -> str:
    """Which predictions could not be read and why; their files are named after their cases."""
    reasons = [
        f"{safe_text(path.stem)} ({safe_text(without_names(reason, path.stem, path))})"
        for path, reason in source.left_out.items()
    ]
    more = f" and {len(reasons) - _MOST_NAMED} more" if len(reasons) > _MOST_NAMED else ""
    return f"{source.name} lacks {', '.join(reasons[:_MOST_NAMED])}{more}."

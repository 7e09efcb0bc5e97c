"""Facts about a run that a package states: settings, features, encoder, metrics with intervals."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smmil import __version__
from smmil.config import TrainConfig
from smmil.data.manifest import Manifest
from smmil.data.splits import run_split
from smmil.encoders import encoder_info, list_encoders
from smmil.errors import ConfigError, DataError
from smmil.evaluate.bags import is_labelled, judged_by, patients_in_notes, shared_target, whole_patients
from smmil.evaluate.bootstrap import bootstrap_ci
from smmil.evaluate.levels import bag_metrics
from smmil.evaluate.metrics import METRICS
from smmil.evaluate.resampling import RESAMPLES
from smmil.files import digest, read_json
from smmil.formats import read_provenance
from smmil.predict.cases import run_config
from smmil.predict.inference import TrainedModel, load_trained
from smmil.prediction import Prediction, load_predictions
from smmil.prepare.recipe import Recipe, load_recipe
from smmil.redact import redacted, refuse_folders
from smmil.target import target_of

_ENCODER_FACTS = ("dim", "pixels", "mean", "std", "mpp", "source", "autocast", "pooling", "gate", "commit", "precision")


@dataclass(frozen=True)
class _FeatureSource:
    """`facts` for config.json, the recipe where it is known, and a note where it should be known and is not."""

    facts: dict[str, Any]
    recipe: Recipe | None = None
    note: str | None = None


def _feature_source_of(features: dict[str, Any], bag: Path | None) -> _FeatureSource:
    """Source of the features from a run (encoder id and digest of the recipe) and one of its bags."""
    try:
        stated, unread = ({} if bag is None else read_provenance(bag)), ""
    except DataError as problem:
        stated, unread = {}, str(problem)
    encoder = refuse_folders(features.get("encoder"), "encoder of the features")
    own = stated if encoder is not None and stated.get("encoder") == encoder else {}
    name, _, revision = str(encoder or "").partition("@")
    facts = {
        "encoder": encoder,
        "recipe": features.get("recipe"),
        "encoder_name": name or None,
        "encoder_weights": revision.partition("/")[0] or None,
        "encoder_licence": own.get("licence") or (encoder_info(name).licence if name in list_encoders() else None),
        "encoder_facts": {key: _mapping(own.get("encoder_facts")).get(key) for key in _ENCODER_FACTS} if own else {},
    }
    recipe, note = _recipe(features, stated, unread)
    return _FeatureSource(redacted(facts), recipe, note)


def _recipe(features: dict[str, Any], stated: dict[str, Any], unread: str) -> tuple[Recipe | None, str | None]:
    """The recipe whose fingerprint the run remembers; None when the features were not made by `smmil prepare`."""
    if features.get("recipe") is None:
        return None, None
    try:
        recipe = load_recipe(None, _mapping(stated.get("settings")))
    except ConfigError as problem:
        return None, f"no recipe.json: the settings in the bags are not of this version ({problem})"
    if stated.get("settings") and recipe.digest(str(features.get("encoder"))) == features["recipe"]:
        refuse_folders(recipe.settings(), "recipe of the features")
        return recipe, None
    reason = unread or "its bags do not hold the settings with that fingerprint"
    return None, redacted(f"no recipe.json: the run was trained on recipe {features['recipe']}, but {reason}")


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


FORMAT = 1
PARTS = ("train", "val", "test")
_OF_THE_MACHINE = {"device", "workers", "tensorboard", "loggers", "checkpoint_minutes"}
_OF_THE_SPLIT = {"fold", "folds", "val_share", "test_share", "test", "split_seed"}


@dataclass(frozen=True)
class _RunFacts:
    """Content of config.json, the model itself, the source of its features, and notes for the user."""

    config: dict[str, Any]
    trained: TrainedModel
    source: _FeatureSource
    notes: tuple[str, ...] = ()


def _run_facts(run_dir: str | Path, checkpoint: str, name: str | None, licence: str, trust_code: bool) -> _RunFacts:
    """Facts about a run for a package, without ids of cases, paths or anything of the machine."""
    run_dir = Path(run_dir)
    trained = load_trained(run_dir, checkpoint, trust_code=trust_code)
    settings, run = run_config(run_dir), _run_json(run_dir)
    split = {part: [] for part in PARTS} if settings is None else run_split(run_dir).to_dict()
    table, trouble = _table(settings, run)
    if table is not None and (strange := sorted({i for ids in split.values() for i in ids} - set(table.ids))):
        raise DataError(f"{run_dir / 'split.json'}: names {strange[0]!r}, which is not in {table.name}; restore it")
    bag = None if table is None else table.path_of(split["train"][0])
    source = _feature_source_of(trained.facts["features"], bag)
    hashes = trained.facts["config"], trained.facts["split"]
    config = {
        "format": FORMAT,
        "library_name": "smmil",
        "smmil_version": __version__,
        "name": redacted(name or f"{trained.facts['model']['name']}-{trained.weights[:8]}"),
        "licence": redacted(licence),
        "run": trained.weights if hashes[0] is None else digest(*map(str, hashes)),  # whichever checkpoint it is
        "model": _model(trained),
        **({"target": redacted(trained.facts["target"])} if "target" in trained.facts else {}),
        "weights": trained.weights,
        "features": source.facts,
        "training": _training(trained, settings, run, checkpoint) | {"cases": _sizes(split, table, run)},
    }
    return _RunFacts(config, trained, source, tuple(note for note in (source.note, trouble) if note))


def _run_json(run_dir: Path) -> dict[str, Any]:
    path = run_dir / "run.json"
    facts = read_json(path, dict) if path.exists() else {}
    if facts.get("status", "finished") != "finished":
        raise DataError(f"{run_dir}: the run is {facts['status']}, not finished; repeat smmil train to finish it")
    return facts


def _table(settings: TrainConfig | None, run: dict[str, Any]) -> tuple[Manifest | None, str | None]:
    """The manifest a run was trained on, if it can be read and is unchanged; else None and the reason."""
    if settings is None:
        return None, None
    missing = "labels and patients of the training cases are not stated"
    try:
        table = Manifest.read(settings.data.manifest).for_target(settings.target)
    except DataError as problem:
        return None, f"{missing}: {problem}"
    if table.digest() != _mapping(run.get("manifest")).get("digest"):
        return None, f"{missing}: {table.name} is not as it was in training"
    return table, None


def _model(trained: TrainedModel) -> dict[str, Any]:
    made, model = trained.facts["model"], trained.model
    count = made["n_classes"]
    return {
        "name": made["name"],
        "options": refuse_folders(made["options"], "options of the model"),
        "in_dim": made["in_dim"],
        "n_classes": count,
        **{key: made[key] for key in ("link", "covariates") if key in made},
        "classes": _outputs(trained),
        "score_kind": getattr(model, "score_kind", "attention logit"),
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def _outputs(trained: TrainedModel) -> list[str]:
    """What the model gives of a case, in words: its classes, or what it predicts in their place."""
    count, target = trained.facts["model"]["n_classes"], trained.facts.get("target")
    if target is None:
        return ["negative", "positive"] if count == 1 else [f"class {c}" for c in range(count)]
    if target["kind"] == "multilabel":
        return list(target["columns"])
    if target["kind"] == "ordinal":
        return [f"level {level}" for level in range(target["levels"])]
    return [target["columns"][0]] if target["kind"] == "regression" else [f"event until {t:g}" for t in target["edges"]]


def _training(
    trained: TrainedModel, settings: TrainConfig | None, run: dict[str, Any], checkpoint: str
) -> dict[str, Any]:
    facts, stated = trained.facts, {} if settings is None else settings.written()
    return redacted(
        {
            "checkpoint": checkpoint,
            "selected_by": facts.get("selected_by"),
            "epoch": facts["epoch"],
            "validation": {key: facts.get(key) for key in ("auroc", "loss", *_other_metric(facts))},
            "settings": {key: value for key, value in stated.get("training", {}).items() if key not in _OF_THE_MACHINE},
            "split": {key: value for key, value in stated.get("data", {}).items() if key in _OF_THE_SPLIT},
            "hashes": {
                "config": facts["config"],
                "split": facts["split"],
                "manifest": _mapping(run.get("manifest")).get("digest"),
            },
            "versions": facts.get("versions"),
            **({"corrections": facts["corrections"]} if "corrections" in facts else {}),
        }
    ) | {key: facts[key] for key in ("bags", "covariates") if key in facts}


def _other_metric(facts: dict[str, Any]) -> tuple[str, ...]:
    """Name of the metric that selected the weights of a target that is no class."""
    target = facts.get("target")
    return () if target is None else (target_of(target, "weights").metric,)


def _sizes(split: dict[str, list[str]], table: Manifest | None, run: dict[str, Any]) -> dict[str, Any]:
    """Number of cases of each part, and of patients and labels where the manifest is at hand; no names."""
    if run.get("bags") is None and not any(split.values()):
        return {}
    found: dict[str, dict[str, Any]] = {part: {"cases": len(split[part])} for part in PARTS}
    if table is None:
        return found
    for part, sizes in found.items():
        labels = Counter(str(table.labels[id_]) for id_ in split[part] if table.labels[id_] is not None)
        sizes["patients"] = len({table.groups[id_] for id_ in split[part]})
        sizes["labels"] = dict(sorted(labels.items()))
    return found


def _measure(
    folder: str | Path, weights: str, resamples: int = RESAMPLES, by: str = "case", aggregate: str | None = None
) -> dict[str, Any]:
    """Metrics of the predictions in a folder; an error when they were made by other weights than these."""
    predictions = judged_by({"": load_predictions(folder)}, by, aggregate)[""]
    others = sorted(p.id for p in predictions if p.meta.get("weights") != weights)
    if others:
        raise DataError(
            f"{folder}: {len(others)} of {len(predictions)} predictions were made by other weights; "
            "give those of the checkpoint that is packaged"
        )
    labelled = [p for p in predictions if is_labelled(p)]
    counted = [p for p in whole_patients(labelled) if is_labelled(p)]
    if not labelled:
        raise DataError(f"{folder}: no prediction has a label, so nothing can be measured; leave out --predictions")
    rows = [_row(labelled, stated, resamples) for stated in _stated_metrics(labelled)]
    splits = [p.meta.get("split") for p in predictions]
    kind = shared_target(labelled)
    positive = sum(bool(p.y) for p in counted) if kind == "class" else bag_metrics(labelled)["n_positive"]
    return {
        "parts": sorted({str((s.get("part") if isinstance(s, dict) else None) or "other cases") for s in splits}),
        "cases": len(counted),
        "positive_cases": positive,
        **({} if kind == "class" else {"target": kind}),
        "metrics": [row for row in rows if math.isfinite(row["value"])],
        "notes": list(dict.fromkeys(note for row in rows for note in row.pop("notes")))
        + patients_in_notes(predictions),
    }


def _stated_metrics(predictions: Sequence[Prediction]) -> list[dict[str, str]]:
    """Metrics a package states: those with a name on the hub; of instances where some are labelled and one map exists.

    A metric that needs a threshold of validation cases cannot be stated.
    """
    kind = shared_target(predictions)
    known = any(p.y_inst is not None and (p.y_inst >= 0).any() for p in predictions)
    one_map = known and all(p.scores.shape[1] == 1 for p in predictions)
    return [
        {"metric": m.name, "pool": pool, "name": m.with_pool(m.hub[1], pool), "type": m.hub[0]}
        for m in METRICS.values()
        if m.hub is not None and (kind in m.targets if m.level == "bag" else one_map and not m.needs_threshold)
        for pool in m.pools
    ]


def _row(predictions: Sequence[Prediction], stated: dict[str, str], resamples: int) -> dict[str, Any]:
    found = bootstrap_ci(predictions, stated["metric"], n=resamples, pool=stated["pool"])
    ends = {end: found[end] if math.isfinite(found[end]) else None for end in ("low", "high")}
    facts = {"level": found["level"], "patients": found["n_units"], "notes": found["notes"]}
    facts |= {"shortage": found["shortage"]} if found["shortage"] else {}
    return {**stated, "value": found["value"], **ends, **facts}

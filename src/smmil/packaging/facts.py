"""What is told about a run: a list of facts, each chosen; whatever else its folder holds stays there."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smmil import __version__
from smmil.config import TrainConfig
from smmil.data.manifest import Manifest
from smmil.errors import DataError
from smmil.files import digest, read_json
from smmil.packaging.features import FeatureSource, feature_source_of
from smmil.packaging.private import refuse_folders, told
from smmil.predict import TrainedModel, load_trained, run_config

FORMAT = 1
PARTS = ("train", "val", "test")
# Of the machine, not of the model.
_UNTOLD = {"device", "workers", "tensorboard", "checkpoint_minutes"}
_TOLD_OF_DATA = {"fold", "folds", "val_share", "test_share", "split_seed"}


@dataclass(frozen=True)
class RunFacts:
    """A run as a package tells it: the content of config.json, the model itself, and remarks for the user."""

    config: dict[str, Any]
    trained: TrainedModel
    source: FeatureSource
    notes: tuple[str, ...] = ()


def run_facts(run_dir: str | Path, checkpoint: str, name: str | None, licence: str) -> RunFacts:
    """Everything a package says about a run; no id, no path, nothing of the machine."""
    run_dir = Path(run_dir)
    trained, settings, run = load_trained(run_dir, checkpoint), run_config(run_dir), _run_json(run_dir)
    split = {part: [] for part in PARTS} if settings is None else read_json(run_dir / "split.json")
    table, trouble = _table(settings, run)
    bag = None if table is None else table.path_of(split["train"][0])
    source = feature_source_of(trained.facts["features"], bag)
    config = {
        "format": FORMAT,
        "library_name": "smmil",
        "smmil_version": __version__,
        "name": told(name or f"{trained.facts['model']['name']}-{trained.weights[:8]}"),
        "licence": told(licence),
        "run": run_id(trained),
        "model": _model(trained),
        "weights": trained.weights,
        "features": source.facts,
        "training": _training(trained, settings, run, checkpoint) | {"cases": _sizes(split, table, run)},
    }
    return RunFacts(config, trained, source, tuple(note for note in (source.note, trouble) if note))


def run_id(trained: TrainedModel) -> str:
    """Fingerprint of the run a model comes from, whichever of its checkpoints it is."""
    settings, split = trained.facts["config"], trained.facts["split"]
    return trained.weights if settings is None else digest(str(settings), str(split))


def _run_json(run_dir: Path) -> dict[str, Any]:
    path = run_dir / "run.json"
    facts = read_json(path) if path.exists() else {}
    if facts.get("status", "finished") != "finished":
        raise DataError(f"{run_dir}: the run is {facts['status']}, not finished; repeat smmil train to finish it")
    return facts


def _table(settings: TrainConfig | None, run: dict[str, Any]) -> tuple[Manifest | None, str | None]:
    """The manifest a run was trained on, if it can still be read and says what it said then."""
    if settings is None:
        return None, None
    untold = "labels and patients of the training cases are not told"
    try:
        table = Manifest.read(settings.data.manifest)
    except DataError as problem:
        return None, f"{untold}: {problem}"
    if table.digest() != run.get("manifest", {}).get("digest"):
        return None, f"{untold}: {table.name} is not as it was in training"
    return table, None


def _model(trained: TrainedModel) -> dict[str, Any]:
    made, model = trained.facts["model"], trained.model
    count = made["n_classes"]
    return {
        "name": made["name"],
        "options": refuse_folders(made["options"], "options of the model"),
        "in_dim": made["in_dim"],
        "n_classes": count,
        "classes": ["negative", "positive"] if count == 1 else [f"class {c}" for c in range(count)],
        "score_kind": getattr(model, "score_kind", "attention logit"),
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def _training(
    trained: TrainedModel, settings: TrainConfig | None, run: dict[str, Any], checkpoint: str
) -> dict[str, Any]:
    facts, stated = trained.facts, {} if settings is None else settings.model_dump()
    manifest = run.get("manifest")
    return told(
        {
            "checkpoint": checkpoint,
            "selected_by": facts.get("selected_by"),
            "epoch": facts["epoch"],
            "validation": {key: facts.get(key) for key in ("auroc", "loss")},
            "settings": {key: value for key, value in stated.get("training", {}).items() if key not in _UNTOLD},
            "split": {key: value for key, value in stated.get("data", {}).items() if key in _TOLD_OF_DATA},
            "hashes": {
                "config": facts["config"],
                "split": facts["split"],
                "manifest": manifest.get("digest") if isinstance(manifest, dict) else None,
            },
            "versions": facts.get("versions"),
        }
    )


def _sizes(split: dict[str, list[str]], table: Manifest | None, run: dict[str, Any]) -> dict[str, Any]:
    """Cases of each part, and where the table is at hand also patients and labels: numbers, never names."""
    if run.get("bags") is None and not any(split.values()):
        return {}
    return {part: {"cases": len(split[part]), **_counts(split[part], table)} for part in PARTS}


def _counts(ids: Iterable[str], table: Manifest | None) -> dict[str, Any]:
    if table is None:
        return {}
    labels = Counter(str(table.labels[id_]) for id_ in ids if table.labels[id_] is not None)
    return {"patients": len({table.groups[id_] for id_ in ids}), "labels": dict(sorted(labels.items()))}

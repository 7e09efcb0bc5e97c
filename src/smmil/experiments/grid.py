"""A study as a grid of training runs, each named by a hash of everything that decides its result."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import torch

from smmil.config import TrainConfig, checked
from smmil.data.manifest import Manifest
from smmil.errors import ConfigError, suggest
from smmil.experiments.datasets import _folds_to_train, _prepare, _PreparedSet
from smmil.experiments.results import ROTATE
from smmil.experiments.study import Dataset, Study, Synthetic, Variant
from smmil.files import digest, need_file
from smmil.models import create_model, model_options

# Options that make models large, with a size that is just enough; used where a model has the option and it is larger.
_SMALL = {
    "dim": 16,
    "att_dim": 8,
    "trans_dim": 16,
    "heads": 2,
    "layers": 2,
    "depth": 1,
    "landmarks": 4,
    "clusters": 4,
    "context_dim": 8,
    "hidden": 16,
    "queries": 2,
    "query_dim": 8,
    "reduced": 16,
    "level_dim": 8,
    "size": 12,
}
_SYNTHETIC: dict[str, dict[str, Any]] = {
    "slides": {"size": [12, 24], "dim": 6, "lesion": [0.1, 0.3]},
    "scans": {"slices": [8, 14], "dim": 6, "lesion": [0.2, 0.4]},
}
_IN_DIM = 8  # any width will do: what is checked are names and options


@dataclass(frozen=True)
class _PlannedRun:
    """One training: key, label, config, and the columns that identify it in the table of results."""

    key: str
    label: str
    config: TrainConfig
    facts: dict[str, Any]


@dataclass(frozen=True)
class _Grid:
    """Runs of a study whose data are available, a note for each data set or fold that is left out, and warnings."""

    runs: list[_PlannedRun]
    left_out: list[str]
    warnings: list[str]


def _make_grid(study: Study, data_folder: str | Path, *, only: Iterable[str] = ()) -> _Grid:
    """All runs of the study: data sets x variants x learning rates x seeds x folds.

    only  names of data sets to use; others are not looked at. Data sets whose variable is not set are left out with a
    note; that no data set remains is an error, as are two runs of equal content under different names, and folds
    that were asked for and do not exist.
    """
    wanted, left_out = _available(study, list(only))
    runs, warnings = list[_PlannedRun](), list[str]()
    for dataset in wanted:
        ready = _prepare(dataset, Path(data_folder))
        folds = _folds_to_train(dataset, ready, study.folds)
        left_out += folds.notes
        warnings += folds.warnings
        choices = product(study.variants, study.learning_rates, study.seeds, folds.numbers)
        runs += [_run(study, dataset, ready, *choice, rotate=folds.rotate) for choice in choices]
    first: dict[str, _PlannedRun] = {}
    for run in runs:
        other = first.setdefault(run.key, run)
        if other is not run:
            raise ConfigError(f"{other.label} and {run.label} are the same run; remove one of the two")
    return _Grid(runs, left_out, warnings)


def _available(study: Study, only: list[str]) -> tuple[list[Dataset], list[str]]:
    known = [d.name for d in study.datasets]
    for name in only:
        if name not in known:
            raise ConfigError(f"data set: unknown name {name!r}; {suggest(name, known)}")
    asked = [d for d in study.datasets if not only or d.name in only]
    there = [d for d in asked if d.missing is None]
    left_out = [f"{d.name}: left out, no data; give --data {d.missing}=manifest.csv" for d in asked if d.missing]
    if not there:
        raise ConfigError(f"{study.name}: no data set to train on ({'; '.join(left_out)})")
    return there, left_out


_OF_THE_DATA = {"folds", "val_share", "test_share", "test", "split_seed", "splits", "bags", "covariates"}


def _run(
    study: Study,
    dataset: Dataset,
    ready: _PreparedSet,
    variant: Variant,
    lr: float,
    seed: int,
    fold: int,
    *,
    rotate: bool = False,
) -> _PlannedRun:
    label = f"{dataset.name} · {variant.name} · lr {lr:g} · seed {seed} · fold {fold}"
    content = _run_settings(study, dataset, ready, variant, lr, seed, fold)
    config = checked(TrainConfig, content, f"{study.name}: {label}")
    facts = {
        "dataset": dataset.dataset or dataset.name,
        "extractor": dataset.extractor,
        "set": dataset.name,
        "group": variant.group,
        "family": variant.family,
        "variant": variant.name,
        "lr": lr,
        "seed": seed,
        "fold": fold,
        **({"test": ROTATE} if rotate else {}),
    }
    return _PlannedRun(_run_name(config, ready), label, config, facts)


def _run_settings(
    study: Study, dataset: Dataset, ready: _PreparedSet, variant: Variant, lr: float, seed: int, fold: int
) -> dict[str, Any]:
    """Settings of one run, by section."""
    return {
        "data": {
            "manifest": str(ready.manifest),
            "fold": fold,
            **dataset.model_dump(include=_OF_THE_DATA),
        },
        "model": {"name": variant.model, "options": variant.options},
        "training": _training(study, dataset, variant) | {"lr": lr, "seed": seed},
    }


def _run_name(config: TrainConfig, ready: _PreparedSet) -> str:
    """Digest of the settings that decide what is learned, of the content of the data and of a file of splits."""
    splits = need_file(Path(config.data.splits)).read_bytes() if config.data.splits else b""
    known = [Manifest.read(ready.manifest).digest()] if config.data.covariates else []
    return digest(config.digest(), ready.digest, splits, *known)[:20]


def _training(study: Study, dataset: Dataset, variant: Variant) -> dict[str, Any]:
    """Merge training settings from general to specific; one thread, so that results do not depend on the machine."""
    of_set = [dataset.training_of.get(name, {}) for name in (variant.group, variant.name)]
    return {"threads": 1} | study.training | dataset.training | of_set[0] | of_set[1] | variant.training


def toy_study(study: Study, *, most_sets: int = 2) -> Study:
    """The study with tiny synthetic bags under the names of its data sets, small models, two folds and two epochs.

    At most `most_sets` data sets are kept, of different kinds where there are; numbers mean nothing.
    """
    firsts = list({d.kind: d for d in reversed(study.datasets)}.values())[::-1]
    kept = (firsts + [d for d in study.datasets if d not in firsts])[:most_sets]
    return study.model_copy(
        update={
            "name": f"{study.name}-toy",
            "datasets": [_tiny_set(d, i) for i, d in enumerate(d for d in study.datasets if d in kept)],
            "variants": [_tiny_model(v) for v in study.variants],
            "learning_rates": study.learning_rates[:1],
            "folds": [0, 1],
            "seeds": study.seeds[:2],
            "caveat": "Toy size, numbers mean nothing",
            "training": {**study.training, "epochs": 2, "warmup_epochs": 1},
        }
    )


def _tiny_set(dataset: Dataset, number: int) -> Dataset:
    options = {**dataset.synthetic_options, **_SYNTHETIC[dataset.kind]}
    tiny = Synthetic(kind=dataset.kind, bags=20, seed=number, options=options)
    gone: dict[str, Any] = {"manifest": None, "missing": None, "splits": None, "split_seed": 0}
    gone |= {"bags": "case", "covariates": None}
    return dataset.model_copy(update={**gone, "synthetic": tiny, "folds": 2, "val_share": 0.5, "test_share": 0.3})


def _tiny_model(variant: Variant) -> Variant:
    known = model_options(variant.model)
    numbers = {k: small for k, small in _SMALL.items() if type(known.get(k)) is int and known[k] > small}
    return variant.model_copy(update={"options": {**numbers, **variant.options}})


def check_models(study: Study, where: str) -> None:
    """Refuse a variant whose model or options do not exist; `where` names the config in the message.

    Models of smmil are built once, so that values are checked too. Of external models only names are checked: its
    constructor may insist on the width of its own features.
    """
    for variant in study.variants:
        try:
            _check_buildable(variant.model, json.dumps(variant.options, sort_keys=True))
        except ConfigError as problem:
            try:
                known = ", ".join(model_options(variant.model)) or "none"
                allowed = f" (options of {variant.model}: {known})"
            except ConfigError:
                allowed = ""  # the model itself is unknown
            raise ConfigError(f"{where}: variant {variant.name!r}: {problem}{allowed}") from None


@cache
def _check_buildable(model: str, options_text: str) -> None:
    options = json.loads(options_text)
    if ":" in model:
        known = model_options(model)
        for wrong in (option for option in options if option not in known):
            raise ConfigError(f"model {model}: unknown option {wrong!r}; {suggest(wrong, known)}")
        return
    with torch.random.fork_rng(devices=[]):
        create_model(model, _IN_DIM, **options)

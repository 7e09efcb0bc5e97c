"""A study to single training runs, each named by everything that decides its result."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smmil.config import TrainConfig, checked, config_hash
from smmil.errors import ConfigError, suggest
from smmil.experiments.datasets import Ready, prepare
from smmil.experiments.folds import folds_to_train
from smmil.experiments.study import Dataset, Study, Variant
from smmil.files import digest


@dataclass(frozen=True)
class Run:
    """One training: what it is called, what decides it, and the facts that stand in its row of the results."""

    key: str
    label: str
    config: TrainConfig
    facts: dict[str, Any]


@dataclass(frozen=True)
class Grid:
    """The runs of a study whose data are there, and a sentence for each data set or fold that is left out."""

    runs: list[Run]
    left_out: list[str]


def make_grid(study: Study, data_folder: str | Path, *, only: Iterable[str] = ()) -> Grid:
    """All runs of the study: data sets x variants x learning rates x seeds x folds.

    only  names of data sets to use; others are not looked at. Data sets whose variable is not set are left out and
    said to be; that no data set remains is an error, as are two runs of equal content under different names, and folds
    that were asked for and do not exist.
    """
    wanted, left_out = _available(study, list(only))
    runs = []
    for dataset in wanted:
        ready = prepare(dataset, Path(data_folder))
        folds, told = folds_to_train(dataset, ready, study.folds)
        left_out += told
        for variant in study.variants:
            runs += _runs(study, dataset, ready, variant, folds)
    _refuse_duplicates(runs)
    return Grid(runs, left_out)


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


def _runs(study: Study, dataset: Dataset, ready: Ready, variant: Variant, folds: Sequence[int]) -> list[Run]:
    choices = [(lr, seed, fold) for lr in study.learning_rates for seed in study.seeds for fold in folds]
    return [_run(study, dataset, ready, variant, *choice) for choice in choices]


def _run(study: Study, dataset: Dataset, ready: Ready, variant: Variant, lr: float, seed: int, fold: int) -> Run:
    label = f"{dataset.name} · {variant.name} · lr {lr:g} · seed {seed} · fold {fold}"
    content = {
        "data": {
            "manifest": str(ready.manifest),
            "fold": fold,
            **dataset.model_dump(include={"folds", "val_share", "test_share", "split_seed", "splits"}),
        },
        "model": {"name": variant.model, "options": variant.options},
        "training": _training(study, dataset, variant) | {"lr": lr, "seed": seed},
    }
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
    }
    return Run(run_key(config, ready.digest), label, config, facts)


def run_key(config: TrainConfig, data_digest: str) -> str:
    """Name of a run: the settings that decide what is learned, the content of the data and of a file of splits."""
    splits = Path(config.data.splits).read_bytes() if config.data.splits else b""
    return digest(config_hash(config), data_digest, splits)[:20]


def _training(study: Study, dataset: Dataset, variant: Variant) -> dict[str, Any]:
    """Settings from the general to the special; one thread, so that no result depends on where it is computed."""
    layers: list[Mapping[str, Any]] = [
        {"threads": 1},
        study.training,
        dataset.training,
        dataset.training_of.get(variant.group, {}),
        dataset.training_of.get(variant.name, {}),
        variant.training,
    ]
    return {key: value for layer in layers for key, value in layer.items()}


def _refuse_duplicates(runs: list[Run]) -> None:
    first: dict[str, Run] = {}
    for run in runs:
        other = first.setdefault(run.key, run)
        if other is not run:
            raise ConfigError(f"{other.label} and {run.label} are the same run; remove one of the two")

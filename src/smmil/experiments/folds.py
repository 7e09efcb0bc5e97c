"""Which folds of a data set can be trained: its splits are looked at once, before the first training."""

from collections.abc import Sequence

from smmil.data.manifest import Manifest
from smmil.data.splits import PARTS, Split, load_splits, make_splits, refuse_leaks
from smmil.errors import ConfigError, DataError
from smmil.experiments.datasets import Ready
from smmil.experiments.study import Dataset


def folds_to_train(dataset: Dataset, ready: Ready, asked: Sequence[int] | None) -> tuple[list[int], list[str]]:
    """Folds of the data set that are trained, and a sentence where these are not all that one would expect.

    asked  folds the study asks for. Those, and `folds` of a data set, must exist; the default number of folds is
    lowered to what a file of splits or the marks of the manifest give.
    """
    manifest = Manifest.read(ready.manifest)
    try:
        splits = splits_of(dataset, manifest)
        folds, told = _existing(dataset, len(splits), asked)
        for fold in folds:
            _check_parts(manifest, splits[fold], fold)
    except DataError as problem:
        raise DataError(f"data set {dataset.name!r}: {problem}") from None
    return folds, told


def splits_of(dataset: Dataset, manifest: Manifest) -> list[Split]:
    """All splits of the data set: those of its file, those its manifest marks, or drawn ones."""
    if dataset.splits is not None:
        return load_splits(dataset.splits)
    shares = {"val_share": dataset.val_share, "test_share": dataset.test_share}
    return make_splits(manifest, folds=dataset.folds, seed=dataset.split_seed, **shares)


def _existing(dataset: Dataset, there: int, asked: Sequence[int] | None) -> tuple[list[int], list[str]]:
    has = (
        f"{_source(dataset, there)} {'one split, fold 0' if there == 1 else f'{there} splits, folds 0 to {there - 1}'}"
    )
    if asked is not None:
        absent = [fold for fold in asked if fold >= there]
        if absent:
            raise ConfigError(
                f"data set {dataset.name!r}: fold {absent[0]} was asked for, but {has}; change the folds of the study"
            )
        return list(asked), []
    if dataset.folds > there:
        if "folds" in dataset.model_fields_set:
            raise ConfigError(
                f"data set {dataset.name!r}: folds: {dataset.folds} was asked for, but {has}; leave it out"
            )
        return list(range(there)), [f"{dataset.name}: {has}; no other fold is trained"]
    unused = [f"{dataset.name}: {has}; {dataset.folds} are trained, give the study folds: [...] for others"]
    return list(range(dataset.folds)), unused if there > dataset.folds else []


def _source(dataset: Dataset, there: int) -> str:
    """Who says how many splits there are; drawn ones are as many as the data set asks for."""
    if dataset.splits is not None:
        return f"{dataset.splits} has"
    return "it has" if there == dataset.folds else f"{dataset.manifest} marks every row, which gives"


def _check_parts(manifest: Manifest, split: Split, fold: int) -> None:
    """No patient in two parts, and something to train on, to choose by and to test."""
    refuse_leaks(manifest, split)
    for part in PARTS:
        if not getattr(split, part):
            raise DataError(f"{manifest.name}: fold {fold} has no {part} bags; every fold of a study needs some")

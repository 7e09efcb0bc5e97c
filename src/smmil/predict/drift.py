"""The drift summary of a run: fitted on its training and validation bags, kept in one file, compared with new bags."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from smmil.data.manifest import Manifest
from smmil.data.splits import run_split
from smmil.errors import DataError
from smmil.evaluate.drift import DriftCase, DriftSummary, fit_drift
from smmil.files import need_file
from smmil.formats import read_provenance
from smmil.predict.cases import (
    _drift_case,
    _own_table,
    _patients,
    _refuse_other_features,
    feature_source,
    run_config,
)
from smmil.prediction import Prediction
from smmil.weights import read_weights, save_weights

DRIFT = "drift.safetensors"
_LARGEST = 512 << 20  # bytes of a file


def save_drift(summary: DriftSummary, path: str | Path) -> None:
    """Write a summary as safetensors with a seal over all of it, atomically."""
    tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in summary.arrays().items()}
    save_weights(path, tensors, summary.facts())


def read_drift(path: str | Path) -> DriftSummary:
    """The summary in a file of `save_drift`; one that was changed or is none is refused."""
    if not os.path.exists(path):
        raise DataError(f"{path}: no such file; smmil drift RUN writes it")
    if need_file(Path(path)).stat().st_size > _LARGEST:
        raise DataError(f"{path}: more than {_LARGEST >> 20} MiB is no drift summary; write it with smmil drift")
    tensors, facts = read_weights(path)
    try:
        return DriftSummary.of({name: tensor.numpy() for name, tensor in tensors.items()}, facts)
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        reason = " ".join(str(problem).split())[:200]
        raise DataError(f"{path}: not a drift summary of this version ({reason}); write it with smmil drift") from None


def fit_run_drift(
    run_dir: str | Path,
    *,
    manifest: str | Path | None = None,
    level: float = 0.05,
    progress: Callable[[int, int], None] | None = None,
) -> DriftSummary:
    """The summary of the bags that trained and validated a run; with a manifest, of all its bags instead."""
    run_dir = Path(run_dir)
    if manifest is None:
        table, split = _own_table(run_config(run_dir), run_dir), run_split(run_dir)
        ids = [*split.train, *split.val]
    else:
        table = Manifest.read(manifest)
        ids = list(table.ids)
    missing = sorted(set(ids) - set(table.ids))
    if missing:
        raise DataError(f"{table.name}: {len(missing)} bags of {run_dir} are not in it, such as {missing[0]}")
    table.check_table(training=False)
    source = feature_source(table, ids)
    groups = {id_: table.groups[id_] for id_ in ids}
    return fit_drift(groups, lambda id_: _read(table, id_), level=level, source=source, progress=progress)


def _read(table: Manifest, id_: str) -> DriftCase:
    return _drift_case(table.bag(id_, instance_labels=False), read_provenance(table.path_of(id_)))


def examine_table(
    summary: DriftSummary,
    table: Manifest,
    ids: Sequence[str] | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[list[Prediction], dict[str, str]]:
    """Each bag as a Prediction that knows no class but carries its drift, and reasons for bags that cannot be read.

    Probabilities and scores of these are 0: nothing was predicted.
    """
    ids = list(table.ids if ids is None else ids)
    _refuse_other_features({"features": summary.source}, table, ids)
    patients, found, failed = _patients(table), [], {}
    for count, id_ in enumerate(ids, 1):
        try:
            case = _read(table, id_)
            plain = Prediction(id_, np.zeros(1), np.zeros(len(case.x), np.float32), case.coords, case.frame)
            found.append(summary.applied(replace(plain, meta={**patients.get(id_, {})}), case))
        except DataError as problem:
            failed[id_] = str(problem)
        if progress is not None:
            progress(count, len(ids))
    if not found:
        raise DataError(f"{table.name}: none of its bags can be read: {next(iter(failed.values()), 'it has none')}")
    return found, failed

"""Embeddings: the vector that a model's head reads of a bag, in Python and as a Parquet table of a run's cases."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from smmil.bag import Bag, BagBatch
from smmil.errors import ConfigError, DataError
from smmil.files import read_parquet, replacing
from smmil.nn.covariates import WithCovariates
from smmil.predict.cases import _OpenedRun, _patients, _refuse_other_features, bags_to_read
from smmil.predict.inference import outputs
from smmil.runtime import choose_device, reproducible

_FACTS = ("id", "level", "group", "part", "model")
_SAVED_EVERY = 200  # cases between two writes of the table


def embed(model: nn.Module, bags: Iterable[Bag | BagBatch], *, device: torch.device | str | None = None) -> np.ndarray:
    """The vector (b, v) of every bag before the head of the model: eval mode, no gradients, one bag at a time.

    It is what the layer `head` reads; a model may name another with `head_name`. A head that reads one vector per class
    (several branches of CLAM, DSMIL) gives them one after the other; where it reads instances (mean_pool, max_pool) the
    model's `bag_vectors` says what belongs to the bag. A linear head of the vector gives the logits.
    """
    return np.concatenate([vectors.numpy() for vectors in _vectors(model, bags, device)])


def _vectors(model: nn.Module, bags: Iterable[Bag | BagBatch], device: torch.device | str | None) -> Iterator[Tensor]:
    inner = model.model if isinstance(model, WithCovariates) else model
    name = getattr(inner, "head_name", "head")
    try:
        head = inner.get_submodule(name)
    except AttributeError:
        raise ConfigError(
            f"{type(inner).__name__}: has no layer {name!r}, whose input an embedding is; name it in the attribute "
            "head_name of the model"
        ) from None
    with _inputs_of(head) as seen:
        for batch, _ in outputs(model, bags, device):
            if hasattr(inner, "bag_vectors"):
                with torch.no_grad():
                    rows = inner.bag_vectors(seen[-1], batch.to(seen[-1].device))  # type: ignore[operator]
            else:
                rows = torch.stack(seen).mean(0)  # of several cuts of a bag (dtfd_mil), else of one
            seen.clear()
            if rows.shape[0] != len(batch):
                raise ConfigError(
                    f"{type(inner).__name__}: its layer {name!r} reads {rows.shape[0]} rows of {len(batch)} bags; add "
                    "a method bag_vectors(rows, batch) that makes one vector of each bag"
                )
            yield rows.flatten(1).float().cpu()


@contextmanager
def _inputs_of(layer: nn.Module) -> Iterator[list[Tensor]]:
    """Collects what a layer reads inside the block."""
    seen: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
    try:
        yield seen
    finally:
        hook.remove()


@dataclass(frozen=True)
class Embedded:
    """Outcome of `embed_run`: rows computed now, rows kept from before, cases that failed and why."""

    written: int
    kept: int
    failed: dict[str, str]


def embed_run(
    run_dir: str | Path,
    path: str | Path,
    *,
    manifest: str | Path | None = None,
    part: str | None = None,
    checkpoint: str = "best",
    device: str = "auto",
    progress: Callable[[int, int], None] | None = None,
    trust_code: bool | str = False,
) -> Embedded:
    """Write a Parquet table with one row per case and one per patient; the options are those of `predict_run`.

    Columns: id, level (case or patient), group (first id of the patient's cases), part of the run's split, model
    (digest of the weights), e0, e1, …. A patient's vector is the mean over the cases here; of a model of patients' bags
    it is that of the bag, and there are no rows of cases. Vectors of the same weights that the table holds are kept,
    and it is written every 200 cases, so an interrupted call can simply be repeated; at the end it holds the cases that
    were asked for. In memory are one bag and the table.
    """
    path = Path(path)
    if path.suffix.lower() != ".parquet":
        raise ConfigError(f"--embeddings {path}: expected the name of a .parquet file")
    run = _OpenedRun.open(run_dir, manifest, part, checkpoint, trust_code)
    _refuse_other_features(run.trained.facts, run.table, run.ids)
    bags = bags_to_read(run.trained, run.table, run.ids)
    by_patient = run.trained.facts.get("bags") == "patient"
    level = "patient" if by_patient else "case"
    groups = {id_: facts["group"] for id_, facts in _patients(run.table).items()}
    found = _stored(path, run.trained.weights, level, set(bags.ids))
    kept, failed, model = len(found), dict[str, str](), run.trained.model.to(choose_device(device))

    def rows() -> list[_Row]:
        """Facts and vectors of what is done, in the order of the cases."""
        done = [id_ for id_ in bags.ids if id_ in found]
        parts = {id_: run.parts.get(bags.members[id_][0], "") for id_ in done}
        weights = run.trained.weights
        return [([id_, level, groups.get(id_, id_), parts[id_], weights], found[id_]) for id_ in done]

    with reproducible(run.origin.threads):
        for count, id_ in enumerate(bags.ids, 1):
            if id_ not in found:
                try:
                    found[id_] = embed(model, [bags.bag(id_, instance_labels=False)])[0]
                except DataError as problem:
                    failed[id_] = str(problem)
            if found and count % _SAVED_EVERY == 0:
                _write(path, rows())
            if progress is not None:
                progress(count, len(bags.ids))
    if not found:
        raise DataError(f"{path}: no case could be read, such as {next(iter(failed.values()))}")
    _write(path, rows() + ([] if by_patient else _patient_rows(rows(), groups)))
    return Embedded(len(found) - kept, kept, failed)


_Row = tuple[list[Any], np.ndarray]


def _patient_rows(rows: Sequence[_Row], groups: dict[str, str]) -> list[_Row]:
    """The mean vector of every patient who is named, in the order of their first case."""
    members: dict[str, list[_Row]] = {}
    for row in rows:
        if row[0][0] in groups:
            members.setdefault(groups[row[0][0]], []).append(row)
    found = []
    for key, mine in members.items():
        total = np.stack([vector for _, vector in mine]).astype(np.float64).sum(0)
        found.append(([key, "patient", key, *mine[0][0][3:]], (total / len(mine)).astype(np.float32)))
    return found


def _write(path: Path, rows: Sequence[_Row]) -> None:
    facts = pd.DataFrame([facts for facts, _ in rows], columns=list(_FACTS))
    vectors = np.stack([vector for _, vector in rows])
    numbers = pd.DataFrame(vectors, columns=[f"e{k}" for k in range(vectors.shape[1])])
    with replacing(path) as temporary:
        pd.concat([facts, numbers], axis=1).to_parquet(
            temporary, index=False, engine="pyarrow", write_page_checksum=True
        )


def _stored(path: Path, weights: str, level: str, ids: set[str]) -> dict[str, np.ndarray]:
    """Vectors of this model and level that a table holds, by id; a table of another model is refused."""
    if not path.exists():
        return {}
    try:
        table = read_parquet(path)
    except (OSError, ValueError, MemoryError, RuntimeError) as problem:
        reason = " ".join(str(problem).split())[:200]
        raise DataError(f"{path}: cannot be read ({reason}); move it away to embed everything again") from None
    names, facts = [str(column) for column in table.columns], len(_FACTS)
    if tuple(names[:facts]) != _FACTS or names[facts:] != [f"e{k}" for k in range(len(names) - facts)]:
        raise DataError(f"{path}: is no table of embeddings; choose another name for --embeddings")
    kinds = [str(table[name].dtype) for name in names[facts:]]
    if set(kinds) - {"float32"} or not all(isinstance(cell, str) for name in _FACTS for cell in table[name]):
        raise DataError(f"{path}: holds other than names and numbers; choose another name for --embeddings")
    if set(table["model"]) - {weights}:
        raise DataError(f"{path}: holds embeddings of another model; choose another name for --embeddings")
    held = table[(table["level"] == level) & table["id"].isin(ids)]
    vectors = held[names[facts:]].to_numpy(np.float32)
    return {str(id_): v for id_, v in zip(held["id"], vectors, strict=True) if np.isfinite(v).all()}

"""Data sets made from another one to see whether a result can be trusted: random labels, and positions only."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from smmil.bag import Bag
from smmil.data.manifest import Manifest
from smmil.data.splits import Split, save_splits
from smmil.errors import DataError
from smmil.experiments.datasets import Ready
from smmil.experiments.folds import splits_of
from smmil.experiments.study import Dataset
from smmil.files import digest, replacing
from smmil.formats import write_bag

RANDOM, POSITIONS = "random labels", "positions only"


def random_labels(dataset: Dataset, ready: Ready, folder: Path, seed: int = 0) -> Dataset:
    """The same bags and splits, with the labels of everything but the test cases dealt out anew.

    Whatever a model still finds in the test cases, it has not learned from labels. Instance labels of training cases
    are made unknown, since they would contradict the new ones.
    """
    table = Manifest.read(ready.manifest)
    splits = splits_of(dataset, table)
    place = folder / f"random-{digest(ready.digest, repr(splits), str(seed))[:12]}"
    test = {id_ for split in splits for id_ in split.test}
    others = [id_ for id_ in sorted(table.ids) if id_ not in test]
    dealt = np.random.default_rng(seed).permutation(np.array([table.labels[i] for i in others]))
    labels = {**table.labels, **dict(zip(others, dealt.tolist(), strict=True))}
    rows = [_row(table, id_, str(labels[id_]), _unknown(table, id_, place, id_ in test)) for id_ in sorted(table.ids)]
    return _written(dataset, f"{dataset.name} ({RANDOM})", place, rows, splits)


def positions_only(dataset: Dataset, ready: Ready, folder: Path) -> Dataset:
    """The same cases and splits with coordinates in place of features, scaled to [0, 1] in each case.

    If a model classifies or localizes with these, position is a shortcut: the label can be read from where things are.
    """
    table = Manifest.read(ready.manifest)
    splits = splits_of(dataset, table)
    place = folder / f"positions-{digest(ready.digest, repr(splits))[:12]}"
    rows = []
    for number, id_ in enumerate(sorted(table.ids)):
        path = place / "bags" / f"{number:06d}.h5"
        if not path.exists():
            bag = position_bag(table.bag(id_))
            provenance = {"encoder": f"positions-{bag.x.shape[1]}"}
            write_bag(path, bag, graph="none" if bag.graph is None else "edges", provenance=provenance)
        rows.append(_row(table, id_, str(table.labels[id_]), _sidecar(table, id_)) | {"path": str(path.absolute())})
    return _written(dataset, f"{dataset.name} ({POSITIONS})", place, rows, splits)


def position_bag(bag: Bag) -> Bag:
    """The bag with its coordinates, scaled to [0, 1] along each axis, as its only features."""
    if bag.coords is None:
        raise DataError(f"{bag.id}: has no coordinates; the position-only baseline needs them")
    place = bag.coords.double()
    low, high = place.amin(0), place.amax(0)
    x = (place - low) / torch.where(high > low, high - low, torch.ones_like(high))
    return replace(bag, x=x.float())


def _row(table: Manifest, id_: str, label: str, sidecar: str) -> dict[str, str]:
    path = str(table.path_of(id_).absolute())
    return {"id": id_, "path": path, "label": label, "group": table.groups[id_], "instance_labels": sidecar}


def _sidecar(table: Manifest, id_: str) -> str:
    path = table.instance_labels_of(id_)
    return "" if path is None else str(path.absolute())


def _unknown(table: Manifest, id_: str, place: Path, is_test: bool) -> str:
    """The instance labels of a test case as they are; for others a file that says of every instance: unknown."""
    if is_test:
        return _sidecar(table, id_)
    path = place / "labels" / f"{digest(id_)[:20]}.npy"
    if not path.exists():
        with replacing(path) as temporary:
            np.save(temporary, np.full(table.bag(id_).n, -1, dtype=np.int8), allow_pickle=False)
    return str(path.absolute())


def _written(dataset: Dataset, name: str, place: Path, rows: list[dict[str, str]], splits: list[Split]) -> Dataset:
    """The derived set with its table and splits on disk; nothing of it stands beside the paper's numbers."""
    Manifest(pd.DataFrame(rows), place).write(place / "manifest.csv")
    save_splits(place / "splits.json", splits)
    files = {"manifest": str((place / "manifest.csv").absolute()), "splits": str((place / "splits.json").absolute())}
    return dataset.model_copy(update={"name": name, "dataset": name, "synthetic": None, **files})

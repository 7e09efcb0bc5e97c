"""Bags of handwritten digits on a lattice: positive when a 9 is among them (scikit-learn's digits of 8 × 8 pixels).

A sanity check that nobody drew for smoothing: instances are real images, single ones can be told, and the same digits
lie scattered or together. Scattered nines have neighbours that say nothing; a model that smooths gains nothing there.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from smmil.bag import Bag
from smmil.data.manifest import Manifest
from smmil.data.splits import Split, save_splits
from smmil.errors import ConfigError
from smmil.frame import Frame
from smmil.graph import grid_graph
from smmil.synthetic.features import write_synthetic
from smmil.synthetic.slides import _between, _blobs, _rng, _tissue

_FRAME = Frame(patch=(8, 8))
_NINE = 9


def digit_bags(
    n_bags: int,
    *,
    seed: int = 0,
    size: tuple[int, int] = (30, 50),
    nines: tuple[int, int] = (1, 6),
    together: bool = False,
    parts: int = 5,
) -> list[Bag]:
    """Bags of digits, every second one with nines; x holds the 64 pixels from 0 to 1, y_inst whether it is a 9.

    size      least and largest number of digits        nines     least and largest number of nines in positive bags
    together  nines touch each other, else they lie anywhere
    parts     bag i draws from part i % parts of the digits, and from no other: bags of different parts share no image
    """
    from sklearn.datasets import load_digits

    if n_bags < 1 or parts < 2 or not 1 <= nines[0] <= nines[1] < size[0] <= size[1] <= 1500 // parts:
        raise ConfigError(f"digits: {n_bags} bags, size={size}, nines={nines}, parts={parts}: no such set")
    images, digits = load_digits(return_X_y=True)
    return [_bag(images / 16, digits, index, seed, size, nines, together, parts) for index in range(n_bags)]


def _bag(
    images: np.ndarray,
    digits: np.ndarray,
    index: int,
    seed: int,
    size: tuple[int, int],
    nines: tuple[int, int],
    together: bool,
    parts: int,
) -> Bag:
    rng = _rng(seed, index)
    mask, y = _tissue(rng, _between(rng, size)), index // parts % 2
    truth, n = np.zeros(int(mask.sum()), dtype=bool), int(mask.sum())
    if y:
        count = _between(rng, nines)
        truth = _blobs(rng, mask, count)[mask] if together else np.isin(np.arange(n), rng.permutation(n)[:count])
    own = np.arange(index % parts, len(digits), parts)
    drawn = np.empty(n, dtype=np.int64)
    for wanted in (True, False):
        rows = own[(digits[own] == _NINE) == wanted]
        drawn[truth == wanted] = rng.choice(rows, int((truth == wanted).sum()), replace=False)
    coords = torch.from_numpy(np.argwhere(mask)[:, ::-1] * 8)
    x = torch.from_numpy(images[drawn].astype(np.float32))
    graph = grid_graph(coords, _FRAME.step, check=False)
    return Bag(f"digits_{index:04d}", x, coords, _FRAME, graph, y, torch.from_numpy(truth.astype(np.int64)))


def write_digits(folder: str | Path, bags: Sequence[Bag], *, parts: int = 5) -> Path:
    """Write bags of digits, manifest.csv and splits.json: fold f tests part f, validates on the next, trains on others.

    `parts` as the bags were drawn with. Gives the path of the manifest.
    """
    table = Manifest.read(write_synthetic(folder, bags, dtype="float32")).table
    Manifest(table.assign(group=table["id"]), Path(folder)).write(Path(folder) / "manifest.csv")
    of = [tuple(bag.id for index, bag in enumerate(bags) if index % parts == part) for part in range(parts)]
    rest = [tuple(i for p in range(parts) if p not in (f, (f + 1) % parts) for i in of[p]) for f in range(parts)]
    save_splits(Path(folder) / "splits.json", [Split(rest[f], of[(f + 1) % parts], of[f]) for f in range(parts)])
    return Path(folder) / "manifest.csv"

"""Synthetic slides and scans as feature bags with known truth.

The generating model, in full. An "encoder" that depends on `dim` alone gives four tissue directions t_k (length 2), and
a lesion direction v (length 1), all random, so nearly orthogonal. Instance i of a bag gets

    x_i = sum_k w_ik t_k + b + 3.5 contrast s_i m_i v + noise e_i,      e_i ~ N(0, I)

w_i   mixture of tissue types, smooth over the tissue: what neighbours share without any meaning for the label
b     shift of the whole bag (staining, scanner), N(0, 0.3² I)
m_i   1 in a lesion, and in distractors; 0 otherwise
s_i   strength of the finding in this instance, uniform in 0.6..1.4

Lesions exist in positive bags only and are connected. Distractors look like a lesion instance but are isolated (next to
no lesion and no other distractor), in negative and positive bags alike; their instance label is 0. They reward models
that use neighbours, as stains and artefacts do on real slides: with distractors=0 only noise remains, and the
lesions are still connected.

How hard it is: ranked by the true direction v, single instances reach an AUROC of 0.98. The factor 3.5 was chosen once
so that ABMIL, which ignores neighbours, learns something from about a hundred bags (with 2.5 it hardly did). No model
that uses neighbours was trained before it was fixed, but one number that uses them was seen: the largest projection on
v after averaging over neighbours tells positive from negative bags with an AUROC of 0.995 at 2.5 and 0.9996 at 3.5,
against 0.88 without averaging at both. So the set rewards smoothing; do not read a model's rank on it as evidence.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.ndimage import gaussian_filter

from smmil.bag import Bag
from smmil.data.manifest import Manifest
from smmil.errors import ConfigError, DataError, check_choice
from smmil.formats import write_bag
from smmil.frame import Frame
from smmil.graph import chain_graph, grid_graph
from smmil.synthetic.slides import _between, _blobs, _is_positive, _isolated_cells, _rng, _save_labels, _tissue

_TISSUES = 4
_SLIDE_FRAME = Frame(patch=(512, 512), spacing=(0.5, 0.5), unit="um")
_SCAN_FRAME = Frame(patch=(1,), spacing=(5.0,), unit="mm")


def synthetic_slides(
    n_bags: int,
    *,
    seed: int = 0,
    size: tuple[int, int] = (200, 600),
    dim: int = 64,
    lesion: tuple[float, float] = (0.02, 0.15),
    contrast: float = 1.0,
    noise: float = 1.0,
    positive: float = 0.5,
    distractors: float = 0.01,
) -> list[Bag]:
    """Slide-like bags: patches on tissue-shaped lattices, blob lesions, one grid graph each.

    size         least and largest number of patches           lesion       least and largest share of the tissue
    contrast     strength of lesions, noise of instances       positive     share of positive bags
    distractors  share of lone patches that look like lesions
    Bag i depends on the seed and i only, not on n_bags. Coordinates are level-0 pixels of patches 512 px wide.
    """
    _check(n_bags, size, lesion, positive, distractors)
    bags = []
    for index in range(n_bags):
        rng = _rng(seed, index)
        mask = _tissue(rng, _between(rng, size))
        y = _is_positive(index, positive)
        sick = _blobs(rng, mask, _lesion_size(rng, lesion, int(mask.sum()))) if y else np.zeros_like(mask)
        alike = _isolated_cells(rng, mask, sick, round(distractors * mask.sum()))
        weights = _tissue_weights(rng, mask.shape, sigma=4.0)[:, mask].T
        x = _features(rng, weights, (sick | alike)[mask], dim, contrast, noise)
        cells = np.argwhere(mask)[:, ::-1]
        coords = torch.from_numpy(cells * 512 + rng.integers(0, 20_000, 2))
        graph = grid_graph(coords, _SLIDE_FRAME.step, check=False)
        labels = torch.from_numpy(sick[mask].astype(np.int64))
        bags.append(Bag(f"slide_{index:04d}", x, coords, _SLIDE_FRAME, graph, y, labels))
    return bags


def synthetic_scans(
    n_bags: int,
    *,
    seed: int = 0,
    slices: tuple[int, int] = (24, 57),
    dim: int = 64,
    lesion: tuple[float, float] = (0.08, 0.4),
    contrast: float = 1.0,
    noise: float = 1.0,
    positive: float = 0.5,
    distractors: float = 0.03,
) -> list[Bag]:
    """CT-like bags: a chain of slices 5 mm apart; a lesion is one run of consecutive slices. Options as for slides."""
    _check(n_bags, slices, lesion, positive, distractors)
    bags = []
    for index in range(n_bags):
        rng = _rng(seed, index)
        n, y = _between(rng, slices), _is_positive(index, positive)
        sick = np.zeros(n, dtype=bool)
        if y:
            length = _lesion_size(rng, lesion, n)
            first = int(rng.integers(0, n - length + 1))
            sick[first : first + length] = True
        alike = _isolated_cells(rng, np.ones((1, n), dtype=bool), sick[None], round(distractors * n))[0]
        weights = _tissue_weights(rng, (n,), sigma=3.0).T
        x = _features(rng, weights, sick | alike, dim, contrast, noise)
        coords = torch.arange(n)[:, None]
        labels = torch.from_numpy(sick.astype(np.int64))
        bags.append(Bag(f"scan_{index:04d}", x, coords, _SCAN_FRAME, chain_graph(n), y, labels))
    return bags


def _check(n_bags: int, size: Any, lesion: Any, positive: float, distractors: float) -> None:
    if n_bags < 1:
        raise ConfigError(f"synthetic: n_bags must be at least 1, got {n_bags}")
    if not 1 <= size[0] <= size[1]:
        raise ConfigError(f"synthetic: sizes must satisfy 1 <= least <= largest, got {tuple(size)}")
    if not 0 < lesion[0] <= lesion[1] <= 1:
        raise ConfigError(f"synthetic: lesion shares must satisfy 0 < least <= largest <= 1, got {tuple(lesion)}")
    if not (0 <= positive <= 1 and 0 <= distractors < 0.2):
        raise ConfigError(f"synthetic: positive={positive} must be in 0..1 and distractors={distractors} below 0.2")


def _lesion_size(rng: np.random.Generator, share: tuple[float, float], n: int) -> int:
    return min(n, max(1, round(rng.uniform(*share) * n)))


def _tissue_weights(rng: np.random.Generator, shape: tuple[int, ...], sigma: float) -> np.ndarray:
    """(types, *shape) shares of the tissue types: softmax of smooth random fields."""
    fields = np.stack([gaussian_filter(rng.standard_normal(shape), sigma, mode="reflect") for _ in range(_TISSUES)])
    fields = np.exp(2.0 * fields / (fields.std() + 1e-12))
    return fields / fields.sum(0)


def _encoder(dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Tissue directions (types, dim) of length 2 and the lesion direction (dim,) of length 1: the same for all sets."""
    directions = np.random.default_rng(np.random.SeedSequence([20_18, dim])).standard_normal((_TISSUES + 1, dim))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    return 2.0 * directions[:_TISSUES], directions[_TISSUES]


def _features(
    rng: np.random.Generator, weights: np.ndarray, marked: np.ndarray, dim: int, contrast: float, noise: float
) -> torch.Tensor:
    tissues, lesion = _encoder(dim)
    n = len(weights)
    strength = 3.5 * contrast * rng.uniform(0.6, 1.4, n) * marked
    shift = 0.3 * rng.standard_normal(dim)
    x = weights @ tissues + shift + strength[:, None] * lesion + noise * rng.standard_normal((n, dim))
    return torch.from_numpy(x.astype(np.float32))


def write_synthetic(folder: str | Path, bags: Sequence[Bag], *, dtype: str = "float16") -> Path:
    """Write bags, instance labels and a manifest into `folder`; gives the path of manifest.csv.

    Every fourth bag belongs to the patient of the one before, so that splits have something to keep together.
    """
    folder = Path(folder)
    check_choice(dtype, ("float16", "float32"), "dtype")
    rows = [_write_case(folder, index, bag, dtype) for index, bag in enumerate(bags)]
    Manifest(pd.DataFrame(rows), folder).write(folder / "manifest.csv")
    return folder / "manifest.csv"


def _write_case(folder: Path, index: int, bag: Bag, dtype: str) -> dict[str, str]:
    """Write one bag and its instance labels; gives its row of the manifest."""
    if bag.coords is None or bag.y_inst is None:
        raise DataError(f"{bag.id}: a synthetic bag has coordinates and instance labels, this one lacks them")
    path, sidecar = f"bags/{bag.id}.h5", f"labels/{bag.id}.npy"
    plain = replace(bag, x=bag.x.to(getattr(torch, dtype)), y_inst=None)
    rule = "chain" if bag.coords.shape[1] == 1 else "grid"
    encoder = f"synthetic-{'scan-' if rule == 'chain' else ''}{bag.x.shape[1]}"
    write_bag(folder / path, plain, graph=rule, provenance={"encoder": encoder})
    _save_labels(folder / sidecar, bag.y_inst.numpy())
    row = {"id": bag.id, "path": path, "label": str(bag.y), "group": f"patient_{index - (index % 4 == 3):04d}"}
    return {**row, "split": "", "instance_labels": sidecar}

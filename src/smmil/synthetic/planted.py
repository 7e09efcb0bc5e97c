"""Synthetic slides whose risk, level, number or labels are planted: the share of lesion patches is their only cause.

Patches are those of `synthetic_slides`, with lesions in every bag but the lowest and no distractors. With s in 0..1 the
share of the tissue in lesions, divided by its largest (`most`):

survival    log hazard 12 (s - 1/2): Weibull times of shape 4, in months. Cases may leave before their event, at the
            time of another case that knows nothing of them, so that `censored` of all do
ordinal     level 0 to `levels` - 1: the share s in steps of equal width, 0 is no lesion
regression  10 + 50 s + N(0, 1), in mm
multilabel  `levels` - 1 labels, each in half of the bags and independent of the others; each has a lesion direction
            of its own, and patches of label l have the instance label l + 1
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from smmil.bag import Bag
from smmil.data.manifest import Manifest
from smmil.errors import ConfigError, check_choice
from smmil.graph import grid_graph
from smmil.synthetic.features import _SLIDE_FRAME, _encoder, _features, _tissue_weights, write_synthetic
from smmil.synthetic.slides import _between, _blobs, _rng, _tissue

KINDS = ("multilabel", "ordinal", "regression", "survival")
_STRENGTH = 3.5


def planted_slides(
    n_bags: int,
    kind: str,
    *,
    seed: int = 0,
    size: tuple[int, int] = (40, 80),
    dim: int = 16,
    most: float = 0.5,
    contrast: float = 2.0,
    censored: float = 0.3,
    levels: int = 4,
) -> list[Bag]:
    """Slide-like bags with a planted target of a kind; bag i depends on the seed and i alone.

    size      least and largest number of patches      most    largest share of the tissue in lesions
    contrast  of lesions, as in `synthetic_slides`     levels  of an ordinal target; one more than labels
    """
    check_choice(kind, KINDS, "kind of planted target")
    if n_bags < 1 or not 0 < most <= 0.8 or not 0 <= censored <= 0.5 or levels < 2:
        raise ConfigError(
            f"planted slides: {n_bags} bags, most={most}, censored={censored}, levels={levels}: no such set"
        )
    return [
        _planted(_rng(seed, index), index, kind, size, dim, most, contrast, censored, levels) for index in range(n_bags)
    ]


def _planted(
    rng: np.random.Generator,
    index: int,
    kind: str,
    size: tuple[int, int],
    dim: int,
    most: float,
    contrast: float,
    censored: float,
    levels: int,
) -> Bag:
    mask = _tissue(rng, _between(rng, size))
    n = int(mask.sum())
    if kind == "multilabel":
        truth, target = _several_lesions(rng, mask, most, levels - 1)
    else:
        amount = index % levels / (levels - 1) if kind == "ordinal" else rng.uniform()
        truth = _lesion(rng, mask, round(amount * most * n)).astype(np.int64)
        target = _target(rng, kind, (truth > 0).sum() / (most * n), censored)
    plain = _features(rng, _tissue_weights(rng, mask.shape, sigma=4.0)[:, mask].T, np.zeros(n), dim, contrast, 1.0)
    strength = _STRENGTH * contrast * rng.uniform(0.6, 1.4, n) * (truth > 0)
    x = plain + torch.from_numpy((strength[:, None] * _directions(dim, levels)[truth]).astype(np.float32))
    coords = torch.from_numpy(np.argwhere(mask)[:, ::-1] * 512)
    graph = grid_graph(coords, _SLIDE_FRAME.step)
    y = index % levels if kind == "ordinal" else int(1.0 in target) if kind == "multilabel" else None
    row = None if kind == "ordinal" else torch.tensor(target, dtype=torch.float64)
    bag = Bag(f"planted_{index:04d}", x, coords, _SLIDE_FRAME, graph, y, torch.from_numpy(truth))
    return replace(bag, target=row)


def _lesion(rng: np.random.Generator, mask: np.ndarray, patches: int) -> np.ndarray:
    """Whether each patch of the tissue (n,) is in a lesion."""
    return _blobs(rng, mask, patches)[mask] if patches else np.zeros(int(mask.sum()), dtype=bool)


def _several_lesions(
    rng: np.random.Generator, mask: np.ndarray, most: float, labels: int
) -> tuple[np.ndarray, tuple[float, ...]]:
    """Which label's lesion each patch is in (1 + label, 0 none), and the labels; a later lesion covers an earlier."""
    target = tuple(float(rng.random() < 0.5) for _ in range(labels))
    truth = np.zeros(int(mask.sum()), dtype=np.int64)
    for label, present in enumerate(target):
        if present:
            share = rng.uniform(0.5, 1.0) * most / labels
            truth[_lesion(rng, mask, max(1, round(share * len(truth))))] = label + 1
    return truth, tuple(float(label + 1 in truth) for label in range(labels))


def _target(rng: np.random.Generator, kind: str, share: float, censored: float) -> tuple[float, ...]:
    if kind == "regression":
        return (10 + 50 * share + rng.normal(),)
    time, leaves = _time(rng, share), _time(rng, rng.uniform())
    stays = rng.random() >= 2 * censored or time <= leaves
    return (time if stays else leaves, float(stays))


def _time(rng: np.random.Generator, share: float) -> float:
    return float(24 * (rng.exponential() * np.exp(-12 * (share - 0.5))) ** 0.25)


def _directions(dim: int, levels: int) -> np.ndarray:
    """Lesion directions (1 + labels, dim): none, that of all synthetic sets, then further ones of length 1."""
    more = np.random.default_rng(np.random.SeedSequence([20_26, dim])).standard_normal((max(0, levels - 2), dim))
    more /= np.linalg.norm(more, axis=1, keepdims=True)
    return np.concatenate([np.zeros((1, dim)), _encoder(dim)[1][None], more])


_COLUMNS = {"regression": ("label",), "survival": ("time", "event")}


def write_planted(folder: str | Path, bags: Sequence[Bag]) -> Path:
    """Write planted slides, their instance labels and a manifest with the columns of their target; gives its path."""
    manifest = Manifest.read(write_synthetic(folder, bags, dtype="float32"))
    table = manifest.table.assign(group=[bag.id.replace("planted", "patient") for bag in bags])
    rows = [bag.target for bag in bags]
    if rows[0] is not None:
        width, labels = len(rows[0]), bags[0].y is not None
        names = (
            [f"label_{chr(97 + n)}" for n in range(width)]
            if labels
            else _COLUMNS["survival" if width == 2 else "regression"]
        )
        table = table.drop(columns="label")
        table[list(names)] = [[f"{value:.10g}" for value in row.tolist()] for row in rows if row is not None]
    path = Path(folder) / "manifest.csv"
    Manifest(table, Path(folder)).write(path)
    return path

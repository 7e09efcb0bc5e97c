"""Synthetic slides and scans with a lesion planted at a known place, for the report and its browser tests."""

import numpy as np
from PIL import Image
from scipy.ndimage import gaussian_filter

from smmil.frame import Frame
from smmil.prediction import Prediction

TILE = 32
SIDE = 24  # tiles along each side of a slide
FRAME = Frame(patch=(TILE, TILE), spacing=(0.5, 0.5), unit="um")
META = {
    "model": "sm_ap", "score_kind": "attention logit", "checkpoint": "best", "epoch": 12, "seed": 0,
    "features": {"encoder": "efficientnet_lite0", "recipe": "a1b2c3"}, "weights": "f" * 64,
    "split": {"part": "test", "fold": 0, "digest": "d" * 64}, "versions": {"smmil": "0.1.0"},
}  # fmt: skip


def tissue_mask(seed):
    """A round piece of tissue with a ragged border, tiles by tiles."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:SIDE, :SIDE] - (SIDE - 1) / 2
    ragged = gaussian_filter(rng.normal(size=(SIDE, SIDE)), 2) * 6
    return np.hypot(x, y) + ragged < SIDE * 0.42


def lesion_mask(seed, place=(14, 8)):
    """A small disc of lesion around tile (column, row), inside the tissue."""
    y, x = np.mgrid[:SIDE, :SIDE]
    return (np.hypot(x - place[0], y - place[1]) < 2.6) & tissue_mask(seed)


def slide_case(name, seed=0, *, y=1, p=None, place=(14, 8), noise=0.5, peak=5.0, smooth=False, meta=None):
    """A slide whose hottest tile is the middle of the lesion when y is 1; noise everywhere."""
    rng = np.random.default_rng((seed, 7))
    tissue = tissue_mask(seed)
    lesion = lesion_mask(seed, place) if y else np.zeros_like(tissue)
    field = rng.normal(size=tissue.shape) * noise
    field = gaussian_filter(field, 1) * 2 if smooth else field
    heat = field + 3.0 * lesion
    if y:
        heat[place[1], place[0]] = peak + 3.0
    rows, columns = np.nonzero(tissue)
    number = np.full(tissue.shape, -1)
    number[rows, columns] = np.arange(len(rows))
    pairs = [(number[r, c], number[r + a, c + b]) for r, c in zip(rows, columns, strict=True)
             for a, b in ((0, 1), (1, 0)) if r + a < SIDE and c + b < SIDE and number[r + a, c + b] >= 0]  # fmt: skip
    edges = np.array(pairs).T
    return Prediction(
        name, [(0.9 if y else 0.1) if p is None else p], heat[rows, columns],
        coords=np.stack([columns, rows], 1) * TILE, frame=FRAME,
        edges=np.hstack([edges, edges[::-1]]), y=y, y_inst=lesion[rows, columns].astype(int),
        meta=META if meta is None else meta,
    )  # fmt: skip


def scan_case(name, *, n=36, lesion=(20, 25), y=1, p=0.8):
    """A scan of n slices; the slices of the lesion score highest."""
    slices = np.arange(n)
    truth = ((slices >= lesion[0]) & (slices < lesion[1]) & bool(y)).astype(int)
    scores = 3.0 * truth + np.sin(slices) + 0.1 * (slices == (lesion[0] + lesion[1]) // 2)
    chain = np.stack([slices[:-1], slices[1:]])
    return Prediction(
        name, [p], scores, coords=slices[:, None], frame=Frame(patch=(1,), spacing=(5.0,), unit="mm"),
        edges=np.hstack([chain, chain[::-1]]), y=y, y_inst=truth, meta=META,
    )  # fmt: skip


def write_slide_picture(path, seed=0, *, y=1, place=(14, 8)):
    """A picture in the colours of haematoxylin and eosin, with a darker lesion, as a plain PNG."""
    rng = np.random.default_rng((seed, 3))
    side = SIDE * TILE

    def grown(mask, blur):
        return gaussian_filter(np.kron(mask, np.ones((TILE, TILE))).astype(np.float32), blur * TILE)

    def texture(size):
        rough = gaussian_filter(rng.normal(size=(side, side)).astype(np.float32), size * TILE)
        return rough / rough.std()

    tissue = np.clip((grown(tissue_mask(seed), 0.28) + 0.08 * texture(0.08) - 0.35) * 5, 0, 1)
    lesion = grown(lesion_mask(seed, place) * float(y), 0.22)
    nuclei = np.clip(texture(0.047) - 1.0 + 1.6 * lesion, 0, 1) * tissue
    colour = np.array([245, 243, 246]) + tissue[..., None] * np.array([-16, -78, -42])
    colour = colour + (nuclei * 0.8)[..., None] * np.array([-120, -95, -50]) + (lesion * tissue)[..., None] * -14
    pixels = np.clip(colour + (tissue * texture(0.023) * 3)[..., None], 0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def save_all(folder, cases):
    for number, case in enumerate(cases):
        case.save(folder / f"{number:04}.npz")
    return folder

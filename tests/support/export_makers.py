"""Cases with a planted lesion, scored by looking at the pixels: what an export shows must lie where they are."""

import numpy as np

from smmil.frame import Frame
from smmil.images import open_slide, open_volume
from smmil.prediction import Prediction
from support.ct_makers import SPACING, series
from support.pyramids import PLANTED, origin, planted, slide_file

X, Y, SIDE, TILE = 128, 96, 64, 32
META = {"model": "sm_ap", "weights": "ab" * 32, "score_kind": "attention logit", "checkpoint": "best"}
AXIAL = (1, 0, 0, 0, 1, 0)
HEAD_TO_FOOT = (1, 0, 0, 0, -1, 0)
SINE, COSINE = np.sin(0.3), np.cos(0.3)
OBLIQUE = (1, 0, 0, 0, COSINE, SINE)
SAGITTAL = (0, 1, 0, 0, 0, -1)
TURNED = (0, 1, 0, 1, 0, 0)  # rows of the file run from front to back
ORIENTATIONS = {
    **{"axial": AXIAL, "head to foot": HEAD_TO_FOOT, "oblique": OBLIQUE},
    **{"sagittal": SAGITTAL, "turned": TURNED},
}


def slide_case(folder, flavour="aperio", **changes):
    """A slide file with a green square, and a prediction whose tiles score 1 on green and -1 elsewhere."""
    folder.mkdir(parents=True, exist_ok=True)
    path = slide_file(folder, planted(256, 320, X, Y, SIDE), flavour, mpp=0.5)
    left, top = origin(flavour)
    coords = np.array([(x, y) for y in range(top, top + 256, TILE) for x in range(left, left + 320, TILE)])
    with open_slide(path) as slide:
        green = [(slide.read(x, y, TILE, TILE) == PLANTED).all() for x, y in coords]
    scores = np.where(green, 1.0, -1.0).astype(np.float32)
    given = {"coords": coords, "frame": Frame((TILE, TILE), (0.5, 0.5), "um"), "meta": META, **changes}
    return path, Prediction("case", [0.9], scores, **given)


def lesion_box(flavour):
    """Level-0 pixels of the green square: left, top, right, bottom."""
    left, top = origin(flavour)
    return left + X, top + Y, left + X + SIDE, top + Y + SIDE


def scan_case(folder, orientation=AXIAL, planted_at=(4, 6, 2), boxes=False, **changes):
    """A CT series with one bright voxel, and a prediction that is hottest there: by slice, or by box of one voxel.

    planted_at  slice, row, column as written. Gives (folder, file of the planted slice, prediction).
    """
    hu = np.zeros((6, 9, 7), np.float32)
    hu[planted_at] = 900
    _, paths = series(folder, hu, SPACING, orientation=orientation)
    volume = open_volume(folder)
    if boxes:
        hottest = np.array(np.unravel_index(volume.hu.argmax(), volume.shape))[::-1]
        coords = np.stack([hottest, np.zeros(3, int), np.array(volume.shape[::-1]) - 1])
        given = {"coords": coords, "frame": Frame((1, 1, 1), volume.spacing_mm, "mm"), "meta": META}
        scores = np.array([5.0, 1.0, 2.0], np.float32)
    else:
        scores = volume.hu.max((1, 2)) / 300
        given = {"coords": np.arange(len(volume))[:, None], "frame": volume.frame, "meta": META}
    return folder, paths[planted_at[0]], Prediction("scan", [0.8], scores, **{**given, **changes})

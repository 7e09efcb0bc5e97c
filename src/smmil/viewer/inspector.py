"""Instances of a case in the viewer: their positions on the page, everything known about one, and similar ones."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import logsumexp

from smmil.errors import DataError, SmmilError
from smmil.exports.case import ExportCase
from smmil.exports.geometry import SlideFacts, boxes, slide_facts
from smmil.files import check_dataset, need_file, open_hdf5
from smmil.frame import Frame
from smmil.prediction import Prediction

if TYPE_CHECKING:
    from smmil.viewer.data import ViewerData

_SAME_SIZE = 0.01  # pixel sizes closer than this are the same, written with fewer digits


@dataclass(frozen=True, eq=False)
class _Geometry:
    """coords (n, 2) corners, (n, 1) slices, or (n, 3) corners and first slice of patches of a scan; boxes (n, 4) left,
    top, right, bottom; sizes in level-0 pixels, of scans in voxels.

    size   of the slide, width and height, as far as it is known
    notes  what a viewer should know, one line each
    """

    coords: np.ndarray | None = None
    boxes: np.ndarray | None = None
    patch: tuple[float, ...] | None = None
    step: tuple[float, ...] | None = None
    mpp: float | None = None
    size: tuple[int, int] | None = None
    notes: tuple[str, ...] = ()


def _case_geometry(study: "ViewerData", number: int) -> _Geometry:
    """Geometry of the instances, from the slide where it is at hand, else as the prediction states them."""
    row, case = study.cases[number], study.first_export_case(number)
    coords = case.prediction.coords
    if coords is None or row.kind == "none":
        return _Geometry()
    if row.kind == "scan":
        frame = case.prediction.frame if coords.shape[1] == 3 else None
        sizes = (None, None) if frame is None else (frame.patch, frame.step)
        return _Geometry(coords.astype(np.float64), None, *sizes)
    try:
        facts, case = _facts(study, number, case)
        if case.prediction.frame is None:
            return _Geometry(coords.astype(np.float64), mpp=facts.mpp, size=facts.size)
        rectangles, frame = boxes(case, facts), case.prediction.frame
        patch = tuple((rectangles[0, 2:] - rectangles[0, :2]).tolist())
        scale = patch[0] / frame.patch[0]
        step = tuple(side * scale for side in (frame.step * 2)[:2]) if row.kind == "slide" else None
        return _Geometry(rectangles[:, :2], rectangles, patch, step, facts.mpp, facts.size)
    except DataError as problem:
        return _Geometry(coords.astype(np.float64), notes=(study.message(problem, number),))


def _facts(study: "ViewerData", number: int, case: ExportCase) -> tuple[SlideFacts, ExportCase]:
    """Facts from the slide, else as the prediction remembers them.

    A slide that cannot be opened or is another one counts as not given (a note of the case says so).
    """
    remembered = _remembered_pixel_size(case.prediction)
    alone = replace(case, image=None, notes=[])
    if case.image is not None:
        try:
            picture = study.picture(number)
            size = picture.origin[0] + picture.width, picture.origin[1] + picture.height
            mpp = picture.mpp or remembered or slide_facts(alone).mpp
            return SlideFacts(size, (*picture.origin, picture.width, picture.height), mpp), case
        except SmmilError:
            pass
    facts = slide_facts(alone)
    return (facts, alone) if remembered is None else (replace(facts, mpp=remembered), _in_pixels(alone, remembered))


def _remembered_pixel_size(prediction: Prediction) -> float | None:
    """Micrometres per level-0 pixel of the slide the case was made from."""
    slide = prediction.meta.get("slide")
    mpp = slide.get("mpp") if isinstance(slide, dict) else None
    return float(mpp) if isinstance(mpp, int | float) and 0 < mpp < float("inf") else None


def _in_pixels(case: ExportCase, mpp: float) -> ExportCase:
    """The case with coordinates in level-0 pixels, where they counted micrometres."""
    prediction, frame = case.prediction, case.prediction.frame
    if prediction.coords is None or frame is None or frame.spacing is None or frame.unit != "um":
        return case
    scale = frame.spacing[0] / mpp
    scale = 1.0 if abs(scale - 1) <= _SAME_SIZE else scale
    patch, step = (tuple(side * scale for side in sides) for sides in (frame.patch, frame.step))
    coords = prediction.coords.astype(np.float64) * scale
    return replace(case, prediction=replace(prediction, coords=coords, frame=Frame(patch, stride=step)))


_MOST_NEIGHBOURS = 8
_MOST_SIMILAR = 6
# Patches closer than this many steps along every axis touch, as in smmil.graph.grid_graph.
_TOUCHING = 1.5 - 1e-6


def _describe(index: int, cases: Sequence[ExportCase | None], coords: np.ndarray | None) -> dict[str, Any]:
    """Score, rank and probability of instance `index` by every model, its label and its neighbours."""
    known = [case for case in cases if case is not None]
    label = next((int(y[index]) for case in known if (y := case.prediction.y_inst) is not None and y[index] >= 0), None)
    near = _neighbours(known[0].prediction, index)
    return {
        "index": index,
        "coords": None if coords is None else coords[index].tolist(),
        "label": None if label is None else int(label > 0),
        "models": [None if case is None else _score_facts(case, index) for case in cases],
        "neighbours": [{"index": int(i), "score": _scores_of(cases, int(i))} for i in near],
    }


def _scores_of(cases: Sequence[ExportCase | None], index: int) -> list[float | None]:
    return [None if case is None else float(case.score[index]) for case in cases]


def _score_facts(case: ExportCase, index: int) -> dict[str, Any]:
    """Score, rank in the case (1 is the highest; equal scores share it), and a share with its kind.

    calibrated probability   where a calibration was applied
    probability        where scores are log-odds or probabilities of the instance itself
    attention share    softmax over the case, where they are attention logits: what the model's average used
    rank share         else: the share of the case's instances that score no higher
    """
    score, kind, share = float(case.score[index]), case.probability_kind, float(case.probability[index])
    if not np.isfinite(share):
        kind, share = "rank share", float(case.percentile[index])
        if str(case.prediction.meta.get("score_kind", "")) == "attention logit":
            kind, share = "attention share", float(np.exp(score - logsumexp(case.score.astype(np.float64))))
    return {
        "score": score,
        "rank": int((case.score > case.score[index]).sum()) + 1,
        "of": case.prediction.n,
        "probability": share,
        "probability_kind": kind,
    }


def _neighbours(prediction: Prediction, index: int) -> np.ndarray:
    """Neighbours of `index`, nearest first: joined in the prediction's graph, else touching in the plane."""
    coords = None if prediction.coords is None else prediction.coords.astype(np.float64)
    if prediction.edges is not None:
        first, second = prediction.edges
        near = np.unique(np.concatenate([second[first == index], first[second == index]]))
    elif coords is not None:
        near = np.flatnonzero((np.abs(coords - coords[index]) / _step(prediction, coords)).max(1) < _TOUCHING)
    else:
        near = np.zeros(0, dtype=np.int64)
    near = near[near != index]
    if coords is None:
        return near[:_MOST_NEIGHBOURS]
    distance = np.linalg.norm(coords[near] - coords[index], axis=1)
    return near[np.lexsort((near, distance))][:_MOST_NEIGHBOURS]


def _step(prediction: Prediction, coords: np.ndarray) -> np.ndarray:
    """Distance between neighbours along each axis: as the frame says, else the smallest that occurs."""
    axes = coords.shape[1]
    if prediction.frame is not None:
        return np.array((prediction.frame.step * axes)[:axes])
    gaps = [np.diff(np.unique(column)) for column in coords.T]
    return np.array([gap.min() if gap.size else 1.0 for gap in gaps])


# High-scoring are the hottest tenth of a case, within these limits.
_FEWEST, _MOST, _SHARE = 16, 512, 10
_WIDEST = 65_536
_DAMAGE = (OSError, LookupError, ValueError, TypeError, AttributeError, RuntimeError, ArithmeticError, MemoryError,
           EOFError, SyntaxError, TokenError)  # fmt: skip


@dataclass(frozen=True, eq=False)
class _HotPatches:
    """The high-scoring patches of a case with their features at length 1."""

    path: Path
    rows: np.ndarray
    directions: np.ndarray

    def most_similar(self, index: int) -> list[tuple[int, float]]:
        """(instance, cosine) of the patches most like instance `index`, without itself; best first."""
        with _features(self.path) as features:
            own = _directions(features[index : index + 1])[0]
        cosines = self.directions @ own
        order = np.lexsort((self.rows, -cosines))
        others = [place for place in order if self.rows[place] != index][:_MOST_SIMILAR]
        return [(int(self.rows[place]), float(np.clip(cosines[place], -1, 1))) for place in others]


def _hot_patches(path: Path, prediction: Prediction, scores: np.ndarray) -> _HotPatches:
    """The hottest tenth of a case (16 to 512 patches) by these scores; refused when the features are not its own."""
    rows = np.sort(np.argsort(-scores, kind="stable")[: int(np.clip(len(scores) // _SHARE, _FEWEST, _MOST))])
    with _features(path) as features:
        if len(features) != prediction.n:
            raise DataError(f"{path}: has {len(features):,} rows, the prediction {prediction.n:,}; give its own bags")
        file = getattr(features, "file", {})
        if prediction.coords is not None and "coords" in file:  # the same coordinates: the same order of instances
            places = check_dataset(file["coords"])
            if places.shape != prediction.coords.shape or not np.allclose(places[()], prediction.coords):
                raise DataError(
                    f"{path}: its patches have other coordinates than those of the prediction; give the bags it was "
                    "made of"
                )
        return _HotPatches(path, rows, _directions(features[rows]))


@contextmanager
def _features(path: Path) -> Iterator[Any]:
    """The matrix of features, open for reading rows; whatever a damaged file raises leaves as one line."""
    try:
        if path.suffix.lower() == ".npy":
            yield _checked(np.load(need_file(path), mmap_mode="r", allow_pickle=False))
            return
        if path.suffix.lower() not in (".h5", ".hdf5"):
            raise DataError(f"features in {path.suffix or 'files without ending'} are not read here; use smmil convert")
        with open_hdf5(path) as file:
            name = next((n for n in ("features", "feats") if n in file), None)
            if name is None:
                raise DataError("there is no dataset 'features'; is this a feature file?")
            yield _checked(check_dataset(file[name]))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; check the path column of --bags") from None
    except DataError as problem:
        raise problem if str(problem).startswith(str(path)) else DataError(f"{path}: {problem}") from None
    except _DAMAGE as problem:
        kind = type(problem).__name__
        raise DataError(f"{path}: not readable as features ({kind}); prepare this case again") from None


def _checked(features: Any) -> Any:
    if features.ndim != 2 or features.dtype.kind != "f" or not 0 < features.shape[1] <= _WIDEST:
        raise DataError(f"features must be floating point numbers (instances, dimensions), got {features.shape}")
    return features


def _directions(features: np.ndarray) -> np.ndarray:
    """Rows scaled to length 1; rows of zeros stay zero (similarity 0)."""
    rows = np.asarray(features, dtype=np.float64)
    if not np.isfinite(rows).all():
        raise DataError("features hold numbers that are not finite; prepare this case again")
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1.0)

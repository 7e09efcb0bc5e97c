"""Which hot patches look most alike: cosine of features, read row by row from the bag's file."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from smmil.errors import DataError
from smmil.prediction import Prediction

# High-scoring are the hottest tenth of a case, within these limits.
_FEWEST, _MOST, _SHARE = 16, 512, 10
_WIDEST = 65_536
_DAMAGE = (OSError, LookupError, ValueError, TypeError, AttributeError, RuntimeError, ArithmeticError, MemoryError)


@dataclass(frozen=True, eq=False)
class HotPatches:
    """The high-scoring patches of a case with their features at length 1."""

    path: Path
    rows: np.ndarray
    directions: np.ndarray

    def most_similar(self, index: int, count: int) -> list[tuple[int, float]]:
        """(instance, cosine) of the patches most like instance `index`, without itself; best first."""
        with _features(self.path) as features:
            own = _directions(features[index : index + 1])[0]
        cosines = self.directions @ own
        order = np.lexsort((self.rows, -cosines))
        others = [place for place in order if self.rows[place] != index][:count]
        return [(int(self.rows[place]), float(np.clip(cosines[place], -1, 1))) for place in others]


def hot_patches(path: Path, prediction: Prediction, scores: np.ndarray) -> HotPatches:
    """The hottest tenth of a case (16 to 512 patches) by these scores; refused when the features are not its own."""
    rows = np.sort(np.argsort(-scores, kind="stable")[: int(np.clip(len(scores) // _SHARE, _FEWEST, _MOST))])
    with _features(path) as features:
        if len(features) != prediction.n:
            raise DataError(f"{path}: has {len(features):,} rows, the prediction {prediction.n:,}; give its own bags")
        _refuse_other_places(path, features, prediction)
        return HotPatches(path, rows, _directions(features[rows]))


@contextmanager
def _features(path: Path) -> Iterator[Any]:
    """The matrix of features, open for reading rows; whatever a damaged file raises leaves as one line."""
    import h5py

    try:
        if path.suffix.lower() == ".npy":
            yield _checked(np.load(path, mmap_mode="r", allow_pickle=False))
            return
        if path.suffix.lower() not in (".h5", ".hdf5"):
            raise DataError(f"features in {path.suffix or 'files without ending'} are not read here; use smmil convert")
        with h5py.File(path, "r", locking=False) as file:
            name = next((n for n in ("features", "feats") if n in file), None)
            if name is None:
                raise DataError("there is no dataset 'features'; is this a feature file?")
            yield _checked(file[name])
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


def _refuse_other_places(path: Path, features: Any, prediction: Prediction) -> None:
    """The order of instances is the same when the coordinates are."""
    file = getattr(features, "file", None)
    if prediction.coords is None or file is None or "coords" not in file:
        return
    places = file["coords"]
    if places.shape != prediction.coords.shape or not np.allclose(places[()], prediction.coords):
        raise DataError(f"{path}: its patches lie elsewhere than those of the prediction; give the bags it was made of")


def _directions(features: np.ndarray) -> np.ndarray:
    """Rows at length 1; a row of zeros stays, and is like nothing."""
    rows = np.asarray(features, dtype=np.float64)
    if not np.isfinite(rows).all():
        raise DataError("features hold numbers that are not finite; prepare this case again")
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1.0)

"""WSInfer's CSV files: minx, miny, width, height and prob_<class> of each patch; the probabilities are the features."""

from pathlib import Path
from typing import Any

import numpy as np

from smmil.errors import DataError
from smmil.files import check_csv_width
from smmil.formats.content import Stored, _frame_with_step, _stored_type
from smmil.formats.hdf5 import Reader

PLACE = ("minx", "miny", "width", "height")
_LONGEST_HEADER = 1 << 16


class _WSInferReader(Reader):
    name = "wsinfer"

    def recognises(self, path: Path) -> bool:
        """Whether the first line of a .csv names WSInfer's columns."""
        return path.suffix.lower() == ".csv" and path.is_file() and set(PLACE) <= set(_header(path))

    def load(self, path: Path) -> Stored:
        """Probabilities as float32, level-0 corners, and the footprint, which must be the same for all patches."""
        import pandas as pd

        table = pd.read_csv(check_csv_width(path), encoding="utf-8-sig", skipinitialspace=True)
        probs = [name for name in table.columns if name.startswith("prob_")]
        if not probs:
            raise DataError("there is no column prob_<class>; is this a result of wsinfer?")
        for name in (*PLACE, *probs):
            if table[name].dtype.kind not in "iuf":
                raise DataError(f"column {name!r} must hold numbers")
        coords = _stored_type("coords", table[["minx", "miny"]].to_numpy().copy())
        stored = Stored(path.stem, table[probs].to_numpy(np.float32, copy=True), coords)
        sizes = table[["width", "height"]].drop_duplicates().to_numpy(np.float64)
        if len(sizes) != 1:
            raise DataError(f"patches of {len(sizes)} different sizes; a bag needs one footprint")
        return stored.on_lattice(_frame_with_step(tuple(sizes[0].tolist()), coords), _facts(probs))

    def provenance(self, path: Path) -> dict[str, Any]:
        """The classes whose probabilities are the features."""
        return _facts([name for name in _header(path) if name.startswith("prob_")])


def _header(path: Path) -> list[str]:
    with path.open("rb") as file:
        line = file.readline(_LONGEST_HEADER).decode("utf-8-sig", errors="replace")
    return [word.strip().strip('"') for word in line.split(",")]


def _facts(columns: list[str]) -> dict[str, Any]:
    return {"encoder": "wsinfer", "classes": [name.removeprefix("prob_") for name in columns]}

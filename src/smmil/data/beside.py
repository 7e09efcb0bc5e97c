"""Instance labels that lie beside bag files, found by the manifest next to them."""

from pathlib import Path

import numpy as np

from smmil.data.instance_labels import read_instance_labels
from smmil.data.manifest import Manifest
from smmil.errors import DataError

NAME = "manifest.csv"


class LabelsBeside:
    """Label files of the bags below `source`, as a manifest.csv in it or up to two folders above says.

    So a study of smmil prepare keeps its labels whether the folder, its bags/ or a single bag is named.
    """

    def __init__(self, source: str | Path):
        self.files: dict[Path, Path] = {}
        self.manifest: Path | None = None
        here = Path(source).absolute()
        for folder in (here, *list(here.parents)[:2]):
            if not self.files and (folder / NAME).is_file():
                self._take(folder / NAME)

    def _take(self, path: Path) -> None:
        try:
            manifest = Manifest.read(path)
        except DataError:
            return  # somebody else's table of that name
        named = {manifest.path_of(id_).resolve(): manifest.instance_labels_of(id_) for id_ in manifest.ids}
        self.files = {bag: labels for bag, labels in named.items() if labels is not None}
        self.manifest = path if self.files else None

    def __call__(self, bag: Path) -> np.ndarray | None:
        """The labels of one bag; None when the manifest names none."""
        file = self.files.get(bag.resolve())
        return None if file is None else read_instance_labels(file)

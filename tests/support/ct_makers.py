"""Small CT series for tests, and the one way to change a tag of a written file."""

from pathlib import Path

import numpy as np
import pydicom
from openjpeg.utils import encode_array
from pydicom.encaps import encapsulate
from pydicom.uid import JPEG2000Lossless, RLELossless

from smmil.synthetic.ct import _write_ct_series

SPACING = (0.5, 0.75, 5.0)
ORIGIN = (-10.0, -20.0, 30.0)


def voxels(n=6, rows=9, columns=7, seed=0):
    """Whole HU from -1000 to 1500, no two slices alike, no symmetry to hide a flip."""
    return np.random.default_rng(seed).integers(-1000, 1500, (n, rows, columns)).astype(np.float32)


def series(folder, hu=None, spacing=SPACING, **options):
    """Write a series; gives the voxels and the paths, in the order of the slices."""
    hu = voxels() if hu is None else hu
    options.setdefault("origin_mm", ORIGIN)
    return hu, _write_ct_series(folder, hu, spacing, **options)


def change(path, **tags):
    """Rewrite a file with other tags; None removes one, a function gets the dataset."""
    dataset = pydicom.dcmread(path)
    for keyword, value in tags.items():
        if value is None:
            del dataset[keyword]
        else:
            setattr(dataset, keyword, value)
    dataset.save_as(path)


def change_all(folder, **tags):
    for path in Path(folder).rglob("*.dcm"):
        change(path, **tags)


def compress(path, name):
    """Rewrite a file compressed without loss, as "rle" or "jpeg2000"."""
    dataset = pydicom.dcmread(path)
    if name == "rle":
        dataset.compress(RLELossless, encoding_plugin="pydicom", generate_instance_uid=False)
    else:
        picture = encode_array(dataset.pixel_array, bits_stored=16, photometric_interpretation=2)
        dataset.PixelData = encapsulate([bytes(picture)])
        dataset["PixelData"].VR = "OB"
        dataset["PixelData"].is_undefined_length = True
        dataset.file_meta.TransferSyntaxUID = JPEG2000Lossless
    dataset.save_as(path)

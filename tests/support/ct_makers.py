"""Small CT series for tests, and the one way to change a tag of a written file."""

from pathlib import Path

import imagecodecs
import numpy as np
import pydicom
from openjpeg.utils import encode_array
from pydicom.encaps import encapsulate
from pydicom.uid import JPEG2000Lossless, JPEGExtended12Bit, JPEGLossless, JPEGLosslessSV1, JPEGLSLossless, RLELossless

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


def _unsigned(pixels):
    """JPEG knows no sign: the bits of a number as they are."""
    return np.ascontiguousarray(pixels).view(np.uint16)


# Name, transfer syntax and how a picture of 16 bits is packed; all but the last without loss.
PACKED = {
    "jpeg2000": (
        JPEG2000Lossless,
        lambda pixels: bytes(encode_array(pixels, bits_stored=16, photometric_interpretation=2)),
    ),
    "jpeg-lossless": (
        JPEGLossless,
        lambda pixels: imagecodecs.jpeg8_encode(_unsigned(pixels), lossless=True, predictor=6, bitspersample=16),
    ),
    "jpeg-lossless-sv1": (JPEGLosslessSV1, lambda pixels: imagecodecs.ljpeg_encode(_unsigned(pixels))),
    "jpeg-extended": (
        JPEGExtended12Bit,
        lambda pixels: imagecodecs.jpeg8_encode(_unsigned(pixels), level=100, bitspersample=12),
    ),
}


def compress(path, name):
    """Rewrite a file compressed as "rle", "jpeg-ls" or one of PACKED."""
    dataset = pydicom.dcmread(path)
    if name in ("rle", "jpeg-ls"):
        syntax, plugin = (RLELossless, "pydicom") if name == "rle" else (JPEGLSLossless, "pyjpegls")
        dataset.compress(syntax, encoding_plugin=plugin, generate_instance_uid=False)
    else:
        syntax, encode = PACKED[name]
        dataset.PixelData = encapsulate([encode(dataset.pixel_array)])
        dataset["PixelData"].VR = "OB"
        dataset["PixelData"].is_undefined_length = True
        dataset.file_meta.TransferSyntaxUID = syntax
    dataset.save_as(path)

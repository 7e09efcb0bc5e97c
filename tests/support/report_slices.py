"""A scan whose slices have known grey values."""

from dataclasses import replace

import numpy as np
import pytest

from smmil.report.cases import _all_cases
from support.lesion_cases import scan_case

nibabel = pytest.importorskip("nibabel", reason="needs nibabel: pip install 'smmil[ct]'")
ROOM = 10_000_000


def grey_scan(path, n=36, apart=5.0, rows=40, columns=60):
    """Slice k is everywhere 2 k Hounsfield units, but its left third is air."""
    hu = np.broadcast_to(2.0 * np.arange(n), (columns, rows, n)).astype(np.int16).copy()
    hu[: columns // 3] = -1000
    # columns run to the patient's left and rows to the back, as slices are shown
    affine = np.diag([-1.0, -1.0, apart, 1.0])
    image = nibabel.Nifti1Image(hu, affine)
    image.header.set_xyzt_units("mm")
    nibabel.save(image, path)
    return path


def case_of(**more):
    return _all_cases({"m": [replace(scan_case("ct"), **more)]})[0]

"""The same drawing in every format: makers of annotation files for tests."""

import json

import numpy as np
import pandas as pd
import torch
from PIL import Image

from smmil.bag import Bag
from smmil.frame import Frame


def lattice(across, down, patch, *, step=None, origin=(0, 0), spacing=None):
    """A bag of touching (or overlapping) patches with its first corner at `origin`."""
    step = step or patch
    cells = np.stack(np.meshgrid(np.arange(across), np.arange(down)), -1).reshape(-1, 2)
    frame = Frame((patch, patch), spacing and (spacing, spacing), "um" if spacing else "px", (step, step))
    return Bag("case", torch.zeros(len(cells), 2), torch.from_numpy(cells * step + np.array(origin)), frame)


def square(x, y, side):
    return [(x, y), (x + side, y), (x + side, y + side), (x, y + side)]


def asap(path, shapes):
    """shapes: (group, ring) pairs."""
    parts = []
    for number, (group, ring) in enumerate(shapes):
        corners = "".join(f'<Coordinate Order="{i}" X="{x}" Y="{y}"/>' for i, (x, y) in enumerate(ring))
        parts.append(
            f'<Annotation Name="a{number}" Type="Polygon" PartOfGroup="{group}" Color="#F4FA58">'
            f"<Coordinates>{corners}</Coordinates></Annotation>"
        )
    path.write_text(
        f'<?xml version="1.0"?><ASAP_Annotations><Annotations>{"".join(parts)}</Annotations></ASAP_Annotations>'
    )
    return path


def geojson(path, polygons, name="Tumor"):
    """polygons: lists of rings, the first the outer one."""
    closed = [[[*map(list, ring), list(ring[0])] for ring in rings] for rings in polygons]
    kind = {"objectType": "annotation"} | ({"classification": {"name": name, "color": [200, 0, 0]}} if name else {})
    features = [
        {"type": "Feature", "id": str(i), "geometry": {"type": "Polygon", "coordinates": rings}, "properties": kind}
        for i, rings in enumerate(closed)
    ]
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    return path


def boxes(path, corners):
    pd.DataFrame(corners, columns=["x", "y", "width", "height"]).to_csv(path, index=False)
    return path


def mask(path, codes):
    Image.fromarray(np.asarray(codes, np.uint8)).save(path)
    return path

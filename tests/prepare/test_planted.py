"""A square planted at known level-0 pixels comes back at exactly those pixels, whatever mpp, level and overlap."""

import json
from itertools import product

import numpy as np
import pytest
from support import prepare_makers as makers

from smmil.formats import read_bag
from smmil.maps import rasterize
from smmil.prediction import Prediction
from smmil.prepare import prepare_case
from smmil.prepare.annotate import annotate_case
from smmil.synthetic import write_pyramid

FOOTPRINT = 64
MPPS = (0.121, 0.2325, 0.25, 0.5, 0.499, 1.0)
OFFSET = (64, 32)
SIZE = (464, 400)


def prepared(tmp_path, mpp, shrink, overlap, flavour="aperio"):
    """The bag of a slide that is all tissue with one square in cell (3, 2) of the lattice, and where that square is."""
    step = FOOTPRINT - overlap
    x, y = 3 * step, 2 * step
    image = makers.painted(SIZE[1], SIZE[0], (x, y, FOOTPRINT, FOOTPRINT, makers.PLANTED), background=makers.TISSUE)
    name = {"aperio": "slide.svs", "leica": "slide.scn", "generic": "slide.tif", "dicom": "slide"}[flavour]
    options = {"bounds_offset": OFFSET} if flavour == "leica" else {}
    path = write_pyramid(
        tmp_path / name, image, mpp=mpp, flavour=flavour, factors=(1, 4, 16), tile=64, compression="none", **options
    )
    chosen = makers.recipe(tile_um=FOOTPRINT * mpp, overlap_um=overlap * mpp, pixels=FOOTPRINT // shrink)
    job = makers.job(path, tmp_path / "out", chosen)
    assert prepare_case(job).status == "written"
    start = OFFSET if flavour == "leica" else (0, 0)
    return read_bag(job.bag_path), (x + start[0], y + start[1])


def check(bag, place, tmp_path, overlap):
    planted = (bag.x.numpy() == makers.colour(makers.PLANTED)).all(1)
    assert bag.coords.numpy()[planted].tolist() == [list(place)]  # coordinates
    x, y = place
    ring = [[x, y], [x + 64, y], [x + 64, y + 64], [x, y + 64], [x, y]]
    outline = tmp_path / "lesion.geojson"
    outline.write_text(json.dumps({"type": "Feature", "geometry": {"type": "Polygon", "coordinates": [ring]}}))
    labels = annotate_case(bag, outline).labels
    assert np.array_equal(labels == 1, planted)  # labels
    scores = planted.astype(np.float32)
    prediction = Prediction(bag.id, np.array([0.5]), scores, coords=bag.coords.numpy(), frame=bag.frame)
    image, (left, _, _, top) = rasterize(prediction)
    rows, columns = np.nonzero(image == 1)
    step = FOOTPRINT - overlap
    assert [(left + c * step, top + r * step) for r, c in zip(rows, columns, strict=True)] == [place]  # maps


@pytest.mark.parametrize(("mpp", "shrink", "overlap"), list(product(MPPS, (1, 4, 16), (0, 16))))
def test_a_planted_square_comes_back_at_its_pixels(tmp_path, mpp, shrink, overlap):
    bag, place = prepared(tmp_path, mpp, shrink, overlap)
    assert bag.frame.patch == (FOOTPRINT, FOOTPRINT)
    assert bag.frame.step == (FOOTPRINT - overlap,) * 2
    check(bag, place, tmp_path, overlap)


@pytest.mark.parametrize("flavour", ["leica", "generic", "dicom"])
@pytest.mark.parametrize("overlap", [0, 16])
def test_a_planted_square_comes_back_from_every_flavour_of_slide(tmp_path, flavour, overlap):
    bag, place = prepared(tmp_path, 0.25, 4, overlap, flavour)
    check(bag, place, tmp_path, overlap)


def test_the_degrees_of_the_graph_are_the_same_at_every_magnification(tmp_path):
    degrees = []
    for zoom, mpp in ((1, 1.0), (2, 0.5), (4, 0.25), (8, 0.125)):
        shape = makers.painted(96, 128, (16, 16, 80, 32, makers.TISSUE), (32, 48, 16, 32, makers.TISSUE))
        image = shape.repeat(zoom, 0).repeat(zoom, 1)
        path = makers.write_slide(tmp_path / f"slide{zoom}.svs", image, mpp)
        job = makers.job(path, tmp_path / "out", makers.recipe(tile_um=8.0))
        prepare_case(job)
        bag = read_bag(job.bag_path)
        degrees.append(sorted(bag.graph.indptr.diff().tolist()))
        assert (bag.coords % (8 * zoom) == 0).all()
    assert degrees[0][0] >= 3
    assert all(d == degrees[0] for d in degrees)

"""QuPath GeoJSON, read back with shapely and a strict check of what QuPath expects."""

import json
import time
from uuid import UUID

import numpy as np
import pytest
import shapely
from shapely.geometry import shape
from support.export_makers import META, SIDE, lesion_box, slide_case
from support.pyramids import FLAVOURS, PLANTED

from smmil.errors import DataError
from smmil.exports import export
from smmil.frame import Frame
from smmil.images import open_slide
from smmil.prediction import Prediction


def refuse(constant):
    raise AssertionError(f"{constant} is no JSON")


def read(path):
    """The content after checking every feature as QuPath does on import."""
    content = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    assert content["type"] == "FeatureCollection"
    for feature in content["features"]:
        check(feature)
    assert len({f["id"] for f in content["features"]}) == len(content["features"])
    return content


def check(feature):
    assert feature["type"] == "Feature"
    assert UUID(feature["id"]).version == 4
    assert UUID(feature["id"]).variant == "specified in RFC 4122"
    assert feature["geometry"]["type"] == "Polygon"
    for ring in feature["geometry"]["coordinates"]:
        assert len(ring) >= 4
        assert ring[0] == ring[-1]
    assert shape(feature["geometry"]).is_valid
    properties = feature["properties"]
    assert properties["objectType"] in ("tile", "annotation")
    assert properties["classification"]["name"]
    assert all(isinstance(v, int) and 0 <= v <= 255 for v in properties["classification"]["color"])
    assert all(v == "NaN" or isinstance(v, int | float) for v in properties["measurements"].values())
    assert all(isinstance(v, str) for v in properties.get("metadata", {}).values())


def of_kind(content, kind):
    return [f for f in content["features"] if f["properties"]["objectType"] == kind]


def lattice(cells, scores, **changes):
    given = {"coords": np.array(cells) * 10, "frame": Frame((10, 10)), "meta": META, **changes}
    return Prediction("grid", [0.5], np.array(scores, np.float32), **given)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_the_region_lies_on_the_lesion_to_the_pixel_as_qupath_counts(tmp_path, flavour):
    path, prediction = slide_case(tmp_path, flavour)
    export(prediction, "geojson", tmp_path / "a.geojson", image=path, threshold=0)
    content = read(tmp_path / "a.geojson")
    (region,) = of_kind(content, "annotation")
    with open_slide(path) as slide:
        x, y = slide.bounds[:2]
        left, top, right, bottom = shape(region["geometry"]).bounds
        assert (left + x, top + y, right + x, bottom + y) == lesion_box(flavour)
        assert (slide.read(left + x, top + y, SIDE, SIDE) == PLANTED).all()
    assert region["properties"]["measurements"]["area um^2"] == SIDE**2 * 0.25
    assert region["properties"]["measurements"]["tiles"] == 4
    hot = [f for f in of_kind(content, "tile") if f["properties"]["classification"]["name"] == "smmil positive"]
    assert shapely.union_all([shape(f["geometry"]) for f in hot]).equals(shape(region["geometry"]))
    assert len(of_kind(content, "tile")) == prediction.n


def test_bounds_in_the_prediction_do_when_the_slide_is_not_at_hand(tmp_path):
    path, prediction = slide_case(tmp_path, "leica")
    known = Prediction(**{**vars(prediction), "meta": {**META, "bounds": [64, 32, 320, 256]}})
    with_slide = export(prediction, "geojson", tmp_path / "a.geojson", image=path)
    with_meta = export(known, "geojson", tmp_path / "b.geojson")
    assert not with_slide.notes
    assert not with_meta.notes
    assert read(tmp_path / "a.geojson")["features"] == read(tmp_path / "b.geojson")["features"]
    unknown = export(prediction, "geojson", tmp_path / "c.geojson")
    assert "bounds are unknown" in unknown.notes[0][1]
    first = read(tmp_path / "c.geojson")["features"][0]
    assert first["geometry"]["coordinates"][0][0] == [64, 32]


def test_coordinates_in_micrometres_become_pixels_of_the_slide(tmp_path):
    path, prediction = slide_case(tmp_path)
    assert prediction.coords is not None
    in_um = Prediction(
        "case", [0.9], prediction.scores, coords=prediction.coords * 0.5, frame=Frame((16, 16), (1, 1), "um")
    )
    for name, one in (("px", prediction), ("um", in_um)):
        export(one, "geojson", tmp_path / f"{name}.geojson", image=path)
    shapes = [[f["geometry"] for f in read(tmp_path / f"{n}.geojson")["features"]] for n in ("px", "um")]
    assert shapes[0] == shapes[1]
    with pytest.raises(DataError, match=r"steps of 1 um .* give the slide with --image"):
        export(in_um, "geojson", tmp_path / "x.geojson")


def test_touching_tiles_merge_holes_stay_and_corners_do_not_join(tmp_path):
    ring = [(x, y) for y in range(3) for x in range(3) if (x, y) != (1, 1)]
    prediction = lattice([*ring, (3, 3), (1, 1), (9, 9)], [2] * 8 + [3] + [-1, -1])
    export(prediction, "geojson", tmp_path / "a.geojson", threshold=2)
    first, second = of_kind(read(tmp_path / "a.geojson"), "annotation")
    assert first["properties"]["measurements"] == {"tiles": 1, "score max": 3, "score mean": 3, "area px^2": 100}
    assert shape(second["geometry"]).area == 800
    assert len(second["geometry"]["coordinates"]) == 2
    outer, hole = (shapely.LinearRing(r) for r in second["geometry"]["coordinates"])
    assert outer.is_ccw
    assert not hole.is_ccw


def test_a_score_equal_to_the_threshold_is_positive_as_in_evaluate(tmp_path):
    export(lattice([(0, 0), (5, 5)], [0.5, 0.49]), "geojson", tmp_path / "a.geojson", threshold=0.5)
    names = [f["properties"]["classification"]["name"] for f in of_kind(read(tmp_path / "a.geojson"), "tile")]
    assert names == ["smmil positive", "smmil negative"]


def test_without_a_threshold_nothing_is_called_positive(tmp_path):
    export(lattice([(0, 0), (5, 5)], [0.5, 0.49]), "geojson", tmp_path / "a.geojson")
    content = read(tmp_path / "a.geojson")
    assert {f["properties"]["classification"]["name"] for f in content["features"]} == {"smmil tile"}
    assert not of_kind(content, "annotation")


def test_measurements_are_the_scores_and_an_attention_score_is_given_no_probability(tmp_path):
    scores = [0.1, -3.25, 2.0]
    labels = [1, -1, 0]
    export(lattice([(0, 0), (1, 0), (2, 0)], scores, y_inst=labels), "geojson", tmp_path / "a.geojson")
    found = [f["properties"]["measurements"] for f in read(tmp_path / "a.geojson")["features"]]
    assert [np.float32(m["score"]) for m in found] == [np.float32(s) for s in scores]
    assert [m["percentile"] for m in found] == pytest.approx([2 / 3, 1 / 3, 1])
    assert [m["probability"] for m in found] == ["NaN"] * 3
    assert [m["label"] for m in found] == [1, "NaN", 0]


def test_log_odds_of_instances_become_probabilities(tmp_path):
    one = lattice([(0, 0), (1, 0)], [0.0, np.log(3)], meta={"score_kind": "instance logit"})
    two = lattice([(0, 0)], [[0.0, np.log(4)]], meta={"score_kind": "instance logit"})
    for prediction, expected in ((one, [0.5, 0.75]), (two, [0.8])):
        export(prediction, "geojson", tmp_path / "a.geojson")
        found = [f["properties"]["measurements"]["probability"] for f in read(tmp_path / "a.geojson")["features"]]
        assert found == pytest.approx(expected, rel=1e-6)


def test_provenance_stands_at_the_top_and_in_every_region(tmp_path):
    export(lattice([(0, 0)], [1]), "geojson", tmp_path / "a.geojson", threshold=0)
    content = read(tmp_path / "a.geojson")
    (region,) = of_kind(content, "annotation")
    for facts in (content["smmil"], region["properties"]["metadata"]):
        assert facts["model"] == "sm_ap"
        assert facts["weights"] == "ab" * 32
        assert facts["score_kind"] == "attention logit"
        assert facts["software"].startswith("smmil ")
        assert facts["use"] == "research use only"


def test_ids_depend_on_scores_and_places_only(tmp_path):
    for name, score in (("a", 1), ("b", 1), ("c", 2)):
        export(lattice([(0, 0)], [score]), "geojson", tmp_path / f"{name}.geojson")
    a, b, c = (read(tmp_path / f"{n}.geojson")["features"][0]["id"] for n in "abc")
    assert a == b != c
    assert (tmp_path / "a.geojson").read_bytes() == (tmp_path / "b.geojson").read_bytes()


@pytest.mark.parametrize("columns", [80, pytest.param(400, marks=pytest.mark.slow)])
def test_a_hundred_thousand_tiles_take_less_than_ten_seconds(tmp_path, columns):
    """A fifth of them take less than a fifth of that."""
    cells = np.stack(np.meshgrid(np.arange(columns), np.arange(250)), -1).reshape(-1, 2)
    scores = np.sin(cells[:, 0] / 9) * np.cos(cells[:, 1] / 7)
    prediction = Prediction("big", [0.5], scores, coords=cells * 512, frame=Frame((512, 512)), meta=META)
    started = time.process_time()  # of one core, however busy the machine is
    export(prediction, "geojson", tmp_path / "a.geojson", threshold=0.2)
    assert time.process_time() - started < 10 * columns / 400
    content = json.loads((tmp_path / "a.geojson").read_text(), parse_constant=refuse)
    regions = of_kind(content, "annotation")
    assert sum(f["properties"]["measurements"]["tiles"] for f in regions) == (scores >= 0.2).sum()
    assert sum(shape(f["geometry"]).area for f in regions) == (scores >= 0.2).sum() * 512**2


def test_a_prediction_without_footprint_or_places_is_refused(tmp_path):
    with pytest.raises(DataError, match="how large its instances are"):
        export(lattice([(0, 0)], [1], frame=None), "geojson", tmp_path / "a.geojson")
    with pytest.raises(DataError, match="needs coords"):
        export(lattice([(0, 0)], [1], coords=None), "geojson", tmp_path / "a.geojson")
    with pytest.raises(DataError, match=r"is for slides, but this case has 1 coordinate"):
        export(lattice([(0,)], [1]), "geojson", tmp_path / "a.geojson")


@pytest.mark.parametrize(
    ("told", "words"),
    [({"size": [9999, 10]}, "pixels 9999 x 10"), ({"bounds": [7, 0, 9, 9]}, r"bounds .* 7 x 0 x 9 x 9")],
)
def test_a_map_is_not_laid_over_another_slide(tmp_path, told, words):
    slide, prediction = slide_case(tmp_path, "aperio")
    other = Prediction(**{**vars(prediction), "meta": {**prediction.meta, "slide": told}})
    with pytest.raises(DataError, match=rf"made from a slide with {words}, but .* has"):
        export(other, "geojson", tmp_path / "map.geojson", image=slide)

"""Packed scores: what is painted in the browser is what the model said, at the right place."""

import base64
import gzip

import numpy as np
import pytest
from support.lesion_cases import SIDE, TILE, lesion_mask, scan_case, slide_case, tissue_mask

from smmil.frame import Frame
from smmil.prediction import Prediction
from smmil.report import cases
from smmil.report.cases import _pack


def unpack(raster):
    """An independent reader: scores with nan and truth with -1 outside the tissue, as (rows, columns)."""
    facts, content = raster.facts, gzip.decompress(base64.b64decode(raster.packed))
    cells, n = facts["rows"] * facts["columns"], facts["cells"]
    mask = [content[i // 8] >> (i % 8) & 1 for i in range(cells)]
    start = -(-cells // 8)
    truth, first = content[start : start + n], content[start + n : start + 2 * n]
    second = content[start + 2 * n : start + 3 * n]
    numbers = [a * 256 + b for a, b in zip(first, second, strict=True)] if facts["bits"] == 16 else list(first)
    assert len(content) == start + n * (3 if facts["bits"] == 16 else 2)
    scores, known = np.full(cells, np.nan), np.full(cells, -1)
    for i, cell in enumerate(np.flatnonzero(mask)):
        share = numbers[i] / (2 ** facts["bits"] - 1)
        scores[cell], known[cell] = facts["low"] + share * (facts["high"] - facts["low"]), truth[i]
    shape = facts["rows"], facts["columns"]
    return scores.reshape(shape), known.reshape(shape)


@pytest.mark.parametrize("bits", [8, 16])
def test_every_score_lies_in_its_cell_to_half_a_level(bits):
    case = slide_case("a", seed=3)
    raster = _pack(case, bits=bits)
    scores, known = unpack(raster)
    left, top, _, _ = raster.facts["extent"]
    step = (case.scores.max() - case.scores.min()) / (2**bits - 1)
    for (x, y), score, truth in zip(case.coords, case.scores[:, 0], case.y_inst, strict=True):
        row, column = int((y - top) // TILE), int((x - left) // TILE)
        assert abs(scores[row, column] - score) <= step / 2 + 1e-9
        assert known[row, column] == truth
    assert np.isfinite(scores).sum() == case.n == raster.facts["cells"]


def test_the_hottest_cell_lies_in_the_planted_lesion():
    raster = _pack(slide_case("a", seed=1, place=(13, 9)))
    row, column = np.unravel_index(np.nanargmax(unpack(raster)[0]), (raster.facts["rows"], raster.facts["columns"]))
    left, top = (raster.facts["extent"][i] / TILE for i in (0, 1))
    assert (left + column, top + row) == (13, 9)
    assert lesion_mask(1, (13, 9))[int(top + row), int(left + column)]


def test_the_extent_covers_the_tissue_in_level_0_pixels():
    rows, columns = np.nonzero(tissue_mask(0))
    expected = [columns.min() * TILE, rows.min() * TILE, (columns.max() + 1) * TILE, (rows.max() + 1) * TILE]
    assert _pack(slide_case("a", seed=0)).facts["extent"] == expected
    assert max(expected) <= SIDE * TILE


def test_unknown_labels_stay_unknown():
    case = Prediction("a", [0.5], [1.0, 2.0, 3.0], coords=[[0, 0], [1, 0], [2, 0]], y_inst=[1, -1, 0])
    assert unpack(_pack(case))[1].tolist() == [[1, 2, 0]]
    assert _pack(case).facts["truth"]
    assert not _pack(Prediction("a", [0.5], [1.0], coords=[[0, 0]], y_inst=[-1])).facts["truth"]


def test_a_scan_is_a_strip_and_gaps_stay_gaps():
    case = Prediction("s", [0.5], [1.0, 2.0, 3.0], coords=[[2], [3], [6]], frame=Frame(patch=(1,)))
    raster = _pack(case)
    assert raster.facts["kind"] == "strip"
    np.testing.assert_allclose(unpack(raster)[0], [[1, 2, np.nan, np.nan, 3]], atol=1e-4)
    assert _pack(scan_case("s")).facts["columns"] == 36


def test_cases_without_a_plane_become_a_list_that_says_why():
    bare = _pack(Prediction("no coords", [0.5], [3.0, 1.0]))
    assert bare.facts["kind"] == "list"
    assert "coords" in bare.facts["notes"][0]
    assert "no coords:" not in bare.facts["notes"][0]
    four = _pack(Prediction("c", [0.5], [3.0, 1.0], coords=[[0, 0, 0, 0], [1, 1, 1, 1]]))
    assert four.facts["kind"] == "list"
    np.testing.assert_allclose(unpack(four)[0], [[3, 1]])


@pytest.mark.parametrize(("slices", "end"), [(None, 11), (10, 10)])
def test_patches_of_a_scan_are_layers_below_each_other(slices, end):
    coords = [[8, 0, 2], [16, 8, 2], [8, 8, 8]]
    meta = {} if slices is None else {"scan": {"slices": slices}}
    case = Prediction("c", [0.5], [3.0, 1.0, 2.0], coords=coords, frame=Frame((8, 8, 3)), y_inst=[1, 0, -1], meta=meta)
    facts = _pack(case).facts
    assert (facts["kind"], facts["layers"], facts["rows"], facts["columns"]) == ("volume", 3, 6, 2)
    assert facts["extent"] == [8, 0, 24, 16]
    assert facts["span"] == [2, end, 3]
    scores, known = unpack(_pack(case))
    nan = np.nan
    np.testing.assert_allclose(scores, [[3, nan], [nan, 1], [nan, nan], [nan, nan], [nan, nan], [2, nan]], atol=1e-4)
    assert known[~np.isnan(scores)].tolist() == [1, 0, 2]


def test_a_huge_scan_is_drawn_coarser_within_its_slices(monkeypatch):
    monkeypatch.setattr(cases, "MOST_CELLS", 100)
    z, y, x = (axis.ravel() for axis in np.mgrid[:3, :20, :10])
    scores = np.where((z == 1) & (y == 13) & (x == 7), 9.0, 0.0)
    raster = _pack(Prediction("c", [0.5], scores, coords=np.stack([x, y, z], 1), frame=Frame((1, 1, 1))))
    assert (raster.facts["layers"], raster.facts["rows"], raster.facts["columns"]) == (3, 3 * 7, 4)
    assert np.argwhere(unpack(raster)[0] == 9).tolist() == [[7 + 4, 2]]


def test_equal_scores_survive():
    raster = _pack(Prediction("flat", [0.5], [2.0, 2.0], coords=[[0, 0], [1, 0]]))
    assert unpack(raster)[0].tolist() == [[2.0, 2.0]]
    assert raster.facts["colours"] == [1.5, 2.5]


def test_a_huge_map_is_drawn_coarser_and_keeps_its_hottest_place(monkeypatch):
    monkeypatch.setattr(cases, "MOST_CELLS", 100)
    case = slide_case("a", seed=1, place=(13, 9))
    raster = _pack(case)
    assert raster.facts["rows"] * raster.facts["columns"] <= 100
    assert "2 x 2" in raster.facts["notes"][0] or "3 x 3" in raster.facts["notes"][0]
    scores = unpack(raster)[0]
    row, column = np.unravel_index(np.nanargmax(scores), scores.shape)
    left, top, right, bottom = raster.facts["extent"]
    wide, high = (right - left) / scores.shape[1], (bottom - top) / scores.shape[0]
    assert left + column * wide <= 13 * TILE < left + (column + 1) * wide
    assert top + row * high <= 9 * TILE < top + (row + 1) * high
    assert np.nanmax(scores) == pytest.approx(case.scores.max())


def test_the_same_case_gives_the_same_bytes():
    assert _pack(slide_case("a")).packed == _pack(slide_case("a")).packed

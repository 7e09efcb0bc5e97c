"""Packed dots: every instance at its own place, with its own score and label."""

import base64
import gzip

import numpy as np
import pytest
from support.lesion_cases import META

from smmil.frame import Frame
from smmil.prediction import Prediction
from smmil.report.cases import _pack


def nuclei(n=700, seed=0, side=90_000.0):
    rng = np.random.default_rng(seed)
    xy = rng.uniform(0, side, (n, 2))
    xy[1] = xy[0] + 1.5  # two nuclei nearer to each other than a crop is wide
    return Prediction("n", [0.5], rng.normal(size=n), coords=xy, frame=Frame((27, 27)), y=1,
                      y_inst=rng.integers(-1, 2, n), meta=META)  # fmt: skip


def unpack(raster):
    """An independent reader: x, y, score and truth of every dot."""
    facts, content = raster.facts, gzip.decompress(base64.b64decode(raster.packed))
    n, wide = facts["cells"], facts["bits"] // 8
    assert content[: n // 8] == b"\xff" * (n // 8)
    at = -(-n // 8)
    truth = list(content[at : at + n])
    planes = np.frombuffer(content, np.uint8, offset=at + n).reshape(wide + 4, n).astype(float)
    level = (planes[0] * 256 + planes[1]) / 65535 if wide == 2 else planes[0] / 255
    score = facts["low"] + level * (facts["high"] - facts["low"])
    left, top, right, bottom = facts["extent"]
    x = left + np.cumsum(planes[wide] * 256 + planes[wide + 1]) / 65535 * (right - left)
    y = top + (planes[wide + 2] * 256 + planes[wide + 3]) / 65535 * (bottom - top)
    return x, y, score, truth


@pytest.mark.parametrize("bits", [8, 16])
def test_every_dot_is_its_instance(bits):
    case = nuclei()
    x, y, score, truth = unpack(_pack(case, bits=bits))
    middle = case.coords + 13.5
    for place, value, label in zip(middle, case.scores[:, 0], case.y_inst, strict=True):
        near = np.flatnonzero(np.hypot(x - place[0], y - place[1]) < 1.5)
        step = (case.scores.max() - case.scores.min()) / (2**bits - 1)
        match = [i for i in near if abs(score[i] - value) <= step]
        assert match
        assert any(truth[i] == (2 if label < 0 else label) for i in match)
    assert len(x) == case.n


def test_dots_say_what_they_are():
    facts = _pack(nuclei()).facts
    assert facts["kind"] == "points"
    assert facts["width"] == 27
    assert facts["notes"] == ["700 instances on no lattice: every dot is one instance at its own place, hottest on top"]


def test_points_without_a_frame_are_dots_too():
    case = Prediction("n", [0.5], np.arange(50.0), coords=np.random.default_rng(0).integers(0, 5000, (50, 2)))
    raster = _pack(case)
    assert (raster.facts["kind"], raster.facts["width"], raster.facts["cells"]) == ("points", None, 50)
    x, y, score, _ = unpack(raster)
    best = score.argmax()
    np.testing.assert_allclose([x[best], y[best]], case.coords[49], atol=0.1)


def test_ten_thousand_dots_take_less_than_seven_bytes_each():
    assert len(_pack(nuclei(10_000)).packed) < 70_000

"""Stain normalisation: planted stains come back, twice is once, and every number agrees with a literal reference."""

import numpy as np
import pytest
from PIL import Image
from support import prepare_makers as makers

from smmil.errors import ConfigError, DataError
from smmil.formats import read_bag, read_provenance
from smmil.prepare import Recipe, load_recipe, plan, prepare_case
from smmil.prepare.stain import _TARGETS, _lab, _Stain, _with_reference

STAIN = {"stain", "stain_reference", "stain_target"}
HAEMATOXYLIN, EOSIN = np.array([0.60, 0.72, 0.35]), np.array([0.12, 0.90, 0.42])


def unit(vector):
    return vector / np.linalg.norm(vector)


def two_stains(seed, side=128, first=HAEMATOXYLIN, second=EOSIN, dense=1.0):
    """A picture of two stains: places of either alone, of both, and glass."""
    rng = np.random.default_rng(seed)
    kinds = rng.choice(4, (side, side), p=(0.25, 0.3, 0.35, 0.1))
    one = np.isin(kinds, (0, 2)) * rng.uniform(0.4, 1.6, kinds.shape) * dense
    two = np.isin(kinds, (1, 2)) * rng.uniform(0.4, 1.2, kinds.shape) * dense
    density = one[..., None] * unit(first) + two[..., None] * unit(second)
    return (240 * np.exp(-density) - 1).round().clip(0, 255).astype(np.uint8)


def degrees(a, b):
    return np.degrees(np.arccos(np.clip(unit(np.asarray(a)) @ unit(np.asarray(b)), -1, 1)))


def literal_macenko(image):
    """The steps of the paper one after the other, with library routines; gives the normalised picture."""
    od = -np.log((image.reshape(-1, 3).astype(float) + 1) / 240)
    tissue = od[od.mean(1) >= 0.15]
    plane = np.linalg.svd(tissue, full_matrices=False)[2][:2]
    plane *= np.sign(plane.sum(1, keepdims=True))
    phi = np.arctan2(tissue @ plane[1], tissue @ plane[0])
    ends = [np.cos(p) * plane[0] + np.sin(p) * plane[1] for p in np.percentile(phi, (1, 99))]
    stains = np.array(sorted(ends, key=lambda v: -v[0])).T
    most = np.percentile(np.linalg.lstsq(stains, tissue.T, rcond=None)[0], 99, axis=1)
    amounts = np.linalg.lstsq(stains, od.T, rcond=None)[0] / most[:, None] * np.array([[1.9705], [1.0308]])
    target = np.array([[0.5626, 0.2159], [0.7201, 0.8012], [0.4062, 0.5581]])
    return stains, (240 * np.exp(-(target @ amounts)) - 1).T.reshape(image.shape).clip(0, 255)


def normalised(method, image, target=None):
    return _Stain.fit(method, image.reshape(-1, 3)).towards(target)(image)


@pytest.mark.parametrize("dense", [0.7, 1.0, 1.4])
def test_macenko_recovers_planted_stains(dense):
    found = _Stain.fit("macenko", two_stains(0, dense=dense).reshape(-1, 3)).numbers
    assert degrees(found[:3], HAEMATOXYLIN) < 1
    assert degrees(found[3:6], EOSIN) < 1


def test_macenko_equals_the_literal_steps():
    image = two_stains(1)
    stains, expected = literal_macenko(image)
    fitted = _Stain.fit("macenko", image.reshape(-1, 3))
    assert np.array(fitted.numbers[:6]) == pytest.approx(stains.T.ravel(), abs=1e-9)
    assert np.abs(fitted.towards()(image) - expected).max() <= 0.5 + 1e-6


def test_macenko_gives_two_scanners_the_same_colours():
    """The same tissue with other stains and other amounts comes out alike."""
    other = {"first": np.array([0.70, 0.62, 0.30]), "second": np.array([0.05, 0.95, 0.30]), "dense": 0.8}
    a, b = two_stains(2), two_stains(2, **other)
    before, after = (
        np.abs(a.astype(float) - b),
        np.abs(normalised("macenko", a).astype(float) - normalised("macenko", b)),
    )
    assert before.mean() > 15
    assert after.mean() < 2


def test_macenko_twice_is_macenko_once():
    once = normalised("macenko", two_stains(3))
    changed = np.abs(normalised("macenko", once).astype(int) - once)
    assert changed.mean() < 0.5
    assert changed.max() <= 1


def test_its_own_stains_as_the_target_change_nothing():
    image = two_stains(4)
    for method in _TARGETS:
        own = _Stain.fit(method, image.reshape(-1, 3)).numbers
        assert np.abs(normalised(method, image, own).astype(int) - image).max() <= 1


def literal_lab(image):
    lms = image.reshape(-1, 3).astype(float) @ np.array(
        [[0.3811, 0.1967, 0.0241], [0.5783, 0.7244, 0.1288], [0.0402, 0.0782, 0.8444]]
    )
    log = np.log(lms)
    return np.stack(
        [log.sum(1) / 3**0.5, (log[:, 0] + log[:, 1] - 2 * log[:, 2]) / 6**0.5, (log[:, 0] - log[:, 1]) / 2**0.5]
    )


def test_reinhard_matches_mean_and_deviation():
    """Before rounding to bytes exactly, after it as well as whole grey levels can."""
    image = two_stains(5)
    pixels = image[-np.log((image + 1.0) / 240).mean(2) >= 0.15]
    assert np.array(_lab(pixels)) == pytest.approx(literal_lab(pixels), abs=1e-9)
    target = (8.9, -0.05, 0.02, 0.35, 0.08, 0.02)
    source = _Stain.fit("reinhard", image.reshape(-1, 3))
    mean, deviation = np.array(source.numbers[:3]), np.array(source.numbers[3:])
    assert mean == pytest.approx(literal_lab(pixels).mean(1), abs=1e-12)
    assert deviation == pytest.approx(literal_lab(pixels).std(1), abs=1e-12)
    made = source.towards(target)(pixels)
    assert made.min() > 0
    assert made.max() < 255  # nothing is clipped
    found = literal_lab(made)
    assert found.mean(1) == pytest.approx(target[:3], abs=2e-4)
    assert found.std(1) == pytest.approx(target[3:], abs=1e-4)


def test_too_little_tissue_and_a_single_stain_are_refused():
    glass = np.full((64, 64, 3), 245, np.uint8)
    flat = np.full((64, 64, 3), (150, 90, 140), np.uint8)
    for method in _TARGETS:
        with pytest.raises(DataError, match="sees 0 stained pixels and needs 1,000"):
            _Stain.fit(method, glass.reshape(-1, 3))
    with pytest.raises(DataError, match="finds one stain"):
        _Stain.fit("macenko", two_stains(6, second=HAEMATOXYLIN).reshape(-1, 3))
    with pytest.raises(DataError, match="single colour"):
        _Stain.fit("reinhard", flat.reshape(-1, 3))


@pytest.fixture(scope="module")
def stained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stained")
    Image.fromarray(two_stains(8)).save(folder / "target.png")
    image = makers.glass(384, 384)
    image[64:320, 64:320] = two_stains(7, 256)
    return makers.write_slide(folder / "s.svs", image), folder / "target.png"


def prepared(slide, out, **choices):
    base = makers.recipe()
    chosen = load_recipe(
        None, {"encoder": makers.ENCODER, "tile_um": 32.0, "pixels": 64, "tissue": base.tissue.model_dump(), **choices}
    )
    job = makers.job(slide, out, chosen)
    return prepare_case(job), job


@pytest.mark.parametrize("choices", [{"stain": "macenko"}, {"stain": "reinhard"}], ids=str)
def test_tiles_are_encoded_in_the_target_colours(stained, tmp_path, choices):
    done, job = prepared(stained[0], tmp_path / "a", **choices)
    plain, plain_job = prepared(stained[0], tmp_path / "plain")
    assert (done.status, done.instances) == ("written", plain.instances)
    tile = two_stains(7, 256)[64:128, 64:128]
    found = read_provenance(job.bag_path)["stain"]
    assert "stain" not in read_provenance(plain_job.bag_path)
    mean = _Stain(found["method"], tuple(found["found"])).towards()(tile).reshape(-1, 3).mean(0) / 255
    bag = read_bag(job.bag_path)
    row = bag.coords.tolist().index([128, 128])
    assert bag.x[row].float().numpy() == pytest.approx(mean, abs=4e-3)
    assert not np.array_equal(bag.x, read_bag(plain_job.bag_path).x)
    _, other = prepared(stained[0], tmp_path / "b", **choices)
    assert prepare_case(job).status == "kept"
    assert job.bag_path.read_bytes() == other.bag_path.read_bytes()


def test_a_reference_is_kept_as_numbers_and_checksum(stained, tmp_path):
    target = stained[1]
    (tmp_path / "recipe.yaml").write_text("stain: macenko\nstain_reference: target.png\n")
    (tmp_path / "target.png").write_bytes(target.read_bytes())
    chosen = _with_reference(load_recipe(tmp_path / "recipe.yaml"))
    assert chosen.stain_target == _Stain.fit("macenko", two_stains(8).reshape(-1, 3)).numbers
    assert str(tmp_path) not in str(chosen.settings())
    other = plan([stained[0]], tmp_path, load_recipe(None, {"stain": "macenko", "stain_reference": str(target)})).recipe
    assert other.digest("e") == chosen.digest("e")
    assert load_recipe(None, chosen.settings()) == chosen  # as a package does
    digests = {load_recipe(None, {"stain": s}).digest("e") for s in ("macenko", "reinhard", None)}
    assert len({*digests, chosen.digest("e")}) == 4
    assert not STAIN & set(Recipe().settings())
    unread = load_recipe(tmp_path / "recipe.yaml")
    with pytest.raises(ConfigError, match="was not read"):
        prepare_case(makers.job(stained[0], tmp_path / "out", makers.recipe(**unread.model_dump(include=STAIN))))
    (tmp_path / "target.png").unlink()
    with pytest.raises(DataError, match="no such file"):
        _with_reference(unread)
    for wrong in ({"stain_reference": "a.png"}, {"stain": "macenko", "stain_target": (1.0,)}):
        with pytest.raises(ConfigError, match="stain_"):
            load_recipe(None, wrong)


def test_a_slide_with_one_stain_fails_by_name(tmp_path):
    image = makers.painted(128, 128, (16, 16, 96, 96, makers.TISSUE))
    slide = makers.write_slide(tmp_path / "flat.svs", image)
    with pytest.raises(DataError, match=r"flat\.svs: stain normalisation finds one stain"):
        prepared(slide, tmp_path / "out", stain="macenko")

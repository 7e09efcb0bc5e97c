"""Laws of the facts of image quality: closed forms, invariances, and growth with what they measure."""

import io
import itertools

import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import gaussian_filter

from smmil.images.quality import SLICE_FACTS, TILE_FACTS, slice_facts, tile_facts

HAEMATOXYLIN, EOSIN = np.array([0.65, 0.70, 0.29]), np.array([0.07, 0.99, 0.11])


def coloured(density):
    return np.clip(np.rint(256 * np.exp(-density) - 1), 0, 255).astype(np.uint8)


def stained(seed=0, side=64, blue=1.0, pink=1.0):
    """Nuclei and stroma: two smooth amounts, a little noise."""
    rng = np.random.default_rng(seed)
    h, e = (gaussian_filter(rng.standard_normal((side, side)), s, mode="wrap") * 2 * s for s in (1.5, 3.0))
    density = blue * np.exp(0.5 * h)[..., None] * 0.5 * HAEMATOXYLIN + pink * np.exp(0.4 * e)[..., None] * 0.4 * EOSIN
    return coloured(density + 0.01 * rng.standard_normal(density.shape))


def compressed(tile, quality):
    buffer = io.BytesIO()
    Image.fromarray(tile).save(buffer, "JPEG", quality=quality)
    return np.asarray(Image.open(buffer).convert("RGB"))


def fact(name, tile):
    return float(tile_facts(tile)[TILE_FACTS.index(name)])


def test_a_picture_of_blocks_has_nine_times_the_mean_step_at_their_borders():
    """64 pixels have 63 steps, 7 of them at borders; all others are 0, whatever the levels."""
    levels = np.random.default_rng(0).integers(0, 255, (8, 8, 3)).astype(np.uint8)
    tile = levels.repeat(8, 0).repeat(8, 1)
    assert fact("blocks", tile) == pytest.approx(9, abs=1e-5)
    assert fact("colour_blocks", tile) == pytest.approx(9, abs=1e-5)


def test_traces_of_compression_are_found_wherever_the_tile_begins():
    plain, large = stained(1, 96), compressed(stained(1, 96), 30)
    places = [(i, (3 * i) % 8) for i in range(8)]
    found = [fact("blocks", large[y : y + 80, x : x + 80]) for y, x in places]
    usual = [fact("blocks", plain[y : y + 80, x : x + 80]) for y, x in places]
    assert min(found) > 2 * max(usual)
    assert max(found) / min(found) < 1.3


@pytest.mark.parametrize("turned", [np.fliplr, np.flipud, np.rot90, lambda t: t.transpose(1, 0, 2)])
def test_a_turned_or_mirrored_tile_has_the_same_facts(turned):
    tile = compressed(stained(2), 50)
    np.testing.assert_allclose(tile_facts(np.ascontiguousarray(turned(tile))), tile_facts(tile), atol=1e-4)


def test_sharpness_does_not_depend_on_brightness():
    tile = stained(3) // 2
    assert fact("sharpness", tile + 60) == fact("sharpness", tile)
    assert fact("sharpness", 2 * tile) == pytest.approx(fact("sharpness", tile), abs=1e-6)


def test_planarity_does_not_depend_on_the_density_of_the_stain():
    thin, thick = stained(4, blue=0.8, pink=0.8), stained(4, blue=1.2, pink=1.2)
    moved = fact("haematoxylin", thick) - fact("haematoxylin", thin)
    assert moved == pytest.approx(np.log(1.5), abs=0.05)
    density = -np.log((stained(4).astype(float) + 1) / 256)
    same = [fact("planarity", coloured(scale * density)) for scale in (0.7, 1.0)]
    assert same[0] == pytest.approx(same[1], abs=0.15)  # bytes round


@pytest.mark.parametrize(("h", "e"), [(0.8, 0.4), (0.3, 0.9)])
def test_a_known_mixture_of_stains_is_recovered(h, e):
    tile = np.broadcast_to(coloured(h * HAEMATOXYLIN + e * EOSIN), (64, 64, 3))
    assert fact("haematoxylin", tile) == pytest.approx(np.log(h), abs=0.03)
    assert fact("eosin", tile) == pytest.approx(np.log(e), abs=0.03)
    assert fact("ink", tile) == 0


def test_colours_of_two_stains_lie_in_a_plane_and_those_of_three_do_not():
    rng = np.random.default_rng(5)
    h, e, third = rng.uniform(0.2, 0.8, (3, 64, 64, 1))
    two = h * HAEMATOXYLIN + e * EOSIN
    assert fact("planarity", coloured(two)) < -5
    assert fact("planarity", coloured(two + third * np.array([0.27, 0.57, 0.78]))) > -4


def falling(values):
    return all(a > b for a, b in itertools.pairwise(values))


@pytest.mark.parametrize("seed", range(3))
def test_facts_grow_with_what_they_measure(seed):
    tile = stained(10 + seed, 96)
    assert falling([fact("sharpness", gaussian_filter(tile, (s, s, 0))) for s in (0, 0.5, 1, 2)])
    assert all(fact("sharpness", enlarged(tile, f)) < fact("sharpness", tile) - 0.05 for f in (1.3, 2))
    assert falling([fact("blocks", compressed(tile, q)) for q in (5, 15, 40, 95)])
    assert fact("colour_blocks", compressed(tile, 60)) > 2 * fact("colour_blocks", tile)
    assert falling([fact("haematoxylin", stained(seed, blue=b)) for b in (2, 1.5, 1.25, 1)])
    assert falling([fact("eosin", stained(seed, pink=p)) for p in (2, 1.5, 1.25, 1)])


def enlarged(tile, factor):
    keep = round(len(tile) / factor)
    return np.asarray(Image.fromarray(tile[:keep, :keep]).resize(tile.shape[:2], Image.Resampling.BICUBIC))


@pytest.mark.parametrize("ink", [(30, 60, 160), (20, 120, 60)])
def test_ink_is_the_share_that_a_pen_covers(ink):
    tile = stained(6)
    for rows in (0, 16, 48):
        marked = tile.copy()
        marked[:rows] = np.rint(0.25 * tile[:rows] + 0.75 * np.array(ink))
        assert fact("ink", marked) == pytest.approx(rows / 64, abs=0.05)


def test_what_an_empty_picture_cannot_tell_is_unknown():
    glass = tile_facts(np.full((64, 64, 3), 240, np.uint8))
    assert np.isnan(glass[:-1]).all()
    assert glass[-1] == 0
    assert np.isnan(tile_facts(np.full((4, 4, 3), 100, np.uint8))[:3]).all()
    assert np.isnan(slice_facts(np.full((32, 32), -1000.0))).all()


def scan(deviation, value=40.0, seed=0):
    return value + deviation * np.random.default_rng(seed).standard_normal((256, 256))


@pytest.mark.parametrize("deviation", [3.0, 8.0])
def test_noise_density_and_contrast_of_a_noisy_slice_are_those_it_was_made_with(deviation):
    """White noise changes as much to the next voxel as to the one after."""
    sharpness, noise, density, contrast = slice_facts(scan(deviation))
    assert sharpness == pytest.approx(0, abs=0.02)
    assert np.exp(noise) == pytest.approx(deviation, rel=0.05)
    assert density == pytest.approx(40, abs=0.2)
    assert np.exp(contrast) == pytest.approx(1.349 * deviation, rel=0.05)


def test_a_shift_in_density_changes_nothing_else_and_smoothing_is_seen():
    plain, moved = slice_facts(scan(5.0)), slice_facts(scan(5.0) + 8)
    assert moved[2] - plain[2] == pytest.approx(8, abs=1e-3)
    np.testing.assert_allclose(np.delete(moved, 2), np.delete(plain, 2), atol=2e-3)
    smooth = dict(zip(SLICE_FACTS, slice_facts(gaussian_filter(scan(5.0), 1)), strict=True))
    assert smooth["sharpness"] < -0.5
    assert smooth["noise"] < plain[1] - 0.5

"""Tissue masks: shares against counting, blank and full slides, dust and holes, masks and outlines of others."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support import prepare_makers as makers

from smmil.errors import ConfigError, DataError
from smmil.images import open_slide
from smmil.prepare import Recipe, TissueRecipe, load_recipe, plan, prepare_case, run
from smmil.prepare.selection import _select_tiles
from smmil.prepare.tissue import _ink, _tidy, _tissue_of, _TissueMask

PLAIN = TissueRecipe(resolution_um=4.0, smallest_um2=0.0, hole_um2=0.0)


def slide_of(tmp_path, image, mpp=0.5, **options):
    return open_slide(makers.write_slide(tmp_path / "slide.svs", image, mpp, **options))


def share_by_counting(mask, scale, origin, x, y, side):
    """Every level-0 pixel asked for its mask pixel."""
    count = 0
    for i in range(y, y + side):
        for j in range(x, x + side):
            r, c = int((i - origin[1]) // scale[1]), int((j - origin[0]) // scale[0])
            count += 0 <= r < mask.shape[0] and 0 <= c < mask.shape[1] and bool(mask[r, c])
    return count / side**2


def test_shares_equal_the_counted_pixels():
    rng = np.random.default_rng(0)
    mask, scale, origin = rng.random((9, 7)) < 0.5, (4, 3), (5, -2)
    coords = rng.integers(-10, 30, (60, 2))
    expected = [share_by_counting(mask, scale, origin, x, y, 6) for x, y in coords.tolist()]
    assert _TissueMask(mask, scale, origin).shares(coords, 6) == pytest.approx(expected, abs=1e-9)


def test_parts_of_mask_pixels_count_in_part():
    mask = _TissueMask(np.array([[True, False]]), (2.5, 2.5))
    assert mask.shares(np.array([[0.0, 0.0], [2.0, 0.0], [1.25, 0.0]]), 2.5).tolist() == pytest.approx([1, 0.2, 0.5])


def test_glass_and_tissue_are_told_apart_to_the_mask_pixel(tmp_path):
    image = makers.painted(256, 320, (64, 48, 160, 128, makers.TISSUE))
    with slide_of(tmp_path, image) as slide:
        found = _TissueMask.find(slide, PLAIN)
    assert found.scale == (8, 8)
    expected = np.zeros((32, 40), bool)
    expected[6:22, 8:28] = True
    wrong = found.mask != expected
    assert wrong.sum() <= 4  # the median rounds the four corners
    assert not wrong[7:21, 9:27].any()


@pytest.mark.parametrize(("colour", "spread", "share"), [(makers.GLASS, 4, 0.0), (makers.TISSUE, 20, 1.0)])
def test_blank_glass_is_not_split_in_two_and_neither_is_a_slide_without_glass(tmp_path, colour, spread, share):
    patches = np.random.default_rng(0).integers(-spread, spread + 1, (16, 16, 3)).repeat(16, 0).repeat(16, 1)
    image = np.clip(np.array(colour) + patches, 0, 255).astype(np.uint8)
    with slide_of(tmp_path, image) as slide:
        assert _TissueMask.find(slide, PLAIN).mask.mean() == share


def test_ink_and_black_borders_are_no_tissue(tmp_path):
    image = makers.painted(256, 256, (0, 0, 128, 256, (18, 2, 9)), (128, 0, 64, 256, makers.TISSUE))
    with slide_of(tmp_path, image) as slide:
        mask = _TissueMask.find(slide, PLAIN).mask
    assert not mask[:, :15].any()
    assert mask[:, 17:23].all()


def test_dust_goes_and_small_holes_are_filled():
    mask = np.zeros((20, 20), bool)
    mask[2:14, 2:14] = True
    mask[5:7, 5:7] = False
    mask[9:12, 9:12] = False
    mask[17:19, 17:19] = True
    tidied = _tidy(mask, smallest=5, hole=5)
    assert not tidied[16:, 16:].any()
    assert tidied[5:7, 5:7].all()
    assert not tidied[9:12, 9:12].any()
    assert tidied.sum() == 144 - 9
    assert np.array_equal(_tidy(mask, smallest=4, hole=4), mask)  # exactly as many pixels are enough


def test_sizes_of_dust_count_in_micrometres_whatever_the_magnification(tmp_path):
    recipe = TissueRecipe(resolution_um=4.0, smallest_um2=300.0, hole_um2=0.0)
    for zoom, mpp in ((1, 1.0), (4, 0.25)):
        image = makers.painted(128, 128, (16, 16, 12, 12, makers.TISSUE), (64, 64, 24, 24, makers.TISSUE))
        folder = tmp_path / str(zoom)
        with slide_of(folder, image.repeat(zoom, 0).repeat(zoom, 1), mpp) as slide:
            mask = _TissueMask.find(slide, recipe).mask
        assert mask.shape == (32, 32)
        assert not mask[:10, :10].any()
        assert mask[17:21, 17:21].all()


def test_without_a_method_everything_inside_the_bounds_is_tissue(tmp_path):
    path = makers.write_slide(tmp_path / "s.scn", makers.glass(96, 128), 0.5, flavour="leica", bounds_offset=(64, 32))
    with open_slide(path) as slide:
        mask = _TissueMask.find(slide, TissueRecipe(method="none"))
        x, y, width, height = slide.bounds
    corners = np.array([[x, y], [x - 16, y], [x + width - 16, y + height - 8], [x + width, y]])
    assert mask.shares(corners, 32).tolist() == [1, 0.5, 0.5 * 0.25, 0]


def test_a_given_mask_wins_and_must_have_the_shape_of_the_slide(tmp_path):
    drawn = np.zeros((32, 40), np.uint8)
    drawn[4:8, 10:20] = 255
    Image.fromarray(drawn).save(tmp_path / "mask.png")
    Image.fromarray(drawn[:20]).save(tmp_path / "cropped.png")
    (tmp_path / "broken.png").write_bytes((tmp_path / "mask.png").read_bytes()[:40])
    with slide_of(tmp_path, makers.glass(256, 320)) as slide:
        mask = _TissueMask.find(slide, PLAIN, tmp_path / "mask.png")
        assert mask.shares(np.array([[80, 32], [72, 32], [200, 200]]), 16).tolist() == [1, 0.5, 0]
        with pytest.raises(DataError, match=r"cropped.png: 40 x 20 pixels do not have the shape of the slide"):
            _TissueMask.find(slide, PLAIN, tmp_path / "cropped.png")
        for name in ("broken.png", "absent.png"):
            with pytest.raises(DataError, match=name):
                _TissueMask.find(slide, PLAIN, tmp_path / name)


def ring(x, y, side):
    return [[x, y], [x + side, y], [x + side, y + side], [x, y + side], [x, y]]


@pytest.mark.parametrize("origin", ["level0", "bounds"])
def test_outlines_with_holes_count_from_level_0_or_from_the_bounds(tmp_path, origin):
    path = makers.write_slide(tmp_path / "s.scn", makers.glass(256, 256), 0.5, flavour="leica", bounds_offset=(64, 32))
    one = {"type": "Polygon", "coordinates": [ring(64, 64, 128), ring(96, 96, 32)]}
    two = {"type": "MultiPolygon", "coordinates": [[ring(0, 0, 16)], [ring(200, 200, 16)]]}
    outlines = tmp_path / "s.geojson"
    features = [{"type": "Feature", "geometry": shape} for shape in (one, two)]
    outlines.write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    with open_slide(path) as slide:
        mask = _TissueMask.find(slide, PLAIN.model_copy(update={"origin": origin}), outlines)
    shift = np.array((64, 32) if origin == "bounds" else (0, 0))
    corners = np.array([[64, 64], [96, 96], [0, 0], [200, 200], [144, 144], [24, 24]]) + shift
    assert mask.shares(corners, 16).tolist() == [1, 0, 1, 1, 1, 0]


def test_a_mask_pixel_belongs_to_an_outline_when_its_centre_does(tmp_path):
    outlines = tmp_path / "s.geojson"
    outlines.write_text(json.dumps({"type": "Polygon", "coordinates": [ring(66, 61, 128)]}))
    with slide_of(tmp_path, makers.glass(256, 256)) as slide:
        mask = _TissueMask.find(slide, PLAIN, outlines).mask
    expected = np.zeros((32, 32), bool)
    expected[8:24, 8:24] = True  # centres from 68 to 188 in both axes
    assert np.array_equal(mask, expected)


@pytest.mark.parametrize("text", ["{", "3", '{"type": "Point", "coordinates": [1, 2]}', '{"type": "Feature"}',
                                  '{"type": "Polygon", "coordinates": [[[1, 2], [3]]]}',
                                  '{"type": "Polygon", "coordinates": [[[1, 2], [3, 4], ["a", 5]]]}'])  # fmt: skip
def test_outlines_that_make_no_sense_are_refused_by_name(tmp_path, text):
    (tmp_path / "bad.geojson").write_text(text)
    with slide_of(tmp_path, makers.glass(64, 64)) as slide, pytest.raises(DataError, match=r"bad\.geojson"):
        _TissueMask.find(slide, PLAIN, tmp_path / "bad.geojson")


PENS = {"blue": (35, 60, 165), "green": (20, 120, 70), "red": (215, 25, 45), "black": (35, 33, 38)}
HAEMATOXYLIN, EOSIN = np.array([0.65, 0.70, 0.29]), np.array([0.07, 0.99, 0.11])


def stained_slide(seed, side=750):
    """Optical densities (side, side, 3) at 8 µm per pixel: a round piece of tissue with dense and loose parts."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:side, :side] / side - 0.5
    piece = (x**2 + y**2 < 0.38**2)[..., None]
    nuclei = np.where(
        rng.random((side, side, 1)) < 0.3 + 0.5 * (x > 0)[..., None], rng.uniform(0.3, 1.0, (side, side, 1)), 0.1
    )
    stroma = rng.uniform(0.15, 0.7, (side, side, 1))
    return np.full((side, side, 3), 0.04) + piece * (nuclei * HAEMATOXYLIN + stroma * EOSIN), piece[..., 0]


def with_strokes(density, pens, width=80):
    """The slide with one felt-pen stroke per colour across glass and tissue, and where the ink is."""
    side, ink = len(density), np.zeros(density.shape[:2], bool)
    for number, name in enumerate(pens):
        top = (number + 1) * side // (len(pens) + 1) - width // 2
        row = slice(top, top + width)
        ink[row, 30 : side - 30] = True
        density[row, 30 : side - 30] += -np.log((np.array(PENS[name]) + 1) / 256)
    return (256 * np.exp(-density) - 1).clip(0, 255).round().astype(np.uint8), ink


def tiles_of(path, **tissue):
    with open_slide(path) as slide:
        chosen = _select_tiles(slide, Recipe(tissue=TissueRecipe(**tissue)))
    return {tuple(place) for place in chosen.coords.tolist()}, chosen


@pytest.mark.parametrize("pens", [["blue"], ["green"], ["red"], ["black"], list(PENS)], ids=str)
def test_felt_pen_is_left_out_and_tissue_is_not(tmp_path, pens):
    image, ink = with_strokes(stained_slide(0)[0], pens)
    path = makers.write_slide(tmp_path / "s.svs", image, 8.0, compression="jpeg")
    (before, chosen), (after, _) = tiles_of(path), tiles_of(path, pen="exclude")
    covered = _TissueMask(ink, (1, 1)).shares(np.array(sorted(before)), chosen.footprint)
    inked = {place for place, share in zip(sorted(before), covered, strict=True) if share > 0.75}
    clean = {place for place, share in zip(sorted(before), covered, strict=True) if share == 0}
    assert len(clean) > 60
    assert len(inked) >= (5 if pens == ["black"] else 12)  # black has no colour, so most of it was no tissue before
    assert len(inked & after) <= 0.05 * len(inked)
    assert len(clean - after) <= 0.01 * len(clean)
    assert after <= before


def test_ink_that_is_kept_is_told_with_the_option_that_leaves_it_out(tmp_path):
    image, _ = with_strokes(stained_slide(1, 300)[0], ["blue"])
    job = makers.job(makers.write_slide(tmp_path / "s.svs", image, 8.0), tmp_path / "out", makers.recipe(tile_um=256.0))
    done, again = prepare_case(job), prepare_case(job)
    assert (done.status, again.status) == ("written", "kept")
    assert done.warnings == again.warnings
    assert "looks like felt pen; --pen exclude leaves it out" in done.warnings[0]
    clean = makers.write_slide(tmp_path / "clean.svs", with_strokes(stained_slide(1, 300)[0], [])[0], 8.0)
    assert not tiles_of(clean)[1].facts.get("warnings")


def colon_images():
    folder = Path(os.environ.get("SMMIL_DATA", "")) / "crchisto/png"
    if not folder.is_dir():
        pytest.skip("SMMIL_DATA has no crchisto images")
    return sorted(folder.glob("*.png"))


def test_no_tissue_of_real_stains_is_taken_for_pen_and_real_ink_is():
    """Four of the 100 colon images hold ink of surgical margins; it is seen when pieces of any size count."""
    inked = set()
    for path in colon_images():
        with open_slide(path, mpp=0.5) as slide:
            whole, rest = (_TissueMask.find(slide, TissueRecipe(pen=pen)) for pen in ("keep", "exclude"))
            assert np.array_equal(whole.mask, rest.mask)
            if _ink(slide.thumbnail(32).image, smallest=1).any():
                inked.add(path.stem)
    assert inked == {"img11", "img12", "img62", "img63"}


def test_no_tile_of_a_real_slide_is_taken_for_pen():
    path = Path(os.environ.get("SMMIL_DATA", "")) / "cmu_small_svs/cmu_small_region.svs"
    if not path.is_file():
        pytest.skip("SMMIL_DATA has no cmu_small_svs")
    (before, chosen), (after, _) = tiles_of(path), tiles_of(path, pen="exclude")
    assert before == after
    assert not chosen.mask.warnings


def test_pen_and_grey_do_not_go_together_and_old_fingerprints_stay():
    with pytest.raises(ConfigError, match="pen is told from tissue by colour"):
        load_recipe(None, {"tissue": {"pen": "exclude", "method": "grey"}})
    assert "pen" not in Recipe().settings()["tissue"]
    assert Recipe().digest("e") != load_recipe(None, {"tissue": {"pen": "exclude"}}).digest("e")


def grey_slide(seed, glass, tissue, side=256):
    """A picture without colour: noisy tissue of this shade in its middle on a background of that shade."""
    rng = np.random.default_rng(seed)
    shades = np.full((side, side), float(glass))
    inside = slice(side // 4, 3 * side // 4)
    shades[inside, inside] = tissue
    noisy = shades + rng.normal(0, 3, shades.shape)
    return noisy.round().clip(0, 255).astype(np.uint8)[..., None].repeat(3, 2)


@pytest.mark.parametrize(
    ("method", "glass", "tissue"),
    [("grey", 240, 150), ("grey", 205, 100), ("grey", 245, 222), ("dark", 8, 60), ("dark", 20, 200)],
)
def test_grey_tissue_is_found_on_light_and_on_dark_background(method, glass, tissue):
    image = grey_slide(0, glass, tissue)
    expected = np.zeros((256, 256), bool)
    expected[64:192, 64:192] = True
    found, _ = _tissue_of(image, TissueRecipe(method=method), 16, 16)
    assert (found != expected).mean() < 0.01
    none, told = _tissue_of(image, TissueRecipe(), 16, 16)
    assert not none.any()
    assert f"no colour, by which tissue is found: with a {'light' if method == 'grey' else 'dark'}" in told[0]
    assert told[0].endswith(f"--tissue {method}")


@pytest.mark.parametrize(("method", "shade"), [("grey", 240), ("grey", 120), ("dark", 10), ("dark", 130)])
def test_a_grey_slide_of_one_shade_is_all_background_or_all_tissue(method, shade):
    image = grey_slide(1, shade, shade)
    found, _ = _tissue_of(image, TissueRecipe(method=method), 16, 16)
    assert found.mean() == (shade in (120, 130))
    if shade in (240, 10):  # blank: nothing to propose
        assert _tissue_of(image, TissueRecipe(), 16, 16)[1] == ()


def test_a_slide_without_colour_says_which_option_finds_its_tissue(tmp_path):
    path = makers.write_slide(tmp_path / "ihc.svs", grey_slide(2, 240, 120, 512), 1.0)
    out = tmp_path / "out"
    failed = run(plan([path], out, makers.recipe(tile_um=64.0)))
    assert "no tissue found; the image has no colour" in failed.failures[0][2]
    found = run(plan([path], tmp_path / "grey", makers.recipe(tile_um=64.0, tissue={"method": "grey"})))
    assert found.outcomes[0].value.instances == 16

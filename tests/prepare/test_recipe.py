"""A recipe says the same thing in one way only, and refuses what it does not know."""

import pytest

from smmil.errors import ConfigError
from smmil.prepare import Recipe, load_recipe, refuse_unused

CHANGES = [
    {"tile_um": 128.0},
    {"pixels": 96},
    {"overlap_um": 8.0},
    {"reader": "tifffile"},
    {"encoder": "resnet50"},
    {"autocast": True},
    {"max_damaged": 0.2},
    {"tissue": {"share": 0.5}},
    {"tissue": {"method": "none"}},
    {"tissue": {"resolution_um": 4.0}},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_every_choice_that_changes_pixels_changes_the_fingerprint(change):
    assert load_recipe(None, change).digest("e@1") != Recipe().digest("e@1")


def test_other_weights_are_another_recipe():
    assert Recipe().digest("resnet50@a") != Recipe().digest("resnet50@b")


def test_a_tile_in_pixels_and_the_same_tile_in_micrometres_are_one_recipe():
    in_pixels = load_recipe(None, {"tile_px": 512, "tile_mpp": 0.5})
    assert in_pixels.tile_um == 256
    assert in_pixels.pixels == 512
    assert in_pixels.digest("e") == load_recipe(None, {"tile_um": 256.0, "pixels": 512}).digest("e")


def test_choices_for_slides_do_not_change_a_recipe_for_scans():
    assert Recipe(kind="ct").digest("e") == Recipe(kind="ct", tile_um=99.0).digest("e")
    assert Recipe(kind="ct").digest("e") != Recipe(kind="ct", windows=("brain",)).digest("e")
    assert Recipe(kind="points").digest("e") != Recipe(kind="points", neighbours=8).digest("e")


def test_options_win_over_the_file_also_in_the_other_form(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("tile_px: 512\ntile_mpp: 0.5\ntissue: {share: 0.5, lowest: 0.02}\nwindows: [brain, bone, lung]\n")
    assert load_recipe(path).tile_um == 256
    changed = load_recipe(path, {"tile_um": 100.0, "tissue": {"share": 0.1}, "encoder": None})
    assert changed.tile_um == 100
    assert changed.pixels is None
    assert (changed.tissue.share, changed.tissue.lowest) == (0.1, 0.02)
    assert changed.windows == ("brain", "bone", "lung")
    assert changed.encoder == "efficientnet-lite0"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"tile_mu": 256.0}, "tile_mu: unknown key; did you mean tile_um"),
        ({"tissue": {"shar": 0.5}}, "tissue.shar: unknown key; did you mean share"),
        ({"tile_um": -1.0}, "tile_um"),
        ({"tile_px": 512}, "tile_px together with tile_mpp"),
        ({"tile_um": 10.0, "overlap_um": 10.0}, "leaves nothing"),
        ({"kind": "ct", "windows": ("brain", "bone")}, "one window or three"),
        ({"kind": "ct", "windows": ("brian",)}, "did you mean brain"),
        ({"kind": "ct", "triplets": True}, "single window"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(content, words):
    with pytest.raises(ConfigError, match=words):
        load_recipe(None, content)


def test_a_file_that_is_no_recipe_is_refused(tmp_path):
    path = tmp_path / "recipe.yaml"
    with pytest.raises(ConfigError, match="no such file"):
        load_recipe(path)
    path.write_text("- 1\n- 2\n")
    with pytest.raises(ConfigError, match="expected lines such as tile_um"):
        load_recipe(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"tile_px": 512}, "the recipe: give tile_um, or tile_px together with tile_mpp"),
        ({"tile_um": 8.0, "overlap_um": 9.0}, "the recipe: an overlap of 9 µm leaves nothing of a tile of 8 µm"),
    ],
)
def test_a_refusal_is_one_plain_sentence(content, message):
    with pytest.raises(ConfigError) as problem:
        load_recipe(None, content)
    assert str(problem.value) == message


@pytest.mark.parametrize(
    ("chosen", "kind", "words"),
    [
        ({"windows": ("brain",)}, "slide", "--window: is for CT scans, but these are slides"),
        ({"triplets": True}, "points", "--triplets: is for CT scans, but these are crops around points"),
        ({"tile_um": 9.0}, "ct", "--tile-um: is for slides, but these are CT scans"),
        ({"tile_px": 9}, "points", "--tile-px: is for slides"),
        ({"tissue": {"share": 0.1}}, "points", "--tissue-share: is for slides"),
        ({"crop_px": 9}, "slide", "--crop-px: is for crops around points, but these are slides"),
        ({"mpp": 0.5}, "ct", "--mpp: is for slides and crops around points and patch files, but these are CT scans"),
        ({"coverage": 0.5}, "ct", "--coverage: is for slides"),
    ],
)
def test_choices_of_another_kind_are_refused_as_they_were_typed(chosen, kind, words):
    with pytest.raises(ConfigError, match=words):
        refuse_unused(chosen, kind)


def test_choices_of_this_kind_and_choices_not_made_are_let_pass():
    refuse_unused({"windows": ("brain",), "tile_um": None, "encoder": "resnet18", "kind": "ct"}, "ct")
    refuse_unused({"tile_um": 9.0, "tissue": {"share": 0.1}, "overlap_um": 1.0, "mpp": 0.5, "windows": None}, "slide")

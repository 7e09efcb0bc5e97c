"""One case: done is decided by content, damage costs only the damaged tiles, no tissue is no crash."""

import numpy as np
import pytest
from support import prepare_makers as makers
from support.slide_damage import spoil_tile

from smmil.data.tables import read_instance_labels
from smmil.errors import DataError
from smmil.formats import read_bag, read_provenance
from smmil.images import open_slide
from smmil.images.quality import TILE_FACTS, tile_facts
from smmil.prepare import prepare_case


@pytest.fixture
def slide(tmp_path):
    return makers.write_slide(tmp_path / "slide.svs", makers.speckled(0))


@pytest.fixture
def job(tmp_path, slide):
    return makers.job(slide, tmp_path / "out")


def test_a_case_is_made_once_and_then_kept(job):
    first = prepare_case(job)
    before, stamp = job.bag_path.read_bytes(), job.bag_path.stat().st_mtime_ns
    second = prepare_case(job)
    assert (first.status, second.status) == ("written", "kept")
    assert (first.instances, first.mpp_level0) == (second.instances, second.mpp_level0) == (4, 0.5)
    assert job.bag_path.read_bytes() == before
    assert job.bag_path.stat().st_mtime_ns == stamp


@pytest.mark.parametrize("harm", ["truncated", "flipped", "empty", "no preview", "other recipe", "other pixels", "mpp"])
def test_a_bag_that_is_there_but_wrong_is_made_again(tmp_path, job, slide, harm):
    prepare_case(job)
    good = job.bag_path.read_bytes()
    if harm == "truncated":
        job.bag_path.write_bytes(good[: len(good) // 2])
    elif harm == "flipped":
        place = good.index(read_bag(job.bag_path).x.numpy().tobytes())
        job.bag_path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
    elif harm == "empty":
        job.bag_path.write_bytes(b"")
    elif harm == "no preview":
        job.preview_path.unlink()
    elif harm == "other recipe":
        job = makers.job(slide, tmp_path / "out", makers.recipe(tile_um=16.0))
    elif harm == "other pixels":
        makers.write_slide(slide, makers.speckled(1))
    else:
        job = makers.job(slide, tmp_path / "out", mpp=1.0)
    assert prepare_case(job).status == "written"
    assert prepare_case(job).status == "kept"
    same = harm in ("truncated", "flipped", "empty", "no preview")
    assert (job.bag_path.read_bytes() == good) == same


def test_a_bag_remembers_where_it_comes_from(job):
    prepare_case(job)
    facts = read_provenance(job.bag_path)
    assert facts["recipe"] == job.recipe_digest
    assert facts["settings"] == job.recipe.settings()
    assert (facts["encoder"], facts["licence"]) == ("mean@1", "none")
    assert facts["tile_um"] == {"requested": 32.0, "used": 32.0}
    assert (facts["mpp_level0"], facts["mpp_read"]) == (0.5, 8.0)
    assert facts["versions"]["smmil"]
    assert str(job.case.source.parent) not in str(facts)


def spoilt(tmp_path, tiles):
    """A slide that is all tissue, tiles of the file as large as tiles of the recipe, some of them damaged."""
    image = makers.painted(256, 256, background=makers.TISSUE)
    path = makers.write_slide(tmp_path / "slide.svs", image, factors=(1,), compression="jpeg")
    for column, row in tiles:
        spoil_tile(path, column, row)
    return path


def test_damaged_tiles_are_left_out_and_listed_and_all_others_are_kept(tmp_path):
    chosen = makers.recipe(max_damaged=0.2, tissue={"method": "none"})
    job = makers.job(spoilt(tmp_path, [(1, 2), (3, 0)]), tmp_path / "out", chosen)
    prepared = prepare_case(job)
    assert (prepared.instances, prepared.damaged) == (14, 2)
    everything = {(x, y) for x in range(0, 256, 64) for y in range(0, 256, 64)}
    found = {tuple(place) for place in read_bag(job.bag_path).coords.tolist()}
    assert everything - found == {(64, 128), (192, 0)}
    assert read_provenance(job.bag_path)["damaged"] == [[192.0, 0.0], [64.0, 128.0]]
    assert prepare_case(job).damaged == 2


def test_labels_of_points_follow_the_crops_that_could_be_read(tmp_path):
    (tmp_path / "points.csv").write_text("image,x,y,label\nslide,32,32,1\nslide,96,160,0\nslide,224,224,2\n")
    chosen = makers.recipe(kind="points", max_damaged=0.5)
    job = makers.job(spoilt(tmp_path, [(1, 2)]), tmp_path / "out", chosen, points=tmp_path / "points.csv")
    assert prepare_case(job).damaged == 1
    assert read_bag(job.bag_path).coords.tolist() == [[18, 18], [210, 210]]
    assert read_instance_labels(job.labels_path).tolist() == [1, 2]


def test_a_slide_with_too_much_damage_fails_by_name(tmp_path):
    chosen = makers.recipe(max_damaged=0.1, tissue={"method": "none"})
    job = makers.job(spoilt(tmp_path, [(1, 2), (3, 0), (2, 2)]), tmp_path / "out", chosen)
    with pytest.raises(DataError, match=r"slide\.svs: more than 2 of 16 tiles cannot be decoded"):
        prepare_case(job)
    assert not job.bag_path.exists()


def test_a_slide_of_which_nothing_can_be_decoded_fails_even_if_all_damage_is_allowed(tmp_path):
    chosen = makers.recipe(max_damaged=1.0, tissue={"method": "none"})
    everything = [(c, r) for c in range(4) for r in range(4)]
    with pytest.raises(DataError, match="cannot be decoded"):
        prepare_case(makers.job(spoilt(tmp_path, everything), tmp_path / "out", chosen))


def test_a_slide_without_tissue_is_said_to_have_none_and_still_has_a_preview(tmp_path):
    job = makers.job(makers.write_slide(tmp_path / "glass.svs", makers.glass(256, 256)), tmp_path / "out")
    assert prepare_case(job).status == "no tissue"
    assert not job.bag_path.exists()
    assert job.preview_path.exists()


def test_one_tile_is_a_bag(tmp_path):
    image = makers.painted(256, 256, (64, 64, 64, 64, makers.TISSUE))
    job = makers.job(makers.write_slide(tmp_path / "one.svs", image), tmp_path / "out")
    assert prepare_case(job).instances == 1
    assert read_bag(job.bag_path).coords.tolist() == [[64, 64]]


def test_features_are_those_of_the_pixels_under_the_coordinates(job, slide):
    from PIL import Image

    prepare_case(job)
    bag = read_bag(job.bag_path)
    image = makers.speckled(0)
    for features, (x, y) in zip(bag.x.float().numpy(), bag.coords.tolist(), strict=True):
        tile = Image.fromarray(image[y : y + 64, x : x + 64])
        assert features == pytest.approx(np.asarray(tile).mean((0, 1)) / 255, abs=4e-3)


def test_facts_of_image_quality_are_those_of_the_tiles_as_they_were_read(tmp_path, slide):
    job = makers.job(slide, tmp_path / "out", makers.recipe(pixels=48))
    prepare_case(job)
    bag = read_bag(job.bag_path)
    assert read_provenance(job.bag_path)["quality"] == list(TILE_FACTS)
    with open_slide(slide) as pixels:
        tiles = [pixels.read(x, y, 64, 48) for x, y in bag.coords.tolist()]
    np.testing.assert_array_equal(bag.quality.numpy(), np.stack([tile_facts(tile) for tile in tiles]))
    assert np.isfinite(bag.quality.numpy()).any(0).sum() >= 5

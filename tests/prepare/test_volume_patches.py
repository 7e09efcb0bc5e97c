"""Patches of a scan: where they lie, what they show, who their neighbours are and what a mask says of them."""

import nibabel
import numpy as np
import pydicom
import pytest
import torch
from scipy.ndimage import binary_fill_holes
from support import prepare_makers as makers
from support.ct_makers import series
from support.dicom_makers import segmentation, structure_set
from support.quick import slow_unless
from torch import nn

from smmil.data.tables import read_instance_labels
from smmil.encoders import encode_stream, load_encoder
from smmil.errors import ConfigError, DataError
from smmil.formats import read_bag, read_provenance
from smmil.images.volume import Volume, open_volume, window
from smmil.prepare import load_recipe, plan, prepare_case, refuse_unused
from smmil.prepare.annotate import annotate_case, read_labels
from smmil.prepare.recipe import PatchRecipe
from smmil.prepare.selection import _SlicePictures
from smmil.prepare.volume_patches import _body_threshold, _BoxLattice, _VolumePatches

SPACING = (0.5, 0.75, 5.0)  # columns, rows, slices


def scan(values, spacing=SPACING, **more):
    """A volume in memory."""
    affine = np.diag([-spacing[0], -spacing[1], spacing[2], 1.0])
    places = np.arange(len(values)) * spacing[2]
    return Volume("scan", values.shape, affine, places, spacing[2], values.__getitem__, **more)


def body(slices=7, rows=30, columns=41, seed=0):
    """Air around lumps of tissue, some of them hollow; no symmetry to hide a flip."""
    rng = np.random.default_rng(seed)
    z, y, x = np.mgrid[:slices, :rows, :columns]
    lumps = np.zeros(z.shape, bool)
    for _ in range(4):
        place, radius = rng.uniform((0, 4, 4), (slices, rows - 4, columns - 4)), rng.uniform(3, 8)
        apart = np.sqrt(((y - place[1]) ** 2 + (x - place[2]) ** 2) + 9 * (z - place[0]) ** 2)
        lumps |= (apart < radius) & (apart > radius / 3)
    return np.where(lumps, rng.integers(0, 80, z.shape), -1000).astype(np.float32)


def ct(**patch):
    return makers.recipe(kind="ct", patch=PatchRecipe(**patch))


def painted(coords, patch, shape):
    """How many patches cover each voxel, voxel by voxel."""
    count = np.zeros(shape, int)
    for x, y, z in coords.tolist():
        count[z : z + patch[2], y : y + patch[1], x : x + patch[0]] += 1
    return count


@pytest.mark.parametrize(("px", "depth", "overlap"), [(4, 1, 0.0), (5, 3, 0.0), (6, 1, 0.5), (8, 4, 0.25), (41, 7, 0)])
def test_every_voxel_of_the_body_lies_in_a_patch_and_every_patch_holds_some(px, depth, overlap):
    values = body()
    recipe = PatchRecipe(side_px=px, depth_slices=depth, overlap=overlap)
    found = _VolumePatches.select(scan(values), recipe, "ct")
    inside = np.stack([binary_fill_holes(page > -300) for page in values])
    assert inside.sum() > (values > -300).sum()  # some lumps are hollow
    covered = painted(found.coords, found.lattice.patch, values.shape)
    assert covered[inside].min() >= 1
    for x, y, z in found.coords.tolist():
        assert inside[z : z + depth, y : y + px, x : x + px].any()
    if not overlap:
        assert covered.max() == 1
    # and no box of the lattice with a voxel of the body was left out
    step = [max(1, round(side * (1 - overlap))) for side in (px, px, depth)]
    assert found.lattice.step == tuple(step)
    assert (found.coords % step == 0).all()
    wanted = {(x, y, z) for x in range(0, 41, step[0]) for y in range(0, 30, step[1]) for z in range(0, 7, step[2])
              if inside[z : z + depth, y : y + px, x : x + px].any()}  # fmt: skip
    assert set(map(tuple, found.coords.tolist())) <= wanted
    if not overlap:
        assert set(map(tuple, found.coords.tolist())) == wanted


def test_a_share_keeps_patches_with_more_than_that_of_body():
    values = np.full((1, 8, 8), -1000, np.float32)
    values[0, :4, :4], values[0, :2, 4:] = 0, 0  # one patch full, one half
    at = {share: len(_VolumePatches.select(scan(values), PatchRecipe(side_px=4, share=share), "ct").coords)
          for share in (0.0, 0.49, 0.5, 0.99)}  # fmt: skip
    assert at == {0.0: 2, 0.49: 2, 0.5: 1, 0.99: 1}


def test_millimetres_become_voxels_along_each_axis_by_its_own_distance():
    volume = scan(np.zeros((12, 80, 80), np.float32))
    lattice = _BoxLattice.over(volume, PatchRecipe(side_mm=6.0, depth_mm=14.0))
    assert lattice.patch == (12, 8, 3)
    assert lattice.frame.patch == (12, 8, 3)
    assert lattice.frame.spacing == SPACING
    assert (lattice.frame.unit, lattice.frame.stride) == ("mm", None)
    half = _BoxLattice.over(volume, PatchRecipe(side_mm=6.0, depth_slices=1, overlap=0.5))
    assert half.frame.patch == (12, 8, 1)
    assert half.frame.step == (6, 4, 1)


@pytest.mark.parametrize(
    ("volume", "patch", "message"),
    [
        (scan(body(), sized=False), {"side_mm": 8.0}, "not known, so patches cannot be given in mm"),
        (scan(body()), {"side_mm": 0.2}, "use larger patches"),
        (scan(body()), {"side_px": 8, "depth_mm": 1.0}, "use larger patches"),
        (scan(body()), {"side_mm": 900.0}, "but the scan has 41 x 30 x 7"),
    ],
)
def test_sizes_that_do_not_fit_the_scan_are_refused(volume, patch, message):
    with pytest.raises(DataError, match=message):
        _BoxLattice.over(volume, PatchRecipe(**patch))


def test_what_counts_as_body_is_a_value_a_percentile_or_everything():
    values = body()
    volume = scan(values)
    above = values[values > values.min()].astype(float)
    assert _body_threshold(volume, "auto", "ct") == -300
    assert _body_threshold(volume, "-20.5", "ct") == -20.5
    assert _body_threshold(volume, "p60", "mr") == np.percentile(above, 60)
    every = _VolumePatches.select(volume, PatchRecipe(side_px=10, foreground="none"), "ct")
    assert len(every.coords) == 5 * 3 * 7
    rng = np.random.default_rng(1)
    two = np.where(rng.random((5, 40, 40)) < 0.7, rng.uniform(1, 60, (5, 40, 40)), rng.normal(500, 40, (5, 40, 40)))
    two[0, 0, 0] = 0  # padding
    assert 60 <= _body_threshold(scan(two.astype(np.float32)), "auto", "mr") < 400
    scaled = _body_threshold(scan((3 * two + 50).astype(np.float32)), "auto", "mr")
    assert scaled == pytest.approx(3 * _body_threshold(scan(two.astype(np.float32)), "auto", "mr") + 50, rel=1e-4)


def prepared(tmp_path, chosen, values=None, **case):
    if not (tmp_path / "s").exists():
        series(tmp_path / "s", body() if values is None else values, SPACING)
    job = makers.job(tmp_path / "s", tmp_path / "out", chosen, **case)
    prepare_case(job)
    return job, read_bag(job.bag_path)


def test_features_are_those_of_the_patch_seen_through_the_windows(tmp_path):
    values = body()
    job, bag = prepared(tmp_path, ct(side_px=6))
    assert bag.coords.shape[1] == 3
    black = np.pad(values, ((0, 0), (0, 6), (0, 6)), constant_values=-1000)  # patches stick out at the far ends
    for (x, y, z), features in zip(bag.coords.tolist(), bag.x.float().numpy(), strict=True):
        part = black[z, y : y + 6, x : x + 6]
        expected = [window(part, *shown).mean() for shown in ((40, 80), (80, 200), (30, 30))]
        assert features == pytest.approx(expected, abs=2e-3)
    facts = read_provenance(job.bag_path)
    assert facts["patch_voxels"] == [6, 6, 1]
    assert facts["body_above"] == -300
    assert facts["settings"]["patch"]["side_px"] == 6
    assert job.preview_path.stat().st_size > 1000


def test_a_patch_as_large_as_the_slice_gives_the_features_of_the_slice(tmp_path):
    values = body(rows=40, columns=40)
    _, slices = prepared(tmp_path / "whole", makers.recipe(kind="ct"), values)
    (tmp_path / "cut").mkdir()
    _, patches = prepared(tmp_path / "cut", ct(side_px=40, foreground="none"), values)
    assert torch.equal(slices.x, patches.x)
    assert patches.coords.tolist() == [[0, 0, z] for z in range(7)]
    assert slices.graph.same_as(patches.graph)  # a chain


def test_triplets_are_cut_like_slices(tmp_path):
    values = body(rows=40, columns=40)
    options = {"kind": "ct", "windows": ("brain",), "triplets": True}
    _, slices = prepared(tmp_path / "whole", makers.recipe(**options), values)
    patch = PatchRecipe(side_px=40, foreground="none")
    _, patches = prepared(tmp_path / "cut", makers.recipe(**options, patch=patch), values)
    assert torch.equal(slices.x, patches.x)


def test_neighbours_are_the_patches_that_touch_in_three_dimensions(tmp_path):
    _, bag = prepared(tmp_path, ct(side_px=6, depth_slices=2, overlap=0.5))
    step = np.array([3, 3, 1])
    places = bag.coords.numpy()
    near = (np.abs(places[:, None] - places[None]) / step).max(2)
    assert np.array_equal(bag.graph.dense().numpy() > 0, (near < 1.5) & (near > 0))
    assert bag.graph.degrees.max() > 10


@pytest.mark.parametrize("encode", ["mean", "concat"])
def test_a_box_is_the_mean_or_the_row_of_the_features_of_its_slices(tmp_path, encode):
    _, box = prepared(tmp_path, ct(side_px=10, depth_slices=3, slices=3, encode=encode, foreground="none"))
    flat = prepared(tmp_path, ct(side_px=10, foreground="none"))[1]
    of = {tuple(place): row.float() for place, row in zip(flat.coords.tolist(), flat.x, strict=True)}
    for (x, y, z), features in zip(box.coords.tolist(), box.x.float(), strict=True):
        # the last box sticks out: its only slice is seen three times
        rows = torch.stack([of[x, y, min(z + k, 6)] for k in range(3)])
        expected = rows.mean(0) if encode == "mean" else rows.ravel()
        torch.testing.assert_close(features, expected, atol=1e-3, rtol=1e-3)


class _Boxes(nn.Module):
    """Features that know the order of the slices."""

    pixels, mean, std, depth, revision = 4, 0.0, 1.0, 2, "1"

    def forward(self, boxes):
        assert boxes.shape[1:] == (3, 2, 4, 4)
        return boxes.mean((3, 4)).flatten(1)


def test_an_own_encoder_may_take_the_whole_box(tmp_path):
    series(tmp_path / "s", body(), SPACING)
    whole = ct(side_px=10, depth_slices=4, slices=2, encode="whole", foreground="none")
    found = _VolumePatches.select(open_volume(tmp_path / "s"), whole.cut, "ct")
    pictures = _SlicePictures(open_volume(tmp_path / "s"), whole)
    features = found.encode(pictures, whole.cut, load_encoder(_Boxes(), device="cpu"))
    concat = whole.cut.model_copy(update={"encode": "concat"})
    rows = found.encode(_SlicePictures(open_volume(tmp_path / "s"), whole), concat, makers.mean_colour())
    n = len(rows)
    np.testing.assert_allclose(features.reshape(n, 3, 2), rows.reshape(n, 2, 3).transpose(0, 2, 1), atol=1e-3)
    with pytest.raises(DataError, match="tiles"):
        encode_stream(load_encoder(_Boxes(), device="cpu"), [np.zeros((2, 4, 5, 3), np.float32)])


def test_encoders_of_boxes_and_of_pictures_are_not_mixed_up(tmp_path):
    series(tmp_path / "s", body(), SPACING)
    plain = {"kind": "ct", "patch": {"side_px": 8, "depth_slices": 2}}
    with pytest.raises(ConfigError, match="takes boxes of 2 slices, but the recipe gives pictures"):
        plan([tmp_path / "s"], tmp_path / "o", load_recipe(None, plain), encoder=_Boxes())
    plain["patch"] |= {"encode": "whole"}
    with pytest.raises(ConfigError, match="takes boxes of 2 slices, but the recipe gives boxes of 3"):
        plan([tmp_path / "s"], tmp_path / "o", load_recipe(None, plain), encoder=_Boxes())
    with pytest.raises(ConfigError, match="takes pictures, but the recipe gives boxes of 3 slices"):
        plan([tmp_path / "s"], tmp_path / "o", load_recipe(None, plain), encoder=makers.mean_colour())


def nifti(path, values, affine):
    """Values (slices, rows, columns) in the order in which scans are shown."""
    image = nibabel.Nifti1Image(values.transpose(2, 1, 0).astype(np.int16), affine)
    image.header.set_xyzt_units("mm")
    nibabel.save(image, path)
    return path


AFFINE = np.diag([-0.5, -0.75, 5.0, 1.0])


@pytest.mark.parametrize("way", ["LPS", "RAS", "SPL", "PIR"])
def test_patches_do_not_know_how_the_voxels_were_stored(tmp_path, way):
    values = body()
    image = nibabel.load(nifti(tmp_path / "shown.nii", values, AFFINE))
    target = nibabel.orientations.axcodes2ornt(way)
    change = nibabel.orientations.ornt_transform(nibabel.io_orientation(image.affine), target)
    nibabel.save(image.as_reoriented(change), tmp_path / "s.nii")
    found = [_VolumePatches.select(open_volume(tmp_path / name), PatchRecipe(side_mm=4.0, depth_mm=10.0), "ct")
             for name in ("shown.nii", "s.nii")]  # fmt: skip
    assert found[0].lattice == found[1].lattice
    assert np.array_equal(found[0].coords, found[1].coords)


@pytest.mark.parametrize("coverage", [0.0, 0.3, 0.5])
def test_a_patch_is_a_lesion_where_the_mask_covers_more_than_the_coverage(tmp_path, coverage):
    _, bag = prepared(tmp_path, ct(side_px=6, depth_slices=2))
    mask = np.random.default_rng(2).random((7, 30, 41)) < np.linspace(0, 1, 41)
    affine = open_volume(tmp_path / "s").affine
    found = annotate_case(bag, nifti(tmp_path / "m.nii", mask, affine), coverage=coverage,
                          scan=open_volume(tmp_path / "s"))  # fmt: skip
    covered = [mask[z : z + 2, y : y + 6, x : x + 6].sum() / 72 for x, y, z in bag.coords.tolist()]
    np.testing.assert_allclose(found.share, covered, atol=1e-8)
    assert found.labels.tolist() == [int(round(share, 8) > coverage) for share in covered]
    assert found.about["rule"] == "more than coverage of the patch"


def test_the_mask_of_a_case_becomes_labels_beside_its_patches(tmp_path):
    series(tmp_path / "s", body(), SPACING)
    mask = np.zeros((7, 30, 41))
    mask[2:5, 5:25, 3:35] = 1
    path = nifti(tmp_path / "m.nii", mask, open_volume(tmp_path / "s").affine)
    job, bag = prepared(tmp_path, ct(side_px=6), annotation=path, label="1", coverage=0.25)
    labels = read_instance_labels(job.labels_path)
    assert labels.sum() > 4
    for (x, y, z), label in zip(bag.coords.tolist(), labels.tolist(), strict=True):
        assert label == (mask[z, y : y + 6, x : x + 6].sum() / 36 > 0.25)
    assert read_labels(job.labels_path).about["coverage"] == 0.25


def outlined(files, mask):
    """The rectangle of each slice that is not empty, in the patient by the headers alone, around its outer pixels."""
    rings = []
    for file, page in zip(files, mask, strict=True):
        rows, columns = np.nonzero(page)
        if not len(rows):
            continue
        header = pydicom.dcmread(file)
        across, down = np.array(header.ImageOrientationPatient, float).reshape(2, 3)
        high, wide = header.PixelSpacing
        ends = [
            (x, y) for x in (columns.min() - 0.5, columns.max() + 0.5) for y in (rows.min() - 0.5, rows.max() + 0.5)
        ]
        place = np.array(header.ImagePositionPatient, float)
        rings.append([place + ends[n][0] * wide * across + ends[n][1] * high * down for n in (0, 1, 3, 2)])
    return {1: ("lesion", rings)}


@pytest.fixture(scope="module", params=[(1, 0, 0, 0, 1, 0), (0, 1, 0, -1, 0, 0)], ids=["as shown", "quarter turn"])
def masked(request, tmp_path_factory):
    """A scan in DICOM, a planted box of lesion as it is shown, and the file of that lesion in every kind of mask."""
    folder, mask = tmp_path_factory.mktemp("masked"), np.zeros((7, 30, 41))
    mask[2:5, 7:22, 3:29] = 1
    _, files = series(folder / "s", body(), SPACING, orientation=request.param)
    series(folder / "truth", mask, SPACING, orientation=request.param)
    shown = open_volume(folder / "truth").hu == 1
    return folder, shown, {
        "seg": segmentation(folder / "seg.dcm", files, mask.astype(np.uint8), shuffle=3),
        "rtstruct": structure_set(folder / "contours.dcm", files[0], outlined(files, mask)),
        "nifti": nifti(folder / "m.nii.gz", shown, open_volume(folder / "s").affine),
    }  # fmt: skip


PATCHES = ({"side_px": 6}, {"side_px": 6, "overlap": 0.5}, {"side_px": 6, "depth_slices": 2},
           {"side_px": 6, "depth_slices": 2, "overlap": 0.5})  # fmt: skip


@pytest.mark.parametrize("patch", slow_unless(lambda patch: patch == PATCHES[2], PATCHES), ids=str)
def test_a_mask_says_the_same_of_patches_whether_it_is_dicom_contours_or_nifti(masked, tmp_path, patch):
    """Counted voxel by voxel: more than the coverage of a patch is a lesion, exactly that much is none."""
    folder, shown, files = masked
    side, depth = patch["side_px"], patch.get("depth_slices", 1)
    (tmp_path / "s").symlink_to(folder / "s")
    for coverage in (0.0, 0.25, 0.5):
        found = {}
        for kind, file in files.items():
            out = tmp_path / f"{kind}{coverage}"
            chosen = ct(**patch, foreground="none")
            job = makers.job(tmp_path / "s", out, chosen, annotation=file, label="1", coverage=coverage)
            prepare_case(job)
            found[kind], bag = read_labels(job.labels_path), read_bag(job.bag_path)
        inside = (shown[z : z + depth, y : y + side, x : x + side].sum() for x, y, z in bag.coords.tolist())
        share = np.array([count / (side**2 * depth) for count in inside])
        assert {0, 0.5, 1} < {*share.tolist()}
        for kind, made in found.items():
            np.testing.assert_allclose(made.share, share, atol=1e-8, err_msg=kind)
            assert made.labels.tolist() == (np.round(share, 8) > coverage).astype(int).tolist(), kind
            assert 0 < made.labels.sum() < bag.n, kind


def test_labels_of_slices_or_of_the_plane_say_nothing_about_patches(tmp_path):
    _, bag = prepared(tmp_path, ct(side_px=6))
    (tmp_path / "boxes.csv").write_text("x,y,width,height\n1,1,9,9\n")
    (tmp_path / "rsna.csv").write_text("ID,Label\nID_a_any,1\n")
    for name in ("boxes.csv", "rsna.csv"):
        with pytest.raises(DataError, match=f"{name}.*patches of a scan"):
            annotate_case(bag, tmp_path / name)
    small = nifti(tmp_path / "small.nii", np.zeros((3, 30, 41)), AFFINE)
    with pytest.raises(DataError, match="lie outside"):
        annotate_case(bag, small)


def test_recipes_of_slices_keep_their_fingerprint_and_patches_have_their_own():
    assert makers.Recipe(kind="ct").digest("e@1") == "dff24e1c4383447e"  # as written by earlier versions
    assert makers.Recipe(kind="mr").digest("e@1") == "fac6270e72dc9ea5"
    assert "patch" not in makers.Recipe(kind="ct").settings()
    one, other = ct(side_px=6), ct(side_px=6, overlap=0.5)
    assert len({makers.recipe(kind="ct").digest("e"), one.digest("e"), other.digest("e")}) == 3
    assert makers.recipe(kind="slide", patch=one.patch).digest("e") == makers.recipe(kind="slide").digest("e")


def test_a_size_on_the_command_line_replaces_the_other_form_in_the_file(tmp_path):
    (tmp_path / "r.yaml").write_text(
        "kind: ct\npatch:\n  side_mm: 12\n  depth_mm: 10.0\n  overlap: 0.5\n  foreground: -250\n"
    )
    merged = load_recipe(tmp_path / "r.yaml", {"patch": {"side_px": 9}}).patch
    assert (merged.side_px, merged.side_mm, merged.depth_mm, merged.overlap) == (9, None, 10.0, 0.5)
    assert merged.foreground == "-250"


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ({"overlap": 0.5}, "give side_mm"),
        ({"side_mm": 5.0, "side_px": 5}, "give side_mm"),
        ({"side_px": 5, "depth_mm": 5.0, "depth_slices": 2}, "one thickness"),
        ({"side_px": 5, "foreground": "bone"}, "expected auto, none, a value"),
        ({"side_px": 5, "overlap": 1.0}, "overlap"),
    ],
)
def test_patches_that_make_no_sense_are_refused(patch, message):
    with pytest.raises(ConfigError, match=message):
        load_recipe(None, {"kind": "ct", "patch": patch})


def test_patches_are_for_scans_and_coverage_for_their_patches():
    with pytest.raises(ConfigError, match="--patch-mm, --patch-px: is for CT scans, but these are slides"):
        refuse_unused({"patch": {"side_px": 5}}, "slide")
    refuse_unused({"patch": {"side_px": 5}, "coverage": 0.3}, "ct", True)
    with pytest.raises(ConfigError, match=r"--coverage: is for slides .* and patches of scans, but these are CT scans"):
        refuse_unused({"coverage": 0.3}, "ct")


def test_a_scan_without_body_has_no_patches_and_no_bag(tmp_path):
    series(tmp_path / "s", np.full((3, 12, 12), -1000, np.float32), SPACING)
    job = makers.job(tmp_path / "s", tmp_path / "out", ct(side_px=4))
    assert prepare_case(job).status == "no tissue"
    assert not job.bag_path.exists()
    assert job.preview_path.exists()

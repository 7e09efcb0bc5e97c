"""Everybody's folders: each road from somebody else's files to a report, on the command line."""

import json
import re

import h5py
import nibabel
import numpy as np
import pandas as pd
import pydicom
import pytest
import torch
from PIL import Image
from support import foreign_files as foreign
from support import prepare_makers as makers
from support.ct_makers import change, series, voxels
from support.dicom_makers import enhanced, segmentation
from support.roads import PREPARE, smmil, tiny

from smmil.data.manifest import Manifest
from smmil.errors import DataError, SmmilError
from smmil.formats import read_bag, read_provenance
from smmil.images import MosaicSlide, Volume, open_slide, open_volume
from smmil.images.dicom_series import find_series
from smmil.images.volume import parse_window, window_channels
from smmil.prediction import Prediction
from smmil.prepare.table import find_sources

PLAIN, LESION = (200, 140, 170), (120, 60, 150)


def reach_report(folder, images):
    """Train, predict and report a prepared study; gives the text of the page."""
    manifest = folder / "manifest.csv"
    smmil("train", "--manifest", manifest, "--model", "sm_ap", "--out", folder / "run", *tiny())
    smmil("predict", folder / "run", "--part", "all", "--out", folder / "predictions")
    words = ("--slides", images) if images is not None else ()
    smmil("report", folder / "predictions", *words, "--resamples", 0, "--out", folder / "report.html")
    return (folder / "report.html").read_text()


def pictures_in(page):
    return page.count(">/9j/")


def patch_folder(root, cases=8, side=4, pixels=10):
    """IDC's layout: <patient>/<class>/<patient>_idx5_x<X>_y<Y>_class<C>.png; cases of odd number hold a lesion."""
    for case in range(cases):
        for row in range(side):
            for column in range(side):
                lesion = int(case % 2 and row < side // 2 and column < side // 2)
                name = f"{case}_idx5_x{column * pixels + 1}_y{row * pixels + 1}_class{lesion}.png"
                file = root / str(case) / str(lesion) / name
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (pixels, pixels), LESION if lesion else PLAIN).save(file)
    return root


@pytest.fixture(scope="module")
def patches(tmp_path_factory):
    """A folder of patches, its tables and its bags."""
    folder = tmp_path_factory.mktemp("patches")
    told = smmil("source", "patches", patch_folder(folder / "idc"), "--out", folder / "tables")
    told += smmil(
        *("prepare", folder / "tables/slides", "--labels", folder / "tables/labels.csv", "--out", folder / "study"),
        *PREPARE,
    )
    return folder, told


def test_a_folder_of_patches_reaches_a_report_with_pictures(patches):
    folder, told = patches
    assert "8 cases (label 0: 4, label 1: 4)" in told
    page = reach_report(folder / "study", folder / "tables/slides")
    assert pictures_in(page) == 8


def test_every_patch_is_an_instance_at_its_place_with_its_own_pixels_and_label(patches):
    folder, _ = patches
    manifest = Manifest.read(folder / "study/manifest.csv")
    bag = read_bag(manifest.path_of("1_idx5"))
    assert bag.coords.tolist() == [[10 * c + 1, 10 * r + 1] for r in range(4) for c in range(4)]
    labels = pd.read_csv(manifest.instance_labels_of("1_idx5"))["label"].tolist()
    assert labels == [int(r < 2 and c < 2) for r in range(4) for c in range(4)]
    for features, label in zip(bag.x.numpy(), labels, strict=True):
        np.testing.assert_allclose(features, makers.colour(LESION if label else PLAIN), atol=1e-3)
    assert bag.graph.indptr.diff().sum() == 2 * (2 * 4 * 3 + 2 * 3 * 3)  # 8 neighbours on a 4 x 4 lattice
    assert manifest.labels["1_idx5"] == 1
    assert manifest.labels["0_idx5"] == 0


def test_a_table_and_names_give_the_same_bags(patches, tmp_path):
    folder, _ = patches
    rows = []
    for file in sorted((folder / "idc").rglob("*.png")):
        case, x, y, label = re.fullmatch(r"(.+)_idx5_x(\d+)_y(\d+)_class(\d)", file.stem).groups()
        rows.append((file.relative_to(folder / "idc"), (int(x) - 1) // 10, (int(y) - 1) // 10, f"{case}_idx5", label))
    shuffled = np.random.default_rng(0).permutation(len(rows))
    table = pd.DataFrame([rows[i] for i in shuffled], columns=["path", "x", "y", "patient", "label"])
    table.to_csv(folder / "idc/patches.csv", index=False)
    smmil("source", "patches", folder / "idc/patches.csv", "--step", 10, "--out", tmp_path / "tables")
    smmil("prepare", tmp_path / "tables/slides", "--out", tmp_path / "study", *PREPARE)
    mine, other = (read_bag(place / "study/bags/1_idx5.h5") for place in (tmp_path, folder))
    assert mine.x.equal(other.x)
    assert (mine.coords + 1).equal(other.coords)
    assert mine.graph.indices.equal(other.graph.indices)
    assert set(Manifest.read(tmp_path / "tables/labels.csv").groups.values()) == {f"{i}_idx5" for i in range(8)}


def test_patches_prepared_again_are_kept_unless_a_pixel_changes(patches):
    folder, _ = patches
    words = ("prepare", folder / "tables/slides", "--labels", folder / "tables/labels.csv", "--out", folder / "study")
    assert "0 written, 8 there already" in smmil(*words, *PREPARE)
    changed = next((folder / "idc/6").rglob("*.png"))
    Image.new("RGB", (10, 10), (1, 2, 3)).save(changed)
    assert "1 written, 7 there already" in smmil(*words, *PREPARE)


def test_sparse_patches_are_proposed_another_graph_before_anything_is_encoded(tmp_path):
    for k in range(12):
        file = tmp_path / "some" / f"a_x{37 * k}_y{(53 * k * k) % 400}.png"
        file.parent.mkdir(exist_ok=True)
        Image.new("RGB", (10, 10), PLAIN).save(file)
    smmil("source", "patches", tmp_path / "some", "--split", split_of(tmp_path, "a"), "--out", tmp_path / "tables")
    words = ("prepare", tmp_path / "tables/slides", "--out", tmp_path / "study", *PREPARE)
    assert "--graph knn" in smmil(*words, code=3)
    smmil(*words, "--graph", "knn", "--overwrite")
    assert read_bag(tmp_path / "study/bags/a.h5").graph.indptr.diff().min() >= 5


def split_of(folder, *ids):
    (folder / "split.csv").write_text("id,split\n" + "".join(f"{id_},train\n" for id_ in ids))
    return folder / "split.csv"


@pytest.mark.slow
def test_ten_thousand_patches_reach_a_report(tmp_path):
    patch_folder(tmp_path / "idc", cases=16, side=25, pixels=8)
    told = smmil("source", "patches", tmp_path / "idc", "--out", tmp_path / "tables")
    assert "10,000 patches, 625 to 625 in a case" in told
    labels = tmp_path / "tables/labels.csv"
    smmil("prepare", tmp_path / "tables/slides", "--labels", labels, "--out", tmp_path / "study", *PREPARE)
    assert pictures_in(reach_report(tmp_path / "study", tmp_path / "tables/slides")) == 16


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("a.png,0,0\na.png,0,0\n", "lie in the same place"),
        ("a.png,0,1.5\n", "whole pixels"),
        ("a.png,0,-1\n", "whole pixels"),
        ("b.png,0,0\n", "is not there"),
        ("a.png,0,0\nbig.png,10,0\na.png,20,0\n", "most patches of the case have 10 x 10"),
    ],
)
def test_a_table_of_patches_that_makes_no_sense_is_refused(tmp_path, rows, message):
    Image.new("RGB", (10, 10), PLAIN).save(tmp_path / "a.png")
    Image.new("RGB", (12, 10), PLAIN).save(tmp_path / "big.png")
    (tmp_path / "c.patches.csv").write_text("path,x,y\n" + rows)
    with pytest.raises(SmmilError, match=message):
        MosaicSlide(tmp_path / "c.patches.csv")


def test_a_mosaic_shows_each_patch_where_it_lies_and_a_small_one_over_white(tmp_path):
    noise = np.random.default_rng(1).integers(0, 256, (3, 6, 6, 3), dtype=np.uint8)
    for k in range(3):
        Image.fromarray(noise[k][: 4 if k == 2 else 6]).save(tmp_path / f"{k}.png")
    (tmp_path / "c.patches.csv").write_text("path,x,y\n0.png,2,1\n1.png,5,1\n2.png,14,8\n")  # the second overlaps
    expected = np.full((14, 20, 3), 255, np.uint8)
    expected[1:7, 2:8], expected[1:7, 5:11], expected[8:12, 14:20] = noise[0], noise[1], noise[2][:4]
    with open_slide(tmp_path / "c.patches.csv", mpp=0.5) as slide:
        assert slide.bounds == (2, 1, 18, 13)
        assert (slide.thumbnail(20).image == expected).all()
        assert (slide.read(2, 1, 6, 6) == noise[0]).all()  # alone, though the next one lies on top
        assert (slide.read(3, 2, 5, 5) == expected[2:7, 3:8]).all()
        assert "smaller" in slide.notes[0]
        assert slide.step == (3, 6)  # places along x are multiples of 3 apart; along y of 7, more than a patch


def labels_file(folder, **columns):
    """id,label of eight scans, every fourth in the test part."""
    table = pd.DataFrame({"id": [f"s{i}" for i in range(8)], "label": [i % 2 for i in range(8)]})
    table["split"] = ["test" if i < 2 else "train" for i in range(8)]
    table.assign(**columns).to_csv(folder / "labels.csv", index=False)
    return folder / "labels.csv"


def heads(seed, n=4, side=24):
    """MR-like values: background 0, a disc of some hundreds with a bright ball; no air below zero."""
    z, y, x = np.mgrid[:n, :side, :side]
    disc = (y - side / 2) ** 2 + (x - side / 2) ** 2 < (side / 2.5) ** 2
    noise = np.random.default_rng(seed).integers(0, 80, disc.shape)
    ball = (z == 1) & (abs(y - 10) < 3) & (abs(x - 12) < 3) & (seed % 2 == 1)
    return (disc * (600 + noise) + ball * 900).astype(np.float32)


def nifti(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = nibabel.Nifti1Image(values.transpose(2, 1, 0).astype(np.int16), np.diag([-1.0, -1.0, 3.0, 1.0]))
    image.header.set_xyzt_units("mm")
    nibabel.save(image, path)


@pytest.fixture(scope="module")
def mr(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mr")
    for i in range(8):
        nifti(folder / f"scans/s{i}.nii.gz", heads(i))
    return folder


def test_an_mr_nifti_reaches_a_report_in_percentiles(mr):
    words = ("--kind", "mr", "--labels", labels_file(mr), "--out", mr / "study", *PREPARE)
    told = smmil("prepare", mr / "scans", *words)
    assert "warning" not in told
    assert pictures_in(reach_report(mr / "study", mr / "scans")) == 8
    centre, width = Prediction.load(mr / "study/predictions/s1.npz").meta["scan"]["window"]
    voxels = heads(1)
    low, high = np.percentile(voxels[voxels > 0], (1, 99))
    assert (centre, width) == pytest.approx(((low + high) / 2, high - low))


def test_an_mr_read_as_hounsfield_units_is_told_loudly_every_time(mr):
    words = ("prepare", mr / "scans", "--kind", "ct", "--out", mr / "white", *PREPARE)
    for _ in range(2):  # written, then kept
        told = smmil(*words)
        assert told.count("% of the voxels are all black or all white") == 8
        assert told.count("--kind mr") == 8
    assert "all black or all white" in pd.read_csv(mr / "white/cases.csv")["notes"].iloc[0]


@pytest.fixture(scope="module")
def two_series(tmp_path_factory):
    """Heads with a localizer of two slices beside the axial series, as a PACS exports them."""
    folder = tmp_path_factory.mktemp("two_series")
    for i in range(8):
        hu = np.where(heads(i) > 0, 40 + heads(i) / 100, -1000)
        _, axial = series(folder / f"scans/s{i}", hu.astype(np.float32), seed=2 * i)
        _, scout = series(folder / f"scans/s{i}/scout", voxels(2, 24, 24), seed=2 * i + 1)
        for path in axial:
            change(path, SeriesDescription="Head AXIAL 5mm Doe^Jane")
        for path in scout:
            change(path, SeriesDescription="Topogram", ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"])
    return folder


def test_a_folder_with_a_localizer_reaches_a_report_by_rule_and_by_column(two_series):
    scans, out = two_series / "scans", two_series / "study"
    words = ("prepare", scans, "--labels", labels_file(two_series), "--out", out, *PREPARE)
    told = smmil(*words, code=3)
    assert "--series most-slices" in told
    assert "Jane" not in told
    smmil(*words, "--series", "most-slices")
    bags = makers.checksums(out / "bags")
    rules = ["description:axial", "most-slices"] * 4
    labels_file(two_series, series=rules)
    smmil("prepare", scans, "--labels", two_series / "labels.csv", "--out", two_series / "again", *PREPARE)
    again = [read_bag(two_series / f"again/bags/s{i}.h5").x for i in range(8)]
    assert all(x.equal(read_bag(out / f"bags/s{i}.h5").x) for i, x in enumerate(again))
    assert len(bags) == 8
    page = reach_report(out, scans)
    assert pictures_in(page) == 8
    assert "Jane" not in page


def test_a_rule_that_does_not_decide_is_refused_with_the_keys(two_series):
    scan = two_series / "scans/s0"
    assert len(open_volume(scan, series="most-slices")) == 4
    assert len(open_volume(scan, series="description:topo")) == 2
    for rule, message in (("description:o", "2 series fit"), ("description:coronal", "not here"), ("zzz", "not here")):
        with pytest.raises(DataError, match=message) as told:
            open_volume(scan, series=rule)
        assert find_series(scan)[0][0].key in str(told.value)


@pytest.fixture(scope="module")
def enhanced_scans(tmp_path_factory):
    """The same heads as classic slices and as one multi-frame file each, with a mask of the ball beside the frames."""
    folder = tmp_path_factory.mktemp("enhanced")
    for i in range(8):
        hu = np.where(heads(i) > 0, 40 + heads(i) / 100, -1000)
        _, files = series(folder / f"classic/s{i}", hu.astype(np.float32), seed=i)
        order = np.random.default_rng(i).permutation(len(files))
        file = enhanced(folder / f"scans/s{i}/frames.dcm", files, order, shared=True)
        if i % 2:
            ball = (heads(i) > 1000)[order].astype(np.uint8)
            segmentation(folder / f"scans/s{i}/a_mask.dcm", [file], ball, shuffle=i)
    return folder


def test_multi_frame_files_with_segmentations_reach_a_report(enhanced_scans):
    folder = enhanced_scans
    masks = [f"scans/s{i}/a_mask.dcm" if i % 2 else "" for i in range(8)]
    labels, out = labels_file(folder, annotation=masks), folder / "study"
    told = smmil("prepare", folder / "scans", "--labels", labels, "--out", out, *PREPARE)
    assert "failed" not in told.replace("0 failed", "")
    smmil("prepare", folder / "classic", "--out", folder / "plain", *PREPARE)
    for i in range(8):
        ours, plain = (read_bag(place / f"bags/s{i}.h5") for place in (out, folder / "plain"))
        assert ours.x.equal(plain.x)
        assert ours.coords.equal(plain.coords)
        assert ours.frame == plain.frame
        found = pd.read_csv(out / f"instance_labels/s{i}.csv")
        assert found["label"].tolist() == [0, i % 2, 0, 0]
        if i % 2:
            assert found["share"].tolist() == pytest.approx((heads(i) > 1000).mean((1, 2)), abs=1e-9)
            assert json.loads(found["about"][0])["kind"] == "dicom-seg"
    assert pictures_in(reach_report(out, folder / "scans")) == 8
    words = ("--image", folder / "scans", "--out", folder / "maps")
    told = smmil("export", out / "predictions", "--to", "dicom-seg", "--threshold", 0.5, *words, code=3)
    assert "over a multi-frame (enhanced) file is not written; export nifti" in " ".join(told.split())
    smmil("export", out / "predictions", "--to", "nifti", *words)


def test_a_mask_of_another_scan_is_refused_and_the_others_go_on(enhanced_scans):
    folder = enhanced_scans
    masks = [f"scans/s{i}/a_mask.dcm" if i % 2 else "" for i in range(8)]
    masks[1] = masks[3]
    labels = labels_file(folder, annotation=masks)
    told = smmil("prepare", folder / "scans", "--labels", labels, "--out", folder / "swapped", *PREPARE, code=3)
    assert re.search(r"is a mask of the series \w{8}, the scan has \w{8}", " ".join(told.split()))
    assert "7 written" in told


def test_a_mask_before_the_slices_of_an_mr_folder_does_not_make_it_ct(tmp_path):
    _, paths = series(tmp_path / "s0", heads(3), seed=1)
    for path in paths:
        change(path, Modality="MR", SOPClassUID="1.2.840.10008.5.1.4.1.1.4")
    segmentation(tmp_path / "s0/AAA.dcm", paths, (heads(3) > 1000).astype(np.uint8))
    segmentation(tmp_path / "masks/s0.dcm", paths, (heads(3) > 1000).astype(np.uint8))
    found = find_sources([tmp_path])
    assert [(source.name, source.kind) for source in found] == [("s0", "mr")]
    smmil("prepare", tmp_path, "--out", tmp_path / "out", *PREPARE)
    assert read_provenance(tmp_path / "out/bags/s0.h5")["notes"] == ["other files passed over: 1 SEG"]


def test_mr_in_dicom_is_read_without_rescale_tags_and_never_as_hounsfield_units(tmp_path):
    values = heads(3)
    _, paths = series(tmp_path / "s0", values, seed=1)
    for path in paths:
        change(path, Modality="MR", RescaleSlope=None, RescaleIntercept=None, RescaleType=None)
    stored = pydicom.dcmread(paths[1]).pixel_array
    volume = open_volume(tmp_path / "s0")
    assert volume.values == "MR"
    assert (volume.slice_hu(1) == stored).all()
    smmil("prepare", tmp_path / "s0", "--out", tmp_path / "auto", *PREPARE)
    assert read_provenance(tmp_path / "auto/bags/s0.h5")["settings"]["windows"] == ["p1/99"]
    assert "--kind mr" in smmil("prepare", tmp_path / "s0", "--kind", "ct", "--out", tmp_path / "ct", *PREPARE, code=3)


@pytest.fixture(scope="module")
def pngs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pngs")
    for i in range(8):
        for k, picture in enumerate(heads(i, n=11)):
            file = folder / f"scans/s{i}/slice_{k + 1}.{'jpg' if i == 7 else 'png'}"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((picture / 8).astype(np.uint8)).save(file)
    return folder


def test_folders_of_pictures_reach_a_report_as_scans(pngs):
    words = ("--kind", "stack", "--labels", labels_file(pngs), "--out", pngs / "study", *PREPARE)
    smmil("prepare", pngs / "scans", *words)
    assert pictures_in(reach_report(pngs / "study", pngs / "scans")) == 8
    bag = read_bag(pngs / "study/bags/s0.h5")
    assert bag.frame.spacing is None  # no distance is invented
    assert bag.coords.ravel().tolist() == list(range(11))


def test_pictures_are_ordered_by_number_and_keep_their_shades(pngs):
    volume = open_volume(pngs / "scans/s3")
    expected = np.stack([(picture / 8).astype(np.uint8) for picture in heads(3, n=11)])
    assert (volume.hu == expected).all()  # slice_10 comes after slice_9, not after slice_1
    assert volume.values == "shades"


@pytest.mark.parametrize(
    ("names", "sizes", "message"),
    [
        (("a1.png", "b1.png"), (8, 8), "the same number"),
        (("a1.png", "b.png"), (8, 8), "no number"),
        (("a1.png", "a2.png"), (8, 9), "slices of one size"),
    ],
)
def test_pictures_that_make_no_scan_are_refused(tmp_path, names, sizes, message):
    for name, size in zip(names, sizes, strict=True):
        Image.new("L", (size, 8)).save(tmp_path / name)
    with pytest.raises(DataError, match=message):
        open_volume(tmp_path)


def test_a_coloured_picture_is_no_slice_and_sixteen_bits_are_kept(tmp_path):
    (tmp_path / "a").mkdir()
    Image.new("RGB", (8, 8), (1, 2, 3)).save(tmp_path / "a/1.png")
    with pytest.raises(DataError, match="has colours"):
        open_volume(tmp_path / "a").slice_hu(0)
    Image.fromarray(np.full((8, 8), 4000, np.uint16)).save(tmp_path / "a/1.png")
    assert (open_volume(tmp_path / "a").slice_hu(0) == 4000).all()


@pytest.mark.parametrize(("factor", "shift"), [(1.0, 0.0), (0.25, 0.0), (3.0, 500.0), (0.5, -700.0)])
def test_percentile_windows_do_not_know_units(factor, shift):
    def scan(values):
        return Volume("v", values.shape, np.diag([-1.0, -1.0, 1.0, 1.0]), np.arange(4.0), 1.0, values.__getitem__)

    one, other = scan(heads(1)), scan(factor * heads(1) + shift)
    shades = [window_channels(v.hu, [parse_window("p2/98", v)]) for v in (one, other)]
    np.testing.assert_allclose(shades[0], shades[1], atol=1e-5)
    inside = (shades[0] > 0) & (shades[0] < 1)
    assert inside[0][heads(1) > 0].mean() > 0.94


def trident_folder(root, side=5):
    """TRIDENT with saveas="pt": arrays in tensor files, places in patches/, and features of whole slides beside."""
    job = root / "20x_256px_0px_overlap"
    places = np.argwhere(np.ones((side, side))) * 512
    for name in ("features_uni_v1", "patches", "slide_features_titan"):
        (job / name).mkdir(parents=True)
    for i in range(8):
        x = foreign.features(len(places), 3, seed=i)
        torch.save(x, job / f"features_uni_v1/s{i}.pt")
        foreign.trident_file(root, x, places, 512, name=f"s{i}")
        with h5py.File(job / f"features_uni_v1/s{i}.h5", "a") as file:
            del file["features"]
        (job / f"features_uni_v1/s{i}.h5").rename(job / f"patches/s{i}_patches.h5")
        with h5py.File(job / f"slide_features_titan/s{i}.h5", "w") as file:
            file["features"], file["coords"] = x.mean(0), places
    return job


@pytest.fixture(scope="module")
def trident(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trident")
    return folder, trident_folder(folder / "theirs")


def test_tensor_files_of_trident_reach_a_report(trident):
    folder, job = trident
    told = smmil("source", "features", job, "--table", labels_file(folder), "--out", folder / "study")
    assert "8 cases (label 0: 4, label 1: 4)" in told
    assert "8 files left out: features of a whole slide" in told
    assert "8 files left out: coordinates without features" in told
    bag = read_bag(Manifest.read(folder / "study/manifest.csv").path_of("s3"))
    assert bag.x.equal(torch.from_numpy(foreign.features(25, 3, seed=3)))
    assert bag.frame.patch == (512, 512)
    assert bag.graph.indptr.diff().sum() == 2 * (2 * 5 * 4 + 2 * 4 * 4)
    assert "s3" in reach_report(folder / "study", None)


def test_a_tensor_file_may_hold_numbers_and_nothing_else(tmp_path):
    class Evil:
        def __reduce__(self):
            return print, ("hello",)

    for content in (np.array([{"a": 1}], dtype=object), np.arange(4), Evil(), {"x": torch.ones(2, 2)}):
        torch.save(content, tmp_path / "a.pt")
        with pytest.raises(DataError):
            read_bag(tmp_path / "a.pt")


def test_features_of_a_whole_slide_are_no_bag(trident):
    _, job = trident
    with pytest.raises(DataError, match="features of a whole slide are no bag"):
        read_bag(job / "slide_features_titan/s0.h5")


def test_tables_of_clam_stamp_and_torchmil_become_manifests(tmp_path):
    x, places = foreign.features(9, 3), np.argwhere(np.ones((3, 3))) * 256
    for name in ("a", "b"):
        foreign.clam_files(tmp_path / "clam", x, places, name=name)
        foreign.stamp_file(tmp_path / "stamp", x, places * 1.0, name=name, **foreign.STAMP)
        foreign.torchmil_files(tmp_path / "torchmil", x, places, name=name, label=int(name == "b"))
    (tmp_path / "t.csv").write_text("case_id,slide_id,label\np1,a,normal\np2,b,tumor\n")
    (tmp_path / "split.csv").write_text(",train,val,test\n0,a,,b\n")
    (tmp_path / "clini.csv").write_text("PATIENT,MSI\np1,MSS\np2,MSI-H\n")
    found = next((tmp_path / "stamp").rglob("a.h5")).parent
    (tmp_path / "slides.csv").write_text("PATIENT,FILENAME\np1,a.h5\np2,b.h5\n")
    (tmp_path / "torchmil/splits.csv").write_text("bag_name,split\na,train\nb,test\n")
    two = ("--class", "normal", "--class", "tumor")
    roads = {
        "clam": (tmp_path / "clam", "--table", tmp_path / "t.csv", "--split", tmp_path / "split.csv", *two),
        "stamp": (found, "--table", tmp_path / "clini.csv", "--slides", tmp_path / "slides.csv", "--label", "MSI"),
        "torchmil": (tmp_path / "torchmil", "--encoder", "UNI"),
    }
    roads["stamp"] += ("--class", "MSS", "--class", "MSI-H")
    for name, words in roads.items():
        smmil("source", name, *words, "--out", tmp_path / "out" / name)
        manifest = Manifest.read(tmp_path / "out" / name / "manifest.csv")
        assert manifest.labels == {"a": 0, "b": 1}
        assert (read_bag(manifest.path_of("a")).x.float() - torch.from_numpy(x)).abs().max() < 1e-2
    with pytest.raises(SmmilError, match="--encoder: is not for clam"):
        smmil("source", "clam", tmp_path, "--table", "t.csv", "--encoder", "UNI", "--out", tmp_path / "no")
    with pytest.raises(SmmilError, match="stamp: --slides must be given"):
        smmil("source", "stamp", tmp_path, "--table", "t.csv", "--label", "MSI", "--out", tmp_path / "no")


def test_sparse_features_are_proposed_a_graph_that_convert_writes(tmp_path):
    places = np.random.default_rng(0).integers(0, 40_000, (40, 2))
    path = foreign.trident_file(tmp_path / "theirs", foreign.features(40, 3), places, 256)
    with pytest.raises(DataError, match=r"sampled sparsely.*--graph knn") as told:
        read_bag(path)
    assert "wrong step" not in str(told.value)
    for graph in ("knn:3", re.search(r"radius:\d+", str(told.value))[0]):
        smmil("convert", path, "--to", "native", "--graph", graph, "--out", tmp_path / graph[:3])
        bag = read_bag(tmp_path / graph[:3] / "case.h5")
        assert bag.graph.isolated_share <= 0.5
    assert read_bag(tmp_path / "knn/case.h5").graph.indptr.diff().min() >= 3
    regular = np.argwhere(np.ones((5, 5))) * 512
    wrong = foreign.trident_file(tmp_path / "wrong", foreign.features(25, 3), regular, 256)
    with pytest.raises(DataError, match="a wrong step"):
        read_bag(wrong)


def test_small_bags_without_an_edge_are_counted_and_told(tmp_path):
    for case, steps in {"alone": (0, 30, 60), "joined": (0, 10, 60), "one": (0,)}.items():
        for x in steps:
            file = tmp_path / "p" / f"{case}_x{x}_y0.png"
            file.parent.mkdir(exist_ok=True)
            Image.new("RGB", (10, 10), PLAIN).save(file)
    split = split_of(tmp_path, "alone", "joined", "one")
    smmil("source", "patches", tmp_path / "p", "--split", split, "--out", tmp_path / "tables")
    for _ in range(2):  # written, then kept
        told = smmil("prepare", tmp_path / "tables/slides", "--out", tmp_path / "study", *PREPARE)
        assert "2 of 3 bags have fewer than ten instances and no two neighbours" in told
    told = smmil("inspect", tmp_path / "study/bags", "--json", code=3)
    facts = json.loads(told)[0]
    assert (facts["bags"], facts["without_neighbours"], facts["instances"]["all"]) == (3, 2, 7)
    assert "2 of 3 bags have fewer than ten instances" in facts["warnings"][0]

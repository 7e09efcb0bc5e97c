"""Truth that a coverage, an empty mask or the mask of another image would lose without a word."""

from contextlib import suppress

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image
from support import ct_makers, drawings
from support import prepare_makers as makers
from torch import nn

from smmil.annotations.labels import lost_truth, proposed_coverage
from smmil.bag import Bag
from smmil.cli.prepare import _finish
from smmil.data import Manifest
from smmil.data.tables import read_label_shares
from smmil.errors import DataError
from smmil.evaluate import instance_metrics
from smmil.frame import Frame
from smmil.images.volume import open_volume
from smmil.models import Output
from smmil.predict.cases import Origin, predict_table
from smmil.predict.inference import TrainedModel
from smmil.prediction import Prediction, load_predictions
from smmil.prepare import plan, run
from smmil.prepare.annotate import annotate_case, read_labels


def test_the_proposed_coverage_keeps_an_instance_in_95_of_100_cases_and_no_larger_one_does():
    rng = np.random.default_rng(0)
    for n in (1, 3, 19, 20, 21, 153):
        largest = np.round(rng.beta(0.5, 3, n) + 1e-4, 8).tolist()
        found = proposed_coverage(largest)
        kept = sum(share > found for share in largest)
        assert kept >= 0.95 * n
        step = 10.0 ** (np.floor(np.log10(found)) - 1) if 0 < found < 0.1 else 0.01 if found else 1e-3
        assert sum(share > found + step + 1e-12 for share in largest) < 0.95 * n


def test_shares_at_the_edge_are_kept_only_strictly_above():
    assert proposed_coverage([0.5] * 10) == 0.49
    assert proposed_coverage([1.0]) == 0.99
    assert proposed_coverage([0.004, 0.9]) == 0.0039
    assert proposed_coverage([0.0] * 2 + [0.6] * 18) is None  # 90 % at most
    assert proposed_coverage([0.0] + [0.6] * 19) == 0.59
    assert proposed_coverage([]) is None


def test_the_words_count_the_loss_and_name_a_coverage_only_where_one_helps():
    assert lost_truth(5, 0, [0.1] * 5, 0.5) is None
    text = lost_truth(153, 149, [0.3] * 149 + [0.8] * 4, 0.5)
    assert text.startswith("149 of 153 positive cases keep no positive instance at a coverage of 0.5")
    assert text.endswith("a coverage of 0.29 would leave one in 153 of 153 (smmil prepare --coverage 0.29)")
    empty = lost_truth(4, 2, [0.0, 0.0, 0.9, 0.9], 0.5)
    assert empty.endswith("nothing can be localized in them; in 2 nothing is annotated at all, and no coverage helps")
    both = lost_truth(4, 3, [0.0, 0.2, 0.2, 0.9], 0.5)
    assert "a coverage of 0.19 would leave one in 3 of 4 (smmil prepare --coverage 0.19); in 1 nothing is" in both
    assert "coverage" not in lost_truth(4, 2)


@pytest.fixture
def slides(tmp_path):
    """Two slides of 36 tiles of 32 pixels each."""
    for name in ("s0", "s1", "s2"):
        image = makers.painted(192, 192, background=makers.TISSUE)
        makers.write_slide(tmp_path / "slides" / f"{name}.svs", image, mpp=1.0)
    return tmp_path / "slides"


def prepared(slides, table, **options):
    (slides.parent / "labels.csv").write_text(table)
    recipe = makers.recipe(32.0, tissue={"method": "none"})
    todo = plan([slides], slides.parent / "out", recipe, labels=slides.parent / "labels.csv", **options)
    return run(todo), todo


TABLE = "id,label,annotation\ns0,1,a.csv\ns1,1,b.csv\ns2,0,\n"


def test_prepare_says_how_many_positive_cases_keep_no_positive_tile_and_the_proposal_holds(slides, capsys):
    (slides.parent / "a.csv").write_text("x,y,width,height\n0,0,32,12\n")  # 0.375 of a tile
    (slides.parent / "b.csv").write_text("x,y,width,height\n0,0,32,8\n")  # 0.25
    done, todo = prepared(slides, TABLE)
    assert done.lost.startswith("2 of 2 positive cases keep no positive instance at a coverage of 0.5")
    assert "--coverage 0.24" in done.lost
    _finish(done, todo)
    assert "warning: 2 of 2 positive cases keep no positive instance" in capsys.readouterr().err
    again, todo = prepared(slides, TABLE, coverage=0.24)
    assert again.lost is None
    assert again.count("kept") == 3
    manifest = Manifest.read(again.manifest)
    assert [int(manifest.bag(id_).y_inst.sum()) for id_ in ("s0", "s1")] == [1, 1]
    _finish(again, todo)
    assert "warning" not in capsys.readouterr().err


def test_an_empty_mask_of_a_positive_case_is_told_and_of_a_negative_one_is_not(slides):
    for name in ("a", "b", "c"):
        mask = np.zeros((192, 192), np.uint8)
        mask[:64, :64] = name == "b"
        drawings.mask(slides.parent / f"{name}.png", mask)
    done, _ = prepared(slides, "id,label,annotation\ns0,1,a.png\ns1,1,b.png\ns2,0,c.png\n")
    cases = {o.task.case.id: o.value for o in done.outcomes}
    assert "the case is positive, but its annotation marks none of its instances" in cases["s0"].warnings[0]
    assert cases["s1"].warnings == cases["s2"].warnings == ()
    assert "the case is positive, but" in (slides.parent / "out" / "cases.csv").read_text()
    assert done.lost.startswith("1 of 2 positive cases keep no positive instance")
    assert "in 1 nothing is annotated at all" in done.lost
    assert "warnings" in read_labels(slides.parent / "out" / "instance_labels" / "s0.csv").about


def test_labels_given_by_hand_are_counted_too(slides):
    np.save(slides.parent / "k.npy", np.zeros(36, int))
    done, _ = prepared(slides, "id,label,instance_labels\ns0,1,k.npy\ns1,0,k.npy\ns2,,k.npy\n")
    assert done.lost == "1 of 1 positive cases keep no positive instance: nothing can be localized in them"


@pytest.mark.parametrize(
    ("size", "outcome"),
    [
        ((192, 192), None),
        ((193, 192), None),
        ((194, 192), "taken to begin at the same corner"),
        ((384, 384), "it was drawn at another resolution: give its pixel size"),
        ((192, 400), "it belongs to another slide"),
        ((96, 96), "it was drawn at another resolution"),
    ],
)
def test_a_mask_of_another_size_than_the_slide_is_refused_or_told(slides, size, outcome):
    mask = np.zeros(size[::-1], np.uint8)
    mask[:64, :64] = 1
    drawings.mask(slides.parent / "m.png", mask)
    done, _ = prepared(slides, "id,label,annotation\ns0,1,m.png\n")
    if outcome is None or "corner" in outcome:
        (case,) = (o.value for o in done.outcomes)
        assert case.positives == 4
        assert bool(case.warnings) == (outcome is not None)
        assert outcome is None or outcome in case.warnings[0]
    else:
        assert outcome in done.failures[0][2]
        assert f"{size[0]} x {size[1]}" in done.failures[0][2]


def test_a_mask_of_the_scanned_area_is_compared_with_that(tmp_path):
    bag = drawings.lattice(3, 2, 10, origin=(50, 70))
    path = drawings.mask(tmp_path / "m.png", np.ones((20, 30)))
    options = {"bounds": (50, 70, 30, 20), "size": (200, 200)}
    assert annotate_case(bag, path, **options).labels.sum() == 6
    with pytest.raises(DataError, match="belongs to another slide"):
        annotate_case(bag, path, size=(200, 200))


def scan_and_mask(folder, change=None, flip=False, shape=None):
    """A DICOM series of six slices, its bag, and a mask with a voxel in slice 4, written with a changed affine."""
    ct_makers.series(folder / "dicom")
    scan = open_volume(folder / "dicom")
    bag = Bag("scan", torch.zeros(6, 2), torch.arange(6)[:, None], Frame((1,), (5.0,), "mm"))
    codes = np.zeros(shape or scan.shape[::-1], np.uint8)
    codes[2, 3, 4] = 1
    affine = scan.affine @ (np.eye(4) if change is None else change)
    nibabel.save(nibabel.Nifti1Image(codes[:, :, ::-1] if flip else codes, affine), folder / "m.nii.gz")
    return bag, folder / "m.nii.gz", scan


def moved(x=0.0, y=0.0, z=0.0, turned=False):
    """Voxel shift of an affine, slices counted from the other end when turned."""
    return np.array([[1, 0, 0, x], [0, 1, 0, y], [0, 0, -1 if turned else 1, z + 5 * turned], [0, 0, 0, 1.0]])


def test_a_mask_on_the_grid_of_its_scan_is_taken_in_any_order_of_slices(tmp_path):
    bag, path, scan = scan_and_mask(tmp_path)
    assert annotate_case(bag, path, scan=scan).labels.tolist() == [0, 0, 0, 0, 1, 0]
    bag, path, scan = scan_and_mask(tmp_path / "turned", moved(turned=True), flip=True)
    found = annotate_case(bag, path, scan=scan)
    assert found.labels.tolist() == [0, 0, 0, 0, 1, 0]
    assert "warnings" not in found.about


def test_a_mask_at_other_heights_or_of_other_sizes_is_refused(tmp_path):
    bag, path, scan = scan_and_mask(tmp_path, moved(z=1))
    with pytest.raises(DataError, match=r"its slices lie up to 5 mm from those of the scan, 5 mm apart"):
        annotate_case(bag, path, scan=scan)
    bag, path, scan = scan_and_mask(tmp_path / "b", shape=(8, 9, 6))
    with pytest.raises(DataError, match="6 x 9 x 8 voxels for a scan of 6 x 9 x 7; resample the mask"):
        annotate_case(bag, path, scan=scan)


def test_a_mask_beside_its_scan_is_refused(tmp_path):
    bag, path, scan = scan_and_mask(tmp_path, moved(x=6))
    with pytest.raises(DataError, match="lies up to 3 mm beside the scan"):
        annotate_case(bag, path, scan=scan)
    bag, path, scan = scan_and_mask(tmp_path / "b", moved(x=0.5))
    assert "warnings" not in annotate_case(bag, path, scan=scan).about


def test_a_mask_of_instances_needs_any_and_then_equals_the_mask_of_all(tmp_path):
    bag, path, scan = scan_and_mask(tmp_path)
    image = nibabel.load(path)
    values = np.asarray(image.dataobj).astype(np.int16)
    values[1, 1, 2] = 1
    nibabel.save(nibabel.Nifti1Image(values, image.affine), path)
    values[1, 1, 2] = 2  # a second lesion, with a number of its own
    nibabel.save(nibabel.Nifti1Image(values, image.affine), tmp_path / "numbered.nii.gz")
    with pytest.raises(DataError, match="--positive any"):
        annotate_case(bag, tmp_path / "numbered.nii.gz", scan=scan)
    found = annotate_case(bag, tmp_path / "numbered.nii.gz", scan=scan, positive=["any"])
    expected = annotate_case(bag, path, scan=scan)
    assert (found.share == expected.share).all()
    assert found.labels.tolist() == [0, 0, 1, 0, 1, 0]
    picture = np.zeros((48, 48), np.uint8)
    picture[:16, :16], picture[16:40, 16:40] = 1, 7
    Image.fromarray(picture).save(tmp_path / "m.png")
    Image.fromarray((picture > 0).astype(np.uint8)).save(tmp_path / "all.png")
    patches = drawings.lattice(6, 6, 8)
    shares = [annotate_case(patches, tmp_path / name, positive=["any"]).share for name in ("m.png", "all.png")]
    assert (shares[0] == shares[1]).all()
    assert shares[0].sum() == 4 + 9


def test_a_scan_with_the_mask_of_another_fails_alone_in_a_batch(tmp_path):
    _, path, _ = scan_and_mask(tmp_path, moved(z=2))
    (tmp_path / "labels.csv").write_text(f"id,label,annotation\ndicom,1,{path.name}\n")
    recipe = makers.recipe(kind="ct")
    done = run(plan([tmp_path / "dicom"], tmp_path / "out", recipe, labels=tmp_path / "labels.csv"))
    assert "write the mask with the affine of the scan" in done.failures[0][2]


class First(nn.Module):
    def forward(self, batch):
        return Output(torch.stack([rows.mean(0)[:1] for rows in batch.split(batch.x)]), batch.x[:, :1])


def test_evaluate_proposes_the_coverage_that_the_stored_shares_allow(slides):
    (slides.parent / "a.csv").write_text("x,y,width,height\n0,0,32,12\n")
    (slides.parent / "b.csv").write_text("x,y,width,height\n0,0,32,32\n")
    done, _ = prepared(slides, TABLE)
    table = Manifest.read(done.manifest)
    assert read_label_shares(table.instance_labels_of("s0")) == (0.5, 0.375)
    assert read_label_shares(table.instance_labels_of("s2")) is None  # a negative case has none
    facts = {
        "model": {"in_dim": 3, "name": "first", "n_classes": 1},
        "epoch": 0,
        "config": "",
        "features": {},
        "split": "",
    }
    out = slides.parent / "predictions"
    trained = TrainedModel(First(), facts, "w")
    predict_table(trained, table, list(table.ids), Origin("best"), out=out, device="cpu")
    cases = load_predictions(out)
    assert cases[0].meta["annotation"] == {"coverage": 0.5, "largest_share": 0.375}
    assert "annotation" not in cases[2].meta
    note = instance_metrics(cases, pool="positive_bags")["notes"][0]
    assert note.startswith("1 of 2 positive cases keep no positive instance at a coverage of 0.5")
    assert "--coverage 0.37" in note
    again = Manifest.read(prepared(slides, TABLE, coverage=0.37)[0].manifest)
    done = predict_table(trained, again, list(again.ids), Origin("best"), out=out, device="cpu")
    assert [path.stem for path in done.written] == ["s0", "s1"]  # labels of another coverage are not kept
    assert [path.stem for path in done.kept] == ["s2"]
    assert not any("keep no" in text for text in instance_metrics(load_predictions(out), pool="positive_bags")["notes"])


def test_evaluate_counts_the_loss_without_shares_and_is_silent_without_loss():
    def case(name, labels, y=1):
        return Prediction(name, [0.5], [1.0, 2.0], y=y, y_inst=labels)

    lost = [case("a", [0, 1]), case("b", [0, 0]), case("c", [0, 0], y=0), case("d", [-1, -1])]
    notes = instance_metrics(lost, pool="positive_bags")["notes"]
    assert "1 of 2 positive cases keep no positive instance: nothing can be localized in them" in notes
    assert not any("keep no" in note for note in instance_metrics(lost[:1], pool="positive_bags")["notes"])


@pytest.mark.parametrize("coverage", ["9" * 400, "-1", "1.5", "true_", '"0.5"'])
def test_a_coverage_that_is_no_share_is_none(tmp_path, coverage):
    file = tmp_path / "labels.csv"
    file.write_text(f'label,share,about\n0,0.5,"{{""coverage"": {coverage.replace(chr(34), chr(34) * 2)}}}"\n')
    with suppress(DataError):
        assert read_label_shares(file) is None

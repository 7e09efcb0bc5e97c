"""Folders as torchmil publishes them become manifests and splits that a study of the paper takes as they are."""

import os
import time

import numpy as np
import pytest
from support.published_bags import SETS, published_bags

from smmil.cli import app
from smmil.data import Manifest
from smmil.data.foreign_tables import write_torchmil
from smmil.data.splits import load_splits, make_splits
from smmil.errors import DataError
from smmil.experiments.grid import _make_grid
from smmil.experiments.runner import run_study
from smmil.experiments.study import load_study

MAIN = "configs/paper/main.yaml"


def test_a_whole_camelyon16_becomes_a_manifest_of_every_encoder_and_a_grid_of_the_paper(tmp_path):
    root = published_bags(tmp_path / "Camelyon16_MIL", "Camelyon16_MIL", SETS["Camelyon16_MIL"], ("UNI", "resnet50_bt"))
    written = write_torchmil(root, tmp_path / "out")
    assert [path.parent.name for path in written] == ["UNI", "resnet50_bt"]
    for path, (manifest, notes) in written.items():
        assert (len(manifest), notes) == (399, {})
        assert sorted(manifest.splits.values()).count("test") == 129
        assert all(f"features_{path.parent.name}/" in str(manifest.path_of(id_)) for id_ in manifest.ids)
        splits = load_splits(path.with_name("splits.json"))
        assert [split.to_dict() for split in splits] == [split.to_dict() for split in make_splits(manifest)]
        assert {len(split.test) for split in splits} == {129}
    study = load_study(MAIN, {"CAMELYON16": str(path)})
    grid = _make_grid(study, tmp_path / "data", only=["CAMELYON16"])
    assert len(grid.runs) == 10 * 2 * 5
    assert grid.left_out == []


def test_scans_and_slides_below_one_folder_are_told_apart(tmp_path):
    for name in ("PANDA_MIL", "RSNA_ICH_MIL"):
        published_bags(tmp_path / "sets" / name, name, (20, 20))
    written = write_torchmil(tmp_path / "sets", tmp_path / "out")
    assert [path.parent.name for path in written] == ["PANDA_MIL", "RSNA_ICH_MIL"]
    for path, dimensions in zip(written, (2, None), strict=True):
        manifest = Manifest.read(path)
        manifest.check()
        bag = manifest.bag("bag_00001")
        assert (bag.coords is None) == (dimensions is None)
        assert bag.y_inst.sum() == 2


@pytest.mark.parametrize(
    ("header", "rows"),
    [
        ("bag_name,split", "{}.npy,{}"),
        ("Slide_ID , Partition", "{}, {}"),
        (",wsi_name,set", "0,{},{}"),
    ],
)
def test_names_of_columns_and_endings_of_bags_do_not_matter(tmp_path, header, rows):
    root = published_bags(tmp_path / "bags", "PANDA_MIL", (20, 10))
    parts = {"train": "Training", "test": "TEST"}
    known = [line.split(",") for line in (root / "splits.csv").read_text().split()[1:]]
    listed = [rows.format(id_, parts[part]) for id_, part in known]
    (root / "splits.csv").write_text("\n".join([header, *listed, listed[0]]) + "\n")
    ((manifest, _),) = write_torchmil(root, tmp_path / "out").values()
    assert manifest.splits == dict(known)


def test_what_is_missing_is_counted_and_left_out_only_when_asked_and_no_label_is_guessed(tmp_path):
    root = published_bags(tmp_path / "bags", "PANDA_MIL", (20, 10))
    below = root / "patches_512"
    (below / "features" / "features_resnet18" / "bag_00003.npy").unlink()
    (below / "labels" / "bag_00005.npy").unlink()  # its instances are positive, yet nobody says what the bag is
    (below / "patch_labels" / "bag_00007.npy").unlink()
    lost = r"1 bags of splits.csv without features \(bag_00003\); 1 bags without a file in labels/ \(bag_00005\)"
    with pytest.raises(DataError, match=lost):
        write_torchmil(root, tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.csv").exists()
    ((manifest, notes),) = write_torchmil(root, tmp_path / "out", allow_missing=True).values()
    assert set(manifest.ids) == {f"bag_{n:05d}" for n in range(30)} - {"bag_00003", "bag_00005"}
    assert set(notes) == {"bag_00003", "bag_00005", "bag_00007"}
    assert manifest.bag("bag_00007").y_inst is None


def test_odd_splits_are_refused_with_their_bag(tmp_path):
    root = published_bags(tmp_path / "bags", "PANDA_MIL", (20, 10))
    table = (root / "splits.csv").read_text()
    for text, words in (
        (table.replace("bag_00004,train", "bag_00004,fold1"), "split 'fold1' of 'bag_00004'"),
        (table + "bag_00004,test\n", "'bag_00004' is in train and in test"),
        (table.replace("bag_name", "what"), "no column of ids"),
        (table.replace(",split", ",fold"), "column 'split' is missing; the table has bag_name, fold"),
    ):
        (root / "splits.csv").write_text(text)
        with pytest.raises(DataError, match=words):
            write_torchmil(root, tmp_path / "out")
    with pytest.raises(DataError, match=r"no splits\.csv beside features"):
        write_torchmil(tmp_path / "bags" / "patches_512", tmp_path / "out")


def test_the_verb_writes_all_encoders_and_says_how_to_go_on(tmp_path):
    from typer.testing import CliRunner

    published_bags(tmp_path / "bags", "Camelyon16_MIL", (20, 10), ("UNI", "resnet50_bt"))
    told = CliRunner().invoke(app, ["source", "torchmil", str(tmp_path / "bags"), "--out", str(tmp_path / "out")])
    assert told.exit_code == 0, told.output
    assert told.output.count("30 cases (label 0: 15, label 1: 15)") == 2
    assert told.output.count("patients are not known") == 2


def test_a_check_is_remembered_until_coordinates_or_labels_change(tmp_path, monkeypatch):
    import smmil.data.manifest as place

    root = published_bags(tmp_path / "bags", "PANDA_MIL", (20, 10))
    before = time.time() - 10
    for file in root.rglob("*.npy"):
        os.utime(file, (before, before))
    monkeypatch.setattr(place, "_WORTH_S", -1.0)
    monkeypatch.setattr(place, "_SETTLED_S", -1.0)
    ((manifest, _),) = write_torchmil(root, tmp_path / "out").values()
    read = []
    check = place._check_bag
    monkeypatch.setattr(place, "_check_bag", lambda m, id_: read.append(id_) or check(m, id_))
    manifest.check_files()
    manifest.check_files()
    assert len(read) == 30
    for folder in ("coords", "patch_labels"):
        file = root / "patches_512" / folder / "bag_00002.npy"
        np.save(file, np.load(file))
        manifest.check_files()
        assert read[30:] == ["bag_00002"]
        del read[30:]


@pytest.mark.slow
def test_a_study_of_the_paper_trains_on_all_three_sets_without_another_step(tmp_path):
    names = {"CAMELYON16": "Camelyon16_MIL", "PANDA": "PANDA_MIL", "RSNA": "RSNA_ICH_MIL"}
    for name in names.values():
        published_bags(tmp_path / "sets" / name, name, (40, 20))
    written = {path.parent.name: str(path) for path in write_torchmil(tmp_path / "sets", tmp_path / "out")}
    study = load_study(MAIN, {variable: written[name] for variable, name in names.items()})
    short = {"learning_rates": [1e-3], "folds": [0], "variants": study.variants[:2]}
    study = study.model_copy(update={**short, "training": {"epochs": 2, "warmup_epochs": 1}})
    report = run_study(study, tmp_path / "study", only=list(names))
    assert (len(report.done), report.failed) == (6, {})

"""Public data sets: small folders built like the real ones, and the tables written from them."""

import os

import numpy as np
import pandas as pd
import pydicom
import pytest

from smmil.annotations.labels import read_slice_labels
from smmil.cli.source import Name, source
from smmil.data import Manifest
from smmil.data.foreign_tables import PROJECTS
from smmil.data.sources import NAMES, write_source
from smmil.data.sources.camelyon16 import EXPECTED, WITHDRAWN
from smmil.errors import ConfigError, DataError
from smmil.files import read_json
from smmil.images.volume import open_volume
from smmil.synthetic.ct import _write_ct_series


def touch(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    return path


def camelyon(root, answers="test_001,Tumor,IDC,Macro\ntest_002,Normal,None,None\n"):
    for name in ("training/normal/normal_001.tif", "training/tumor/tumor_001.tif", "training/tumor/tumor_010.tif"):
        touch(root / name)
    for name in ("testing/images/test_001.tif", "testing/images/test_002.tif", "testing/images/test_049.tif"):
        touch(root / name)
    for name in ("training/lesion_annotations/tumor_001.xml", "training/lesion_annotations/tumor_010.xml"):
        touch(root / name)
    touch(root / "testing/lesion_annotations/Test_001.xml")
    touch(root / "testing/evaluation/evaluation_masks/test_001_evaluation_mask.tif")
    (root / "testing/reference.csv").write_text(answers)
    return root


def assert_contract(manifest, out):
    """What every source promises: a readable manifest with existing files, groups, splits, and its origin."""
    manifest.check_table()
    assert Manifest.read(out / "labels.csv").digest() == manifest.digest()
    for id_ in manifest.ids:
        assert manifest.path_of(id_).exists()
    if "annotation" in manifest.table:
        assert all((out / place).exists() for place in manifest.table["annotation"] if place)
    about = read_json(out / "source.json")
    assert about["cases"] == len(manifest)
    assert set(manifest.table["split_origin"]) == {about["split"]}
    assert str(out) not in (out / "labels.csv").read_text() + (out / "source.json").read_text()
    return about


def test_camelyon16_keeps_its_official_split_and_leaves_withdrawn_slides_out(tmp_path):
    out = tmp_path / "out"
    manifest = write_source("camelyon16", camelyon(tmp_path / "c16"), out, allow_missing=True)
    about = assert_contract(manifest, out)
    assert manifest.labels == {"normal_001": 0, "test_001": 1, "test_002": 0, "tumor_001": 1, "tumor_010": 1}
    assert manifest.splits == {"normal_001": "train", "test_001": "test", "test_002": "test"} | {
        "tumor_001": "train",
        "tumor_010": "train",
    }
    assert about["split"] == "official"
    assert about["withdrawn"] == ["test_049"]
    rows = manifest.table.set_index("id")
    assert rows.loc["test_001", "annotation"] == "../c16/testing/lesion_annotations/Test_001.xml"
    assert rows.loc["normal_001", "annotation"] == ""
    assert rows["annotation_complete"].to_dict()["tumor_010"] == "no"
    assert rows["annotation_complete"].to_dict()["tumor_001"] == ""


def test_a_complete_camelyon16_has_270_training_and_129_test_slides(tmp_path):
    for kind, count in EXPECTED.items():
        for number in range(1, count + 1):
            touch(tmp_path / "c" / kind / f"{kind}_{number:03d}.tif")
            if kind != "normal" and (kind != "test" or number % 2):
                touch(tmp_path / "c" / "xml" / f"{kind}_{number:03d}.xml")
    lines = [f"test_{n:03d},{'Tumor' if n % 2 else 'Normal'},x,y" for n in range(1, 131)]
    (tmp_path / "c" / "reference.csv").write_text("\n".join(lines))
    manifest = write_source("camelyon16", tmp_path / "c", tmp_path / "out")
    assert pd.Series(manifest.splits).value_counts().to_dict() == {"train": 270, "test": 129}
    assert read_json(tmp_path / "out" / "source.json")["missing"] == []
    assert not set(WITHDRAWN) & set(manifest.ids)


def test_what_is_missing_of_camelyon16_is_counted_and_named(tmp_path):
    root = camelyon(tmp_path / "c16", answers="slide,class\ntest_001,Tumor,IDC,Macro\n")
    (root / "training/lesion_annotations/tumor_001.xml").unlink()
    with pytest.raises(DataError) as told:
        write_source("camelyon16", root, tmp_path / "out")
    text = str(told.value)
    assert "394 slides (normal_002, normal_003, normal_004, normal_005, normal_006 and 389 more)" in text
    assert "1 labels in reference.csv (test_002)" in text
    assert "1 lesion annotations (tumor_001)" in text
    assert not (tmp_path / "out").exists()


def test_camelyon16_refuses_two_slides_of_one_name_and_odd_answers(tmp_path):
    root = camelyon(tmp_path / "c16", answers="test_001,Tumor\ntest_002,Maybe\n")
    with pytest.raises(DataError, match="line 2 is 'test_002,Maybe'; expected Tumor or Normal"):
        write_source("camelyon16", root, tmp_path / "out", allow_missing=True)
    touch(root / "copy" / "Tumor_001.tif")
    with pytest.raises(DataError, match=r"the same name as .*; keep one"):
        write_source("camelyon16", root, tmp_path / "out", allow_missing=True)
    with pytest.raises(DataError, match="is this CAMELYON16"):
        write_source("camelyon16", touch(tmp_path / "empty" / "x.txt").parent, tmp_path / "out")


def panda(root, n=3):
    lines = ["image_id,data_provider,isup_grade,gleason_score"]
    for i in range(n):
        provider, grade = ("karolinska", "radboud")[i % 2], (0, 3)[i % 3 > 0]
        lines.append(f"00{i},{provider},{grade},0+0")
        touch(root / "train_images" / f"00{i}.tiff")
        if i:
            touch(root / "train_label_masks" / f"00{i}_mask.tiff")
    (root / "train.csv").write_text("\n".join(lines) + "\n")
    return root


def test_panda_takes_a_given_partition_and_knows_whose_codes_a_mask_has(tmp_path):
    root, out = panda(tmp_path / "panda"), tmp_path / "out"
    (tmp_path / "split.csv").write_text("bag_name,split\n000,train\n001,train\n002,test\n")
    manifest = write_source("panda", root, out, split=tmp_path / "split.csv")
    about = assert_contract(manifest, out)
    assert manifest.labels == {"000": 0, "001": 1, "002": 1}
    assert manifest.splits == {"000": "train", "001": "train", "002": "test"}
    assert list(manifest.table["annotation_kind"]) == ["", "panda-radboud", "panda-karolinska"]
    assert about["split"].startswith("given: split.csv")
    assert about["notes"][0] == "1 images have no mask (000)"
    grades = write_source("panda", root, tmp_path / "isup", split=tmp_path / "split.csv", task="isup")
    assert list(grades.table["label"]) == ["0", "3", "3"]


def test_a_split_of_our_own_keeps_patients_together_and_says_so(tmp_path):
    root, out = panda(tmp_path / "panda", 60), tmp_path / "out"
    people = {f"00{i}": f"p{i // 3}" for i in range(60)}
    (tmp_path / "p.csv").write_text("image_id,patient\n" + "".join(f"{i},{p}\n" for i, p in people.items()))
    manifest = write_source("panda", root, out, patients=tmp_path / "p.csv", seed=3)
    about = assert_contract(manifest, out)
    assert about["split"] == "own: drawn by smmil, grouped by patient, stratified by label, seed 3"
    assert manifest.groups == people
    places = pd.Series(manifest.splits).groupby(pd.Series(manifest.groups)).nunique()
    assert (places == 1).all()
    assert 6 <= list(manifest.splits.values()).count("test") <= 18
    again = write_source("panda", root, tmp_path / "again", patients=tmp_path / "p.csv", seed=3)
    assert again.splits == manifest.splits


def test_panda_names_missing_images_strange_rows_and_cases_outside_the_partition(tmp_path):
    root = panda(tmp_path / "panda")
    (tmp_path / "split.csv").write_text("image_id,split\n000,train\n001,validation\n")
    manifest = write_source("panda", root, tmp_path / "out", split=tmp_path / "split.csv")
    assert manifest.splits == {"000": "train", "001": "val"}
    assert "1 cases are not in split.csv and were left out: 002" in read_json(tmp_path / "out/source.json")["notes"]
    (tmp_path / "split.csv").write_text("image_id,split\n000,train\n0099,test\n")
    with pytest.raises(DataError, match=r"1 cases of split\.csv are not there: 0099"):
        write_source("panda", root, tmp_path / "out", split=tmp_path / "split.csv")
    (root / "train_images" / "001.tiff").unlink()
    with pytest.raises(DataError, match=r"incomplete: 1 images \(001\)"):
        write_source("panda", root, tmp_path / "out")
    (root / "train.csv").write_text("image_id,data_provider,isup_grade\n000,oslo,1\n")
    with pytest.raises(DataError, match="data_provider 'oslo'; expected radboud, karolinska"):
        write_source("panda", root, tmp_path / "out")


def rsna(root, scans=3):
    """A flat folder of slices: the middle one of odd scans is positive, scans 0 and 1 are of one patient."""
    flat, rows = root / "stage_2_train", []
    flat.mkdir(parents=True)
    for scan in range(scans):
        hu = np.random.default_rng(scan).integers(-100, 100, (3, 4, 4)).astype(np.float32)
        for z, path in enumerate(_write_ct_series(root / "tmp" / str(scan), hu, (1.0, 1.0, 5.0), seed=scan)):
            dataset = pydicom.dcmread(path)
            name = f"ID_{(z * 7 + scan * 5) % 97:03d}{scan}{z}"
            dataset.SOPInstanceUID = dataset.file_meta.MediaStorageSOPInstanceUID = name
            dataset.StudyInstanceUID, dataset.PatientID = f"ID_study{scan}", f"ID_p{max(scan, 1)}"
            dataset.save_as(flat / f"{name}.dcm")
            path.unlink()
            rows += [(f"{name}_any", int(scan % 2 and z == 1)), (f"{name}_epidural", int(scan % 2 and z == 1))]
    pd.DataFrame(rows, columns=["ID", "Label"]).sample(frac=1, random_state=0).to_csv(
        root / "stage_2_train.csv", index=False
    )
    return root


def split_of(path, **parts):
    path.write_text("id,split\n" + "".join(f"{id_},{part}\n" for id_, part in parts.items()))
    return path


def test_rsna_scans_and_patients_come_from_the_headers_of_a_flat_folder(tmp_path):
    root, out = rsna(tmp_path / "rsna"), tmp_path / "out"
    split = split_of(tmp_path / "s.csv", ID_study0="train", ID_study1="train", ID_study2="test")
    manifest = write_source("rsna_ich", root, out, split=split)
    assert_contract(manifest, out)
    assert manifest.labels == {"ID_study0": 0, "ID_study1": 1, "ID_study2": 0}
    assert manifest.groups == {"ID_study0": "ID_p1", "ID_study1": "ID_p1", "ID_study2": "ID_p2"}
    volume = open_volume(manifest.path_of("ID_study1"))
    labels = read_slice_labels(out / "annotations" / "ID_study1.csv")
    assert labels.loc[list(volume.sop_uids), "any"].tolist() == [0, 1, 0]
    assert len(labels) == 3


def test_rsna_headers_are_read_once_and_a_new_file_is_noticed(tmp_path, monkeypatch):
    root, out = rsna(tmp_path / "rsna"), tmp_path / "out"
    split = split_of(tmp_path / "s.csv", ID_study1="train", ID_study2="test")
    first = write_source("rsna_ich", root, out, split=split)
    asked = []
    monkeypatch.setattr("smmil.data.sources.rsna_ich.find_series", lambda files: asked.append(files) or ([], ()))
    assert write_source("rsna_ich", root, out, split=split).digest() == first.digest()
    assert asked == []
    path = next((root / "stage_2_train").iterdir())
    os.utime(path, (1, 1))
    path.write_bytes(path.read_bytes() + b"\0\0")
    with pytest.raises(DataError):
        write_source("rsna_ich", root, out)
    assert [len(files) for files in asked] == [1]


def test_rsna_lists_slices_without_label_and_labels_without_slice(tmp_path):
    root = rsna(tmp_path / "rsna")
    gone = sorted((root / "stage_2_train").iterdir())[0]
    gone.unlink()
    with pytest.raises(DataError, match=rf"incomplete: 1 slices \({gone.stem}\)"):
        write_source("rsna_ich", root, tmp_path / "out")
    labels = pd.read_csv(root / "stage_2_train.csv")
    other = sorted((root / "stage_2_train").iterdir())[0].stem
    labels[~labels["ID"].str.startswith(other)].to_csv(root / "stage_2_train.csv", index=False)
    split = split_of(tmp_path / "s.csv", ID_study0="train", ID_study1="test")
    with pytest.raises(DataError, match=rf"incomplete: 1 labels of slices \({other}\)"):
        write_source("rsna_ich", root, tmp_path / "out", split=split)


def test_a_patient_of_rsna_in_two_parts_of_a_given_split_is_refused(tmp_path):
    split = split_of(tmp_path / "s.csv", ID_study0="train", ID_study1="test")
    with pytest.raises(DataError, match=r"patient in two splits: ID_p1 \(test, train\)"):
        write_source("rsna_ich", rsna(tmp_path / "rsna"), tmp_path / "out", split=split)
    assert not (tmp_path / "out" / "labels.csv").exists()


def crchisto(root):
    for name in ("img1", "img2", "img3"):
        touch(root / "png" / f"{name}.png")
    rows = ["img1,3.5,4,epithelial", "img2,1,1,fibroblast", "img1,9,9,others", "img3,2,2,epithelial"]
    (root / "nuclei.csv").write_text("image,x,y,class\n" + "\n".join(rows) + "\n")
    return root


def test_an_image_of_crchisto_is_positive_when_it_holds_an_epithelial_nucleus(tmp_path):
    root, out = crchisto(tmp_path / "crc"), tmp_path / "out"
    split = split_of(tmp_path / "s.csv", img1="train", img2="train", img3="test")
    manifest = write_source("crchisto", root, out, split=split)
    assert_contract(manifest, out)
    assert manifest.labels == {"img1": 1, "img2": 0, "img3": 1}
    points = (out / "points.csv").read_text().splitlines()
    assert points == ["image,x,y,label", "img1,3.5,4,1", "img2,1,1,0", "img1,9,9,0", "img3,2,2,1"]
    touch(root / "png" / "img4.png")
    (root / "png" / "img1.png").unlink()
    with pytest.raises(DataError, match=r"1 images \(img1\); 1 images without a nucleus in nuclei.csv \(img4\)"):
        write_source("crchisto", root, out, split=split)


def test_the_real_crchisto_has_51_positive_and_49_negative_images(tmp_path):
    root = os.path.join(os.environ.get("SMMIL_DATA", ""), "crchisto")
    if not os.path.isdir(root):
        pytest.skip("set SMMIL_DATA to a folder that holds crchisto")
    manifest = write_source("crchisto", root, tmp_path)
    assert sorted(manifest.labels.values()) == [0] * 49 + [1] * 51
    points = pd.read_csv(tmp_path / "points.csv")
    assert len(points) == 22444
    assert points["label"].sum() == 7722


def test_a_folder_and_a_table_are_joined_by_name(tmp_path):
    for name in ("a/007.svs", "b/008.tiff", "b/009.png", "b/notes.txt"):
        touch(tmp_path / "in" / name)
    touch(tmp_path / "xml" / "008.xml")
    (tmp_path / "t.csv").write_text("id,label,patient,split,annotation_kind\n007,0,p1,train,\n008,1,p2,test,asap\n")
    options = {"table": tmp_path / "t.csv", "annotations": tmp_path / "xml"}
    manifest = write_source("folder", tmp_path / "in", tmp_path / "out", **options)
    about = assert_contract(manifest, tmp_path / "out")
    assert manifest.groups == {"007": "p1", "008": "p2"}
    assert list(manifest.table["annotation"]) == ["", "../xml/008.xml"]
    assert about["notes"] == ["1 images are not in t.csv and were left out (009)"]
    (tmp_path / "t.csv").write_text("id,label\n007,0\n010,1\n")
    with pytest.raises(DataError, match=r"incomplete: 1 images of t.csv \(010\).*go on without \(--allow-missing\)"):
        write_source("folder", tmp_path / "in", tmp_path / "out", **options)


def test_volumes_and_their_masks_are_joined_by_name_without_both_endings(tmp_path):
    for name in ("in/s1.nii.gz", "in/s2.nii", "masks/s1.nii.gz"):
        touch(tmp_path / name)
    (tmp_path / "t.csv").write_text("id,label\ns1,1\ns2,0\n")
    options = {"table": tmp_path / "t.csv", "annotations": tmp_path / "masks"}
    manifest = write_source("folder", tmp_path / "in", tmp_path / "out", **options)
    assert manifest.path_of("s1") == tmp_path / "out" / "../in/s1.nii.gz"
    assert list(manifest.table["annotation"]) == ["../masks/s1.nii.gz", ""]


def test_unknown_sets_and_options_are_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match="did you mean camelyon16"):
        write_source("camelyon", tmp_path, tmp_path)
    with pytest.raises(ConfigError, match="--split: is not for the data set camelyon16, which takes --allow-missing"):
        write_source("camelyon16", tmp_path, tmp_path, split="x")
    with pytest.raises(ConfigError, match="give the table id,label of its images with --table"):
        write_source("folder", tmp_path, tmp_path)
    with pytest.raises(DataError, match="no such folder; give the folder that holds"):
        write_source("panda", tmp_path / "absent", tmp_path)


def test_the_verb_prints_what_was_found(tmp_path, capsys):
    assert tuple(Name) == (*NAMES, *PROJECTS)
    source(Name.camelyon16, camelyon(tmp_path / "c16"), tmp_path / "out", allow_missing=True)
    told = capsys.readouterr().out.splitlines()
    assert told[0] == f"{tmp_path / 'out' / 'labels.csv'}: 5 cases (label 0: 2, label 1: 3); split official"
    assert told[1].startswith("note: 394 slides (normal_002")


def test_labels_of_a_spreadsheet_and_missing_ones_are_written_plainly(tmp_path, capsys):
    (tmp_path / "in").mkdir()
    for name in "abc":
        (tmp_path / "in" / f"{name}.png").write_bytes(b"")
    (tmp_path / "t.csv").write_text("id,label\na,1.0\nb,0.0\nc,\n")
    source(Name.folder, tmp_path / "in", tmp_path / "out", table=tmp_path / "t.csv")
    assert "3 cases (label 0: 1, label 1: 1, label none: 1)" in capsys.readouterr().out
    rows = (tmp_path / "out" / "labels.csv").read_text().splitlines()
    assert [row.split(",")[2] for row in rows] == ["label", "1", "0", ""]

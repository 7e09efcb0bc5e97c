import numpy as np
import pandas as pd
import pytest
import torch
from support import foreign_files as foreign
from support.roads import smmil

from smmil.data.foreign_tables import (
    clam_manifest,
    read_labels,
    stamp_manifest,
    torchmil_manifest,
    write_foreign_manifest,
)
from smmil.data.manifest import Manifest
from smmil.data.tables import TableColumns
from smmil.errors import DataError
from smmil.synthetic import synthetic_slides, write_synthetic

CELLS = foreign.cells()
X = foreign.features(len(CELLS))


def clam_study(folder):
    for name in ("007", "008", "009"):
        foreign.clam_files(folder / "feats", X, CELLS * 512, name=name, patch_size=512)
    (folder / "t.csv").write_text("case_id,slide_id,label\np1,007,tumor\np1,008,tumor\np2,009,normal\n")
    (folder / "splits_0.csv").write_text(",train,val,test\n0,007,,009\n1,008,,\n")
    return folder


def test_clams_table_and_split_become_a_manifest_that_reads(tmp_path):
    clam_study(tmp_path)
    manifest = clam_manifest(
        tmp_path / "t.csv",
        tmp_path / "feats",
        split=tmp_path / "splits_0.csv",
        classes=["normal", "tumor"],
        folder=tmp_path,
    )
    manifest.write(tmp_path / "manifest.csv")
    back = Manifest.read(tmp_path / "manifest.csv")
    back.check(training=False)
    assert back.labels == {"007": 1, "008": 1, "009": 0}
    assert back.groups == {"007": "p1", "008": "p1", "009": "p2"}
    assert back.splits == {"007": "train", "008": "train", "009": "test"}
    assert back.path_of("008") == tmp_path / "feats" / "h5_files" / "008.h5"
    assert list(back.table["label_name"]) == ["tumor", "tumor", "normal"]
    assert back.bag("009").n == len(X)


def test_the_order_of_classes_is_not_guessed(tmp_path):
    clam_study(tmp_path)
    with pytest.raises(DataError, match=r"words \(normal, tumor\); .*: --class normal --class tumor, or --class tumor"):
        clam_manifest(tmp_path / "t.csv", tmp_path / "feats")
    with pytest.raises(DataError, match="label 'normal' is not one of the classes"):
        clam_manifest(tmp_path / "t.csv", tmp_path / "feats", classes=["healthy", "tumor"])


def test_a_slide_in_two_parts_or_in_no_table_is_refused(tmp_path):
    clam_study(tmp_path)
    options = {"classes": ["normal", "tumor"], "split": tmp_path / "splits_0.csv"}
    (tmp_path / "splits_0.csv").write_text(",train,val,test\n0,007,007,\n")
    with pytest.raises(DataError, match="slide '007' is in train and in val"):
        clam_manifest(tmp_path / "t.csv", tmp_path / "feats", **options)
    (tmp_path / "splits_0.csv").write_text(",train,val,test\n0,007,7,\n")
    with pytest.raises(DataError, match="1 slides are not in the table, such as '7'"):
        clam_manifest(tmp_path / "t.csv", tmp_path / "feats", **options)


def stamp_study(folder, slides):
    (folder / "clini.csv").write_text("PATIENT,MSI,AGE\nB,MSI-H,50\nA,MSS,60\n")
    (folder / "slides.csv").write_text("PATIENT,FILENAME\n" + "".join(f"{p},{f}\n" for p, f in slides))
    for _, name in slides:
        foreign.stamp_file(folder, X, CELLS * 256.0, name=name.removesuffix(".h5"), **foreign.STAMP)
    return folder / "clini.csv", folder / "slides.csv", folder / "ctranspath-abc"


def test_stamps_tables_join_patients_to_slides_whatever_the_order_of_rows(tmp_path):
    tables = stamp_study(tmp_path, [("A", "a1.h5"), ("B", "b1.h5"), ("A", "a2.h5")])
    manifest = stamp_manifest(*tables, label="MSI", classes=["MSS", "MSI-H"], folder=tmp_path)
    assert manifest.labels == {"a1": 0, "b1": 1, "a2": 0}
    assert manifest.groups == {"a1": "A", "b1": "B", "a2": "A"}
    manifest.check(training=False)


def test_patients_without_slides_and_slides_without_patients_are_counted(tmp_path):
    tables = stamp_study(tmp_path, [("A", "a1.h5")])
    with pytest.raises(DataError, match=r"no slide in .* for 1 patients, such as 'B'"):
        stamp_manifest(*tables, label="MSI", classes=["MSS", "MSI-H"])
    tables = stamp_study(tmp_path, [("A", "a1.h5"), ("B", "b.h5"), ("C", "c.h5")])
    with pytest.raises(DataError, match="patient of 1 patients, such as 'C'"):
        stamp_manifest(*tables, label="MSI", classes=["MSS", "MSI-H"])
    with pytest.raises(DataError, match=r"column 'MSX' is missing; did you mean MSI"):
        stamp_manifest(*tables, label="MSX")


def test_torchmils_folder_becomes_a_manifest_with_labels_and_sidecars(tmp_path):
    for name, label in (("a", 1), ("b", 0)):
        y_inst = np.zeros(len(X), int)
        y_inst[0] = label
        foreign.torchmil_files(tmp_path, X, CELLS * 512, name=name, label=label, y_inst=y_inst)
    (tmp_path / "splits.csv").write_text("bag_name,split\na,train\nb,test\n")
    manifest, notes = torchmil_manifest(tmp_path, "UNI", folder=tmp_path)
    assert notes == {}
    manifest.check(training=False)
    assert manifest.labels == {"a": 1, "b": 0}
    assert manifest.splits == {"a": "train", "b": "test"}
    assert manifest.bag("a").y_inst.sum() == 1
    with pytest.raises(DataError, match="features_uni found in 0 folders"):
        torchmil_manifest(tmp_path, "uni")


def test_damaged_labels_are_named(tmp_path):
    foreign.torchmil_files(tmp_path, X, CELLS * 512, name="a", label=1)
    (tmp_path / "splits.csv").write_text("bag_name,split\na,train\n")
    (tmp_path / "patches_512" / "labels" / "a.npy").write_bytes(b"\x93NUMPY\x01")
    with pytest.raises(DataError, match=r"a\.npy"):
        torchmil_manifest(tmp_path, "UNI")


def test_a_table_of_labels_keeps_leading_zeros(tmp_path):
    (tmp_path / "l.csv").write_text("id,label\n007,1\n008,\n")
    assert read_labels(tmp_path / "l.csv") == {"007": 1}


def test_numeric_labels_of_a_spreadsheet_are_class_indices(tmp_path):
    clam_study(tmp_path)
    (tmp_path / "t.csv").write_text("case_id,slide_id,label\np1,007,1.0\np2,009,0.0\n")
    manifest = clam_manifest(tmp_path / "t.csv", tmp_path / "feats", folder=tmp_path)
    assert list(manifest.table["label"]) == ["1", "0"]


def test_columns_of_other_names_and_words_become_a_manifest(tmp_path):
    write_synthetic(tmp_path / "set", synthetic_slides(2, size=(12, 20), dim=5))
    names = sorted(p.stem for p in (tmp_path / "set" / "bags").iterdir())
    rows = "".join(f"{name},{word},p{n}\n" for n, (name, word) in enumerate(zip(names, ("sick", "well"), strict=True)))
    (tmp_path / "exams.csv").write_text(f"exam,finding,person\n{rows}")
    columns = {"id_column": "exam", "label_column": "finding", "patient_column": "person"}
    made, _ = write_foreign_manifest(
        "features",
        tmp_path / "set" / "bags",
        tmp_path / "o",
        table=tmp_path / "exams.csv",
        classes=["well", "sick"],
        **columns,
    )
    assert made.labels == dict(zip(names, (1, 0), strict=True))
    assert made.groups == dict(zip(names, ("p0", "p1"), strict=True))


def test_a_chosen_column_wins_over_one_of_the_usual_name():
    table = pd.DataFrame(
        {"id": ["1", "2"], "exam": ["a", "b"], "group": ["g", "g"], "person": ["p", "q"]}, dtype=object
    )
    renamed = TableColumns(id="exam", patient="person").renamed("t.csv", table)
    assert renamed["id"].tolist() == ["a", "b"]
    assert renamed["patient"].tolist() == ["p", "q"]
    assert "group" not in renamed


def test_features_without_coordinates_are_told_when_the_table_is_made(tmp_path):
    (tmp_path / "features" / "pt_files").mkdir(parents=True)
    for name in ("a", "b"):
        torch.save(torch.randn(4, 8), tmp_path / "features" / "pt_files" / f"{name}.pt")
    (tmp_path / "table.csv").write_text("case_id,slide_id,label\np,a,0\nq,b,1\n")
    words = ("--table", str(tmp_path / "table.csv"), "--out", str(tmp_path / "study"))
    said = " ".join(smmil("source", "clam", tmp_path / "features", *words).split())
    assert "a has no coordinates: maps, and models with Sm or a graph, need them" in said

import os
import re
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from support.table_manifests import table_manifest

from smmil.bag import Bag
from smmil.data import Manifest
from smmil.data.manifest import describe_manifest
from smmil.errors import DataError
from smmil.formats import write_bag
from smmil.frame import Frame
from smmil.runtime import source_digest


def write_csv(folder, text):
    path = folder / "manifest.csv"
    path.write_text(text, encoding="utf-8")
    return path


def make_study(folder, *, widths=(3, 3), labels=(0, 1), instances=(None, None)):
    """Two or more bags of four instances, with instance labels where they are given."""
    rows = []
    for i, (width, label, inst) in enumerate(zip(widths, labels, instances, strict=True)):
        write_bag(folder / f"{i}.h5", Bag(str(i), torch.ones(4, width)), graph="none")
        if inst is not None:
            np.save(folder / f"{i}.npy", np.array(inst))
        rows.append(f"{i},{i}.h5,{label},{'' if inst is None else f'{i}.npy'}")
    return Manifest.read(write_csv(folder, "id,path,label,instance_labels\n" + "\n".join(rows) + "\n"))


def test_ids_keep_their_leading_zeros_and_words_that_look_like_nothing(tmp_path):
    manifest = Manifest.read(write_csv(tmp_path, "id,path,label\n007,a.h5,0\nNA,b.h5,1\n1e5,c.h5,1\n"))
    assert manifest.ids == ("007", "NA", "1e5")
    assert manifest.labels == {"007": 0, "NA": 1, "1e5": 1}


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_manifest_comes_back_as_written_with_its_extra_columns(tmp_path, ending):
    table = pd.DataFrame({"id": ["01", "2"], "path": ["a.h5", "b.h5"], "label": ["0", "1"], "site": ["x", ""]})
    Manifest(table, tmp_path).write(tmp_path / f"m.{ending}")
    back = Manifest.read(tmp_path / f"m.{ending}")
    assert back.table.astype(str).to_dict("list") == table.to_dict("list")
    assert back.path_of("01") == tmp_path / "a.h5"


def test_numbers_in_a_parquet_table_become_the_same_text(tmp_path):
    pd.DataFrame({"id": [1, 2], "path": ["a", "b"], "label": [0.0, None]}).to_parquet(tmp_path / "m.parquet")
    manifest = Manifest.read(tmp_path / "m.parquet")
    assert manifest.labels == {"1": 0, "2": None}


def test_bags_without_a_patient_are_their_own_patient_and_patient_is_read_as_group():
    assert table_manifest(group=["p", ""]).groups == {"b000": "p", "b001": "b001"}
    assert table_manifest(patient=["p", "p"]).groups == {"b000": "p", "b001": "p"}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"id": ["a", "a"], "label": ["0", "1"]}, "duplicate id: a;"),
        ({"label": ["normal", "tumor"]}, "got 'normal', 'tumor'; write an index for each word"),
        ({"label": ["0", "-1"]}, "class indices 0..C-1, got '-1'"),
        ({"label": ["0", "1.5"]}, "got '1.5'"),
        ({"label": ["1", "1"]}, r"only one class \(1\)"),
        ({"label": ["0", "2"]}, "without gaps, got 0, 2"),
        ({"label": ["0", ""]}, "no label for b001"),
        ({"lable": ["0", "1"]}, "column 'label' is missing; did you mean 'lable'"),
        ({"label": ["0", "1"], "splt": ["", ""]}, "unknown column 'splt'; did you mean 'split'"),
        ({"label": ["0", "1"], "case_id": ["p", "p"]}, "rename it to 'group'"),
        ({"label": ["0", "1"], "split": ["train", "tset"]}, "unknown split 'tset'"),
        ({"label": ["0", "1"], "path": ["a.h5", ""]}, "no path for b001"),
        (
            {"label": ["0", "1"], "group": ["p", "p"], "split": ["train", "test"]},
            r"patient in two splits: p \(test, train\)",
        ),
        (
            {"label": ["0", "1"], "patient": ["p", "p"], "split": ["val", "test"]},
            r"patient in two splits: p \(test, val\)",
        ),
    ],
)
def test_every_mistake_in_the_table_is_named(columns, message):
    with pytest.raises(DataError, match=message):
        table_manifest(**columns).check_table()


def test_a_sound_table_passes_and_unknown_columns_are_welcome():
    table_manifest(label=["0", "1"], group=["p", "q"], split=["train", "test"], age=["63", "70"]).check_table()


def test_all_mistakes_come_in_one_error_and_ten_are_spelled_out(tmp_path):
    with pytest.raises(DataError, match=r"(?s)2 problems\n  - duplicate id: a.*\n  - only one class"):
        table_manifest(id=["a", "a"], label=["1", "1"]).check_table()
    manifest = make_study(tmp_path, widths=[3] * 12, labels=[0, 1] * 6, instances=[[0] * 5] * 12)
    with pytest.raises(DataError, match=r"(?s)12 problems.*  and 2 more$"):
        manifest.check_files()


def test_labels_may_be_absent_when_nothing_is_trained():
    manifest = table_manifest(path=["a.h5", "b.h5"])
    manifest.check_table(training=False)
    assert manifest.labels == {"b000": None, "b001": None}


def test_missing_files_are_listed_up_to_five(tmp_path):
    manifest = Manifest.read(write_csv(tmp_path, "id,path,label\n" + "".join(f"{i},{i}.h5,0\n" for i in range(7))))
    with pytest.raises(DataError, match=r"7 files are missing: .*4\.h5 and 2 more; paths count from"):
        manifest.check_files()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"widths": (3, 4)}, r"different feature width: 3 \(0\), 4 \(1\)"),
        ({"instances": (None, [0, 1, 1])}, "3 instance labels for 4 instances"),
        ({"instances": (None, [0, 1, -2, 0])}, "row 2 is -2"),
        ({"instances": (None, [0, 0.5, 1, 0])}, "row 1 is 0.5"),
        ({"instances": ([0, 0, 1, 1], None)}, r"2 positive instances \(first: row 2\) in a bag with label 0"),
    ],
)
def test_every_mistake_in_the_files_is_named(tmp_path, changes, message):
    with pytest.raises(DataError, match=message):
        make_study(tmp_path, **changes).check_files()


def test_a_sound_study_passes_and_progress_counts_to_the_end(tmp_path):
    seen = []
    manifest = make_study(tmp_path, instances=([0, -1, 0, 0], [0, 1, -1, 2]))
    manifest.check(lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]
    assert manifest.bag("1").y_inst.tolist() == [0, 1, -1, 2]
    assert (manifest.bag("1").id, manifest.bag("1").y) == ("1", 1)


def test_a_damaged_bag_is_found_before_training(tmp_path):
    manifest = make_study(tmp_path)
    (tmp_path / "1.h5").write_bytes((tmp_path / "1.h5").read_bytes()[:-100])
    with pytest.raises(DataError, match=r"1\.h5: not readable"):
        manifest.check_files()


def test_instance_labels_in_a_csv_read_too_and_pickles_do_not(tmp_path):
    manifest = make_study(tmp_path)
    (tmp_path / "labels.csv").write_text("x,label\n5,0\n6,1\n7,0\n8,-1\n")
    table = manifest.table.assign(instance_labels=["", "labels.csv"])
    assert Manifest(table, tmp_path).bag("1").y_inst.tolist() == [0, 1, 0, -1]
    np.save(tmp_path / "evil.npy", np.array([{}] * 4, dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"evil\.npy: not readable"):
        Manifest(manifest.table.assign(instance_labels=["", "evil.npy"]), tmp_path).bag("1")


def test_unreadable_tables_are_refused_in_one_line(tmp_path):
    (tmp_path / "m.parquet").write_text("no parquet")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "rows.csv").write_text("id,path,label\n")
    (tmp_path / "wrong.csv").write_text("slide,paht\n1,2\n")
    for name in ("m.parquet", "empty.csv", "rows.csv", "wrong.csv", "absent.csv", "table.xlsx"):
        with pytest.raises(DataError, match=name) as caught:
            Manifest.read(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_the_digest_ignores_the_order_of_rows_and_sees_every_change():
    manifest = table_manifest(label=["0", "1"])
    turned = Manifest(manifest.table.iloc[::-1, ::-1])
    changed = table_manifest(label=["1", "1"])
    assert manifest.digest() == turned.digest() != changed.digest()


def test_the_facts_of_a_manifest_are_right(study):
    facts = describe_manifest(study)
    assert (facts["bags"], facts["labels"], facts["groups"]) == (10, {"0": 5, "1": 5}, 8)
    assert (facts["groups_with_several_bags"], facts["splits"], facts["warnings"]) == (2, {"empty": 10}, [])


def test_labels_of_a_spreadsheet_lose_their_decimal(tmp_path):
    manifest = Manifest.read(write_csv(tmp_path, "id,path,label\na,a.h5,1.0\nb,b.h5,0.0\n1.0,c.h5,0.5\n"))
    assert list(manifest.table["label"]) == ["1", "0", "0.5"]
    assert manifest.ids[2] == "1.0"  # names are kept as written


@pytest.mark.parametrize("column", ["id", "group", "patient"])
@pytest.mark.parametrize("name", ["=1+1", "+a", "-a", "@sum"])
def test_names_that_a_spreadsheet_would_compute_are_refused(column, name):
    row = {"id": "a", "path": "a.h5", "label": "0"} | {column: name}
    manifest = Manifest(pd.DataFrame([row, dict.fromkeys(row, "b") | {"label": "1"}]))
    with pytest.raises(DataError, match=rf"{column} '{re.escape(name)}' would be a formula in a spreadsheet"):
        manifest.check_table()


def test_signs_inside_a_name_are_no_formula():
    rows = [{"id": f"a{sign}b", "path": f"{i}.h5", "label": str(i % 2)} for i, sign in enumerate("=+-@")]
    Manifest(pd.DataFrame(rows)).check_table()


def _aged(monkeypatch):
    """Any check is worth remembering, and files need not have settled."""
    monkeypatch.setattr("smmil.data.manifest._WORTH_S", -1.0)
    monkeypatch.setattr("smmil.data.manifest._SETTLED_S", 0.0)


def _reads(monkeypatch):
    """Ids of the bags that are read from now on."""
    read, real = [], Manifest.open_bag
    monkeypatch.setattr(Manifest, "open_bag", lambda self, id_, **o: read.append(id_) or real(self, id_, **o))
    return read


def test_what_was_checked_is_remembered_until_a_file_or_label_changes(tmp_path, monkeypatch):
    _aged(monkeypatch)
    make_study(tmp_path, instances=(None, [0, 1, 1, 0])).check_files()
    path, seen = tmp_path / "manifest.csv", []
    read = _reads(monkeypatch)
    Manifest.read(path).check_files(lambda *done: seen.append(done))
    assert (read, seen) == ([], [(2, 2)])
    with (tmp_path / "0.h5").open("r+b") as file:  # same size and inode
        file.seek(file.read().index(np.ones(12, "f4").tobytes()))
        file.write(b"damaged!")
    with pytest.raises(DataError, match=r"0\.h5: "):
        Manifest.read(path).check_files()
    assert read == ["0"]
    np.save(tmp_path / "1.npy", np.array([0, 1]))
    with pytest.raises(DataError, match=r"2 problems(.|\n)*2 instance labels for 4"):
        Manifest.read(path).check_files()
    path.write_text(path.read_text().replace("1.h5,1,", "1.h5,0,"))
    with pytest.raises(DataError, match="2 problems"):
        Manifest.read(path).check_files()
    assert read == ["0", "0", "1", "0", "1"]


@pytest.mark.parametrize("text", ["", "[]", '{"by": 3}', '{"by": "DIGEST", "bags": {"0": [1], "1": [null, "x"]}}'])
def test_a_damaged_memory_of_checks_is_ignored(tmp_path, monkeypatch, text):
    _aged(monkeypatch)
    make_study(tmp_path)
    (tmp_path / ".smmil-checked.json").write_text(text.replace("DIGEST", source_digest()))
    read = _reads(monkeypatch)
    Manifest.read(tmp_path / "manifest.csv").check_files()
    assert read == ["0", "1"]


def test_short_checks_and_tables_in_memory_leave_no_file(tmp_path, monkeypatch):
    make_study(tmp_path).check_files()
    assert not (tmp_path / ".smmil-checked.json").exists()
    _aged(monkeypatch)
    monkeypatch.chdir(tmp_path)
    Manifest(Manifest.read("manifest.csv").table, tmp_path).check_files()
    assert not (tmp_path / ".smmil-checked.json").exists()


def test_files_that_changed_just_now_are_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr("smmil.data.manifest._WORTH_S", -1.0)
    make_study(tmp_path).check_files()
    read = _reads(monkeypatch)
    Manifest.read(tmp_path / "manifest.csv").check_files()
    assert read == ["0", "1"]


@pytest.mark.skipif(sys.platform != "linux", reason="bags are checked in one process elsewhere")
@pytest.mark.parametrize("dies", [False, True])
def test_long_checks_use_processes_and_survive_the_death_of_one(tmp_path, monkeypatch, dies):
    monkeypatch.setattr("smmil.data.manifest._ALONE_S", 0.0)
    monkeypatch.setattr("smmil.data.manifest.available_cores", lambda: 2)
    manifest = make_study(tmp_path, widths=[3] * 40 + [4], labels=[0, 1] * 20 + [1], instances=[None] * 41)
    (tmp_path / "7.h5").write_bytes((tmp_path / "7.h5").read_bytes()[:-100])
    here, real, seen = os.getpid(), Manifest.bag, []

    def bag(self, id_, **options):
        if os.getpid() == here and not dies:
            raise AssertionError("read in the main process")
        if os.getpid() != here and dies and id_ == "20":
            os._exit(9)
        return real(self, id_, **options)

    monkeypatch.setattr(Manifest, "bag", bag)
    with pytest.raises(DataError, match=r"2 problems\n.*7\.h5: not readable(.|\n)*width: 3 \(0\), 4 \(40\)"):
        manifest.check_files(lambda *done: seen.append(done))
    assert seen == [(n, 41) for n in range(1, 42)]


def test_small_bags_without_an_edge_are_counted_each_time(tmp_path, monkeypatch):
    """Also where the check is remembered; a bag with rule none has no graph on purpose."""
    monkeypatch.setattr("smmil.data.manifest._WORTH_S", -1.0)
    monkeypatch.setattr("smmil.data.manifest._SETTLED_S", -1.0)
    for name, apart, rule in (("far", 30, "grid"), ("near", 10, "grid"), ("none", 30, "none")):
        coords = torch.tensor([[0, 0], [apart, 0], [5 * apart, 0]])
        write_bag(tmp_path / f"{name}.h5", Bag(name, torch.ones(3, 2), coords, Frame((10, 10))), graph=rule)
    path = write_csv(tmp_path, "id,path,label\n" + "".join(f"{n},{n}.h5,0\n" for n in ("far", "near", "none")))
    assert Manifest.read(path).check_files() == 1
    monkeypatch.setattr("smmil.data.manifest._check_bag", None)  # nothing is read again
    assert Manifest.read(path).check_files() == 1

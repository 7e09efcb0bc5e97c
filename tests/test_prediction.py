"""Predictions: what goes in comes out, and nothing damaged comes out at all."""

import subprocess
import sys
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from smmil.errors import DataError
from smmil.frame import Frame
from smmil.prediction import Prediction, load_predictions


def full(name="case 1", n=5):
    rng = np.random.default_rng(n)
    return Prediction(
        id=name,
        probs=[0.25],
        scores=rng.normal(size=(n, 1)).astype(np.float32),
        coords=rng.integers(0, 9, size=(n, 2)) * 512,
        frame=Frame(patch=(512, 512), spacing=(0.5, 0.5), unit="um"),
        edges=[[0, 1, 1, 2], [1, 0, 2, 1]],
        y=1,
        y_inst=[-1, 0, 1, 1, 0][:n],
        meta={"score_kind": "attention logit", "nested": {"list": [1, 2.5, None, "µ"]}},
    )


def same(a, b):
    arrays = all(np.array_equal(getattr(a, k), getattr(b, k)) for k in ("probs", "scores", "coords", "edges", "y_inst"))
    kinds = all(getattr(a, k).dtype == getattr(b, k).dtype for k in ("probs", "scores", "coords", "edges", "y_inst"))
    return arrays and kinds and (a.id, a.frame, a.y, a.meta) == (b.id, b.frame, b.y, b.meta)


def test_what_is_saved_is_loaded_again(tmp_path):
    full().save(tmp_path / "a.npz")
    assert same(Prediction.load(tmp_path / "a.npz"), full())


def test_absent_parts_stay_absent(tmp_path):
    Prediction("x", [0.2, 0.3, 0.5], np.zeros((3, 3))).save(tmp_path / "x.npz")
    again = Prediction.load(tmp_path / "x.npz")
    assert (again.coords, again.frame, again.edges, again.y, again.y_inst, again.meta) == (None,) * 5 + ({},)
    assert again.probs.tolist() == [0.2, 0.3, 0.5]
    assert again.scores.dtype == np.float64


def test_the_same_content_gives_the_same_bytes(tmp_path, monkeypatch):
    full().save(tmp_path / "a.npz")
    monkeypatch.setattr("time.time", lambda: 2e9)
    full().save(tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_numpy_itself_reads_the_file_without_pickle(tmp_path):
    full().save(tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz", allow_pickle=False) as content:
        assert np.array_equal(content["scores"], full().scores)
        assert '"case 1"' in content["facts"].item()


def test_a_failed_save_leaves_the_old_file(tmp_path):
    full().save(tmp_path / "a.npz")
    before = (tmp_path / "a.npz").read_bytes()
    with pytest.raises(DataError, match="meta must be plain JSON"):
        Prediction("a", [0.5], [1.0], meta={"array": np.zeros(2)}).save(tmp_path / "a.npz")
    assert (tmp_path / "a.npz").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]


def test_damage_is_refused_or_harmless(tmp_path):
    full().save(tmp_path / "a.npz")
    good, path, rng = (tmp_path / "a.npz").read_bytes(), tmp_path / "b.npz", np.random.default_rng(0)
    refused = 0
    for trial in range(600):
        data = bytearray(good)
        if trial % 3 == 0:
            data = data[: rng.integers(len(data))]
        else:
            for _ in range(rng.integers(1, 4)):
                data[rng.integers(len(data))] ^= 1 << rng.integers(8)
        path.write_bytes(data)
        complaint = refusal(path)
        refused += complaint is not None
        assert complaint is None or (complaint.startswith(f"{path}: ") and "\n" not in complaint)
    assert refused > 400


def refusal(path):
    """Why a file is refused; None when it loads and holds exactly what was saved."""
    try:
        again = Prediction.load(path)
    except DataError as problem:
        return str(problem)
    assert same(again, full())
    return None


def rewritten(source, target, name, array):
    """A copy of a prediction file in which one array is another; zip checks of its own all pass."""
    with np.load(source) as content:
        np.savez(target, **{**content, name: array})


def test_bit_rot_behind_a_valid_zip_is_caught_by_the_checksum(tmp_path):
    full().save(tmp_path / "a.npz")
    rewritten(tmp_path / "a.npz", tmp_path / "b.npz", "scores", full().scores + np.float32(1e-6))
    with pytest.raises(DataError, match=r"b\.npz: not readable as a prediction .*checksum.*; predict this case again"):
        Prediction.load(tmp_path / "b.npz")


def test_an_array_that_claims_to_be_huge_is_refused_at_once(tmp_path):
    full().save(tmp_path / "a.npz")
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000,), }".ljust(117) + b"\n"
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr("bomb.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(DataError, match="not readable"):
        Prediction.load(tmp_path / "a.npz")


def test_pickled_objects_are_never_unpacked(tmp_path):
    full().save(tmp_path / "a.npz")
    rewritten(tmp_path / "a.npz", tmp_path / "b.npz", "scores", np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match="not allowed"):
        Prediction.load(tmp_path / "b.npz")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"none\.npz: no such file"):
        Prediction.load(tmp_path / "none.npz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"coords": np.zeros((4, 2))}, "coords has 4 rows but scores has 5"),
        ({"y_inst": [0, 1]}, "y_inst has 2 rows but scores has 5"),
        ({"y_inst": [0, 1, -2, 0, 0]}, "y_inst must be whole numbers from -1"),
        ({"y_inst": [0, 1, 0.5, 0, 0]}, "y_inst must be whole numbers"),
        ({"edges": [[0], [5]]}, "edges name instance 5 but there are only 5"),
        ({"edges": [[0, 1, 2]]}, r"edges must have shape \(2, e\)"),
        ({"scores": [0, 1, np.nan, 0, 0]}, "scores row 2 is not finite"),
        ({"scores": np.zeros((0, 1)), "coords": None, "edges": None, "y_inst": None}, "scores has no rows"),
        ({"probs": [1.5]}, "probs must be numbers from 0 to 1"),
        ({"probs": [np.nan]}, "probs must be numbers from 0 to 1"),
        ({"probs": [0.5, 0.9]}, "must sum to 1"),
        ({"y": 2}, "label 2 is not one of the 2 classes"),
        ({"y": -1}, "y must be whole numbers from 0"),
        ({"id": ""}, "id must be a non-empty string"),
    ],
)
def test_inconsistent_content_is_refused_by_name(change, message):
    fields = {k: getattr(full(), k) for k in ("id", "probs", "scores", "coords", "edges", "y", "y_inst")}
    with pytest.raises(DataError, match=message):
        Prediction(**{**fields, **change})


def test_the_positive_probability_is_the_last_of_one_or_two():
    assert Prediction("a", [0.3], [0.0]).positive_prob == 0.3
    assert Prediction("a", [0.9, 0.1], [0.0]).positive_prob == 0.1
    with pytest.raises(DataError, match="3 classes have no single positive one"):
        _ = Prediction("a", [0.2, 0.3, 0.5], [0.0]).positive_prob


def test_a_folder_is_read_sorted_by_id_whatever_the_file_names(tmp_path):
    for file, case in (("1", "c"), ("2", "a"), ("3", "b")):
        full(case).save(tmp_path / f"{file}.npz")
    (tmp_path / ".smmil-tmp-1-x-left.npz").write_bytes(b"half a file")
    assert [p.id for p in load_predictions(tmp_path)] == ["a", "b", "c"]
    assert [p.id for p in load_predictions([tmp_path / "1.npz", tmp_path / "3.npz"])] == ["b", "c"]


def test_the_same_id_twice_is_refused_with_both_files(tmp_path):
    full("a").save(tmp_path / "1.npz")
    full("a").save(tmp_path / "2.npz")
    with pytest.raises(DataError, match=r"2\.npz: id 'a' is already in .*1\.npz"):
        load_predictions(tmp_path)


def test_an_empty_folder_says_what_to_do(tmp_path):
    with pytest.raises(DataError, match=r"no \.npz predictions .*run smmil predict first"):
        load_predictions(tmp_path)
    full("a").save(tmp_path / "abmil" / "a.npz")
    with pytest.raises(DataError, match="did you mean one of its folders: abmil"):
        load_predictions(tmp_path)


def test_right_of_a_prediction_nothing_imports_torch_or_other_heavy_libraries():
    code = (
        "import sys, smmil.prediction, smmil.evaluate, smmil.maps, smmil.report;"
        "print([m for m in ('torch', 'sklearn', 'pandas', 'matplotlib', 'h5py') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_a_prediction_prints_as_one_line_without_arrays():
    some = Prediction("slide_1", [0.93], np.zeros(4812), y=1)
    assert repr(some) == "Prediction('slide_1', p=0.93, 4812 scores, y=1)"
    assert repr(Prediction("a", [0.25, 0.75], [0.0])) == "Prediction('a', p=0.75, 1 scores, y=None)"
    assert repr(Prediction("a", [0.2, 0.5, 0.3], [0.0], y=2)) == "Prediction('a', p=(0.2, 0.5, 0.3), 1 scores, y=2)"


SCORES = np.zeros((3, 1), np.float32)
TARGETS = [
    Prediction("a", [0.2, 0.7], SCORES, y=1, target=[1, np.nan], meta={"target": {"kind": "multilabel"}}),
    Prediction("a", [], SCORES, target=[2.5], value=2.25, meta={"target": {"kind": "regression", "columns": ["hrd"]}}),
    Prediction("a", [0.1, 0.3], SCORES, target=[5, 0], value=-1, meta={"target": {"kind": "cox", "edges": [1, 2]}}),
    Prediction("a", [0.1, 0.3, 0.6], SCORES, y=2, value=1.5, meta={"target": {"kind": "ordinal"}}),
]


@pytest.mark.parametrize("stored", TARGETS, ids=lambda p: p.target_kind)
def test_targets_other_than_classes_come_back(stored, tmp_path):
    stored.save(tmp_path / "a.npz")
    found = Prediction.load(tmp_path / "a.npz")
    assert (found.target_kind, found.target_names, found.value, found.y) == (
        stored.target_kind, stored.target_names, stored.value, stored.y
    )  # fmt: skip
    for name in ("probs", "times"):
        assert np.array_equal(getattr(found, name), getattr(stored, name))
    assert str(found.target) == str(stored.target)  # nan is unknown
    with pytest.raises(DataError, match="no positive class"):
        found.positive_prob  # noqa: B018


@pytest.mark.parametrize(
    ("stored", "changes", "problem"),
    [
        (TARGETS[0], {"target": [1.0]}, "does not fit"),
        (TARGETS[0], {"target": [1.0, 0.5]}, "0 or 1"),
        (TARGETS[1], {"probs": [0.5]}, "probs"),
        (TARGETS[1], {"target": [np.nan]}, "regression"),
        (TARGETS[1], {"value": float("inf")}, "not finite"),
        (TARGETS[2], {"probs": [0.3, 0.1]}, "must not fall"),
        (TARGETS[2], {"probs": [0.1, 0.2, 0.3]}, "one for each"),
        (TARGETS[2], {"target": [5.0, 2.0]}, "0 or 1"),
        (TARGETS[3], {"probs": [0.1, 0.3, 0.9]}, "sum to 1"),
        (TARGETS[3], {"target": [1.0]}, "does not fit"),
    ],
)
def test_a_target_that_cannot_be_is_refused(stored, changes, problem):
    with pytest.raises(DataError, match=problem):
        replace(stored, **changes)

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.table_manifests import table_manifest

from smmil.data import Manifest, Split, load_splits, make_splits, refuse_leaks, save_splits
from smmil.data.splits import _assign_folds, _folds_of_patients, _StratifiedCases, small_test_note
from smmil.data.targets import TargetColumns
from smmil.errors import ConfigError, DataError

PARTS = ("train", "val", "test")


@st.composite
def studies(draw):
    """Random tables: some patients with several bags, of one class or both."""
    patients = draw(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=4), min_size=4, max_size=40))
    rows = [(f"p{g}", y) for g, labels in enumerate(patients) for y in labels]
    order = draw(st.permutations(range(len(rows))))
    ids = [f"{i:03d}" for i in order]
    return table_manifest(id=ids, group=[rows[i][0] for i in order], label=[str(rows[i][1]) for i in order])


def patients_per_class(manifest):
    return [len({manifest.groups[i] for i in manifest.ids if manifest.labels[i] == c}) for c in (0, 1)]


def check_laws(manifest, splits):
    for split in splits:
        parts = [set(getattr(split, p)) for p in PARTS]
        assert set.union(*parts) == set(manifest.ids)
        assert sum(map(len, parts)) == len(manifest)
        groups = [{manifest.groups[i] for i in part} for part in parts]
        assert sum(map(len, groups)) == len(set.union(*groups))
        assert all({manifest.labels[i] for i in part} == {0, 1} for part in parts[:2])
        assert split.test == splits[0].test


@given(studies(), st.integers(2, 5), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_a_patient_never_sits_in_two_splits_and_every_bag_is_used(manifest, folds, seed):
    assume(min(patients_per_class(manifest)) >= 2 * folds)
    splits = make_splits(manifest, folds=folds, val_share=1 / folds, seed=seed)
    check_laws(manifest, splits)
    assert splits[0].test
    assert sorted(i for s in splits for i in s.val) == sorted(set(manifest.ids) - set(splits[0].test))


@given(studies(), st.integers(2, 4))
@settings(max_examples=60, deadline=None)
def test_folds_exist_exactly_when_every_class_has_a_patient_for_each(manifest, folds):
    possible = min(patients_per_class(manifest)) >= folds
    try:
        splits = make_splits(manifest, folds=folds, val_share=1 / folds, test_share=0)
    except DataError as problem:
        assert not possible, problem  # noqa: PT017
        assert "too few patients" in str(problem)  # noqa: PT017
    else:
        assert possible
        check_laws(manifest, splits)


@given(studies(), st.integers(0, 5))
@settings(max_examples=30, deadline=None)
def test_the_order_of_rows_does_not_matter_and_the_seed_decides(manifest, seed):
    assume(min(patients_per_class(manifest)) >= 6)
    turned = Manifest(manifest.table.iloc[::-1].reset_index(drop=True))
    splits = make_splits(manifest, folds=3, seed=seed)
    assert splits == make_splits(turned, folds=3, seed=seed) == make_splits(manifest, folds=3, seed=seed)


def study_of(n, **columns):
    return table_manifest(label=[str(i % 2) for i in range(n)], **columns)


def test_a_patient_with_many_bags_does_not_take_a_class_away_from_a_fold():
    """One patient with seven bags of both classes, two with one bag each: the two must stand together."""
    groups = ["p"] * 7 + ["q", "r"]
    manifest = table_manifest(label=["0"] * 4 + ["1"] * 3 + ["1", "0"], group=groups)
    splits = make_splits(manifest, folds=2, val_share=0.5, test_share=0)
    check_laws(manifest, splits)
    assert sorted(s.val for s in splits)[1] == ("b007", "b008")


def test_another_seed_gives_another_division_of_the_asked_size():
    manifest = study_of(100)
    first, second = make_splits(manifest, seed=0), make_splits(manifest, seed=1)
    assert first != second
    assert [(len(s.train), len(s.val), len(s.test)) for s in first] == [(64, 16, 20)] * 5


def test_shares_that_are_no_fold_are_drawn_anew_for_every_fold():
    splits = make_splits(study_of(200), folds=4, val_share=0.1, test_share=0.3)
    assert [(len(s.val), len(s.test)) for s in splits] == [(14, 60)] * 4
    assert len({s.val for s in splits}) == 4
    check_laws(study_of(200), splits)


def test_a_fully_marked_table_gives_exactly_that_split():
    manifest = study_of(6, split=["train", "train", "val", "val", "test", "test"])
    assert make_splits(manifest) == [Split(("b000", "b001"), ("b002", "b003"), ("b004", "b005"))]


@pytest.mark.parametrize("mark", ["", "train"])
def test_rows_marked_test_are_the_test_set(mark):
    manifest = study_of(40, split=["test"] * 10 + [mark] * 30)
    splits = make_splits(manifest)
    check_laws(manifest, splits)
    assert splits[0].test == manifest.ids[:10]
    assert [len(s.val) for s in splits] == [6] * 5


def test_a_half_marked_table_is_refused():
    with pytest.raises(DataError, match="filled for some rows only"):
        make_splits(study_of(6, split=["train", "val", "", "", "test", ""]))


def test_marks_that_leak_a_patient_are_refused():
    manifest = study_of(4, group=["p", "q", "p", "r"], split=["train", "train", "val", "val"])
    with pytest.raises(DataError, match=r"patient in two splits: p \(train, val\)"):
        make_splits(manifest)


def test_a_leaking_or_foreign_split_is_refused():
    manifest = study_of(4, group=["p", "q", "p", "r"])
    refuse_leaks(manifest, Split(("b000", "b002"), ("b001",), ("b003",)))
    with pytest.raises(DataError, match=r"p \(test, train\)"):
        refuse_leaks(manifest, Split(("b000",), ("b001",), ("b002",)))
    with pytest.raises(DataError, match="two parts"):
        refuse_leaks(manifest, Split(("b001",), ("b001",)))
    with pytest.raises(DataError, match="not in it, such as 'x'"):
        refuse_leaks(manifest, Split(("b001",), ("x",)))


def test_too_few_patients_are_counted_in_the_error():
    manifest = table_manifest(label=["0"] * 20 + ["1"] * 3)
    with pytest.raises(DataError, match=r"class 0: 20, class 1: 3.*fewer folds"):
        make_splits(manifest)


def test_too_few_patients_name_the_options_to_type():
    manifest = table_manifest(label=["0"] * 20 + ["1"] * 3)
    with pytest.raises(DataError, match=r"--set data\.folds=2 --set data\.test_share=0$"):
        make_splits(manifest)
    with pytest.raises(DataError, match=r"use fewer folds, such as --set data\.folds=2$"):
        make_splits(manifest, test_share=0)


def test_impossible_options_are_refused():
    for options in ({"folds": 0}, {"val_share": 0}, {"val_share": 1.0}, {"test_share": -0.1}):
        with pytest.raises(ConfigError):
            make_splits(study_of(40), **options)


def test_splits_come_back_from_their_file(tmp_path):
    splits = make_splits(study_of(40))
    save_splits(tmp_path / "splits.json", splits)
    assert load_splits(tmp_path / "splits.json") == splits
    (tmp_path / "bad.json").write_text('[{"train": []}]')
    with pytest.raises(DataError, match=r"bad\.json: a split needs exactly"):
        load_splits(tmp_path / "bad.json")


@given(studies(), st.integers(2, 5), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_rotating_test_sets_hold_every_patient_exactly_once(manifest, folds, seed):
    assume(min(patients_per_class(manifest)) >= folds)
    assume(min(patients_per_class(manifest)) * (folds - 1) >= 3 * folds)  # what is left can be divided again
    try:
        splits = make_splits(manifest, folds=folds, val_share=0.25, seed=seed, test="rotate")
    except DataError as problem:
        assert "too few patients" in str(problem)  # noqa: PT017
        return
    assert len(splits) == folds
    assert sorted(i for split in splits for i in split.test) == sorted(manifest.ids)
    homes = [{manifest.groups[i] for i in split.test} for split in splits]
    assert sum(map(len, homes)) == len(set.union(*homes))
    for split in splits:
        parts = [set(getattr(split, part)) for part in PARTS]
        assert set.union(*parts) == set(manifest.ids)
        assert sum(map(len, parts)) == len(manifest)
        assert all({manifest.labels[i] for i in part} == {0, 1} for part in parts)
        refuse_leaks(manifest, split)


def test_rotating_folds_have_the_asked_shares_and_follow_the_seed_alone():
    manifest = study_of(100)
    splits = make_splits(manifest, folds=5, val_share=0.25, test="rotate")
    assert [(len(s.train), len(s.val), len(s.test)) for s in splits] == [(60, 20, 20)] * 5
    turned = Manifest(manifest.table.iloc[::-1].reset_index(drop=True))
    assert splits == make_splits(turned, folds=5, val_share=0.25, test="rotate")
    assert splits != make_splits(manifest, folds=5, val_share=0.25, test="rotate", seed=1)


def test_rotating_folds_share_out_patients_however_many_bags_each_has():
    """A positive patient with as many bags as all others does not fill a fold alone."""
    groups = ["big"] * 12 + [f"p{i}" for i in range(10)] + [f"n{i // 2}" for i in range(32)]
    labels = ["1"] * 22 + ["0"] * 32
    manifest = table_manifest(id=[f"{i:02d}" for i in range(54)], group=groups, label=labels)
    for seed in range(5):
        splits = make_splits(manifest, folds=3, val_share=0.3, test="rotate", seed=seed)
        held = [{manifest.groups[i] for i in split.test if manifest.labels[i] == 1} for split in splits]
        assert sorted(map(len, held)) == [3, 4, 4]
        assert {len({manifest.groups[i] for i in split.test if manifest.labels[i] == 0}) for split in splits} <= {5, 6}


def test_patients_with_both_classes_are_shared_out_too():
    """By their highest label all patients are of one class; then their bags decide, so that each fold has both."""
    groups = [f"p{i // 2}" for i in range(40)]
    manifest = table_manifest(id=[f"{i:02d}" for i in range(40)], group=groups, label=["0", "1"] * 20)
    splits = make_splits(manifest, folds=4, val_share=0.3, test="rotate")
    assert all({manifest.labels[i] for i in split.test} == {0, 1} for split in splits)


@given(st.integers(8, 60), st.integers(2, 4), st.integers(0, 5))
@settings(max_examples=20, deadline=None)
def test_of_patients_with_one_bag_each_rotating_folds_are_those_of_bags(n, folds, seed):
    ids = np.array([f"{i:03d}" for i in range(n)], dtype=object)
    groups = np.array([f"q{i * 7 % n}" for i in range(n)])
    cases = _StratifiedCases(ids, (np.arange(n) % 3 == 0).astype(int), groups)
    one, other = _folds_of_patients(cases, folds, seed), _assign_folds(cases, folds, seed)
    assert (one is None and other is None) or (one == other).all()


@pytest.mark.parametrize("mark", ["test", "val"])
def test_marked_rows_and_rotation_exclude_each_other(mark):
    manifest = study_of(40, split=[mark] * 10 + ["train"] * 30)
    with pytest.raises(DataError, match=rf"column split marks rows \({mark}: 10\).*remove the column") as found:
        make_splits(manifest, test="rotate")
    assert "\n" not in str(found.value)


def test_rotation_needs_folds_and_patients_of_every_class_in_each():
    with pytest.raises(ConfigError, match="at least 2 folds"):
        make_splits(study_of(40), folds=1, test="rotate")
    with pytest.raises(DataError, match=r"class 0: 20, class 1: 3\) for 5 test sets.*fewer folds"):
        make_splits(table_manifest(label=["0"] * 20 + ["1"] * 3), test="rotate")
    with pytest.raises(DataError, match=r"class 1: 1\) for training and validation of fold"):
        make_splits(table_manifest(label=["0"] * 20 + ["1"] * 2), folds=2, test="rotate")
    with pytest.raises(ConfigError, match=r"data\.test: unknown value 'rotates'; did you mean rotate"):
        make_splits(study_of(40), test="rotates")


def test_a_small_test_set_is_told_with_the_way_out():
    manifest = table_manifest(label=["0"] * 30 + ["1"] * 30, group=[f"p{i // 2}" for i in range(60)])
    split = Split(manifest.ids[10:30] + manifest.ids[40:], manifest.ids[5:10], manifest.ids[:4] + manifest.ids[30:36])
    note = small_test_note(manifest, split, 10)
    assert note.startswith("the test set holds 2 patients of class 0; with fewer than 10 of each class")
    assert note.endswith("data.test=rotate")
    assert small_test_note(manifest, split, 2) == ""
    assert small_test_note(manifest, Split(manifest.ids[:50], manifest.ids[50:]), 10) == ""
    marked = table_manifest(label=["0", "1"] * 3, split=["test"] * 6)
    assert small_test_note(marked, Split((), (), marked.ids), 10).endswith("rotate and no column split")


def test_a_small_test_set_is_told_by_what_the_metrics_of_its_target_need():
    some, everything = ["1"] * 4 + ["0"] * 26, ["0", "1"] * 15
    several = table_manifest(label_a=everything, label_b=some).for_target(
        TargetColumns("multilabel", ("label_a", "label_b"))
    )
    note = small_test_note(several, Split((), (), several.ids), 10)
    assert note.startswith("the test set holds 4 patients with label_b; with fewer than 10 of each kind")
    assert small_test_note(several, Split((), (), several.ids), 4) == ""
    levels = table_manifest(label=["0"] * 20 + ["1"] * 6 + ["2"] * 4).for_target(TargetColumns("ordinal", ("label",)))
    assert small_test_note(levels, Split((), (), levels.ids), 10) == ""  # kappa needs ten that differ from the usual
    part = Split((), (), levels.ids[:23])
    assert small_test_note(levels, part, 10).startswith("the test set holds 3 patients not of level 0; with fewer")

"""Columns of targets in a manifest: what is read, what is refused in which words, and splits that keep parts alike."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from smmil.cli import app
from smmil.config import TargetConfig
from smmil.data import Manifest, make_splits
from smmil.data.targets import TargetColumns
from smmil.errors import ConfigError, DataError
from smmil.synthetic import planted_slides, write_planted


def table(n=20, **columns):
    rows = pd.DataFrame({"id": [f"c{i:02d}" for i in range(n)], "path": [f"{i}.h5" for i in range(n)], **columns})
    return Manifest(rows.astype(str))


def survival(n=20, **changes):
    time, event = [str(1 + i / 2) for i in range(n)], [str(i % 2) for i in range(n)]
    return table(n, **{"time": time, "event": event} | changes)


def refused(manifest, kind, words, **options):
    with pytest.raises(DataError, match=words):
        manifest.for_target(TargetConfig(kind=kind, **options)).check_table()


def with_cell(values, place, cell):
    return [*values[:place], cell, *values[place + 1 :]]


def test_sound_tables_of_every_kind_pass():
    survival().for_target(TargetConfig(kind="survival")).check_table()
    survival().for_target(TargetConfig(kind="cox")).check_table()
    table(label=[i % 3 for i in range(20)]).for_target(TargetConfig(kind="ordinal")).check_table()
    table(label=[i / 3 for i in range(20)]).for_target(TargetConfig(kind="regression")).check_table()
    several = table(label_a=[i % 2 for i in range(20)], label_b=["", "1", "0", "NA"] * 5)
    several.for_target(TargetConfig(kind="multilabel")).check_table()
    named = table(ki67=[i / 3 for i in range(20)])
    named.for_target(TargetConfig(kind="regression", columns=["ki67"])).check_table()


@pytest.mark.parametrize(
    ("column", "cell", "words"),
    [
        ("event", "2", r"column event: must be 0 or 1 \(1: event, 0: censored\), got 2"),
        ("event", "dead", "column event: 'dead' is no number"),
        ("event", "", "empty time or event for c03"),
        ("time", "0", "column time: times must be above 0, c03 has 0"),
        ("time", "-4", "column time: times must be above 0, c03 has -4"),
        ("time", "inf", "column time: holds an infinite number"),
        ("time", "", "empty time or event for c03"),
        ("time", "soon", "column time: 'soon' is no number"),
    ],
)
def test_a_wrong_cell_of_time_or_event_is_named(column, cell, words):
    sound = survival().table[column].tolist()
    refused(survival(**{column: with_cell(sound, 3, cell)}), "survival", words)


def test_too_few_events_and_patients_with_two_times_are_named():
    refused(survival(event=["1"] * 4 + ["0"] * 16), "cox", "4 cases have an event, at least 5 are needed")
    refused(survival(event=["1"] + ["0"] * 19), "cox", "1 case has an event, at least 5 are needed")
    refused(survival(patient=["p1", "p1"] + [f"q{i}" for i in range(18)]), "survival", "two times or events: p1")


def test_wrong_labels_levels_and_numbers_are_named():
    half = ["0", "1"] * 10
    words = ["none", "mild", "severe", "mild"] * 5
    refused(table(label=words), "ordinal", r"'mild', 'severe' is no number \('none' means unknown\); correct")
    refused(table(label_a=half, label_b=with_cell(half, 0, "2")), "multilabel", "label_b: must be 0 or 1 or empty")
    refused(table(label_a=half, label_b=["1"] * 20), "multilabel", r"label_b: only one value \(1\)")
    refused(
        table(label_a=with_cell(half, 5, ""), label_b=with_cell(half, 5, "")), "multilabel", "no label is known for c05"
    )
    refused(table(other=half), "multilabel", "no column label_…")
    refused(table(label=["0", "1", "3", "3"] * 5), "ordinal", r"levels must be 0\.\.K-1 without gaps, got 0, 1, 3")
    refused(table(label=["0", "1.5"] * 10), "ordinal", r"levels must be whole numbers from 0 on, got 1\.5")
    refused(table(label=with_cell(half, 2, "")), "ordinal", "empty label for c02")
    refused(table(label=["7"] * 20), "regression", r"only one value \(7\)")
    refused(table(label=["small", "3"] * 10), "regression", "'small' is no number")
    refused(
        table(months=half, event=half), "survival", "column 'time' is missing, which a target of kind survival needs"
    )


def test_settings_that_name_wrong_columns_are_refused():
    for config, words in (
        (TargetConfig(kind="survival", columns=["time"]), r"takes 2 \(time and event\), got time"),
        (TargetConfig(kind="class", columns=["label"]), "a class is the column label"),
        (TargetConfig(kind="regression", columns=["id"]), "id are not columns of their own"),
        (TargetConfig(kind="multilabel", columns=["a", "a"]), "a, a are not columns"),
    ):
        with pytest.raises(ConfigError, match=words):
            survival().for_target(config)


def test_bags_carry_their_target_and_the_label_that_it_means(tmp_path):
    for kind in ("survival", "multilabel", "ordinal", "regression"):
        bags = planted_slides(6, kind, size=(8, 12), dim=4)
        manifest = Manifest.read(write_planted(tmp_path / kind, bags)).for_target(TargetConfig(kind=kind))
        for bag in bags:
            found = manifest.bag(bag.id)
            assert found.y == bag.y
            assert torch.equal(found.y_inst, bag.y_inst)
            if kind == "ordinal":
                assert found.target is None
            else:
                torch.testing.assert_close(found.target, bag.target, rtol=1e-9, atol=0)
    assert manifest.select([bag.id]).bag(bag.id).target is not None


def test_unknown_labels_are_nan_and_a_table_without_the_columns_can_be_predicted():
    cells = {"label_a": ["1", "", "0", ""], "label_b": ["", "0", "0", ""]}
    manifest = table(4, **cells).for_target(TargetColumns("multilabel", tuple(cells)))
    assert manifest.labels == {"c00": 1, "c01": 0, "c02": 0, "c03": None}
    assert manifest.targets["c03"] is None
    assert manifest.targets["c00"][0] == 1
    assert math.isnan(manifest.targets["c00"][1])
    plain = table(4).for_target(TargetColumns("cox", ("time", "event")))
    plain.check_table(training=False)
    assert set(plain.targets.values()) == {None}
    with pytest.raises(DataError, match="must be 0 or 1"):
        survival(event=["3"] * 20).for_target(TargetColumns("cox", ("time", "event"))).check_table(training=False)


def test_parts_of_a_split_have_their_share_of_events_levels_labels_and_large_numbers():
    rng = np.random.default_rng(0)
    n = 200
    tables = {
        "survival": table(n, time=rng.exponential(10, n) + 0.1, event=(rng.random(n) < 0.2).astype(int)),
        "regression": table(n, label=rng.exponential(1, n)),
        "ordinal": table(n, label=rng.integers(0, 5, n)),
        "multilabel": table(n, label_a=(rng.random(n) < 0.1).astype(int), label_b=(rng.random(n) < 0.5).astype(int)),
    }
    rare = {"survival": lambda row: row[1], "regression": lambda row: row[0] > 1.4, "ordinal": lambda row: row[0] == 4,
            "multilabel": lambda row: row[0]}  # fmt: skip
    for kind, manifest in tables.items():
        manifest = manifest.for_target(TargetConfig(kind=kind))
        overall = np.mean([rare[kind](row) for row in manifest.targets.values()])
        for split in make_splits(manifest):
            for part in (split.train, split.val, split.test):
                assert abs(np.mean([rare[kind](manifest.targets[i]) for i in part]) - overall) < 0.06, kind
        again = Manifest(manifest.table.iloc[::-1].reset_index(drop=True)).for_target(TargetConfig(kind=kind))
        assert make_splits(again) == make_splits(manifest)


def test_targets_of_test_rows_do_not_decide_which_rows_validate():
    marked = survival(40, split=["test"] * 10 + [""] * 30)
    other = survival(40, split=["test"] * 10 + [""] * 30)
    other.table.loc[:9, ["time", "event"]] = marked.table.loc[9::-1, ["time", "event"]].to_numpy()
    target = TargetConfig(kind="survival")
    assert make_splits(marked.for_target(target)) == make_splits(other.for_target(target))


def test_few_patients_are_divided_by_coarser_strata_and_too_few_are_refused():
    few = survival(12, event=["1"] * 6 + ["0"] * 6).for_target(TargetConfig(kind="survival"))
    assert len(make_splits(few, folds=4, val_share=0.25)) == 4
    with pytest.raises(DataError, match="too few patients"):
        make_splits(survival(8).for_target(TargetConfig(kind="survival")), folds=5)


def test_inspect_says_what_a_manifest_of_other_targets_holds(tmp_path):
    path = write_planted(tmp_path, planted_slides(12, "survival", size=(8, 12), dim=4))
    found = CliRunner().invoke(app, ["inspect", str(path)])
    assert found.exit_code == 0
    assert "kind: survival" in found.output
    words = Manifest.read(path).table.assign(event="2")
    Manifest(words, tmp_path).write(path)
    found = CliRunner().invoke(app, ["inspect", str(path)])
    assert found.exit_code == 3
    assert "must be 0 or 1" in " ".join(found.output.split())

"""The runner: what is done stays done, what is broken is mended, and the table is the same whatever happened."""

import os
import random
import shutil
import time

import pandas as pd
import pytest
from support.kills import PROCESSES
from support.studies import (
    copied,
    epochs_trained,
    grid_of,
    manifest_study,
    run_quietly,
    table_bytes,
    tiny_set,
    tiny_study,
    variant,
)

from smmil.data.manifest import Manifest
from smmil.data.splits import make_splits
from smmil.errors import ConfigError
from smmil.experiments import run, runner
from smmil.experiments.results import _choose_learning_rates
from smmil.experiments.run import _exclusive_lock, _perform, _RunJob
from smmil.experiments.runner import run_states, run_study
from smmil.files import replacing
from smmil.synthetic import synthetic_slides, write_synthetic


def test_a_finished_study_is_not_trained_again(finished_study, trainings, tmp_path):
    out = copied(finished_study, tmp_path / "again")
    report = run_study(tiny_study(), out)
    assert (trainings, report.done, len(report.before)) == ([], [], 8)
    assert table_bytes(out) == table_bytes(finished_study)


def test_a_run_that_somebody_else_finished_meanwhile_is_left_alone(finished_study, trainings):
    one = grid_of(tiny_study(), finished_study).runs[0]
    folder = finished_study / "runs" / one.key
    before = (folder / "result.json").stat().st_mtime_ns
    assert _perform(_RunJob(str(folder), one.label, one.config)) == "already"
    assert (trainings, (folder / "result.json").stat().st_mtime_ns) == ([], before)


def test_each_card_has_one_run_at_a_time(finished_study, tmp_path, monkeypatch):
    """Several cards, pretended: as many workers as cards, each of which sees the card of its place alone."""
    cards, begun = ("GPU-5f", "7"), {}
    monkeypatch.setattr(runner, "visible_cards", lambda device: cards if device == "auto" else ())
    monkeypatch.setattr(runner, "run_tasks", lambda _, jobs, **how: begun.update(how, jobs=jobs))
    for executor, workers, expected, seen in (
        ("processes", None, 2, cards), ("processes", 4, 4, cards), ("serial", None, None, ()),
    ):  # fmt: skip
        run_study(tiny_study(), tmp_path / f"{executor}{workers}", executor=executor, workers=workers)
        assert begun["workers"] == expected
        assert {job.cards for job in begun["jobs"]} == {seen}
    one = grid_of(tiny_study(), finished_study).runs[0]
    job, taken = _RunJob(str(finished_study / "runs" / one.key), one.label, one.config, cards=cards), []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "all")
    for place in (None, 0, 1, 2):
        monkeypatch.setattr(run, "worker_place", lambda place=place: place)
        assert _perform(job) == "already"
        taken.append(os.environ["CUDA_VISIBLE_DEVICES"])
    assert taken == ["all", "GPU-5f", "7", "GPU-5f"]


def test_another_study_in_the_same_folder_shares_its_runs(finished_study, trainings, tmp_path):
    out = copied(finished_study, tmp_path / "shared")
    more = tiny_study(name="more", variants=[variant("Renamed"), variant("Max", "max_pool", options={"dim": 6})])
    report = run_study(more, out)
    assert len(trainings) == len(report.done) == 4
    old, new = (pd.read_csv(out / name / "results.csv") for name in ("tiny", "more"))
    shared = {"ABMIL": old, "Renamed": new}
    one, two = (t[t["variant"] == v].drop(columns="variant").reset_index(drop=True) for v, t in shared.items())
    assert one.equals(two)


@pytest.mark.parametrize("damage", ["lost prediction", "flipped bit", "result cut off", "result edited"])
def test_what_is_damaged_is_mended_without_training(finished_study, tmp_path, damage):
    out = copied(finished_study, tmp_path / "damaged")
    folder = sorted((out / "runs").iterdir())[0]
    victim = sorted((folder / "test").glob("*.npz"))[0]
    if damage == "lost prediction":
        victim.unlink()
    elif damage == "flipped bit":
        data = bytearray(victim.read_bytes())
        data[len(data) // 2] ^= 1
        victim.write_bytes(data)
    else:
        text = (folder / "result.json").read_text()
        changed = text[: len(text) // 2] if damage == "result cut off" else text.replace('"n_test": ', '"n_test": 1')
        assert changed != text
        (folder / "result.json").write_text(changed)
    report = run_study(tiny_study(), out)
    assert len(report.done) == 1
    assert table_bytes(out) == table_bytes(finished_study)
    assert epochs_trained(out) == epochs_trained(finished_study)


@pytest.mark.parametrize("victim", ["checkpoints/best.safetensors", "split.json", "run.json", "config.yaml"])
def test_a_damaged_training_is_set_aside_and_done_anew(finished_study, tmp_path, victim):
    out = copied(finished_study, tmp_path / "damaged")
    folder = sorted((out / "runs").iterdir())[0]
    (folder / "result.json").unlink()
    (folder / "train" / victim).write_bytes(b"")
    report = run_study(tiny_study(), out)
    assert (len(report.done), report.failed) == (1, {})
    assert (folder / "train.damaged" / victim).exists()
    assert table_bytes(out) == table_bytes(finished_study)


def test_states_before_and_while_running(tmp_path):
    study = tiny_study(learning_rates=[1e-2], folds=[0])
    assert [len(runs) for runs in run_states(study, tmp_path).values()] == [0, 0, 0, 2]
    key = sorted(r.key for r in grid_of(study, tmp_path).runs)[0]
    folder = tmp_path / "runs" / key
    folder.mkdir(parents=True)
    with _exclusive_lock(folder / "lock", wait=False) as mine:
        assert mine
        assert [len(runs) for runs in run_states(study, tmp_path).values()] == [0, 1, 0, 1]
    assert [len(runs) for runs in run_states(study, tmp_path).values()] == [0, 0, 0, 2]


@pytest.mark.slow
def test_killed_at_random_moments_the_table_is_the_same_and_no_epoch_is_repeated(finished_study, tmp_path):
    chance, out, hits = random.Random(4), tmp_path / "killed", 0
    for _ in range(3):
        process = PROCESSES.Process(target=run_quietly, args=(out,))
        process.start()
        process.join(chance.uniform(0.3, 1.5))
        process.kill()
        process.join()
        hits += process.exitcode == -9
    assert hits >= 2
    run_study(tiny_study(), out)
    assert table_bytes(out) == table_bytes(finished_study)
    assert all(count <= 2 for count in epochs_trained(out).values())


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["processes", "dask", "submitit"])
def test_every_executor_gives_the_same_table(finished_study, tmp_path, executor):
    pytest.importorskip({"dask": "distributed", "submitit": "submitit"}.get(executor, "smmil"))
    study, whole = tiny_study(folds=[0], learning_rates=[1e-2]), pd.read_csv(finished_study / "tiny/results.csv")
    run_study(study, tmp_path, executor=executor, workers=2, slurm={"cluster": "local"})
    expected = whole[(whole["fold"] == 0) & (whole["lr"] == 1e-2)].reset_index(drop=True)
    assert pd.read_csv(tmp_path / "tiny/results.csv").equals(expected)


@pytest.mark.slow
def test_two_processes_on_one_study_do_not_train_the_same_run_twice(finished_study, tmp_path):
    both = [PROCESSES.Process(target=run_quietly, args=(tmp_path,)) for _ in range(2)]
    for process in both:
        process.start()
        time.sleep(0.1)
    for process in both:
        process.join()
    assert [p.exitcode for p in both] == [0, 0]
    assert table_bytes(tmp_path) == table_bytes(finished_study)
    assert set(epochs_trained(tmp_path).values()) == {2}


def test_an_unknown_executor_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="did you mean submitit"):
        run_study(tiny_study(), tmp_path, executor="submit")


@pytest.fixture(scope="module")
def bags(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bags")
    return write_synthetic(folder, synthetic_slides(14, size=(10, 14), dim=4, seed=1, lesion=(0.1, 0.3)))


def test_labels_of_test_cases_change_neither_weights_nor_rates_nor_thresholds(bags, tmp_path):
    """The test part is marked; its labels are then exchanged, and everything is trained again."""
    manifest = Manifest.read(bags)
    test = make_splits(manifest, folds=2, val_share=0.5, test_share=0.3)[0].test
    swapped = tmp_path / "swapped"
    shutil.copytree(bags.parent, swapped)
    for folder, exchange in ((bags.parent, False), (swapped, True)):
        table = manifest.table.copy()
        chosen = table["id"].isin(test)
        table.loc[chosen, "split"] = "test"
        table.loc[chosen, "instance_labels"] = ""  # they would contradict an exchanged label
        if exchange:
            table.loc[chosen, "label"] = table.loc[chosen, "label"].map({"0": "1", "1": "0"})
        table.to_csv(folder / "marked.csv", index=False)
    found = []
    for name, folder in (("a", bags.parent), ("b", swapped)):
        study = manifest_study(folder / "marked.csv", variants=[variant("SmAP", "sm_ap")])
        run_study(study, tmp_path / name)
        found.append(pd.read_csv(tmp_path / name / "tiny/results.csv"))
    one, two = found
    for column in ("weights", "threshold", "epoch", "val_auroc", "val_loss"):
        assert list(one[column]) == list(two[column])
    assert _choose_learning_rates(one) == _choose_learning_rates(two)
    assert list(one["bag_auroc"]) == pytest.approx(list(1 - two["bag_auroc"]))


def test_order_of_the_table_and_reading_ahead_do_not_change_a_number(bags, tmp_path):
    small = {"variants": [variant("SmAP", "sm_ap")], "learning_rates": [1e-2], "folds": [0]}
    run_study(manifest_study(bags, **small), tmp_path / "a")
    Manifest(Manifest.read(bags).table[::-1].reset_index(drop=True), bags.parent).write(bags.parent / "reversed.csv")
    training = {"epochs": 2, "warmup_epochs": 0, "workers": 1}
    run_study(manifest_study(bags.parent / "reversed.csv", training=training, **small), tmp_path / "b")
    assert table_bytes(tmp_path / "a") == table_bytes(tmp_path / "b")


def two_sets(**changes):
    sets = [tiny_set(), tiny_set("other", split_seed=5)]
    small = {"variants": [variant("ABMIL")], "learning_rates": [1e-2], "folds": [0]}
    return tiny_study(**{"datasets": sets, **small, **changes})


def test_only_the_data_sets_asked_for_are_trained_and_the_table_keeps_the_others(tmp_path, trainings):
    run_study(two_sets(), tmp_path, only=["other"])
    assert len(trainings) == 1
    assert list(pd.read_csv(tmp_path / "tiny/results.csv")["set"]) == ["other"]
    assert list(pd.read_csv(tmp_path / "tiny/grid.csv")["set"]) == ["tiny", "other"]
    run_study(two_sets(), tmp_path)
    whole, grid = table_bytes(tmp_path), (tmp_path / "tiny/grid.csv").read_bytes()
    report = run_study(two_sets(), tmp_path, only=["tiny"])
    assert (len(report.before), report.left_out, len(trainings)) == (1, [], 2)
    assert (table_bytes(tmp_path), (tmp_path / "tiny/grid.csv").read_bytes()) == (whole, grid)


def test_a_set_that_was_not_asked_for_and_cannot_be_read_is_told_and_stops_nothing(tmp_path):
    gone = tiny_set("gone", synthetic=None, manifest=str(tmp_path / "nowhere.csv"))
    report = run_study(two_sets(datasets=[gone, tiny_set()]), tmp_path, only=["tiny"])
    assert len(report.done) == 1
    assert len(report.left_out) == 1
    assert report.left_out[0].startswith("gone: not in the table of results, ")
    assert list(pd.read_csv(tmp_path / "tiny/results.csv")["set"]) == ["tiny"]


def test_what_a_killed_process_left_is_removed_but_not_what_another_is_writing(finished_study, tmp_path):
    out = copied(finished_study, tmp_path / "left")
    places = {}
    for name in ("results.csv", "grid.csv", "trust.csv", "failures.csv"):
        writing = replacing(out / "tiny" / name)
        places[name] = (writing, writing.__enter__())
        places[name][1].write_text("half")
    run_study(tiny_study(), out)
    assert {name for name, (_, path) in places.items() if path.exists()} == {"trust.csv", "failures.csv"}
    assert (out / "tiny/results.csv").read_text() != "half"
    places["trust.csv"][0].__exit__(None, None, None)
    assert (out / "tiny/trust.csv").read_text() == "half"

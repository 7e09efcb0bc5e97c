"""What goes wrong in one run stays with that run; a full disk stops everything; each runner counts its own work."""

import shutil
from pathlib import Path

import pandas as pd
import pytest
from support.studies import copied, grid_of, table_bytes, tiny_study, variant

from smmil.errors import DataError
from smmil.experiments import run
from smmil.experiments.runner import run_states, run_study


def test_a_failing_run_does_not_stop_the_others_and_is_tried_again(tmp_path, trainings):
    bad = variant("Bad", "support.broken_model:Picky", options={})
    study = tiny_study(variants=[bad, variant("ABMIL")], learning_rates=[1e-2], folds=[0])
    for _ in range(2):
        report = run_study(study, tmp_path)
        assert list(report.failed) == ["tiny · Bad · lr 0.01 · seed 0 · fold 0"]
        assert "made for features of width 1024" in str(report.failed)
    assert len(trainings) == 3  # the good one once, the bad one twice
    states = run_states(study, tmp_path)
    assert [len(states[s]) for s in ("done", "running", "failed", "missing")] == [1, 0, 1, 0]
    assert "made for features of width 1024" in states["failed"][0][1]
    assert len(pd.read_csv(tmp_path / "tiny/results.csv")) == 1


def test_a_mishap_inside_a_model_is_kept_with_its_traceback(tmp_path):
    broken = variant("Broken", "support.broken_model:Broken", options={})
    report = run_study(tiny_study(variants=[broken], learning_rates=[1e-2], folds=[0]), tmp_path)
    assert "ZeroDivisionError" in next(iter(report.failed.values()))
    assert "1 / 0" in next((tmp_path / "runs").glob("*/traceback.txt")).read_text()


def one_run_study(**changes):
    return tiny_study(
        **{"variants": [variant("A"), variant("B", "sm_ap")], "learning_rates": [1e-2], "folds": [0], **changes}
    )


def test_a_folder_that_cannot_be_used_fails_its_run_only(tmp_path):
    study = one_run_study()
    first, second = grid_of(study, tmp_path).runs
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / first.key).write_text("a file where the folder should be")
    report = run_study(study, tmp_path)
    assert report.done == [second.label]
    assert list(report.failed) == [first.label]
    assert "FileExistsError" in report.failed[first.label]
    assert "repair" in report.failed[first.label]
    states = run_states(study, tmp_path)
    assert [len(states[s]) for s in ("done", "running", "failed", "missing")] == [1, 0, 1, 0]
    (tmp_path / "runs" / first.key).unlink()
    assert run_study(study, tmp_path).done == [first.label]


def test_a_refusal_of_the_file_system_is_kept_as_the_reason_of_its_run(tmp_path, monkeypatch):
    study, real = one_run_study(), run.train
    first, second = grid_of(study, tmp_path).runs

    def refused(config, out):
        if Path(out).parent.name == first.key:
            raise PermissionError(13, "Permission denied", str(out))
        return real(config, out)

    monkeypatch.setattr(run, "train", refused)
    report = run_study(study, tmp_path)
    assert (report.done, list(report.failed)) == ([second.label], [first.label])
    assert "PermissionError" in run_states(study, tmp_path)["failed"][0][1]
    assert (tmp_path / "runs" / first.key / "traceback.txt").exists()


def test_a_result_that_may_not_be_read_is_not_done(finished_study, tmp_path, monkeypatch):
    out = copied(finished_study, tmp_path / "unreadable")
    folder = sorted((out / "runs").iterdir())[0]
    real = Path.read_bytes

    def refused(path):
        if folder in path.parents:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    assert run._finished(folder) is not None
    monkeypatch.setattr(Path, "read_bytes", refused)
    assert run._finished(folder) is None


@pytest.mark.parametrize("executor", ["serial", pytest.param("processes", marks=pytest.mark.slow)])
def test_a_full_disk_stops_everything_with_one_line(tmp_path, executor):
    full = variant("Full", "support.broken_model:NoRoom", options={})
    study = one_run_study(variants=[full, variant("A")])
    with pytest.raises(DataError, match="the disk is full; make room and repeat") as found:
        run_study(study, tmp_path, executor=executor, workers=1)
    assert "\n" not in str(found.value)
    assert not list(tmp_path.glob("runs/*/result.json"))
    assert not list(tmp_path.glob("runs/*/failure.json"))  # not its fault: it is tried again


def test_a_runner_counts_only_what_it_did_itself(finished_study, tmp_path):
    """Between looking and beginning, another runner finishes everything but one run."""
    labels = {run.key: run.label for run in grid_of(tiny_study(), finished_study).runs}
    left = sorted(labels)[0]

    def meanwhile(*_):
        for key in labels:
            if key != left:
                shutil.copytree(finished_study / "runs" / key, tmp_path / "runs" / key)

    report = run_study(tiny_study(), tmp_path, on_begin=meanwhile)
    assert report.done == [labels[left]]
    assert sorted(report.done_by_others) == sorted(label for key, label in labels.items() if key != left)
    assert (report.before, report.failed) == ([], {})
    assert table_bytes(tmp_path) == table_bytes(finished_study)

"""Executors: the same outcomes everywhere, nothing lost when workers die, nothing left when the main process goes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import tasks

from smmil.errors import ConfigError
from smmil.executors import run_tasks, worker_place

PLACES = ["serial", "processes", "dask"]


@pytest.fixture(params=PLACES)
def place(request):
    if request.param == "dask":
        pytest.importorskip("distributed", reason="the extra dask is not installed")
    return request.param


@pytest.fixture(scope="module")
def cluster():
    """Address of a running Dask cluster: two workers, threads of this process."""
    distributed = pytest.importorskip("distributed", reason="the extra dask is not installed")
    size = {"n_workers": 2, "threads_per_worker": 1, "processes": False}
    with distributed.LocalCluster(**size, dashboard_address=None, silence_logs=40) as running:
        yield running.scheduler_address


def test_every_executor_gives_the_same_outcomes_in_the_order_of_the_tasks(place):
    heard = []
    outcomes = run_tasks(tasks.square_or_complain, range(7), place, workers=2, on_done=heard.append)
    assert [o.task for o in outcomes] == list(range(7))
    assert [o.value for o in outcomes] == [0, 1, 4, None, None, None, 36]
    assert [o.ok for o in outcomes] == [True, True, True, False, False, False, True]
    assert outcomes[3].error == "three.svs: is not wanted; leave it out"
    assert "pip install 'smmil[slides]'" in outcomes[4].error
    assert "fewer workers" in outcomes[5].error
    assert sorted(heard, key=lambda o: o.index) == outcomes


@pytest.mark.parametrize("where", PLACES[1:])
def test_outcomes_are_heard_when_they_end_but_returned_in_order(tmp_path, where, request):
    """The first task ends only after the second has been heard."""
    address = request.getfixturevalue("cluster") if where == "dask" else None
    heard, gate = [], tmp_path / "second was heard"

    def hear(outcome):
        heard.append(outcome.index)
        if outcome.index == 1:
            gate.touch()

    outcomes = run_tasks(tasks.waits_for, [str(gate), None], where, workers=2, on_done=hear, address=address)
    assert [o.value for o in outcomes] == [True, True]
    assert [o.index for o in outcomes] == [0, 1]
    assert heard == [1, 0]


def test_each_outcome_is_heard_before_the_next_task_begins_here():
    heard = []
    assert [o.value for o in run_tasks(lambda _: len(heard), range(3), on_done=heard.append)] == [0, 1, 2]


def test_a_bug_in_a_task_is_raised_not_listed(place, request):
    address = request.getfixturevalue("cluster") if place == "dask" else None
    with pytest.raises((IndexError, RuntimeError)):
        run_tasks(tasks.has_a_bug, [0, 1, 2], place, workers=1, address=address)


@pytest.mark.parametrize("where", PLACES[1:])
def test_a_task_whose_worker_is_killed_is_tried_again(tmp_path, where):
    if where == "dask":
        pytest.importorskip("distributed", reason="the extra dask is not installed")
    jobs = [(str(tmp_path / name), deaths) for name, deaths in (("a", 0), ("b", 1), ("c", 2))]
    outcomes = run_tasks(tasks.dies_until, jobs, where, workers=2)
    assert [o.value for o in outcomes] == [0, 1, 2]


def test_a_task_whose_worker_is_told_to_end_is_tried_again_by_the_same_rule(tmp_path):
    jobs = [(str(tmp_path / name), deaths) for name, deaths in (("a", 0), ("b", 1), ("c", 2), ("d", 99))]
    *done, deadly = run_tasks(tasks.ends_until, jobs, "processes", workers=2)
    assert [o.value for o in done] == [0, 1, 2]
    assert "killed 3 times" in deadly.error


def test_a_task_that_always_kills_its_worker_is_given_up_and_the_others_are_done(tmp_path):
    jobs = [(str(tmp_path / "deadly"), 99), (str(tmp_path / "kind"), 0)]
    heard = []
    deadly, kind = run_tasks(tasks.dies_until, jobs, "processes", workers=2, on_done=heard.append)
    assert "killed 3 times" in deadly.error
    assert kind.ok
    assert len((tmp_path / "deadly").read_text()) == 3
    assert len(heard) == 2


def test_workers_have_places_and_a_new_one_takes_that_of_the_dead(tmp_path):
    outcomes = run_tasks(tasks.place_unless_killed, [(str(tmp_path), False), (str(tmp_path), True)], "processes", 2)
    assert sorted(o.value for o in outcomes) == [0, 1]
    assert (tmp_path / "died").read_text() == str(outcomes[1].value)
    assert worker_place() is None


def test_nothing_to_do_starts_nothing(place):
    assert run_tasks(tasks.square, [], place) == []


def test_wrong_choices_are_refused_by_name():
    with pytest.raises(ConfigError, match="did you mean processes"):
        run_tasks(tasks.square, [1], "process")
    with pytest.raises(ConfigError, match="workers: must be at least 1, got 0"):
        run_tasks(tasks.square, [1], workers=0)
    with pytest.raises(ConfigError, match="choose the executor dask"):
        run_tasks(tasks.square, [1], "processes", address="tcp://127.0.0.1:8786")


def test_an_address_where_no_scheduler_answers_is_told():
    pytest.importorskip("distributed", reason="the extra dask is not installed")
    with pytest.raises(ConfigError, match="--dask nonsense: no Dask scheduler answers there"):
        run_tasks(tasks.square, [1], "dask", address="nonsense")


def test_a_cluster_that_is_already_running_is_used_and_left_running(cluster):
    for _ in range(2):
        outcomes = run_tasks(tasks.square, [2, 2, 3], "dask", address=cluster)
        assert [o.value for o in outcomes] == [4, 4, 9]


PROGRAM = """
import sys
from support import tasks
from smmil.executors import run_tasks
if __name__ == "__main__":
    run_tasks(tasks.note_process, [sys.argv[1]] * 2, "processes", workers=2)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_no_worker_outlives_the_main_process(tmp_path, how):
    script, notes = tmp_path / "main.py", tmp_path / "notes"
    script.write_text(PROGRAM)
    notes.mkdir()
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    main = subprocess.Popen(
        [sys.executable, str(script), str(notes)],
        env=env,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs inherit "ignored"
    )
    _until(lambda: len(list(notes.iterdir())) == 2, 60)
    os.kill(main.pid, how)
    main.wait(20)
    workers = [int(path.name) for path in notes.iterdir()]
    _until(lambda: not any(_alive(pid) for pid in workers), 10)


def _until(true, seconds):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def _alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False

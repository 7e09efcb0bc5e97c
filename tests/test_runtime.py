"""Seeds by place, settings that are given back, and honest answers about hardware."""

import os
import random
import subprocess
import sys

import numpy as np
import pytest
import torch

from smmil import runtime
from smmil.errors import ConfigError
from smmil.runtime import _place_seed, choose_device, describe, reproducible, seed_step, source_digest


def drawn():
    return [*torch.rand(3).tolist(), random.random(), np.random.rand()]


def test_the_same_place_draws_the_same_numbers_whatever_happened_before():
    seed_step(1, 2, 3)
    first = drawn()
    drawn()
    seed_step(1, 2, 3)
    assert drawn() == first


def test_neighbouring_places_do_not_share_their_numbers():
    places = [(s, e, t) for s in range(6) for e in range(-1, 6) for t in range(-1, 6)]
    assert len({_place_seed(*place) for place in places}) == len(places)
    assert _place_seed(1, 11, 1) != _place_seed(11, 1, 1) != _place_seed(1, 1, 11)


def fail_inside_the_block():
    with reproducible(threads=1):
        assert torch.get_num_threads() == 1
        assert torch.are_deterministic_algorithms_enabled()
        raise KeyError


def test_determinism_and_threads_hold_inside_the_block_and_are_given_back():
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    with pytest.raises(KeyError):
        fail_inside_the_block()
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == before


def test_an_unknown_device_is_refused_with_the_names_that_work():
    with pytest.raises(ConfigError, match="use auto, cpu, cuda"):
        choose_device("gpu0")
    assert choose_device("cpu").type == "cpu"
    assert choose_device("auto").type in ("cpu", "cuda")


def test_a_card_that_is_not_there_is_not_silently_replaced(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto").type == "cpu"
    with pytest.raises(ConfigError, match="no CUDA card is visible"):
        choose_device("cuda")


def test_a_device_without_double_precision_is_refused_with_the_reason():
    with pytest.raises(ConfigError, match="double precision, which mps has not; use cpu or cuda"):
        choose_device("mps")
    with pytest.raises(ConfigError, match="meta is not supported"):
        choose_device("meta")


def test_cards_have_the_names_that_were_given_to_this_process(monkeypatch):
    from smmil.runtime import visible_cards

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_cards("auto") == visible_cards("cuda") == ("0", "1")
    assert visible_cards("cuda:1") == visible_cards("cpu") == ()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-5f, 7")
    assert visible_cards() == ("GPU-5f", "7")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert visible_cards() == ()


def test_the_digest_of_the_source_changes_with_every_line_of_it(tmp_path, monkeypatch):
    (tmp_path / "models").mkdir()
    (tmp_path / "models/a.py").write_text("x = 1")
    monkeypatch.setattr(runtime, "__file__", str(tmp_path / "runtime.py"))
    digests = [source_digest.__wrapped__()]
    for path, text in (("models/a.py", "x = 2"), ("b.py", ""), ("note.txt", "not source")):
        (tmp_path / path).write_text(text)
        digests.append(source_digest.__wrapped__())
    assert len(set(digests)) == 3
    assert digests[-1] == digests[-2]


def test_the_description_knows_versions_cores_and_memory():
    facts = describe()
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["cores"] >= 1
    assert facts["memory_gb"] > 0
    assert facts["free_disk_gb"] >= 0


def test_worker_processes_share_several_cards_in_turn(monkeypatch):
    from types import SimpleNamespace

    from smmil.cli.prepare import PrepareExecutor, _place
    from smmil.runtime import cards, own_card

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert own_card("auto") == "auto"  # the main process takes the first, as always
    taken = []
    for number in (1, 2, 3):
        process = SimpleNamespace(_identity=(number,))
        monkeypatch.setattr("smmil.runtime.multiprocessing.current_process", lambda process=process: process)
        taken.append(own_card("cuda"))
    assert taken == ["cuda:0", "cuda:1", "cuda:0"]
    assert own_card("cuda:1") == "cuda:1"
    assert own_card("cpu") == "cpu"
    assert [cards(name) for name in ("auto", "cuda:1", "cpu")] == [2, 1, 0]
    assert _place(PrepareExecutor.auto, None, None, 10, "auto") == ("processes", 2)
    assert _place(PrepareExecutor.auto, None, None, 10, "cuda:1") == ("serial", None)
    assert _place(PrepareExecutor.auto, 5, None, 10, "auto") == ("processes", 5)


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4.0),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({"cpu.max": "nonsense"}, None),
        ({}, None),
    ],
)
def test_a_container_grants_so_many_cores(tmp_path, monkeypatch, files, cores):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert runtime._core_quota(tmp_path) == cores
    monkeypatch.setattr(runtime, "_CGROUPS", tmp_path)
    monkeypatch.setattr(runtime.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert runtime.available_cores() == (8 if cores is None else int(cores))


def test_a_busy_machine_is_told_with_what_to_do(monkeypatch):
    monkeypatch.setattr(runtime.os, "getloadavg", lambda: (14.2, 3.0, 1.0))
    monkeypatch.setattr(runtime.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(runtime, "available_cores", lambda: 2)
    monkeypatch.setattr(runtime.torch, "get_num_threads", lambda: 2)
    assert "14.2: others are at work" in runtime.describe()["load"]
    assert "training.threads=1" in runtime.describe()["load"]
    monkeypatch.setattr(runtime.torch, "get_num_threads", lambda: 1)
    assert runtime.describe()["load"] == "14.2"


def test_threads_of_the_command_line_wait_asleep_unless_told_otherwise():
    """Spinning, two threads beside a busy process took 18 times the processor time of two that sleep."""
    program = (
        "import os, sys; import smmil.cli as cli; assert 'torch' not in sys.modules; "
        "cli.app = lambda: print(os.environ['OMP_WAIT_POLICY']); cli.main()"
    )
    for given, used in (({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")):
        clean = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
        told = subprocess.run([sys.executable, "-c", program], env=clean | given, capture_output=True, text=True)
        assert told.stdout.strip() == used, told.stderr


WORK = """
import os, time, torch
torch.set_num_threads(2)
net = torch.nn.Sequential(torch.nn.Linear(512, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
x = torch.randn(400, 512)
for step in range(120):
    if step == 20:
        began = time.process_time()
    net(x).softmax(0).sum().backward()
print(time.process_time() - began)
"""


@pytest.mark.slow
def test_sleeping_threads_do_not_burn_time_beside_busy_processes():
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        taken = {}
        for policy in ("ACTIVE", "PASSIVE"):
            env = os.environ | {"OMP_WAIT_POLICY": policy, "OMP_NUM_THREADS": "2"}
            taken[policy] = float(subprocess.check_output([sys.executable, "-c", WORK], env=env))
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert taken["PASSIVE"] < taken["ACTIVE"]

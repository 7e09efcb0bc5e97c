"""Seeds by place, settings that are given back, and honest answers about hardware."""

import random

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

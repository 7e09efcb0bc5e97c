"""Several processes train as one: their gradients, shares of bags, errors and ends; played by threads or in earnest."""

import copy
import os
import random
import signal
import time
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.bags import grid_bag
from support.kills import content, finish, leftovers
from support.together import ended, in_threads, start_together

from smmil import fit
from smmil.config import TargetConfig, TrainingConfig
from smmil.errors import ConfigError, DataError, ToldByAnother
from smmil.models import create_model
from smmil.ranks import Ranks, _balanced, _started_together, current, process_group
from smmil.runtime import _place_seed
from smmil.synthetic import synthetic_slides, write_synthetic
from smmil.train import run as training_run
from smmil.train.folder import State
from smmil.train.loop import Trainer, _make_optimiser, _parameter_groups
from smmil.train.run import _MemoryBags
from smmil.weights import read_weights

SMALL = {
    "abmil": {"dim": 6, "att_dim": 3},
    "sm_ap": {"dim": 6, "att_dim": 3},
    "clam": {"dim": 6, "dropout": 0.0, "k": 2},
    "dsmil": {"query_dim": 4},
}
# A number added to all logits of a softmax changes nothing: its gradient is 0 but for rounding, which Adam makes large.
INERT = ("attention.score.bias",)
BAGS = [grid_bag(3 + 7 * n % 23, dim=5, seed=n, y=n % 2) for n in range(11)]
VAL = [grid_bag(4 + n, dim=5, seed=50 + n, y=n % 2) for n in range(5)]


def fresh(name):
    torch.manual_seed(1)
    return create_model(name, 5, **SMALL[name])


def work(model, **settings):
    """What a process does in two epochs with its copy of a model: weights and state at the end."""

    def train(ranks):
        config = TrainingConfig(epochs=2, lr=1e-2, warmup_epochs=0, threads=1, **settings)
        own, state, bags = copy.deepcopy(model), State(), _MemoryBags(BAGS, VAL, {}, TargetConfig())
        optimiser = _make_optimiser(_parameter_groups(own), config)
        place = torch.device("cpu"), lambda _: None, lambda _, row: row
        Trainer(config, own, optimiser, bags.train_set, bags.val_set, *place, ranks=ranks).fit(state)
        return own.state_dict(), state

    return train


def furthest(a, b):
    """Largest difference between weights that matter."""
    keys = [key for key in a if a[key].is_floating_point() and not key.removeprefix("model/").endswith(INERT)]
    return max(float((a[key].double() - b[key].double()).abs().max()) for key in keys if "optimiser/" not in key)


@pytest.mark.parametrize("name", SMALL)
def test_two_processes_equal_one(name):
    """Also with a last step of fewer bags than processes (11 bags, steps of 5), weights of the losses, and metrics."""
    train = work(fresh(name), batch_size=5)
    alone, state = train(Ranks())
    for weights, its_state in in_threads(train):
        assert furthest(weights, alone) < 1e-5 < furthest(alone, fresh(name).state_dict())
        assert [row.keys() for row in its_state.history] == [row.keys() for row in state.history]
        for row, expected in zip(its_state.history, state.history, strict=True):
            assert row == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("sampling", ["cluster", "random"])
def test_parts_of_large_bags_are_those_that_one_process_draws(sampling):
    train = work(fresh("abmil"), batch_size=5, max_instances=6, sampling=sampling)
    (alone, _), (whole, _) = train(Ranks()), work(fresh("abmil"), batch_size=5)(Ranks())
    for weights, _ in in_threads(train):
        assert furthest(weights, alone) < 1e-5 < furthest(weights, whole)


@pytest.mark.parametrize("count", [2, 3])
def test_several_processes_equal_one_that_accumulates(count):
    train = work(fresh("clam"), batch_size=2, accumulate=3)
    alone, _ = train(Ranks())
    for weights, _ in in_threads(train, count):
        assert furthest(weights, alone) < 1e-5


def test_all_processes_hold_the_same_and_say_the_same():
    (a, state), (b, other) = in_threads(work(fresh("sm_ap"), batch_size=3))
    assert furthest(a, b) == 0
    assert (state.history, state.best, state.lowest_loss) == (other.history, other.best, other.lowest_loss)


@given(st.lists(st.integers(1, 5000), max_size=30), st.integers(1, 9))
def test_every_bag_is_taken_once_and_no_part_is_far_from_even(sizes, parts):
    found = _balanced(sizes, parts)
    assert sorted(n for part in found for n in part) == list(range(len(sizes)))
    assert found == _balanced(sizes, parts)
    loads = [sum(sizes[n] for n in part) for part in found]
    assert parts * max(loads) <= sum(sizes) + (parts - 1) * max(sizes, default=0)
    assert (not sizes) or found[0]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=7), st.integers(1, 3))
def test_the_fullest_part_has_at_most_four_thirds_of_the_best(sizes, parts):
    best = min(
        max(sum(s for s, p in zip(sizes, places, strict=True) if p == part) for part in range(parts))
        for places in product(range(parts), repeat=len(sizes))
    )
    loads = [sum(sizes[n] for n in part) for part in _balanced(sizes, parts)]
    assert max(loads) <= (4 / 3 - 1 / (3 * parts)) * best + 1e-9


@given(st.lists(st.integers(1, 99), min_size=1, max_size=20), st.integers(2, 5), st.integers(1, 6))
def test_the_passes_of_all_processes_are_the_bags_of_the_step(sizes, count, accumulate):
    taken = [Ranks(number, count).passes(sizes, accumulate) for number in range(count)]
    assert sorted(n for own in taken for one in own for n in one) == list(range(len(sizes)))
    assert all(len(own) <= -(-accumulate // count) for own in taken)
    assert all(one for own in taken for one in own)


def test_no_two_passes_of_a_run_draw_the_same_random_numbers(monkeypatch):
    """And the first pass of a step draws what a single process draws there."""
    seeded = []
    monkeypatch.setattr(
        "smmil.train.loop.seed_step", lambda seed, epoch, step, part=0: seeded.append((epoch, step, part))
    )
    train = work(fresh("abmil"), batch_size=2, accumulate=4)
    in_threads(train, 3)
    passed = [place for place in seeded if place[1] >= 0]  # validation, which draws nothing, is the step before
    assert len(passed) == len(set(passed)) == 2 * (6 + 3)  # 8 bags in two passes of 3 processes, then 3 in one
    assert {place for place in passed if place[2] == 0} == {(epoch, step, 0) for epoch in (0, 1) for step in (0, 4)}
    assert len({_place_seed(0, *place) for place in passed}) == len(passed)
    assert _place_seed(3, 4, 5, 0) == _place_seed(3, 4, 5)


def test_a_process_alone_sends_nothing_and_has_every_share():
    alone = current()
    assert (alone.alone, alone.first, alone.gather("a")) == (True, True, ["a"])
    assert alone.device("cpu").type == "cpu"
    assert not _started_together()
    with process_group() as ranks:
        assert ranks is alone


def test_the_bad_bag_of_one_is_the_error_of_all():
    """The first process says what is wrong in another; the others know that it is said."""
    told = {}

    def work(ranks):
        try:
            try:
                if ranks.number == 1:
                    raise DataError("slide_7.h5: damaged")
                ranks.gather(1)
            except BaseException as problem:
                ranks._take_leave(problem)
                raise
        except (DataError, ToldByAnother) as problem:
            told[ranks.number] = problem

    in_threads(work, 3)
    assert str(told[0]) == "slide_7.h5: damaged"
    assert type(told[0]) is DataError
    assert [type(told[n]) for n in (1, 2)] == [ToldByAnother, ToldByAnother]


def test_what_several_processes_would_train_differently_is_refused(monkeypatch):
    monkeypatch.setattr(training_run, "current", lambda: Ranks(0, 2))
    settings, notes = TrainingConfig(), []

    class Notes:
        message = staticmethod(notes.append)

    def check(name, target=None, **options):
        training_run._refuse_for_several(create_model(name, 5, **options), settings, target, Notes())

    for name in ("iib_mil", "attri_mil"):
        with pytest.raises(ConfigError, match="each of 2 processes would remember its own"):
            check(name)
    from types import SimpleNamespace

    with pytest.raises(ConfigError, match="cox compares the cases of a batch"):
        check("abmil", SimpleNamespace(kind="cox"))
    check("abmil")
    assert notes == []
    check("gtp")
    assert "not that of one process" in notes[0]


def test_processes_take_a_card_each(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    taken = []
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    assert [str(Ranks(n, 2, n, 2).device("auto")) for n in range(2)] == ["cuda:0", "cuda:1"]
    assert str(Ranks(3, 4, 1, 2).device("cuda")) == "cuda:1"
    assert taken == [0, 1, 1]
    with pytest.raises(ConfigError, match="'cuda:1' names one card, but 2 processes"):
        Ranks(0, 2, 0, 2).device("cuda:1")
    with pytest.raises(ConfigError, match=r"3 processes on this machine, but 2 CUDA cards.*--nproc-per-node=2"):
        Ranks(0, 3, 0, 3).device("auto")
    assert Ranks(0, 3, 0, 3).device("cpu").type == "cpu"
    assert Ranks(0, 1).device("cuda:1") == torch.device("cuda:1")


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_compiled_model_learns_the_same_under_the_same_names(backend, monkeypatch):
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, **how: real(model, backend=backend, **how))
    options = {"epochs": 2, "batch_size": 3, "threads": 1, "lr": 1e-3, "options": SMALL["abmil"]}
    plain, compiled = (fit("abmil", BAGS[:6], VAL, compile=choice, **options) for choice in (False, True))
    assert list(plain.model.state_dict()) == list(compiled.model.state_dict())
    assert 0 <= furthest(plain.model.state_dict(), compiled.model.state_dict()) < 1e-5
    assert type(compiled.model) is type(plain.model)


def test_what_cannot_be_compiled_says_so(monkeypatch):
    with pytest.raises(ConfigError, match=r"training.compile: SMMILe remembers bags between steps"):
        fit("smmile", BAGS[:6], VAL, compile=True, epochs=1)

    def failing(model, **_):
        def call(batch):
            raise torch._dynamo.exc.TorchDynamoException("no C++ compiler")

        return call

    monkeypatch.setattr(torch, "compile", failing)
    with pytest.raises(ConfigError, match=r"ABMIL cannot be compiled here \(no C\+\+ compiler\).*leave it out"):
        fit("abmil", BAGS[:6], VAL, compile=True, epochs=1)


def test_visits_are_counted_where_the_bag_was_elsewhere():
    model = create_model("smmile", 5, norm="layer", dim=4, att_dim=2)
    one, other = copy.deepcopy(model), copy.deepcopy(model)
    for part, ids in ((one, ["a"]), (other, ["b"])):
        part.noted.append(hash(ids[0]))
    for _ in range(3):
        for part in (one, other):
            part.bags_seen(["a", "b"])
            part.after_step()
    assert one.first == other.first != -1
    assert one.visits == other.visits == 3


# Processes in earnest: slow, since each loads torch.


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    return write_synthetic(folder, synthetic_slides(26, seed=4, size=(8, 60), dim=6))


def words(study, model="abmil", epochs=2, batch_size=5, *more):
    sets = ["training.threads=1", "training.warmup_epochs=0", "data.folds=2", "data.val_share=0.4", "training.lr=1e-3"]
    sets += {"clam": ["model.options.dropout=0.0"]}.get(model, [])
    sets += [] if model in ("dsmil", "iib_mil") else ["model.options.dim=8"]
    sets += [f"training.epochs={epochs}", f"training.batch_size={batch_size}", *more]
    given = [word for change in sets for word in ("--set", change)]
    return ["train", "--manifest", str(study), "--model", model, "--out", "out", *given]


def run_together(line, folder, count=2):
    codes = ended(start_together(line, folder, count))
    assert codes == [0] * count, (folder / "log").read_text()
    return folder / "out"


def weights_of(out, name="last"):
    return read_weights(out / "checkpoints" / f"{name}.safetensors")[0]


@pytest.mark.slow
@pytest.mark.parametrize("model", SMALL)
def test_two_processes_of_torchrun_equal_one_and_repeat_to_the_bit(study, tmp_path, model):
    line = words(study, model)
    finish(line, tmp_path / "one")
    first, again = (run_together(line, tmp_path / name) for name in ("a", "b"))
    one, two = weights_of(tmp_path / "one" / "out"), weights_of(first)
    assert one.keys() == two.keys()
    assert furthest(one, two) < 1e-5
    assert content(first) == content(again)
    assert leftovers(tmp_path / "a") == []
    assert len((first / "timing.csv").read_text().splitlines()) == 1 + 2  # written by one
    log = (tmp_path / "a" / "log").read_text()
    assert log.count("all 2 epochs done") == log.count("next: smmil predict") == 1  # one writer, one voice


@pytest.mark.slow
def test_more_processes_than_bags(study, tmp_path):
    line = words(study, "clam", 2, 2)
    finish(line, tmp_path / "one")
    out = run_together(line, tmp_path / "three", 3)
    assert furthest(weights_of(tmp_path / "one" / "out"), weights_of(out)) < 1e-5


@pytest.mark.slow
def test_killed_at_any_moment_they_go_on_to_the_same_bytes(study, tmp_path):
    chance = random.Random(int(os.environ.get("SMMIL_SEED", "5")))
    line, hits = words(study, "sm_ap", 4, 2, "training.checkpoint_minutes=0.0"), 0
    expected = content(run_together(line, tmp_path / "whole"))
    for turn in range(4):
        folder = tmp_path / str(turn)
        deadly = chance.randint(10, 60) if turn % 2 else None  # of about a hundred steps of writing
        processes = start_together(line, folder, deadly=deadly)
        if deadly is None:
            while not (folder / "out" / "checkpoints" / "last.safetensors").exists():
                time.sleep(0.02)
            time.sleep(chance.uniform(0, 0.4))
            processes[turn // 2].kill()
        codes = ended(processes, within=30)  # of the others by themselves, without torchrun
        assert None not in codes, "a process waited for one that was killed"
        hits += -9 in codes
        assert content(run_together(line, folder)) == expected
        assert leftovers(folder) == []
    assert hits >= 3


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_one_stops_all_at_the_same_step_and_saves_once(study, tmp_path, number):
    line = words(study, "abmil", 40, 2)
    expected = content(run_together(line, tmp_path / "whole"))
    processes = start_together(line, tmp_path / "stopped")
    while not (tmp_path / "stopped" / "out" / "timing.csv").exists():
        time.sleep(0.05)
    os.kill(processes[1].pid, number)
    assert ended(processes) == [128 + number] * 2, (tmp_path / "stopped" / "log").read_text()
    log = (tmp_path / "stopped" / "log").read_text()
    assert log.count("everything is saved") == 1
    assert content(run_together(line, tmp_path / "stopped")) == expected


@pytest.mark.slow
@pytest.mark.parametrize("part", ["train", "val"])
def test_a_bad_bag_of_one_process_ends_all_with_one_message(tmp_path, part):
    bags = synthetic_slides(26, seed=4, size=(8, 60), dim=6)
    manifest = write_synthetic(tmp_path / "study", bags)
    finish(words(manifest, "abmil", 1), tmp_path / "first")  # remembers that the files were sound
    from smmil.data.splits import run_split

    victim = getattr(run_split(tmp_path / "first" / "out"), part)[-1]
    processes = start_together(words(manifest, "abmil", 200), tmp_path / "run")
    while not (tmp_path / "run" / "out" / "timing.csv").exists():
        time.sleep(0.05)
    for process in processes:
        os.kill(process.pid, signal.SIGTERM)
    ended(processes)
    (tmp_path / "study" / "bags" / f"{victim}.h5").write_bytes(b"no bag")
    began = time.monotonic()
    codes = ended(start_together(words(manifest, "abmil", 200), tmp_path / "run"))
    log = (tmp_path / "run" / "log").read_text()
    assert codes == [2, 2], log
    assert time.monotonic() - began < 40
    assert log.count("error: ") == 1
    assert f"{victim}.h5" in log.split("error: ")[1]
    assert "Traceback" not in log


@pytest.mark.slow
def test_mistakes_are_told_once(study, tmp_path):
    for name, line, expected in (
        ("card", [*words(study), "--set", "training.device=cuda"], "no CUDA card is visible"),
        ("verb", ["models"], "torchrun is for smmil train and smmil predict"),
        ("key", [*words(study), "--set", "training.lrr=1"], "unknown key; did you mean lr"),
        ("model", words(study, "iib_mil"), "would remember its own"),
    ):
        assert ended(start_together(line, tmp_path / name)) == [2, 2]
        log = (tmp_path / name / "log").read_text()
        assert log.count("error: ") == log.count(expected) == 1, log


@pytest.mark.slow
def test_two_processes_predict_the_same_files_as_one(study, tmp_path):
    finish(words(study, "clam", 1), tmp_path / "run")
    bad = sorted((study.parent / "bags").glob("*.h5"))[3]
    line = ["predict", str(tmp_path / "run" / "out"), "--part", "all", "--out", "out"]
    finish(line, tmp_path / "one")
    assert ended(start_together(line, tmp_path / "two")) == [0, 0]
    assert content(tmp_path / "one" / "out") == content(tmp_path / "two" / "out")
    log = (tmp_path / "two" / "log").read_text()
    assert log.count("26 written, 0 there already, 0 failed") == 1
    sound = bad.read_bytes()
    try:
        bad.write_bytes(sound[:-3000])
        for place, processes in (("one", 1), ("two", 2)):
            (tmp_path / place / "out" / f"{bad.stem}.npz").unlink()
            codes = ended(start_together(line, tmp_path / place, processes))
            assert codes == [3] * processes, (tmp_path / place / "log").read_text()
    finally:
        bad.write_bytes(sound)
    assert content(tmp_path / "one" / "out") == content(tmp_path / "two" / "out")
    assert bad.stem in (tmp_path / "two" / "out" / "failures.csv").read_text()

"""Training killed at any moment and started again ends with the same bytes."""

import random
import sys
import time
from pathlib import Path

import pytest
from support.kills import PROCESSES

from smmil.config import load_config
from smmil.synthetic import synthetic_slides, write_synthetic
from smmil.train.folder import _read_state

SAME = ("checkpoints/best.safetensors", "checkpoints/lowest_loss.safetensors", "checkpoints/last.safetensors",
        "metrics.csv", "split.json", "config.yaml", "run.json")  # fmt: skip


def train_slowly(config, out, pause):
    """What runs in the process that is killed: training with a pause after each batch, so that kills land inside."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from smmil.train import Progress, train

    class Slow(Progress):
        def step_done(self, epoch, step, loss):
            time.sleep(pause)

    train(config, out, progress=Slow())


def run_once(config, out, pause):
    """Start training and let it run to its end."""
    process = PROCESSES.Process(target=train_slowly, args=(config, out, pause))
    process.start()
    process.join()
    assert process.exitcode == 0


def run_and_kill(config, out, pause, checkpoints, delay):
    """Start training, wait for so many new checkpoints and then for `delay` seconds, and kill it. True if it hit."""
    process = PROCESSES.Process(target=train_slowly, args=(config, out, pause))
    before = version(out)
    process.start()
    while checkpoints and process.is_alive():
        time.sleep(0.001)
        if (now := version(out)) != before:
            before, checkpoints = now, checkpoints - 1
    process.join(delay)
    process.kill()
    process.join()
    assert process.exitcode in (0, -9)
    return process.exitcode == -9


def version(out):
    """Changes with every checkpoint that is written."""
    last = out / "checkpoints/last.safetensors"
    return (last.stat().st_ino, last.stat().st_mtime_ns) if last.exists() else None


def config_for(study, model, minutes, epochs):
    changes = [
        f"epochs={epochs}",
        "batch_size=2",
        "accumulate=2",
        "threads=1",
        "lr=1e-2",
        f"checkpoint_minutes={minutes}",
    ]
    overrides = [
        f"data.manifest={study}",
        "data.folds=2",
        "data.val_share=0.5",
        f"model.name={model}",
        "model.options.dim=8",
    ]
    return load_config(None, overrides + [f"training.{c}" for c in changes])


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return write_synthetic(tmp_path_factory.mktemp("study"), synthetic_slides(20, seed=5, size=(12, 25), dim=6))


def kill_and_resume(study, folder, model, minutes, kills, seed):
    """Train once without and once with kills at random moments, compare every byte; gives the places gone on from."""
    config, chance, places = config_for(study, model, minutes, epochs=3 * kills), random.Random(seed), []
    run_once(config, folder / "whole", 0.0)
    for _ in range(kills):
        hit = run_and_kill(config, folder / "killed", 0.01, chance.choice([1, 1, 2, 3]), chance.uniform(0, 0.05))
        assert hit, "the run ended before all kills were done"
        state = _read_state(folder / "killed/checkpoints/last.safetensors")
        places.append((state.epoch, state.step))
    run_once(config, folder / "killed", 0.0)
    for name in SAME:
        assert (folder / "killed" / name).read_bytes() == (folder / "whole" / name).read_bytes(), name
    assert not list(folder.rglob("*smmil-tmp*"))
    return places


def check(places, minutes):
    """The kills really interrupted something: the run went on from many places, inside epochs if those are saved."""
    assert len(set(places)) == len(places)
    assert (0, 0) not in places
    assert any(step > 0 for _, step in places) == (minutes == 0)


def test_a_killed_run_goes_on_to_the_same_bytes(study, tmp_path):
    model = "support.dropout_model:DropoutMIL"
    check(kill_and_resume(study, tmp_path, model, minutes=0, kills=4, seed=len(model)), minutes=0)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["abmil", "sm_ap", "sm_tap", "support.dropout_model:DropoutMIL"])
@pytest.mark.parametrize("minutes", [0, 5])
def test_twenty_kills_change_nothing(study, tmp_path, model, minutes):
    check(kill_and_resume(study, tmp_path, model, minutes, kills=20, seed=len(model)), minutes)

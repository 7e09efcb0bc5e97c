"""Every model beside its peer: a training step, inference and peak memory, as ratios peer ÷ ours.

    python benchmarks/zoo_speed.py                          # N = 1,000 and 10,000 patches
    python benchmarks/zoo_speed.py --n 60000 --models abmil sm_ap dsmil

A step is forward and backward of one slide in training mode, inference a prediction with its map and without gradients;
features of 512, 8 neighbours per patch, one thread. Each model and its peer take turns in a process of their own (and
ABMIL's step with them, by which models without a peer are told); memory is the peak above what the process held before.
Times are processor time, since the machine may be shared. Who the peers are: zoo_peers.py. Prints Markdown.
"""

import argparse
import ctypes
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from clock import interleaved, peak_memory
from models import WIDTH, YARDSTICK, train_step
from slides import slide
from zoo_peers import OURS, Peer, peer_of

from smmil.bag import Bag, BagBatch
from smmil.models import create_model, list_models

LEVEL = 0.95  # goal: at least level with the peer, within the noise of the clock
KEYS = ("step", "inference", "memory")
Run = Callable[[], object]


def measure(name: str, n: int, rounds: int) -> dict[str, Any]:
    """Ratios of one model and its peer, and its step beside ABMIL's; run this in a fresh process."""
    small = {} if n <= 100 else _runs(name, slide(100, WIDTH))[1]
    for run in small.values():  # libraries load their parts before anything is measured
        run()
    peer, runs = _runs(name, slide(n, WIDTH))
    memory = {who: _memory(runs[f"{who} step"]) for who in ("our", "their") if f"{who} step" in runs}
    seconds = interleaved(runs, rounds, time.process_time)
    found = {"peer": "no peer", "times_abmil": seconds["our step"] / seconds["abmil step"]}
    if peer is None:
        return found
    ratios = {key: seconds[f"their {key}"] / seconds[f"our {key}"] for key in KEYS[:2]}
    return found | ratios | {"peer": peer.what, "memory": memory["their"] / memory["our"]}


def _memory(run: Run) -> float:
    """Peak MB, with what earlier runs freed given back first (glibc), so that nobody finds it ready for use."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return peak_memory(run)


def _runs(name: str, bag: Bag) -> tuple[Peer | None, dict[str, Run]]:
    torch.manual_seed(0)
    batch = BagBatch.pack([bag])
    model, yardstick = create_model(name, WIDTH, **OURS.get(name, {})), create_model(YARDSTICK, WIDTH)
    runs: dict[str, Run] = {
        "our step": lambda: train_step(model.train(), batch),
        "our inference": lambda: _without_gradients(model, lambda: model(batch)),
        "abmil step": lambda: train_step(yardstick.train(), batch),
    }
    if (peer := peer_of(name, bag)) is not None:
        runs["their step"] = lambda: _peer_step(peer)
        runs["their inference"] = lambda: _without_gradients(peer.model, peer.predict)
    return peer, runs


def _without_gradients(model: torch.nn.Module, run: Run) -> None:
    model.eval()
    with torch.no_grad():
        run()


def _peer_step(peer: Peer) -> None:
    peer.model.train().zero_grad()
    peer.loss().backward()


def in_a_process_of_its_own(name: str, n: int, rounds: int, patience: float) -> dict[str, Any]:
    """What `measure` gives, or {"problem": why there is nothing}."""
    command = [sys.executable, __file__, "--one", name, str(n), "--rounds", str(rounds)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience)
    except subprocess.TimeoutExpired:
        return {"problem": f"not done after {patience:g} s"}
    if done.returncode:
        return {"problem": (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]}
    return json.loads(done.stdout)


def table(n: int, found: dict[str, dict[str, Any]]) -> str:
    head = ["model", "peer", *KEYS, "goal", "", "step ÷ ABMIL"]
    lines = [head, ["---", "---", "---:", "---:", "---:", "---:", "---", "---:"]]
    lines += [row(name, one) for name, one in found.items()]
    return f"N = {n:,}, P = {WIDTH}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)


def row(name: str, one: dict[str, Any]) -> list[str]:
    if "problem" in one:
        return [f"`{name}`", "", "", "", "", "", one["problem"].replace("|", "/")[:120], ""]
    times = f"{one['times_abmil']:.1f}"
    if "step" not in one:
        return [f"`{name}`", one["peer"], "", "", "", "", "", times]
    slower = [key for key in KEYS[:2] if one[key] < LEVEL]
    verdict = f"**slower: {', '.join(slower)}**" if slower else "ok"
    return [f"`{name}`", one["peer"], *(f"{one[key]:.2f}" for key in KEYS), "≥ 1", verdict, times]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", nargs="+", type=int, default=[1000, 10_000], help="patches of the slide")
    parser.add_argument("--models", nargs="*", default=list_models(), choices=list_models(), metavar="NAME")
    parser.add_argument("--without", nargs="*", default=[], metavar="NAME", help="models to leave out")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds, after one that is not")
    parser.add_argument("--patience", type=float, default=1800, help="seconds after which a pair is given up")
    parser.add_argument("--one", nargs=2, metavar=("NAME", "N"), help="measure one pair in this process, print JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.one:
        print(json.dumps(measure(options.one[0], int(options.one[1]), options.rounds)))
        return
    for n in options.n:
        found = {}
        for name in (name for name in options.models if name not in options.without):
            found[name] = in_a_process_of_its_own(name, n, options.rounds, options.patience)
            print(name, n, found[name], file=sys.stderr)
        print(table(n, found), end="\n\n", flush=True)


if __name__ == "__main__":
    main()

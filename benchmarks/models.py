"""What a training step of each model costs on a large slide: time, memory, and both as multiples of ABMIL.

    python benchmarks/models.py            # N = 10,000 patches
    python benchmarks/models.py --large    # and N = 60,000: takes long

A step is forward and backward of one slide in training mode, features of 512, 8 neighbours per patch. Each model runs
in a process of its own, on one thread; memory is the peak above what the process holds once features are loaded
(the high-water mark of the kernel, set back at that moment: `ru_maxrss` would remember the peak of loading).
Prints Markdown.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from typing import Any

import torch
from clock import peak_memory
from slides import slide

from smmil.bag import BagBatch
from smmil.losses import total_loss
from smmil.models import create_model, list_models

WIDTH = 512
LIMIT_GB = 4
YARDSTICK = "abmil"


def measure(name: str, n: int, rounds: int) -> dict[str, float]:
    """Seconds (median) and peak GB of one training step; run this in a fresh process."""
    torch.manual_seed(0)
    model = create_model(name, WIDTH).train()
    batch = BagBatch.pack([slide(n, WIDTH)])
    train_step(model, BagBatch.pack([slide(100, WIDTH)]))  # libraries load their parts before anything is measured
    memory = peak_memory(lambda: train_step(model, batch)) / 1024
    times = [timed(model, batch) for _ in range(rounds)]
    return {"seconds": statistics.median(times) if times else float("nan"), "gb": memory}


def train_step(model: torch.nn.Module, batch: BagBatch) -> None:
    model.zero_grad()
    total_loss(model(batch), batch.need("y"), bag_weight=getattr(model, "bag_weight", 1.0))[0].backward()


def timed(model: torch.nn.Module, batch: BagBatch) -> float:
    start = time.perf_counter()
    train_step(model, batch)
    return time.perf_counter() - start


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
    head = ["model", "step (s)", "× ABMIL", "memory (GB)", "× ABMIL", ""]
    lines = [head, ["---"] + ["---:"] * 4 + ["---"]]
    lines += [row(name, one, found[YARDSTICK]) for name, one in found.items()]
    return f"N = {n:,}, P = {WIDTH}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)


def row(name: str, one: dict[str, Any], yardstick: dict[str, Any]) -> list[str]:
    if "problem" in one:
        return [f"`{name}`", "", "", "", "", one["problem"].replace("|", "/")]
    ratios = [f"{one[key] / yardstick[key]:.1f}" if key in yardstick else "" for key in ("seconds", "gb")]
    flag = f"**above {LIMIT_GB} GB**" if one["gb"] > LIMIT_GB else ""
    return [f"`{name}`", f"{one['seconds']:.2f}", ratios[0], f"{one['gb']:.2f}", ratios[1], flag]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true", help="measure at 60,000 patches too")
    parser.add_argument("--models", nargs="*", default=list_models(), choices=list_models(), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=3, help="timed steps per model; 0: memory only")
    parser.add_argument("--patience", type=float, default=1800, help="seconds after which a model is given up")
    parser.add_argument("--one", nargs=2, metavar=("NAME", "N"), help="measure one model in this process, print JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.one:
        print(json.dumps(measure(options.one[0], int(options.one[1]), options.rounds)))
        return
    for n in (10_000, 60_000) if options.large else (10_000,):
        names = [YARDSTICK, *(name for name in options.models if name != YARDSTICK)]
        found = {}
        for name in names:
            print(f"{name}, N = {n:,} …", file=sys.stderr)
            found[name] = in_a_process_of_its_own(name, n, options.rounds, options.patience)
        print(table(n, found), end="\n\n")


if __name__ == "__main__":
    main()

"""Bags without end: processor time per instance and peak memory from ten thousand to a million instances.

    python benchmarks/endless.py [INSTANCES …] [--width 1536] [--folder FOLDER] [--whole]

A slide of N patches (35 % of a lattice, float16 features) is written to a native file. Then, each in a process of its
own whose peak memory is that of the operating system's books (ru_maxrss, libraries included):

open      read all but the features, build the graph, compare the checksum of the file
predict   sm_ap (early, 10 steps) from the file in blocks of 8,192 rows
part      training steps on parts of 8,192 instances, read from the file; per step, all of it
whole     with --whole, one training step on all instances, read into memory first (8 bytes per feature row and more)

Time is that of the processor, so that other programs on the machine count little; seconds by the clock are beside it.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from smmil.bag import Bag, BagBatch
from smmil.data.sampling import PartSampler
from smmil.formats import open_bag, read_bag, write_bag
from smmil.frame import Frame
from smmil.graph import grid_graph
from smmil.losses import bag_loss
from smmil.models import create_model
from smmil.predict.inference import predict

SIZES, WIDTH, BLOCK, PART, STEPS = (10_000, 30_000, 100_000, 300_000, 1_000_000), 1536, 8192, 8192, 4
JOBS = ("open", "predict", "part")


def write(path: Path, n: int, width: int) -> None:
    """A slide of n patches in a few pieces of tissue, whose features are drawn once and repeated."""
    rng = np.random.default_rng(n)
    side = int(np.ceil(np.sqrt(n / 0.35)))
    x, y = np.meshgrid(np.arange(side), np.arange(side))
    waves = sum(np.sin((x * a + y * b) / side + c) for a, b, c in rng.normal(0, 9, (6, 3)))
    cells = np.sort(np.argsort(-waves.ravel(), kind="stable")[:n])
    coords = torch.from_numpy(np.stack([cells % side, cells // side], 1) * 256)
    drawn = rng.normal(size=(min(n, 8192), width)).astype(np.float16)
    with tempfile.TemporaryFile(dir=path.parent) as scratch:
        held = np.memmap(scratch, dtype=np.float16, mode="w+", shape=(n, width))
        for begin in range(0, n, len(drawn)):
            held[begin : begin + len(drawn)] = drawn[: n - begin]
        bag = Bag(path.stem, torch.from_numpy(held), coords, Frame((256.0, 256.0)), grid_graph(coords, 256))
        write_bag(path, bag, graph="grid")


def model(width: int) -> torch.nn.Module:
    torch.manual_seed(0)
    return create_model("sm_ap", width)


def job_open(path: Path, width: int) -> Callable[[], object]:
    return lambda: open_bag(path)


def narrow_bag() -> Bag:
    """A bag on which compiled code is loaded before anything is measured."""
    x, y = np.meshgrid(np.arange(100), np.arange(100))
    coords = np.stack([x.ravel(), y.ravel()], 1)
    return Bag("narrow", torch.zeros(len(coords), 8), torch.from_numpy(coords), graph=grid_graph(coords, 1))


def job_predict(path: Path, width: int) -> Callable[[], object]:
    opened, made = open_bag(path, verify=False), model(width)
    predict(model(8), narrow_bag(), block=BLOCK)
    return lambda: predict(made, opened, block=BLOCK)


def step(made: torch.nn.Module, bag: Bag) -> None:
    """Forward and backward."""
    bag_loss(made(BagBatch.pack([replace(bag, y=1)])).logits, torch.tensor([1])).backward()


def job_part(path: Path, width: int) -> Callable[[], object]:
    opened, made = open_bag(path, verify=False), model(width)
    drawn = [PartSampler(PART, "cluster", 0, epoch) for epoch in range(STEPS)]
    step(made, drawn[0].drawn(opened, 1) or replace(opened.bag, x=opened.rows.take(np.arange(opened.rows.n))))

    def steps() -> None:
        for one in drawn:
            part = one.drawn(opened, 0)
            step(made, part if part is not None else read_bag(path, verify=False))

    return steps


def job_whole(path: Path, width: int) -> Callable[[], object]:
    bag, made = read_bag(path, verify=False), model(width)
    step(model(8), narrow_bag())
    return lambda: step(made, bag)


def child(job: str, path: Path, width: int) -> None:
    """Print what a job took as JSON."""
    if job == "write":  # here, since the books of a process begin with the peak of the one that started it
        write(path, int(path.stem.split("_")[1]), width)
        return
    torch.set_num_threads(1)
    run = {"open": job_open, "predict": job_predict, "part": job_part, "whole": job_whole}[job](path, width)
    clock, processor = time.perf_counter(), time.process_time()
    run()
    repeats = STEPS if job == "part" else 1
    seconds = (time.process_time() - processor) / repeats, (time.perf_counter() - clock) / repeats
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"processor": seconds[0], "clock": seconds[1], "peak": peak}))


def measured(job: str, path: Path, width: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--job", job, "--width", str(width), str(path)]
    found = subprocess.run(command, capture_output=True, text=True)
    if found.returncode:
        return {"failed": found.stderr.strip().splitlines()[-1:] or [f"ended with {found.returncode}"]}
    result: dict[str, Any] = json.loads(found.stdout.splitlines()[-1]) if found.stdout else {}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", default=SIZES)
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--job", choices=("write", "open", "predict", "part", "whole"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job:
        child(given.job, Path(given.sizes[0]), given.width)
        return
    print(f"{'N':>9} {'job':8} {'µs/instance':>12} {'s (processor)':>14} {'s (clock)':>10} {'peak GB':>8}")
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for n in map(int, given.sizes):
            path = Path(folder) / f"slide_{n}.h5"
            measured("write", path, given.width)
            for job in (*JOBS, *(["whole"] if given.whole else [])):
                r = measured(job, path, given.width)
                if "failed" in r:
                    print(f"{n:>9,} {job:8} failed: {r['failed'][0]}", flush=True)
                    continue
                each = 1e6 * r["processor"] / (min(n, PART) if job == "part" else n)
                print(
                    f"{n:>9,} {job:8} {each:>12.1f} {r['processor']:>14.2f} {r['clock']:>10.2f} {r['peak']:>8.2f}",
                    flush=True,
                )
            path.unlink()


if __name__ == "__main__":
    main()

"""What matters in SmGCN: each of its parts taken away or changed, beside PatchGCN and SmAP.

    python benchmarks/graph_messages.py                                    # synthetic slides, contrast 0.6
    python benchmarks/graph_messages.py --manifest bags/manifest.csv       # bags of one's own, such as crchisto
    python benchmarks/graph_messages.py --only SmGCN PatchGCN --seeds 3

Every variant is trained on the same bags with the same settings (one bag per step, the epoch chosen by validation loss)
and measured on others: synthetic slides are drawn anew for every seed, bags of a manifest are cut anew into 60, 20 and
20 %. Seconds are those of the processor for the whole training. Prints a Markdown table, a row as soon as it is known.
"""

import argparse
import random
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import smmil
from smmil.bag import Bag
from smmil.data import Manifest
from smmil.evaluate import bag_metrics, instance_metrics
from smmil.synthetic import synthetic_slides

VARIANTS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "SmGCN": ("sm_gcn", {}),
    "SmAP": ("sm_ap", {}),
    "PatchGCN": ("patch_gcn", {}),
    "α = 0: no neighbours": ("sm_gcn", {"alpha": 0.0}),
    "α = 0.5, fixed": ("sm_gcn", {"alpha": 0.5}),
    "α = 0.9, exact": ("sm_gcn", {"alpha": 0.9, "steps": "exact"}),
    "1 step": ("sm_gcn", {"steps": 1}),
    "3 steps": ("sm_gcn", {"steps": 3}),
    "2 rounds": ("sm_gcn", {"layers": 2}),
    "3 rounds": ("sm_gcn", {"layers": 3}),
    "3 rounds of 2 steps": ("sm_gcn", {"layers": 3, "steps": 2}),
    "last view alone": ("sm_gcn", {"dense": False}),
    "LayerNorm": ("sm_gcn", {"norm": True}),
    "pool not smooth": ("sm_gcn", {"where": "none"}),
    "pool smooth late": ("sm_gcn", {"where": "late"}),
    "512 wide": ("sm_gcn", {"dim": 512}),
}
TRAIN, VAL, TEST = 60, 20, 60


def slides(seed: int, contrast: float) -> list[list[Bag]]:
    """Slides of 100 to 200 patches to train, validate and test."""
    drawn = synthetic_slides(TRAIN + VAL + TEST, seed=seed, contrast=contrast, size=(100, 200))
    return [drawn[:TRAIN], drawn[TRAIN : TRAIN + VAL], drawn[TRAIN + VAL :]]


def parts(bags: list[Bag], seed: int) -> list[list[Bag]]:
    """60, 20 and 20 % of the bags of each class."""
    draw, found = random.Random(seed), [[], [], []]
    for label in sorted({bag.y for bag in bags}):
        own = [bag for bag in bags if bag.y == label]
        draw.shuffle(own)
        ends = [0, round(0.6 * len(own)), round(0.8 * len(own)), len(own)]
        for part, first, last in zip(found, ends[:-1], ends[1:], strict=True):
            part += own[first:last]
    return found


def measure(name: str, bags: list[list[Bag]], seed: int, training: Mapping[str, Any]) -> dict[str, float]:
    model, options = VARIANTS[name]
    began = time.process_time()
    done = smmil.fit(model, *bags[:2], options=options, seed=seed, device="cpu", batch_size=1, **training)
    seconds = time.process_time() - began
    found = smmil.predict(done.model, bags[2])
    return {
        "instance AUROC": instance_metrics(found, pool="all")["auroc"],
        "within positive bags": instance_metrics(found, pool="per_bag")["auroc"],
        "bag AUROC": bag_metrics(found)["auroc"],
        "seconds": seconds,
        "parameters": sum(p.numel() for p in done.model.parameters()),
    }


def row(name: str, runs: list[dict[str, float]]) -> str:
    cells = []
    for key in runs[0]:
        values, digits = [run[key] for run in runs], 3 if "AUROC" in key or "within" in key else 0
        spread = f" ± {statistics.stdev(values):.3f}" if digits and len(values) > 1 else ""
        cells.append(f"{statistics.mean(values):,.{digits}f}{spread}")
    return f"| {name} | " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--manifest", type=Path, help="bags of one's own instead of synthetic slides")
    parser.add_argument("--contrast", type=float, default=0.6, help="of the synthetic slides")
    parser.add_argument("--only", nargs="*", default=list(VARIANTS), choices=list(VARIANTS), metavar="NAME")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0, help="others than those on which an option was chosen")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--lr", type=float, default=3e-4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    table = None if args.manifest is None else Manifest.read(args.manifest)
    known = None if table is None else [table.bag(name) for name in table.ids]
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    sets = {seed: slides(seed, args.contrast) if known is None else parts(known, seed) for seed in seeds}
    training = {"epochs": args.epochs, "lr": args.lr, "threads": 1}
    print("| variant | instance AUROC | within positive bags | bag AUROC | seconds | parameters |")
    print("|---|---:|---:|---:|---:|---:|", flush=True)
    for name in args.only:
        print(row(name, [measure(name, bags, seed, training) for seed, bags in sets.items()]), flush=True)


if __name__ == "__main__":
    main()

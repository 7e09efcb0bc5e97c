"""What the paper's tables cost on processors: steps of the real models measured here, extrapolated to all runs.

    python benchmarks/reproduce_cost.py --out docs/evidence       minutes; writes reproduce-cost.md and .csv

A step (forward, backward, Adam; features as wide as the paper's) is timed on one thread by the processor's own clock:
a batch as in the protocol for scans of 35 slices and slides of 105 patches; for CAMELYON16 one slide of SIZES patches,
from whose times the exponent of n is taken (between 1 and 2) and with it the time at 10,000 patches. Hours are
runs x epochs x (training bags + validation bags / 3), a forward pass being about a third of a step. That is an
extrapolation: it leaves reading, prediction and the noise of other machines out.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pandas as pd
import torch
from evidence import HERE
from slides import slide

from smmil.bag import BagBatch
from smmil.experiments.study import Dataset, Study, load_study
from smmil.files import write_text
from smmil.losses import total_loss
from smmil.models import create_model
from smmil.synthetic import synthetic_scans

# Of a data set: training bags with validation, instances of a bag, all instances.
SETS = {"RSNA": (1000, 35, 39_750), "PANDA": (8822, 105, 1_107_931), "CAMELYON16": (270, 10_000, 399 * 10_000)}
WIDTHS = {"ResNet18": 512, "ResNet50": 2048, "ResNet50-BT": 2048, "ViT-B-32": 768}
SIZES = (1000, 3000)
VALIDATION = 0.2
STUDIES = {
    "paper/main": "tables 1, 2; figures 2, 4, 5",
    "paper/placement": "table 3",
    "paper/sm-on-others": "table 4",
    "paper/penalty": "table 5",
    "paper/extractors": "tables 6 to 10",
    "ablations/alpha": "figures 6a, 12",
    "ablations/spectral-norm": "figure 6b",
    "ablations/steps": "figure 7",
}


def batch_of(kind: str, n: int, width: int, bags: int) -> BagBatch:
    """Bags of n instances; slides on a lattice, scans as chains."""
    if kind == "RSNA":
        return BagBatch.pack(synthetic_scans(bags, slices=(n, n), dim=width))
    return BagBatch.pack([slide(n, width, seed) for seed in range(bags)])


def seconds(model: str, options: str, kind: str, n: int, width: int, bags: int, rounds: int = 2) -> float:
    """Processor seconds of a step, median; of one that is slow the first."""
    torch.manual_seed(0)
    made = create_model(model, width, **json.loads(options)).train()
    optimiser, batch = torch.optim.Adam(made.parameters()), batch_of(kind, n, width, bags)
    times: list[float] = []
    while len(times) <= rounds and sum(times) < 6:
        began = time.process_time()
        optimiser.zero_grad()
        total_loss(made(batch), batch.need("y"), bag_weight=getattr(made, "bag_weight", 1.0))[0].backward()
        optimiser.step()
        times.append(time.process_time() - began)
    return statistics.median(times[1:] or times)


@cache
def per_bag(model: str, options: str, kind: str, width: int, bags: int) -> float:
    """Processor seconds of a training step for each of its bags."""
    n = SETS[kind][1]
    if kind != "CAMELYON16":
        return seconds(model, options, kind, n, width, bags) / bags
    small, large = (seconds(model, options, kind, size, width, 1) for size in SIZES)
    exponent = min(2.0, max(1.0, math.log(large / small) / math.log(SIZES[1] / SIZES[0])))
    print(f"{model} {options} {width}: {small:.2f} s and {large:.2f} s, exponent {exponent:.2f}", flush=True)
    return large * (n / SIZES[1]) ** exponent


def costs(study: Study, dataset: Dataset) -> Iterator[tuple[str, int, float]]:
    """Of every variant on a data set: runs, and hours of one processor for all of them."""
    kind = dataset.dataset
    bags, width = SETS[kind][0], WIDTHS[dataset.extractor]
    weight = bags * (1 - VALIDATION + VALIDATION / 3)
    for v in study.variants:
        training = study.training | dataset.training
        for name in (v.group, v.name):
            training |= dataset.training_of.get(name, {})
        runs = len(study.learning_rates) * len(study.seeds) * len(study.folds or range(dataset.folds))
        each = per_bag(v.model, json.dumps(v.options, sort_keys=True), kind, width, training["batch_size"])
        yield v.name, runs, runs * training["epochs"] * weight * each / 3600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "docs" / "evidence")
    parser.add_argument("--studies", nargs="*", default=list(STUDIES), choices=list(STUDIES), metavar="NAME")
    args = parser.parse_args()
    torch.set_num_threads(1)
    places = dict.fromkeys(("RSNA", "PANDA", "CAMELYON16"), "x")
    places |= {f"{n}_{e}": "x" for n in list(places) for e in ("RESNET18", "RESNET50", "VIT_B_32")}
    rows = []
    for name in args.studies:
        study = load_study(HERE / "configs" / f"{name}.yaml", places)
        for dataset in (d for d in study.datasets if d.dataset in SETS):
            for variant, runs, hours in costs(study, dataset):
                facts = {"study": name, "data": dataset.dataset, "features": dataset.extractor, "model": variant}
                rows.append({**facts, "runs": runs, "hours": hours})
            write(pd.DataFrame(rows), args.out)
        print(f"{name} is measured", flush=True)


def write(rows: pd.DataFrame, out: Path) -> None:
    """Hours by study and data set, with and without the three slowest models, and every model's in the CSV."""
    out.mkdir(parents=True, exist_ok=True)
    rows.round(3).to_csv(out / "reproduce-cost.csv", index=False)
    lines = ["## Hours of one processor", ""]
    lines += ["Extrapolated by `benchmarks/reproduce_cost.py` from steps measured on one core, see there.", ""]
    lines += [
        "| study | of the paper | data | features | runs | hours | slowest models |",
        "|---|---|---|---|---:|---:|---|",
    ]
    for (study, data, features), part in rows.groupby(["study", "data", "features"], sort=False):
        slow = part.sort_values("hours", ascending=False).head(3)
        named = ", ".join(f"{r.model} {r.hours:,.1f}" for r in slow.itertuples())
        cells = [
            study,
            STUDIES[str(study)],
            data,
            features,
            str(part["runs"].sum()),
            f"{part['hours'].sum():,.0f}",
            named,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    write_text(out / "reproduce-cost.md", "\n".join([*lines, ""]))


if __name__ == "__main__":
    main()

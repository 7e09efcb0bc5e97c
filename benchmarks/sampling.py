"""What training on parts of bags costs: AUROC of bags and of instances, for every sampler and several sizes of parts.

    python benchmarks/sampling.py [--seeds 3] [--epochs 30] [--shares 0.5 0.25 0.1]

Synthetic slides of about 1,000 patches, 80 train, 40 select the epoch, 120 test (whole bags, always). Seeds change
data, weights and draws together. `edges` is the share of a slide's edges, per instance of the part, that a part keeps;
`misses` the share of draws from positive slides that hold no lesion at all, whose label is then wrong.
"""

import argparse
import statistics

import numpy as np

import smmil
from smmil.bag import Bag
from smmil.data.sampling import PartSampler
from smmil.evaluate import bag_metrics, instance_metrics
from smmil.synthetic import synthetic_slides

PATCHES, TRAIN, VAL, TEST, DRAWS = 1000, 80, 40, 120, 20
SAMPLERS = ("cluster", "window", "walk", "random")


def auroc(bags: list[Bag], seed: int, epochs: int, **sampling: object) -> tuple[float, float]:
    """AUROC of bags and of the instances of all bags, on the test bags."""
    options = {"dim": 64, "att_dim": 32}
    quick = {"epochs": epochs, "lr": 1e-3, "threads": 1, "seed": seed, "options": options}
    found = smmil.fit("sm_ap", bags[:TRAIN], bags[TRAIN : TRAIN + VAL], **quick, **sampling)
    predictions = smmil.predict(found.model, bags[TRAIN + VAL :])
    return bag_metrics(predictions)["auroc"], instance_metrics(predictions)["auroc"]


def kept(bags: list[Bag], most: int, how: str) -> tuple[float, float]:
    """Edges per instance of parts, as a share of those of their bags, and the share of parts that miss the lesion."""
    edges, missed, sampler = [], [], PartSampler(most, how, 0, 0)
    for bag in bags[:TRAIN]:
        parts = [sampler.part(bag, place) for place in range(DRAWS)]
        edges += [len(part.graph.indices) / part.n / (len(bag.graph.indices) / bag.n) for part in parts]
        missed += [not bool((part.y_inst == 1).any()) for part in parts if bag.y]
    return float(np.mean(edges)), float(np.mean(missed))


def shown(values: list[float]) -> str:
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values) if len(values) > 1 else 0:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.5, 0.25, 0.1], help="of a bag, in a part")
    given = parser.parse_args()
    studies = [
        synthetic_slides(TRAIN + VAL + TEST, seed=seed, size=(PATCHES, PATCHES), lesion=(0.01, 0.06))
        for seed in range(given.seeds)
    ]
    ways: list[tuple[str, float, dict[str, object]]] = [("none", 1.0, {})]
    for share in given.shares:
        most = round(share * PATCHES)
        ways += [(how, share, {"max_instances": most, "sampling": how}) for how in SAMPLERS]
    print(f"{'sampling':9} {'share':>6} {'AUROC bags':>15} {'AUROC instances':>16} {'edges':>6} {'misses':>7}")
    for how, share, settings in ways:
        scores = [auroc(bags, seed, given.epochs, **settings) for seed, bags in enumerate(studies)]
        edges, missed = (1.0, 0.0) if how == "none" else kept(studies[0], round(share * PATCHES), how)
        columns = [shown([one[k] for one in scores]) for k in (0, 1)]
        print(f"{how:9} {share:>6.0%} {columns[0]:>15} {columns[1]:>16} {edges:>6.0%} {missed:>7.0%}", flush=True)


if __name__ == "__main__":
    main()

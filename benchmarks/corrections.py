"""Simulated annotators: does `smmil suggest` need fewer marks than marking at random? Resumable, some minutes per seed.

Every round trains, lets a rule choose the next patches of positive training cases, and asks the truth for their labels
(the oracle; nothing else of the truth is seen by training). Both rules know that cases labelled negative hold no
lesion. Instance AUROC is measured on test cases that were never marked. Repeating the command goes on; at the end the
tables that docs/corrections.md shows are written.

    python benchmarks/corrections.py --out work --manifest bags/manifest.csv   # crchisto, prepared as for `make study`
    python benchmarks/corrections.py --out work                                # synthetic slides
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import smmil
from smmil.bag import Bag
from smmil.data import Manifest
from smmil.data.splits import make_splits
from smmil.evaluate.levels import instance_metrics
from smmil.evaluate.suggestion import suggest_regions
from smmil.files import read_json, write_json, write_text
from smmil.predict.inference import predict
from smmil.synthetic import synthetic_slides

BUDGETS = (25, 50, 100, 200)
MODEL = {
    "options": {"dim": 64, "att_dim": 32},
    "epochs": 20,
    "lr": 1e-3,
    "warmup_epochs": 2,
    "batch_size": 8,
    "threads": 1,
}
HARD = {"size": (60, 120), "dim": 32, "contrast": 0.8, "distractors": 0.05}
Parts = tuple[list[Bag], list[Bag], list[Bag]]


def parts_of(manifest: Path | None, seed: int) -> Parts:
    """Training, validation and test bags of one seed; another seed draws others."""
    if manifest is None:
        bags = synthetic_slides(200, seed=seed, **HARD)
        return bags[:60], bags[60:110], bags[110:]
    table = Manifest.read(manifest)
    split = make_splits(table, folds=5, seed=seed, val_share=0.2, test_share=0.2)[0]
    train, val, test = ([table.bag(id_) for id_ in ids] for ids in (split.train, split.val, split.test))
    return train, val, test


class Simulation:
    """One rule, one seed: rounds of choosing, asking the oracle and training."""

    def __init__(self, parts: Parts, seed: int, weight: float):
        self.train, self.val, self.test = parts
        self.seed, self.weight = seed, weight
        self.truth = {bag.id: bag.y_inst for bag in self.train}
        self.features = {bag.id: bag.x.float().numpy() for bag in self.train}

    def trained(self, marks: dict[str, torch.Tensor]) -> tuple[Any, float]:
        """The model that learned from these marks, of one kind or both, and its instance AUROC on the test cases."""
        taught = {"corrections": marks, "instance_loss": self.weight} if marks else {}
        model = smmil.fit("sm_ap", self.train, self.val, seed=self.seed, **MODEL, **taught).model
        return model, instance_metrics(predict(model, self.test), pool="all")["auroc"]

    def ask(self, marks: dict[str, torch.Tensor], id_: str, instances: np.ndarray) -> None:
        """The oracle: the truth of these instances becomes marks."""
        truth = self.truth[id_]
        assert truth is not None
        marks.setdefault(id_, torch.full((len(truth),), -1))[instances] = truth[instances].long()

    def random(self, model: Any, marks: dict[str, torch.Tensor], count: int) -> None:
        """Any patches of positive training cases that are not marked yet, each as likely as the others."""
        known = {id_: labels.numpy() for id_, labels in marks.items()}
        free = [(b.id, i) for b in self.train if b.y for i in range(b.n) if b.id not in known or known[b.id][i] < 0]
        for n in np.random.default_rng((self.seed, count)).choice(len(free), count, replace=False):
            self.ask(marks, free[n][0], np.array([free[n][1]]))

    def suggest(self, model: Any, marks: dict[str, torch.Tensor], count: int) -> None:
        """What `smmil suggest --manifest` proposes from the predictions of the last model."""
        known = {id_: labels.numpy() for id_, labels in marks.items()}
        for one in suggest_regions(predict(model, self.train), patches=count, marked=known, features=self.features):
            self.ask(marks, one.id, one.instances)

    def rounds(self, choose: Callable[[Any, dict[str, torch.Tensor], int], None], file: Path) -> None:
        """AUROC after every budget, written as they come; finished ones are not repeated, the marks are kept too."""
        done = read_json(file, dict) if file.exists() else {"auroc": {}, "marks": {}}
        marks = {id_: torch.tensor(labels) for id_, labels in done["marks"].items()}
        model = None
        for earlier, budget in zip((0, 0, *BUDGETS), (0, *BUDGETS), strict=False):
            if str(budget) in done["auroc"]:
                continue
            if budget:
                model = self.trained(marks)[0] if model is None else model
                choose(model, marks, budget - earlier)
            model, found = self.trained(marks)
            done["auroc"][str(budget)] = found
            done["marks"] = {id_: labels.tolist() for id_, labels in marks.items()}
            write_json(file, done)
            lesions = sum(int((labels == 1).sum()) for labels in marks.values())
            print(f"{file.stem}: {budget} marks, {lesions} lesions, instance AUROC {found:.4f}", flush=True)


def mean_ci(values: list[float]) -> str:
    """Mean and its 95 % interval (t distribution over the seeds)."""
    from scipy.stats import t

    mean, n = float(np.mean(values)), len(values)
    half = float(t.ppf(0.975, n - 1) * np.std(values, ddof=1) / np.sqrt(n)) if n > 1 else float("nan")
    return f"{mean:.3f} ± {half:.3f}"


def table(folder: Path, name: str) -> str:
    """AUROC by rule and budget over the finished seeds, and how many marks suggest needs for what random reaches."""
    curves: dict[str, list[dict[str, float]]] = {}
    for rule in ("random", "suggest"):
        files = sorted(folder.glob(f"{name}-{rule}-*.json"))
        found = [json.loads(f.read_text())["auroc"] for f in files]
        curves[rule] = [one for one in found if set(one) == {"0", *map(str, BUDGETS)}]
    lines = ["| marked patches | random | suggest |", "|---:|---:|---:|"]
    for budget in (0, *BUDGETS):
        lines.append(f"| {budget} | " + " | ".join(mean_ci([c[str(budget)] for c in curves[r]]) for r in curves) + " |")
    means = {r: [float(np.mean([c[str(b)] for c in cs])) for b in (0, *BUDGETS)] for r, cs in curves.items()}
    lines.append("")
    for budget, reached in zip(BUDGETS, means["random"][1:], strict=True):
        need = needed(means["suggest"], reached)
        lines.append(f"- random with {budget}: {reached:.3f}; suggest needs {need}")
    return "\n".join(lines) + f"\n\n{len(curves['suggest'])} seeds.\n"


def needed(curve: list[float], reached: float) -> str:
    """Marks at which a curve, straight between its points, first reaches a value."""
    points = (0, *BUDGETS)
    if curve[0] >= reached:
        return "none"
    for (a, low), (b, high) in zip(
        zip(points, curve, strict=True), zip(points[1:], curve[1:], strict=True), strict=False
    ):
        if high >= reached:
            return f"{a + (b - a) * (reached - low) / (high - low):.0f}"
    return f"more than {points[-1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="where rounds are kept")
    parser.add_argument("--manifest", type=Path, help="bags of crchisto; without it synthetic slides")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--weight", type=float, default=0.3, help="training.instance_loss")
    args = parser.parse_args()
    name = "synthetic" if args.manifest is None else "crchisto"
    args.out.mkdir(parents=True, exist_ok=True)
    for seed in range(args.seeds):
        simulation = Simulation(parts_of(args.manifest, seed), seed, args.weight)
        for rule in ("random", "suggest"):
            simulation.rounds(getattr(simulation, rule), args.out / f"{name}-{rule}-{seed}.json")
    write_text(args.out / f"{name}.md", table(args.out, name))
    print(table(args.out, name))


if __name__ == "__main__":
    main()

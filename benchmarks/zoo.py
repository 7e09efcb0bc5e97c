"""How every model localizes on the synthetic slides: same slides, same split, three seeds.

    python benchmarks/zoo.py --out zoo            # trains what is missing, prints a Markdown table; can be stopped

150 slides of 100 to 250 patches: 40 train, 10 select the epoch, 100 test. 15 epochs of single slides, otherwise the
defaults of `smmil train` (the paper's protocol); nothing is tuned per model, and many would like more. The set rewards
smoothing by construction (see data/synthetic.py): read the table as "it trains, and this is what its map is worth
here", not as a ranking. A loss or score that is not finite would stop it.
"""

import argparse
import statistics
from pathlib import Path

import pandas as pd

from smmil.config import load_config
from smmil.evaluate import bag_metrics, instance_metrics
from smmil.files import write_text
from smmil.models import list_models, model_options
from smmil.predict import predict_run
from smmil.prediction import load_predictions
from smmil.synthetic import synthetic_slides, write_synthetic
from smmil.train import train

PARTS, PATCHES, EPOCHS, SEEDS = {"train": 40, "val": 10, "test": 100}, (100, 250), 15, (0, 1, 2)


def write_slides(folder: Path) -> None:
    """The slides with their parts marked; neighbours in the table share a patient, and parts have multiples of it."""
    path = write_synthetic(folder, synthetic_slides(sum(PARTS.values()), seed=0, size=PATCHES))
    marked = pd.read_csv(path, dtype=str)
    marked["split"] = [part for part, count in PARTS.items() for _ in range(count)]
    write_text(path, marked.to_csv(index=False))


def candidates() -> list[str]:
    """All models, and those of the paper's table 4 with Sm on top."""
    return [*list_models(), *(f"{name}+sm" for name in ("clam", "dsmil", "dtfd_mil") if "sm" in model_options(name))]


def measure(name: str, seed: int, manifest: Path, out: Path) -> dict[str, float]:
    """Bag AUROC, and instance AUROC over all slides and within positive ones, on the test slides."""
    model, smoothed, _ = name.partition("+sm")
    changes = [f"data.manifest={manifest}", f"model.name={model}", f"training.seed={seed}", "training.threads=1"]
    changes += [f"training.epochs={EPOCHS}", "training.batch_size=1"]
    config = load_config(None, [*changes, *(["model.options.sm.where=early"] if smoothed else [])])
    folder = out / f"{name}-{seed}"
    train(config, folder / "run")
    predict_run(folder / "run", out=folder / "test", part="test")
    found = load_predictions(folder / "test")
    return {
        "bag AUROC": bag_metrics(found)["auroc"],
        "instance AUROC": instance_metrics(found, pool="all")["auroc"],
        "within positive slides": instance_metrics(found, pool="positive_bags")["auroc"],
    }


def row(name: str, runs: list[dict[str, float]]) -> str:
    cells = []
    for key in runs[0]:
        values = [run[key] for run in runs]
        cells.append(f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}")
    return f"| `{name}` | " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("zoo"))
    parser.add_argument("--models", nargs="*", default=candidates(), choices=candidates(), metavar="NAME")
    options = parser.parse_args()
    manifest = options.out / "data" / "manifest.csv"
    if not manifest.exists():
        write_slides(manifest.parent)
    print("| model | bag AUROC | instance AUROC | within positive slides |\n|---|---:|---:|---:|", flush=True)
    for name in options.models:
        print(row(name, [measure(name, seed, manifest, options.out) for seed in SEEDS]), flush=True)


if __name__ == "__main__":
    main()

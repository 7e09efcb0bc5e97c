"""The localization benchmark from data to documentation: every model under one protocol, on several data sets.

    python benchmarks/localization.py --out smmil-benchmark                      synthetic sets and digits
    python benchmarks/localization.py --crchisto IMAGES --out smmil-benchmark    also colon images (`make benchmark`)
    python benchmarks/localization.py --out smmil-benchmark --tables             tables and figures of what is done

The protocol is configs/benchmark/localization.yaml. IMAGES is CRCHistoPhenotypes as the docs on public data sets
describe it (png/ and nuclei.csv), which may not be passed on. Repeating the command goes on where it stopped; models
that attend among all instances come last. Tables, the forest plots and the diagram of ranks that docs/benchmark.md
shows go to docs/evidence/localization-*; what has not been run is named in them.
"""

import argparse
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from evidence import HERE, SHOWN, bags

from smmil.bag import Bag, BagBatch
from smmil.data import Manifest
from smmil.evaluate import bootstrap_ci
from smmil.experiments.figures import write_figures
from smmil.experiments.results import _chosen_rows
from smmil.experiments.runner import load_results, run_study
from smmil.experiments.study import FigureSpec, Study, Variant, load_study
from smmil.experiments.tables import write_tables
from smmil.files import write_text
from smmil.losses import total_loss
from smmil.models import create_model
from smmil.predict import Explanation, explain_run
from smmil.synthetic import synthetic_slides
from smmil.synthetic.digits import digit_bags, write_digits

CONFIG = HERE / "configs" / "benchmark" / "localization.yaml"
HEAVY = ("T+AP small", "CAMIL", "IIB-MIL", "SETMIL", "TransMIL")
GROUPS = {"crchisto": "colon images", "digits": "digits", "slides": "synthetic slides", "scans": "synthetic scans"}
EXPLAINED = ("ABMIL", "SmAP-early", "SmInstance", "SmGCN", "PatchGCN")  # also: sets that have these are ranked
METHODS = (Explanation("attention"), Explanation("single"), Explanation("integrated-gradients", steps=16))
MAP_FOLDS = 2  # folds whose test bags are explained
FIRST = "PatchGCN"  # the yardstick of costs, and the reference of the study


def digits(out: Path) -> Path:
    """120 bags each with scattered nines and with nines together; gives the folder of both."""
    for name in ("scattered", "together"):
        if not (out / name / "splits.json").exists():
            write_digits(out / name, digit_bags(120, together=name == "together"))
    return out


def colon(images: Path, out: Path) -> Path:
    """The prepared colon images without the marks of a fixed test set: here every image is tested once."""
    made = out / "bags" / "manifest.csv"
    manifest = Manifest.read(made if made.exists() else bags(images, out))
    Manifest(manifest.table.assign(split=""), manifest.folder).write(made.with_name("unmarked.csv"))
    return made.with_name("unmarked.csv")


def without(study: Study, names: Sequence[str], sets: Sequence[str]) -> Study:
    """The study without some variants, of some data sets, and what is left of its pairs."""
    kept = [v for v in study.variants if v.name not in names]
    known = {v.name for v in kept}
    pairs = {a: b for a, b in study.pairs.items() if {a, b} <= known}
    chosen = [d for d in study.datasets if d.name in sets]
    return study.model_copy(update={"variants": kept, "pairs": pairs, "datasets": chosen})


def train_all(study: Study, out: Path, workers: int) -> None:
    """All runs that are missing: of every data set the light models, then the heavy ones."""
    sets = [d.name for d in study.datasets if d.missing is None]
    for names in (HEAVY, ()):
        for one in sets:
            part = without(study, names, [one])

            def tell(label: str, problem: str | None) -> None:
                print(time.strftime("%H:%M:%S"), label, problem or "", flush=True)

            how = {"executor": "processes", "workers": workers} if workers > 1 else {}
            run_study(part.model_copy(update={"figures": []}), out, on_run=tell, on_warning=print, **how)


def publish(study: Study, out: Path, docs: Path, resamples: int) -> None:
    """Tables and forest plots of each group of data sets, and mean ranks over the sets that have results."""
    docs.mkdir(parents=True, exist_ok=True)
    begun = set(load_results(study, out)["set"])
    for group in GROUPS:
        sets = [d.name for d in study.datasets if d.name.startswith(group) and d.name in begun]
        if sets:
            named = {"name": f"localization-{group}", "figures": forests(study)}
            part = without(study, (), sets).model_copy(update=named)
            write_tables(part, out, resamples=resamples)
            print(f"{group}: figures that could not be drawn: {write_figures(part, out)[1] or 'none'}", flush=True)
            copy(out / part.name, docs)
    done = load_results(study, out).groupby("set")["variant"].agg(set)
    begun = [d.name for d in study.datasets if d.name in begun and set(EXPLAINED) <= done[d.name]]
    ranked = [f for f in study.figures if f.kind == "critical_difference"]
    whole = without(study, (), begun).model_copy(update={"figures": ranked})
    print(f"ranks: figures that could not be drawn: {write_figures(whole, out)[1] or 'none'}", flush=True)
    copy(out / whole.name, docs)
    write_markdown(docs, "summary", "Instance AUROC in positive bags", SUMMARY, summary(whole, out))


def forests(study: Study) -> list[FigureSpec]:
    return [f for f in study.figures if f.kind != "critical_difference"]


def copy(folder: Path, docs: Path) -> None:
    for path in sorted(folder.glob("tables/*")) + sorted(folder.glob("figures/*")):
        if path.suffix in SHOWN and path.stem != "prior":
            shutil.copyfile(path, docs / f"{folder.name}-{path.name.replace(' ', '_')}")


SUMMARY = (
    "Mean over folds of the instance AUROC in positive bags (0.5 is chance), at the chosen learning rate; – not run, "
    "(n) only n folds. Intervals and tests stand in the pages of the data sets."
)


def summary(study: Study, out: Path) -> list[dict[str, str]]:
    """One row a model, one column a data set."""
    rows = _chosen_rows(load_results(study, out))
    planned = rows.groupby("set")["fold"].nunique()

    def cell(variant: str, name: str) -> str:
        values = rows[(rows["variant"] == variant) & (rows["set"] == name)]["inst_auroc@positive_bags"]
        few = f" ({len(values)})" if 0 < len(values) < planned[name] else ""
        return f"{values.mean():.3f}{few}" if len(values) else "–"

    named = [d.name for d in study.datasets]
    return [{"model": v.name, **{name: cell(v.name, name) for name in named}} for v in study.variants]


def write_markdown(docs: Path, name: str, title: str, words: str, rows: Sequence[dict[str, str]]) -> None:
    """A table as Markdown and CSV."""
    head = list(rows[0])
    lines = [f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
    lines += [f"| {' | '.join(row[key] for key in head)} |" for row in rows]
    write_text(docs / f"localization-{name}.md", "\n".join([f"## {title}", "", words, "", *lines, ""]))
    pd.DataFrame(rows).to_csv(docs / f"localization-{name}.csv", index=False)


COST = (
    "A training step (forward, backward, Adam) of one bag in milliseconds of one processor, all models in turns in one "
    "process, median of the rounds; the ratio to PatchGCN; parameters (memory: see the page on speed). "
    "Colon: a bag of {n} nuclei with 1280 features. Slide: {m} patches with 64 features."
)


def stepper(variant: Variant, bag: Bag) -> tuple[Callable[[], object], int]:
    """A training step of a model on one bag, and the number of its parameters."""
    torch.manual_seed(0)
    model = create_model(variant.model, bag.x.shape[1], **variant.options).train()
    optimiser, batch = torch.optim.Adam(model.parameters(), lr=1e-4), BagBatch.pack([bag])

    def step() -> None:
        optimiser.zero_grad()
        total_loss(model(batch), batch.need("y"), bag_weight=getattr(model, "bag_weight", 1.0))[0].backward()
        optimiser.step()

    return step, sum(p.numel() for p in model.parameters())


def costs(study: Study, bag: Bag, rounds: int) -> dict[str, tuple[float, int]]:
    """CPU seconds of a step and parameters of every variant; rounds in turns, since machines are noisy."""
    steps = {v.name: stepper(v, bag) for v in study.variants}
    for step, _ in steps.values():
        step()
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, (step, _) in steps.items():
            began = time.process_time()
            step()
            seconds[name].append(time.process_time() - began)
    return {name: (statistics.median(seconds[name]), steps[name][1]) for name in steps}


def publish_costs(study: Study, docs: Path, manifest: Path | None, rounds: int) -> None:
    torch.set_num_threads(1)
    found: dict[str, Bag] = {"slide": synthetic_slides(2, size=(2000, 2000))[1]}
    if manifest is not None:
        table = Manifest.read(manifest)
        sizes = {id_: table.bag(id_).n for id_ in table.ids if table.labels[id_]}
        found = {"colon": table.bag(sorted(sizes, key=lambda i: sizes[i])[len(sizes) // 2]), **found}
    measured = {name: costs(study, bag, rounds if bag.n < 1000 else 3) for name, bag in found.items()}
    rows = []
    for v in study.variants:
        row = {"model": v.name}
        for name, of in measured.items():
            seconds, count = of[v.name]
            row |= {f"{name}: parameters": f"{count:,}", f"{name}: ms": f"{1000 * seconds:.1f}"}
            row |= {f"{name}: ÷ {FIRST}": f"{seconds / of[FIRST][0]:.2f}"}
        rows.append(row)
    sizes_told = COST.format(n=found["colon"].n if "colon" in found else "–", m=f"{found['slide'].n:,}")
    write_markdown(docs, "cost", "Cost", sizes_told, rows)


MAPS = (
    "Instance AUROC within bags, mean over the bags that have both kinds, of maps of the same trained models by three "
    "methods (`smmil explain`): the model's own scores, the logit of each instance alone, integrated gradients (at "
    "most 16 gradients a bag). Test bags of the first two folds; 95 % intervals, bags resampled."
)


def maps(study: Study, out: Path, only: Sequence[str]) -> Iterator[dict[str, str]]:
    """A row for every data set and explained model whose runs are done."""
    runs = _chosen_rows(load_results(study, out))
    for name in only:
        for variant in EXPLAINED:
            mine = runs[(runs["set"] == name) & (runs["variant"] == variant) & (runs["fold"] < MAP_FOLDS)]
            cases: dict[str, list[Path]] = {one.method: [] for one in METHODS}
            for run in mine["run"]:
                folder = out / "runs" / run
                done = explain_run(folder / "train", METHODS, out=folder / "maps", part="test").done
                for method, one in done.items():
                    cases[method] += one.paths
            if len(mine):
                print(f"{name}: {variant} is explained", flush=True)
                yield {"data": name, "model": variant, **{method: within(paths) for method, paths in cases.items()}}


def within(paths: Sequence[Path]) -> str:
    """Instance AUROC within bags with its interval."""
    from smmil.prediction import Prediction

    found = bootstrap_ci([Prediction.load(path) for path in paths], "inst_auroc", pool="per_bag", n=1000)
    low, high = found["low"], found["high"]
    return f"{found['value']:.3f}" + ("" if low is None or np.isnan(low) else f" ({low:.3f} to {high:.3f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--crchisto", type=Path, metavar="IMAGES", help="folder with png/ and nuclei.csv")
    parser.add_argument("--out", type=Path, default=Path("smmil-benchmark"), help="where data and runs are kept")
    parser.add_argument("--workers", type=int, default=2, help="trainings at once, one thread each")
    parser.add_argument("--docs", type=Path, default=HERE / "docs" / "evidence", help="where tables and figures go")
    parser.add_argument("--tables", action="store_true", help="train nothing")
    parser.add_argument("--steps", nargs="*", default=["tables", "cost", "maps"], choices=["tables", "cost", "maps"])
    parser.add_argument("--rounds", type=int, default=9, help="timed steps of a model")
    parser.add_argument("--resamples", type=int, default=2000)
    args = parser.parse_args()
    out, made = args.out.absolute(), args.out.absolute() / "bags" / "unmarked.csv"
    colon_bags = colon(args.crchisto, out) if args.crchisto else made if made.exists() else None
    places = {"DIGITS": str(digits(out / "digits")), **({"CRCHISTO": str(colon_bags)} if colon_bags else {})}
    study = load_study(CONFIG, places)
    study = without(study, (), [d.name for d in study.datasets if d.missing is None])
    if not args.tables:
        train_all(study, out / "study", args.workers)
    if "tables" in args.steps:
        publish(study, out / "study", args.docs, args.resamples)
    if "cost" in args.steps:
        publish_costs(study, args.docs, colon_bags, args.rounds)
    if "maps" in args.steps:
        sets = [d.name for d in study.datasets if d.name in ("crchisto", "digits scattered", "slides 1.4")]
        rows = list(maps(study, out / "study", sets))
        write_markdown(args.docs, "maps", "Maps by method", MAPS, rows)


if __name__ == "__main__":
    main()

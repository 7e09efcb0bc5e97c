"""The published tables on certainty: which calls are wrong, area to read, position prior, faithfulness of maps.

    python benchmarks/certainty.py --crchisto smmil-study/bags/manifest.csv    (part of `make study`; resumable)

On every data set each model is trained once per fold of a cross-validation by patient, so that every case is judged by
a model that has not seen it. The scores of a fold are moved and scaled so that its threshold, chosen on the fold's
validation cases, is 0 and their deviation there is 1; then all cases are judged together (wrong calls within each fold,
since deviations have a scale of their own in each model), and patients are resampled.
What is done is kept: repeating the command goes on. Tables go to docs/evidence/certainty-*.md and .csv.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.model_selection import StratifiedGroupKFold

from smmil.config import DataConfig, ModelConfig, TrainConfig, TrainingConfig
from smmil.data import Manifest, Split, save_splits
from smmil.evaluate import best_f1_threshold, bootstrap_ci, position_prior, uncertainty_metrics
from smmil.evaluate.conformal import _MissedShares, _patient_values, area_to_read
from smmil.evaluate.instances import instance_score
from smmil.files import digest, read_json, write_json
from smmil.predict import METHODS, Explanation, explain_run, predict_ensemble, predict_run
from smmil.prediction import Prediction, load_predictions
from smmil.synthetic import synthetic_scans, synthetic_slides, write_synthetic
from smmil.train import train

HERE = Path(__file__).parent.parent
EXPLAINED_FOLD = 0
MEMBERS = 3
DROPOUTS = 20
RESAMPLES = 1000
AREA_RESAMPLES = 200
TARGET = 0.1


@dataclass(frozen=True)
class Variant:
    """A model as the tables name it; `members`: an ensemble of as many; `dropouts`: the mean of as many passes."""

    model: str
    options: Mapping[str, Any] = field(default_factory=dict)
    members: int = 1
    dropouts: int = 0
    explained: bool = False


NARROW = {"dim": 128}
# The order of the tables. A model with the same settings is trained once, whichever rows use it.
VARIANTS = {
    "ABMIL": Variant("abmil", NARROW, explained=True),
    "SmAP-early": Variant("sm_ap", {**NARROW, "where": "early"}, explained=True),
    "ProbSmAP": Variant("prob_sm_ap", NARROW, explained=True),
    "DSMIL": Variant("dsmil", explained=True),
    "CLAM": Variant("clam", NARROW, explained=True),
    "PatchGCN": Variant("patch_gcn", {"dim": 64}, explained=True),
    "SmTAP": Variant("sm_tap", {**NARROW, "trans_dim": 64, "heads": 4}, explained=True),
    "ProbSmooth": Variant("prob_smooth", NARROW, explained=True),
    "BayesMIL": Variant("bayes_mil", {**NARROW, "att_dim": 100}, explained=True),
    f"{MEMBERS} x ABMIL": Variant("abmil", NARROW, members=MEMBERS),
    f"{MEMBERS} x SmAP-early": Variant("sm_ap", {**NARROW, "where": "early"}, members=MEMBERS),
    "CLAM, dropout": Variant("clam", NARROW, dropouts=DROPOUTS),
    "PatchGCN, dropout": Variant("patch_gcn", {"dim": 64}, dropouts=DROPOUTS),
}
TRAINING = {"epochs": 15, "lr": 5e-4, "warmup_epochs": 2}
# Folds of the cross-validation of each data set, in the order of the work: the smallest first.
SETS = {"scans": 3, "slides": 3, "crchisto": 3}
TITLES = {"crchisto": "Colon images (nuclei)", "slides": "Synthetic slides", "scans": "Synthetic scans"}


@dataclass(frozen=True)
class Study:
    """Runs and predictions of one data set below a folder."""

    name: str
    manifest: Path
    folder: Path

    @property
    def folds(self) -> int:
        return SETS[self.name]

    def splits(self) -> Path:
        """A cross-validation: of each fold's cases a quarter of the rest validates."""
        path, table = self.folder / "splits.json", Manifest.read(self.manifest)
        if path.exists():
            return path
        ids = np.array(table.ids)
        y = np.array([table.labels[i] for i in ids])
        patient = np.array([table.groups.get(i) or i for i in ids])
        everyone, splits = np.arange(len(ids)), []
        for fold, (rest, test) in enumerate(_folds(self.folds, 0, everyone, y, patient)):
            kept, val = next(_folds(4, fold, rest, y, patient))
            splits.append(Split(*(tuple(sorted(ids[part].tolist())) for part in (kept, val, test))))
        self.folder.mkdir(parents=True, exist_ok=True)
        save_splits(path, splits)
        return path

    def run(self, variant: Variant, fold: int, member: int) -> Path:
        """The folder of a training, done now unless it was before."""
        options = (
            json.dumps(dict(variant.options), sort_keys=True).translate(str.maketrans("", "", '{}" ')).replace(":", "-")
        )
        out = self.folder / "runs" / f"{variant.model} {options}".strip() / f"{fold}-{member}"
        config = TrainConfig(
            data=DataConfig(manifest=str(self.manifest), splits=str(self.splits()), fold=fold),
            model=ModelConfig(name=variant.model, options=dict(variant.options)),
            training=TrainingConfig(seed=self.folds * member + fold, threads=1, **TRAINING),
        )
        train(config, out)
        return out

    def predictions(self, name: str, variant: Variant, fold: int, part: str) -> list[Prediction]:
        out = self.folder / "predictions" / name / f"{fold}-{part}"
        runs = [self.run(variant, fold, member) for member in range(variant.members)]
        if len(runs) > 1:
            done = predict_ensemble(runs, out=out, part=part)
        else:
            done = predict_run(runs[0], out=out, part=part, mc_dropout=variant.dropouts)
        return load_predictions(done.paths)

    def judged(self, name: str, variant: Variant) -> list[Prediction]:
        """Every case once, by the model that did not see it, with 0 as the threshold."""
        cases = []
        for fold in range(self.folds):
            val = self.predictions(name, variant, fold, "val")
            cases += aligned(self.predictions(name, variant, fold, "test"), val)
        return cases

    def rows(self, name: str, variant: Variant) -> dict[str, list[tuple[str, str]]]:
        """The model's row of every table; kept as long as the weights are the same."""
        cases = self.judged(name, variant)
        key = digest(*(f"{p.id} {p.meta['weights']}" for p in cases))
        path = self.folder / "rows" / f"{name}.json"
        known = read_json(path, dict) if path.exists() else {}
        if known.get("key") != key:
            known = {"key": key, "rows": {table: list(row(cases).items()) for table, (_, _, row) in TABLES.items()}}
            write_json(path, known)
        return known["rows"]

    def explained(self, variant: Variant) -> Iterator[tuple[str, list[Prediction]]]:
        """(method, maps with their curves) of the test cases of one fold."""
        run = self.run(variant, EXPLAINED_FOLD, 0)
        explain_run(run, [Explanation(method) for method in METHODS], out=run / "explained", part="test", measure=True)
        for method in METHODS:
            yield method, load_predictions(run / "explained" / method)


def _folds(
    n: int, seed: int, cases: np.ndarray, y: np.ndarray, patient: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(the rest, one part) of the cases, n times; no patient is in two parts."""
    maker = StratifiedGroupKFold(n, shuffle=True, random_state=seed)
    for rest, part in maker.split(cases, y[cases], patient[cases]):
        yield cases[rest], cases[part]


def aligned(test: Sequence[Prediction], val: Sequence[Prediction]) -> list[Prediction]:
    """Scores with the best threshold on validation at 0 and deviation 1 there, so that folds can be judged together."""
    cut, scale = best_f1_threshold(val), float(np.concatenate([instance_score(p) for p in val]).std()) or 1.0
    assert cut is not None
    cases = []
    for p in test:
        spread = None if p.uncertainty is None else p.uncertainty / scale
        cases.append(replace(p, scores=((instance_score(p) - cut) / scale)[:, None], uncertainty=spread))
    return cases


def number(value: float, low: float | None = None, high: float | None = None, sign: bool = False) -> str:
    """A number with its interval; an en dash where it is undefined."""
    if not math.isfinite(value):
        return "–"
    form = "{:+.3f}" if sign else "{:.3f}"
    known = low is not None and high is not None and math.isfinite(low) and math.isfinite(high)
    return form.format(value) + (f" [{form.format(low)}, {form.format(high)}]" if known else "")


def positive_cases(cases: Sequence[Prediction]) -> list[Prediction]:
    return [p for p in cases if p.y is not None and p.y > 0]


def errors_row(cases: Sequence[Prediction]) -> dict[str, str]:
    """Does the uncertainty tell which calls are wrong, better than the distance from the threshold does?"""
    if all(p.uncertainty is None for p in cases):
        return {}
    row: dict[str, str] = {}
    for pool, chosen in (("", cases), ("positive cases: ", positive_cases(cases))):
        found = uncertainty_metrics(chosen, 0.0, resamples=RESAMPLES)

        def difference(key: str, found: Mapping[str, Any] = found) -> str:
            return number(found[f"{key}_difference"], *found.get(f"{key}_interval", ()), sign=True)

        row |= {
            f"{pool}errors": f"{found['n_errors']:,} of {found['n_instances']:,}",
            f"{pool}by uncertainty": number(found["error_auroc"]),
            f"{pool}by distance": number(found["error_auroc_baseline"]),
            f"{pool}difference": difference("error_auroc"),
            f"{pool}both, difference": difference("error_auroc_combined"),
        }
        if not pool:
            row |= {
                "area by uncertainty": number(found["risk_coverage_area"]),
                "area by distance": number(found["risk_coverage_area_baseline"]),
                "area: difference": difference("risk_coverage_area"),
            }
    return row


def missed_share(cases: Sequence[Prediction]) -> float:
    """Mean share of a patient's lesion instances below the threshold that the other patients give."""
    values = list(_patient_values(cases).values())
    cuts = _MissedShares(values).controlled_by_others(TARGET)
    return float(np.mean([np.mean(own < cut) for own, cut in zip(values, cuts, strict=True)]))


def area_row(cases: Sequence[Prediction]) -> dict[str, str]:
    """Share of the instances to read for 90 % sensitivity, what is missed there, and what needs no threshold."""
    row = {}
    for positive in (True, False):
        share = bootstrap_ci(cases, partial(area_to_read, positive=positive), method="percentile", n=AREA_RESAMPLES)
        row["positive cases" if positive else "negative cases"] = number(share["value"], share["low"], share["high"])
    row["missed"] = number(missed_share(cases))
    ranked = {
        "instance AUROC": ("inst_auroc", "all"),
        "in positive cases": ("inst_auroc", "positive_bags"),
        "case AUROC": ("bag_auroc", "all"),
    }
    for name, (metric, pool) in ranked.items():
        found = bootstrap_ci(cases, metric, pool=pool, n=RESAMPLES)
        row[name] = number(found["value"], found["low"], found["high"])
    return row


def prior_row(cases: Sequence[Prediction]) -> dict[str, str]:
    """The map beside what position alone reaches, within cases."""
    inside = position_prior(cases, n=RESAMPLES)["per_bag"]

    def told(key: str, sign: bool = False) -> str:
        return number(inside[key], inside.get(f"{key}_low"), inside.get(f"{key}_high"), sign)

    return {
        "map": told("model"),
        "lesions of others": told("truth"),
        "map − lesions of others": told("difference", sign=True),
        "own mean map": told("own"),
        "map − own mean map": told("own_difference", sign=True),
        "map without its mean map": told("residual"),
    }


def faith_row(maps: Sequence[Prediction]) -> dict[str, str]:
    """How much earlier than in random order the prediction falls and rises, and how well the map finds lesions."""

    def gain(name: str, cases: Sequence[Prediction]) -> str:
        gains = {p.id: gain_over_random(p.meta["faithfulness"], name) for p in cases}

        def mean(drawn: Sequence[Prediction]) -> float:
            return float(np.mean([gains[p.id] for p in drawn]))

        found = bootstrap_ci(cases, mean, method="percentile", n=RESAMPLES)
        return number(found["value"], found["low"], found["high"], sign=True)

    positive = positive_cases(maps)
    found = bootstrap_ci(maps, "inst_auroc", pool="per_bag", n=RESAMPLES)
    return {
        "cases": str(len(maps)),
        "deletion gain": gain("deletion", maps),
        "insertion gain": gain("insertion", maps),
        "positive": str(len(positive)),
        "deletion gain in them": gain("deletion", positive),
        "insertion gain in them": gain("insertion", positive),
        "localization AUROC": number(found["value"], found["low"], found["high"]),
    }


def gain_over_random(curves: Mapping[str, Any], name: str) -> float:
    """Area between a curve of the map and that of random orders; positive where the map does better."""
    above = np.trapezoid(np.subtract(curves[name], curves["random"]), curves["removed"])
    return float(-above if name == "deletion" else above)


def publish(docs: Path, name: str, title: str, words: str, rows: list[dict[str, str]]) -> None:
    """A table as Markdown and CSV."""
    table = pd.DataFrame(rows)
    docs.mkdir(parents=True, exist_ok=True)
    table.to_csv(docs / f"certainty-{name}.csv", index=False)
    lines = [table.columns, ["---"] * len(table.columns), *table.fillna("").itertuples(index=False)]
    text = "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
    (docs / f"certainty-{name}.md").write_text(f"# {title}\n\n{words}\n\n{text}\n", encoding="utf-8")


TABLES: dict[str, tuple[str, str, Callable[[Sequence[Prediction]], dict[str, str]]]] = {
    "errors": (
        "Which calls are wrong?",
        "AUROC with which the uncertainty of a score, and the distance of the score from the threshold, tell wrong "
        "calls of instances from right ones; `both` divides the distance by the uncertainty. First among the instances "
        "of all cases, then of positive cases alone; always among the cases of one fold, whose model is one, averaged "
        "over the folds. The threshold of a fold is that of the best F1 on its validation cases. Area under the "
        "risk-coverage curve: lower is better. Differences are from the distance, their 95 % intervals from resampling "
        "patients, both alike. Models without uncertainty are not listed.",
        errors_row,
    ),
    "area": (
        "Area to read at 90 % sensitivity",
        "Share of instances flagged when at most 10 % of a patient's lesion instances may be missed on average; each "
        "patient is read at the threshold that the other patients give. Lower is better. `missed`: the share that was "
        "really missed there, averaged over patients with lesions. The scores come from several folds, whose models "
        "have trained on each other's test cases: an estimate of what the promise costs, not a promise. 95 % "
        "intervals: patients resampled.",
        area_row,
    ),
    "prior": (
        "Position prior beside the model",
        "Instance AUROC within cases, averaged over the cases with both kinds. 95 % intervals: patients resampled; "
        "differences are paired.",
        prior_row,
    ),
}
FAITHFULNESS = (
    "Area between the probability that the case is positive when instances are removed (deletion) or put in "
    "(insertion) in the order of the map, and in random order (mean of three); higher is more faithful. In all test "
    "cases of one fold, and in the positive ones among them. Localization: instance AUROC within cases, of the same "
    "maps. 95 % intervals: patients resampled."
)


def tables(studies: Sequence[Study], docs: Path) -> None:
    """Train what is missing, judge everything, write the tables; after every row, so that a stopped study shows."""
    rows: dict[str, list[dict[str, str]]] = {name: [] for name in (*TABLES, "faithfulness")}
    for study in studies:
        for name, variant in VARIANTS.items():
            for table, found in study.rows(name, variant).items():
                if found:
                    rows[table].append({"data": TITLES[study.name], "model": name, **dict(found)})
            write_tables(docs, rows)
            print(f"{study.name}: {name} is judged", flush=True)
        for name, variant in ((name, v) for name, v in VARIANTS.items() if v.explained):
            for method, maps in study.explained(variant):
                facts = {"data": TITLES[study.name], "model": name, "method": method}
                rows["faithfulness"].append({**facts, **faith_row(maps)})
            write_tables(docs, rows)
            print(f"{study.name}: {name} is explained", flush=True)


def write_tables(docs: Path, rows: Mapping[str, list[dict[str, str]]]) -> None:
    words = {name: (title, text) for name, (title, text, _) in TABLES.items()}
    words["faithfulness"] = ("Faithfulness of maps by method", FAITHFULNESS)
    for table in (table for table in words if rows[table]):
        publish(docs, table, *words[table], rows[table])


def synthetic(folder: Path) -> dict[str, Path]:
    """Manifests of the synthetic sets, written once."""
    makers = {"slides": partial(synthetic_slides, 60, size=(100, 300)), "scans": partial(synthetic_scans, 100)}
    found = {}
    for name, maker in makers.items():
        path = folder / name / "bags" / "manifest.csv"
        found[name] = path if path.exists() else write_synthetic(path.parent, maker(seed=1))
    return found


def publish_all(crchisto: Path | None, out: Path, docs: Path) -> None:
    """All tables, of the colon images (where their manifest is given) and of the synthetic sets."""
    manifests = {**synthetic(out), **({} if crchisto is None else {"crchisto": crchisto})}
    tables([Study(name, manifests[name].resolve(), out.resolve() / name) for name in SETS if name in manifests], docs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--crchisto", type=Path, help="manifest.csv of the prepared colon images; without: synthetic only"
    )
    parser.add_argument("--out", type=Path, default=Path("smmil-study") / "certainty", help="where runs are kept")
    parser.add_argument("--docs", type=Path, default=HERE / "docs" / "evidence", help="where tables go")
    args = parser.parse_args()
    publish_all(args.crchisto, args.out, args.docs)


if __name__ == "__main__":
    main()

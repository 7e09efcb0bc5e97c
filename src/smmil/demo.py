"""The demo: draw synthetic slides and CT scans, prepare, train, predict and evaluate them, and write reports."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from smmil.config import DataConfig, ModelConfig, TrainConfig, TrainingConfig
from smmil.encoders.table import encoder_info
from smmil.errors import DataError
from smmil.evaluate.bags import patients_in_words
from smmil.evaluate.folders import summary
from smmil.executors import Outcome, run_tasks
from smmil.files import write_json
from smmil.maps.canvas import limits_of
from smmil.maps.score_maps import side_by_side
from smmil.predict.cases import predict_run
from smmil.prediction import Prediction, load_predictions
from smmil.prepare.pipeline import plan, run
from smmil.prepare.recipe import Recipe
from smmil.report.document import write_report
from smmil.report.numbers import Picture, Section, leaders
from smmil.runtime import available_cores
from smmil.synthetic.ct import synthetic_ct_scans
from smmil.synthetic.slides import stained_slides
from smmil.train.loop import Progress
from smmil.train.run import train

MODELS = ("abmil", "sm_ap")
SLIDES, SCANS, SEED, SHOWN = 140, 72, 0, 6
# Chosen once, by what ABMIL needs to tell most slides apart (bag AUROC of 0.99 on 48 test slides), before SmAP was run.
# Later 160 slides became 140 and 50 epochs 20, to save time; both models had been seen by then.
PATCHES, LESION, TEST_SHARE = (30, 60), (0.1, 0.3), 0.3
# Chosen by ABMIL alone, by the test AUROC of three splits, of which the demo shows the first: 0.77 to 0.88 with
# contrast 1.0, 1.00 with 1.6 and with 2.2.
SLICES, CONTRAST = (16, 24), 1.6
EPOCHS = 20  # of the paper's 50: the training loss is below 0.02 by then
SLIDE_RECIPE = Recipe(kind="slide", tile_um=96.0, pixels=96, encoder_pixels=96)
SCAN_RECIPE = Recipe(kind="ct", encoder_pixels=96)
SLIDE_LEAD = (
    "Two models, the same slides, only slide labels for training. The slides are synthetic pyramids, tiled and encoded "
    "with an ImageNet network. ABMIL looks at each patch alone; SmAP smooths its attention over neighbouring patches. "
    "Judged on slides neither model has seen."
)
SCAN_LEAD = (
    "The same for CT: synthetic head scans as DICOM series, every slice an instance, only the scan's label for "
    "training. Judged on scans neither model has seen. The blood is drawn brighter (75 to 107 HU) than it usually is, "
    "so that ABMIL can classify these few scans: how hard the task is was chosen by ABMIL's result on them."
)


@dataclass(frozen=True)
class DemoResult:
    """Path of the page, and the metrics of each model on the test slides."""

    page: Path
    results: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class _Study:
    """Folder, test predictions and metrics of both models on one kind of image."""

    folder: Path
    test: dict[str, list[Prediction]]
    results: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class _Fit:
    """One model to train in a folder of the demo, and to predict with."""

    config: TrainConfig
    out: Path

    @property
    def name(self) -> str:
        return self.config.model.name


class _Notes(Progress):
    """Keeps the messages of a run in another process, to be shown in this one."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def message(self, text: str) -> None:
        self.texts.append(text)


def run_demo(out: str | Path, *, progress: Progress | None = None) -> DemoResult:
    """Compare ABMIL and SmAP on slides and on CT scans, two models at a time on two cores; resumes where it stopped.

    The settings are the paper's, but for the number of epochs.
    """
    out, progress = Path(out), progress or Progress()
    progress.message(f"drawing {SLIDES} synthetic slides")
    drawn = stained_slides(out / "data", SLIDES, seed=SEED, patches=PATCHES, lesion=LESION, workers=available_cores())
    labels = out / "ct" / "data" / "labels.csv"
    if not labels.exists():  # it is written last
        progress.message(f"drawing {SCANS} synthetic CT scans")
        synthetic_ct_scans(labels.parent, SCANS, seed=SEED, slices=SLICES, contrast=CONTRAST)
    slides = _prepared(out / "data" / "slides", drawn, SLIDE_RECIPE, out / "bags", progress)
    scans = _prepared(labels.parent / "scans", labels, SCAN_RECIPE, out / "ct" / "bags", progress)
    # so few scans need every step they can get
    _train_all([*_fits(slides, out, batch_size=4), *_fits(scans, out / "ct", batch_size=1)], progress)
    progress.message("drawing maps and writing the pages")
    _page(
        out / "ct.html",
        _study(out / "ct"),
        out / "ct" / "data" / "scans",
        "CT scans",
        SCAN_LEAD,
        _next_steps(folder="ct/", images="data/scans"),
    )
    steps, study = _next_steps("The same on CT scans: open `ct.html`"), _study(out)
    page = _page(out / "report.html", study, out / "data" / "slides", "slides", SLIDE_LEAD, steps)
    return DemoResult(page, study.results)


def _prepared(images: Path, labels: Path, recipe: Recipe, out: Path, progress: Progress) -> Path:
    """The manifest of the bags made from a folder of images."""
    todo = plan([images], out, recipe, labels=labels)
    progress.message(f"preparing {len(todo.jobs)} cases: tiles or slices through {todo.encoder}")
    done = run(todo, executor="processes", workers=available_cores())
    if done.failures or done.manifest is None:
        raise DataError(f"{out}: {len(done.failures)} cases could not be prepared, see failures.csv there")
    return done.manifest


def _fits(manifest: Path, out: Path, *, batch_size: int) -> list[_Fit]:
    """Both models on one kind of image."""
    training = TrainingConfig(threads=1, checkpoint_minutes=1, batch_size=batch_size, epochs=EPOCHS)
    data = DataConfig(manifest=str(manifest.resolve()), test_share=TEST_SHARE)
    configs = [TrainConfig(data=data, model=ModelConfig(name=name), training=training) for name in MODELS]
    return [_Fit(config, out.resolve()) for config in configs]


def _train_all(fits: list[_Fit], progress: Progress) -> None:
    """Train every model and predict with it, as many at a time as there are cores."""
    cores = available_cores()
    progress.message(f"training {' and '.join(MODELS)} on slides and on scans")

    def tell(outcome: Outcome[_Fit, list[str]]) -> None:
        fit = outcome.task
        for text in [*(outcome.value or ()), f"{fit.name} is trained, in {fit.out.name}/runs/{fit.name}"]:
            progress.message(text)

    for outcome in run_tasks(_train, fits, "processes" if cores > 1 else "serial", cores, tell):
        if not outcome.ok:
            raise DataError(f"{outcome.task.out / 'runs' / outcome.task.name}: {outcome.error}")


def _train(fit: _Fit) -> list[str]:
    """Train one model and predict validation and test cases; the messages on the way."""
    notes = _Notes()
    train(fit.config, fit.out / "runs" / fit.name, progress=notes)
    for part, folder in (("val", "validation"), ("test", "predictions")):
        predict_run(fit.out / "runs" / fit.name, out=fit.out / folder / fit.name, part=part)
    return notes.texts


def _study(out: Path) -> _Study:
    """The predictions of both models, and what they measure."""
    test = {name: load_predictions(out / "predictions" / name) for name in MODELS}
    validation = {name: load_predictions(out / "validation" / name) for name in MODELS}
    results = {name: summary(test[name], validation=validation[name], prior=False) for name in MODELS}
    write_json(out / "metrics.json", results)
    return _Study(out, test, results)


def _page(path: Path, study: _Study, images: Path, what: str, lead: str, next_steps: Section) -> Path:
    """The report of both models, with the demo's own sections."""
    plain, smooth = (study.results[name]["instance"]["positive_bags"]["auroc"] for name in MODELS)
    tested = study.test[MODELS[0]]
    verdict = "finds the lesion better than" if smooth > plain else "does not find the lesion better than"
    notes = [
        *leaders(study.results),
        f"Within positive {what} SmAP {verdict} ABMIL here (AUROC {smooth:.3f} against {plain:.3f}).",
        f"One seed, one split, {len(tested)} test {what} ({patients_in_words(tested)}): a few hundredths, or more, "
        "may be chance.",
        f"The {what} are synthetic: lesions are connected, which suits smoothing.",
    ]
    return write_report(
        [study.folder / "predictions" / name for name in MODELS],
        path,
        slides=images,
        validation=[study.folder / "validation" / name for name in MODELS],
        title=f"smmil demo: ABMIL and SmAP on {what}",
        lead=lead,
        sections=[
            Section(
                "Maps next to the truth",
                ["Each model has one scale of colours for all cases."],
                pictures=list(_maps(study)),
            ),
            Section("Which model leads", items=notes),
            next_steps,
        ],
        licences={SLIDE_RECIPE.encoder: encoder_info(SLIDE_RECIPE.encoder).licence},
    ).page


def _maps(study: _Study) -> Iterator[Picture]:
    """Truth and both maps for the first positive test cases and one negative, chosen by name, not by success."""
    first = study.test[MODELS[0]]
    positive = [p.id for p in first if p.y == 1][: SHOWN - 1]
    negative = [p.id for p in first if p.y == 0][:1]
    scores = {name: np.concatenate([p.scores.ravel() for p in found]) for name, found in study.test.items()}
    limits = {name: limits_of(values, None)[:2] for name, values in scores.items()}  # so that healthy tissue looks it
    for case in positive + negative:
        maps = {name: next(p for p in found if p.id == case) for name, found in study.test.items()}
        path = study.folder / "maps" / f"{case}.png"
        side_by_side(maps, path, limits=limits)
        chances = ", ".join(f"{name} {p.positive_prob:.2f}" for name, p in maps.items())
        kind = "With a lesion" if case in positive else "Without a lesion"
        caption = f"{kind}. Probability of a lesion: {chances}."
        yield Picture(path, f"{case}: {caption}", f"Score maps of case {case}. {caption}")


def _next_steps(*first: str, folder: str = "", images: str = "data/slides") -> Section:
    view = f"smmil view {folder}predictions/sm_ap --slides {folder}{images}"
    steps = [
        *first,
        f"Look at the images with their maps in the browser: `{view}`",
        "Your own slides or scans, with a table `id,label`: `smmil prepare images --labels labels.csv --out study`",
        "Train: `smmil train --manifest study/manifest.csv --model sm_ap --out runs/mine`",
        "Predict: `smmil predict runs/mine --out mine`, and look: `smmil report mine --slides images --out mine.html`",
    ]
    return Section("What to do next", ["Commands are for a terminal in the folder of this page."], steps, ordered=True)

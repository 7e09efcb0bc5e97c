"""The whole road once, on synthetic slides: train, predict, evaluate, map, report."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smmil.config import DataConfig, ModelConfig, TrainConfig, TrainingConfig
from smmil.data.manifest import Manifest
from smmil.data.synthetic import synthetic_slides, write_synthetic
from smmil.errors import DataError
from smmil.evaluate import summary
from smmil.files import write_json
from smmil.maps import side_by_side
from smmil.predict import predict_run
from smmil.prediction import Prediction, load_predictions
from smmil.report import comparison_page
from smmil.train import Progress, train

MODELS = ("abmil", "sm_ap")
SLIDES, SEED, SHOWN = 150, 0, 6


@dataclass(frozen=True)
class DemoResult:
    """Where the page lies and what was measured on the test slides, by model."""

    page: Path
    results: dict[str, dict[str, Any]]


def run_demo(out: str | Path, *, progress: Progress | None = None) -> DemoResult:
    """Train ABMIL and SmAP with the paper's settings on the same slides and compare them; resumes where it stopped.

    The difficulty is the default of the synthetic set. It was fixed before any model with Sm was run on it.
    """
    out, progress = Path(out), progress or Progress()
    manifest = _slides(out / "data", progress)
    for name in MODELS:
        progress.said(f"training {name}")
        train(_config(manifest, name), out / "runs" / name, progress=progress)
        for part, folder in (("val", "validation"), ("test", "predictions")):
            predict_run(out / "runs" / name, out=out / folder / name, part=part)
    test = {name: load_predictions(out / "predictions" / name) for name in MODELS}
    validation = {name: load_predictions(out / "validation" / name) for name in MODELS}
    results = {name: summary(test[name], validation=validation[name]) for name in MODELS}
    write_json(out / "metrics.json", results)
    progress.said("drawing maps and writing the page")
    page = comparison_page(
        out / "report.html",
        results=results,
        maps=_maps(out / "maps", test),
        notes=_notes(results),
        next_steps=_next_steps(out),
        title="smmil demo: ABMIL and SmAP on synthetic slides",
        lead="Two models, the same slides, only slide labels for training. ABMIL looks at each patch alone; SmAP "
        "smooths its attention over neighbouring patches. Judged on slides neither model has seen.",
    )
    return DemoResult(page, results)


def _config(manifest: Path, model: str) -> TrainConfig:
    return TrainConfig(
        data=DataConfig(manifest=str(manifest)),
        model=ModelConfig(name=model),
        training=TrainingConfig(threads=2, checkpoint_minutes=1),
    )


def _slides(folder: Path, progress: Progress) -> Path:
    """The manifest of the demo's slides, written unless all of them are there and sound."""
    manifest = folder / "manifest.csv"
    try:
        Manifest.read(manifest).check_files()
    except DataError:
        progress.said(f"writing {SLIDES} synthetic slides to {folder}")
        write_synthetic(folder, synthetic_slides(SLIDES, seed=SEED))
    return manifest


def _maps(folder: Path, predictions: dict[str, list[Prediction]]) -> list[tuple[str, str, Path]]:
    """Truth and both maps for the first positive test slides and one negative, chosen by name, not by success."""
    cases = {p.id: {name: found[i] for name, found in predictions.items()} for i, p in enumerate(predictions["abmil"])}
    positive = [i for i, found in cases.items() if found["abmil"].y == 1][: SHOWN - 1]
    negative = [i for i, found in cases.items() if found["abmil"].y == 0][:1]
    drawn = []
    for case in positive + negative:
        path = folder / f"{case}.png"
        side_by_side(cases[case], path)
        chances = ", ".join(f"{name} {p.positive_prob:.2f}" for name, p in cases[case].items())
        kind = "with a lesion" if case in positive else "without a lesion"
        drawn.append((case, f"A slide {kind}. Probability of a lesion: {chances}.", path))
    return drawn


def _notes(results: dict[str, dict[str, Any]]) -> list[str]:
    plain, smooth = (results[name]["instance"]["positive_bags"]["auroc"] for name in MODELS)
    verdict = (
        f"Within positive slides SmAP finds the lesion better than ABMIL here (AUROC {smooth:.3f} against {plain:.3f})."
        if smooth > plain
        else f"Within positive slides SmAP does not find the lesion better than ABMIL here ({smooth:.3f} against "
        f"{plain:.3f})."
    )
    return [
        verdict,
        "One seed, one split, a few dozen test slides: differences of a few hundredths may be chance.",
        "The slides are synthetic: lesions are connected and lone look-alikes are planted, which suits smoothing.",
    ]


def _next_steps(out: Path) -> list[str]:
    run = out / "runs" / "sm_ap"
    return [
        f"Look into a bag: smmil inspect {out / 'data' / 'bags' / 'slide_0000.h5'}",
        f"Train another model: smmil train --manifest {out / 'data' / 'manifest.csv'} --model sm_tap --out runs/sm_tap",
        f"Predict with a trained one: smmil predict {run} --out predictions/sm_ap --part test",
        "Your own features: write a table with the columns id, path, label (and patient as group); see docs/data.md",
    ]

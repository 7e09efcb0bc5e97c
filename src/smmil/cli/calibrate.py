"""smmil calibrate"""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from smmil.cli.options import Column

if TYPE_CHECKING:
    from smmil.prediction import Prediction

Kind = StrEnum("Kind", "instances lesions patients")
Method = StrEnum("Method", "platt isotonic none")


def calibrate(
    predictions: Annotated[
        list[Path], Argument(help="Predictions (.npz) of held-out cases with marked lesions: folder or files.")
    ],
    out: Annotated[Path, Option(help="The file to write.")] = Path("calibration.json"),
    target: Annotated[float, Option(help="Largest share that may be missed, such as 0.1.")] = 0.1,
    kind: Annotated[
        Kind, Option(help="What may be missed: lesion instances, whole lesions, or patients with a missed lesion.")
    ] = Kind.instances,
    delta: Annotated[
        float | None,
        Option(help="Promise it with a confidence of 1 - delta (learn-then-test) instead of on average."),
    ] = None,
    probabilities: Annotated[
        Method, Option(help="How probabilities of cases and instances are calibrated.")
    ] = Method.platt,
    run: Annotated[
        Path | None,
        Option(help="Run that trained the model: cases it has seen are refused by id and content, and other models."),
    ] = None,
    column: Column = None,
    force: Annotated[
        bool, Option("--force", help="Go on with cases that trained or selected the model; nothing is promised then.")
    ] = False,
) -> None:
    """Find the threshold at which a model keeps a promise: at most this share of the lesions is missed.

    From predictions of annotated cases that neither trained nor selected the model. Patients are the unit.

    [bold]Examples[/bold]

      smmil calibrate predictions_test --target 0.1 --out calibration.json

      smmil calibrate predictions_test --kind lesions --target 0.1 --delta 0.05

    Go on with: smmil predict runs/first --manifest new.csv --calibration calibration.json --out predictions_new
    """
    from smmil.evaluate import calibration
    from smmil.evaluate.conformal import area_to_read
    from smmil.prediction import load_predictions

    cases = load_predictions(predictions)
    seen, unchecked = (set(), None) if run is None else _compared(run, cases)
    made = calibration.calibrate(
        cases,
        kind=kind.value,
        target=target,
        delta=delta,
        probabilities=probabilities.value,
        column=column,
        seen=seen,
        unchecked=unchecked,
        force=force,
    )
    made.save(out)
    print(f"{out}: threshold {made.threshold!r}, {made.patients} patients with lesions, {made.cases} cases")
    print(f"{made.sentence} {made.conditions}".strip())
    if kind is Kind.instances and column is None:
        for positive, words in ((True, "positive"), (False, "negative")):
            area = area_to_read(cases, positive=positive, target=target)
            if area == area:
                print(f"to read in {words} cases: {area:.1%} of the instances (threshold of the other patients)")
    for note in made.notes:
        print(f"note: {note}")


def _compared(run: Path, cases: "list[Prediction]") -> tuple[set[str], list[str] | None]:
    from smmil.predict.cases import check_against_run

    return check_against_run(run, cases)

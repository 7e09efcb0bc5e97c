"""smmil suggest"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option, echo

from smmil.cli.options import Column, _check_threshold
from smmil.errors import DataError

if TYPE_CHECKING:
    import numpy as np

    from smmil.evaluate.suggestion import Region
    from smmil.prediction import Prediction


def suggest(
    predictions: Annotated[list[Path], Argument(help="Predictions (.npz) of training cases: folder or files.")],
    out: Annotated[Path, Option(help="Folder for the suggestions, and for your marks.")] = Path("marks_wanted"),
    patches: Annotated[int, Option(help="Budget: how many patches you are willing to look at.")] = 50,
    region: Annotated[int, Option(help="Most patches of one region.")] = 4,
    threshold: Annotated[
        float | None, Option(help="Score that parts lesion from not; else the calibrated one, else the middle.")
    ] = None,
    column: Column = None,
    manifest: Annotated[
        Path | None, Option(help="Table of the bags: regions are then chosen to look unlike each other.")
    ] = None,
    corrections: Annotated[
        Path | None, Option(help="Marks that you have made already (folder or table): not suggested again.")
    ] = None,
    slides: Annotated[
        Path | None, Option(help="Folder of the slides, named by id, where predictions do not say where theirs begin.")
    ] = None,
) -> None:
    """Say where a few marks of an expert would teach the model most: uncertain places and likely lesions.

    The loop: predict the training cases, let suggest choose regions, mark them, train again with the marks.

      smmil predict runs/first --part train --out predictions_train

      smmil suggest predictions_train --manifest bags/manifest.csv --patches 50 --out marks_wanted

    Then mark, in one of three ways. QuPath: drag marks_wanted/ID.geojson onto the slide, give each region the class
    Tumor (or Lesion) or Normal (or "not lesion"), correct its outline if need be, and export over the file. Viewer:
    smmil view predictions_train --slides slides/, mark patches with the two buttons, and save the file into the folder.
    Spreadsheet: write lesion or not lesion into the column label of marks_wanted/marks.csv. What you leave open is no
    mark.

      smmil train --manifest bags/manifest.csv --model sm_ap --set data.corrections=marks_wanted --set
      training.instance_loss=0.3 --out runs/second

    Cases labelled negative are not suggested: none of their patches is a lesion. Only training cases may teach.
    """
    from smmil.evaluate.probability import calibrated_probability
    from smmil.evaluate.suggestion import suggest_regions
    from smmil.exports.instances import write_suggestions
    from smmil.images.matching import find_case_images
    from smmil.prediction import load_predictions

    _check_threshold(threshold)
    cases = {p.id: p for p in load_predictions(predictions)}
    held_out = [p.id for p in cases.values() if (p.meta.get("split") or {}).get("part") in ("val", "test")]
    if held_out:
        echo(f"note: {len(held_out)} cases validate or test ({held_out[0]}, …): left out, only training cases teach")
        cases = {id_: p for id_, p in cases.items() if id_ not in held_out}
    if not cases:
        raise DataError("no training cases; predict them: smmil predict RUN --part train --out predictions_train")
    features = None if manifest is None else _features(manifest, cases)
    regions = suggest_regions(
        list(cases.values()),
        patches=patches,
        region=region,
        threshold=threshold,
        column=column,
        marked=None if corrections is None else _marked(corrections, cases),
        features=features,
    )
    if not regions:
        raise DataError("nothing is left to be marked in these cases")
    images = {} if slides is None else find_case_images(slides, list(cases))
    written = write_suggestions(out, regions, cases, {id_: one.path for id_, one in images.items()})
    count, where = sum(len(one.instances) for one in regions), len({one.id for one in regions})
    echo(f"{count} patches in {len(regions)} regions of {where} cases are worth marking: {written[0]}")
    echo(_expected(regions, count, all(calibrated_probability(p, column) is not None for p in cases.values())))
    if len(written) > 1:
        echo(f"for QuPath: {len(written) - 1} files such as {written[1]}")
    echo(f"then: smmil train … --set data.corrections={out} --set training.instance_loss=0.3")


def _expected(regions: "list[Region]", count: int, calibrated: bool) -> str:
    """What was chosen and how many lesions the model expects in it, which is no promise."""
    from smmil.evaluate.suggestion import LIKELY

    likely = sum(len(one.instances) for one in regions if one.why == LIKELY)
    lesions = round(sum(one.lesions for one in regions))
    how = "by its calibrated probabilities" if calibrated else "as it scores them; nobody has calibrated it"
    chosen = f"{count - likely} of them are uncertain, {likely} the most likely lesions of their cases"
    chosen = chosen if likely else "All of them are uncertain"
    return (
        f"{chosen}; the model takes about {lesions} of the {count} for lesions ({how}). Marks of both kinds teach most"
    )


def _features(manifest: Path, cases: "dict[str, Prediction]") -> "dict[str, np.ndarray]":
    """What the instances of these cases look like, by id."""
    from smmil.data.manifest import Manifest

    table, found = Manifest.read(manifest), {}
    for id_, prediction in cases.items():
        found[id_] = table.bag(id_, instance_labels=False).x.float().numpy()
        if len(found[id_]) != prediction.n:
            raise DataError(f"{id_}: {len(found[id_]):,} instances in {manifest}, {prediction.n:,} in the prediction")
    return found


def _marked(corrections: Path, cases: "dict[str, Prediction]") -> "dict[str, np.ndarray]":
    """Labels of the instances that are marked already, by id."""
    from smmil.annotations.marks import find_marks

    found = {}
    for id_, marks in find_marks(corrections, cases)[0].items():
        if (p := cases.get(id_)) is not None:
            bounds = (p.meta.get("slide") or {}).get("bounds") or (0, 0)
            found[id_] = marks.labels(p.n, p.coords, None if p.frame is None else p.frame.patch, bounds[:2])
    return found

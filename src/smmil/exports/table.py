"""One row per instance: for spreadsheets, R, pandas and everything else that reads tables."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smmil.exports.case import ExportCase
from smmil.exports.geometry import SlideFacts, slide_facts
from smmil.files import replacing
from smmil.spreadsheet import inert

if TYPE_CHECKING:
    from pandas import DataFrame


def write_csv(case: ExportCase, path: Path) -> None:
    """Write the table as CSV (UTF-8); provenance is repeated in every row, since CSV has no header for it.

    Texts that a spreadsheet would compute begin with ' instead.
    """
    table = instance_table(case)
    for key, value in {"bag": case.id, **case.facts}.items():
        table[key] = inert(value)
    with replacing(path) as temporary:
        table.to_csv(temporary, index=False, lineterminator="\n", encoding="utf-8")


def write_parquet(case: ExportCase, path: Path) -> None:
    """Write the table as Parquet; provenance is JSON under the key `smmil` of the file's metadata."""
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.Table.from_pandas(instance_table(case), preserve_index=False)
    about = {**case.facts, "case": case.id, "threshold": case.threshold}
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), b"smmil": json.dumps(about).encode()})
    with replacing(path) as temporary:
        parquet.write_table(table, temporary)


def instance_table(case: ExportCase) -> "DataFrame":
    """bag, x, y(, z), width, height, score, probability, label; then percentile, physical places and bounds.

    x, y and z are the prediction's own coordinates: level-0 pixels of a slide, slices of a scan counted from the foot.
    What is not known is empty: the label of an unlabelled instance, the probability behind an attention score, the
    places of a case without coordinates.
    """
    from pandas import DataFrame

    prediction = case.prediction
    labels = np.full(prediction.n, -1) if prediction.y_inst is None else prediction.y_inst
    columns: dict[str, Any] = {
        "bag": case.id,
        **_places(case),
        "score": case.score,
        "probability": case.probability,
        "label": DataFrame({"y": labels})["y"].astype("Int64").mask(labels < 0),
        "percentile": case.percentile,
        "case_probability": prediction.probs[-1] if len(prediction.probs) < 3 else np.nan,
    }
    if prediction.scores.shape[1] > 1:
        columns |= {f"score_{k}": column for k, column in enumerate(prediction.scores.T)}
    if case.positive is not None:
        columns["positive"] = case.positive
    return DataFrame({**columns, **_physical(case, columns)}, index=range(prediction.n))


def _places(case: ExportCase) -> dict[str, Any]:
    if case.prediction.coords is None:
        case.notes.append("the prediction stores no coordinates: the places of its instances are empty")
        return dict.fromkeys(("x", "y", "width", "height"), np.nan)
    return _slide_columns(case) if case.axes == 2 else _scan_columns(case)


def _slide_columns(case: ExportCase) -> dict[str, Any]:
    coords, frame = case.prediction.coords, case.prediction.frame
    assert coords is not None  # Case.axes saw to it
    width, height = (np.nan, np.nan) if frame is None else (frame.patch * 2)[:2]
    return {"x": coords[:, 0], "y": coords[:, 1], "width": width, "height": height}


def _scan_columns(case: ExportCase) -> dict[str, Any]:
    """Slices have no x and y of their own; with the image at hand they are as wide and high as it is."""
    coords, frame = case.prediction.coords, case.prediction.frame
    assert coords is not None  # Case.axes saw to it
    if case.axes == 3:
        width, height, depth = (np.nan,) * 3 if frame is None else (frame.patch * 3)[:3]
        places = dict(zip("xyz", coords.T, strict=True))
        return {**places, "width": width, "height": height, "depth": depth}
    if case.image is None:
        return {"x": np.nan, "y": np.nan, "z": coords[:, 0], "width": np.nan, "height": np.nan}
    _, rows, columns = case.volume("a table").shape
    return {"x": 0, "y": 0, "z": coords[:, 0], "width": columns, "height": rows}


def _physical(case: ExportCase, columns: dict[str, Any]) -> dict[str, Any]:
    """Places in µm or mm when the spacing is known, and the bounds of a slide, which some programs count from."""
    if case.prediction.coords is None:
        return {}
    facts = slide_facts(case) if case.axes == 2 else SlideFacts()
    bounds = facts.bounds or ()
    return {**_measured(case, columns, facts), **dict(zip(("bounds_x", "bounds_y"), bounds, strict=False))}


def _measured(case: ExportCase, columns: dict[str, Any], facts: SlideFacts) -> dict[str, Any]:
    """Places and sizes in the unit of the coordinates; those that count pixels of a slide take the size of these."""
    frame = case.prediction.frame
    if frame is None or (frame.spacing is None and facts.mpp is None):
        return {}
    spacing, unit = ((facts.mpp,), "um") if frame.spacing is None else (frame.spacing, frame.unit)
    names = {1: "z", 2: "xy", 3: "xyz"}[case.axes]
    sizes = {"x": "width", "y": "height", "z": "depth"}
    found: dict[str, Any] = {}
    for name, step in zip(names, spacing * len(names), strict=False):
        found[f"{name}_{unit}"] = columns[name] * step
        if case.axes > 1:
            found[f"{sizes[name]}_{unit}"] = columns[sizes[name]] * step
    return found

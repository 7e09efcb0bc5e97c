"""The image and the features of a case: found in tables made at the start, and checked to be its own."""

from collections.abc import Sequence
from pathlib import Path

from smmil.errors import DataError
from smmil.images import Slide, Volume
from smmil.prediction import Prediction
from smmil.report.cases import ReportCase
from smmil.report.matching import refuse_other_scan, refuse_other_slide, slice_numbers


def refuse_foreign_slide(prediction: Prediction, slide: Slide) -> None:
    """An error when the prediction remembers another size, scanned area or pixel size."""
    refuse_other_slide(ReportCase(prediction.id, {}, [], [prediction]), slide)


def refuse_foreign_scan(prediction: Prediction, volume: Volume) -> None:
    """An error when the scan lacks slices that are instances, or its slices lie at other distances."""
    assert prediction.coords is not None  # a scan has coordinates
    if prediction.coords.shape[1] == 1:
        frame = prediction.frame
        known = frame is not None and frame.spacing is not None
        facts = {"spacing": frame.spacing[0], "unit": frame.unit} if known else {"spacing": None, "unit": "px"}  # type: ignore[union-attr,index]
        slice_numbers(ReportCase(prediction.id, facts, [], [prediction]), volume)
    elif prediction.coords[:, 2].max() >= len(volume):
        raise DataError(f"{prediction.id}: has instances beyond the {len(volume)} slices of this scan; is it its own?")
    else:
        refuse_other_scan(ReportCase(prediction.id, {}, [], [prediction]), volume)


def find_features(manifest: str | Path, ids: Sequence[str]) -> dict[str, Path]:
    """Feature file of each case, as the columns id and path of a manifest say."""
    import pandas as pd

    manifest = Path(manifest)
    try:
        parquet = manifest.suffix.lower() == ".parquet"
        table = pd.read_parquet(manifest) if parquet else pd.read_csv(manifest, dtype=str, encoding="utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"--bags {manifest}: no such file; give the manifest.csv that smmil prepare wrote") from None
    except (OSError, ValueError, LookupError) as problem:
        cause = " ".join(str(problem).split())
        raise DataError(f"--bags {manifest}: not readable as a table ({cause}); give rows of id,path") from None
    missing = [name for name in ("id", "path") if name not in table.columns]
    if missing:
        raise DataError(f"--bags {manifest}: column {missing[0]!r} is missing; a manifest has id and path")
    rows = table[["id", "path"]].dropna().astype(str)
    wanted = set(ids)
    return {id_: manifest.parent / path for id_, path in rows.itertuples(index=False, name=None) if id_ in wanted}

"""smmil source"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

Name = StrEnum("Name", "camelyon16 panda rsna_ich crchisto folder")


def source(
    name: Annotated[Name, Argument(help="The data set.")],
    root: Annotated[Path, Argument(help="The folder it was downloaded to.")],
    out: Annotated[Path, Option(help="Folder for labels.csv and source.json.")],
    split: Annotated[Path | None, Option(help="Table id,split; else a test set is drawn and marked so.")] = None,
    patients: Annotated[Path | None, Option(help="PANDA: table image_id,patient.")] = None,
    task: Annotated[str | None, Option(help="PANDA: cancer or isup.")] = None,
    table: Annotated[Path | None, Option(help="folder: table id,label of the images.")] = None,
    annotations: Annotated[Path | None, Option(help="folder: annotation files named like the images.")] = None,
    seed: Annotated[int | None, Option(help="Seed of a split that is drawn.")] = None,
    allow_missing: Annotated[bool, Option(help="Go on with what is there; the rest is listed.")] = False,
) -> None:
    """Check a public data set that you downloaded and write the table that `smmil prepare --labels` takes.

    [bold]Examples[/bold]

      smmil source camelyon16 ~/CAMELYON16 --out c16

      smmil source panda ~/PANDA --split partition.csv --out panda

      smmil source folder slides --table labels.csv --annotations xml --out study
    """
    from collections import Counter

    from smmil.data.sources import write_source
    from smmil.files import read_json

    given: dict[str, Any] = {"split": split, "patients": patients, "task": task, "table": table}
    given |= {"annotations": annotations, "seed": seed}
    options = {option: value for option, value in given.items() if value is not None}
    manifest = write_source(name.value, root, out, allow_missing=allow_missing, **options)
    about = read_json(out / "source.json")
    counted = Counter("none" if label is None else str(label) for label in manifest.labels.values())
    labels = ", ".join(f"label {label}: {count}" for label, count in sorted(counted.items()))
    print(f"{out / 'labels.csv'}: {len(manifest)} cases ({labels}); split {about['split']}")
    for remark in (*about["missing"], *about["notes"]):
        print(f"note: {remark}")

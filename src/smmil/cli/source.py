"""smmil source"""

from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from smmil.cli.options import Classes, IdColumn, LabelColumn, PatientColumn

if TYPE_CHECKING:
    from smmil.data.manifest import Manifest

Name = StrEnum("Name", "camelyon16 panda rsna_ich crchisto folder patches clam stamp torchmil features")

_IMAGES = "Downloaded data sets and folders of images"
_PATCH_FILES = "Patch files"
_FEATURES = "Features of others"


def source(
    name: Annotated[Name, Argument(help="The data set, or whose features and tables these are.")],
    root: Annotated[Path, Argument(help="Its folder; patches: also a table of them.")],
    out: Annotated[Path, Option(help="Folder for labels.csv and source.json; of features for manifest.csv.")],
    split: Annotated[
        Path | None, Option(rich_help_panel=_IMAGES, help="Table id,split; else a test set is drawn and marked so.")
    ] = None,
    patients: Annotated[Path | None, Option(rich_help_panel=_IMAGES, help="PANDA: table image_id,patient.")] = None,
    task: Annotated[str | None, Option(rich_help_panel=_IMAGES, help="PANDA: cancer or isup.")] = None,
    table: Annotated[
        Path | None, Option(help="Table of images (id,label), patches (path,x,y,patient,label), or features.")
    ] = None,
    slides: Annotated[
        Path | None,
        Option(rich_help_panel=_FEATURES, help="stamp: table PATIENT,FILENAME; --table is its table of patients."),
    ] = None,
    label: Annotated[
        str | None, Option(rich_help_panel=_FEATURES, help="stamp: column of the table of patients that is the label.")
    ] = None,
    classes: Classes = None,
    id_column: IdColumn = None,
    label_column: LabelColumn = None,
    patient_column: PatientColumn = None,
    encoder: Annotated[
        str | None, Option(rich_help_panel=_FEATURES, help="torchmil: which features_<encoder>; else all.")
    ] = None,
    labels: Annotated[
        Path | None,
        Option(rich_help_panel=_PATCH_FILES, help="patches: table id,label of the cases; else any positive patch."),
    ] = None,
    pattern: Annotated[
        str | None,
        Option(rich_help_panel=_PATCH_FILES, help="patches: form of the file names, with groups id, x, y, label."),
    ] = None,
    step: Annotated[
        int | None, Option(rich_help_panel=_PATCH_FILES, help="patches: pixels per unit, where x and y count patches.")
    ] = None,
    annotations: Annotated[
        Path | None, Option(rich_help_panel=_IMAGES, help="folder: annotation files named like the images.")
    ] = None,
    seed: Annotated[int | None, Option(rich_help_panel=_IMAGES, help="Seed of a split that is drawn.")] = None,
    allow_missing: Annotated[
        bool, Option(rich_help_panel=_IMAGES, help="Go on with what is there; the rest is listed.")
    ] = False,
) -> None:
    """Check a data set that you have and write the table that `smmil prepare --labels` takes.

    For features that exist already (clam, stamp, torchmil; features: of anybody, TRIDENT too), write the manifest
    that `smmil train` takes.

    [bold]Examples[/bold]

      smmil source camelyon16 ~/CAMELYON16 --out c16

      smmil source panda ~/PANDA --split partition.csv --out panda

      smmil source folder slides --table labels.csv --annotations xml --out study

      smmil source patches IDC_regular_ps50_idx5 --out idc

      smmil prepare idc/slides --labels idc/labels.csv --out study

      smmil source clam features --table dataset.csv --split splits_0.csv --class normal --class tumor --out study

      smmil source stamp features/ctranspath --table clini.csv --slides slides.csv --label MSI --out study

      smmil source torchmil Camelyon16_MIL --out camelyon16

      smmil source features trident/20x_256px_0px_overlap/features_uni_v1 --table labels.csv --out study
    """
    from smmil.data.foreign_tables import PROJECTS, write_foreign_manifest, write_torchmil
    from smmil.data.sources import write_source
    from smmil.files import read_json

    given: dict[str, Any] = {"split": split, "patients": patients, "task": task, "table": table}
    given |= {"annotations": annotations, "seed": seed, "labels": labels, "pattern": pattern, "step": step}
    given |= {"slides": slides, "label": label, "classes": classes or None, "encoder": encoder}
    given |= {"id_column": id_column, "label_column": label_column, "patient_column": patient_column}
    options = {option: value for option, value in given.items() if value is not None}
    if name.value == "torchmil":
        for place, (made, others) in write_torchmil(root, out, allow_missing=allow_missing, **options).items():
            _tell(place, made, others)
        return
    if name.value in PROJECTS:
        made, others = write_foreign_manifest(name.value, root, out, **options)
        _tell(out / "manifest.csv", made, {file: f"files left out: {reason}" for file, reason in others.items()})
        return
    manifest = write_source(name.value, root, out, allow_missing=allow_missing, **options)
    about = read_json(out / "source.json")
    print(f"{out / 'labels.csv'}: {len(manifest)} cases ({_counted(manifest)}); split {about['split']}")
    for remark in (*about["missing"], *about["notes"]):
        print(f"note: {remark}")
    places = {"patches": out / "slides", "rsna_ich": out / "scans", "crchisto": root / "png"}
    points = f"--kind points --points {out / 'points.csv'} " if name.value == "crchisto" else ""
    labels_here = f"--labels {out / 'labels.csv'}"
    print(f"next: smmil prepare {places.get(name.value, root)} {points}{labels_here} --out {out / 'study'}")


def _tell(place: Path, made: "Manifest", remarks: dict[str, str]) -> None:
    """What was written, remarks on files or bags by kind with the first names, and how to go on."""
    print(f"{place}: {len(made)} cases ({_counted(made)})")
    for remark, number in Counter(remarks.values()).most_common():
        print(f"note: {number} {remark} (such as {next(Path(k).name for k, v in remarks.items() if v == remark)})")
    if "group" not in made.table:
        print("note: patients are not known: every case counts as its own patient")
    bare = next((id_ for id_ in made.ids if made.path_of(id_).suffix == ".pt"), None)
    if bare is not None and made.bag(bare, verify=False, instance_labels=False).coords is None:
        print(
            f"note: {bare} has no coordinates: maps, and models with Sm or a graph, need them (CLAM: keep h5_files "
            "beside pt_files)"
        )
    print(f"next: smmil train --manifest {place} --model sm_ap --out run")


def _counted(manifest: "Manifest") -> str:
    """How many cases have each label."""
    counted = Counter("none" if label is None else str(label) for label in manifest.labels.values())
    return ", ".join(f"label {label}: {count}" for label, count in sorted(counted.items()))

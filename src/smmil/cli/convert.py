"""smmil convert"""

import sys
from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from smmil.cli.options import _CaseBar, _exit_on_failures, _right_verb

ConvertTarget = StrEnum("ConvertTarget", "native trident clam stamp torchmil")


def convert(
    source: Annotated[Path, Argument(help="A feature file, a .zarr store, or a folder of them.")],
    to: Annotated[ConvertTarget, Option("--to", help="Format to write.")],
    out: Annotated[Path, Option(help="Folder for the result; files of others in it are never overwritten.")],
    mpp: Annotated[float | None, Option(help="Micrometres per level-0 pixel, if the files do not say.")] = None,
    encoder: Annotated[str | None, Option(help="Name of the encoder, if the files do not say.")] = None,
    graph: Annotated[
        str | None, Option(help="To native: neighbours are knn, knn:8, radius:900 or grid from now on.")
    ] = None,
    labels: Annotated[Path | None, Option(help="Table id,label, for torchmil's folder of labels.")] = None,
) -> None:
    """Turn feature files of TRIDENT, CLAM, STAMP, torchmil, LazySlide or WSInfer into those of another project.

    Cases that are there already with the same content are kept. Instance labels that a manifest.csv near the files
    names are taken along. What the target format cannot hold is listed in convert_notes.csv; cases that failed are
    listed in convert_failures.csv, and the exit code is 3.

    [bold]Examples[/bold]

      smmil convert clam_features --to native --out bags

      smmil convert stamp_features --to trident --mpp 0.25 --out trident

      smmil convert sampled_patches --to native --graph knn --out bags

      smmil convert bags --to torchmil --labels labels.csv --out torchmil
    """
    from smmil.data.foreign_tables import ManifestLabels, read_labels
    from smmil.formats.convert import convert as convert_files

    found = ManifestLabels(source)
    known = read_labels(labels) if labels else {}
    _refuse_other_files(source, out)
    with _CaseBar("converting") as bar:
        options: dict[str, Any] = {"mpp": mpp, "encoder": encoder, "labels": known, "beside": found}
        options["graph"] = None if graph is None else _graph_rule(graph)
        done = convert_files(source, to=to.value, out=out, progress=bar.at, **options)
    print(f"{out}: {len(done.written)} written, {len(done.kept)} there already, {len(done.failed)} failed")
    if found.manifest is not None:
        print(f"instance labels: taken from the files that {found.manifest} names")
    _print_label_notes(known, done.labels, labels, None if to is ConvertTarget.torchmil else out / "convert_labels.csv")
    for note, cases in Counter(note for _, note in done.notes).most_common():
        print(f"{note} ({cases} {'case' if cases == 1 else 'cases'})")
    for reason, files in Counter(done.others.values()).most_common():
        print(f"not converted: {files} {'file' if files == 1 else 'files'}, {reason}")
    _exit_on_failures(done.failed.values(), out / "convert_failures.csv")


def _graph_rule(text: str) -> dict[str, Any]:
    """The rule that knn, knn:8, radius:900 or grid means."""
    from smmil.errors import ConfigError

    kind, _, number = text.partition(":")
    options = {"knn": ("k", int), "radius": ("radius", float)}
    if not number:
        return {"kind": kind}
    try:
        name, read = options[kind]
        return {"kind": kind, name: read(number)}
    except (KeyError, ValueError):
        raise ConfigError(f"--graph {text}: expected knn, knn:8, radius:900 or grid") from None


def _refuse_other_files(source: Path, out: Path) -> None:
    """Slides, scans and predictions are sent to their verb."""
    from smmil.errors import DataError
    from smmil.formats.inspection import find_bags, find_or_none

    if not source.exists() or (find_or_none(source) if source.is_file() else find_bags(source, out)[0]):
        return
    if advice := _right_verb(source):
        raise DataError(advice)


def _print_label_notes(given: dict[str, int], used: dict[str, int], table: Path | None, written: Path | None) -> None:
    """Where labels went that the format cannot hold, and ids of the table that are no case."""
    if used and written is not None:
        print(f"labels: this format has no place for them; those of {len(used)} cases are in {written}")
    if strange := sorted(set(given) - set(used)):
        print(f"{table}: {len(strange)} of {len(given)} ids are no case here, such as {strange[0]}", file=sys.stderr)

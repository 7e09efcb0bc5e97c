"""smmil export"""

from collections import Counter
from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option

from smmil.cli.options import Column, _CaseBar, _exit_on_failures


def _print_formats(wanted: bool) -> None:
    if not wanted:
        return
    from rich.console import Console
    from rich.table import Table

    from smmil.exports.registry import FORMATS

    table = Table("--to", "holds", "opens in", "for", "--threshold", box=None)
    for format_ in FORMATS.values():
        threshold = "" if format_.threshold == "never" else format_.threshold
        table.add_row(format_.name, format_.content, format_.opens_in, format_.cases, threshold)
    Console(markup=False).print(table)
    raise Exit


def export(
    predictions: Annotated[list[Path], Argument(help="Files of predictions (.npz), or folders of them.")],
    to: Annotated[str, Option("--to", metavar="FORMAT", help="Format to write; --formats lists them.")],
    out: Annotated[Path, Option(help="File for a single prediction; folder for several.")],
    threshold: Annotated[
        float | None, Option(help="Instances with at least this score are positive: regions, segments, colours.")
    ] = None,
    image: Annotated[
        Path | None,
        Option(
            help="Slide or CT series of the case; for several the folder of them, named by id; or a CSV table id,slide."
        ),
    ] = None,
    size: Annotated[int | None, Option(help="Longest side of a png, in pixels. [default: 2048]")] = None,
    interpolate: Annotated[
        bool, Option("--interpolate", help="Slides as png: colours go over into each other between patches.")
    ] = False,
    column: Column = None,
    deidentify: Annotated[bool, Option(help="DICOM: take nothing from the image that identifies the patient.")] = True,
    replace_uids: Annotated[
        bool, Option("--replace-uids", help="DICOM: also replace UIDs; the file no longer finds its image.")
    ] = False,
    layer: Annotated[
        str, Option(help="score, uncertainty (how unsure each score is) or strangeness (see smmil drift).")
    ] = "score",
    formats: Annotated[
        bool, Option("--formats", help="List the formats and stop.", is_eager=True, callback=_print_formats)
    ] = False,
) -> None:
    """Write score maps as files that other programs open: QuPath, OHIF, 3D Slicer, ASAP, spreadsheets.

    Scores keep their place: bounds of the slide, geometry of the scan. For research use only.

    [bold]Examples[/bold]

      smmil export predictions/slide_7.npz --to geojson --threshold 1.5 --image slide_7.mrxs --out slide_7.geojson

      smmil export predictions --to csv --out tables

      smmil export predictions --to png --image slides.csv --out pictures

      smmil export predictions/ct_3.npz --to nifti --image scans/ct_3 --out ct_3_heat.nii.gz

      smmil export predictions/ct_3.npz --to nifti --layer uncertainty --image scans/ct_3 --out ct_3_sd.nii.gz

      smmil export predictions/ct_3.npz --to dicom-seg --threshold 0 --image scans/ct_3 --out ct_3.dcm
    """
    from smmil.exports.batch import export as export_predictions

    with _CaseBar("exporting") as bar:
        done = export_predictions(
            predictions,
            to,
            out,
            image=image,
            threshold=threshold,
            column=column,
            size=size,
            deidentify=deidentify,
            keep_uids=not replace_uids,
            layer=layer,
            interpolate=interpolate,
            progress=bar.at,
        )
    where = done.written[0] if len(done.written) == 1 and not done.failed else out
    print(f"{where}: {len(done.written)} written, {len(done.failed)} failed")
    for note, cases in Counter(note for _, note in done.notes).most_common():
        print(f"note: {note} ({cases} {'case' if cases == 1 else 'cases'})")
    _exit_on_failures(done.failed.values(), out / "export_failures.csv")

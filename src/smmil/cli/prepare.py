"""smmil prepare"""

import os
import sys
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from smmil.cli.options import (
    Classes,
    IdColumn,
    LabelColumn,
    PatientColumn,
    TrustCode,
    _check_place,
    _error_console,
    _print_line,
    _table,
)
from smmil.errors import ConfigError

if TYPE_CHECKING:
    from smmil.prepare.pipeline import PreparePlan, Summary


ImageKind = StrEnum("ImageKind", "auto slide ct mr stack points patches")
PatchGraph = StrEnum("PatchGraph", "grid knn")
TissueMethod = StrEnum("TissueMethod", "otsu grey dark none")
StainMethod = StrEnum("StainMethod", "macenko reinhard")
PenInk = StrEnum("PenInk", "keep exclude")
PrepareExecutor = StrEnum("PrepareExecutor", "auto serial processes dask")
Precision = StrEnum("Precision", "float32 float16 bfloat16")
_NAMED = 5  # cases of which the same is said
_WIDEST = 10_000

_SLIDES = "Slides"
_SCANS = "Scans (CT, MR, stacks)"
_PATCH_FILES = "Patch files and points"
_TRUTH = "Truth of instances"
_ENCODER = "Encoder"
_WORK = "Where and how to work"


def prepare(
    sources: Annotated[
        list[Path], Argument(help="Folders or files: slides, DICOM folders, NIfTI volumes, plain images.")
    ],
    out: Annotated[Path, Option(help="Folder for bags/, previews/, manifest.csv, cases.csv, failures.csv.")],
    labels: Annotated[
        Path | None,
        Option(help="Table id,label with optional columns patient, split, path, annotation, tissue, mpp, series."),
    ] = None,
    id_column: IdColumn = None,
    label_column: LabelColumn = None,
    patient_column: PatientColumn = None,
    classes: Classes = None,
    keep: Annotated[
        list[str] | None,
        Option(
            rich_help_panel="Table of cases",
            help="Column of the table for the manifest too, such as age; time, event and label_… always are. May be "
            "repeated.",
        ),
    ] = None,
    kind: Annotated[ImageKind, Option(help="What the images are; auto: from the files.")] = ImageKind.auto,
    recipe: Annotated[Path | None, Option(help="YAML file with the choices below; options win over it.")] = None,
    encoder: Annotated[
        str | None, Option(rich_help_panel=_ENCODER, help="Encoder; efficientnet-lite0 comes with the program.")
    ] = None,
    weights: Annotated[
        Path | None, Option(rich_help_panel=_ENCODER, help="File with the encoder's weights, where it needs one.")
    ] = None,
    encoder_pixels: Annotated[
        int | None,
        Option(
            rich_help_panel=_ENCODER,
            help="Side at which the encoder looks; default: as it was trained. Less is faster.",
        ),
    ] = None,
    fetch: Annotated[
        bool, Option("--fetch", rich_help_panel=_ENCODER, help="Download the encoder's weights if they are not here.")
    ] = False,
    precision: Annotated[
        Precision | None,
        Option(
            rich_help_panel=_ENCODER, help="Numbers of the encoder (float32); 16 bits are faster on a graphics card."
        ),
    ] = None,
    tile_um: Annotated[
        float | None, Option(rich_help_panel=_SLIDES, help="Width of a tile in micrometres (256).")
    ] = None,
    tile_px: Annotated[
        int | None, Option(rich_help_panel=_SLIDES, help="Or: width in pixels, together with --tile-mpp.")
    ] = None,
    tile_mpp: Annotated[
        float | None, Option(rich_help_panel=_SLIDES, help="Micrometres per pixel at which tiles are read.")
    ] = None,
    overlap_um: Annotated[
        float | None, Option(rich_help_panel=_SLIDES, help="How far neighbouring tiles overlap (0).")
    ] = None,
    tissue_share: Annotated[
        float | None, Option(rich_help_panel=_SLIDES, help="Share of a tile that must be tissue (0.25).")
    ] = None,
    tissue: Annotated[
        TissueMethod | None,
        Option(
            rich_help_panel=_SLIDES,
            help="Tissue is what has colour (otsu), is darker than glass (grey), brighter (dark), or all (none).",
        ),
    ] = None,
    pen: Annotated[
        PenInk | None, Option(rich_help_panel=_SLIDES, help="exclude: felt pen on the slide is no tissue (keep).")
    ] = None,
    stain: Annotated[
        StainMethod | None, Option(rich_help_panel=_SLIDES, help="Bring the colours of every slide to one target.")
    ] = None,
    stain_reference: Annotated[
        Path | None, Option(rich_help_panel=_SLIDES, help="Picture with the target colours of --stain.")
    ] = None,
    mpp: Annotated[
        float | None,
        Option(rich_help_panel=_SLIDES, help="Micrometres per pixel at full resolution, for files that do not say."),
    ] = None,
    window: Annotated[
        list[str] | None,
        Option(
            rich_help_panel=_SCANS,
            help="Scans: window by name, centre/width or percentiles (p1/99); once or three times.",
        ),
    ] = None,
    series: Annotated[
        str | None,
        Option(
            rich_help_panel=_SCANS,
            help="DICOM: most-slices, description:TEXT, or a key, where a folder holds several series.",
        ),
    ] = None,
    triplets: Annotated[
        bool, Option(rich_help_panel=_SCANS, help="Scans: a slice with its neighbours as colours (one --window).")
    ] = False,
    patch_mm: Annotated[
        float | None,
        Option(
            rich_help_panel=_SCANS,
            help="Scans: cut slices into patches of this width; default: every slice is an instance.",
        ),
    ] = None,
    patch_px: Annotated[int | None, Option(rich_help_panel=_SCANS, help="Or: width of a patch in voxels.")] = None,
    patch_depth_mm: Annotated[
        float | None, Option(rich_help_panel=_SCANS, help="Thickness of a patch; default: within one slice.")
    ] = None,
    patch_slices: Annotated[
        int | None, Option(rich_help_panel=_SCANS, help="Or: thickness of a patch in slices (1).")
    ] = None,
    patch_overlap: Annotated[
        float | None, Option(rich_help_panel=_SCANS, help="Share by which neighbouring patches overlap (0).")
    ] = None,
    foreground: Annotated[
        str | None,
        Option(
            rich_help_panel=_SCANS,
            help="Patches only where voxels exceed: auto, none, a value (-300), a percentile (p60).",
        ),
    ] = None,
    points: Annotated[
        Path | None, Option(rich_help_panel=_PATCH_FILES, help="Table image,x,y[,label]: a crop around every point.")
    ] = None,
    crop_px: Annotated[
        int | None, Option(rich_help_panel=_PATCH_FILES, help="Side of a crop around a point, in pixels (27).")
    ] = None,
    graph: Annotated[
        PatchGraph | None,
        Option(
            rich_help_panel=_PATCH_FILES,
            help="Patch files: neighbours touch (grid), or are the nearest (knn), if sparse.",
        ),
    ] = None,
    coverage: Annotated[
        float | None, Option(rich_help_panel=_TRUTH, help="Annotated share above which an instance is positive (0.5).")
    ] = None,
    positive: Annotated[
        list[str] | None,
        Option(
            rich_help_panel=_TRUTH,
            help="Class or code in annotations, or class of points, that is a lesion; may be repeated.",
        ),
    ] = None,
    executor: Annotated[
        PrepareExecutor, Option(rich_help_panel=_WORK, help="Where to work; auto: one process per core.")
    ] = PrepareExecutor.auto,
    workers: Annotated[int | None, Option(rich_help_panel=_WORK, help="Number of worker processes.")] = None,
    dask: Annotated[
        str | None, Option(rich_help_panel=_WORK, help="Address of a Dask scheduler, such as tcp://host:8786.")
    ] = None,
    device: Annotated[
        str, Option(rich_help_panel=_ENCODER, help="Device of the encoder: auto, cpu, cuda, cuda:1.")
    ] = "auto",
    trust_code: TrustCode = False,
    overwrite: Annotated[
        bool, Option("--overwrite", rich_help_panel=_WORK, help="Replace bags of another recipe in --out.")
    ] = False,
    dry_run: Annotated[
        bool, Option("--dry-run", rich_help_panel=_WORK, help="Show what would be done, and stop.")
    ] = False,
) -> None:
    """Turn slides or scans into bags: find tissue, cut tiles, encode them; ready for smmil train.

    Every case becomes one file in bags/ and one picture in previews/ that shows what was taken as tissue. A run can be
    stopped at any time and repeated: finished cases are recognised by their content and kept. Cases that fail do not
    stop the others; they are listed in failures.csv, and the exit code is 3.

    [bold]Examples[/bold]

      smmil prepare slides --labels labels.csv --out study

      smmil prepare slides --labels labels.csv --tile-um 256 --encoder resnet50 --out study --dry-run

      smmil prepare scans --labels labels.csv --window brain --window subdural --window stroke --out ct

      smmil prepare head_mr --kind mr --series description:axial --labels labels.csv --out mr

      smmil prepare scans --labels labels.csv --patch-mm 24 --out ct_patches

      smmil prepare folders_of_png --kind stack --labels labels.csv --out scans

      smmil prepare png --points nuclei.csv --crop-px 27 --positive epithelial --labels labels.csv --out nuclei

      smmil train --manifest study/manifest.csv --model sm_ap --out run
    """
    from smmil.data.tables import TableColumns
    from smmil.prepare.pipeline import plan
    from smmil.prepare.recipe import load_recipe, refuse_unused

    _check_place(executor.value, workers, dask)
    named: dict[str, Any] = {
        "id": id_column,
        "label": label_column,
        "patient": patient_column,
        "classes": classes or None,
        "keep": keep or None,
    }
    named = {name: value for name, value in named.items() if value is not None}
    if named and labels is None:
        raise ConfigError("--id-column, --label-column, --patient-column, --class, --keep: need a table; give --labels")
    patch: dict[str, Any] = {"side_mm": patch_mm, "side_px": patch_px, "depth_mm": patch_depth_mm}
    patch |= {"depth_slices": patch_slices, "overlap": patch_overlap, "foreground": foreground}
    mask = {"share": tissue_share, "method": tissue and tissue.value, "pen": pen and pen.value}
    mask = {name: value for name, value in mask.items() if value is not None}
    chosen = {
        "kind": None if kind is ImageKind.auto else kind.value,
        "encoder": encoder,
        "encoder_pixels": encoder_pixels,
        "autocast": None if precision is None else precision is not Precision.float32 and precision.value,
        "tile_um": tile_um,
        "tile_px": tile_px,
        "tile_mpp": tile_mpp,
        "overlap_um": overlap_um,
        "tissue": mask or None,
        "stain": stain and stain.value,
        "stain_reference": None if stain_reference is None else str(stain_reference),
        "windows": tuple(window) if window else None,
        "triplets": triplets or None,
        "patch": {name: value for name, value in patch.items() if value is not None} or None,
        "crop_px": crop_px,
        "graph": None if graph is None else graph.value,
    }
    choices = load_recipe(recipe, chosen, trust_code=trust_code)
    if fetch:
        _fetch_once(choices.encoder, weights)
    todo = plan(
        sources,
        out,
        choices,
        labels=labels,
        columns=TableColumns(**named),
        points=points,
        mpp=mpp,
        series=series,
        weights=weights,
        device=device,
        coverage=coverage,
        positive=positive or None,
    )
    refuse_unused(chosen, todo.recipe.kind, todo.recipe.cut is not None)
    _announce(todo)
    if dry_run:
        _show_dry(todo)
        return
    place, count = _place(executor, workers, dask, len(todo.jobs), device)
    _finish(_run(todo, executor=place, workers=count, address=dask, overwrite=overwrite), todo)


def _fetch_once(encoder: str, weights: Path | None) -> None:
    from smmil.cli.encoders import _with_bar
    from smmil.encoders import encoder_info, find_weights

    if weights is not None:
        raise ConfigError("--fetch: the weights are given with --weights; leave one out")
    row = encoder_info(encoder)
    if (row.hub or row.url) and find_weights(row) is None:
        print(f"fetched: {_with_bar(encoder)}", file=sys.stderr)


def _place(
    executor: PrepareExecutor, workers: int | None, dask: str | None, cases: int, device: str = "cpu"
) -> tuple[str, int | None]:
    """Where to work: one process per graphics card, else per core, unless one is enough or the user chose otherwise."""
    from smmil.runtime import available_cores, cards

    if executor is not PrepareExecutor.auto:
        return executor.value, workers
    if dask is not None:
        return "dask", workers
    workers = min(workers or cards(device) or available_cores(), cases)
    return ("serial", None) if workers == 1 else ("processes", workers)


def _announce(todo: "PreparePlan") -> None:
    print(f"{len(todo.jobs)} {todo.recipe.kind} case(s), encoder {todo.encoder}", file=sys.stderr)
    if todo.missing:
        print(f"{len(todo.missing)} row(s) of the table have no image, first: {todo.missing[0][1]}", file=sys.stderr)
    for note in todo.notes:
        print(f"note: {note}", file=sys.stderr)
    if todo.unlisted:
        print(f"{len(todo.unlisted)} image(s) are not in the table, first: {todo.unlisted[0]}", file=sys.stderr)


def _show_dry(todo: "PreparePlan") -> None:
    """One row per case, then each reason once with the cases it concerns; exit code 3 when a case would fail."""
    from rich.console import Console

    from smmil.prepare.case import preflight

    lines = [preflight(job) for job in todo.jobs]
    numbers = ["instances", "mpp", "tile µm wanted", "tile µm used", "positive"]
    cells = [(x.instances, x.mpp_level0, x.wanted_um, x.used_um, x.positives) for x in lines]
    used = [any(row[k] is not None for row in cells) for k in range(len(numbers))]
    table = _table(None, ("id", "status"), (name for name, shown in zip(numbers, used, strict=True) if shown))
    for column in table.columns:
        column.no_wrap = True  # an id is to be copied
    for line, row in zip(lines, cells, strict=True):
        shown = ("" if n is None else f"{n:.5g}" for n, wanted in zip(row, used, strict=True) if wanted)
        table.add_row(line.id, line.status, *shown)
    needed = Console(width=_WIDEST).measure(table).maximum
    Console(width=max(Console().width, needed)).print(table)
    said = [
        (line.id, _without_case(text, job))
        for line, job in zip(lines, todo.jobs, strict=True)
        for text in (*(f"warning: {one}" for one in line.warnings), line.problem and f"fails: {line.problem}")
        if text
    ]
    _print_each_once(said)
    failing = sum(line.problem is not None for line in lines) + len(todo.missing)
    if failing:
        print(f"{failing} of {len(lines) + len(todo.missing)} case(s) would fail", file=sys.stderr)
        raise Exit(3)


def _print_each_once(said: Iterable[tuple[str, str]]) -> None:
    """Print (id, "kind: text") on standard error, every text once, with the first of the cases it is about."""
    told: dict[str, list[str]] = {}
    for id_, text in said:
        told.setdefault(text, []).append(id_)
    for text, ids in told.items():
        more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
        kind, _, rest = text.partition(": ")
        print(f"{kind}: {', '.join(ids[:_NAMED])}{more}: {rest}", file=sys.stderr)


def _without_case(reason: str, job: Any) -> str:
    """A reason without the files and the name of its case, so that equal reasons of several cases are one."""
    files = (job.case.source, job.case.annotation, job.case.instance_labels, job.case.tissue)
    for text in (*(str(path) for path in files if path is not None), job.case.id):
        reason = reason.replace(f"{text}: ", "")
    return reason


def _run(todo: "PreparePlan", **options: Any) -> "Summary":
    """Run with a bar; Ctrl-C ends the workers and says how to go on."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as Left

    from smmil.prepare.pipeline import failure_reason, run

    console = _error_console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), Left())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        bar = bars.add_task("preparing", total=len(todo.jobs))

        def on_case(outcome: Any) -> None:
            id_, reason = outcome.task.case.id, failure_reason(outcome)
            line = f"failed: {id_}: {reason}" if reason else f"{id_}: {outcome.value.instances:,} instances"
            bars.update(bar, advance=1, description=id_)
            _print_line(console, line)
            for warning in () if reason else outcome.value.warnings:
                _print_line(console, f"warning: {id_}: {warning}")

        try:
            return run(todo, on_case=on_case, **options)
        except KeyboardInterrupt:
            bars.stop()
            console.print("stopped; what is done is kept, repeat the command to go on", highlight=False)
            raise Exit(130) from None


def _finish(done: "Summary", todo: "PreparePlan") -> None:
    failed = len(done.failures)
    _print_each_once((o.task.case.id, f"note: {note}") for o in done.outcomes if o.value for note in o.value.notes)
    print(f"{todo.out}: {done.count('written')} written, {done.count('kept')} there already, {failed} failed or empty")
    if done.edgeless:
        from smmil.formats.content import edgeless_note

        print(f"note: {edgeless_note(done.edgeless, len(done.outcomes))}", file=sys.stderr)
    if done.lost is not None:
        print(f"warning: {done.lost}", file=sys.stderr)
    if done.manifest is not None:
        print(_next_step(done.manifest))
        if todo.jobs and (shown := _folder_of([job.case.source for job in todo.jobs])) is not None:
            print(
                f"later: smmil report predictions --slides {shown} --out report.html puts these images below the maps"
            )
    if failed:
        print(f"all failures are listed in {todo.out / 'failures.csv'}", file=sys.stderr)
        raise Exit(3)


def _folder_of(images: "list[Path]") -> Path | None:
    """The folder in which all images are; None where they share none but the root."""
    shared = Path(os.path.commonpath([image.absolute().parent for image in images]))
    here = Path(os.path.relpath(shared))
    return None if shared == Path(shared.anchor) else here if not str(here).startswith("..") else shared


def _next_step(manifest: Path) -> str:
    """The command that comes next, or what training still lacks."""
    from smmil.data.manifest import Manifest
    from smmil.errors import DataError

    made = Manifest.read(manifest)
    if not any(label is not None for label in made.labels.values()):
        return (
            "no labels yet, and smmil train needs them: repeat the command with --labels and a table with the columns "
            "id,label; the bags are kept. smmil predict works without"
        )
    try:
        made.check_table()
    except DataError as problem:
        return f"not yet ready for smmil train: {problem}"
    return f"next: smmil train --manifest {manifest} --model sm_ap --out run"

"""smmil report"""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from typer import Exit, Option

from smmil.cli.options import (
    Aggregate,
    By,
    Column,
    CountedBy,
    Models,
    Prior,
    Resamples,
    Threshold,
    Validation,
    _check_threshold,
    _how_counted,
    _number_of_resamples,
)


def report(
    where: Models,
    out: Annotated[Path, Option(help="The page to write.")] = Path("report.html"),
    slides: Annotated[
        Path | None, Option(help="Folder of slides or scans, or CSV table (id, slide): pictures below the maps.")
    ] = None,
    validation: Validation = None,
    threshold: Threshold = None,
    column: Column = None,
    by: By = CountedBy.case,
    aggregate: Aggregate = None,
    prior: Prior = None,
    resamples: Resamples = None,
    title: Annotated[str | None, Option(help="Title of the page.")] = None,
    window: Annotated[
        str | None,
        Option(
            help="How slices are shown: brain, lung, bone, …, centre/width or p1/99; default: as they were prepared."
        ),
    ] = None,
    max_mb: Annotated[float, Option(help="Largest size of the page; pictures are made to fit.")] = 30.0,
) -> None:
    """One self-contained page about one or several models: numbers, curves, every case with its map.

    It works offline, from disk, and sends nothing.

    [bold]Examples[/bold]

      smmil report runs/first --out report.html

      smmil report predictions/abmil predictions/sm_ap --validation val/abmil --validation val/sm_ap

      smmil report predictions --slides slides/ --title "Lymph nodes, second reading"

      smmil report predictions --by patient --aggregate max

      smmil report test/sm_ap --prior train/sm_ap    (where lesions usually lie, from training cases)
    """
    from smmil.encoders.table import encoder_info, list_encoders
    from smmil.report.document import write_report

    _check_threshold(threshold, validation)
    done = write_report(
        where,
        out,
        slides=slides,
        validation=validation or (),
        threshold=threshold,
        column=column,
        prior=prior,
        resamples=_number_of_resamples(resamples, least=0),
        title=title,
        licences={name: encoder_info(name).licence for name in list_encoders()},
        max_mb=max_mb,
        window=window,
        **_how_counted(by, aggregate),
    )
    print(f"{done.page}: {done.n_cases} cases, {', '.join(done.models)}, {done.n_bytes / 1e6:.1f} MB")
    if done.n_bytes > max_mb * 1e6:
        print(f"larger than --max-mb {max_mb:g}: report fewer cases, or leave out --slides", file=sys.stderr)
    problems: dict[str, Any] = {"no picture": done.without_picture, "damaged": done.damaged, "left out": done.left_out}
    for kind, found in problems.items():
        for what, reason in found.items():
            print(f"{kind}: {what}: {reason}", file=sys.stderr)
    if slides is not None and slides.is_dir() and done.without_picture:
        _say_patches(slides)
    if any(problems.values()):
        raise Exit(3)


def _say_patches(slides: Path) -> None:
    """Where the mosaics are, when the folder that was given holds the patches they are made of."""
    from smmil.errors import SmmilError
    from smmil.prepare.table import find_sources, patch_folder_note

    with suppress(SmmilError):
        if patch_folder_note([slides], find_sources([slides])) is not None:
            hint = (
                "give --slides OUT/slides, where OUT is the folder of smmil source patches: its mosaics bear the names"
            )
            print(f"note: {slides} holds patches, not slides; {hint} of the cases", file=sys.stderr)

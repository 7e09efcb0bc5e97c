"""smmil view"""

import sys
from pathlib import Path
from typing import Annotated

from typer import Option

from smmil.cli.options import Column, CountedBy, Models, _CaseBar, _check_threshold


def view(
    where: Models,
    slides: Annotated[
        Path | None, Option(help="Folder of slides and CT scans named like the cases, or CSV table (id, slide).")
    ] = None,
    bags: Annotated[
        Path | None, Option(help="Manifest of the bags (id, path): shows hot patches that look alike.")
    ] = None,
    host: Annotated[
        str, Option(help="Where to listen; anything but this machine asks visitors for a token.")
    ] = "127.0.0.1",
    port: Annotated[int, Option(help="Port; 0: any free one.")] = 8000,
    open_: Annotated[bool, Option("--open/--no-open", help="Open the browser.")] = True,
    threshold: Annotated[float | None, Option(help="Instance threshold the page begins with.")] = None,
    column: Column = None,
    by: Annotated[CountedBy, Option(help="patient: the cases of a patient stand together.")] = CountedBy.case,
    max_cache_mb: Annotated[int, Option(help="Memory for tiles that were shown lately.")] = 256,
    title: Annotated[str, Option(help="Title of the page.")] = "smmil view",
) -> None:
    """Look at cases in the browser: deep zoom into the slide or scroll the CT, the maps of all models on top.

    It runs on this machine, shows nothing to others, and stops with Ctrl-C. Label and overview images of slides are
    never shown. For research use only.

    [bold]Examples[/bold]

      smmil view runs/first --slides slides/

      smmil view predictions/abmil predictions/sm_ap --slides slides.csv --bags bags/manifest.csv

      smmil view predictions --slides ct/ --port 0 --no-open
    """
    from smmil.viewer.lifecycle import serve

    _check_threshold(threshold)
    with _CaseBar("reading predictions") as bar:

        def announce(url: str) -> None:
            bar.stop()
            print(f"smmil view: {url}\nstop with Ctrl-C", flush=True)

        def remark(line: str) -> None:
            bar.stop()
            print(line, file=sys.stderr, flush=True)

        serve(
            where,
            slides=slides,
            bags=bags,
            host=host,
            port=port,
            open_browser=open_,
            threshold=threshold,
            column=column,
            by=by.value,
            max_cache_mb=max_cache_mb,
            title=title,
            progress=bar.at,
            announce=announce,
            remark=remark,
        )
    print("stopped")

"""smmil encoders"""

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument


def encoders(
    words: Annotated[
        list[str] | None,
        Argument(metavar="[fetch] [NAME]…", help="Nothing: list; a name: its facts."),
    ] = None,
) -> None:
    """List the encoders with licence and gate, show the facts of one, or fetch its weights.

    Nothing is downloaded without being asked for. Gated weights need access on huggingface.co and a token in HF_TOKEN.
    A transfer that was interrupted goes on; commit and checksum are compared and written beside the weights.

    [bold]Examples[/bold]

      smmil encoders

      smmil encoders virchow2

      HF_TOKEN=… smmil encoders fetch uni2-h

      smmil prepare slides --labels labels.csv --encoder phikon --fetch --tile-um 112 --out study
    """
    words = words or []
    if words[:1] == ["fetch"]:
        _fetch(words[1:])
    elif words:
        _show(words)
    else:
        _list()


def _fetch(names: list[str]) -> None:
    from smmil.encoders import encoder_info
    from smmil.errors import ConfigError

    if not names:
        raise ConfigError("encoders fetch: no name; give one, such as smmil encoders fetch phikon")
    for row in map(encoder_info, names):
        print(f"{row.name}: licence {row.licence}; gate: {row.gate}", file=sys.stderr)
        print(f"{row.name}: {_with_bar(row.name)}")


def _with_bar(name: str) -> Path:
    """Fetch weights with bytes, speed and remaining time on standard error, where that is a terminal."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from smmil.cli.options import _error_console
    from smmil.encoders import fetch_weights

    console = _error_console()
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bars:
        bar = bars.add_task(name, total=None)
        return fetch_weights(name, on_bytes=lambda here, total: bars.update(bar, completed=here, total=total))


def _show(names: list[str]) -> None:
    from rich.console import Console

    from smmil.cli.options import _print_line
    from smmil.encoders import encoder_info, find_weights

    console = Console()
    for row in map(encoder_info, names):
        console.print(row.name, style="bold", highlight=False)
        scale = f"{row.mpp} µm/px: --tile-um {row.mpp * (row.pixels or 0):g}" if row.mpp else "images of any scale"
        facts = {
            "features": row.dim,
            "side": f"{row.pixels} px",
            "trained at": scale,
            "pooling": row.pooling,
            "normalisation": f"mean {row.mean}, std {row.std}",
            "network": " ".join([row.network, *(f"{key}={value}" for key, value in row.build.items())]),
            "licence": row.licence,
            "gate": row.gate,
            "source": row.source,
            "revision": row.revision or "settled when the weights are first fetched",
            "citation": row.citation,
            "weights": find_weights(row) or f"not here; smmil encoders fetch {row.name}",
        }
        for fact, value in facts.items():
            _print_line(console, f"  {fact:14} {value}")


def _list() -> None:
    from rich.console import Console

    from smmil.cli.options import _table
    from smmil.encoders import encoder_info, find_weights, list_encoders

    table = _table(None, ("name", "licence", "gate", "weights"), ("features", "px", "µm/px"))
    for row in map(encoder_info, list_encoders()):
        here = "in the program" if row.family == "lite" else "here" if find_weights(row) else "to fetch"
        licence = row.licence.partition(":")[0]
        table.add_row(row.name, licence, row.gate, here, str(row.dim), str(row.pixels), f"{row.mpp or 'any'}")
    console = Console()
    console.print(table)
    console.print("besides: timm:<name>, hf-hub:<owner/name>, package.module:function", highlight=False, markup=False)

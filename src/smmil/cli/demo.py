"""smmil demo"""

from pathlib import Path
from typing import Annotated

from typer import Option


def demo(
    out: Annotated[Path, Option(help="Folder for slides, runs, predictions, maps and the page.")] = Path("smmil-demo"),
) -> None:
    """Draw synthetic slides and CT scans, prepare them, train ABMIL and SmAP, and show their maps next to the truth.

    [bold]Example[/bold]

      smmil demo --out ./smmil-demo

    Takes about two minutes on two cores. Open report.html afterwards; everything it was made from is in the same
    folder. Repeat the command after an interruption: it goes on where it stopped.
    """
    from rich.console import Console

    from smmil.cli.evaluate import _metrics_table, _remarks
    from smmil.cli.options import _print_line
    from smmil.cli.progress import _TrainingBars
    from smmil.demo import run_demo

    with _TrainingBars(every_epoch=False) as bars:
        result = run_demo(out, progress=bars)
    console = Console()
    console.print(_metrics_table(result.results))
    for line in [*_remarks(result.results), f"open {result.page} to see the maps next to the truth"]:
        _print_line(console, line)

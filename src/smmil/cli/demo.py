"""smmil demo"""

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option(help="Folder for slides, runs, predictions, maps and the page.")] = Path(
        "smmil-demo"
    ),
) -> None:
    """Draw synthetic slides and CT scans, prepare them, train ABMIL and SmAP, and show their maps next to the truth.

    [bold]Example[/bold]

      smmil demo --out ./smmil-demo

    Takes about two minutes on two cores. Open report.html afterwards; everything it was made from is in the same
    folder. Repeat the command after an interruption: it goes on where it stopped.
    """
    from rich.console import Console

    from smmil.cli.evaluate import metrics_table, remarks
    from smmil.cli.progress import TrainingBars
    from smmil.demo import run_demo

    with TrainingBars(every_epoch=False) as bars:
        result = run_demo(out, progress=bars)
    console = Console()
    console.print(metrics_table(result.results))
    for line in remarks(result.results):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    last = f"open {result.page} to see the maps next to the truth"
    console.print(last, markup=False, highlight=False, soft_wrap=True)

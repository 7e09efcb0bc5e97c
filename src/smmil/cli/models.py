"""smmil models"""

import inspect
from typing import Annotated

from typer import Argument


def models(name: Annotated[str | None, Argument(help="Show the options of this model.")] = None) -> None:
    """List the models, or the options of one with their defaults.

    [bold]Examples[/bold]

      smmil models

      smmil models sm_ap

    Options go into a config under model.options, or: smmil train … --set model.options.where=late
    """
    from rich.console import Console
    from rich.table import Table

    from smmil.cli.options import _print_line
    from smmil.models import list_models, model_class, model_options

    console = Console()
    if name is None:
        table = Table("name", "what it does")
        for one in list_models():
            table.add_row(one, (inspect.getdoc(model_class(one)) or "").partition("\n")[0])
    else:
        about = inspect.getdoc(model_class(name)) or ""
        console.print(name, style="bold", highlight=False)
        _print_line(console, f"{about}\n")
        table = Table("option", "default")
        for option, default in model_options(name).items():
            table.add_row(option, repr(default))
    console.print(table)

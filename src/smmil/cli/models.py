"""smmil models"""

import inspect
from typing import Annotated

import typer


def models(
    name: Annotated[str | None, typer.Argument(help="Show the options of this model.")] = None,
) -> None:
    """List the models, or the options of one with their defaults.

    [bold]Examples[/bold]

      smmil models

      smmil models sm_ap

    Options go into a config under model.options, or: smmil train … --set model.options.where=late
    """
    if name is None:
        _list_all()
    else:
        _show(name)


def _list_all() -> None:
    from rich.console import Console
    from rich.table import Table

    from smmil.models import list_models, model_class

    table = Table("name", "what it does")
    for name in list_models():
        table.add_row(name, _first_line(model_class(name)))
    Console().print(table)


def _show(name: str) -> None:
    from rich.console import Console
    from rich.table import Table

    from smmil.models import model_class, model_options

    kind = model_class(name)
    console = Console()
    console.print(name, style="bold", highlight=False)
    console.print(f"{inspect.getdoc(kind) or ''}\n", highlight=False, markup=False, soft_wrap=True)
    table = Table("option", "default")
    for option, default in model_options(name).items():
        table.add_row(option, repr(default))
    console.print(table)


def _first_line(kind: type) -> str:
    return (inspect.getdoc(kind) or "").partition("\n")[0]

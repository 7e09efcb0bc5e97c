"""smmil doctor"""

import typer


def doctor() -> None:
    """Show versions, device, threads, memory and disk, and check that a model can learn here.

    [bold]Example[/bold]

      smmil doctor

    Paste its output into a bug report.
    """
    from rich.console import Console
    from rich.table import Table

    from smmil.runtime import describe

    facts = describe()
    table = Table("", "here", title="smmil doctor", title_justify="left")
    for name, value in {**facts.pop("versions"), **facts}.items():
        table.add_row(name.replace("_", " "), str(value))
    works = _self_check()
    table.add_row("self-check", "a step of sm_ap on two synthetic bags: " + ("ok" if works else "FAILED"))
    Console().print(table)
    if not works:
        raise typer.Exit(1)


def _self_check() -> bool:
    """Check that a forward and a backward pass on two small bags give finite numbers."""
    import torch

    from smmil.bag import BagBatch
    from smmil.losses import total_loss
    from smmil.models import create_model
    from smmil.runtime import choose_device
    from smmil.synthetic.features import synthetic_slides

    device = choose_device()
    model = create_model("sm_ap", 8).to(device)
    batch = BagBatch.pack(synthetic_slides(2, size=(20, 40), dim=8)).to(device)
    loss, _ = total_loss(model(batch), batch.need("y"))
    loss.backward()
    finite = [bool(torch.isfinite(p.grad).all()) for p in model.parameters() if p.grad is not None]
    return len(finite) > 0 and all(finite) and bool(torch.isfinite(loss))

"""smmil doctor"""

import typer

EXTRAS = {
    "slides": "demo, prepare, predict --model, report and view of slides and pictures; export of TIFF and regions",
    "ct": "demo, prepare, predict --model, report and view of CT and MR (DICOM, NIfTI); export --to dicom, nifti",
    "timm": "encoders by name (UNI, Virchow, ResNet …); encoders fetch",
    "view": "view",
    "onnx": "package --onnx",
    "dask": "--executor dask of prepare and experiment",
    "slurm": "--executor submitit of experiment (SLURM)",
    "lazyslide": "bags of LazySlide and SpatialData",
    "tables": "tables in Excel files",
    "tensorboard": "train with training.tensorboard",
    "mlflow": "train with training.loggers: [mlflow]",
    "wandb": "train with training.loggers: [wandb]",
    "search": "experiment search",
    "fast": "nothing needs it; train and predict are quicker on a processor",
}


def doctor() -> None:
    """Show versions, device, threads, memory and disk, which extras are there, and check that a model can learn here.

    [bold]Example[/bold]

      smmil doctor

    The second table says which extra each command needs; everything not named there works without one. Paste the
    output into a bug report.
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
    console = Console()
    console.print(table)
    extras = Table("extra", "needed for", "here", title="pip install 'smmil\\[extra]'", title_justify="left")
    for name, verbs in EXTRAS.items():
        missing = _missing_libraries(name)
        extras.add_row(name, verbs, f"missing: {', '.join(missing)}" if missing else "complete")
    console.print(extras)
    if not works:
        raise typer.Exit(1)


def _missing_libraries(extra: str) -> list[str]:
    """Libraries of an extra, as this installation states them, that are not installed."""
    import re
    from importlib.metadata import PackageNotFoundError, requires, version

    missing = []
    for line in requires("smmil") or []:
        requirement, _, marker = line.partition(";")
        found = re.match(r"[\w.-]+", requirement)
        if found and re.search(rf"extra == ['\"]{extra}['\"]", marker):
            try:
                version(found[0])
            except PackageNotFoundError:
                missing.append(found[0])
    return missing


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

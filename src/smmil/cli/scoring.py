"""Whose predictions, which of their scores, and from where on an instance is positive: options of several verbs."""

import math
from pathlib import Path
from typing import Annotated

import typer

Models = Annotated[
    list[Path], typer.Argument(help="Runs with predictions, or folders of .npz predictions; one per model.")
]
Validation = Annotated[
    list[Path] | None,
    typer.Option(help="Predictions on validation cases, to choose the instance threshold; one per model."),
]
Threshold = Annotated[float | None, typer.Option(help="Instance threshold; else the best on --validation.")]
Column = Annotated[int | None, typer.Option(help="Score column, for models with more than two classes.")]


def check_threshold(threshold: float | None, validation: list[Path] | None = None) -> None:
    """An instance threshold is a finite number and comes from one place."""
    from smmil.errors import ConfigError

    if threshold is not None and not math.isfinite(threshold):
        raise ConfigError(f"--threshold {threshold}: expected a finite number, such as 0.5")
    if threshold is not None and validation:
        raise ConfigError(f"--threshold {threshold}: --validation chooses the threshold; give one of the two, not both")

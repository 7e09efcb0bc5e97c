"""What several verbs share: options, their checks, the counter of cases, and lines about failures."""

import math
import sys
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Exit, Option

from smmil.errors import ConfigError, SmmilError

Checkpoint = StrEnum("Checkpoint", "best lowest_loss")
TrustCode = Annotated[
    bool, Option("--trust-code", help="Run code outside smmil (package.module:name) that the given file names.")
]

IdColumn = Annotated[
    str | None, Option(rich_help_panel="Table of cases", help="Column of the table that names the cases (id).")
]
LabelColumn = Annotated[
    str | None, Option(rich_help_panel="Table of cases", help="Column of the table that holds their labels (label).")
]
PatientColumn = Annotated[
    str | None, Option(rich_help_panel="Table of cases", help="Column of the table that names the patients (patient).")
]
Classes = Annotated[
    list[str] | None,
    Option("--class", rich_help_panel="Table of cases", help="Labels that are words, in the order 0, 1, …"),
]


def _check_place(executor: str, workers: int | None, dask: str | None, slurm: list[str] | None = None) -> None:
    """Raise an error for an option that does not fit the executor; `auto` takes any."""
    if workers is not None and workers < 1:
        raise ConfigError(f"--workers: must be at least 1, got {workers}")
    if workers is not None and executor == "serial":
        raise ConfigError("--workers: the executor serial works alone; leave it out, or choose --executor processes")
    if dask is not None and executor not in ("auto", "dask"):
        raise ConfigError(f"--dask: is for the executor dask, not {executor}; give --executor dask")
    if dask is not None and workers is not None:
        raise ConfigError("--workers: the cluster at --dask has its own; leave it out")
    if slurm and executor != "submitit":
        raise ConfigError(f"--slurm: is for the executor submitit, not {executor}; give --executor submitit")


Models = Annotated[list[Path], Argument(help="Runs with predictions, or folders of .npz predictions; one per model.")]
Validation = Annotated[
    list[Path] | None, Option(help="Predictions on validation cases, to choose the instance threshold; one per model.")
]
Prior = Annotated[
    list[Path] | None,
    Option(help="Predictions of cases with known lesions, such as those of training: makes the position prior."),
]
CountedBy = StrEnum("CountedBy", "case patient")
Aggregates = StrEnum("Aggregates", {"mean": "mean", "max": "max", "noisy_or": "noisy-or"})
By = Annotated[CountedBy, Option(help="What numbers about whole cases count.")]
Aggregate = Annotated[
    Aggregates | None,
    Option(help="With --by patient: how the probabilities of a patient's cases become one; mean unless given."),
]
Resamples = Annotated[
    int | None, Option(help="Resamples of patients for intervals and p values; 2000 unless given, as everywhere.")
]
Threshold = Annotated[float | None, Option(help="Instance threshold; else the best on --validation.")]
Column = Annotated[int | None, Option(help="Score column, for models with more than two classes.")]
_PREDICTIONS = "holds predictions, not features; use smmil evaluate, report or export"


def _number_of_resamples(asked: int | None, *, least: int = 2) -> int:
    """The number that was asked for, else the usual one; least: 0 where none at all is an answer."""
    from smmil.evaluate.resampling import RESAMPLES

    if asked is not None and (asked < least or asked == 1):
        none = "0 (no intervals) or at least 2" if least == 0 else "at least 2"
        raise ConfigError(f"--resamples {asked}: expected {none}; {RESAMPLES} are usual")
    return RESAMPLES if asked is None else asked


def _how_counted(by: CountedBy, aggregate: Aggregates | None) -> dict[str, Any]:
    """The options --by and --aggregate as words."""
    return {"by": by.value, "aggregate": None if aggregate is None else aggregate.value}


def _check_threshold(threshold: float | None, validation: list[Path] | None = None) -> None:
    """Check that an instance threshold is finite and given in one way only."""
    if threshold is not None and not math.isfinite(threshold):
        raise ConfigError(f"--threshold {threshold}: expected a finite number, such as 0.5")
    if threshold is not None and validation:
        raise ConfigError(f"--threshold {threshold}: --validation chooses the threshold; give one of the two, not both")


def _right_verb(path: Path) -> str | None:
    """Message that says what a path is instead of a feature file, and the verb for it; None if unknown."""
    if path.is_dir():
        return _folder(path)
    if not path.is_file():
        return None
    if path.suffix.lower() == ".npz":
        return f"{path}: {_PREDICTIONS}"
    if path.suffix.lower() in (".safetensors", ".ckpt", ".pth"):
        return f"{path}: holds weights of a model, not features; use smmil predict with the folder of the run"
    return _image(path)


def _folder(path: Path) -> str | None:
    if (path / "manifest.csv").is_file():
        return f"{path}: is a folder; its bags are listed in the manifest: smmil inspect {path / 'manifest.csv'}"
    if (path / "config.yaml").is_file():
        return f"{path}: is a training run, not features; use smmil predict {path}"
    return f"{path}: {_PREDICTIONS}" if any(path.glob("*.npz")) else _image(path)


def _image(path: Path) -> str | None:
    """Message for slides and scans, recognised as in smmil prepare."""
    from smmil.prepare.table import ENDINGS, find_sources

    if path.is_file() and not path.name.lower().endswith(ENDINGS):
        return None
    try:
        found = find_sources([path])[0]
    except SmmilError:
        return None
    what = {"ct": "CT scans", "mr": "MR scans", "stack": "scans"}.get(found.kind or "", "slides")
    return f"{path}: pixels of {what}, not features; use smmil prepare {path} --out study --dry-run"


def _error_console() -> Any:
    """Standard error, a terminal only where it is one: notebooks set FORCE_COLOR, and a bar would fill pages."""
    from rich.console import Console

    return Console(stderr=True, force_terminal=None if sys.stderr.isatty() else False)


class _CaseBar:
    """A counter with the remaining time on standard error; nothing when that is not a terminal."""

    def __init__(self, words: str):
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = _error_console()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bars = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bars.add_task(words, total=None)
        self.stop = self._bars.stop

    def __enter__(self) -> "_CaseBar":
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def at(self, count: int, total: int, words: str | None = None) -> None:
        """Set the counter to `count` of `total`."""
        self._bars.update(self._task, completed=count, total=total, description=words)

    def one_more(self, words: str) -> None:
        """Advance the counter by one; the total is not known."""
        self._bars.update(self._task, advance=1, description=words)


def _table(title: str | None, texts: Iterable[str], numbers: Iterable[str]) -> Any:
    """A table with columns of texts, then of numbers."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left")
    for heading in texts:
        table.add_column(heading)
    for heading in numbers:
        table.add_column(Text(heading), justify="right")
    return table


def _print_line(console: Any, text: str) -> None:
    """Print a line as it is: no markup, no colours, no wrapping."""
    console.print(text, highlight=False, soft_wrap=True, markup=False)


def _exit_on_failures(reasons: Iterable[str], table: Path) -> None:
    """Print what failed and the table that lists it, and exit with code 3; nothing when nothing failed."""
    if reasons := list(reasons):
        for reason in reasons:
            print(f"failed: {reason}", file=sys.stderr)
        print(f"the failures are listed in {table}", file=sys.stderr)
        raise Exit(3)

"""smmil experiment run | search | status | tables | figures | trust"""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Exit, Option, Typer

from smmil.cli.options import (
    Aggregate,
    By,
    CountedBy,
    TrustCode,
    _check_place,
    _exit_on_failures,
    _how_counted,
    _table,
)

app = Typer(
    no_args_is_help=True,
    help="Grids of training runs: run what is missing, then write tables and figures.\n\n"
    "Start with: smmil experiment run configs/paper/main.yaml --out study --toy",
)
Config = Annotated[Path, Argument(help="YAML file of a study.")]
Out = Annotated[Path, Option(help="Folder of the study; runs in it are shared by all studies.")]
Data = Annotated[
    list[str] | None, Option("--data", help="Where data lie: CRCHISTO=manifest.csv. Also from the environment.")
]
Only = Annotated[list[str] | None, Option("--set", help="Only these data sets.")]
Toy = Annotated[bool, Option("--toy", help="Everything tiny and synthetic, to see that it works.")]


StudyExecutor = StrEnum("StudyExecutor", "serial processes dask submitit")
Executor = Annotated[StudyExecutor, Option(help="Where runs are executed.")]
Workers = Annotated[int | None, Option(help="Runs at once; one thread each.")]
Address = Annotated[str | None, Option("--dask", help="Address of a Dask scheduler.")]
Slurm = Annotated[list[str] | None, Option(help="Parameter of submitit, such as slurm_partition=gpu, timeout_min=600.")]


@contextmanager
def _stopped_in_words() -> Iterator[None]:
    """Ctrl-C and signals end the command with a sentence and the exit code of the signal."""
    from smmil.train.loop import Interrupted

    try:
        yield
    except Interrupted as stopped:
        print(f"{stopped}", file=sys.stderr)
        raise Exit(128 + stopped.signal) from None
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        raise Exit(130) from None


@app.command("run")
def run(
    config: Config,
    out: Out,
    data: Data = None,
    only: Only = None,
    toy: Toy = False,
    trust_code: TrustCode = False,
    executor: Executor = StudyExecutor.serial,
    workers: Workers = None,
    address: Address = None,
    slurm: Slurm = None,
) -> None:
    """Train and measure what is missing; repeat the command to go on after an interruption.

    [bold]Examples[/bold]

      smmil experiment run configs/paper/main.yaml --out study --executor processes --workers 2

      smmil experiment run configs/paper/crchisto.yaml --out study --data CRCHISTO=crchisto/manifest.csv
    """
    from smmil.cli.progress import _GridBars
    from smmil.experiments.runner import run_study

    _check_place(executor.value, workers, address, slurm)
    study = _study(config, data, toy, trust_code, check=True)
    with _stopped_in_words(), _GridBars() as bars:
        report = run_study(
            study,
            out,
            executor=executor.value,
            workers=workers,
            only=only or (),
            address=address,
            slurm=_parameters(slurm),
            on_begin=bars.begun,
            on_run=bars.ended,
            on_warning=bars.warned,
        )
    _print_report(report, out / study.name)


def _print_report(report: Any, folder: Path) -> None:
    from smmil.files import write_rows

    for line in report.left_out:
        print(line)
    meanwhile = f"{len(report.done_by_others)} done by another runner meanwhile, " if report.done_by_others else ""
    print(
        f"{folder / 'results.csv'}: {len(report.done)} runs done now, {meanwhile}{len(report.before)} there already, "
        f"{len(report.failed)} failed"
    )
    failures = folder / "failures.csv"
    write_rows(failures, ("run", "reason"), report.failed.items())
    _exit_on_failures((f"{label}: {reason}" for label, reason in report.failed.items()), failures)


@app.command("search")
def search(
    config: Config,
    out: Annotated[Path, Option(help="Folder of the search; the same folder goes on.")],
    trials: Annotated[int, Option(help="How many settings to try, those of before included.")] = 30,
    data: Data = None,
    only: Annotated[list[str] | None, Option("--set", help="The data set, where the study has several.")] = None,
    variant: Annotated[str | None, Option(help="The variant, where the study has several.")] = None,
    toy: Toy = False,
    trust_code: TrustCode = False,
    executor: Executor = StudyExecutor.serial,
    workers: Workers = None,
    address: Address = None,
    slurm: Slurm = None,
) -> None:
    """Search settings by validation with Optuna; repeat the command to go on after an interruption.

    The study says what may change, a range or a list: search: {training.lr: {low: 1e-5, high: 1e-3, log: true}}.
    Written: best.yaml for smmil train, trials.csv and trials.md. Test cases are not opened; where test sets rotate,
    every fold has a search of its own.

    [bold]Examples[/bold]

      smmil experiment search study.yaml --out search --trials 30

      smmil train search/best.yaml --out runs/best
    """
    from smmil.cli.progress import _GridBars
    from smmil.experiments.search import run_search

    _check_place(executor.value, workers, address, slurm)
    study = _study(config, data, toy, trust_code, check=True)
    place: dict[str, Any] = {"executor": executor.value, "workers": workers, "address": address}
    place["slurm"] = _parameters(slurm)
    with _stopped_in_words(), _GridBars("trials") as bars:
        chosen: dict[str, Any] = {"trials": trials, "only": only or (), "variant": variant}
        found = run_search(study, out, **chosen, **place, on_begin=bars.begun, on_trial=bars.ended)
    for one in found:
        _print_search(one)
    failed = [f"trial {t.number}: {t.reason}" for one in found for t in one.trials if t.reason]
    _exit_on_failures(failed, found[0].folder / "trials.csv")


def _print_search(found: Any) -> None:
    """The best trial in one line, and the next command."""
    if found.best is None:
        print(f"{found.folder}: no trial succeeded")
        return
    values = ", ".join(f"{key} {value}" for key, value in found.best.values.items())
    print(f"{found.folder / 'trials.md'}: {len(found.trials)} trials, best on validation: trial {found.best.number}")
    print(f"  {values}: AUROC {found.best.auroc:.4f}, loss {found.best.loss:.4f}")
    print(f"next: smmil train {found.folder / 'best.yaml'} --out runs/best")


@app.command("status")
def status(
    config: Config, out: Out, data: Data = None, only: Only = None, toy: Toy = False, trust_code: TrustCode = False
) -> None:
    """How many runs are done, running, failed and missing, by data set; failures with their reason."""
    from rich.console import Console

    from smmil.experiments.runner import run_states

    states = run_states(_study(config, data, toy, trust_code), out, only=only or ())
    counts = [Counter(label.split(" · ")[0] for label, _ in runs) for runs in states.values()]
    table = _table(None, ["data set"], states)
    for name in dict.fromkeys(name for count in counts for name in count):
        table.add_row(name, *(str(count[name]) for count in counts))
    Console().print(table)
    for label, reason in states["failed"]:
        print(f"failed: {label}: {reason}")


@app.command("tables")
def tables(
    config: Config,
    out: Out,
    data: Data = None,
    only: Only = None,
    toy: Toy = False,
    trust_code: TrustCode = False,
    by: By = CountedBy.case,
    aggregate: Aggregate = None,
) -> None:
    """Write the tables of the study from the runs that are done: Markdown, LaTeX, CSV, with the paper's numbers."""
    from smmil.experiments.tables import write_tables

    counted = _how_counted(by, aggregate)
    for path in write_tables(_study(config, data, toy, trust_code), out, only=only or (), **counted):
        print(path)


@app.command("figures")
def figures(
    config: Config, out: Out, data: Data = None, only: Only = None, toy: Toy = False, trust_code: TrustCode = False
) -> None:
    """Draw the figures of the study from the runs that are done: PNG and SVG."""
    from smmil.experiments.figures import write_figures

    paths, failed = write_figures(_study(config, data, toy, trust_code), out, only=only or ())
    for path in paths:
        print(path)
    for name, reason in failed.items():
        print(f"failed: {name}: {reason}", file=sys.stderr)
    if failed:
        raise Exit(3)


@app.command("trust")
def trust(
    config: Config,
    out: Out,
    data: Data = None,
    only: Only = None,
    toy: Toy = False,
    trust_code: TrustCode = False,
    executor: Annotated[StudyExecutor, Option(help="Where the extra runs are executed.")] = StudyExecutor.serial,
    workers: Annotated[int | None, Option(help="Runs at once.")] = None,
) -> None:
    """Ask whether the maps deserve trust: seeds, deletion and insertion, inverted maps, position, random labels."""
    from smmil.cli.progress import _GridBars
    from smmil.experiments.trust import trust_report

    _check_place(executor.value, workers, None)
    study = _study(config, data, toy, trust_code, check=True)
    options: dict[str, Any] = {"only": only or (), "executor": executor.value, "workers": workers}
    with _GridBars("steps") as bars:
        written = trust_report(study, out, **options, on_begin=bars.begun, on_step=bars.ended)
    for path in written:
        print(path)


def _study(config: Path, data: list[str] | None, toy: bool, trust_code: bool, check: bool = False) -> Any:
    """The study of a file, at toy size if asked; `check`: its models and their options exist."""
    from smmil.errors import ConfigError
    from smmil.experiments.grid import check_models, toy_study
    from smmil.experiments.study import load_study, parse_variables

    if not config.is_file():
        raise ConfigError(f"{config}: no such file; give the YAML file of a study, such as configs/paper/main.yaml")
    study = load_study(config, parse_variables(data or []), trust_code=trust_code)
    if check:
        check_models(study, str(config))
    return toy_study(study) if toy else study


def _parameters(texts: list[str] | None) -> dict[str, Any]:
    """key=value pairs with values read as YAML, so that numbers are numbers."""
    from smmil.config import parse_yaml
    from smmil.errors import ConfigError

    found = {}
    for text in texts or []:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--slurm {text!r}: expected key=value, such as timeout_min=600")
        found[key.strip()] = parse_yaml(value, f"--slurm {text}")
    return found

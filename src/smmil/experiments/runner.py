"""Run the missing runs of a study on any executor, and read the state and the results of a study."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pandas import DataFrame

from smmil.errors import DataError, SmmilError, check_choice
from smmil.executors import EXECUTORS, Outcome, run_tasks
from smmil.executors.cluster import run_on_slurm
from smmil.experiments.grid import _Grid, _make_grid, _PlannedRun, check_models
from smmil.experiments.results import _results_table, _write_results
from smmil.experiments.run import ALREADY, BUSY, FULL, _exclusive_lock, _finished, _is_busy, _perform, _RunJob
from smmil.experiments.study import Study
from smmil.files import read_json, write_text
from smmil.runtime import visible_cards

STUDY_EXECUTORS = (*EXECUTORS, "submitit")
OnRun = Callable[[str, str | None], Any]


@dataclass(frozen=True)
class _StudyFolder:
    """Paths of a study: runs and data are shared by all studies in `out`, results are its own."""

    out: Path
    name: str

    @property
    def own(self) -> Path:
        return self.out / self.name

    def run(self, key: str) -> Path:
        return self.out / "runs" / key


@dataclass(frozen=True)
class Report:
    """Outcome of `run_study`: labels of the runs done now, by other processes meanwhile, and before; failures with
    their reason; data sets left out."""

    done: list[str] = field(default_factory=list)
    done_by_others: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def run_study(
    study: Study,
    out: str | Path,
    *,
    executor: str = "serial",
    workers: int | None = None,
    only: Sequence[str] = (),
    address: str | None = None,
    slurm: dict[str, Any] | None = None,
    on_begin: Callable[[int, int], Any] | None = None,
    on_run: OnRun | None = None,
    on_warning: Callable[[str], Any] | None = None,
) -> Report:
    """Train and measure every run of the study that is not done yet, then write one table of all results.

    only      names of data sets whose runs are trained; the table holds what is done of all of them
    executor  serial, processes, dask or submitit (a SLURM array; `slurm` holds its parameters); processes on a machine
              with several CUDA cards: one run on each
    on_begin  called with the number of finished runs and of all runs
    on_run    called with the label of each run that ends, and the reason if it failed
    on_warning  called before the first training with what the study will not be able to show

    Killed at any moment and called again it goes on; the table has the same bytes whatever happened on the way and
    whichever executor did the work. A run that fails does not stop the others; it is tried again by the next call.
    A model or option that does not exist, and a full disk, stop everything.
    """
    check_choice(executor, STUDY_EXECUTORS, "executor")
    check_models(study, study.name)
    folder = _StudyFolder(Path(out), study.name)
    grid = _make_grid(study, folder.out / "data", only=only)
    done = {run.key for run in grid.runs if _finished(folder.run(run.key)) is not None}
    todo = [run for run in grid.runs if run.key not in done]
    jobs = [
        _RunJob(
            str(folder.run(run.key).absolute()),
            run.label,
            run.config,
            cards=visible_cards(run.config.training.device) if executor == "processes" else (),
        )
        for run in todo
    ]
    workers = workers or max((len(job.cards) for job in jobs), default=0) or None  # one run on each card
    report = Report(before=[run.label for run in grid.runs if run.key in done], left_out=grid.left_out)
    runs = _runs_of_all_sets(study, folder, grid, report) if only else grid.runs
    folder.own.mkdir(parents=True, exist_ok=True)
    if todo and on_warning is not None:
        for warning in grid.warnings:
            on_warning(warning)
    if on_begin is not None:
        on_begin(len(done), len(grid.runs))
    if executor == "submitit":
        run_all = partial(run_on_slurm, folder=folder.out / "slurm", workers=workers, parameters=slurm or {})
    else:
        run_all = partial(run_tasks, executor=executor, workers=workers, address=address)
    _perform_all(jobs, report, run_all, on_run)
    with _exclusive_lock(folder.own / "lock", wait=True):
        # Temporary files that a killed process left of the files written under the lock, and no others.
        for name in ("grid.csv", "results.csv", "results.parquet"):
            for path in folder.own.glob(f".*-{name}"):
                path.unlink(missing_ok=True)
        listed = DataFrame([{"run": run.key, "label": run.label, **run.facts} for run in runs])
        write_text(folder.own / "grid.csv", listed.to_csv(index=False, lineterminator="\n"))
        _write_results(_collect(runs, folder), folder.own)
    return report


def _runs_of_all_sets(study: Study, folder: _StudyFolder, asked: _Grid, report: Report) -> list[_PlannedRun]:
    """Runs of all data sets in the order of the study; a set outside `only` that cannot be read is reported."""
    runs = {name: [run for run in asked.runs if run.facts["set"] == name] for name in (d.name for d in study.datasets)}
    for dataset in study.datasets:
        if not runs[dataset.name] and dataset.missing is None:
            try:
                runs[dataset.name] = _make_grid(study, folder.out / "data", only=[dataset.name]).runs
            except SmmilError as problem:
                report.left_out.append(f"{dataset.name}: not in the table of results, {problem}")
    return [run for name in runs for run in runs[name]]


def _perform_all(jobs: list[_RunJob], report: Report, run_all: Callable[..., Any], on_run: OnRun | None) -> None:
    """Run every job; those locked by another process are repeated at the end and then wait for it."""
    busy: list[_RunJob] = []

    def record(outcome: Outcome[_RunJob, str]) -> None:
        if outcome.ok and outcome.value == BUSY:
            busy.append(replace(outcome.task, wait=True))
            return
        if outcome.ok and outcome.value == FULL:
            raise DataError(f"{outcome.task.folder}: the disk is full; make room and repeat the command")
        if outcome.ok:
            (report.done_by_others if outcome.value == ALREADY else report.done).append(outcome.task.label)
        else:
            report.failed[outcome.task.label] = str(outcome.error)
        if on_run is not None:
            on_run(outcome.task.label, outcome.error)

    run_all(_perform, jobs, on_done=record)
    if busy:
        run_all(_perform, busy, on_done=record)


def _collect(runs: Sequence[_PlannedRun], folder: _StudyFolder) -> DataFrame:
    """Table of the runs that are done, one row each."""
    rows = [(run, _finished(folder.run(run.key), thorough=False)) for run in runs]
    return _results_table({"run": run.key, **run.facts, **row} for run, row in rows if row is not None)


def load_results(study: Study, out: str | Path, *, only: Sequence[str] = ()) -> Any:
    """Table of the finished runs of a study, possibly empty."""
    folder = _StudyFolder(Path(out), study.name)
    return _collect(_make_grid(study, folder.out / "data", only=only).runs, folder)


def run_states(study: Study, out: str | Path, *, only: Sequence[str] = ()) -> dict[str, list[tuple[str, str]]]:
    """Labels by state: done, running (a process holds its lock), failed (with the reason), missing."""
    found: dict[str, list[tuple[str, str]]] = {state: [] for state in ("done", "running", "failed", "missing")}
    folder = _StudyFolder(Path(out), study.name)
    for row in _plan_table(_make_grid(study, folder.out / "data", only=only), folder).itertuples():
        found[row.state].append((row.label, row.reason))
    return found


def _plan_table(grid: _Grid, folder: _StudyFolder) -> Any:
    """Table of all runs of a study, done or not: the facts of each, its state and why it failed."""
    rows = []
    for run in grid.runs:
        state, reason = _state(folder.run(run.key))
        rows.append({"run": run.key, "label": run.label, **run.facts, "state": state, "reason": reason})
    return DataFrame(rows)


def _state(path: Path) -> tuple[str, str]:
    if _finished(path, thorough=False) is not None:
        return "done", ""
    try:
        if path.exists() and not path.is_dir():
            return "failed", f"{path}: is a file where the folder of a run is needed; remove it and repeat"
        if _is_busy(path):
            return "running", ""
        if (path / "failure.json").exists():
            return "failed", str(read_json(path / "failure.json", dict).get("reason", ""))
    except OSError as problem:
        return "failed", f"{path}: {problem.strerror}; repair the folder and repeat"
    return "missing", ""


def _finished_results(study: Study, out: str | Path, only: Sequence[str] = ()) -> tuple[Any, Any]:
    """Tables of the runs that are done and of all runs with their state; an error when none is done."""
    folder = _StudyFolder(Path(out), study.name)
    grid = _make_grid(study, folder.out / "data", only=only)
    results, plan = _collect(grid.runs, folder), _plan_table(grid, folder)
    if not len(results):
        failed = int((plan["state"] == "failed").sum())
        advice = f"{failed} runs failed: see smmil experiment status" if failed else "begin with smmil experiment run"
        raise DataError(f"{folder.own}: no run is done yet; {advice}")
    return results, plan

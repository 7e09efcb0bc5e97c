"""Search for settings by validation: trials proposed by Optuna, trained on any executor, resumed after a kill."""

import json
import math
import multiprocessing
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pandas import DataFrame
from pydantic import TypeAdapter, ValidationError

from smmil.config import TrainConfig, checked
from smmil.errors import ConfigError, DataError, suggest
from smmil.executors import Outcome, run_tasks
from smmil.executors.cluster import run_on_slurm
from smmil.experiments.datasets import _folds_to_train, _prepare, _PreparedSet
from smmil.experiments.grid import _available, _check_buildable, _run_name, _run_settings
from smmil.experiments.run import _DISK_FULL, _RUN_ERRORS, _exclusive_lock, _one_line
from smmil.experiments.search_space import changed, corners, distributions
from smmil.experiments.study import Dataset, Study, Variant
from smmil.experiments.writing import _for_spreadsheets, _markdown_cell, _markdown_row
from smmil.files import digest, read_json, write_json, write_text
from smmil.runtime import available_cores
from smmil.train.loop import Interrupted
from smmil.train.run import train

_FORMAT = 1
WAITING, DONE, FAILED = "waiting", "done", "failed"
_EXAMPLE = "search: {training.lr: {low: 1e-5, high: 1e-3, log: true}, model.options.dim: [128, 256]}"
OnTrial = Callable[[str, str | None], Any]


@dataclass
class Trial:
    """One proposal of settings and what validation said: means over folds and seeds, and the epoch of each run."""

    number: int
    values: dict[str, Any]
    state: str = WAITING
    auroc: float | None = None
    loss: float | None = None
    epochs: list[int] = field(default_factory=list)
    reason: str = ""


class SearchResult(NamedTuple):
    """The folder of a search with best.yaml, trials.csv and trials.md, its best trial, and all of them."""

    folder: Path
    best: Trial | None
    trials: list[Trial]


class _TrialRun(NamedTuple):
    """One training of a trial as a task."""

    number: int
    folder: str
    config: TrainConfig


def run_search(
    study: Study,
    out: str | Path,
    *,
    trials: int = 30,
    only: Sequence[str] = (),
    variant: str | None = None,
    executor: str = "serial",
    workers: int | None = None,
    address: str | None = None,
    slurm: dict[str, Any] | None = None,
    on_begin: Callable[[int, int], Any] | None = None,
    on_trial: OnTrial | None = None,
) -> list[SearchResult]:
    """Search the settings in `study.search` for one data set and one variant, until there are so many trials.

    A trial is trained on every fold and seed of the study and judged by the mean of its best validation values
    (training.select). No test case is opened. Where test sets rotate, every fold is searched for itself, in a folder of
    its own: the validation cases of the others hold its test cases. Killed at any moment and called again it goes on;
    finished trials are not repeated. Trials that fail are listed and count as tried.
    """
    if trials < 1:
        raise ConfigError(f"--trials: must be at least 1, got {trials}")
    if not study.search:
        raise ConfigError(f"{study.name}: nothing to search; give the study a section such as {_EXAMPLE}")
    known = distributions(study.search)
    dataset, chosen = _one_dataset(study, only), _one_variant(study, variant)
    place = Path(out)
    ready = _prepare(dataset, place / "data")
    folds = _folds_to_train(dataset, ready, study.folds)
    parts = [[fold] for fold in folds.numbers] if folds.rotate else [folds.numbers]
    searches = [
        _Search(study, dataset, chosen, ready, part, place, place / f"fold{part[0]}" if folds.rotate else place, known)
        for part in parts
    ]
    searches[0].check()
    for one in searches:
        one.load()
    if on_begin is not None:
        on_begin(
            sum(one.tried for one in searches), max(trials, *(len(one.trials) for one in searches)) * len(searches)
        )
    if executor == "submitit":
        run_all = partial(run_on_slurm, folder=place / "slurm", workers=workers, parameters=slurm or {})
    else:
        run_all = partial(run_tasks, executor=executor, workers=workers, address=address)
    at_once = 1 if executor == "serial" else workers or available_cores()
    return [one.run(trials, at_once, run_all, on_trial) for one in searches]


def _one_dataset(study: Study, only: Sequence[str]) -> Dataset:
    there, _ = _available(study, list(only))
    if len(there) > 1:
        raise ConfigError(f"{study.name}: has {len(there)} data sets; choose one with --set {there[0].name}")
    return there[0]


def _one_variant(study: Study, name: str | None) -> Variant:
    known = {one.name: one for one in study.variants}
    if name is not None and name not in known:
        raise ConfigError(f"--variant: unknown variant {name!r}; {suggest(name, known)}")
    if name is None and len(known) > 1:
        raise ConfigError(f"{study.name}: has {len(known)} variants; choose one with --variant {next(iter(known))!r}")
    return known[name] if name is not None else study.variants[0]


def _read_trials(path: Path, identity: str) -> list[Trial]:
    """The trials in a file; those of another search are refused."""
    content = read_json(path, dict)
    if content.get("format") != _FORMAT or content.get("search") != identity:
        raise ConfigError(f"{path}: holds another search (of other settings, ranges or data); use another --out folder")
    try:
        return TypeAdapter(list[Trial]).validate_python(content.get("trials"))
    except ValidationError:
        raise DataError(f"{path}: no list of trials; restore it, or use another --out folder") from None


@dataclass
class _Search:
    """One search in its folder."""

    study: Study
    dataset: Dataset
    variant: Variant
    ready: _PreparedSet
    folds: list[int]
    place: Path  # with the folder `runs`, shared by the searches of all folds
    folder: Path
    known: dict[str, Any]
    trials: list[Trial] = field(default_factory=list)

    @property
    def tried(self) -> int:
        return sum(trial.state != WAITING for trial in self.trials)

    def configs(self, values: dict[str, Any]) -> list[TrainConfig]:
        """Settings of the runs of a trial: every seed and fold."""
        found = []
        for seed in self.study.seeds:
            for fold in self.folds:
                lr = self.study.learning_rates[0]
                content = _run_settings(self.study, self.dataset, self.ready, self.variant, lr, seed, fold)
                found.append(checked(TrainConfig, changed(content, values), f"{self.study.name}: search"))
        return found

    def check(self) -> None:
        """Refuse values that no run could have, before the first training."""
        for values in corners(self.study.search):
            config = self.configs(values)[0]
            _check_buildable(config.model.name, json.dumps(config.model.options, sort_keys=True))

    @property
    def identity(self) -> str:
        """Digest of what is searched, where, and on which data."""
        first = next(iter(corners(self.study.search)))
        runs = [_run_name(config, self.ready) for config in self.configs(first)]
        return digest(repr(sorted((key, repr(one)) for key, one in self.study.search.items())), *runs)

    def load(self) -> None:
        """Read the trials that were recorded; those of another search are refused."""
        if (path := self.folder / "trials.json").exists():
            self.trials = _read_trials(path, self.identity)
        for trial in self.trials:  # in the order of the study, which JSON does not keep
            trial.values = {key: trial.values[key] for key in self.study.search if key in trial.values}

    def run(self, wanted: int, at_once: int, run_all: Callable[..., Any], on_trial: OnTrial | None) -> SearchResult:
        """Train trials until there are `wanted`; those that a kill left unfinished come first."""
        batch = max(1, at_once // (len(self.folds) * len(self.study.seeds)))
        while self.tried < max(wanted, len(self.trials)):
            waiting = [trial for trial in self.trials if trial.state == WAITING][:batch]
            while len(waiting) < batch and len(self.trials) < wanted:
                self.trials.append(Trial(len(self.trials), self.propose(len(self.trials))))
                waiting.append(self.trials[-1])
            self.save()
            self.train(waiting, run_all, on_trial)
        self.write()
        return SearchResult(self.folder, self.best, self.trials)

    def propose(self, number: int) -> dict[str, Any]:
        """Settings of the next trial: they depend on those before it and on its number, not on interruptions."""
        import optuna

        states = optuna.trial.TrialState
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about options of the sampler that older versions call experimental
            sampler = optuna.samplers.TPESampler(seed=int(digest(str(number))[:8], 16), constant_liar=True)
            optuna.logging.set_verbosity(optuna.logging.ERROR)
            history = optuna.create_study(direction="maximize", sampler=sampler)
            for trial in self.trials:
                state = {DONE: states.COMPLETE, FAILED: states.FAIL, WAITING: states.RUNNING}[trial.state]
                value = self.score(trial)[0] if trial.state == DONE else None
                facts: dict[str, Any] = {
                    "params": trial.values,
                    "distributions": self.known,
                    "value": value,
                    "state": state,
                }
                history.add_trial(optuna.create_trial(**facts))
            return dict(history.ask(self.known).params)

    def train(self, waiting: list[Trial], run_all: Callable[..., Any], on_trial: OnTrial | None) -> None:
        """Train all runs of these trials; each trial is recorded as soon as its last run is done."""
        tasks = []
        for trial in waiting:
            runs = [(_run_name(config, self.ready), config) for config in self.configs(trial.values)]
            tasks += [_TrialRun(trial.number, str((self.place / "runs" / n).absolute()), c) for n, c in runs]
        expected = len(tasks) // len(waiting)
        ended: dict[int, list[Outcome[_TrialRun, dict[str, float]]]] = {trial.number: [] for trial in waiting}

        def record(outcome: Outcome[_TrialRun, dict[str, float]]) -> None:
            own = ended[outcome.task.number]
            own.append(outcome)
            if len(own) == expected:
                trial = self.trials[outcome.task.number]
                _judge(trial, sorted(own, key=lambda one: one.index))
                self.save()
                self.write()
                if on_trial is not None:
                    on_trial(self.label(trial), trial.reason or None)

        run_all(_train_one, tasks, on_done=record)

    def label(self, trial: Trial) -> str:
        values = ", ".join(f"{key.split('.')[-1]} {_short(value)}" for key, value in trial.values.items())
        fold = f"fold {self.folds[0]} · " if self.folder != self.place else ""
        return f"{fold}trial {trial.number}: {values}"

    def score(self, trial: Trial) -> tuple[float, float]:
        """What a trial is ranked by: the validation value that selects epochs, then the other."""
        auroc, loss = trial.auroc, -math.inf if trial.loss is None else -trial.loss
        first = -math.inf if auroc is None or math.isnan(auroc) else auroc
        return (first, loss) if self.configs(trial.values)[0].training.select == "auroc" else (loss, first)

    @property
    def best(self) -> Trial | None:
        """The best finished trial; of equals the first."""
        return max((t for t in self.trials if t.state == DONE), key=lambda t: (*self.score(t), -t.number), default=None)

    def save(self) -> None:
        content = {"format": _FORMAT, "search": self.identity, "trials": [asdict(trial) for trial in self.trials]}
        write_json(self.folder / "trials.json", content)

    def write(self) -> None:
        """best.yaml, trials.csv and trials.md of the trials so far."""
        best = self.best
        if best is not None:
            config = self.configs(best.values)[0].anchored()
            note = f"# trial {best.number}, the best of {self.tried} by validation: {_validation(best)}\n"
            write_text(self.folder / "best.yaml", note + config.to_yaml())
        rows = [
            {"trial": t.number, "state": t.state, **t.values, "val_auroc": t.auroc, "val_loss": t.loss,
             "epochs": " ".join(map(str, t.epochs)), "reason": t.reason}
            for t in self.trials
        ]  # fmt: skip
        write_text(self.folder / "trials.csv", _for_spreadsheets(DataFrame(rows)))
        write_text(self.folder / "trials.md", self.page())

    def page(self) -> str:
        """Markdown page of the trials, best first."""
        keys = list(self.study.search)
        heads = ["trial", *keys, "validation AUROC", "validation loss", "epochs"]
        title = f"Search: {self.dataset.name} · {self.variant.name}"
        lines = [f"## {self.study.headline(title)}", "", _markdown_row(heads), _markdown_row(["---"] * len(heads))]
        done = sorted(
            (t for t in self.trials if t.state == DONE), key=lambda t: (*self.score(t), -t.number), reverse=True
        )
        for t in done:
            cells = [t.number, *(_short(t.values[key]) for key in keys), f"{t.auroc:.4f}", f"{t.loss:.4f}"]
            lines.append(_markdown_row([_markdown_cell(cell) for cell in [*cells, " ".join(map(str, t.epochs))]]))
        failed = [f"- trial {t.number} failed: {_markdown_cell(t.reason)}" for t in self.trials if t.state == FAILED]
        folds = ", ".join(map(str, self.folds))
        reading = (
            f"- means over folds ({folds}) and {len(self.study.seeds)} seeds of the best epoch of each run, on "
            "validation cases only; no test case was opened",
            "- the best of many trials looks better on validation than it is: judge it on its test cases, once",
        )
        return "\n".join([*lines, "", *failed, *reading, ""])


def _judge(trial: Trial, outcomes: Sequence[Outcome[_TrialRun, dict[str, float]]]) -> None:
    """Note the mean of the runs, or why one of them failed."""
    problems = [outcome.error for outcome in outcomes if outcome.error is not None]
    if problems:
        trial.state, trial.reason = FAILED, problems[0]
        return
    found = [outcome.value for outcome in outcomes if outcome.value is not None]
    means = {key: math.fsum(one[key] for one in found) / len(found) for key in ("auroc", "loss")}
    trial.state, trial.auroc, trial.loss = DONE, means["auroc"], means["loss"]
    trial.epochs = [int(one["epoch"]) for one in found]


def _train_one(task: _TrialRun) -> dict[str, float]:
    """Train one run, from its last checkpoint if there is one, and give the validation values of its best epoch."""
    folder = Path(task.folder)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with _exclusive_lock(folder / "lock", wait=True):
            best = train(task.config, folder / "train").best
    except Interrupted as stopped:
        if multiprocessing.parent_process() is None:
            raise
        sys.exit(128 + stopped.signal)
    except _RUN_ERRORS as problem:
        if isinstance(problem, OSError) and problem.errno in _DISK_FULL:
            raise
        raise DataError(_one_line(problem)) from problem
    return {key: float(best[key]) for key in ("epoch", "auroc", "loss")}


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _validation(trial: Trial) -> str:
    return f"AUROC {trial.auroc:.4f}, loss {trial.loss:.4f}"

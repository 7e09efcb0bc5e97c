"""Programs that receive the numbers of every epoch: TensorBoard, MLflow and Weights & Biases, all on this disk.

They get settings of model and training, the name of no case, no path and no host. Nothing is sent anywhere: who wants a
server copies or synchronises the folder. A logger that fails says so once and is left out; training goes on.
"""

import math
import os
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from smmil.config import TrainConfig
from smmil.errors import MissingExtra

_PROJECT = "smmil"
_OF_THE_MACHINE = ("training.device", "training.threads", "training.workers", "training.checkpoint_minutes")
# Nothing about the machine, its user, the program or its packages; no console output.
_WANDB_SETTINGS = {
    **{"mode": "offline", "silent": True, "console": "off", "host": "hidden", "username": "hidden"},
    **{"disable_git": True, "disable_code": True, "x_disable_meta": True, "x_disable_stats": True},
    **{"x_disable_machine_info": True, "x_save_requirements": False},
}


class _Logger(Protocol):
    """Receives rows of metrics.csv."""

    def add(self, row: dict[str, Any]) -> None:
        """The numbers of an epoch."""

    def close(self) -> None:
        """No more rows follow from this process."""


class _TensorBoardLog:
    """Writes each epoch's numbers as TensorBoard scalars; resuming replaces later epochs."""

    def __init__(self, folder: Path, config: TrainConfig, history: Sequence[dict[str, Any]]):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtra("tensorboard", "tensorboard", "training.tensorboard") from None
        self._writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=len(history) + 1)

    def add(self, row: dict[str, Any]) -> None:
        for name, value in row.items():
            if name != "epoch":
                self._writer.add_scalar(name, value, row["epoch"])
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _MLflowLog:
    """One MLflow run in mlflow.db (SQLite) of the run's folder; epochs that a kill kept from it are added on resume."""

    def __init__(self, folder: Path, config: TrainConfig, history: Sequence[dict[str, Any]]):
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        try:
            import alembic  # noqa: F401 (mlflow-skinny needs both for SQLite)
            import sqlalchemy  # noqa: F401
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise MissingExtra("mlflow", "mlflow", "training.loggers: mlflow") from None
        self._client = MlflowClient(tracking_uri=f"sqlite:///{(folder / 'mlflow.db').resolve()}")
        found = self._client.get_experiment_by_name(_PROJECT)
        # a place that is no path: artifacts are not stored, and the folder of the run is nobody's business
        place = f"mlflow-artifacts:/{_PROJECT}"
        experiment = found.experiment_id if found else self._client.create_experiment(_PROJECT, artifact_location=place)
        runs = self._client.search_runs([experiment], max_results=1)
        self._run = runs[0].info.run_id if runs else self._begin(experiment, config)
        known = {point.step for point in self._client.get_metric_history(self._run, "train_loss")}
        for row in history:
            if row["epoch"] not in known:
                self.add(row)

    def _begin(self, experiment: str, config: TrainConfig) -> str:
        run: str = self._client.create_run(experiment, run_name=config.model.name).info.run_id
        for name, value in _settings(config).items():
            self._client.log_param(run, name, value)
        return run

    def add(self, row: dict[str, Any]) -> None:
        for name, value in _numbers(row).items():
            self._client.log_metric(self._run, name, value, step=row["epoch"])

    def close(self) -> None:
        self._client.set_terminated(self._run)


class _WandbLog:
    """An offline run of Weights & Biases in the run's folder; `wandb sync` sends it where the user wants it."""

    def __init__(self, folder: Path, config: TrainConfig, history: Sequence[dict[str, Any]]):
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        try:
            import wandb
        except ImportError:
            raise MissingExtra("wandb", "wandb", "training.loggers: wandb") from None
        self._folder = folder / "wandb"
        self._run: Any = wandb.init(
            project=_PROJECT,
            dir=str(folder),
            id=config.digest()[:16],  # the parts of a run that was stopped and resumed belong together
            name=config.model.name,
            resume="allow",
            config=_settings(config),
            settings=wandb.Settings(**_WANDB_SETTINGS),
        )

    def add(self, row: dict[str, Any]) -> None:
        self._run.log(_numbers(row), step=row["epoch"])

    def close(self) -> None:
        self._run.finish()
        for logs in self._folder.glob("*/logs"):  # of its own program, with paths of this machine
            shutil.rmtree(logs, ignore_errors=True)


_KINDS: dict[str, Callable[[Path, TrainConfig, Sequence[dict[str, Any]]], _Logger]] = {
    "tensorboard": _TensorBoardLog,
    "mlflow": _MLflowLog,
    "wandb": _WandbLog,
}


class _EpochLog:
    """All loggers that the settings ask for."""

    def __init__(
        self, folder: Path, config: TrainConfig, history: Sequence[dict[str, Any]], message: Callable[[str], None]
    ):
        self._message, self._loggers = message, dict[str, _Logger]()
        asked = (["tensorboard"] if config.training.tensorboard else []) + list(config.training.loggers)
        for name in dict.fromkeys(asked):
            self._guard(name, partial(self._start, name, folder, config, history))

    def _start(self, name: str, folder: Path, config: TrainConfig, history: Sequence[dict[str, Any]]) -> None:
        self._loggers[name] = _KINDS[name](folder, config, history)

    def add(self, row: dict[str, Any]) -> None:
        """Give the numbers of an epoch to every logger."""
        for name, logger in list(self._loggers.items()):
            self._guard(name, partial(logger.add, row))

    def close(self) -> None:
        for name, logger in list(self._loggers.items()):
            self._guard(name, logger.close)

    def _guard(self, name: str, action: Callable[[], Any]) -> None:
        """Act; a logger that fails is told once and left out, one that is not installed is an error of the user."""
        try:
            action()
        except MissingExtra:
            raise
        except Exception as problem:  # noqa: BLE001 (other people's programs must not stop a training)
            self._loggers.pop(name, None)
            reason = " ".join(str(problem).split())[:200] or "no reason given"
            kind = type(problem).__name__
            self._message(f"note: the logger {name} failed ({kind}: {reason}); training goes on without it")


def _settings(config: TrainConfig) -> dict[str, Any]:
    """Settings of model and training as one level of dotted keys; nothing of data, which would name files."""
    flat: dict[str, Any] = {"model.name": config.model.name}
    flat |= {f"model.options.{key}": value for key, value in config.model.options.items()}
    flat |= {f"training.{key}": value for key, value in config.training.model_dump().items()}
    return {key: value for key, value in flat.items() if key not in (*_OF_THE_MACHINE, "training.loggers")}


def _numbers(row: dict[str, Any]) -> dict[str, float]:
    """The finite numbers of an epoch."""
    return {name: float(value) for name, value in row.items() if name != "epoch" and math.isfinite(value)}

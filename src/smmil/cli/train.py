"""smmil train"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option, echo
from typer.core import TyperCommand

from smmil.cli.options import TrustCode
from smmil.errors import ConfigError

if TYPE_CHECKING:
    from smmil.config import TrainConfig
    from smmil.train.run import RunResult


def train(
    out: Annotated[Path, Option(help="Folder of the run; the same folder resumes.")],
    config: Annotated[Path | None, Argument(help="YAML file with sections data, model, training, target.")] = None,
    set_: Annotated[list[str] | None, Option("--set", help="Change a setting: training.lr=1e-5")] = None,
    manifest: Annotated[Path | None, Option(help="Table of bags (short for --set data.manifest=…).")] = None,
    model: Annotated[str | None, Option(help="Name of the model (short for --set model.name=…).")] = None,
    fold: Annotated[int | None, Option(help="Which fold validates, from 0.")] = None,
    epochs: Annotated[int | None, Option(help="Passes over the training cases (training.epochs; 50).")] = None,
    lr: Annotated[float | None, Option(help="Learning rate (training.lr; 1e-4).")] = None,
    batch_size: Annotated[int | None, Option(help="Bags at once (training.batch_size; 4).")] = None,
    seed: Annotated[int | None, Option(help="Seed of weights, order and dropout.")] = None,
    trust_code: TrustCode = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Check and show the settings, train nothing.")] = False,
) -> None:
    """Train a model; repeat the same command to go on after an interruption.

    [bold]Examples[/bold]

      smmil train --manifest manifest.csv --model sm_ap --out runs/x

      smmil train configs/example.yaml --manifest manifest.csv --out runs/first

      smmil train study.yaml --out runs/fold2 --fold 2 --epochs 100 --lr 1e-5 --set training.weight_decay=1e-4

      smmil train --manifest manifest.csv --model sm_ap --set target.kind=survival --out runs/survival

    What is learned is the class in the column label unless target.kind says otherwise: multilabel (columns label_…, 0,
    1 or empty), ordinal (label: levels from 0), regression (label: a number), survival or cox (columns time and event,
    0 where the case was censored; cox wants training.batch_size of 8 or more). Other columns: target.columns=[er,pr].

    The folder then holds config.yaml, split.json, metrics.csv, run.json and checkpoints/; go on with smmil predict.
    """
    from smmil.config import load_config

    short: dict[str, Any] = {
        "data.manifest": manifest,
        "model.name": model,
        "data.fold": fold,
        "training.epochs": epochs,
    }
    short |= {"training.lr": lr, "training.batch_size": batch_size, "training.seed": seed}
    given = [f"{key}={value}" for key, value in short.items() if value is not None]
    _refuse_two_values(given, set_ or [])
    if config is None and manifest is None and not any(text.startswith("data.manifest=") for text in set_ or []):
        raise ConfigError("no table of bags; give --manifest manifest.csv, or a config file that names it")
    if config is not None and config.suffix.lower() in (".csv", ".parquet"):
        raise ConfigError(f"{config}: is a table, not a config; give it with --manifest {config}")
    if config is None and model is None and not any(text.startswith("model.name=") for text in set_ or []):
        raise ConfigError("no model; give --model sm_ap (smmil models lists all), or a config file that names it")
    settings = load_config(config, [*given, *(set_ or [])], trust_code=trust_code)
    if dry_run:
        from smmil.train.run import check_settings

        check_settings(settings)
        echo(settings.to_yaml(), nl=False)
        return
    from smmil.cli.progress import _TrainingBars
    from smmil.train.run import train as train_run

    with _TrainingBars() as bars:
        result = train_run(settings, out, progress=bars)
    bars.summary(result, _doubt(settings, result))


def _refuse_two_values(short: list[str], given: list[str]) -> None:
    """Refuse a setting that has one value in its own option and another in --set."""
    from smmil.config import parse_yaml

    values = dict(text.split("=", 1) for text in short)
    for key, _, value in (text.partition("=") for text in given):
        if (other := values.get(key.strip())) is not None and parse_yaml(other, key) != parse_yaml(value, key):
            raise ConfigError(f"{key.strip()}: is given twice, as {other} and with --set as {value}; keep one of them")


def _doubt(settings: "TrainConfig", result: "RunResult") -> str | None:
    """What to think of a model that tells validation bags no better than chance, in words; None of a better one."""
    from smmil.data.manifest import Manifest
    from smmil.data.patients import StudyBags
    from smmil.data.splits import run_split
    from smmil.evaluate.ranking import chance_in_words, target_chance_in_words

    classes, what = settings.target.kind == "class", "patients" if settings.data.bags == "patient" else "cases"
    table = Manifest.read(settings.anchored().data.manifest).for_target(None if classes else settings.target)
    validation = [id_ for id_ in run_split(result.folder).val if id_ in table.labels]
    bags = StudyBags(table, validation, bags=settings.data.bags)
    if not classes:
        rows = [row for row in bags.targets.values() if row is not None]
        metric = next(key for key in result.best if key not in ("epoch", "loss", "weights"))
        carrying = sum(metric != "cindex" or row[1] > 0 for row in rows)
        return target_chance_in_words(metric, result.best[metric], carrying, what)
    known = [y for y in bags.labels.values() if y is not None]
    return chance_in_words(result.best.get("auroc"), known, what=what)


class _TrainCommand(TyperCommand):
    """The verb train, which names the setting behind an option that it does not have."""

    def parse_args(self, context: Any, words: list[str]) -> list[str]:
        try:
            return super().parse_args(context, words)
        except Exception as problem:
            from smmil.config import setting_section

            key = str(getattr(problem, "option_name", "")).lstrip("-").replace("-", "_")
            if section := setting_section(key):
                raise ConfigError(
                    f"train has no option --{key.replace('_', '-')}; give --set {section}.{key}=…"
                ) from None
            raise

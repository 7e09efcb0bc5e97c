"""smmil train"""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option, echo

from smmil.cli.options import TrustCode


def train(
    out: Annotated[Path, Option(help="Folder of the run; the same folder resumes.")],
    config: Annotated[Path | None, Argument(help="YAML file with sections data, model, training, target.")] = None,
    set_: Annotated[list[str] | None, Option("--set", help="Change a setting: training.lr=1e-5")] = None,
    manifest: Annotated[Path | None, Option(help="Table of bags (short for --set data.manifest=…).")] = None,
    model: Annotated[str | None, Option(help="Name of the model (short for --set model.name=…).")] = None,
    fold: Annotated[int | None, Option(help="Which fold validates, from 0.")] = None,
    seed: Annotated[int | None, Option(help="Seed of weights, order and dropout.")] = None,
    trust_code: TrustCode = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Check and show the settings, train nothing.")] = False,
) -> None:
    """Train a model; repeat the same command to go on after an interruption.

    [bold]Examples[/bold]

      smmil train --manifest manifest.csv --model sm_ap --out runs/x

      smmil train configs/example.yaml --manifest manifest.csv --out runs/first

      smmil train study.yaml --out runs/fold2 --fold 2 --set training.lr=1e-5

      smmil train --manifest manifest.csv --model sm_ap --set target.kind=survival --out runs/survival

    What is learned is the class in the column label unless target.kind says otherwise: multilabel (columns label_…, 0,
    1 or empty), ordinal (label: levels from 0), regression (label: a number), survival or cox (columns time and event,
    0 where the case was censored; cox wants training.batch_size of 8 or more). Other columns: target.columns=[er,pr].

    The folder then holds config.yaml, split.json, metrics.csv, run.json and checkpoints/; go on with smmil predict.
    """
    from smmil.config import load_config
    from smmil.errors import ConfigError

    short = {"data.manifest": manifest, "model.name": model, "data.fold": fold, "training.seed": seed}
    given = [f"{key}={value}" for key, value in short.items() if value is not None]
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
    bars.summary(result)

"""smmil drift"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from smmil.cli.options import _CaseBar, _exit_on_failures, _table

if TYPE_CHECKING:
    from smmil.evaluate.drift import DriftSummary


def drift(
    model: Annotated[
        Path, Argument(metavar="RUN | SUMMARY", help="Folder of a run or package, or a summary (.safetensors) of one.")
    ],
    manifest: Annotated[
        Path | None,
        Option(help="Bags to compare with those the model learned from; without it: write the summary."),
    ] = None,
    out: Annotated[
        Path | None, Option(help="The summary to write (RUN/drift.safetensors); with --manifest a table (.csv).")
    ] = None,
    level: Annotated[
        float | None, Option(help="Share of unshifted cases on which the alarm may be raised (0.05) [writing].")
    ] = None,
) -> None:
    """Warn of cases that are unlike those a model learned from: another scanner, stain, protocol, tissue.

    First write what is usual, from the training and validation bags of a run: means and covariances, no patient's
    features. From then on smmil predict warns, and smmil package passes it on.

    [bold]Examples[/bold]

      smmil drift runs/first

      smmil drift runs/first --manifest other_hospital.csv

      smmil drift packages/first --manifest other_hospital.csv --out drift.csv

    Go on with: smmil predict runs/first --manifest other_hospital.csv --out predictions
    """
    from smmil.errors import ConfigError
    from smmil.predict.drift import DRIFT, fit_run_drift, read_drift, save_drift

    place = model / DRIFT if model.is_dir() else model
    if manifest is not None:
        if level is not None:
            raise ConfigError("--level: is stored in the summary; leave it out with --manifest")
        _compare(read_drift(_need(place, model)), manifest, out)
        return
    if not model.is_dir():
        raise ConfigError(f"{model}: give the folder of a run to write its summary, or --manifest to compare bags")
    with _CaseBar("reading") as bar:
        made = fit_run_drift(model, level=0.05 if level is None else level, progress=bar.at)
    target = out or place
    save_drift(made, target)
    print(
        f"{target}: {made.reference} patients say what is usual, {made.patients} others how far usual cases "
        f"stray from it; on patients drawn like these the alarm is raised in at most {100 * made.level:.3g} % of cases"
    )
    if level is None and made.level > 0.05:
        print(f"note: {made.patients} held-out patients cannot promise fewer false alarms; for 5 % 19 are needed")
    print(f"next: smmil predict {model} --manifest new.csv --out predictions")


def _need(place: Path, model: Path) -> Path:
    from smmil.errors import DataError

    if not place.exists():
        raise DataError(f"{model}: has no drift summary yet; write it with: smmil drift {model}")
    return place


def _compare(summary: "DriftSummary", manifest: Path, out: Path | None) -> None:
    """Print the table of cases, strangest first, and the verdict on all of them."""
    from rich.console import Console

    from smmil.data.manifest import Manifest
    from smmil.evaluate.alarm import applied_drift
    from smmil.evaluate.folder_drift import folder_drift
    from smmil.files import write_rows
    from smmil.predict.drift import examine_table

    with _CaseBar("comparing") as bar:
        cases, failed = examine_table(summary, Manifest.read(manifest), progress=bar.at)
    found = sorted(((one, case.id) for case in cases if (one := applied_drift(case)) is not None), key=lambda f: f[0].p)
    rows = [(id_, "unlike" if one.alarm else "", ", ".join(one.why), one.p, one.share) for one, id_ in found]
    table = _table(None, ("case", "alarm", "what stands out"), ("p", "strange instances"))
    for *texts, p, share in rows:
        table.add_row(*texts, f"{p:.3f}", f"{share:.1%}")
    Console().print(table)
    verdict = folder_drift(cases)
    if verdict is not None:
        print(verdict.text)
    if out is not None:
        write_rows(out, ("id", "alarm", "what_stands_out", "p", "strange_share"), rows)
        print(f"{out}: {len(rows)} cases")
    if failed:
        listed = (out or manifest).with_name("drift_failures.csv")
        write_rows(listed, ("id", "reason"), failed.items())
        _exit_on_failures(failed.values(), listed)

"""What a run did, in tables: the manifest of all bags, the cases, and the failures."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from smmil.data.manifest import Manifest
from smmil.executors import Outcome
from smmil.prepare.job import Job, Prepared
from smmil.spreadsheet import write_rows

_COLUMNS = ("id", "status", "instances", "damaged", "mpp_level0", "mpp_read", "notes")


@dataclass(frozen=True)
class Summary:
    """What a run did: outcomes in the order of the cases, the manifest of all bags, and what has none."""

    outcomes: tuple[Outcome[Job, Prepared], ...]
    manifest: Path | None
    failures: tuple[tuple[str, str, str], ...] = ()

    def count(self, status: str) -> int:
        return sum(o.value is not None and o.value.status == status for o in self.outcomes)


def record(out: Path, outcomes: Sequence[Outcome[Job, Prepared]], missing: Sequence[tuple[str, str]] = ()) -> Summary:
    """Write manifest.csv, cases.csv and, if there are any, failures.csv; what was mended is no longer listed."""
    failures = [(o.task.case.id, str(o.task.case.source), reason) for o in outcomes if (reason := why_not(o))]
    failures += [(id_, "", reason) for id_, reason in missing]
    write_rows(out / "cases.csv", _COLUMNS, map(_row, outcomes))
    write_rows(out / "failures.csv", ("id", "path", "reason"), failures)
    done = [o for o in outcomes if o.ok and not _empty(o)]
    manifest = out / "manifest.csv"
    if not done:
        manifest.unlink(missing_ok=True)  # one of an earlier run would name cases that have failed since
        return Summary(tuple(outcomes), None, tuple(failures))
    Manifest(_manifest_table(done), out).write(manifest)
    return Summary(tuple(outcomes), manifest, tuple(failures))


def _empty(outcome: Outcome[Job, Prepared]) -> bool:
    return outcome.value is not None and outcome.value.status == "no tissue"


def why_not(outcome: Outcome[Job, Prepared]) -> str | None:
    """Why a case has no bag; None when it has one."""
    if _empty(outcome):
        return f"no tissue found; look at {outcome.task.preview_path} and adjust the tissue settings, or give a mask"
    return outcome.error


def _row(outcome: Outcome[Job, Prepared]) -> tuple[Any, ...]:
    done = outcome.value or Prepared("failed")
    status = "no tissue" if _empty(outcome) else "done" if outcome.ok else "failed"
    notes = outcome.error or "; ".join(done.notes)
    return outcome.task.case.id, status, done.instances, done.damaged, done.mpp_level0, done.mpp_read, notes


def _manifest_table(done: Sequence[Outcome[Job, Prepared]]) -> pd.DataFrame:
    """Columns that smmil train reads; those that nobody filled are left out."""
    rows = []
    for outcome in done:
        job, case = outcome.task, outcome.task.case
        labelled = outcome.value is not None and outcome.value.labelled
        sidecar = job.labels_path.relative_to(job.out).as_posix() if labelled else ""
        path = job.bag_path.relative_to(job.out).as_posix()
        given = {"label": case.label, "group": case.patient, "split": case.split, "instance_labels": sidecar}
        rows.append({"id": case.id, "path": path, **given})
    table = pd.DataFrame(rows)
    return table[[c for c in table if c in ("id", "path") or (table[c] != "").any()]]

"""Many cases: the plan, its execution on any executor, and the tables of what was done."""

import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from smmil.annotations.labels import lost_truth
from smmil.config import checked
from smmil.data.manifest import Manifest
from smmil.data.tables import TableColumns
from smmil.encoders import Encoder, load_encoder
from smmil.encoders.loading import Network
from smmil.errors import ConfigError
from smmil.executors import Outcome, run_tasks
from smmil.files import read_json, remove_leftovers, write_json, write_rows
from smmil.prepare.case import prepare_case
from smmil.prepare.recipe import KINDS, SCANS, SOURCES, Recipe, refuse_unused
from smmil.prepare.selection import _check_classes, _encoder_of, _stray_images
from smmil.prepare.stain import _with_reference
from smmil.prepare.table import (
    PrepareCase,
    PreparedCase,
    PrepareJob,
    _cases_from_table,
    _cases_without_labels,
    _common_kind,
    find_sources,
    patch_folder_note,
)
from smmil.runtime import available_cores

_Outcome = Outcome[PrepareJob, PreparedCase]
_COLUMNS = ("id", "status", "instances", "damaged", "mpp_level0", "mpp_read", "notes")


@dataclass(frozen=True)
class Summary:
    """What a run did: outcomes in the order of the cases, the manifest of all bags, and what has none."""

    outcomes: tuple[_Outcome, ...]
    manifest: Path | None
    failures: tuple[tuple[str, str, str], ...] = ()
    lost: str | None = (
        None  # how many positive cases keep no positive instance, and what would help; None: all keep one
    )

    @property
    def edgeless(self) -> int:
        """Number of small bags without any edge: smoothing does nothing there."""
        return sum(o.value is not None and o.value.edgeless for o in self.outcomes)

    def count(self, status: str) -> int:
        return sum(o.value is not None and o.value.status == status for o in self.outcomes)


def _record(out: Path, outcomes: Sequence[_Outcome], missing: Sequence[tuple[str, str]]) -> Summary:
    """Write manifest.csv, cases.csv and, if there are any, failures.csv (of this run only)."""
    failures = [(o.task.case.id, str(o.task.case.source), reason) for o in outcomes if (reason := failure_reason(o))]
    failures += [(id_, "", reason) for id_, reason in missing]
    folders = _folders(out, [o.task.case for o in outcomes])
    for name, columns, rows in (
        ("cases.csv", _COLUMNS, map(_row, outcomes)),
        ("failures.csv", ("id", "path", "reason"), failures),
    ):
        write_rows(out / name, columns, ([_without(cell, folders) for cell in row] for row in rows))
    done = [o for o in outcomes if o.ok and not _empty(o)]
    manifest = out / "manifest.csv"
    if done:
        Manifest(_manifest_table(done), out).write(manifest)
    else:
        manifest.unlink(missing_ok=True)  # one of an earlier run would name cases that have failed since
    return Summary(tuple(outcomes), manifest if done else None, tuple(failures), _lost(done))


def _lost(done: Sequence[_Outcome]) -> str | None:
    """Positive cases without a positive instance, in words, with a coverage where annotations have shares."""
    known = [(o.task, o.value) for o in done if o.value is not None and o.value.positives is not None]
    known = [(job, case) for job, case in known if job.case.label not in ("", "0")]
    shares = [case.largest_share for _, case in known if case.largest_share is not None]
    by_area = {job.coverage for job, _ in known if job.recipe.kind not in SCANS or job.recipe.cut}
    coverage = by_area.pop() if len(by_area) == 1 and len(shares) == len(known) else None
    return lost_truth(len(known), sum(not case.positives for _, case in known), shares, coverage)


def _folders(out: Path, cases: Sequence[PrepareCase]) -> list[str]:
    """Folders that the tables do not name: those of the images, of files beside them, and the output itself."""
    images = {str(case.source.parent) for case in cases}
    with suppress(ValueError):  # on several drives
        common = Path(os.path.commonpath(images))
        images |= {str(common)} if common != Path(common.anchor) else set()
    beside = {path.parent for case in cases for path in (case.tissue, case.annotation, case.instance_labels) if path}
    return sorted({*images, *map(str, beside), str(out.absolute())}, key=len)


def _without(cell: Any, folders: Sequence[str]) -> Any:
    """A text with paths counted from the outermost of these folders."""
    for folder in folders if isinstance(cell, str) else ():
        cell = re.sub(rf"(?<![^\s'\"(]){re.escape(folder + os.sep)}", "", cell)
    return cell


def _empty(outcome: _Outcome) -> bool:
    return outcome.value is not None and outcome.value.status == "no tissue"


def failure_reason(outcome: _Outcome) -> str | None:
    """Why a case has no bag; None when it has one."""
    if _empty(outcome):
        hints = outcome.value.warnings if outcome.value is not None else ()
        look = f"look at {outcome.task.preview_path} and adjust the tissue settings, or give a mask"
        return f"no tissue found; {'; '.join(hints) or look}"
    return outcome.error


def _row(outcome: _Outcome) -> tuple[Any, ...]:
    done = outcome.value or PreparedCase("failed")
    status = "no tissue" if _empty(outcome) else "done" if outcome.ok else "failed"
    notes = outcome.error or "; ".join([*done.notes, *done.warnings])
    return outcome.task.case.id, status, done.instances, done.damaged, done.mpp_level0, done.mpp_read, notes


def _manifest_table(done: Sequence[_Outcome]) -> pd.DataFrame:
    """Columns that smmil train reads; empty ones are left out."""
    rows = []
    for outcome in done:
        job, case = outcome.task, outcome.task.case
        labelled = outcome.value is not None and outcome.value.labelled
        sidecar = job.labels_path.relative_to(job.out).as_posix() if labelled else ""
        path = job.bag_path.relative_to(job.out).as_posix()
        given = {"label": case.label, "group": case.patient, "split": case.split, "instance_labels": sidecar}
        rows.append({"id": case.id, "path": path, **given, **dict(case.more)})
    table = pd.DataFrame(rows).fillna("")
    return table[[c for c in table if c in ("id", "path") or (table[c] != "").any()]]


@dataclass(frozen=True)
class PreparePlan:
    """Everything a run will do: its jobs, and what was left aside while looking for cases."""

    jobs: tuple[PrepareJob, ...]
    recipe: Recipe
    encoder: str
    out: Path
    missing: tuple[tuple[str, str], ...] = ()
    unlisted: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()


def plan(
    sources: Iterable[str | Path],
    out: str | Path,
    recipe: Recipe,
    *,
    labels: str | Path | None = None,
    columns: TableColumns | None = None,
    points: str | Path | None = None,
    mpp: float | None = None,
    series: str | None = None,
    weights: str | Path | None = None,
    device: str = "auto",
    coverage: float | None = None,
    positive: Sequence[str] | None = None,
    encoder: Encoder | Network | None = None,
) -> PreparePlan:
    """Find the cases and check what can be checked before the first pixel is read; the encoder is loaded once.

    A recipe that does not say its kind gets it from what is found.

    columns    which columns of `labels` hold id, label and patient, where they have other names
    mpp        micrometres per level-0 pixel, for files that do not say (a column mpp in `labels` wins)
    series     which DICOM series, where a folder holds several (see `open_volume`; a column series in `labels` wins)
    coverage   an instance is positive when more than this share of it is annotated (0.5)
    positive   names or codes that are lesions, where annotations or the column class of `points` have others as well
    encoder    an encoder or network of your own (see `load_encoder`) in place of the recipe's; for the serial executor
    """
    out, points = Path(out), None if points is None else Path(points)
    if mpp is not None and not 0 < mpp < float("inf"):
        raise ConfigError(f"--mpp must be a positive number of micrometres, got {mpp}")
    if coverage is not None and not 0 <= coverage < 1:
        raise ConfigError(f"--coverage must be at least 0 and less than 1, got {coverage}")
    if encoder is not None and "encoder" in recipe.model_fields_set:
        raise ConfigError(f"encoder: given as an object, while the recipe says {recipe.encoder!r}; leave one out")
    folders = [Path(source) for source in sources]
    found = find_sources(folders, skip=out, stacks=recipe.kind == "stack")
    if "kind" not in recipe.model_fields_set:
        if points is None and (patches := patch_folder_note(folders, found)) is not None:
            raise ConfigError(f"{patches}; --kind slide takes every picture as a slide of its own")
        kind = {"kind": "points" if points is not None else _common_kind(found)}
        unsaid = {"tile_px", "tile_mpp", *({"windows"} - recipe.model_fields_set)}
        recipe = checked(Recipe, recipe.model_dump(exclude=unsaid) | kind, "the recipe")
    if (recipe.kind == "points") != (points is not None):
        raise ConfigError("--points: a table of points and the kind 'points' belong together; give both")
    recipe = _with_reference(recipe)
    refuse_unused({"mpp": mpp, "coverage": coverage, "series": series}, recipe.kind, recipe.cut is not None)
    # of this kind, and damaged ones that might be
    fitting = [s for s in found if s.kind in (None, *SOURCES[recipe.kind])]
    if not fitting:
        raise ConfigError(
            f"{found[0].path}: is no source for the kind {recipe.kind!r}; choose with --kind {' or '.join(KINDS)}"
        )
    if labels is not None:
        cases = _cases_from_table(labels, fitting, mpp, series, columns)
    else:
        cases = _cases_without_labels(fitting, mpp, series)
    own, pixels = None, recipe.encoder_pixels
    if encoder is None:
        used = _encoder_of(recipe.encoder, _resolved(weights), device, recipe.autocast, pixels)
    else:
        own = used = load_encoder(encoder, weights=weights, device=device, autocast=recipe.autocast, pixels=pixels)
        recipe = recipe.model_copy(update={"encoder": own.id.partition("@")[0]})
    _check_depth(recipe, used)
    digest = recipe.digest(used.id)
    annotated = any(case.annotation is not None for case in cases.cases)
    note = _check_annotations(cases.cases, recipe.kind, annotated, points, coverage, positive)
    common: dict[str, Any] = {"points": _resolved(points), "weights": _resolved(weights), "device": device}
    common |= {"coverage": 0.5 if coverage is None else coverage, "negatives_known": annotated}
    common |= {"positive": None if positive is None else tuple(positive), "encoder": own}
    jobs = tuple(PrepareJob(_absolute(case), recipe, digest, out.resolve(), **common) for case in cases.cases)
    strays = [] if points is None else _stray_images(points, [case.source.stem for case in cases.cases])
    notes = tuple(text for text in (note, _scale_note(recipe, used)) if text is not None)
    return PreparePlan(jobs, recipe, used.id, out, (*cases.missing, *strays), cases.unlisted, notes)


def _check_depth(recipe: Recipe, encoder: Encoder) -> None:
    """Refuse an encoder of boxes for anything but boxes of as many slices, and one of pictures for whole boxes."""
    wanted = recipe.cut.slices if recipe.cut is not None and recipe.cut.encode == "whole" else None
    if wanted != encoder.depth:
        takes = "pictures" if encoder.depth is None else f"boxes of {encoder.depth} slices"
        given = "pictures" if wanted is None else f"boxes of {wanted} slices (encode: whole)"
        raise ConfigError(
            f"encoder {encoder.id.partition('@')[0]}: takes {takes}, but the recipe gives {given}; change encode and "
            "slices under patch in the recipe, or choose another encoder"
        )


def _scale_note(recipe: Recipe, encoder: Encoder) -> str | None:
    """How far the tiles are from the scale the encoder was trained at; None: a quarter at most, or it has none."""
    if recipe.kind != "slide" or encoder.mpp is None or 0.75 < recipe.tile_um / encoder.pixels / encoder.mpp < 4 / 3:
        return None
    name, side = encoder.id.partition("@")[0], encoder.pixels
    return (
        f"{recipe.tile_um:g} µm on {side} pixels are {recipe.tile_um / side:.2f} µm/px, but {name} was trained at "
        f"{encoder.mpp:g}; --tile-um {encoder.mpp * side:g} fits it"
    )


def _check_annotations(
    cases: Sequence[PrepareCase],
    kind: str,
    annotated: bool,
    points: Path | None,
    coverage: float | None,
    positive: Sequence[str] | None,
) -> str | None:
    """Refuse columns and options without effect; return a note about classes of points that were not asked for."""
    scan = kind in SCANS
    for column, idle in (("mpp", scan), ("tissue", kind != "slide"), ("series", kind not in ("ct", "mr"))):
        for case in (case for case in cases if idle and getattr(case, column) is not None):
            raise ConfigError(f"{case.id}: the column {column} of the table has no meaning here; leave it out")
    for option, value in (("--coverage", coverage), ("--positive", positive)):
        if value is not None and not annotated and (points is None or option == "--coverage"):
            raise ConfigError(f"{option}: no case has an annotation; name it in a column annotation of the labels")
    return None if points is None or annotated else _check_classes(points, positive)


def _resolved(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path).resolve()


def _absolute(case: PrepareCase) -> PrepareCase:
    """Paths that mean the same file in another process; links are not followed, since tables know their names."""
    paths = {name: getattr(case, name) for name in ("source", "tissue", "annotation", "instance_labels")}
    return replace(case, **{name: path.absolute() for name, path in paths.items() if path is not None})


def run(
    todo: PreparePlan,
    *,
    executor: str = "serial",
    workers: int | None = None,
    address: str | None = None,
    overwrite: bool = False,
    on_case: Callable[[_Outcome], Any] | None = None,
) -> Summary:
    """Prepare every case that is not done yet, and write manifest.csv, cases.csv and (if any) failures.csv."""
    if executor != "serial" and any(job.encoder is not None for job in todo.jobs):
        raise ConfigError(
            f"executor {executor!r}: an encoder given as an object cannot leave this process; name it as "
            "package.module:function in the recipe, or choose the executor serial"
        )
    _bind_folder(todo, overwrite)
    for job in todo.jobs:
        for path in (job.bag_path, job.preview_path, job.labels_path):
            remove_leftovers(path.parent)
    remove_leftovers(todo.out)
    # so many threads per case that all cores are busy and none is fought over; features do not depend on it
    cores = available_cores()
    each = None if executor == "serial" else 1
    if executor not in ("serial", "dask"):
        each = max(1, cores // min(workers or cores, len(todo.jobs)))
    jobs = [replace(job, threads=each) for job in todo.jobs]
    outcomes = run_tasks(prepare_case, jobs, executor, workers, on_case, address=address)
    return _record(todo.out, outcomes, todo.missing)


def _bind_folder(todo: PreparePlan, overwrite: bool) -> None:
    """Write recipe.json; an error if the folder holds bags of another recipe."""
    path = todo.out / "recipe.json"
    ours = {"encoder": todo.encoder, "settings": json.loads(json.dumps(todo.recipe.settings()))}
    if path.exists() and not overwrite and any((todo.out / "bags").rglob("*.h5")):
        theirs = read_json(path)
        if theirs != ours:
            raise ConfigError(
                f"{todo.out}: holds bags of another recipe ({_differences(theirs, ours)}); "
                "choose another --out, or --overwrite to make them again"
            )
    write_json(path, ours)


def _differences(theirs: Any, ours: dict[str, Any]) -> str:
    try:
        old, new = (_flat({"encoder": r["encoder"], **r["settings"]}) for r in (theirs, ours))
    except (TypeError, KeyError):
        return "its recipe.json is damaged"
    keys = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
    return "; ".join(f"{key}: {_said(old.get(key))} there, {_said(new.get(key))} now" for key in keys)


def _flat(settings: dict[str, Any], above: str = "") -> dict[str, Any]:
    """{"tissue.share": 0.25} of {"tissue": {"share": 0.25}}."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= _flat(value, f"{above}{key}.") if isinstance(value, dict) else {above + key: value}
    return found


def _said(value: Any) -> str:
    return "not set" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)

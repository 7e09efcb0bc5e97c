"""Maps of a run's cases by other methods than the model's own scores, and how faithful they are to its decisions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from smmil.bag import BagBatch
from smmil.data.patients import StudyBags
from smmil.errors import DataError
from smmil.evaluate.bags import whole_bags
from smmil.evaluate.resampling import missing_text
from smmil.files import file_name, write_rows
from smmil.predict.cases import Predicted, _OpenedRun, bags_to_read
from smmil.predict.explanation import Explanation
from smmil.predict.inference import _in_use
from smmil.predict.removal import Faithfulness, _CaseCurves, _row
from smmil.prediction import Prediction
from smmil.runtime import choose_device, reproducible


@dataclass(frozen=True)
class Explained:
    """Outcome of `explain_run`.

    done          what was written per method
    gap           largest relative gap of completeness among the integrated gradients
    faithfulness  rows of the table, and in `unmeasured` the cases without curves and why
    """

    done: dict[str, Predicted] = field(default_factory=dict)
    gap: float | None = None
    faithfulness: list[dict[str, Any]] = field(default_factory=list)
    unmeasured: dict[str, str] = field(default_factory=dict)


def explain_run(
    run_dir: str | Path,
    explanations: Sequence[Explanation],
    *,
    out: str | Path,
    manifest: str | Path | None = None,
    part: str | None = None,
    checkpoint: str = "best",
    device: str = "auto",
    measure: bool = False,
    seed: int = 0,
    repeats: int = 3,
    progress: Callable[[int, int, str], None] | None = None,
    trust_code: bool | str = False,
) -> Explained:
    """Write the maps of every method for the cases of a run, as predictions in a folder per method inside `out`.

    measure  also deletion and insertion curves against `repeats` random orders: they are kept in the files of the maps,
             and their areas, averaged over the cases, go to faithfulness.csv
    Everything else is as in `predict_run`; what is done is kept when the call is repeated.
    """
    run = _OpenedRun.open(run_dir, manifest, part, checkpoint, trust_code)
    folders, explained = {one.method: Path(out) / one.method for one in explanations}, Explained()

    def labelled_progress(words: str) -> Callable[[int, int], None] | None:
        return None if progress is None else lambda count, total: progress(count, total, words)

    for explanation in explanations:
        name = explanation.method
        options: dict[str, Any] = {"out": folders[name], "device": device, "progress": labelled_progress(name)}
        explained.done[name] = run.predict(**options, explanation=explanation)
    if "integrated-gradients" in explained.done:
        files = explained.done["integrated-gradients"].paths
        gap = max((Prediction.load(path).meta.get("completeness_gap", 0.0) for path in files), default=None)
        explained = replace(explained, gap=gap)
    if not measure:
        return explained
    how, failed = {"seed": seed, "repeats": repeats}, explained.unmeasured
    rows = _measured(run, folders, choose_device(device), how, failed, labelled_progress("faithfulness"))
    columns = [key for key in rows[0] if key != "shortage"] if rows else []
    write_rows(Path(out) / "faithfulness.csv", columns, ([_cell(row, key) for key in columns] for row in rows))
    write_rows(Path(out) / "failures.csv", ("id", "reason"), failed.items())
    return replace(explained, faithfulness=rows)


def _cell(row: dict[str, Any], key: str) -> Any:
    """A value of the table; ends of an interval that few patients do not carry are "– (3 patients)"."""
    return missing_text(row["shortage"]) if row["shortage"] and key.endswith(("_low", "_high")) else row[key]


def _measured(
    run: _OpenedRun,
    folders: Mapping[str, Path],
    device: torch.device,
    how: dict[str, int],
    failed: dict[str, str],
    progress: Callable[[int, int], None] | None,
) -> list[dict[str, Any]]:
    """Rows of the table of faithfulness; curves that a map's file holds already are not computed again."""
    found: dict[str, list[tuple[Prediction, Faithfulness]]] = {name: [] for name in folders}
    bags, count = bags_to_read(run.trained, run.table, run.ids), 0
    with reproducible(run.origin.threads), _in_use(run.trained.model):
        for bag_id, cases in bags.members.items():
            try:
                for name, one in _case_curves(run, bags, bag_id, folders, device, how):
                    found[name].append(one)
            except DataError as problem:
                failed.update(dict.fromkeys(cases, str(problem)))
            count += len(cases)
            if progress is not None:
                progress(count, len(run.ids))
    model = run.trained.facts["model"]["name"]
    return [{"model": model, **_row(name, cases)} for name, cases in found.items() if cases]


def _case_curves(
    run: _OpenedRun,
    bags: StudyBags,
    bag_id: str,
    folders: Mapping[str, Path],
    device: torch.device,
    how: dict[str, int],
) -> Iterator[tuple[str, tuple[Prediction, Faithfulness]]]:
    """Every map of a bag with its curves, which go into the files of its cases."""
    case: _CaseCurves | None = None
    for name, folder in folders.items():
        paths = [folder / f"{file_name(id_)}.npz" for id_ in bags.members[bag_id]]
        if not all(path.exists() for path in paths):
            continue  # reported as failed when its map was made
        parts = [Prediction.load(path) for path in paths]
        curves = Faithfulness.stored(parts[0], how)
        if curves is None:
            if case is None:
                batch = BagBatch.pack([bags.bag(bag_id)]).without_labels()
                case = _CaseCurves(run.trained.model, batch, device, **how)
            curves = case.of(np.concatenate([part.scores for part in parts]))
            for part, path in zip(parts, paths, strict=True):
                part.meta["faithfulness"] = {**how, **curves.to_dict()}
                part.save(path)
        yield name, (whole_bags(parts)[0], curves)

"""Ensembles: the predictions of several runs together, with the deviation between them as uncertainty."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from smmil.errors import ConfigError, DataError, SmmilError
from smmil.files import file_name
from smmil.predict.cases import Predicted, _is_done, predict_run
from smmil.predict.inference import _combined, _scale
from smmil.prediction import Prediction, load_predictions

_VALIDATION, _HERE = "validation cases of the run", "the cases predicted here: validation cases cannot be read"


def predict_ensemble(
    run_dirs: Sequence[str | Path],
    *,
    out: str | Path,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Predicted:
    """Write the predictions of several runs together: mean probabilities and scores, with the deviation of the scores.

    Every run predicts into out/members, where its files are kept as `predict_run` keeps them (which takes the options).
    Log-odds and probabilities are averaged as they are. Other scores, such as attention logits, have the scale of their
    run: they are first brought to mean 0 and deviation 1 over all instances of the run's own validation cases, so that
    the score of a case does not depend on which others are predicted with it, and a threshold chosen on some cases
    holds for others. Where these cannot be read, the cases predicted here take their place, and meta["ensemble"] says
    so under "scaled_on". The uncertainty is the deviation over the runs (n - 1); of scores with several columns their
    root mean square.
    """
    if len(run_dirs) < 2:
        raise ConfigError(f"{run_dirs[0]}: an ensemble needs at least two runs; name the others after it")
    members: list[dict[str, Prediction]] = []
    scales: list[tuple[float, float]] = []
    scaled_on: list[str] = []
    failed: dict[str, str] = {}
    for number, run in enumerate(run_dirs):
        place = Path(out) / "members" / f"{number + 1}_{file_name(Path(run).resolve().name)}"
        report = _part_of(progress, number, len(run_dirs))
        done = predict_run(run, out=place, progress=report, **options)
        failed |= {id_: f"{Path(run).name}: {why}" for id_, why in done.failed.items()}
        members.append({p.id: p for p in load_predictions(done.paths)} if done.paths else {})
        cases, which = _scaling_cases(run, place, members[-1], options)
        scales.append(_scale(cases))
        scaled_on.append(which)
    _refuse_unlike(run_dirs, members, failed)
    done = Predicted(failed=failed)
    for id_ in (id_ for id_ in members[0] if id_ not in failed):
        try:
            together = _combined([member[id_] for member in members], scales)
            together.meta["ensemble"]["scaled_on"] = scaled_on
        except DataError as problem:
            done.failed[id_] = str(problem)
            continue
        path = Path(out) / f"{file_name(id_)}.npz"
        known = together.y, None if together.target is None else together.target.tolist()
        labelled = together.y_inst is not None
        kept = _is_done(path, id_, together.meta, known, labelled, drift=options.get("drift"))
        (done.kept if kept else done.written).append(path)
        if not kept:
            together.save(path)
    done.write_failures(Path(out))
    return done


def _scaling_cases(
    run: str | Path, place: Path, member: Mapping[str, Prediction], options: Mapping[str, Any]
) -> tuple[list[Prediction], str]:
    """The cases whose scores give the scale of a run, its validation cases if they can be read, and which they are."""
    here = list(member.values())
    if _scale(here) == (0.0, 1.0):
        return here, "nothing: the scores mean the same in every run"
    if options.get("part") == "val" and options.get("manifest") is None:
        return here, _VALIDATION
    chosen = {key: options[key] for key in ("checkpoint", "device", "trust_code") if key in options}
    try:
        done = predict_run(run, out=place / "validation", part="val", **chosen)
    except SmmilError:  # an imported model has no split, and the bags of another's training may be elsewhere
        return here, _HERE
    return (here, _HERE) if done.failed else (load_predictions(done.paths), _VALIDATION)


def _part_of(progress: Callable[[int, int], None] | None, part: int, parts: int) -> Callable[[int, int], None] | None:
    return None if progress is None else lambda count, total: progress(part * total + count, parts * total)


def _refuse_unlike(runs: Sequence[str | Path], members: Sequence[Mapping[str, Prediction]], failed: Any) -> None:
    """Raise an error if the runs split the cases in other ways or give scores of different kinds."""
    first = members[0]
    for run, member in zip(runs[1:], members[1:], strict=True):
        unlike = sorted((set(first) ^ set(member)) - set(failed))
        parts = [id_ for id_ in first.keys() & member.keys() if _split_part(first[id_]) != _split_part(member[id_])]
        for id_ in (*unlike, *sorted(parts)):
            raise ConfigError(
                f"{run}: {id_} belongs to another part of its split than in {runs[0]}, so that a run may have been "
                "trained on it; give runs of the same split, or cases of neither with --manifest"
            )
    kinds = sorted({str(p.meta.get("score_kind")) for member in members for p in member.values()})
    if len(kinds) > 1:
        raise ConfigError(
            f"{runs[0]}: the runs give scores of different kinds ({', '.join(kinds)}), which have no mean"
        )


def _split_part(prediction: Prediction) -> Any:
    return prediction.meta["split"]["part"]

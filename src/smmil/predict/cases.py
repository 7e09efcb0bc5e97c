"""Prediction files of the cases of a manifest; features must come from the recipe the model was trained on."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from smmil.bag import BagBatch
from smmil.config import IN_MEMORY, TrainConfig, load_config
from smmil.data.manifest import Manifest
from smmil.data.splits import run_split
from smmil.data.tables import read_label_shares
from smmil.errors import ConfigError, DataError, check_choice
from smmil.files import file_name, remove_leftovers, write_rows
from smmil.formats import read_provenance
from smmil.predict.explanation import Explanation
from smmil.predict.inference import TrainedModel, _combined, _has_dropout, _in_use, _scale, load_trained, predict
from smmil.predict.removal import Faithfulness, _CaseCurves, _row
from smmil.prediction import Prediction, load_predictions
from smmil.runtime import choose_device, reproducible, versions

SOURCE_KEYS = ("encoder", "recipe")


def feature_source(table: Manifest, ids: Iterable[str]) -> dict[str, Any]:
    """Encoder and recipe that all bags share (None where their files do not state them); a mixture is refused."""
    shared: dict[str, Any] = dict.fromkeys(SOURCE_KEYS)
    first = dict(shared)
    for id_ in ids:
        stated = read_provenance(table.path_of(id_))
        for key in SOURCE_KEYS:
            value = stated.get(key)
            if value is not None and shared[key] not in (None, value):
                raise DataError(
                    f"{table.name}: bags of different {key}: {first[key]} has {shared[key]!r}, {id_} has {value!r}; "
                    "extract all with one"
                )
            if value is not None and shared[key] is None:
                shared[key], first[key] = value, id_
    return shared


def _image_facts(path: Path) -> dict[str, Any]:
    """Facts of the image behind a bag that exports and reports need: size and spacing of slide or scan, licence."""
    stated = read_provenance(path)
    facts: dict[str, Any] = {"licence": stated["licence"]} if stated.get("licence") else {}
    if positions := stated.get("positions_mm"):
        # Bags of earlier versions do not state rows and columns.
        _, rows, columns = stated.get("shape") or (None, None, None)
        counts = {"slices": len(positions), "rows": rows, "columns": columns}
        ends = [positions[0], positions[-1]]
        return facts | {"scan": {**counts, "spacing_mm": stated.get("spacing_mm"), "ends_mm": ends}}
    if stated.get("bounds") is None or stated.get("level0_width") is None:
        return facts
    size = [stated["level0_width"], stated["level0_height"]]
    return facts | {"slide": {"size": size, "bounds": stated["bounds"], "mpp": stated.get("mpp_level0")}}


def _refuse_other_features(facts: dict[str, Any], table: Manifest, ids: Iterable[str]) -> None:
    """Raise an error if a bag states another encoder or recipe than the model was trained on."""
    trained = facts["features"]
    for id_ in ids:
        try:
            stated = read_provenance(table.path_of(id_))
        except DataError:
            continue  # unreadable here is unreadable again when its turn comes, and reported there
        for key in SOURCE_KEYS:
            if None not in (trained.get(key), stated.get(key)) and trained[key] != stated[key]:
                raise ConfigError(
                    f"{id_}: features of {key} {stated[key]!r}, but the model was trained on {key} {trained[key]!r}; "
                    "extract the features in the same way"
                )


_PARTS = ("train", "val", "test", "all")


@dataclass(frozen=True)
class Predicted:
    """Outcome of `predict_run`: files written now, files kept from before, cases that failed and why."""

    written: list[Path] = field(default_factory=list)
    kept: list[Path] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def paths(self) -> list[Path]:
        return sorted(self.written + self.kept)

    def write_failures(self, out: Path) -> None:
        """Write failures.csv with the reason for every case that failed; no file without failures."""
        write_rows(out / "failures.csv", ("id", "reason"), self.failed.items())


def predict_run(
    run_dir: str | Path,
    *,
    out: str | Path,
    manifest: str | Path | None = None,
    part: str | None = None,
    checkpoint: str = "best",
    device: str = "auto",
    progress: Callable[[int, int], None] | None = None,
    trust_code: bool | str = False,
    mc_dropout: int = 0,
) -> Predicted:
    """Write one prediction file per case of a run into `out`; a case that cannot be read is reported and skipped.

    part  train, val or test as the run split them, or all; default: test, and all with another manifest.
    trust_code  the run may name a model outside smmil, which means running that code; a text: this model alone
    mc_dropout  mean of this many predictions with dropout at work, their deviation as uncertainty; 0: plain
    Files of the same weights that read back well are kept, so an interrupted call can simply be repeated.
    """
    run = _OpenedRun.open(run_dir, manifest, part, checkpoint, trust_code)
    run = replace(run, origin=replace(run.origin, mc_dropout=mc_dropout))
    return run.predict(out=out, device=device, progress=progress)


@dataclass(frozen=True)
class _OpenedRun:
    """A trained model with the cases that were asked for."""

    trained: TrainedModel
    table: Manifest
    ids: list[str]
    parts: dict[str, str]
    origin: "Origin"

    @classmethod
    def open(
        cls, run_dir: str | Path, manifest: str | Path | None, part: str | None, checkpoint: str, trust: bool | str
    ) -> "_OpenedRun":
        trained, config = load_trained(run_dir, checkpoint, trust_code=trust), run_config(Path(run_dir))
        table = Manifest.read(manifest or _own_manifest(config, run_dir))
        table.check_table(training=False)
        ids, parts = _chosen_ids(Path(run_dir), table, part or ("all" if manifest else "test"))
        origin = Origin(checkpoint)  # all that an imported model has
        if config is not None:
            origin = Origin(checkpoint, config.data.fold, config.training.seed, config.training.threads)
        return cls(trained, table, ids, parts, origin)

    def predict(self, **options: Any) -> Predicted:
        return predict_table(self.trained, self.table, self.ids, self.origin, parts=self.parts, **options)


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

    def told(words: str) -> Callable[[int, int], None] | None:
        return None if progress is None else lambda count, total: progress(count, total, words)

    for explanation in explanations:
        name = explanation.method
        options: dict[str, Any] = {"out": folders[name], "device": device, "progress": told(name)}
        explained.done[name] = run.predict(**options, explanation=explanation)
    if "integrated-gradients" in explained.done:
        files = explained.done["integrated-gradients"].paths
        gap = max((Prediction.load(path).meta.get("completeness_gap", 0.0) for path in files), default=None)
        explained = replace(explained, gap=gap)
    if not measure:
        return explained
    how, failed = {"seed": seed, "repeats": repeats}, explained.unmeasured
    rows = _measured(run, folders, choose_device(device), how, failed, told("faithfulness"))
    columns = list(rows[0]) if rows else []
    write_rows(Path(out) / "faithfulness.csv", columns, ([row[key] for key in columns] for row in rows))
    write_rows(Path(out) / "failures.csv", ("id", "reason"), failed.items())
    return replace(explained, faithfulness=rows)


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
    with reproducible(run.origin.threads), _in_use(run.trained.model):
        for count, id_ in enumerate(run.ids, 1):
            files = {name: folder / f"{file_name(id_)}.npz" for name, folder in folders.items()}
            try:
                for name, one in _case_curves(run, id_, files, device, how):
                    found[name].append(one)
            except DataError as problem:
                failed[id_] = str(problem)
            if progress is not None:
                progress(count, len(run.ids))
    model = run.trained.facts["model"]["name"]
    return [{"model": model, **_row(name, cases)} for name, cases in found.items() if cases]


def _case_curves(
    run: _OpenedRun, id_: str, files: Mapping[str, Path], device: torch.device, how: dict[str, int]
) -> Iterator[tuple[str, tuple[Prediction, Faithfulness]]]:
    """Every map of a case with its curves, which go into its file."""
    case: _CaseCurves | None = None
    for name, path in files.items():
        if not path.exists():
            continue  # reported as failed when its map was made
        prediction = Prediction.load(path)
        curves = Faithfulness.stored(prediction, how)
        if curves is None:
            if case is None:
                batch = BagBatch.pack([run.table.bag(id_)]).without_labels()
                case = _CaseCurves(run.trained.model, batch, device, **how)
            curves = case.of(prediction.scores)
            prediction.meta["faithfulness"] = {**how, **curves.to_dict()}
            prediction.save(path)
        yield name, (prediction, curves)


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
    run: they are first brought to mean 0 and deviation 1 over all instances that this run scored here. The uncertainty
    is the deviation over the runs (n - 1); of scores with several columns their root mean square.
    """
    if len(run_dirs) < 2:
        raise ConfigError(f"{run_dirs[0]}: an ensemble needs at least two runs; name the others after it")
    members: list[dict[str, Prediction]] = []
    failed: dict[str, str] = {}
    for number, run in enumerate(run_dirs):
        place = Path(out) / "members" / f"{number + 1}_{file_name(Path(run).resolve().name)}"
        report = _part_of(progress, number, len(run_dirs))
        done = predict_run(run, out=place, progress=report, **options)
        failed |= {id_: f"{Path(run).name}: {why}" for id_, why in done.failed.items()}
        members.append({p.id: p for p in load_predictions(done.paths)} if done.paths else {})
    _refuse_unlike(run_dirs, members, failed)
    scales = [_scale(member.values()) for member in members]
    done = Predicted(failed=failed)
    for id_ in (id_ for id_ in members[0] if id_ not in failed):
        try:
            together = _combined([member[id_] for member in members], scales)
        except DataError as problem:
            done.failed[id_] = str(problem)
            continue
        path = Path(out) / f"{file_name(id_)}.npz"
        kept = _is_done(path, id_, together.meta)
        (done.kept if kept else done.written).append(path)
        if not kept:
            together.save(path)
    done.write_failures(Path(out))
    return done


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


@dataclass(frozen=True)
class Origin:
    """Facts of a training run that its predictions record, besides those stored with the weights."""

    checkpoint: str
    fold: int | None = None
    seed: int | None = None
    threads: int | None = None
    mc_dropout: int = 0


def predict_table(
    trained: TrainedModel,
    table: Manifest,
    ids: Sequence[str],
    origin: Origin,
    *,
    out: str | Path,
    parts: Mapping[str, str] | None = None,
    failed: Mapping[str, str] | None = None,
    device: str = "auto",
    progress: Callable[[int, int], None] | None = None,
    explanation: Explanation | None = None,
) -> Predicted:
    """Write one prediction file for each of these bags; `failed` are cases without a bag, listed with the failures.

    explanation  a map in place of the model's own scores
    """
    _refuse_other_features(trained.facts, table, ids)
    draws = origin.mc_dropout
    if draws and (type(draws) is not int or draws < 2):
        raise ConfigError(f"mc_dropout: {draws!r}, expected at least 2 predictions with dropout, or 0 for none")
    if draws and not _has_dropout(trained.model):
        name = trained.facts["model"]["name"]
        raise ConfigError(f"mc_dropout: model {name} has no layer of dropout at work; train several and use --ensemble")
    done = Predicted(failed=dict(failed or {}))
    predictor = _CasePredictor(trained, table, Path(out), choose_device(device), done, draws, explanation)
    remove_leftovers(out)
    trained.model.to(predictor.device)
    with reproducible(origin.threads):
        patients = _patients(table)
        for count, id_ in enumerate(ids, 1):
            predictor.one(id_, {**_meta(trained, origin, (parts or {}).get(id_)), **patients.get(id_, {})})
            if progress is not None:
                progress(count, len(ids))
    predictor.done.write_failures(Path(out))
    return predictor.done


@dataclass(frozen=True)
class _CasePredictor:
    """Predicts cases one by one into a folder and records what happened to each."""

    trained: TrainedModel
    table: Manifest
    out: Path
    device: torch.device
    done: Predicted
    draws: int = 0
    explanation: Explanation | None = None

    def one(self, id_: str, meta: dict[str, Any]) -> None:
        """Predict one case, unless its file is complete; a problem with its data is recorded."""
        if self.explanation is not None:
            meta = {**meta, **self.explanation.facts}
        path = self.out / f"{file_name(id_)}.npz"
        meta = {**meta, **self._annotation_facts(id_)}
        if _is_done(path, id_, meta):
            self.done.kept.append(path)
            return
        try:
            self._predict(id_, meta).save(path)
            self.done.written.append(path)
        except DataError as problem:
            self.done.failed[id_] = str(problem)

    def _predict(self, id_: str, meta: dict[str, Any]) -> Prediction:
        bag = self.table.bag(id_)
        width, expected = bag.x.shape[1], self.trained.facts["model"]["in_dim"]
        if width != expected:
            raise ConfigError(
                f"{id_}: {width} features per instance, but the model was trained on {expected}; "
                "use the encoder it was trained with"
            )
        meta = {**meta, **_image_facts(self.table.path_of(id_))}
        if not self.draws:
            maps = predict if self.explanation is None else self.explanation.predictions
            return maps(self.trained.model, [bag], meta=meta, device=self.device)[0]
        members = []
        for seed in range(self.draws):
            with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
                torch.manual_seed(seed)
                members += predict(self.trained.model, [bag], meta=meta, device=self.device, dropout=True)
        together = _combined(members, [(0.0, 1.0)] * self.draws)
        facts = {**meta, "mc_dropout": self.draws, "score_kind": members[0].meta["score_kind"]}
        return replace(together, meta={**facts, "probs_deviation": together.meta["ensemble"]["probs_deviation"]})

    def _annotation_facts(self, id_: str) -> dict[str, Any]:
        """Of a positive case with annotated shares: their largest, and the coverage above which one is positive."""
        path = self.table.instance_labels_of(id_)
        if path is None or not self.table.labels[id_]:
            return {}
        with suppress(DataError):  # the labels themselves are sound; shares only serve to propose another coverage
            if (known := read_label_shares(path)) is not None:
                return {"annotation": {"coverage": known[0], "largest_share": known[1]}}
        return {}


def _patients(table: Manifest) -> dict[str, dict[str, str]]:
    """Group of every case with a patient: the first id of that patient's cases, which identifies no one."""
    column = "group" if "group" in table.table else "patient"
    if column not in table.table:
        return {}
    named = {id_: group for id_, group in zip(table.ids, table.table[column], strict=True) if group}
    first: dict[str, str] = {}
    for id_, group in sorted(named.items()):
        first.setdefault(group, id_)
    return {id_: {"group": first[group]} for id_, group in named.items()}


def _is_done(path: Path, id_: str, meta: dict[str, Any]) -> bool:
    try:
        stored = Prediction.load(path)
    except DataError:
        return False  # absent or damaged
    same_patient = stored.meta.get("group", id_) == meta.get("group", id_)
    same_draws = stored.meta.get("mc_dropout") == meta.get("mc_dropout")
    # another coverage means other instance labels; files of earlier versions do not state theirs
    wanted = {key: value for key, value in meta.items() if key != "annotation" or key in stored.meta}
    return stored.id == id_ and same_patient and same_draws and stored.meta == {**stored.meta, **wanted}


def run_config(run_dir: Path) -> TrainConfig | None:
    """Settings of a run; a model imported with `smmil convert-weights` has none."""
    imported = not (run_dir / "config.yaml").exists() and not (run_dir / "split.json").exists()
    # No model is built from it: the weights name theirs.
    return None if imported else load_config(run_dir / "config.yaml", trust_code=True)


def _own_manifest(config: TrainConfig | None, run_dir: str | Path) -> str:
    if config is None:
        raise DataError(f"{run_dir}: this model was not trained here and knows no bags; give them with --manifest")
    if Path(config.data.manifest).name == IN_MEMORY:
        raise DataError(f"{run_dir}: this model was trained on bags in memory; give bags with --manifest")
    return config.data.manifest


def _chosen_ids(run_dir: Path, table: Manifest, part: str) -> tuple[list[str], dict[str, str]]:
    """Ids to predict, and the part each case of the run's split belongs to."""
    check_choice(part, _PARTS, "part")
    stored = (run_dir / "split.json").exists()
    split = run_split(run_dir).to_dict() if stored else {name: [] for name in _PARTS[:3]}
    parts = {id_: name for name, members in split.items() for id_ in members}
    ids = list(table.ids) if part == "all" else split[part]
    missing = sorted(set(ids) - set(table.ids))
    if missing:
        raise DataError(
            f"{table.name}: {len(missing)} bags of the {part} part of {run_dir} are not in it, such as {missing[0]}"
        )
    if not ids:
        raise DataError(f"{run_dir}: the run has no {part} bags; choose another --part or give --manifest")
    return ids, parts


def _meta(trained: TrainedModel, origin: Origin, part: str | None) -> dict[str, Any]:
    facts = trained.facts
    return {
        "model": facts["model"]["name"],
        "checkpoint": origin.checkpoint,
        "epoch": facts["epoch"],
        "weights": trained.weights,
        "config": facts["config"],
        "features": facts["features"],
        "split": {"part": part, "fold": origin.fold, "digest": facts["split"]},
        "seed": origin.seed,
        "versions": versions(),
        **({"mc_dropout": origin.mc_dropout} if origin.mc_dropout else {}),
    }

"""Prediction files of the cases of a manifest; features must come from the recipe the model was trained on."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from smmil.bag import Bag
from smmil.config import IN_MEMORY, TrainConfig, load_config
from smmil.data.covariates import Covariates
from smmil.data.manifest import Manifest
from smmil.data.patients import StudyBags
from smmil.data.splits import run_split
from smmil.data.tables import read_label_shares
from smmil.errors import ConfigError, DataError, SmmilError, check_choice
from smmil.evaluate.calibration import Calibration
from smmil.evaluate.drift import DriftCase, DriftSummary
from smmil.files import Pieces, digest, file_name, remove_leftovers, write_rows
from smmil.formats import read_provenance
from smmil.formats.rows import HeldRows, OpenBag, Rows
from smmil.predict.explanation import Explanation
from smmil.predict.inference import (
    _CHECKPOINTS,
    TrainedModel,
    _combined,
    _has_dropout,
    check_blocks,
    load_trained,
    predict,
)
from smmil.predict.patient_bags import split_prediction
from smmil.prediction import Prediction
from smmil.ranks import current
from smmil.runtime import reproducible, versions
from smmil.weights import read_weights, tensors_digest

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
        scan = {**counts, "spacing_mm": stated.get("spacing_mm"), "ends_mm": ends}
        more = ("window", "series", "notes")
        return facts | {"scan": scan | {key: stated[key] for key in more if stated.get(key)}}
    if stated.get("bounds") is None or stated.get("level0_width") is None:
        return facts
    size = [stated["level0_width"], stated["level0_height"]]
    slide = {"size": size, "bounds": stated["bounds"], "mpp": stated.get("mpp_level0")}
    return facts | {"slide": slide | ({"mpp_given": True} if stated.get("mpp_given") else {})}


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
    calibration: "ChosenCalibration | None" = None,
    drift: DriftSummary | None = None,
    block: int | None = None,
) -> Predicted:
    """Write one prediction file per case of a run into `out`; a case that cannot be read is reported and skipped.

    part  train, val or test as the run split them, or all; default: test, and all with another manifest.
    trust_code  the run may name a model outside smmil, which means running that code; a text: this model alone
    mc_dropout  mean of this many predictions with dropout at work, their deviation as uncertainty; 0: plain
    calibration  applied to every prediction; refused when it was made for another model
    drift        summary of smmil drift: how unlike the training cases each case is, and its alarm
    block        rows of features that are read and embedded at a time, for cases that do not fit into memory
    Files of the same weights that read back well are kept, so an interrupted call can simply be repeated.
    """
    run = _OpenedRun.open(run_dir, manifest, part, checkpoint, trust_code)
    run = replace(run, origin=replace(run.origin, mc_dropout=mc_dropout))
    wishes = {"calibration": calibration, "drift": drift, "block": block}
    return run.predict(out=out, device=device, progress=progress, **wishes)


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
        table = Manifest.read(manifest) if manifest else _own_table(config, run_dir)
        table = table.for_target(trained.target_columns)
        table.check_table(training=False)
        ids, parts = _chosen_ids(Path(run_dir), table, part or ("all" if manifest else "test"))
        origin = Origin(checkpoint)  # all that an imported model has
        if config is not None:
            origin = Origin(checkpoint, config.data.fold, config.training.seed, config.training.threads)
        return cls(trained, table, ids, parts, origin)

    def predict(self, **options: Any) -> Predicted:
        return predict_table(self.trained, self.table, self.ids, self.origin, parts=self.parts, **options)


@dataclass(frozen=True)
class ChosenCalibration:
    """A calibration to apply to predictions; probs: their probabilities are replaced by the calibrated ones."""

    calibration: Calibration
    probs: bool = False
    where: str = "calibration"  # its file, for messages


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
    calibration: ChosenCalibration | None = None,
    drift: DriftSummary | None = None,
    block: int | None = None,
) -> Predicted:
    """Write one prediction file for each of these bags; `failed` are cases without a bag, listed with the failures.

    explanation  a map in place of the model's own scores
    block        rows of features that are read and embedded at a time
    """
    if block is not None:
        _check_blocks(trained, block, origin, drift, explanation)
    _refuse_other_features(trained.facts, table, ids)
    if drift is not None:
        _refuse_other_features({"features": drift.source}, table, ids)
    table = table.for_target(trained.target_columns)
    draws = origin.mc_dropout
    if draws and (type(draws) is not int or draws < 2):
        raise ConfigError(f"mc_dropout: {draws!r}, expected at least 2 predictions with dropout, or 0 for none")
    if draws and not _has_dropout(trained.model):
        name = trained.facts["model"]["name"]
        raise ConfigError(f"mc_dropout: model {name} has no layer of dropout at work; train several and use --ensemble")
    if draws and calibration is not None:
        raise ConfigError(f"{calibration.where}: was made for the scores of the model itself, not for --mc-dropout")
    if calibration is not None and trained.facts.get("target") is not None:
        kind = trained.facts["target"]["kind"]
        raise ConfigError(f"{calibration.where}: a calibration is for classes, but the model predicts {kind}")
    if calibration is not None:
        calibration.calibration.refuse_other_model(_meta(trained, origin, None), calibration.where)
    done = Predicted(failed=dict(failed or {}))
    wishes = (draws, explanation, calibration, drift, block)
    bags = bags_to_read(trained, table, ids)
    ranks = current()
    predictor = _CasePredictor(trained, bags, Path(out), ranks.device(device), done, *wishes)
    if ranks.first:
        remove_leftovers(out)
    ranks.gather()  # what others begin to write now is no leftover
    trained.model.to(predictor.device)
    with reproducible(origin.threads):
        patients, count = _patients(table), 0
        for number, (bag_id, cases) in enumerate(bags.members.items()):
            count += len(cases)
            if number % ranks.count != ranks.number:
                continue
            metas = {i: {**_meta(trained, origin, (parts or {}).get(i)), **patients.get(i, {})} for i in cases}
            if trained.facts.get("bags") == "patient":
                facts = {"patient": bag_id, "cases": len(cases)}
                metas = {i: {**meta, "patient_bag": {**facts, "part": n}} for n, (i, meta) in enumerate(metas.items())}
            predictor.one(bag_id, metas)
            if progress is not None:
                progress(count, len(ids))
    done = done if ranks.alone else _done_together(done, bags, Path(out))
    if ranks.first:
        done.write_failures(Path(out))
    ranks.gather()
    return done


def _done_together(done: Predicted, bags: StudyBags, out: Path) -> Predicted:
    """What all processes did, in the order of the cases."""
    order = {id_: n for n, id_ in enumerate(id_ for cases in bags.members.values() for id_ in cases)}
    files = {str(out / f"{file_name(id_)}.npz"): n for id_, n in order.items()}
    said = current().gather([[str(p) for p in done.written], [str(p) for p in done.kept], list(done.failed.items())])
    written, kept = (sorted((p for one in said for p in one[k]), key=lambda p: files[p]) for k in (0, 1))
    failed = sorted((tuple(pair) for one in said for pair in one[2]), key=lambda pair: order.get(pair[0], -1))
    return Predicted([Path(p) for p in written], [Path(p) for p in kept], dict(failed))


def _check_blocks(
    trained: TrainedModel, block: int, origin: Origin, drift: DriftSummary | None, explanation: Explanation | None
) -> None:
    """Refuse what needs all features of a case at once."""
    check_blocks(trained.model, block, bool(origin.mc_dropout))
    if drift is not None:
        raise ConfigError("block: the drift alarm looks at all features of a case at once; give --no-drift")
    if explanation is not None:
        raise ConfigError("block: explanations look at all features of a case at once; leave block out")


def bags_to_read(trained: TrainedModel, table: Manifest, ids: Sequence[str]) -> StudyBags:
    """These cases as the model was trained on them: one by one or by patient, with the covariates it reads.

    A case whose covariates cannot be used is an error when it is read.
    """
    covariates = trained.facts.get("covariates")
    known = None if covariates is None else Covariates.from_facts(covariates, "the weights")
    if known is not None:
        known.need_columns(table)
    how = {"bags": trained.facts.get("bags", "case"), "classes": trained.facts["model"]["n_classes"]}
    return StudyBags(table, ids, covariates=known, **how)


@dataclass(frozen=True)
class _CasePredictor:
    """Predicts bags one by one into a folder, a file for each of their cases, and records what happened to each."""

    trained: TrainedModel
    bags: StudyBags
    out: Path
    device: torch.device
    done: Predicted
    draws: int = 0
    explanation: Explanation | None = None
    calibration: ChosenCalibration | None = None
    drift: DriftSummary | None = None
    block: int | None = None

    @property
    def table(self) -> Manifest:
        return self.bags.manifest

    def one(self, bag_id: str, metas: dict[str, dict[str, Any]]) -> None:
        """Predict a bag, unless the files of its cases are complete; a problem with its data is recorded.

        metas  what the predictions record, by case
        """
        told = {} if self.explanation is None else self.explanation.facts
        metas = {id_: {**meta, **told, **self._annotation_facts(id_)} for id_, meta in metas.items()}
        paths = {id_: self.out / f"{file_name(id_)}.npz" for id_ in metas}
        try:
            known = self.bags.known(bag_id)
            if all(self._is_done(paths[id_], id_, meta, known) for id_, meta in metas.items()):
                self.done.kept.extend(paths.values())
                return
            for found in self._predict(bag_id, metas):
                found.save(paths[found.id])
                self.done.written.append(paths[found.id])
        except DataError as problem:
            self.done.failed.update(dict.fromkeys(metas, str(problem)))

    def _is_done(
        self, path: Path, id_: str, meta: dict[str, Any], known: tuple[int | None, list[float] | None]
    ) -> bool:
        labelled = self.table.instance_labels_of(id_) is not None
        return _is_done(path, id_, meta, known, labelled, self.calibration, self.drift)

    def _predict(self, bag_id: str, metas: dict[str, dict[str, Any]]) -> list[Prediction]:
        """Predictions of the cases of a bag."""
        cases, bag, digests = self._read(bag_id)
        self._refuse_other_width(bag)
        images = [_image_facts(self.table.path_of(case.id)) for case in cases]
        facts = [{**image, "bag_digest": one} for image, one in zip(images, digests, strict=True)]
        metas = {case.id: {**metas[case.id], **more} for case, more in zip(cases, facts, strict=True)}
        found = self._of_bag(bag, metas[cases[0].id])
        parts = [found] if [bag_id] == list(metas) and len(cases) == 1 else split_prediction(found, cases, metas)
        return [self._compared(case, part) for case, part in zip(cases, parts, strict=True)]

    def _read(self, bag_id: str) -> tuple[list[Bag], Bag | OpenBag, list[str]]:
        """The cases of a bag, the bag, and the digests of their features; with `block` features stay in the files."""
        if self.block is None:
            cases = self.bags.cases_of(bag_id)
            return cases, self.bags.joined(bag_id, cases), [_rows_digest(HeldRows(case.x)) for case in cases]
        opened = self.bags.open_cases(bag_id)
        digests = [_rows_digest(case.rows) for case in opened]
        return [case.bag for case in opened], self.bags.joined_open(bag_id, opened), digests

    def _compared(self, case: Bag, found: Prediction) -> Prediction:
        if self.drift is None:
            return found
        return self.drift.applied(found, _drift_case(case, read_provenance(self.table.path_of(case.id))))

    def _refuse_other_width(self, bag: Bag | OpenBag) -> None:
        name, width = (bag.id, bag.x.shape[1]) if isinstance(bag, Bag) else (bag.bag.id, bag.rows.width)
        expected = self.trained.facts["model"]["in_dim"]
        if width != expected:
            raise ConfigError(
                f"{name}: {width} features per instance, but the model was trained on {expected}; "
                "use the encoder it was trained with"
            )

    def _of_bag(self, bag: Bag | OpenBag, meta: dict[str, Any]) -> Prediction:
        if not self.draws:
            maps: Any = partial(predict, block=self.block) if self.explanation is None else self.explanation.predictions
            found = maps(self.trained.model, [bag], meta=meta, device=self.device)[0]
            chosen = self.calibration
            return found if chosen is None else chosen.calibration.applied(found, probs=chosen.probs)
        members = []
        for seed in range(self.draws):
            with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
                torch.manual_seed(seed)
                members += predict(self.trained.model, [bag], meta=meta, device=self.device, dropout=True)
        together = _combined(members, [(0.0, 1.0)] * self.draws)
        facts = {**meta, "mc_dropout": self.draws, "score_kind": members[0].meta["score_kind"]}
        facts |= {"target": members[0].meta["target"]} if "target" in members[0].meta else {}
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


def _rows_digest(rows: Rows) -> str:
    """What tells a bag again under another id or path: the digest of its features as float32, in their order."""
    blocks = (np.ascontiguousarray(block.float().cpu().numpy()).data for block in rows.blocks())
    return digest(Pieces(4 * rows.n * rows.width, blocks))


def check_against_run(run_dir: str | Path, predictions: Sequence[Prediction]) -> tuple[set[str], list[str]]:
    """Ids of the predictions whose cases trained a run or selected its weights, and what could not be compared.

    Cases are known by their ids and, under other ids, by their features. Predictions of other weights than those of the
    run are an error.
    """
    run_dir = Path(run_dir)
    split = run_split(run_dir)
    own = {*split.train, *split.val}
    unchecked = _refuse_other_weights(run_dir, predictions)
    seen, others = {p.id for p in predictions if p.id in own}, [p for p in predictions if p.id not in own]
    silent = sum(not isinstance(p.meta.get("bag_digest"), str) for p in others)
    if silent:
        unchecked.append(
            f"{silent} of {len(predictions)} predictions do not record what is in their bags (predict again)"
        )
    if silent == len(others):
        return seen, unchecked
    try:
        table = _own_table(run_config(run_dir), run_dir)
        known = {_rows_digest(table.open_bag(id_, instance_labels=False).rows) for id_ in sorted(own)}
    except (SmmilError, OSError):  # why would name a file, and the calibration names no case
        return seen, [*unchecked, "the bags of the run cannot be read"]
    return seen | {p.id for p in others if p.meta.get("bag_digest") in known}, unchecked


def _refuse_other_weights(run_dir: Path, predictions: Sequence[Prediction]) -> list[str]:
    """Raise an error for weights that the run does not have; what cannot be compared, in words."""
    files = sorted((run_dir / "checkpoints").glob("*.safetensors"))
    weights = {tensors_digest(read_weights(path)[0]) for path in files if path.stem in _CHECKPOINTS}
    if not weights:
        return ["the run has no weights"]
    stated = [(p.id, str(p.meta["weights"])) for p in predictions if p.meta.get("weights") is not None]
    for id_, found in stated:
        if found not in weights:
            ours = ", ".join(sorted(w[:12] for w in weights))
            raise DataError(
                f"{id_}: predicted by weights {found[:12]}, but {run_dir} has {ours}; "
                "give the run that made the predictions, or predict the cases with this one"
            )
    silent = len(predictions) - len(stated)
    return [f"{silent} of {len(predictions)} predictions do not record their weights"] if silent else []


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


def _drift_case(bag: Bag, provenance: Mapping[str, Any]) -> DriftCase:
    """What the drift alarm looks at in a bag; its file tells positions of slices and names of facts."""
    positions, names = provenance.get("positions_mm"), provenance.get("quality", ())
    slices = bag.coords is None or bag.coords.shape[1] == 1  # not patches of them
    known = slices and isinstance(positions, list) and len(positions) == bag.n
    return DriftCase(
        bag.id,
        bag.x.float().cpu().numpy(),
        None if bag.coords is None else bag.coords.cpu().numpy(),
        bag.frame,
        None if bag.graph is None else bag.graph.edges().cpu().numpy(),
        np.asarray(positions, dtype=np.float64) if known else None,
        None if bag.quality is None else bag.quality.cpu().numpy(),
        names,
    )


def _is_done(
    path: Path,
    id_: str,
    meta: dict[str, Any],
    known: tuple[int | None, Sequence[float] | None],
    labelled: bool = False,
    calibration: ChosenCalibration | None = None,
    drift: DriftSummary | None = None,
) -> bool:
    """Whether a file holds the prediction that would be written; known: label and target that the case has today;
    labelled: whether its instances have labels.
    """
    try:
        stored = Prediction.load(path)
    except DataError:
        return False  # absent or damaged
    if repr((stored.y, stored.target if stored.target is None else stored.target.tolist())) != repr(known):
        return False  # the table was corrected since
    if labelled and stored.y_inst is None:
        return False  # what is true of instances was added since
    same_patient = stored.meta.get("group", id_) == meta.get("group", id_)
    same_draws = stored.meta.get("mc_dropout") == meta.get("mc_dropout")
    chosen = None if calibration is None else calibration.calibration.mark(calibration.probs)
    found = stored.meta.get("calibration")
    same_promise = found is None if chosen is None else isinstance(found, dict) and found == {**found, **chosen}
    # another coverage means other instance labels; files of earlier versions do not state theirs
    wanted = {key: value for key, value in meta.items() if key != "annotation" or key in stored.meta}
    compared = stored.meta.get("drift")
    same_drift = (compared.get("digest") if isinstance(compared, dict) else None) == (drift and drift.digest)
    same = same_patient and same_draws and same_promise and same_drift
    return stored.id == id_ and same and stored.meta == {**stored.meta, **wanted}


def run_config(run_dir: Path) -> TrainConfig | None:
    """Settings of a run; a model imported with `smmil convert-weights` has none."""
    imported = not (run_dir / "config.yaml").exists() and not (run_dir / "split.json").exists()
    # No model is built from it: the weights name theirs.
    return None if imported else load_config(run_dir / "config.yaml", trust_code=True)


def _own_table(config: TrainConfig | None, run_dir: str | Path) -> Manifest:
    """The manifest that a run was trained on; an error also says where it is named."""
    if config is None:
        raise DataError(f"{run_dir}: this model was not trained here and knows no bags; give them with --manifest")
    if Path(config.data.manifest).name == IN_MEMORY:
        raise DataError(f"{run_dir}: this model was trained on bags in memory; give bags with --manifest")
    try:
        return Manifest.read(config.data.manifest)
    except DataError as problem:
        raise DataError(f"{problem} (named in {Path(run_dir) / 'config.yaml'})") from None


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
        **({"corrections": facts["corrections"]} if "corrections" in facts else {}),
        **({"mc_dropout": origin.mc_dropout} if origin.mc_dropout else {}),
    }

"""Prediction: the output of a model for one case as plain arrays, with save and load."""

import io
import json
import lzma
import math
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any, NamedTuple

import numpy as np

from smmil.errors import DataError, check_choice
from smmil.files import digest, need_file, replacing
from smmil.frame import Frame

_FORMAT = 1
_ARRAYS = ("probs", "scores", "coords", "edges", "y_inst", "uncertainty", "strangeness", "target")
_LARGEST = 1 << 30
# Bytes that a member may unpack to, for each instance of the case; the others have a fixed bound.
_PER_INSTANCE = {"scores": 8192, "coords": 64, "edges": 8192, "y_inst": 8, "uncertainty": 8, "strangeness": 8}
_MOST_EDGES = 1024
_FIXED = {"facts": 64 << 20, "probs": 1 << 20, "target": 1 << 20, "sha256": 1 << 12}
# What a model may predict of a case (docs/targets.md); files without meta["target"] hold classes.
TARGETS = ("class", "multilabel", "ordinal", "regression", "survival", "cox")
_BROKEN = (OSError, ValueError, LookupError, TypeError, AttributeError, EOFError, MemoryError, ArithmeticError,
           RuntimeError, SyntaxError, TokenError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)  # fmt: skip


class MapLayer(NamedTuple):
    """A number per instance that predictions may hold beside the scores, and that is shown as a map of its own.

    name   the field of Prediction              title   what a reader looks it up for
    kind   what the numbers are, for legends    low, high   what the ends of the scale mean, in words
    source  how to get predictions that hold it
    scale   lowest and highest value of its colours in every case; None: those of the values
    """

    name: str
    title: str
    kind: str
    low: str
    high: str
    source: str
    scale: tuple[float, float] | None = None


LAYERS = (
    MapLayer(
        "uncertainty",
        "uncertainty",
        "standard deviation",
        "sure",
        "unsure",
        "predict with a model that knows it, such as prob_sm_ap, or with --ensemble",
    ),
    MapLayer(
        "strangeness",
        "strangeness",
        "strangeness",
        "usual",
        "unlike training",
        "run smmil drift on the run, then predict again",
        (0.0, 1.0),
    ),
)
FIXED_SCALES = {layer.name: layer.scale for layer in LAYERS if layer.scale is not None}


@dataclass(frozen=True, eq=False)
class Prediction:
    """Output of a model for one slide or scan: a probability for the case and a score for every instance.

    probs   (1,) probability of the positive class, or (C,) one per class; they sum to 1 unless meta says that `link`
            is sigmoid, as of multi-label models of other programs. meta["target"] says what else was predicted:
            multilabel  (L,) probability of each label               ordinal  (K,) probability of each level
            survival, cox  (J,) probability of an event until each of meta["target"]["edges"]    regression  (0,)
    scores  (n, k) per instance, higher is more suspicious; k = 1, or one column per class
    coords  (n, d) position of each instance          frame   what the coordinates mean
    edges   (2, e) neighbouring instances, by row      y       label: a class index, None when unknown
    y_inst  (n,) instance labels; -1 means unknown     meta    plain JSON facts; `score_kind` says what the scores are
    uncertainty  (n,) standard deviation of the score of each instance, None when the model does not know it
    strangeness  (n,) from 0 to 1, how unlike the training cases each instance is; None without a drift summary
    target  what is known of a case whose target is no class: (L,) labels 0, 1 or nan; (1,) the number of a regression;
            (2,) time and event (1, or 0 where the case was censored). An ordered level is in y; y of several labels is
            whether any is 1
    value   the predicted number: of a regression, the mean level of an ordinal target, or the risk (higher is worse)
    """

    id: str
    probs: np.ndarray
    scores: np.ndarray
    coords: np.ndarray | None = None
    frame: Frame | None = None
    edges: np.ndarray | None = None
    y: int | None = None
    y_inst: np.ndarray | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    uncertainty: np.ndarray | None = None
    strangeness: np.ndarray | None = None
    target: np.ndarray | None = None
    value: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id:
            raise DataError(f"prediction: id must be a non-empty string, got {self.id!r}")
        self._settle("probs", self._probabilities())
        self._settle("scores", self._finite("scores", self.scores))
        if self.n == 0:
            raise DataError(f"{self.id}: scores has no rows; a prediction needs at least one instance")
        if self.coords is not None:
            self._settle("coords", self._rows("coords", self._finite("coords", self.coords)))
        if self.edges is not None:
            self._settle("edges", self._neighbours())
        if self.y_inst is not None:
            self._settle("y_inst", self._rows("y_inst", self._labels("y_inst", np.ravel(self.y_inst), lowest=-1)))
        if self.uncertainty is not None:
            self._settle("uncertainty", self._column("uncertainty", "standard deviation", math.inf))
        if self.strangeness is not None:
            self._settle("strangeness", self._column("strangeness", "number from 0 to 1", 1.0))
        if self.y is not None:
            self._settle("y", self._bag_label())
        if self.target is not None:
            self._settle("target", self._known_target())
        if self.value is not None:
            self._settle("value", self._number())

    def __repr__(self) -> str:
        probs = [f"{value:.4g}" for value in self.probs]
        p = "-" if not probs else probs[-1] if len(probs) < 3 else f"({', '.join(probs)})"
        return f"Prediction({self.id!r}, p={p}, {self.n} scores, y={self.y})"

    @property
    def n(self) -> int:
        """Number of instances."""
        return len(self.scores)

    @property
    def target_kind(self) -> str:
        """What was predicted: one of TARGETS."""
        return str(self._target_facts.get("kind", "class"))

    @property
    def target_names(self) -> list[str]:
        """Names of the columns of the target: of each label, the number, or time and event; of a class none."""
        return [str(name) for name in self._target_facts.get("columns", ())]

    @property
    def times(self) -> np.ndarray:
        """Times (J,) until which `probs` of a survival target state the probability of an event."""
        return np.array(self._target_facts.get("edges", ()), dtype=np.float64)

    @property
    def _target_facts(self) -> dict[str, Any]:
        found = self.meta.get("target") if isinstance(self.meta, dict) else None
        return found if isinstance(found, dict) else {}

    @property
    def n_classes(self) -> int:
        """Number of classes; a single probability stands for two."""
        return max(2, len(self.probs))

    @property
    def positive_prob(self) -> float:
        """Probability that the case is positive; more than two classes and other targets have no such number."""
        if self.target_kind != "class":
            raise DataError(f"{self.id}: a target of kind {self.target_kind} has no positive class; use probs or value")
        if len(self.probs) > 2:
            raise DataError(f"{self.id}: {len(self.probs)} classes have no single positive one; use probs")
        return float(self.probs[-1])

    @property
    def layers(self) -> list[MapLayer]:
        """The maps that it holds beside that of its scores."""
        return [layer for layer in LAYERS if getattr(self, layer.name) is not None]

    def layer(self, name: str) -> "Prediction":
        """The same case with another layer in place of the scores, for whatever draws or writes a map."""
        if name == "score":
            return self
        named = {layer.name: layer for layer in LAYERS}
        layer, values = named[check_choice(name, ("score", *named), "layer")], getattr(self, name)
        if values is None:
            raise DataError(f"{self.id}: the prediction holds no {name}; {layer.source}")
        meta = {**self.meta, "score_kind": layer.kind, "layer": name}
        meta.pop("calibration", None)  # its threshold is one of scores
        nothing: dict[str, Any] = dict.fromkeys(named)
        return replace(self, scores=values[:, None], meta=meta, **nothing)

    @property
    def shown_layer(self) -> MapLayer | None:
        """The layer that stands in place of the scores; None: the scores themselves."""
        found = next((layer for layer in LAYERS if layer.name == self.meta.get("layer")), None)
        return None if found is None or self.meta.get("score_kind") != found.kind else found

    @property
    def fixed_scale(self) -> tuple[float, float] | None:
        """Ends of the colours of such a layer, where they are the same in every case; None: those of the values."""
        return None if self.shown_layer is None else self.shown_layer.scale

    def save(self, path: str | Path) -> None:
        """Write one .npz, atomically; the same content always gives the same bytes."""
        content = self._content()
        content["sha256"] = np.array(_checksum(content))
        with replacing(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, array in content.items():
                member = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
                member.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(member, _npy(array), compresslevel=3)

    @classmethod
    def load(cls, path: str | Path) -> "Prediction":
        """Read a file written by `save`; an error if its content does not match its checksum or format."""
        try:
            content = _read_arrays(need_file(Path(path)))
            if content.pop("sha256").item() != _checksum(content):
                raise ValueError("content does not match its checksum")
            return cls._from_content(content)
        except FileNotFoundError:
            raise DataError(f"{path}: no such file") from None
        except DataError as problem:
            raise DataError(str(problem) if str(problem).startswith(str(path)) else f"{path}: {problem}") from None
        except _BROKEN as problem:
            cause = " ".join(str(problem).split())[:300] or type(problem).__name__
            raise DataError(f"{path}: not readable as a prediction ({cause}); predict this case again") from None

    def _content(self) -> dict[str, np.ndarray]:
        arrays = {k: v for k in _ARRAYS if (v := getattr(self, k)) is not None}
        if self.edges is not None and self.n < 2**31:
            arrays["edges"] = self.edges.astype(np.int32)
        frame = None if self.frame is None else self.frame.to_dict()
        facts = {"format": _FORMAT, "id": self.id, "y": self.y, "frame": frame, "meta": self.meta}
        facts |= {} if self.value is None else {"value": self.value}
        try:
            text = json.dumps(facts, sort_keys=True, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as problem:
            raise DataError(f"{self.id}: meta must be plain JSON ({problem}); keep numbers, texts and lists") from None
        return {"facts": np.array(text), **arrays}

    @classmethod
    def _from_content(cls, content: dict[str, np.ndarray]) -> "Prediction":
        facts = json.loads(content.pop("facts").item())
        if facts["format"] != _FORMAT:
            raise DataError(f"written as format {facts['format']}, but this version reads {_FORMAT}; update smmil")
        frame = None if facts["frame"] is None else Frame.from_dict(facts["frame"])
        if not isinstance(facts["meta"], dict):
            raise ValueError(f"meta is {type(facts['meta']).__name__}, not a dictionary")
        json.dumps(facts["meta"], ensure_ascii=False).encode()  # halves of characters fit into no file or page
        return cls(id=facts["id"], frame=frame, y=facts["y"], meta=facts["meta"], value=facts.get("value"), **content)

    def _settle(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _probabilities(self) -> np.ndarray:
        probs, kind = np.atleast_1d(np.asarray(self.probs, dtype=np.float64)), self.target_kind
        check_choice(kind, TARGETS, f"{self.id}: kind of target")
        if probs.ndim != 1 or (probs.size == 0) != (kind == "regression") or not ((probs >= 0) & (probs <= 1)).all():
            raise DataError(f"{self.id}: probs must be numbers from 0 to 1, one per class, got {probs.tolist()}")
        sigmoid = isinstance(self.meta, dict) and self.meta.get("link") == "sigmoid"
        exclusive = kind in ("class", "ordinal") and not sigmoid
        if kind in ("survival", "cox") and (len(self.times) != probs.size or (np.diff(probs) < -1e-9).any()):
            raise DataError(f"{self.id}: probabilities of an event must not fall, one for each of the target's edges")
        if exclusive and probs.size > 1 and abs(probs.sum() - 1) > 0.01:
            raise DataError(
                f"{self.id}: the probabilities of {probs.size} classes must sum to 1, got {probs.sum():.4g}"
            )
        return probs

    def _finite(self, name: str, values: Any) -> np.ndarray:
        rows = np.asarray(values)
        rows = rows[:, None] if rows.ndim == 1 else rows
        if rows.ndim != 2 or rows.shape[1] == 0 or rows.dtype.kind not in "biuf":
            raise DataError(f"{self.id}: {name} must be numbers of shape (n, k), got {rows.dtype} {rows.shape}")
        rows = rows.astype(np.float32) if name == "scores" and rows.dtype.kind != "f" else rows
        if not np.isfinite(rows).all():
            raise DataError(f"{self.id}: {name} row {int(np.argwhere(~np.isfinite(rows))[0, 0])} is not finite")
        return rows

    def _rows(self, name: str, rows: np.ndarray) -> np.ndarray:
        if len(rows) != self.n:
            raise DataError(f"{self.id}: {name} has {len(rows):,} rows but scores has {self.n:,}; predict it again")
        return rows

    def _column(self, name: str, what: str, highest: float) -> np.ndarray:
        rows = self._rows(name, self._finite(name, getattr(self, name)))
        if rows.shape[1] != 1 or (rows < 0).any() or (rows > highest).any():
            raise DataError(f"{self.id}: {name} must be one {what} per instance, none below 0")
        return rows[:, 0]

    def _labels(self, name: str, values: np.ndarray, lowest: int) -> np.ndarray:
        if values.dtype.kind not in "biuf" or (values != np.floor(values)).any() or (values < lowest).any():
            raise DataError(f"{self.id}: {name} must be whole numbers from {lowest} upwards")
        return values.astype(np.int64)

    def _neighbours(self) -> np.ndarray:
        edges = np.asarray(self.edges)
        if edges.ndim != 2 or len(edges) != 2:
            raise DataError(f"{self.id}: edges must have shape (2, e), got {edges.shape}")
        if edges.shape[1] > _MOST_EDGES * self.n:
            what = f"{edges.shape[1]:,} edges of {self.n:,} instances"
            raise DataError(f"{self.id}: {what}, at most {_MOST_EDGES} for each")
        edges = self._labels("edges", edges, lowest=0)
        if edges.max(initial=-1) >= self.n:
            raise DataError(f"{self.id}: edges name instance {edges.max()} but there are only {self.n:,}")
        return edges

    def _known_target(self) -> np.ndarray:
        values, kind = np.atleast_1d(np.asarray(self.target, dtype=np.float64)), self.target_kind
        wanted = {"multilabel": self.probs.shape, "regression": (1,), "survival": (2,), "cox": (2,)}.get(kind)
        if values.shape != wanted:
            raise DataError(f"{self.id}: target of shape {values.shape} does not fit a target of kind {kind}")
        zero_or_one = values if kind == "multilabel" else values[1:]
        known = zero_or_one[~np.isnan(zero_or_one)] if kind == "multilabel" else values
        if not np.isfinite(known).all() or not np.isin(zero_or_one[~np.isnan(zero_or_one)], (0, 1)).all():
            raise DataError(f"{self.id}: target {values.tolist()} of kind {kind}; labels and events are 0 or 1")
        return values

    def _number(self) -> float:
        if isinstance(self.value, bool) or not isinstance(self.value, int | float | np.number):
            raise DataError(f"{self.id}: value must be a number, got {self.value!r}")
        if not math.isfinite(self.value):
            raise DataError(f"{self.id}: value is not finite")
        return float(self.value)

    def _bag_label(self) -> int:
        label = int(self._labels("y", np.atleast_1d(np.asarray(self.y)), lowest=0)[0])
        if label >= self.n_classes:
            raise DataError(
                f"{self.id}: label {label} is not one of the {self.n_classes} classes 0..{self.n_classes - 1}"
            )
        return label


def corrections_text(facts: Any) -> str | None:
    """How many marks of experts taught a model, in words, from meta["corrections"] of its predictions; None: none."""
    if not isinstance(facts, dict):
        return None
    counts = [facts.get(key) for key in ("instances", "lesions", "cases")]
    if not all(isinstance(count, int) and 0 <= count < 10**12 for count in counts):
        return None
    marked, lesions, cases = (int(count) for count in counts if count is not None)
    cases_text = "1 training case" if cases == 1 else f"{cases:,} training cases"
    return f"{marked:,} patches marked by hand ({lesions:,} lesion, {marked - lesions:,} not) in {cases_text}"


def load_predictions(
    where: str | Path | Iterable[str | Path], left_out: dict[Path, str] | None = None
) -> list[Prediction]:
    """All predictions of a folder, or of a list of files and folders, sorted by id; the same id twice is refused.

    left_out  receives the files that cannot be read, with the reason; without it, and when no other file can, they
              are an error
    """
    places = [where] if isinstance(where, str | Path) else list(where)
    found: dict[str, tuple[Prediction, Path]] = {}
    damaged: dict[Path, str] = {}
    for path in (file for place in places for file in prediction_files(Path(place))):
        try:
            prediction = Prediction.load(path)
        except DataError as problem:
            if left_out is None:
                raise
            damaged[path] = str(problem).removeprefix(f"{path}: ")
            continue
        if prediction.id in found:
            raise DataError(f"{path}: id {prediction.id!r} is already in {found[prediction.id][1]}; remove one of them")
        found[prediction.id] = prediction, path
    if damaged and not found:
        path, reason = next(iter(damaged.items()))
        raise DataError(f"{path}: {reason} (and no other prediction beside it can be read)")
    if left_out is not None:
        left_out.update(damaged)
    if not found:
        raise DataError("no predictions given; name a folder of .npz files written by smmil predict")
    return [prediction for _, (prediction, _) in sorted(found.items())]


def prediction_files(place: Path) -> list[Path]:
    """The file itself, or the predictions in a folder; a folder without any is refused."""
    if not place.is_dir():
        return [place]
    files = sorted(p for p in place.glob("*.npz") if not p.name.startswith("."))
    if not files:
        inner = sorted(p.parent.name for p in place.glob("*/*.npz"))
        hint = f"; did you mean one of its folders: {', '.join(dict.fromkeys(inner))}?" if inner else ""
        raise DataError(f"{place}: no .npz predictions in this folder{hint or '; run smmil predict first'}")
    return files


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.ascontiguousarray(array), version=(1, 0), allow_pickle=False)
    return buffer.getvalue()


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    if path.exists() and not path.is_file():
        raise ValueError("no regular file")
    with zipfile.ZipFile(path) as archive:
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        with archive.open(members["scores"]) as stream:
            shape, _ = _header(stream)
        for name, member in members.items():
            if member.file_size > _FIXED.get(name, 4096 + shape[0] * _PER_INSTANCE.get(name, 0)):
                raise ValueError(f"{name[:40]!r} would unpack to {member.file_size:,} bytes for {shape[0]:,} instances")
        if sum(member.file_size for member in archive.infolist()) > _LARGEST:
            raise ValueError(f"it would unpack to more than {_LARGEST >> 30} GiB")
        return {name: _array(archive.read(member)) for name, member in members.items()}


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of the array in a .npy file; objects are never unpacked."""
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("unknown array version")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    if dtype.hasobject or fortran:
        raise ValueError(f"arrays of {dtype} are not allowed")
    return shape, dtype


def _array(data: bytes) -> np.ndarray:
    """The array in the bytes of a .npy file, checked against their number."""
    stream = io.BytesIO(data)
    shape, dtype = _header(stream)
    return np.frombuffer(data, dtype, offset=stream.tell()).reshape(shape).copy()


def _checksum(content: dict[str, np.ndarray]) -> str:
    parts: list[str | bytes] = []
    for name in sorted(content):
        array = np.ascontiguousarray(content[name])
        parts += [name, array.dtype.str, str(array.shape), array.tobytes()]
    return digest(*parts)

"""Settings from a YAML file and the command line, checked before anything starts."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from smmil.errors import ConfigError, refuse_outside_code, suggest
from smmil.files import digest

Whole = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


# data.manifest of a run on bags in memory (smmil.fit).
IN_MEMORY = "(bags in memory)"


class _ConfigSection(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class DataConfig(_ConfigSection):
    """Which bags, and which part of them trains, selects and tests."""

    manifest: str
    fold: Whole = 0
    folds: Count = 5
    val_share: Annotated[float, Field(gt=0, lt=1)] = 0.2
    test_share: Annotated[float, Field(ge=0, lt=1)] = 0.2
    split_seed: Whole = 0
    splits: str | None = None


class ModelConfig(_ConfigSection):
    """Name of a model and its own options; `n_classes` None: one logit for labels 0/1, else one per class."""

    name: str
    options: dict[str, Any] = {}
    n_classes: Count | None = None


class PenaltyConfig(_ConfigSection):
    """Smoothness penalty on the scores of neighbouring instances; weight 0 is no penalty. Kinds: `nn/penalty.py`.

    convex: the weight is taken from the rest of the loss, (1 - weight) loss + weight penalty, as in SA-MIL.
    """

    weight: NotNegative = 0.0
    kind: Literal["scores", "attention", "attention_squared", "sa_mil", "sa_mil_squared"] = "scores"
    convex: bool = False

    @model_validator(mode="after")
    def _a_share_is_at_most_one(self) -> "PenaltyConfig":
        if self.convex and self.weight > 1:
            raise ValueError(f"a convex penalty needs a weight in [0, 1], got {self.weight}")
        return self


class TrainingConfig(_ConfigSection):
    """How to train. The defaults are the paper's protocol.

    The paper's batch size depends on the data (32, 4 or 1 bags); 4, its value for slides without a transformer, fits
    bags of any size into memory and is the default here.
    """

    epochs: Count = 50
    batch_size: Count = 4
    lr: Positive = 1e-4
    optimiser: Literal["adam", "adamw", "sgd"] = "adam"
    weight_decay: NotNegative = 0.0
    warmup_epochs: Whole = 5
    warmup_start: Annotated[float, Field(gt=0, le=1)] = 0.1
    accumulate: Count = 1
    clip_norm: Positive | None = None
    early_stopping: Count | None = None
    class_weights: bool = False
    penalty: PenaltyConfig = PenaltyConfig()
    select: Literal["auroc", "loss"] = "auroc"
    autocast: bool = False
    seed: Whole = 0
    device: str = "auto"
    threads: Count | None = None
    workers: Whole = 0
    checkpoint_minutes: NotNegative = 5.0
    tensorboard: bool = False


# Where files lie and how often to save does not change what is learned: free to differ between start and resume.
FREE_KEYS = frozenset(
    ("data.manifest", "data.splits", "training.workers", "training.checkpoint_minutes", "training.tensorboard")
)


class TrainConfig(_ConfigSection):
    """Everything one training run depends on."""

    data: DataConfig
    model: ModelConfig
    training: TrainingConfig = TrainingConfig()

    def anchored(self) -> "TrainConfig":
        """The same settings with relative paths made absolute, to be stored."""
        content = self.model_dump()
        _resolve_paths(content, Path.cwd())
        return TrainConfig.model_validate(content)

    def to_yaml(self) -> str:
        """Canonical YAML of all settings, defaults included."""
        return yaml.safe_dump(self.model_dump(), sort_keys=False, allow_unicode=True)

    def digest(self) -> str:
        """Digest of the settings that decide what is learned."""
        return digest(repr(sorted((k, v) for k, v in _flatten(self).items() if k not in FREE_KEYS)))

    def differing_keys(self, now: "TrainConfig") -> list[str]:
        """Dotted keys, with both values, in which other settings differ and would learn something else."""
        a, b = _flatten(self), _flatten(now)
        keys = [k for k in sorted(a.keys() | b.keys()) if k not in FREE_KEYS and a.get(k) != b.get(k)]
        return [f"{k} ({a.get(k)!r} there, {b.get(k)!r} now)" for k in keys]


_PLAIN_WORDS = {
    "Input should be": "expected",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid boolean": "true or false",
    "a valid string": "text",
}
Checked = TypeVar("Checked", bound=BaseModel)


def load_config(
    path: str | Path | None = None, overrides: Iterable[str] = (), *, trust_code: bool | str = False
) -> TrainConfig:
    """Settings of a YAML file with `section.key=value` changes on top; without a file, from the changes alone.

    Paths inside the file are relative to the file, those in overrides to the working folder.
    trust_code  the file may name a model outside smmil, which means running that code; a text: this one alone
    """
    content = {} if path is None else _read(Path(path))
    changes: dict[str, Any] = {}
    for text in overrides:
        _apply(changes, text)
    _resolve_paths(changes, Path.cwd())
    config = checked(TrainConfig, _merged(content, changes), "the settings" if path is None else str(path))
    if path is not None:
        refuse_outside_code(config.model.name, path, trust_code or changes.get("model", {}).get("name", False))
    return config


def checked(kind: type[Checked], content: Mapping[str, Any], where: str) -> Checked:
    """Validate `content` as a model of `kind`; the error is one line that names every wrong key."""
    try:
        return kind.model_validate(content)
    except ValidationError as problem:
        explained = "; ".join(_explain(kind, error) for error in problem.errors())
        raise ConfigError(f"{where}: {explained}") from None


def _flatten(config: BaseModel | Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings as one level of dotted keys."""
    flat: dict[str, Any] = {}
    content = config.model_dump() if isinstance(config, BaseModel) else config
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def parse_yaml(text: str, where: str) -> Any:
    """Parse YAML as plain data; 1e-5 is a number, and a key given twice is an error."""
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    except yaml.YAMLError as problem:
        raise ConfigError(f"{where}: not valid YAML: {' '.join(str(problem).split())}") from None
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key.value!r} is given twice", key.start_mark)
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = parse_yaml(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; give the path of a YAML config") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"{path}: not readable as text ({problem})") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected sections data, model, training; got {type(content).__name__}")
    _resolve_paths(content, path.parent)
    return content


def _apply(content: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    names = key.strip().split(".")
    if not equals or len(names) < 2 or not all(names):
        raise ConfigError(f"--set {override!r}: expected section.key=value, such as training.lr=1e-5")
    for name in names[:-1]:
        content = content.setdefault(name, {})
        if not isinstance(content, dict):
            raise ConfigError(f"--set {override!r}: {name} is a value already, not a section")
    content[names[-1]] = parse_yaml(value, f"--set {override}")


def _merged(below: Any, above: Any) -> Any:
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    return below | {key: _merged(below.get(key), value) for key, value in above.items()}


def _resolve_paths(content: dict[str, Any], folder: Path) -> None:
    data = content.get("data")
    for key in ("manifest", "splits"):
        if isinstance(data, dict) and isinstance(data.get(key), str):
            data[key] = str((folder / data[key]).expanduser().resolve())


def _explain(kind: type[BaseModel], error: Any) -> str:
    path = [str(part) for part in error["loc"]]
    dotted = ".".join(path)
    if error["type"] == "extra_forbidden":
        return f"{dotted}: unknown key; {suggest(path[-1], _fields_at(kind, path[:-1]))}"
    if error["type"] == "missing":
        return f"{dotted}: missing; it must be given"
    if error["type"] == "value_error":  # raised by a validator of this module, already a sentence
        return f"{dotted}: {error['ctx']['error']}" if dotted else str(error["ctx"]["error"])
    expected = error["msg"]
    for theirs, ours in _PLAIN_WORDS.items():
        expected = expected.replace(theirs, ours)
    return f"{dotted}: {expected}, got {error['input']!r}"


def _fields_at(kind: type[BaseModel], path: list[str]) -> list[str]:
    for part in path:
        inner = kind.model_fields[part].annotation
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        kind = inner
    return list(kind.model_fields)

"""Settings from a YAML file and the command line, checked before anything starts."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from smmil.errors import ConfigError, DataError, brief, require_trust_code, suggest
from smmil.files import digest, read_text

PathText = Annotated[str, Field(pattern=r"^[^\x00-\x1f]*$")]
Whole = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


# data.manifest of a run on bags in memory (smmil.fit).
IN_MEMORY = "(bags in memory)"


class _ConfigSection(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class DataConfig(_ConfigSection):
    """Which bags, which part of them trains, selects and tests, and where experts' marks are (`instance_loss`).

    bags        case: every row of the manifest is a bag; patient: all cases of a patient together are one
    covariates  columns of the manifest that join the bag's vector, such as [age, sex]; None: none
    test  fixed: all folds share one test set; rotate: cross-validation, every patient is tested in exactly one fold
    """

    manifest: PathText
    fold: Whole = 0
    folds: Count = 5
    val_share: Annotated[float, Field(gt=0, lt=1)] = 0.2
    test_share: Annotated[float, Field(ge=0, lt=1)] = 0.2
    test: Literal["fixed", "rotate"] = "fixed"
    split_seed: Whole = 0
    splits: PathText | None = None
    corrections: PathText | None = None
    bags: Literal["case", "patient"] = "case"
    covariates: Annotated[list[str], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _one_says_who_tests(self) -> "DataConfig":
        if self.test == "rotate" and self.splits is not None:
            raise ValueError("data.test: rotate draws the folds, but data.splits gives them; leave one of the two out")
        return self


class ModelConfig(_ConfigSection):
    """Name of a model and its own options; `n_classes` None: one logit for labels 0/1, else one per class."""

    name: str
    options: dict[str, Any] = {}
    n_classes: Count | None = None


class TargetConfig(_ConfigSection):
    """What is predicted of a case. The default, a class, is the column `label`.

    columns  of the manifest: one of each label (multilabel), `label` (ordinal, regression) or time and event (survival:
             hazards of `intervals` intervals of time, cox: proportional hazards); None: the usual names
    """

    kind: Literal["class", "multilabel", "ordinal", "regression", "survival", "cox"] = "class"
    columns: list[str] | None = None
    intervals: Annotated[int, Field(ge=2, le=100)] = 4


class PenaltyConfig(_ConfigSection):
    """Smoothness penalty on the scores of neighbouring instances; weight 0 is no penalty. Kinds: `losses.PENALTIES`.

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

    instance_loss  weight of the loss on instances that experts marked (data.corrections); 0: no model sees any
    max_instances  bags of more instances train, in every step, on a part of so many, drawn anew; None: whole bags
    sampling       how that part is drawn, see `smmil.data.sampling`: cluster, window, walk or random
    sampler        shuffle: every bag once an epoch; balanced: as many, drawn so that classes are equally likely
    loggers        programs that receive the numbers of every epoch, beside metrics.csv
    compile        compile the model's forward pass of training (torch.compile)
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
    sampler: Literal["shuffle", "balanced"] = "shuffle"
    max_instances: Count | None = None
    sampling: Literal["cluster", "window", "walk", "random"] = "cluster"
    penalty: PenaltyConfig = PenaltyConfig()
    instance_loss: NotNegative = 0.0
    select: Literal["auroc", "loss"] = "auroc"
    autocast: bool = False
    seed: Whole = 0
    device: str = "auto"
    threads: Count | None = None
    workers: Whole = 0
    compile: bool = False
    checkpoint_minutes: NotNegative = 5.0
    tensorboard: bool = False
    loggers: list[Literal["tensorboard", "mlflow", "wandb"]] = []

    @model_validator(mode="after")
    def _classes_are_balanced_once(self) -> "TrainingConfig":
        if self.class_weights and self.sampler == "balanced":
            raise ValueError("class_weights and sampler: balanced correct rare classes twice; choose one of the two")
        return self

    @model_validator(mode="after")
    def _parts_have_a_size(self) -> "TrainingConfig":
        if self.max_instances is None and self.sampling != "cluster":
            raise ValueError(f"sampling: {self.sampling} draws parts of bags; give their size, max_instances")
        if self.max_instances is not None and self.instance_loss:
            raise ValueError("instance_loss needs whole bags, whose rows its marks name; leave max_instances out")
        return self


# Where files lie and how often to save does not change what is learned: free to differ between start and resume.
FREE_KEYS = frozenset(
    (
        *("data.manifest", "data.splits", "data.corrections"),
        *("training.workers", "training.checkpoint_minutes", "training.tensorboard", "training.loggers"),
    )
)
# Settings that earlier versions did not have; unset, they are no part of the digest, so that their runs go on.
_LATER_KEYS: tuple[tuple[str, Any], ...] = (
    ("training.instance_loss", 0.0),
    ("training.sampler", "shuffle"),
    ("training.compile", False),
    ("training.max_instances", None),
    ("training.sampling", "cluster"),
    ("data.test", "fixed"),
    ("target.kind", "class"),
    ("target.columns", None),
    ("target.intervals", 4),
    ("data.bags", "case"),
    ("data.covariates", None),
)
_NOT_WRITTEN: tuple[tuple[str, str, Any], ...] = (
    ("data", "test", "fixed"),
    ("data", "bags", "case"),
    ("data", "covariates", None),
    ("training", "sampler", "shuffle"),
    ("training", "max_instances", None),
    ("training", "sampling", "cluster"),
    ("training", "loggers", []),
    ("training", "compile", False),
)


class TrainConfig(_ConfigSection):
    """Everything one training run depends on."""

    data: DataConfig
    model: ModelConfig
    training: TrainingConfig = TrainingConfig()
    target: TargetConfig = TargetConfig()

    @model_validator(mode="after")
    def _marks_and_their_weight(self) -> "TrainConfig":
        if self.data.corrections is not None and not self.training.instance_loss:
            raise ValueError("data.corrections is given, but training.instance_loss is 0; set its weight, such as 0.3")
        if self.data.corrections is None and self.training.instance_loss and self.data.manifest != IN_MEMORY:
            raise ValueError("training.instance_loss needs marks to learn from; give data.corrections, their folder")
        return self

    def anchored(self) -> "TrainConfig":
        """The same settings with relative paths made absolute, to be stored."""
        content = self.model_dump()
        _resolve_paths(content, Path.cwd())
        return TrainConfig.model_validate(content)

    def to_yaml(self) -> str:
        """Canonical YAML of all settings, defaults included."""
        content = self.written()
        return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)

    def written(self) -> dict[str, Any]:
        """All settings as files hold them: without later ones that are unset, so that files of before stay the same."""
        content = self.model_dump()
        if self.target == TargetConfig():
            del content["target"]
        for section, key, unset in _NOT_WRITTEN:
            if content[section][key] == unset:
                del content[section][key]
        return content

    def digest(self) -> str:
        """Digest of the settings that decide what is learned."""
        told = {k: v for k, v in _flatten(self).items() if k not in FREE_KEYS}
        return digest(repr(sorted((k, v) for k, v in told.items() if (k, v) not in _LATER_KEYS)))

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
    content = {} if path is None else read_yaml(path, "config", "sections data, model, training")
    _resolve_paths(content, Path(path or "").parent)
    changes: dict[str, Any] = {}
    for text in overrides:
        _apply(changes, text)
    _resolve_paths(changes, Path.cwd())
    config = checked(TrainConfig, _merged(content, changes), "the settings" if path is None else str(path))
    if path is not None:
        require_trust_code(config.model.name, path, trust_code or changes.get("model", {}).get("name", False))
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


def read_yaml(path: str | Path, what: str, expected: str) -> dict[str, Any]:
    """The mapping in a YAML file; what the file should be and what is expected in it stand in the errors."""
    try:
        content = parse_yaml(read_text(path, _MOST_BYTES), str(path))
    except DataError as problem:
        raise ConfigError(f"{problem}; give the path of a YAML {what}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected {expected}; got {type(content).__name__}")
    return content


def parse_yaml(text: str, where: str) -> Any:
    """Parse YAML as plain data of bounded size; 1e-5 is a number, a date is a text, a key given twice is an error."""
    try:
        return _Loader(text).get_single_data()
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError) as problem:
        raise ConfigError(f"{where}: not valid YAML: {' '.join(str(problem).split())}") from None


# More than any settings need, and little enough to be read within a second.
_MOST_BYTES, _MOST_NODES, _DEEPEST, _LONGEST_NUMBER = 1 << 17, 10_000, 50, 60
_TAG = "tag:yaml.org,2002:"
_PLAIN_TAGS = {_TAG + name for name in ("null", "bool", "int", "float", "str", "seq", "map", "merge")}
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class _Loader(yaml.SafeLoader):
    def __init__(self, text: str):
        super().__init__(text)
        self.depth = self.count = 0
        self.sizes: dict[int, int] = {}  # of finished nodes, with everything below them and behind their aliases

    def compose_node(self, parent: Any, index: Any) -> Any:
        """The next node, unless it is or refers to something that no settings hold."""
        mark, before = self.peek_event().start_mark, self.count  # type: ignore[no-untyped-call]
        alias = self.check_event(yaml.AliasEvent)
        self.depth += 1
        if self.depth > _DEEPEST:
            self._refuse(f"nested more than {_DEEPEST} levels deep", mark)
        node: Any = super().compose_node(parent, index)
        self.depth -= 1
        if alias and id(node) not in self.sizes:
            self._refuse("an alias inside of what it stands for", mark)
        self.count += self.sizes[id(node)] if alias else 1
        if self.count > _MOST_NODES:
            self._refuse(f"more than {_MOST_NODES:,} values, aliases counted with what they stand for", mark)
        self.sizes.setdefault(id(node), self.count - before)
        if node.tag not in _PLAIN_TAGS:
            self._refuse(f"{node.tag.replace(_TAG, '!!')} is no plain text, number, list or mapping", mark)
        if isinstance(node, yaml.ScalarNode):
            if _CONTROL.search(node.value):
                self._refuse("a text with a control character", mark)
            if node.tag in (_TAG + "int", _TAG + "float") and len(node.value) > _LONGEST_NUMBER:
                self._refuse(f"a number of {len(node.value):,} characters", mark)
        return node

    def _refuse(self, problem: str, mark: Any) -> NoReturn:
        raise yaml.composer.ComposerError(None, None, problem, mark)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key.value!r} is given twice", key.start_mark)
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if tag != f"{_TAG}timestamp"]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def setting_section(key: str) -> str | None:
    """The section of the settings in which a key stands; None of an unknown key."""
    sections: dict[str, type[BaseModel]] = {"data": DataConfig, "model": ModelConfig, "training": TrainingConfig}
    return next((name for name, fields in sections.items() if key in fields.model_fields), None)


def _apply(content: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    names = key.strip().split(".")
    if not equals or len(names) < 2 or not all(names):
        section = setting_section(key.strip())
        wanted = (
            f"{section}.{override.strip()}" if equals and section else "section.key=value, such as training.lr=1e-5"
        )
        raise ConfigError(f"--set {override!r}: expected {wanted}")
    for name in names[:-1]:
        content = content.setdefault(name, {})
        if not isinstance(content, dict):
            raise ConfigError(f"--set {override!r}: {name} is a value already, not a section")
    content[names[-1]] = parse_yaml(value, f"--set {override[:80]}")


def _merged(below: Any, above: Any) -> Any:
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    return below | {key: _merged(below.get(key), value) for key, value in above.items()}


def _resolve_paths(content: dict[str, Any], folder: Path) -> None:
    data = content.get("data")
    for key in ("manifest", "splits", "corrections"):
        if isinstance(data, dict) and isinstance(data.get(key), str):
            data[key] = str((folder / data[key]).expanduser().resolve())


def _explain(kind: type[BaseModel], error: Any) -> str:
    path = [str(part)[:80] for part in error["loc"]]
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
    return f"{dotted}: {expected}, got {brief(error['input'])}"


def _fields_at(kind: type[BaseModel], path: list[str]) -> list[str]:
    for part in path:
        inner = kind.model_fields[part].annotation
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        kind = inner
    return list(kind.model_fields)

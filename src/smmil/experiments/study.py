"""The description of a study: data sets, model variants, learning rates, seeds, tables and figures."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from smmil.config import Count, PathText, Positive, Whole, checked, parse_yaml, read_yaml
from smmil.errors import ConfigError, brief, require_trust_code, suggest
from smmil.evaluate.metrics import METRICS, pooled_names
from smmil.experiments.search_space import Space, space_problems

# Labels in tables for `group` and `family` of a variant.
GROUPS = {"no_global": "without global interactions", "global": "with global interactions"}
FAMILIES = {"independent": "none", "local": "local", "global": "global", "global_local": "global and local"}
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
SHARED = ("data", "runs", "slurm")  # folders that all studies of one --out have in common
_GRID_SETTINGS = {"lr": "learning_rates: [1e-4, 1e-5]", "seed": "seeds: [0, 1, 2]"}
Kind = Literal["slides", "scans"]
_FILE_NAME = re.compile(r"\w[\w .()+-]*")


def _resolve_variables(dataset: Mapping[str, Any], given: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """Replace ${NAME} in the paths of a definition; `missing` names a variable that is not set.

    Values in `given` count from the working folder, paths in the file from `folder`. A file may name any variable of
    the environment, also one that holds a secret: what is not the path of something that exists is shown nowhere.
    """
    found = dict(dataset)
    for key in (key for key in ("manifest", "splits") if isinstance(found.get(key), str)):
        names = _VARIABLE.findall(found[key])
        unset = [name for name in names if not (given.get(name) or os.environ.get(name))]
        if unset:
            found[key] = None
            found.setdefault("missing", unset[0])  # the manifest first: splits are of no use without it
            continue
        path = _VARIABLE.sub(lambda match: given.get(match[1]) or os.environ[match[1]], found[key])
        found[key] = str(((Path.cwd() if names else folder) / path).expanduser().resolve())
        asked = [name for name in names if not given.get(name)]
        if asked and not os.path.exists(found[key]):
            raise ConfigError(
                f"data set {found['name']!r}: its {key} does not lie where the environment variable {asked[0]} says "
                f"(its value is not shown); correct the variable, or give --data {asked[0]}=FILE"
            )
    return found


def parse_variables(texts: Iterable[str]) -> dict[str, str]:
    """NAME=PATH pairs of the command line."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise ConfigError(f"--data {text!r}: expected NAME=manifest.csv, such as CRCHISTO=bags/manifest.csv")
        found[name.strip()] = value.strip()
    return found


def _measured_metric(name: str) -> str:
    """The name itself, if rows of results have it; else an error that names the nearest ones."""
    if name in pooled_names():
        return name
    bare, _, pool = name.partition("@")
    if pool and bare in METRICS and METRICS[bare].level != "instance":
        raise ValueError(f"unknown metric {name!r}; {bare} does not depend on a pool of instances: write {bare}")
    near = suggest(name, pooled_names())
    bare_names = (metric for metric in pooled_names() if "@" not in metric)  # all pools of all metrics fill a screen
    raise ValueError(f"unknown metric {name!r}; {near if near.startswith('did') else suggest(name, bare_names)}")


def _study_problems(study: "Study") -> Iterator[str]:
    """One line for each inconsistency of a study."""
    if study.name in SHARED:
        yield f"name: {study.name!r} is the name of a folder that all studies share; choose another"
    yield from _names(study)
    yield from _ineffective_settings(study)
    yield from space_problems(study.search)
    for figure in study.figures:
        if figure.kind == "differences" and study.reference is None:
            yield f"figure {figure.name!r}: differences need a reference; give the study one"
        if figure.kind == "pairs" and not study.pairs:
            yield f"figure {figure.name!r}: give the study pairs, such as {{SmCLAM: CLAM}}"
        if figure.kind in ("difficulty", "sweep"):
            yield from (_sweep if figure.kind == "sweep" else _difficulty)(study, figure)


def _names(study: "Study") -> Iterator[str]:
    for what, names in (("data set", [d.name for d in study.datasets]), ("variant", [v.name for v in study.variants])):
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice or not names:
            yield f"{what} {twice[0]!r} is given twice" if twice else f"no {what} given"
    known = {v.name for v in study.variants}
    specs: list[TableSpec | FigureSpec] = [*study.tables, *study.figures]
    asked = [name for spec in specs for name in spec.variants or []]
    asked += [study.reference] if study.reference else []
    asked += [study.selection.default] if study.selection else []
    for name in (*asked, *study.pairs, *study.pairs.values()):
        if name not in known:
            yield f"unknown variant {name!r}; {suggest(name, known)}"
    # Tables and ranks know a data set by `dataset` and `extractor`: two of the same would overwrite each other.
    first: dict[tuple[str, str], str] = {}
    for one in study.datasets:
        other = first.setdefault((one.dataset or one.name, one.extractor), one.name)
        if other != one.name:
            words = f"{one.dataset or one.name} {one.extractor}".strip()
            yield (
                f"data sets {other!r} and {one.name!r} would share the column {words!r} of tables; give each a dataset "
                "or extractor of its own, or leave dataset out: then its name stands for it"
            )


def _ineffective_settings(study: "Study") -> Iterator[str]:
    """Learning rate and seed belong to the grid; among the settings of a training they would do nothing."""
    places: list[tuple[str, Mapping[str, Any]]] = [("", study.training)]
    places += [(f"data set {d.name!r}: ", d.training) for d in study.datasets]
    places += [(f"data set {d.name!r}: {of}: ", t) for d in study.datasets for of, t in d.training_of.items()]
    places += [(f"variant {v.name!r}: ", v.training) for v in study.variants]
    for where, training in places:
        for key in (key for key in training if key in _GRID_SETTINGS):
            yield f"{where}training.{key} has no effect in a study; give the study {_GRID_SETTINGS[key]} instead"


def _difficulty(study: "Study", figure: "FigureSpec") -> Iterator[str]:
    swept = {option for dataset in study.datasets for option in dataset.synthetic_options}
    if figure.setting not in swept:
        hint = suggest(str(figure.setting), swept) if swept else "no data set is synthetic with options"
        yield f"figure {figure.name!r}: setting {figure.setting!r} is no option of a data set; {hint}"
    values = [dataset.synthetic_options.get(str(figure.setting), 0) for dataset in study.datasets]
    if not all(isinstance(value, int | float) for value in values):
        yield f"figure {figure.name!r}: setting {figure.setting!r} has values that are no numbers"


def _sweep(study: "Study", figure: "FigureSpec") -> Iterator[str]:
    """The option is swept, and each of its values once: a figure has one line of dots."""
    swept = {option for variant in study.variants for option in variant.setting}
    if figure.setting not in swept:
        hint = suggest(str(figure.setting), swept) if swept else "no variant has a sweep"
        yield f"figure {figure.name!r}: setting {figure.setting!r} is swept by no variant; {hint}"
        return
    first: dict[str, str] = {}
    for one in (v for v in study.variants if figure.setting in v.setting and figure.shows(v.name)):
        other = first.setdefault(repr(one.setting[figure.setting]), one.name)
        if other != one.name:
            yield (
                f"figure {figure.name!r}: {other!r} and {one.name!r} have the same {figure.setting}; a figure holds "
                "one sweep; choose its variants with variants: [...], and give the other sweep a figure of its own"
            )


def _check_file_name(name: str) -> str:
    if not _FILE_NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot be the name of a file; use letters, digits, spaces and _ . ( ) + - only")
    return name


FileName = Annotated[str, AfterValidator(_check_file_name)]  # becomes the name of a file or folder of the study
Metric = Annotated[str, AfterValidator(_measured_metric)]
Metrics = Annotated[list[Metric], Field(min_length=1)]


class _StudySection(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Synthetic(_StudySection):
    """A synthetic set: how many bags, the seed, and options of `synthetic_slides` or `synthetic_scans`."""

    kind: Kind
    bags: Count = 150
    seed: Whole = 0
    options: dict[str, Any] = {}


class Dataset(_StudySection):
    """Bags and how they are split.

    name         as in tables; `dataset` and `extractor` name the column of the paper it is compared with
    manifest     path of a table of bags; None with `missing`, the variable that is not set
    test         fixed: one test set for all folds; rotate: every patient is tested in exactly one fold
    bags, covariates  as in `smmil.config.DataConfig`
    training     settings of every run on this set; `training_of` those of one variant or group of variants
    """

    name: str
    dataset: str = ""
    extractor: str = ""
    manifest: PathText | None = None
    missing: str | None = None
    synthetic: Synthetic | None = None
    kind: Kind = "slides"
    folds: Count = 5
    val_share: Annotated[float, Field(gt=0, lt=1)] = 0.2
    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.2
    test: Literal["fixed", "rotate"] = "fixed"
    split_seed: Whole = 0
    splits: PathText | None = None
    bags: Literal["case", "patient"] = "case"
    covariates: Annotated[list[str], Field(min_length=1)] | None = None
    training: dict[str, Any] = {}
    training_of: dict[str, dict[str, Any]] = {}

    @property
    def synthetic_options(self) -> dict[str, Any]:
        """Options of a synthetic set; of another, none."""
        return self.synthetic.options if self.synthetic is not None else {}

    @model_validator(mode="after")
    def _has_one_source(self) -> "Dataset":
        if self.missing is not None and (self.manifest is not None or self.synthetic is not None):
            raise ValueError(
                f"data set {self.name!r}: its splits lie where the variable {self.missing} says, which is not set; "
                f"give --data {self.missing}=splits.json"
            )
        if sum(v is not None for v in (self.manifest, self.missing, self.synthetic)) != 1:
            raise ValueError(f"data set {self.name!r} needs either a manifest or a synthetic set")
        if self.test == "rotate" and self.splits is not None:
            raise ValueError(
                f"data set {self.name!r}: test: rotate draws the folds, but splits gives them; leave one of the two out"
            )
        return self


class Variant(_StudySection):
    """A model with its options and training settings, under the name it has in tables.

    group    models that are ranked together: no_global or global (interactions among all instances)
    family   independent, local, global or global_local
    setting  the value of the option a figure sweeps over, such as {alpha: 0.5}
    """

    name: str
    model: str
    options: dict[str, Any] = {}
    training: dict[str, Any] = {}
    group: str = "no_global"
    family: Literal["independent", "local", "global", "global_local"] = "independent"
    setting: dict[str, Any] = {}


class TableSpec(_StudySection):
    """One table: metrics as columns of every data set; `paper` names the table of the paper to compare with.

    rank_by  "all": one mean rank over all columns; "extractor": nothing but ranks, by extractor; None: no ranks
    mixed    extractors whose columns are ranked with those of another, as the paper did in its table 6
    """

    name: FileName
    title: str = ""
    metrics: Metrics
    paper: str | None = None
    variants: list[str] | None = None
    rank_by: Literal["all", "extractor"] | None = None
    mixed: dict[str, list[str]] = {}


class FigureSpec(_StudySection):
    """One figure: its kind and what it shows."""

    name: FileName
    kind: Literal[
        "sweep", "difficulty", "differences", "pairs", "histograms", "maps", "examples", "critical_difference"
    ]
    title: str = ""
    setting: str | None = None
    metrics: Metrics = ["inst_auroc", "bag_auroc"]
    variants: list[str] | None = None
    cases: Count = 3

    def shows(self, variant: str) -> bool:
        return self.variants is None or variant in self.variants


class Selection(_StudySection):
    """A choice among the variants, made in every split from its validation cases.

    criterion  of validation: bag_auroc or bag_loss, which need no instance labels; inst_auroc, which needs them
    default    the variant that would be used without choosing
    options    of the models that differ between the variants: how often each value is chosen is reported
    """

    criterion: Literal["bag_auroc", "bag_loss", "inst_auroc"] = "bag_auroc"
    default: str
    options: list[str] = ["where", "alpha"]
    metrics: Metrics = ["bag_auroc", "inst_auroc"]


class Study(_StudySection):
    """Description of a study: data sets, variants, grid, tables and figures; runs of equal content are trained once.

    caveat  stands before the title of every table, page and figure, such as "Preliminary"
    pairs   variants that are tested against a partner of their own, such as {SmCLAM: CLAM}
    selection  choose a variant in every split by validation, and report the choices and what choosing costs
    search     settings that `smmil experiment search` may change, with their values or ranges
    """

    name: FileName
    title: str = ""
    caveat: str = ""
    datasets: list[Dataset]
    variants: list[Variant]
    learning_rates: Annotated[list[Positive], Field(min_length=1)] = [1e-4, 1e-5]
    folds: Annotated[list[Whole], Field(min_length=1)] | None = None
    seeds: Annotated[list[Whole], Field(min_length=1)] = [0]
    training: dict[str, Any] = {}
    ddof: Literal[0, 1] = 1
    reference: str | None = None
    pairs: dict[str, str] = {}
    tests: Metrics = ["inst_auroc", "bag_auroc"]
    selection: Selection | None = None
    search: Space = {}
    tables: list[TableSpec] = []
    figures: list[FigureSpec] = []

    @model_validator(mode="after")
    def _is_consistent(self) -> "Study":
        for problem in _study_problems(self):
            raise ValueError(problem)
        return self

    def headline(self, title: str) -> str:
        """A title with the study's caveat before it."""
        return f"{self.caveat}: {title}" if self.caveat else title


def load_study(path: str | Path, variables: Mapping[str, str] | None = None, *, trust_code: bool = False) -> Study:
    """The study in a YAML file; names of data sets and variants may be those of the paper's protocol.

    variables   values for ${NAME} in paths; the environment is asked for what is not given here
    trust_code  the file may name models outside smmil, which means running that code
    """
    path = Path(path)
    content = read_yaml(path, "study", "keys name, datasets, variants")
    known = _protocol()
    for part in ("datasets", "variants"):
        listed, where = content.get(part), f"{path}: {part}"
        if not isinstance(listed, list) or not listed:
            raise ConfigError(f"{where}: expected a list of names or definitions, got {brief(listed)}")
        try:
            content[part] = [one for item in listed for one in _swept(_entry(item, known[part], where), where)]
        except (TypeError, AttributeError, ValueError) as problem:
            raise ConfigError(f"{where}: not names or definitions with options as mappings ({problem})") from None
    content["datasets"] = [_resolve_variables(d, variables or {}, path.parent) for d in content["datasets"]]
    study = checked(Study, {"name": path.stem, **content}, str(path))
    for variant in study.variants:
        require_trust_code(variant.model, path, trust_code)
    return study


def _protocol() -> dict[str, dict[str, dict[str, Any]]]:
    """Data sets and variants of the paper, by name."""
    return parse_yaml(files(__package__).joinpath("protocol.yaml").read_text(encoding="utf-8"), "protocol.yaml")


def _entry(item: Any, known: Mapping[str, dict[str, Any]], where: str) -> dict[str, Any]:
    """A definition: the protocol's by name, or one given here, which may start `from` one of the protocol's."""
    if isinstance(item, str):
        item = {"name": item, "from": item}
    if not isinstance(item, dict) or not isinstance(item.get("name"), str):
        raise ConfigError(f"{where}: expected a name or a definition with a name, got {brief(item)}")
    if (source := item.get("from")) is not None and source not in known:
        raise ConfigError(f"{where}: unknown name {brief(source)}; {suggest(str(source), known)}")
    return {**known.get(source or "", {}), **{k: v for k, v in item.items() if k != "from"}}


def _swept(entry: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """One definition per value of `sweep: {option: [values]}`; {} in the name stands for the value."""
    sweep = entry.pop("sweep", None)
    if sweep is None:
        return [entry]
    if not isinstance(sweep, dict) or len(sweep) != 1 or "{}" not in entry["name"]:
        raise ConfigError(f"{where}: {entry['name']!r}: a sweep needs one option with its values, and {{}} in the name")
    option, values = next(iter(sweep.items()))
    found = []
    for value in values:
        changed = {**entry, "name": entry["name"].replace("{}", str(value))}
        training, inner = entry.get("training", {}), entry.get("synthetic", entry)
        options = {"options": {**inner.get("options", {}), option: value}}
        if "synthetic" in entry:
            changed["synthetic"] = {**inner, **options}
        elif option.startswith("penalty."):
            penalty = {**training.get("penalty", {}), option.removeprefix("penalty."): value}
            changed |= {"training": {**training, "penalty": penalty}, "setting": {option: value}}
        else:
            changed |= {**options, "setting": {option: value}}
        found.append(changed)
    return found

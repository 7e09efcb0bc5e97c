"""What cannot be meant in a study, in words, before anything is trained."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from smmil.errors import suggest

if TYPE_CHECKING:
    from smmil.experiments.study import Dataset, FigureSpec, Study

SHARED = ("data", "runs", "slurm")  # folders that all studies of one --out have in common
_ELSEWHERE = {"lr": "learning_rates: [1e-4, 1e-5]", "seed": "seeds: [0, 1, 2]"}


def study_problems(study: "Study") -> Iterator[str]:
    """One line for each contradiction; nothing when the study makes sense."""
    if study.name in SHARED:
        yield f"name: {study.name!r} is the name of a folder that all studies share; choose another"
    yield from _names(study)
    yield from _columns_of_tables(study)
    yield from _settings_elsewhere(study)
    for figure in study.figures:
        yield from _FIGURES.get(figure.kind, lambda *_: iter(()))(study, figure)


def _names(study: "Study") -> Iterator[str]:
    for what, names in (("data set", [d.name for d in study.datasets]), ("variant", [v.name for v in study.variants])):
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice or not names:
            yield f"{what} {twice[0]!r} is given twice" if twice else f"no {what} given"
    known = {v.name for v in study.variants}
    asked = [name for table in study.tables for name in table.variants or []]
    asked += [name for figure in study.figures for name in figure.variants or []]
    asked += [study.reference] if study.reference else []
    for name in (*asked, *study.pairs, *study.pairs.values()):
        if name not in known:
            yield f"unknown variant {name!r}; {suggest(name, known)}"


def _columns_of_tables(study: "Study") -> Iterator[str]:
    """Tables and ranks know a data set by `dataset` and `extractor`: two of the same would overwrite each other."""
    first: dict[tuple[str, str], str] = {}
    for one in study.datasets:
        other = first.setdefault((one.dataset or one.name, one.extractor), one.name)
        if other != one.name:
            words = f"{one.dataset or one.name} {one.extractor}".strip()
            yield (
                f"data sets {other!r} and {one.name!r} would share the column {words!r} of tables; give each a dataset "
                "or extractor of its own, or leave dataset out: then its name stands for it"
            )


def _settings_elsewhere(study: "Study") -> Iterator[str]:
    """Learning rate and seed belong to the grid; among the settings of a training they would do nothing."""
    places: list[tuple[str, Mapping[str, Any]]] = [("", study.training)]
    places += [(f"data set {d.name!r}: ", d.training) for d in study.datasets]
    places += [(f"data set {d.name!r}: {of}: ", t) for d in study.datasets for of, t in d.training_of.items()]
    places += [(f"variant {v.name!r}: ", v.training) for v in study.variants]
    for where, training in places:
        for key in (key for key in training if key in _ELSEWHERE):
            yield f"{where}training.{key} has no effect in a study; give the study {_ELSEWHERE[key]} instead"


def _differences(study: "Study", figure: "FigureSpec") -> Iterator[str]:
    if study.reference is None:
        yield f"figure {figure.name!r}: differences from whom? Give the study a reference"


def _pairs(study: "Study", figure: "FigureSpec") -> Iterator[str]:
    if not study.pairs:
        yield f"figure {figure.name!r}: give the study pairs, such as {{SmCLAM: CLAM}}"


def _difficulty(study: "Study", figure: "FigureSpec") -> Iterator[str]:
    swept = {option for dataset in study.datasets for option in _options(dataset)}
    if figure.setting not in swept:
        hint = suggest(str(figure.setting), swept) if swept else "no data set is synthetic with options"
        yield f"figure {figure.name!r}: setting {figure.setting!r} is no option of a data set; {hint}"
    values = [_options(dataset).get(str(figure.setting), 0) for dataset in study.datasets]
    if not all(isinstance(value, int | float) for value in values):
        yield f"figure {figure.name!r}: setting {figure.setting!r} has values that are no numbers"


def _options(dataset: "Dataset") -> dict[str, Any]:
    return dataset.synthetic.options if dataset.synthetic is not None else {}


def _sweep(study: "Study", figure: "FigureSpec") -> Iterator[str]:
    """The option is swept, and each of its values once: a figure has one line of dots."""
    swept = {option for variant in study.variants for option in variant.setting}
    if figure.setting not in swept:
        hint = suggest(str(figure.setting), swept) if swept else "no variant has a sweep"
        yield f"figure {figure.name!r}: setting {figure.setting!r} is swept by no variant; {hint}"
        return
    first: list[tuple[Any, str]] = []
    for one in study.variants:
        if figure.setting not in one.setting or one.name not in (figure.variants or [one.name]):
            continue
        value = one.setting[figure.setting]
        other = next((name for seen, name in first if type(seen) is type(value) and seen == value), None)
        if other is not None:
            yield (
                f"figure {figure.name!r}: {other!r} and {one.name!r} have the same {figure.setting}; a figure holds "
                "one sweep; choose its variants with variants: [...], and give the other sweep a figure of its own"
            )
        first.append((value, one.name))


_FIGURES = {"differences": _differences, "pairs": _pairs, "difficulty": _difficulty, "sweep": _sweep}

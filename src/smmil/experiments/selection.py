"""A variant chosen by validation in every split: what was chosen, how stable the choice is, and what choosing costs."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from pandas import DataFrame, concat

from smmil.errors import ConfigError, DataError
from smmil.evaluate.levels import instance_metrics
from smmil.evaluate.metrics import direction, metric_name
from smmil.evaluate.resampling import interval_text, p_text
from smmil.experiments.study import Selection, Study, Variant
from smmil.experiments.variant_tests import Judged, _metric_tests
from smmil.experiments.writing import _markdown_cell, _markdown_row
from smmil.models import model_options
from smmil.prediction import load_predictions

_SPLIT = ["set", "seed", "fold"]
# Columns of results that the choice may see: nothing of the test part is among them.
_SEEN = ["run", *_SPLIT, "variant", "lr", "val_auroc", "val_loss"]
# What decides, then what decides between equals; -1: less is better. A full tie goes to the first of the study.
_ORDERS = {
    "bag_auroc": (("val_auroc", 1), ("val_loss", -1)),
    "bag_loss": (("val_loss", -1), ("val_auroc", 1)),
    "inst_auroc": (("val_inst_auroc", 1), ("val_loss", -1)),
}
_WORDS = {
    "bag_auroc": "validation AUROC of the bags, ties by lower validation loss",
    "bag_loss": "validation loss of the bags, ties by higher validation AUROC",
    "inst_auroc": "validation AUROC of the instances, ties by lower validation loss",
}
_NONE = "none"  # place of a variant without the option
_READING = (
    "choice: made in each split from its validation cases alone, model and learning rate together; its test cases play "
    "no part, and are measured for the chosen run as for a study of one model",
    "agreement: share of the pairs of splits that chose the same; by chance: of pairs of candidates drawn at random",
    "best in hindsight: the best test value of all candidates in each split; no protocol reaches it without the test "
    "labels, and it is too high by construction; price: what the chosen ones are below it",
    "best single in hindsight: the one candidate with the best mean over all splits, also found with the test labels",
)


def _selection_rows(study: Study, results: Any, out: str | Path) -> DataFrame:
    """One row per split and metric: the chosen run beside the default and the best in hindsight."""
    assert study.selection is not None
    rule = study.selection
    chosen = _choose(study, results, Path(out))
    fixed = _choose(study, results[results["variant"] == rule.default], Path(out))
    by_run, rows = results.set_index("run"), list[dict[str, Any]]()
    variants = {variant.name: variant for variant in study.variants}
    for split, row in chosen.items():
        mine = results[(results[_SPLIT] == list(split)).all(axis=1)]
        variant = variants[row["variant"]]
        facts = {**dict(zip(_SPLIT, split, strict=True)), "run": row["run"], "chosen": variant.name, "lr": row["lr"]}
        facts |= {option: _value_of(variant, option) for option in rule.options}
        facts |= {"candidates": len(mine), **{name: row[name] for name, _ in _ORDERS[rule.criterion]}}
        for metric in rule.metrics:
            best, value = _best_of(mine, metric), float(by_run.loc[row["run"], metric])
            default = float(by_run.loc[fixed[split]["run"], metric]) if split in fixed else math.nan
            compared = {"value": value, "default": rule.default, "default_value": default, "gain": value - default}
            compared |= {"default_run": fixed[split]["run"] if split in fixed else ""}
            top = math.nan if best is None else float(best[metric])
            compared |= {"best": "" if best is None else best["variant"], "best_value": top}
            rows.append({**facts, "metric": metric, **compared, "price": direction(metric) * (top - value)})
    return DataFrame(rows)


def _choose(study: Study, results: Any, out: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The chosen run of every split (set, seed, fold): its facts and the validation values that decided."""
    assert study.selection is not None
    rule, place = study.selection, {variant.name: i for i, variant in enumerate(study.variants)}
    if "val_auroc" not in results:
        raise ConfigError("selection: is for targets of kind class, whose validation AUROC it compares; leave it out")
    seen = results[_SEEN].copy()
    if rule.criterion == "inst_auroc":
        seen["val_inst_auroc"] = [_instance_auroc(out / "runs" / key / "val") for key in seen["run"]]

    def rank(row: dict[str, Any]) -> tuple[float, ...]:
        values = [side * row[name] for name, side in _ORDERS[rule.criterion]]
        return *(-math.inf if math.isnan(value) else value for value in values), -place[row["variant"]], row["lr"]

    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in seen.to_dict("records"):
        split = tuple(row[key] for key in _SPLIT)
        if split not in found or rank(row) > rank(found[split]):
            found[split] = row
    return dict(sorted(found.items()))


def _instance_auroc(folder: Path) -> float:
    """Instance AUROC over the validation cases of a run; an error where none has instance labels."""
    cases = load_predictions(folder)
    if not any(p.y_inst is not None and (p.y_inst >= 0).any() for p in cases):
        raise DataError(
            f"{folder}: no validation case has instance labels, so that they cannot choose; give the study "
            "selection: {criterion: bag_auroc}"
        )
    value = instance_metrics(cases)["auroc"]
    return math.nan if value is None else float(value)


def _value_of(variant: Variant, option: str) -> str:
    """The value of an option of the model, given or by default, or of the Sm on top of it."""
    options = {**model_options(variant.model), **variant.options}
    inside = options.get("sm")
    return str(options.get(option, inside.get(option, _NONE) if isinstance(inside, dict) else _NONE))


def _best_of(rows: Any, metric: str) -> Any:
    """The row with the best test value; None where none has a value."""
    known = rows[rows[metric].notna()]
    if not len(known) or not direction(metric):
        return None
    return known.loc[(direction(metric) * known[metric]).idxmax()]


def _agreement(choices: Sequence[str]) -> float:
    """Share of the pairs that are equal; nan for fewer than two."""
    pairs = list(combinations(choices, 2))
    return sum(a == b for a, b in pairs) / len(pairs) if pairs else math.nan


def _chance(study: Study, option: str | None) -> float:
    """Agreement of two candidates drawn at random, in an option or altogether."""
    names = [v.name if option is None else _value_of(v, option) for v in study.variants]
    return sum((count / len(names)) ** 2 for count in Counter(names).values())


def _gain_row(rows: Any, results: Any, out: Path, metric: str, n: int, judged: Judged | None = None) -> dict[str, Any]:
    """The chosen runs of one data set against those of the default: difference with its paired interval."""
    both = rows[(rows["metric"] == metric) & (rows["default_run"] != "")]
    by_run, parts = results.set_index("run", drop=False), list[DataFrame]()
    for name, column in (("chosen", "run"), ("default", "default_run")):
        parts.append(by_run.loc[list(both[column])].assign(variant=name))
    if not len(both):
        return {}
    try:
        (tests,) = _metric_tests(concat(parts), out, [metric], n, None, judged)
        return tests.paired_row("chosen", "default")
    except DataError:
        return {"difference_low": math.nan, "difference_high": math.nan, "p": math.nan}


def _selection_markdown(
    study: Study,
    rows: DataFrame,
    results: DataFrame,
    out: str | Path,
    resamples: int,
    judged: Judged | None = None,
) -> str:
    """Markdown page: the choices, their stability and their price, one section per data set."""
    assert study.selection is not None
    rule, lines = study.selection, [f"## {study.headline('Chosen by validation')}", ""]
    for set_, part in rows.groupby("set", sort=True):
        splits = part.drop_duplicates(_SPLIT)
        mine = results[results["set"] == set_]
        planned = len(study.variants) * len(study.learning_rates)
        lines += [
            f"### {_markdown_cell(set_)}",
            "",
            f"Chosen by {_WORDS[rule.criterion]}, among {planned} candidates.",
            "",
        ]
        lines += [*_choice_table(rule, part, splits), "", *_stability_lines(study, splits), ""]
        lines += [*_price_table(rule, part, mine, Path(out), resamples, judged), ""]
        short = splits[splits["candidates"] < planned]
        lines += [f"- {len(short)} of {len(splits)} splits lacked candidates, which could not be chosen"] * bool(
            len(short)
        )
    return "\n".join([*lines, *(f"- {note}" for note in _READING), ""])


def _choice_table(rule: Selection, part: DataFrame, splits: DataFrame) -> list[str]:
    decided = _ORDERS[rule.criterion][0][0]
    heads = ["seed", "fold", "chosen", *rule.options, "learning rate", decided.replace("_", " ")]
    heads += [f"test {metric_name(metric)}" for metric in rule.metrics]
    lines = [_markdown_row(heads), _markdown_row(["---"] * len(heads))]
    for row in splits.to_dict("records"):
        here = part[(part[_SPLIT] == [row[key] for key in _SPLIT]).all(axis=1)].set_index("metric")["value"]
        cells = [row["seed"], row["fold"], row["chosen"], *(row[option] for option in rule.options), f"{row['lr']:g}"]
        cells += [_digits(row[decided]), *(_digits(here[metric]) for metric in rule.metrics)]
        lines.append(_markdown_row([_markdown_cell(cell) for cell in cells]))
    return lines


def _stability_lines(study: Study, splits: DataFrame) -> list[str]:
    """How often which value was chosen, and how far the splits agree."""
    assert study.selection is not None
    lines = []
    for option, words in ((None, "candidate"), *((option, f"`{option}`") for option in study.selection.options)):
        choices = [str(value) for value in splits["chosen" if option is None else option]]
        counts = ", ".join(f"{_markdown_cell(name)} {count}" for name, count in Counter(choices).most_common())
        agreed, chance = _agreement(choices), _chance(study, option)
        text = (
            f"agreement {agreed:.2f}, {chance:.2f} by chance" if not math.isnan(agreed) else "one split: no agreement"
        )
        lines.append(f"- {words}: {counts} (of {len(choices)} splits; {text})")
    return lines


def _price_table(
    rule: Selection, part: DataFrame, results: Any, out: Path, resamples: int, judged: Judged | None
) -> list[str]:
    heads = ["metric", "chosen", f"default ({rule.default})", "chosen minus default", "p"]
    heads += ["best in hindsight", "price", "best single in hindsight"]
    lines = [_markdown_row([_markdown_cell(head) for head in heads]), _markdown_row(["---"] * len(heads))]
    verdicts = []
    for metric in rule.metrics:
        rows = part[part["metric"] == metric]
        paired = _gain_row(part, results, out, metric, resamples, judged)
        value, default, gain, best, price = (
            float(np.mean(rows[name])) for name in ("value", "default_value", "gain", "best_value", "price")
        )
        if "difference_fold_mean" in paired:  # every patient was tested once: over all of them, as the interval is
            value, default, gain = paired["value"], paired["reference_value"], paired["difference"]
        low, high = (paired.get(f"difference_{end}", math.nan) for end in ("low", "high"))
        short = paired.get("difference_shortage", "")
        ends = interval_text(low, high, short, "+.3f", ", ")
        ends = "" if ends == "–" else f" [{ends}]"
        means = results.groupby(["variant", "lr"])[metric].mean().dropna() * direction(metric)
        single = "–" if not len(means) else f"{means.idxmax()[0]} {direction(metric) * means.max():.3f}"
        cells = [metric_name(metric), _digits(value), _digits(default), f"{_digits(gain, '+')}{ends}"]
        cells += [p_text(paired.get("p", math.nan), short), _digits(best), _digits(price), single]
        lines.append(_markdown_row([_markdown_cell(cell) for cell in cells]))
        apart = f", but the folds disagree: {paired.get('difference_folds')}" * bool(
            paired.get("difference_folds_disagree")
        )
        words = _verdict(low * direction(metric), high * direction(metric))
        verdicts.append(f"- {metric_name(metric)}: {words}{apart}")
    return [*lines, "", *verdicts]


def _verdict(one: float, other: float) -> str:
    """What the interval of the difference from the default says, in words."""
    if math.isnan(one) or math.isnan(other):
        return "no interval of the difference from the default, so nothing is said about it"
    low, high = sorted((one, other))
    if low > 0:
        return "choosing beats the default"
    if high < 0:
        return "choosing is worse than the default"
    return "no difference from the default that these cases can show"


def _digits(value: float, sign: str = "") -> str:
    return "–" if math.isnan(value) else f"{value:{sign}.3f}"

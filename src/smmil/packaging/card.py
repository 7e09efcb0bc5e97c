"""The model card: README.md with the header that the Hugging Face hub reads."""

from typing import Any

import yaml

from smmil.evaluate.calibration import Calibration
from smmil.evaluate.case_words import positives_in_words
from smmil.evaluate.drift import DriftSummary
from smmil.evaluate.resampling import missing_text
from smmil.prediction import corrections_text

KINDS = {"ct": "ct", "mr": "mr", "stack": "ct", "slide": "pathology", "points": "pathology", "patches": "pathology"}
RAW_SOURCES = {"ct": "scans/", "slide": "slide.svs", "points": "image.png --points points.csv"}
RAW_SOURCES |= {"mr": "scans/", "stack": "scans/", "patches": "slides/"}
UNSTATED = "not stated"
USE = """\
**Research use only. Not a medical device: not for diagnosis, treatment or any decision about a patient.**

Meant for research on weakly supervised classification: the model sees the instances (patches or slices) of one case and
gives a probability for the case and a score for every instance. Not meant for other tissues, scanners, stainings, scan
protocols or patients than those it was trained on without testing it there first, nor for screening, triage or any
workflow in which no person looks at the case.
"""
LIMITS = """\
- Numbers hold for cases like those they were measured on: same scanners, staining, patients and way of choosing them.
- Scores show where the model looked, not where disease is. A hot region is a hint, its absence proves nothing.
- It was trained on labels of whole cases only; which instances are diseased was not part of the training.
- Probabilities are as calibrated as the training left them; check them before reading them as risks.
- It knows only features of the encoder named above; features of another one are refused.
"""
SCORES = """\
Every instance gets a score of the kind **{kind}**{columns}{meaning}. Higher is more suspicious. Scores are not
probabilities and are to be ranked; a threshold must be chosen on validation cases.
"""
MEANINGS = {
    "attention logit": "how much the instance counts in the average of its case, before the softmax; comparable "
    "between cases",
    "instance logit": "what the classifier says about the instance alone; comparable between cases",
    "similarity to the critical instance": "how much it resembles the most suspicious instance of its case, which in a "
    "negative case is a normal one; to be compared within one case",
    "class token attention": "what the summary of the case takes from the instance; a share that shrinks as cases "
    "grow, to be compared within one case",
    "instance log-odds": "what the classifier says about the instance alone; comparable between cases",
    "class activation": "what the instance adds to the decision about its case: its weight times the classifier's "
    "answer; its mean is comparable between cases",
    "GraphCAM": "relevance times gradient of the attention maps, never negative; to be compared within one case",
}
WARNINGS = {
    "train": "Some of these cases were used in training: the numbers are too good.",
    "val": "The weights were selected on some of these cases: the numbers are somewhat too good.",
}


_CLASSIFYING = ("multilabel", "ordinal")
_TASK = {"type": "image-classification", "name": "classification of cases from their instances"}
_OTHER_TASK = {"type": "other", "name": "a number or a risk of cases from their instances"}
# What a model gives of a case, by the kind of its target; {} takes the names of the columns.
_GIVES = {
    "multilabel": "the probability of each label ({})",
    "ordinal": "the probability of each level of {}",
    "regression": "the number {}",
    "survival": "a risk and the probability of an event until each time ({}; hazards of intervals)",
    "cox": "a risk and the probability of an event until each time ({}; proportional hazards)",
}


def _model_card(
    config: dict[str, Any],
    numbers: dict[str, Any] | None,
    kind: str | None,
    onnx: list[str] | None,
    promise: Calibration | None = None,
    drift: DriftSummary | None = None,
) -> str:
    """README.md from the content of config.json; kind is that of the recipe (slide, ct, points)."""
    hashes = {"weights": config["weights"], **config["training"]["hashes"], "recipe": config["features"]["recipe"]}
    marks = [(what, mark or UNSTATED) for what, mark in hashes.items()]
    score = config["model"]["score_kind"]
    columns = "" if config["model"]["n_classes"] == 1 else ", one column for all classes or one per class"
    meaning = f" ({MEANINGS[score]})" if score in MEANINGS else ""
    header = yaml.safe_dump(_header(config, numbers, kind), sort_keys=False, allow_unicode=True, width=1000)
    parts = [
        f"---\n{header}---\n\n# {config['name']}\n",
        _what(config),
        "## Intended use\n\n" + _use(config),
        "## Training\n\n" + _training(config),
        "## Evaluation\n\n" + _evaluation(numbers),
        *([] if promise is None else [_promise(promise)]),
        *([] if drift is None else [_alarm(drift)]),
        "## What the scores mean\n\n" + SCORES.format(kind=score, columns=columns, meaning=meaning),
        "## How to use\n\n" + _how(config, kind, onnx),
        "## Limitations\n\n" + LIMITS,
        "## Provenance\n\n" + _table(("what", "SHA-256 (or its beginning)"), marks),
    ]
    return "\n".join(parts)


def _promise(calibration: Calibration) -> str:
    heading = "What is promised" if calibration.promise else "Nothing is promised"
    text = " ".join(part for part in (calibration.sentence, calibration.conditions) if part)
    lines = [
        text,
        "Every prediction of this package carries the threshold and this sentence.",
        *_class_sets(calibration),
    ]
    return f"## {heading}\n\n" + "\n\n".join(lines) + "\n"


def _class_sets(calibration: Calibration) -> list[str]:
    """What the sets of classes in the predictions of a package mean; nothing where there are none."""
    sets = calibration.sets
    if sets is None:
        return []
    counts = ", ".join(f"{patients} of class {c}" for c, patients in enumerate(sets.patients))
    never = [str(c) for c, cut in enumerate(sets.thresholds) if cut is None]
    open_ = f" Too few patients had class {', '.join(never)}, so it is in every set." if never else ""
    kept = f"The true class is in it for at least {100 * (1 - sets.target):.3g} % of the patients of each class"
    promised = f"{kept}, on average over calibrations" if calibration.promise else "Nothing is promised of it"
    text = f"Every prediction also holds a set of classes that are not excluded. {promised} ({counts} calibrated it)."
    return [f"{text} A set of several classes means that the model cannot decide.{open_}"]


def _alarm(drift: DriftSummary) -> str:
    return (
        "## Alarm for unlike cases\n\n"
        "Every prediction of this package says how unlike the training cases it is. `drift.safetensors` describes "
        f"{drift.reference} patients by means and covariances of their features, and holds how unusual "
        f"{drift.patients} further ones were; no patient's features are in it. Like the weights it was made from "
        "patients: whoever has the features of one may learn a little about whether they took part. The alarm is "
        f"raised on at most {100 * drift.level:.3g} % of the cases of patients drawn like these, and then no promise "
        "holds.\n"
    )


def _header(config: dict[str, Any], numbers: dict[str, Any] | None, kind: str | None) -> dict[str, Any]:
    other = config["licence"].lower() == "other"
    licence = {"license": "other", "license_name": "not-stated"} if other else {"license": config["licence"].lower()}
    tags = ["smmil", "multiple-instance-learning", "medical", "research-use-only", config["model"]["name"]]
    tags += [KINDS[kind]] if kind in KINDS else []
    target = config.get("target")
    tags += [] if target is None else [str(target["kind"])]
    task = dict(_TASK if target is None or target["kind"] in _CLASSIFYING else _OTHER_TASK)
    tag = {"pipeline_tag": task["type"]} if task["type"] != "other" else {}
    about = {**licence, "library_name": "smmil", **tag, "tags": tags}
    if numbers is None or WARNINGS.keys() & set(numbers["parts"]):
        return about  # no claims for the hub's ranking if some of the cases were used in training or for selection
    metrics = [
        {
            **{key: row[key] for key in ("type", "name", "value")},
            "args": {end: _end(row, end.removeprefix("ci_")) for end in ("ci_low", "ci_high")},
            "verified": False,
        }
        for row in numbers["metrics"]
    ]
    results = {"task": task, "dataset": {"type": "private", "name": _data_set(numbers)}, "metrics": metrics}
    names = list(dict.fromkeys(row["type"] for row in numbers["metrics"]))
    return about | {"metrics": names, "model-index": [{"name": config["name"], "results": [results]}]}


def _data_set(numbers: dict[str, Any]) -> str:
    parts = [part if part == "other cases" else f"{part} part of the training study" for part in numbers["parts"]]
    return " and ".join(parts)


def _what(config: dict[str, Any]) -> str:
    model, features = config["model"], config["features"]
    options = ", ".join(f"{key}={value}" for key, value in model["options"].items()) or "all as by default"
    rows = {
        "Model": f"{model['name']} (multiple instance learning), {model['parameters']:,} parameters",
        "Options": options,
        "Input": f"{_bags_in_words(config)}, {model['in_dim']} features each",
        "Output": f"{_output(config)}; one score per instance ({model['score_kind']})",
        "Encoder of the features": features["encoder_name"] or UNSTATED,
        "Weights of the encoder": features["encoder_weights"] or UNSTATED,
        "Licence of the encoder": features["encoder_licence"] or f"{UNSTATED}; check its terms before use",
        "Licence of this model": UNSTATED if config["licence"].lower() == "other" else config["licence"],
        "Software": f"smmil {config['smmil_version']}",
    }
    return _table(("", ""), rows.items())


def _bags_in_words(config: dict[str, Any]) -> str:
    """What one bag is, and which covariates it comes with."""
    training = config["training"]
    bags = "bags of all instances of a patient" if training.get("bags") == "patient" else "bags of instances"
    names = ", ".join(f"`{column['name']}`" for column in training.get("covariates", ()))
    return f"{bags} with the covariates {names} (columns of the manifest)" if names else bags


def _output(config: dict[str, Any]) -> str:
    """What the model gives of a case: its classes, or what it predicts in their place."""
    target = config.get("target")
    if target is None:
        return ", ".join(config["model"]["classes"])
    return _GIVES[target["kind"]].format(", ".join(target.get("columns", ())))


def _use(config: dict[str, Any]) -> str:
    """What the model is meant for; other targets than classes have no probability for the case."""
    if "target" not in config:
        return USE
    gives = f"{_output(config)} for the case"
    return USE.replace("weakly supervised classification", "weakly supervised prediction").replace(
        "a probability for the case", gives
    )


def _selected_by(validation: dict[str, Any]) -> str:
    """Metric and loss of the selected weights on validation."""
    others = [key for key in validation if key not in ("auroc", "loss")]
    name, key = (others[0].replace("_", " "), others[0]) if others else ("AUROC", "auroc")
    return f"{name} {_number(validation[key])}, loss {_number(validation['loss'])}"


def _training(config: dict[str, Any]) -> str:
    training = config["training"]
    if not training["cases"]:
        return "The model was trained outside smmil and converted; nothing is known here about its training data.\n"
    rows = []
    for part, sizes in training["cases"].items():
        labels = ", ".join(f"{label}: {count}" for label, count in sizes.get("labels", {}).items())
        rows.append((part, sizes["cases"], sizes.get("patients", UNSTATED), labels or UNSTATED))
    chosen = training["validation"]
    text = (
        f"\nWeights `{training['checkpoint']}`, selected at epoch {training['epoch']} on the validation part "
        f"({_selected_by(chosen)})."
    )
    taught = corrections_text(training.get("corrections"))
    text += "" if taught is None else f" It also learned from {taught}; all else it learned from labels of whole cases."
    settings = ", ".join(f"{key}={value}" for key, value in training["settings"].items())
    return _table(("part", "cases", "patients", "cases per label"), rows) + text + f"\n\nSettings: {settings}.\n"


def _end(row: dict[str, Any], key: str) -> float | str | None:
    """An end of an interval for the header; where too few patients carry it: "– (3 patients)"."""
    return missing_text(row["shortage"]) if row.get("shortage") else row[key]


def _interval(row: dict[str, Any]) -> str:
    if row.get("shortage"):
        return missing_text(row["shortage"])
    return UNSTATED if row["low"] is None or row["high"] is None else f"{row['low']:.4f} to {row['high']:.4f}"


def _evaluation(numbers: dict[str, Any] | None) -> str:
    if numbers is None:
        return "No predictions were given when this package was made, so nothing is claimed here.\n"
    rows = []
    for row in numbers["metrics"]:
        rows.append((row["name"], _number(row["value"]), _interval(row)))
    positive = positives_in_words(numbers.get("target", "class"), numbers["positive_cases"])
    text = f"{numbers['cases']} labelled cases{f' ({positive})' if positive else ''}: {_data_set(numbers)}.\n"
    text += "".join(f"\n**{warning}**\n" for part, warning in WARNINGS.items() if part in numbers["parts"])
    text += "\nIntervals: 95 %, bootstrap over patients.\n\n" + _table(("metric", "value", "interval"), rows)
    return text + "".join(f"\n- {note}" for note in numbers["notes"]) + ("\n" if numbers["notes"] else "")


def _how(config: dict[str, Any], kind: str | None, onnx: list[str] | None) -> str:
    raw = f"smmil predict --model FOLDER {RAW_SOURCES[kind]} --out predictions\n" if kind in RAW_SOURCES else ""
    ending = "" if raw else "\nThe recipe of its features is not part of the package: raw images are refused.\n"
    text = f"```\npip install smmil\n{raw}smmil predict --model FOLDER manifest.csv --out predictions\n```\n{ending}"
    text += '\n```python\nfrom smmil.packaging import load_package\n\nmodel = load_package("FOLDER").model\n```\n'
    if onnx is not None:
        text += (
            f"\n`model.onnx` takes {', '.join(onnx)} of one bag of any size and gives logits and scores; it was "
            "checked against the model itself.\n"
        )
    return text


def _table(heads: tuple[str, ...], rows: Any) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def _number(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float | int) else UNSTATED

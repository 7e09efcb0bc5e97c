"""What the metrics are called in tables and figures, and what each means in one line."""

from collections.abc import Iterable

# Short name, whether more is better (+), less is better (-) or neither (blank), and what it is.
_WORDS = {
    "bag_auroc": ("bag AUROC", "+", "chance that a positive bag has a higher probability than a negative one"),
    "bag_auprc": ("bag AUPRC", "+", "average precision over bags; the share of positive bags is what chance gives"),
    "bag_f1": ("bag F1", "+", "2TP / (2TP + FP + FN) over bags at probability 0.5"),
    "bag_accuracy": ("bag accuracy", "+", "share of bags called rightly at probability 0.5"),
    "bag_balanced_accuracy": ("bag balanced accuracy", "+", "mean of sensitivity and specificity at probability 0.5"),
    "bag_sensitivity_at_90": (
        "bag sensitivity at 90 %",
        "+",
        "highest sensitivity at a specificity of at least 90 %",
    ),
    "bag_sensitivity_at_95": (
        "bag sensitivity at 95 %",
        "+",
        "highest sensitivity at a specificity of at least 95 %",
    ),
    "bag_brier": ("bag Brier score", "-", "mean squared error of the probabilities"),
    "bag_ece": ("bag ECE", "-", "expected calibration error: mean gap between said probability and observed share"),
    "bag_loss": ("bag loss", "-", "cross-entropy: mean of -log P(true class)"),
    "inst_auroc": ("instance AUROC", "+", "chance that a positive instance scores higher than a negative one"),
    "inst_auprc": ("instance AUPRC", "+", "average precision over instances"),
    "inst_f1": ("instance F1", "+", "2TP / (2TP + FP + FN) over instances at the threshold that is best on validation"),
    "inst_dice": ("map Dice", "+", "2 overlap / (called + true area) at the threshold that is best on validation"),
    "inst_iou": ("map IoU", "+", "overlap / union of called and true area at the threshold that is best on validation"),
    "inst_precision": ("instance precision", "+", "TP / (TP + FP) at the threshold that is best on validation"),
    "inst_recall": ("instance recall", "+", "TP / (TP + FN) at the threshold that is best on validation"),
    "inst_pointing_game": ("pointing game", "+", "share of bags with both classes whose hottest instance is positive"),
    "energy_rayleigh": ("energy fᵀL̃f / fᵀf", "", "roughness of the map for its size, 0 to 2; 0 is smoothest, not best"),
    "energy_mean": ("energy fᵀL̃f / N", "", "roughness per instance; grows with the square of the scores"),
    "energy_minmax": ("energy, scaled map", "", "mean squared step between neighbours, scores scaled to [0, 1]"),
    "froc": ("FROC", "+", "mean share of lesions found at ¼, ½, 1, 2, 4 and 8 false alarms per bag"),
    "inst_rank": (
        "instance rank",
        "-",
        "mean rank within the group over the instance columns of this table; 1 is best",
    ),
    "bag_rank": ("bag rank", "-", "mean rank within the group over the bag columns of this table; 1 is best"),
}
_POOLS = {
    "positive_bags": (" in positive bags", "only instances of positive bags are compared"),
    "per_bag": (" per bag", "computed in each bag that has both classes, then averaged"),
}
_ARROWS = {"+": " ↑", "-": " ↓", "": ""}


def metric_name(metric: str) -> str:
    """A metric as a reader knows it: `inst_auroc@positive_bags` is `instance AUROC in positive bags`."""
    name, _, pool = metric.partition("@")
    return _WORDS[name][0] + _POOLS.get(pool, ("", ""))[0]


def metric_heading(metric: str) -> list[str]:
    """The lines above a column: the name with an arrow to the better side (energies have none), and the pool."""
    name, _, pool = metric.partition("@")
    return [_WORDS[name][0] + _ARROWS[direction(metric)], *([_POOLS[pool][0].strip()] if pool in _POOLS else [])]


def direction(metric: str) -> str:
    """`+` where more is better, `-` where less is better, nothing where neither is."""
    return _WORDS[metric.partition("@")[0]][1]


def explained(metrics: Iterable[str]) -> list[str]:
    """One line for each metric, and for each way instances are pooled; then where the definitions stand."""
    metrics = list(dict.fromkeys(metrics))
    lines = [f"{_WORDS[name][0]}: {_WORDS[name][2]}" for name in dict.fromkeys(m.partition("@")[0] for m in metrics)]
    pools = dict.fromkeys(pool for m in metrics if (pool := m.partition("@")[2]))
    lines += [f"…{_POOLS[pool][0]}: {_POOLS[pool][1]}" for pool in pools if pool in _POOLS]
    arrows = "↑ higher is better, ↓ lower is better; " if any(map(direction, metrics)) else ""
    return [*lines, f"{arrows}every definition with a worked example: docs/evaluate.md"]

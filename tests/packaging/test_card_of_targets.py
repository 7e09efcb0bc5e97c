"""What the card of a package says about targets other than classes: numbers with intervals, and the words for them."""

from dataclasses import replace

import pytest
import yaml
from support.target_cases import KINDS, survival_case, target_cohort

from smmil.evaluate import bag_metrics
from smmil.packaging.card import _model_card
from smmil.packaging.facts import _measure

WEIGHTS = "a" * 64
METRIC = {"multilabel": "auroc", "ordinal": "kappa", "regression": "spearman", "survival": "c_index", "cox": "c_index"}


def measured(cases, folder, resamples=50):
    for p in cases:
        stated = {**p.meta, "weights": WEIGHTS, "split": {"part": "test"}}
        replace(p, meta=stated).save(folder / f"{p.id}.npz")
    return _measure(folder, WEIGHTS, resamples)


def config_of(kind):
    columns = {"multilabel": ["blood", "oedema"], "ordinal": ["grade"], "regression": ["size"]}.get(
        kind, ["time", "event"]
    )
    return {
        "name": "m", "licence": "mit", "smmil_version": "0", "weights": WEIGHTS,
        "target": {"kind": kind, "columns": columns},
        "model": {"name": "abmil", "options": {}, "parameters": 10, "in_dim": 8, "n_classes": 4, "classes": ["x"],
                  "score_kind": "attention logit"},
        "features": {"encoder_name": None, "encoder_weights": None, "encoder_licence": None, "recipe": None},
        "training": {"hashes": {}, "cases": {"train": {"cases": 5}}, "checkpoint": "best", "epoch": 3, "settings": {},
                     "validation": {"auroc": None, "loss": 0.5, METRIC[kind]: 0.75}},
    }  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_the_card_states_the_metrics_of_its_target_with_intervals(kind, tmp_path):
    cases = target_cohort(kind, 60)
    numbers, known = measured(cases, tmp_path), bag_metrics(cases)
    rows = {row["metric"]: row for row in numbers["metrics"]}
    row = rows[f"bag_{METRIC[kind]}"]
    assert row["value"] == pytest.approx(known[METRIC[kind]])
    assert row["low"] < row["value"] < row["high"]
    card = _model_card(config_of(kind), numbers, None, None)
    header = yaml.safe_load(card.split("---\n")[1])
    stated = header["model-index"][0]["results"][0]["metrics"]
    assert {m["name"] for m in stated} == {row["name"] for row in numbers["metrics"]}
    assert kind in header["tags"]
    assert header.get("pipeline_tag") == ("image-classification" if kind in ("multilabel", "ordinal") else None)
    assert f"{METRIC[kind].replace('_', ' ')} 0.7500, loss 0.5000" in card.lower()
    assert f"| {row['name']} | {row['value']:.4f} | {row['low']:.4f} to {row['high']:.4f} |" in card


def test_few_events_are_said_in_header_and_table(tmp_path):
    cases = [
        survival_case(f"c{i:02}", i / 10, 30.0 - i, int(i % 3 == 0 and i < 21), patient=f"p{i}") for i in range(24)
    ]
    card = _model_card(config_of("survival"), measured(cases, tmp_path), None, None)
    ends = yaml.safe_load(card.split("---\n")[1])["model-index"][0]["results"][0]["metrics"][0]["args"]
    assert ends == {"ci_low": "– (7 patients with an event)", "ci_high": "– (7 patients with an event)"}
    assert "24 labelled cases (7 with an event): test part of the training study." in card
    assert "a risk and the probability of an event until each time (time, event; hazards of intervals)" in card

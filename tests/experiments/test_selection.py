"""A variant chosen by validation in every split: the choice, its stability and its price."""

import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from support.studies import copied, manifest_study, tiny_study, variant

from smmil.data import Manifest, make_splits
from smmil.errors import ConfigError, DataError
from smmil.evaluate import instance_metrics
from smmil.experiments.results import _chosen_rows
from smmil.experiments.runner import load_results, run_study
from smmil.experiments.selection import _agreement, _chance, _selection_rows, _verdict
from smmil.experiments.study import Selection, Study, load_study
from smmil.experiments.tables import write_tables
from smmil.prediction import load_predictions
from smmil.synthetic import synthetic_slides, write_synthetic

RULE = Selection(default="SmAP", metrics=["bag_auroc"])


def placed(rule=RULE):
    return tiny_study(
        variants=[variant("ABMIL"), variant("SmAP", "sm_ap"), variant("late", "sm_ap", options={"where": "late"})],
        selection=rule,
    )


def table(rows):
    """(variant, lr, fold, validation AUROC, validation loss, test AUROC) as rows of results."""
    names = ["variant", "lr", "fold", "val_auroc", "val_loss", "bag_auroc"]
    frame = pd.DataFrame(rows, columns=names)
    return frame.assign(run=[f"r{i}" for i in range(len(frame))], set="ours", seed=0)


BY_HAND = [
    ("ABMIL", 1e-3, 0, 0.80, 0.50, 0.70),
    ("SmAP", 1e-3, 0, 0.90, 0.60, 0.60),  # tie with the next in AUROC, more loss
    ("late", 1e-3, 0, 0.90, 0.40, 0.65),
    ("SmAP", 1e-4, 0, 0.10, 0.70, 0.95),  # best in hindsight
    ("ABMIL", 1e-3, 1, 0.70, 0.50, 0.50),
    ("SmAP", 1e-3, 1, 0.60, 0.40, 0.80),
    ("late", 1e-3, 1, float("nan"), 0.45, 0.20),
    ("SmAP", 1e-4, 1, 0.65, 0.55, 0.75),
]


def test_choice_default_and_price_by_hand(tmp_path):
    rows = _selection_rows(placed(), table(BY_HAND), tmp_path)
    assert list(rows["chosen"]) == ["late", "ABMIL"]
    assert list(rows["where"]) == ["late", "none"]
    assert list(rows["alpha"]) == ["learned", "none"]
    assert list(rows["value"]) == [0.65, 0.50]
    assert list(rows["default_value"]) == [0.60, 0.75]  # its own learning rate is chosen by validation too
    assert list(rows["gain"]) == pytest.approx([0.05, -0.25])
    assert list(rows["best_value"]) == [0.95, 0.80]
    assert list(rows["best"]) == ["SmAP", "SmAP"]
    assert list(rows["price"]) == pytest.approx([0.30, 0.30])
    assert list(rows["candidates"]) == [4, 4]


def test_the_loss_chooses_otherwise_where_it_says_otherwise(tmp_path):
    rows = _selection_rows(placed(RULE.model_copy(update={"criterion": "bag_loss"})), table(BY_HAND), tmp_path)
    assert list(rows["chosen"]) == ["late", "SmAP"]
    assert list(rows["val_loss"]) == [0.40, 0.40]


def test_test_values_play_no_part_in_the_choice(tmp_path):
    results = table(BY_HAND)
    for seed in range(5):
        shuffled = results.assign(bag_auroc=np.random.default_rng(seed).permutation(results["bag_auroc"]))
        rows = _selection_rows(placed(), shuffled.sample(frac=1, random_state=seed), tmp_path)
        assert list(rows["run"]) == ["r2", "r4"]


def test_a_full_tie_goes_to_the_first_variant_of_the_study(tmp_path):
    same = [(name, 1e-3, 0, 0.5, 0.5, value) for name, value in (("late", 0.9), ("SmAP", 0.8), ("ABMIL", 0.1))]
    assert list(_selection_rows(placed(), table(same), tmp_path)["chosen"]) == ["ABMIL"]


def test_agreement_by_hand():
    assert _agreement(["a", "a", "b"]) == pytest.approx(1 / 3)
    assert _agreement(["a", "a", "a"]) == 1
    assert np.isnan(_agreement(["a"]))
    assert _chance(placed(), None) == pytest.approx(1 / 3)
    assert _chance(placed(), "where") == pytest.approx(1 / 3)  # none, early, late
    assert _chance(placed(), "alpha") == pytest.approx((1 / 3) ** 2 + (2 / 3) ** 2)


def test_verdicts_follow_the_interval():
    assert _verdict(0.01, 0.2) == "choosing beats the default"
    assert _verdict(-0.2, -0.01) == "choosing is worse than the default"
    assert _verdict(-0.1, 0.1) == "no difference from the default that these cases can show"
    assert _verdict(float("nan"), 0.1).startswith("no interval")


@pytest.fixture(scope="module")
def chosen(finished_study, tmp_path_factory):
    """The tables of the tiny study with a selection, and its results."""
    out = copied(finished_study, tmp_path_factory.mktemp("selection") / "study")
    study = tiny_study(selection=Selection(default="SmAP"))
    paths = {path.name: path for path in write_tables(study, out, resamples=50)}
    return out, study, paths


def test_the_page_tells_choices_stability_and_price(chosen):
    out, study, paths = chosen
    text, rows = paths["selection.md"].read_text(), pd.read_csv(paths["selection.csv"])
    results = load_results(study, out).set_index("run")
    for row in rows.to_dict("records"):
        mine = results[results["fold"] == row["fold"]]
        assert row["val_auroc"] == mine["val_auroc"].max()
        assert row["value"] == results.loc[row["run"], row["metric"]]
        assert row["best_value"] == mine[row["metric"]].max()
    assert "among 4 candidates" in text
    assert "(of 2 splits; agreement" in text
    assert "| chosen minus default |" in text
    both = rows[rows["metric"] == "bag_auroc"]
    assert f"| bag AUROC | {both['value'].mean():.3f} | {both['default_value'].mean():.3f} |" in text


def test_a_choice_that_is_always_the_default_gains_nothing_without_a_doubt(finished_study, tmp_path):
    out = copied(finished_study, tmp_path / "study")
    study = tiny_study(selection=Selection(default="ABMIL"))
    only = study.model_copy(update={"variants": study.variants[:1]})
    text = {path.name: path.read_text() for path in write_tables(only, out, resamples=50)}["selection.md"]
    assert text.count("+0.000 [– (") == 2  # the tiny study has a handful of test cases
    assert "agreement 1.00, 1.00 by chance" in text
    assert text.count("no interval of the difference from the default, so nothing is said about it") == 2


def test_instances_of_validation_cases_may_choose_where_they_are_labelled(chosen, tmp_path):
    out, study, _ = chosen
    rule = Selection(default="SmAP", criterion="inst_auroc", metrics=["inst_auroc"])
    results = load_results(study, out)
    rows = _selection_rows(study.model_copy(update={"selection": rule}), results, out)
    for row in rows.to_dict("records"):
        here = results[results["fold"] == row["fold"]]["run"]
        values = {key: instance_metrics(load_predictions(out / "runs" / key / "val"))["auroc"] for key in here}
        assert row["val_inst_auroc"] == max(values.values())
    blind = copied(out, tmp_path / "blind")
    for path in blind.glob("runs/*/val/*.npz"):
        (case,) = load_predictions(path)
        replace(case, y_inst=None).save(path)
    with pytest.raises(DataError, match=r"no validation case has instance labels.*bag_auroc"):
        _selection_rows(study.model_copy(update={"selection": rule}), results, blind)


def test_permuted_labels_of_test_cases_leave_choice_and_weights_as_they_are(tmp_path):
    """The test part is marked; its labels are then permuted, and everything is trained and chosen again."""
    bags = write_synthetic(tmp_path / "bags", synthetic_slides(14, size=(10, 14), dim=4, seed=1, lesion=(0.1, 0.3)))
    manifest = Manifest.read(bags)
    test = make_splits(manifest, folds=2, val_share=0.5, test_share=0.3)[0].test
    found = []
    for number in range(2):
        folder = tmp_path / f"copy{number}"
        shutil.copytree(bags.parent, folder)
        rows = manifest.table.copy()
        part = rows["id"].isin(test)
        rows.loc[part, "split"] = "test"
        rows.loc[part, "instance_labels"] = ""
        rows.loc[part, "label"] = np.roll(rows.loc[part, "label"], number)
        assert (number == 0) == (list(rows["label"]) == list(manifest.table["label"]))
        rows.to_csv(folder / "marked.csv", index=False)
        study = manifest_study(folder / "marked.csv", learning_rates=[1e-2], selection=RULE)
        run_study(study, tmp_path / f"out{number}")
        results = load_results(study, tmp_path / f"out{number}")
        choices = _selection_rows(study, results, tmp_path / f"out{number}")
        weights = results.set_index("run")["weights"]
        found.append([(r.fold, r.chosen, r.lr, weights[r.run], r.val_auroc) for r in choices.itertuples()])
        assert len(_chosen_rows(results)) == 4
    assert found[0] == found[1]


def test_a_default_that_is_no_variant_is_refused():
    with pytest.raises(ValueError, match="unknown variant 'SmAPP'; did you mean SmAP"):
        Study(**{**tiny_study().model_dump(), "selection": {"default": "SmAPP"}})


def test_the_study_that_ships_offers_four_places_and_learned_strength():
    from pathlib import Path

    study = load_study(Path(__file__).parents[2] / "configs/ablations/placement-auto.yaml")
    places = {v.options.get("where", "none") for v in study.variants}
    assert places == {"none", "early", "mid", "late"}
    assert {v.options.get("alpha") for v in study.variants} >= {"learned", 0.1, 0.9, None}
    assert study.selection.criterion == "bag_auroc"


def test_an_unknown_criterion_is_refused(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text("datasets: [slides]\nvariants: [ABMIL]\nselection: {default: ABMIL, criterion: test_auroc}\n")
    with pytest.raises(ConfigError, match=r"selection\.criterion"):
        load_study(path)

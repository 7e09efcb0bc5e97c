"""The paper's ranks stand beside ours only where they mean the same, and doubtful numbers are not judged."""

import math

import pandas as pd
import pytest
from support.studies import feature_tables, long_rows

from smmil.experiments.paper import MIXED, _cell_notes, paper_table
from smmil.experiments.ranking import AS_PAPER, FLAGGED, _comparable_ranks, _rank_rows, _with_paper

FACTS = {"family": "local", "n": 5, "fewer": False, "state": ""}


def as_ours(table):
    """Numbers of the paper as if we had measured them."""
    return table[table["dataset"] != "ALL"].assign(set=lambda t: t["dataset"], **FACTS)


def beside(rows, name="table_localization", rank_by="all", mixed=None):
    """All ranks with the paper's beside, and the notes."""
    further, unlike, notes = _comparable_ranks(rows, name, rank_by, mixed or {})
    ranks = pd.concat([_rank_rows(rows, rank_by, mixed)[0], further], ignore_index=True)
    return _with_paper(ranks, name, unlike), notes


@pytest.fixture
def ours():
    return as_ours(paper_table("table_localization"))


def test_ranks_over_the_papers_columns_and_models_stand_beside_the_papers(ours):
    ranks, notes = beside(ours)
    assert notes == []
    assert (ranks["difference"].abs() < 0.0006).all()
    assert set(ranks["within_std"]) == {"yes"}


@pytest.mark.parametrize("gone", ["a data set", "a model", "a column of a model"])
def test_ranks_over_something_else_have_no_rank_of_the_paper_beside_and_a_note_says_why(ours, gone):
    keep = {
        "a data set": ours["dataset"] != "PANDA",
        "a model": ours["model"] != "CLAM",
        "a column of a model": ~((ours["model"] == "CLAM") & (ours["metric"] == "inst_f1")),
    }[gone]
    ranks, notes = beside(ours[keep])
    mine = ranks[ranks["group"] == "no_global"]
    assert len(mine)
    assert mine["paper_mean"].isna().all()
    assert set(mine["within_std"]) == {""}
    assert len(notes) == 1
    assert "the paper's is not shown" in notes[0]
    others = ranks[ranks["group"] == "global"]["paper_mean"]
    assert others.isna().all() == (gone == "a data set")  # the other group still has all its models


def test_with_further_data_and_models_the_ranks_among_the_papers_own_are_added(ours):
    slides = ours[ours["dataset"] == "RSNA"].assign(dataset="slides", set="slides", mean=lambda t: -t["mean"])
    mine = ours[ours["model"] == "SmAP"].assign(model="Mine", mean=2.0)
    ranks, notes = beside(pd.concat([ours, slides, mine]))
    whole, alike = (ranks[ranks["extractor"] == kind] for kind in ("main", AS_PAPER))
    assert whole["paper_mean"].isna().all()
    printed = paper_table("table_localization").query("dataset == 'ALL'").set_index("model")["mean"]
    assert {r.model: round(r.mean, 3) for r in alike.itertuples()} == printed.to_dict()
    assert alike["paper_mean"].notna().all()
    assert all(AS_PAPER in note for note in notes)


def test_ranks_by_extractor_are_compared_only_where_the_paper_mixed_alike():
    rows = as_ours(feature_tables())
    like, notes = beside(rows, "feat_ext_ranks", "extractor", MIXED)
    assert notes == []
    assert like["paper_mean"].notna().all()
    unlike, notes = beside(rows, "feat_ext_ranks", "extractor", {})
    empty = unlike["paper_mean"].isna()
    assert set(unlike["extractor"][empty]) == {"ResNet50"}
    assert set(unlike["extractor"][~empty]) == {"ResNet18", "ResNet50-BT", "ViT-B-32"}
    assert any("ResNet50" in note for note in notes)


def test_a_table_of_the_paper_without_ranks_asks_for_no_comparison():
    assert beside(as_ours(paper_table("table_sm_on_others")), "table_sm_on_others")[1] == []


def test_a_number_of_the_paper_that_is_in_doubt_is_not_judged():
    rows = _with_paper(long_rows({"DTFD-MIL": 0.884}), "table_localization")  # printed as 0.884 and as 0.984
    assert rows["within_std"][0] == FLAGGED
    assert rows["difference"][0] == 0
    rows = _with_paper(long_rows({"SmDTFD-MIL": 0.9}), "table_sm_on_others")  # its ±0.183 cannot be
    assert (rows["paper_std"][0], rows["within_std"][0]) == (0.183, FLAGGED)


def test_every_number_of_a_failed_training_of_the_paper_is_in_doubt():
    notes = _cell_notes()
    for data, extractor, model in (
        ("RSNA", "ResNet18", "CLAM"),
        ("CAMELYON16", "ResNet50", "IIB-MIL"),
        ("CAMELYON16", "ViT-B-32", "GTP"),  # below chance, found in the numbers
    ):
        for metric in ("inst_auroc", "inst_f1", "bag_auroc", "bag_f1"):
            assert any("failed training" in note for note in notes[data, extractor, model, metric])
    assert not any("failed training" in n for n in notes.get(("CAMELYON16", "ResNet50-BT", "IIB-MIL", "bag_f1"), []))


def test_without_a_number_of_ours_the_papers_is_shown_and_not_judged():
    rows = _with_paper(long_rows({"CLAM": math.nan}, dataset="PANDA", extractor="ResNet18"), "table_localization")
    assert (rows["paper_mean"][0], rows["within_std"][0]) == (0.727, "")

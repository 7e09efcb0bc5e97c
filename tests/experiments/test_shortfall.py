"""Runs that failed or are missing: the row stays, numbers over fewer runs are marked, a note says where to look."""

import pandas as pd
import pytest
from experiments.studies import results_for, table_study, tiny_study, variant

from smmil.experiments.output import write_tables
from smmil.experiments.runner import run_study
from smmil.experiments.study import Table
from smmil.experiments.tables import make_table
from smmil.experiments.writing import latex, markdown

METRICS = ["inst_auroc", "inst_f1"]
TABLE = Table(name="t", metrics=METRICS, rank_by="all")


def with_states(results, states):
    """The plan: every run with its state; {run: state} names those that are not done."""
    state = [states.get(run, "done") for run in results["run"]]
    return results.assign(
        state=state, reason=["ZeroDivisionError: 1 / 0; see x" if s == "failed" else "" for s in state]
    )


def shown_for(states, table=TABLE, names=("A", "B", "C")):
    """A table of variants with three folds each, some of which are not done."""
    everything = results_for({name: [0.7 + 0.01 * i] * 3 for i, name in enumerate(names)})
    plan = with_states(everything, states)
    return make_table(table_study(list(names)), table, everything[plan["state"] == "done"], plan)


def cells(shown, model):
    line = next(line for line in markdown(shown).splitlines() if line.startswith(f"| {model} |"))
    return [cell.strip() for cell in line.split("|")[3:-1]]


def test_every_number_of_a_row_over_fewer_runs_is_marked_and_no_other():
    shown = shown_for({"A2": "failed"})
    assert all("‡" in cell for cell in cells(shown, "A"))
    assert len(cells(shown, "A")) == 3  # two metrics and the rank
    assert not any("‡" in cell for model in "BC" for cell in cells(shown, model))
    assert "‡ CAMELYON16 · A: mean over 2 of 3 runs" in shown.notes
    assert any(n.startswith("CAMELYON16 · A: 1 of 3 runs failed, such as ZeroDivisionError: 1 / 0; look in runs/A2")
               for n in shown.notes)  # fmt: skip
    assert latex(shown).count("$^\\ddagger$") == 3 + 1


def test_nothing_is_marked_when_everything_is_done():
    shown = shown_for({})
    assert "‡" not in markdown(shown)
    assert not any("failed" in note or "complete" in note for note in shown.notes)


@pytest.mark.parametrize(("state", "words"), [("failed", "failed (3 runs)"), ("missing", "not run yet")])
def test_a_variant_without_a_finished_run_stays_in_the_table(state, words):
    shown = shown_for({f"B{fold}": state for fold in range(3)})
    assert cells(shown, "B") == [words, words, "not ranked"]
    lines = [line for line in markdown(shown).splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines}) == 1
    told = "3 of 3 runs failed" if state == "failed" else "not complete yet: CAMELYON16 · B (3 runs)"
    assert any(told in note for note in shown.notes)
    assert "not ranked (no_global), some results are missing: B" in shown.notes
    assert words in latex(shown)


def test_one_failed_run_is_a_run():
    everything = results_for({"A": [0.7], "B": [0.8]})
    plan = with_states(everything, {"A0": "failed"})
    shown = make_table(table_study(["A", "B"]), TABLE, everything[1:], plan)
    assert cells(shown, "A")[0] == "failed (1 run)"


def test_a_table_of_ranks_only_keeps_the_failed_variant_too():
    ranks_only = Table(name="t", metrics=METRICS, rank_by="extractor")
    assert cells(shown_for({f"B{fold}": "failed" for fold in range(3)}, ranks_only), "B") == ["not ranked"]


def test_a_rate_that_failed_throughout_does_not_mark_the_other_rate_but_is_told():
    good = results_for({"A": [0.7] * 3, "B": [0.8] * 3})
    bad = good[good["variant"] == "A"].assign(lr=1e-5, run=lambda t: t["run"] + "slow")
    failed = with_states(bad, dict.fromkeys(bad["run"], "failed"))
    plan = pd.concat([with_states(good, {}), failed], ignore_index=True)
    shown = make_table(table_study(["A", "B"]), TABLE, good, plan)
    assert "‡" not in markdown(shown)
    assert any(note.startswith("CAMELYON16 · A: 3 of 6 runs failed") for note in shown.notes)


def test_a_long_reason_is_cut_and_a_variant_of_no_table_is_not_mentioned():
    everything = results_for({"A": [0.7], "B": [0.8], "C": [0.9]})
    plan = with_states(everything, {"A0": "failed", "C0": "failed"}).assign(reason="x" * 999)
    shown = make_table(
        table_study(["A", "B", "C"]), TABLE.model_copy(update={"variants": ["A", "B"]}), everything[1:2], plan
    )
    notes = [note for note in shown.notes if "failed" in note]
    assert len(notes) == 1
    assert "x" * 150 in notes[0]
    assert len(notes[0]) < 300


def test_a_broken_model_is_a_row_of_the_written_table(tmp_path):
    broken = variant("Broken", "experiments.broken_model:Broken", options={})
    study = tiny_study(
        variants=[variant("ABMIL"), broken], learning_rates=[1e-2], tables=[Table(name="t", metrics=["inst_auroc"])]
    )
    report = run_study(study, tmp_path)
    assert len(report.failed) == 2
    write_tables(study, tmp_path)
    text = (tmp_path / "tiny/tables/t.md").read_text()
    assert "| Broken | none | failed (2 runs) |" in text
    assert "look in runs/" in text
    assert "failed (2 runs)" in (tmp_path / "tiny/tables/t.csv").read_text()

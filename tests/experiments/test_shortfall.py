"""Runs that failed or are missing: the row stays, numbers over fewer runs are marked, a note says where to look."""

import pandas as pd
import pytest
from support.studies import copied, grid_of, results_for, table_study, tiny_study, variant

from smmil.experiments.results import _missing_run_notes
from smmil.experiments.runner import run_study
from smmil.experiments.study import TableSpec
from smmil.experiments.tables import _make_table, write_tables
from smmil.experiments.writing import _latex, _markdown

METRICS = ["inst_auroc", "inst_f1"]
TABLE = TableSpec(name="t", metrics=METRICS, rank_by="all")


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
    return _make_table(table_study(list(names)), table, everything[plan["state"] == "done"], plan)


def cells(shown, model):
    line = next(line for line in _markdown(shown).splitlines() if line.startswith(f"| {model} |"))
    return [cell.strip() for cell in line.split("|")[3:-1]]


def test_every_number_of_a_row_over_fewer_runs_is_marked_and_no_other():
    shown = shown_for({"A2": "failed"})
    assert all("‡" in cell for cell in cells(shown, "A"))
    assert len(cells(shown, "A")) == 3  # two metrics and the rank
    assert not any("‡" in cell for model in "BC" for cell in cells(shown, model))
    assert "‡ CAMELYON16 · A: mean over 2 of 3 runs" in shown.notes
    assert any(n.startswith("CAMELYON16 · A: 1 of 3 runs failed, such as ZeroDivisionError: 1 / 0; look in runs/A2")
               for n in shown.notes)  # fmt: skip
    assert _latex(shown).count("$^\\ddagger$") == 3 + 1


def test_nothing_is_marked_when_everything_is_done():
    shown = shown_for({})
    assert "‡" not in _markdown(shown)
    assert not any("failed" in note or "complete" in note for note in shown.notes)


@pytest.mark.parametrize(("state", "words"), [("failed", "failed (3 runs)"), ("missing", "not run yet")])
def test_a_variant_without_a_finished_run_stays_in_the_table(state, words):
    shown = shown_for({f"B{fold}": state for fold in range(3)})
    assert cells(shown, "B") == [words, words, "not ranked"]
    lines = [line for line in _markdown(shown).splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines}) == 1
    told = "3 of 3 runs failed" if state == "failed" else "not complete yet: CAMELYON16 · B (3 runs)"
    assert any(told in note for note in shown.notes)
    assert "not ranked (no_global), some results are missing: B" in shown.notes
    assert words in _latex(shown)


def test_one_failed_run_is_a_run():
    everything = results_for({"A": [0.7], "B": [0.8]})
    plan = with_states(everything, {"A0": "failed"})
    shown = _make_table(table_study(["A", "B"]), TABLE, everything[1:], plan)
    assert cells(shown, "A")[0] == "failed (1 run)"


def test_a_table_of_ranks_only_keeps_the_failed_variant_too():
    ranks_only = TableSpec(name="t", metrics=METRICS, rank_by="extractor")
    assert cells(shown_for({f"B{fold}": "failed" for fold in range(3)}, ranks_only), "B") == ["not ranked"]


def two_rates(fast, slow, slow_done):
    """A and B at two rates, A's slow rate done on some folds only: results and plan."""
    good = results_for({"A": fast, "B": fast})
    other = good[good["variant"] == "A"].assign(lr=1e-5, run=lambda t: t["run"] + "slow", val_auroc=slow)
    plan = pd.concat([good, good[good["variant"] == "B"].assign(lr=1e-5, run=lambda t: t["run"] + "s"), other])
    plan = plan.reset_index(drop=True)
    states = dict.fromkeys(list(other["run"])[slow_done:], "failed")
    plan = with_states(plan, states)
    return plan[plan["state"] == "done"].drop(columns=["state", "reason"]), plan


@pytest.mark.parametrize(("done", "words"), [(0, "1e-05 has 0 of 5 runs"), (1, "1e-05 has 1 of 5 runs")])
def test_a_rate_that_was_chosen_without_all_the_others_is_marked_and_told(done, words):
    """Five runs at 1e-4, one far better one at 1e-5: 1e-4 stands in the table, and nobody takes it for chosen."""
    results, plan = two_rates([0.6] * 5, 0.99, done)
    shown = _make_table(table_study(["A", "B"]), TABLE, results, plan)
    assert set(shown.rows["lr"].dropna()) == {1e-4}
    assert all("‡" in cell for cell in cells(shown, "A"))
    assert not any("‡" in cell for cell in cells(shown, "B"))
    assert f"‡ CAMELYON16 · A: learning rate not chosen among all: {words}" in shown.notes
    assert not any("mean over" in note for note in shown.notes)  # all five runs of the rate are there
    assert any(note.startswith(f"CAMELYON16 · A: {5 - done} of 10 runs failed") for note in shown.notes)
    own = shown.rows[shown.rows["metric"].isin(METRICS)].set_index("model")["state"]
    assert set(own["A"]) == {"learning rate not chosen among all"}
    assert set(own["B"]) == {""}


def test_without_a_plan_rates_that_lack_folds_are_seen_too():
    results, _ = two_rates([0.6] * 5, 0.99, 1)
    assert any("1e-05 has 1 of 5 runs" in note for note in _make_table(table_study(["A", "B"]), TABLE, results).notes)


def test_a_rate_chosen_among_all_is_not_marked():
    results, plan = two_rates([0.6] * 5, 0.99, 5)
    assert _missing_run_notes(results, plan) == []
    assert "‡" not in _markdown(_make_table(table_study(["A", "B"]), TABLE, results, plan))


@pytest.mark.parametrize(("sources", "told"), [(["a", "a"], 0), (["a", "b"], 1), (["a", None], 1), (None, 0)])
def test_a_table_says_when_its_runs_were_made_by_different_states_of_the_program(sources, told):
    results = results_for({"A": [0.7], "B": [0.8]})
    results = results if sources is None else results.assign(source=sources)
    notes = _make_table(table_study(["A", "B"]), TABLE, results).notes
    assert sum("made by 2 states of the program" in note for note in notes) == told


def test_a_table_whose_variants_have_no_run_at_all_is_a_table_of_reasons():
    everything = results_for({"A": [0.7], "B": [0.8], "C": [0.9]})
    plan = with_states(everything, {"A0": "failed", "B0": "missing"})
    table = TableSpec(name="t", metrics=METRICS, variants=["A", "B"])
    shown = _make_table(table_study(["A", "B", "C"]), table, everything[2:], plan)
    assert [cells(shown, model)[0] for model in "AB"] == ["failed (1 run)", "not run yet"]


def test_pages_of_comparisons_end_with_what_is_missing(finished_study, tmp_path):
    out = copied(finished_study, tmp_path / "partly")
    study = tiny_study(reference="ABMIL", pairs={"SmAP": "ABMIL"})
    gone = [run for run in grid_of(study, out).runs if run.facts["variant"] == "SmAP" and run.facts["fold"] == 1]
    assert len(gone) == 2  # both rates
    write_tables(study, out, resamples=20)
    folder = out / "tiny/tables"
    for page in ("comparisons.md", "pairs.md"):
        assert "‡" not in (folder / page).read_text()
    for run in gone:
        (out / "runs" / run.key / "result.json").unlink()
    write_tables(study, out, resamples=20)
    for page in ("comparisons.md", "pairs.md"):
        text = (folder / page).read_text()
        assert "- ‡ tiny · SmAP: mean over 1 of 2 runs\n" in text
        assert "- ‡ tiny · SmAP: learning rate not chosen among all: 0.01 has 1 of 2 runs, 0.001 has 1 of 2" in text
        assert text.endswith("- not complete yet: tiny · SmAP (2 runs)\n")


def test_a_long_reason_is_cut_and_a_variant_of_no_table_is_not_mentioned():
    everything = results_for({"A": [0.7], "B": [0.8], "C": [0.9]})
    plan = with_states(everything, {"A0": "failed", "C0": "failed"}).assign(reason="x" * 999)
    shown = _make_table(
        table_study(["A", "B", "C"]), TABLE.model_copy(update={"variants": ["A", "B"]}), everything[1:2], plan
    )
    notes = [note for note in shown.notes if "failed" in note]
    assert len(notes) == 1
    assert "x" * 150 in notes[0]
    assert len(notes[0]) < 300


def test_a_broken_model_is_a_row_of_the_written_table(tmp_path):
    broken = variant("Broken", "support.broken_model:Broken", options={})
    study = tiny_study(
        variants=[variant("ABMIL"), broken], learning_rates=[1e-2], tables=[TableSpec(name="t", metrics=["inst_auroc"])]
    )
    report = run_study(study, tmp_path)
    assert len(report.failed) == 2
    write_tables(study, tmp_path)
    text = (tmp_path / "tiny/tables/t.md").read_text()
    assert "| Broken | none | failed (2 runs) |" in text
    assert "look in runs/" in text
    assert "failed (2 runs)" in (tmp_path / "tiny/tables/t.csv").read_text()

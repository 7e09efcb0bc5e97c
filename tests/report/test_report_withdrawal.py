"""What a report says of a promise that does not hold: withdrawn by the drift alarm, or of another threshold."""

import json
import math
import re
from dataclasses import replace

import pytest
from support.drift_cases import study
from support.evaluate_command import run
from support.lesion_cases import save_all, slide_case

from smmil.evaluate.bootstrap import add_intervals
from smmil.evaluate.comparison import add_comparisons
from smmil.evaluate.folder_drift import folder_drift
from smmil.evaluate.folders import summary
from smmil.prediction import load_predictions
from smmil.report import write_report


@pytest.fixture(scope="module")
def mostly_strange(tmp_path_factory):
    """A folder that differs from training as a whole; one of its cases, s2, raises no alarm of its own."""
    folder = tmp_path_factory.mktemp("withdrawn") / "sm_ap"
    folder.mkdir()
    return folder, study(folder, {"s0", "s1", "s3", "s4", "s5"})


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    folder = tmp_path_factory.mktemp("usual") / "sm_ap"
    folder.mkdir()
    return folder, study(folder, set())


def page_of(folder, **options):
    """Text of a report before its scripts, and the data that these read."""
    write_report([folder], folder.parent / "report.html", resamples=0, **options)
    page = (folder.parent / "report.html").read_text(encoding="utf-8")
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    return page.split("<script")[0].replace("&#39;", "'"), data


def test_every_case_of_a_strange_folder_says_that_the_promise_is_withdrawn(mostly_strange, usual):
    cases = {case["id"]: case["verdicts"][0] for case in page_of(mostly_strange[0])[1]["cases"]}
    assert all(found["withdrawn"].startswith("The promise is withdrawn: as a whole") for found in cases.values())
    assert [id_ for id_, found in cases.items() if found["alarm"] is None] == ["s2"]
    assert all(case["verdicts"][0]["withdrawn"] is None for case in page_of(usual[0])[1]["cases"])


def promise_in(text):
    """The note about the promise, without its tags."""
    [note] = re.findall(r'<p class="hint promise".*?</p>', text, re.DOTALL)
    return re.sub("<.*?>", "", note)


def test_another_threshold_drops_the_promise_and_says_why(usual):
    folder, made = usual
    assert made.sentence in promise_in(page_of(folder)[0])
    held_out = folder.parent / "val"
    held_out.mkdir()
    save_all(held_out, [slide_case(f"v{i}", 70 + i, y=i % 2) for i in range(4)])
    for options, source in (({"threshold": 2.5}, "given by the user"), ({"validation": [held_out]}, "validation")):
        text = page_of(folder, **options)[0]
        assert made.sentence not in text
        assert made.conditions not in text
        note = promise_in(text)
        assert note.startswith("Nothing is promised (sm_ap): the threshold ")
        assert source in note
        assert note.endswith(f"and the promise of the calibration is about {made.threshold:.4g} only.")


def test_what_was_missed_is_said_where_the_promise_is_withdrawn_too(mostly_strange):
    """The same sentence as `smmil evaluate` prints."""
    folder, made = mostly_strange
    note = promise_in(page_of(folder)[0])
    [measured] = [text for text in summary(load_predictions(folder))["notes"] if text.startswith("Measured on")]
    assert note.startswith("Nothing is promised (sm_ap): The promise is withdrawn")
    assert note.endswith(measured)
    lesions = [p for p in load_predictions(folder) if (p.y_inst > 0).any()]
    missed = sum((p.scores[p.y_inst > 0] < made.threshold).mean() for p in lesions) / len(lesions)
    assert measured == f"Measured on the {len(lesions)} patients with lesions here: {100 * missed:.1f} % missed."


AREA = "Area to read at guaranteed 90 % sensitivity, {} cases"


def area_in(text, which):
    """Text of the cell of the area to read."""
    row = text[text.index(AREA.format(which)) :].split("</tr>")[0]
    return re.sub("<.*?>", "", row.split("<td>")[1]).strip()


@pytest.mark.parametrize("which", ["positive", "negative"])
def test_no_area_is_called_guaranteed_where_the_promise_is_withdrawn(mostly_strange, usual, which):
    assert re.fullmatch(r"0\.\d{3}", area_in(page_of(usual[0])[0], which))
    text = page_of(mostly_strange[0])[0]
    assert area_in(text, which) == "–promise withdrawn"
    assert "its sensitivity was guaranteed by the promise that is withdrawn here" in text
    chosen = page_of(mostly_strange[0], threshold=2.5)[0]
    assert area_in(chosen, which) == "–promise withdrawn"


def test_evaluate_holds_the_area_and_its_interval_back(mostly_strange, usual):
    measures = ["bag_area_to_read_negative", "bag_auroc"]
    for (folder, _), held_back in ((usual, False), (mostly_strange, True)):
        models = {"m": load_predictions(folder)}
        results = {"m": summary(models["m"], prior=False)}
        add_intervals(results, models, measures, n=20)
        assert math.isnan(results["m"]["bag"]["area_to_read_negative"]) == held_back
        assert ("bag_area_to_read_negative" in results["m"]["ci"]) != held_back
        assert "bag_auroc" in results["m"]["ci"]


def test_a_comparison_holds_the_area_back_with_a_word(mostly_strange, usual):
    """Whichever of the two models has lost its promise; other numbers are compared as before."""
    folders = {"strange": mostly_strange[0], "usual": usual[0]}
    models = {name: load_predictions(folder) for name, folder in folders.items()}
    summaries = {name: summary(cases, prior=False) for name, cases in models.items()}
    for one, other in (("strange", "usual"), ("usual", "strange")):
        results = {one: dict(summaries[one])}
        pair = {one: models[one]}, {other: models[other]}, {other: summaries[other]}
        add_comparisons(results, *pair, ["bag_area_to_read_negative", "bag_auroc"], n=20)
        area, auroc = results[one]["comparisons"]
        assert area["withheld"] == "promise withdrawn"
        assert all(math.isnan(area[key]) for key in ("a", "b", "difference", "low", "high", "p", "p_holm"))
        assert area["notes"] == ["not compared: its number is held back for strange (promise withdrawn)"]
        assert math.isfinite(auroc["difference"])
        assert "withheld" not in auroc


def test_evaluate_prints_the_word_in_both_tables(mostly_strange, usual):
    words = [str(mostly_strange[0]), "--compare", str(usual[0]), "--resamples", "20"]
    told = run(*words, "--metric", "bag_area_to_read_negative")
    assert re.search(r"│ area to read negative +│ +promise withdrawn │", told)
    assert re.search(r"│ +bag_area_to_read_negative │ +promise withdrawn │ +– │", told)


def test_a_folder_of_one_strange_case_has_no_area_either(mostly_strange):
    """Of 20 comparison patients the test of a folder cannot tell one case from chance; the case has its own alarm."""
    [found] = [p for p in load_predictions(mostly_strange[0]) if p.id == "s1"]
    facts = {**found.meta["drift"], "patients": 20, "p": 1 / 21}
    strange = [replace(found, meta={**found.meta, "drift": facts})]
    assert not folder_drift(strange).alarm
    assert summary(strange, prior=False)["bag"]["withheld"] == {"area_to_read_positive": "promise withdrawn"}


def test_strangeness_has_the_same_colours_from_0_to_1_in_every_case(usual):
    data = page_of(usual[0])[1]
    assert data["models"][0]["layers"]["strangeness"]["colours"] == [0, 1]
    assert [case["verdicts"][0]["rasters"]["strangeness"]["colours"] for case in data["cases"]] == [[0, 1]] * 6
    assert data["models"][0]["layers"]["score"]["colours"] != [0, 1]

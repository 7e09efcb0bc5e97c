"""What a report says of a promise that does not hold: withdrawn by the drift alarm, or of another threshold."""

import json

import pytest
from support.drift_cases import study

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

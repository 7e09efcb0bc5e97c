"""Marks made in the viewer: two buttons, a list, and a file that training reads."""

import numpy as np
from support.browser_actions import click_tile, open_case
from support.screens import becomes
from support.viewer_study import PLACE, viewed_slide

from smmil.annotations.marks import find_marks


def test_marks_are_made_changed_listed_and_saved_as_training_reads_them(page, tmp_path):
    open_case(page, "s1")
    assert page.locator("#mark-section").is_hidden()
    lesion = click_tile(page, (PLACE[0] + 1, PLACE[1] + 3))
    page.locator("[data-mark='1']").click()
    becomes(page, "() => document.querySelector('[data-mark=\"1\"]').getAttribute('aria-pressed') === 'true'")
    other = click_tile(page, (PLACE[0] + 2, PLACE[1] + 3))
    page.keyboard.press("l")
    page.keyboard.press("o")  # a change of mind
    gone = click_tile(page, (PLACE[0] + 1, PLACE[1] + 2))
    page.keyboard.press("o")
    page.keyboard.press("o")  # the same again takes it away
    listed = page.locator("#marks button[data-instance]").evaluate_all("es => es.map(e => +e.dataset.instance)")
    assert listed == sorted([lesion, other])
    with page.expect_download() as saving:
        page.get_by_role("button", name="Save marks").click()
    saving.value.save_as(tmp_path / "marks.csv")
    found, strays = find_marks(tmp_path, ["s1"])
    case = viewed_slide("s1", "first")
    labels = found["s1"].labels(case.n, case.coords, case.frame.patch)
    assert strays == []
    assert labels[lesion] == 1
    assert labels[other] == 0
    assert labels[gone] == -1
    assert np.count_nonzero(labels >= 0) == 2

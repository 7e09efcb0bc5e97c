"""The second layer of a model that knows how sure it is, in a real browser."""

import numpy as np
from support.export_makers import slide_case
from support.screens import says, shows, still, watched
from support.viewer_cases import save
from support.viewer_study import served

from smmil.prediction import Prediction
from smmil.viewer.data import ViewerData


def test_the_uncertainty_lies_beside_the_scores_and_no_threshold_cuts_it(browser, tmp_path):
    _, prediction = slide_case(tmp_path / "slides")
    spread = np.linspace(0.1, 2.0, prediction.n).astype(np.float32)
    save(tmp_path / "prob_sm_ap", Prediction(**{**vars(prediction), "uncertainty": spread}))
    wishes = {"slides": tmp_path / "slides", "threshold": 0.5}
    with (
        served(ViewerData.read([tmp_path / "prob_sm_ap"], **wishes)) as (url, _),
        watched(browser, url, "#stage[data-ready]", (f"{url}/", f"blob:{url}/")) as page,
    ):
        says(page, "#left-model option", ["prob_sm_ap", "prob_sm_ap uncertainty"])
        shows(page, ".above", "≥ 0.500: 4 of 80")
        page.locator("#layer-1").check()
        page.select_option(".layer-row select", "heat")
        still(page)
        page.select_option("#right-model", label="prob_sm_ap uncertainty")
        still(page)
        says(page, ".above", ["≥ 0.500: 4 of 80", ""])
        page.select_option("#right-model", label="nothing")
        page.select_option("#left-model", label="prob_sm_ap uncertainty")
        still(page)
        says(page, ".above", [""])

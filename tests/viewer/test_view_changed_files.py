"""Pages of an earlier start, files that change while the viewer runs, and files that cannot be read at the start."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from support.export_makers import slide_case
from support.viewer_cases import client_of, renamed, save, small_study

from smmil.errors import DataError
from smmil.viewer.cache import _temporary_folder
from smmil.viewer.data import ViewerData

ADDRESSES = ["/api/cases", "/api/case/0", "/api/case/0/coords", "/api/case/0/scores/0", "/api/case/0/truth",
             "/api/case/0/instance/0", "/tiles/0/9/0_0.jpg", "/patch/0/0.jpg", "/slice/1/0", "/export/0/0/csv",
             "/thumbnail/0.png"]  # fmt: skip


def test_a_page_of_an_earlier_start_is_told_to_reload_and_gets_no_data(tmp_path):
    study = small_study(tmp_path)
    now, before = client_of(study), client_of(study)
    mine, other = (client.get("/api/cases").json()["study"] for client in (now, before))
    assert mine != other
    for path in ADDRESSES:
        assert now.get(f"{path}?study={mine}").status_code == 200
        for wrong in (other, "", f"{mine}&study={other}"):
            answer = now.get(f"{path}?study={wrong}")
            assert answer.status_code == 409
            assert answer.json() == {"error": "this page belongs to an earlier start of smmil view; reload it"}
            assert answer.headers["cache-control"] == "no-store"
    assert now.get(f"/?study={other}").status_code == 200  # reloading always works


@pytest.mark.parametrize("change", ["case", "scores", "label", "meta"])
def test_a_prediction_replaced_while_it_runs_is_refused_in_one_line(tmp_path, change):
    _, slide = slide_case(tmp_path / "slides")
    study = ViewerData.read([save(tmp_path / "p", renamed(slide, "one", y=1))])
    changes = {
        "case": {"id": "two"},
        "scores": {"scores": -slide.scores},
        "label": {"y": 0},
        "meta": {"meta": {**slide.meta, "score_kind": "instance logit"}},
    }[change]
    save(tmp_path / "p", renamed(slide, **{"id_": "one", "y": 1, **{("id_" if k == "id" else k): v for k, v in
                                                                   changes.items()}}))  # fmt: skip
    client = client_of(study)
    for path in ("/api/case/0", "/api/case/0/scores/0", "/api/case/0/instance/0", "/export/0/0/csv"):
        answer = client.get(path)
        assert answer.status_code == 422
        assert answer.json()["error"] == (
            "one: the prediction has changed since smmil view was started; start it again"
        )


def test_the_same_prediction_written_again_is_the_same(tmp_path):
    study = small_study(tmp_path)
    _, slide = slide_case(tmp_path / "again")
    before = (tmp_path / "predictions" / "a" / "000.npz").stat().st_mtime_ns
    save(tmp_path / "predictions" / "a", renamed(slide, "one", y=1, y_inst=(slide.scores[:, 0] > 0).astype(int)))
    os.utime(tmp_path / "predictions" / "a" / "000.npz", ns=(before + 10**9, before + 10**9))
    assert client_of(study).get("/api/case/0/scores/0").status_code == 200


def damage(file):
    file.write_bytes(file.read_bytes()[:-50])


def test_one_prediction_that_cannot_be_read_is_left_out_and_told(tmp_path):
    _, slide = slide_case(tmp_path / "slides")
    folder = save(tmp_path / "p" / "model", *(renamed(slide, f"c{k}") for k in range(3)))
    damage(folder / "001.npz")
    study = ViewerData.read([tmp_path / "p"])
    told = client_of(study).get("/api/cases").json()
    assert [case["id"] for case in told["cases"]] == ["c0", "c2"]
    (note,) = told["notes"]
    assert re.search("1 prediction .* left out of model", note)
    assert "001" not in note  # a name of a file may name a person
    (problem,) = study.problems
    assert str(folder / "001.npz") in problem
    assert client_of(study).get("/api/case/1/scores/0").status_code == 200


def test_a_model_of_which_nothing_can_be_read_is_left_out_and_without_any_it_is_an_error(tmp_path):
    _, slide = slide_case(tmp_path / "slides")
    bad, good = (save(tmp_path / "p" / name, slide) for name in ("bad", "good"))
    damage(bad / "000.npz")
    told = client_of(ViewerData.read([tmp_path / "p"])).get("/api/cases").json()
    assert [model["name"] for model in told["models"]] == ["good"]
    assert len(told["notes"]) == 1
    damage(good / "000.npz")
    with pytest.raises(DataError, match=r"000\.npz"):
        ViewerData.read([tmp_path / "p"])


def test_all_is_well_means_no_notes(tmp_path):
    study = small_study(tmp_path)
    assert client_of(study).get("/api/cases").json()["notes"] == []
    assert study.problems == ()


def dead_process():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_folders_of_killed_viewers_are_swept_and_those_of_living_ones_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    living = _temporary_folder()
    machine = re.match(r"smmil-view-([0-9a-f]+)-(\d+)-", Path(living.name).name)
    assert int(machine[2]) == os.getpid()
    dead = dead_process()
    stays = [f"smmil-view-{machine[1]}-{os.getppid()}-x", f"smmil-view-00000000-{dead}-x", f"other-{dead}-x"]
    goes = tmp_path / f"smmil-view-{machine[1]}-{dead}-x"
    for folder in (goes, *map(tmp_path.joinpath, stays)):
        (folder / "inner").mkdir(parents=True)
        (folder / "inner" / "export.csv").write_text("1")
    target = tmp_path / "precious"
    target.mkdir()
    link = tmp_path / f"smmil-view-{machine[1]}-{dead}-link"
    link.symlink_to(target)
    second = _temporary_folder()
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {*stays, "precious", link.name, Path(living.name).name, Path(second.name).name}
    living.cleanup()
    second.cleanup()


def test_the_content_noted_at_the_start_covers_labels_and_graph(tmp_path):
    _, slide = slide_case(tmp_path / "slides")
    labels = np.zeros(slide.n, int)
    edges = np.array([[0, 1], [1, 2]])
    variants = [slide, renamed(slide, slide.id, y_inst=labels), renamed(slide, slide.id, edges=edges)]
    noted = set()
    for number, prediction in enumerate(variants):
        study = ViewerData.read([save(tmp_path / f"p{number}", prediction)])
        noted.add(study.cases[0].by_model[0].content)
    assert len(noted) == 3

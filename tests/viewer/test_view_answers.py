"""What the page is told equals what the predictions say; missing and damaged images cost only themselves."""

import json

import numpy as np
import pytest
from support.ct_makers import series
from support.export_makers import META, scan_case, slide_case
from support.viewer_cases import client_of, renamed, save, small_study

from smmil.errors import ConfigError, DataError
from smmil.frame import Frame
from smmil.images import open_volume
from smmil.prediction import Prediction, load_predictions
from smmil.viewer.data import ViewerData


def test_the_list_tells_models_cases_and_verdicts(tmp_path):
    told = client_of(small_study(tmp_path, threshold=0.25, title="nodes")).get("/api/cases").json()
    assert (told["title"], told["threshold"]) == ("nodes", 0.25)
    assert told["software"].startswith("smmil ")
    assert [(m["name"], m["score_kind"], m["threshold"]) for m in told["models"]] == [
        ("a", META["score_kind"], 0.25),
        ("b", META["score_kind"], 0.25),
    ]
    one, two = told["cases"]
    assert (one["id"], one["kind"], one["label"], one["instances"], one["image"], one["truth"]) == (
        *("one", "slide", 1, 80, True, True),
    )
    assert one["probability"] == [0.9, 0.2]
    assert one["outcome"] == ["true positive", "false negative"]
    assert (two["id"], two["kind"], two["label"], two["truth"]) == ("two", "scan", 0, False)
    assert two["probability"] == [0.8, None]
    assert two["outcome"] == ["false positive", None]


def test_the_spread_of_a_model_is_over_all_its_cases(tmp_path):
    study = small_study(tmp_path)
    scores = np.concatenate([p.scores[:, 0] for p in load_predictions(tmp_path / "predictions" / "a")])
    model = client_of(study).get("/api/cases").json()["models"][0]
    assert model["range"] == [scores.min(), scores.max()]
    assert model["colours"] == pytest.approx(np.percentile(scores.astype(float), (2, 98)).tolist())


def test_scores_truth_and_coordinates_arrive_as_they_were_stored(tmp_path):
    client = client_of(small_study(tmp_path))
    for model, name in enumerate("ab"):
        stored = load_predictions(tmp_path / "predictions" / name)[0]
        sent = np.frombuffer(client.get(f"/api/case/0/scores/{model}").content, "<f4")
        assert np.array_equal(sent, stored.scores[:, 0])
    assert np.array_equal(np.frombuffer(client.get("/api/case/0/truth").content, np.int8), stored.y_inst)
    assert client.get("/api/case/1/truth").status_code == 404
    assert client.get("/api/case/1/scores/1").status_code == 404
    assert np.frombuffer(client.get("/api/case/1/coords").content, "<f4").tolist() == [0, 1, 2, 3, 4, 5]


def test_unknown_labels_stay_unknown(tmp_path):
    _, prediction = slide_case(tmp_path / "slides")
    labels = np.full(prediction.n, -1)
    labels[:3] = (0, 1, 2)
    study = ViewerData.read([save(tmp_path / "p", renamed(prediction, "x", y_inst=labels))])
    client = client_of(study)
    sent = np.frombuffer(client.get("/api/case/0/truth").content, np.int8)
    assert sent.tolist() == [0, 1, 1] + [-1] * (prediction.n - 3)
    assert [client.get(f"/api/case/0/instance/{i}").json()["label"] for i in (0, 2, 5)] == [0, 1, None]


def test_slices_are_hounsfield_units_in_the_order_of_the_coordinates(tmp_path):
    client = client_of(small_study(tmp_path))
    case = client.get("/api/case/1").json()
    volume = open_volume(tmp_path / "slides" / "two")
    assert (case["scan"]["slices"], case["scan"]["rows"], case["scan"]["columns"]) == volume.shape
    assert case["scan"]["spacing"] == pytest.approx([5.0, 0.75, 0.5])
    assert case["scan"]["windows"]["brain"] == [40, 80]
    for index in range(6):
        sent = np.frombuffer(client.get(f"/slice/1/{index}").content, "<i2").reshape(volume.shape[1:])
        assert np.array_equal(sent, volume.slice_hu(index))
    assert client.get("/slice/1/6").status_code == 404
    assert client.get("/slice/0/0").status_code == 404


def test_hounsfield_units_beyond_two_bytes_are_cut_off_not_wrapped(tmp_path):
    import nibabel

    hu = np.zeros((4, 4, 3), np.float32)
    hu[0, 0, 1], hu[1, 1, 1], hu[2, 2, 1] = 70_000, -70_000, 12.6
    affine = np.diag([-1.0, -1.0, 2.0, 1.0])
    (tmp_path / "slides").mkdir()
    nibabel.save(nibabel.Nifti1Image(hu, affine), tmp_path / "slides" / "ct.nii.gz")
    prediction = Prediction("ct", [0.5], np.zeros((3, 1)), coords=[[0], [1], [2]], frame=Frame((1,), (2.0,), "mm"))
    client = client_of(ViewerData.read([save(tmp_path / "p", prediction)], slides=tmp_path / "slides"))
    sent = np.frombuffer(client.get("/slice/0/1").content, "<i2")
    assert sorted(set(sent.tolist())) == [-32768, 0, 13, 32767]


def test_a_case_without_its_slide_still_works_as_a_map(tmp_path):
    study = small_study(tmp_path)
    (tmp_path / "slides" / "one.svs").unlink()
    for again in (study, ViewerData.read([tmp_path / "predictions"], slides=tmp_path / "slides"),
                  ViewerData.read([tmp_path / "predictions"])):  # fmt: skip
        client = client_of(again)
        case = client.get("/api/case/0").json()
        assert case["image"] is None
        assert any("slide" in note or "no such file" in note for note in case["notes"])
        assert case["patch"] == [32, 32]
        assert len(client.get("/api/case/0/coords").content) == 80 * 8
        assert client.get("/thumbnail/0.png").status_code == 200
        assert client.get("/api/case/0/instance/3").status_code == 200
        assert client.get("/tiles/0/9/0_0.jpg").status_code in (404, 422)
        assert client.get("/patch/0/0.jpg").status_code in (404, 422)


def test_a_damaged_slide_is_one_clear_line_and_not_the_end(tmp_path):
    study = small_study(tmp_path)
    path = tmp_path / "slides" / "one.svs"
    path.write_bytes(path.read_bytes()[:300])
    client = client_of(study)
    case = client.get("/api/case/0").json()
    assert case["image"] is None
    assert len(case["notes"]) == 1
    assert "\n" not in case["notes"][0]
    assert str(tmp_path) not in case["notes"][0]
    answer = client.get("/tiles/0/9/0_0.jpg")
    assert answer.status_code == 422
    assert answer.json()["error"].startswith("one: ")
    assert client.get("/api/case/1").json()["scan"] is not None


def test_a_damaged_scan_is_one_clear_line(tmp_path):
    study = small_study(tmp_path)
    file = next((tmp_path / "slides" / "two").glob("*.dcm"))
    file.write_bytes(file.read_bytes()[:200])
    client = client_of(study)
    case = client.get("/api/case/1").json()
    assert case["scan"] is None
    assert len(case["notes"]) == 1
    assert client.get("/slice/1/0").status_code == 422
    assert client.get("/thumbnail/1.png").status_code == 200


def test_another_slide_or_scan_is_not_put_under_the_map(tmp_path):
    path, prediction = slide_case(tmp_path / "slides")
    path.rename(path.with_name("one.svs"))
    foreign = renamed(prediction, "one", meta={**META, "slide": {"size": [999, 999]}})
    series(tmp_path / "slides" / "two", np.zeros((3, 5, 5), np.float32))
    _, _, scan = scan_case(tmp_path / "elsewhere")
    study = ViewerData.read([save(tmp_path / "p", foreign, renamed(scan, "two"))], slides=tmp_path / "slides")
    client = client_of(study)
    slide, scan = (client.get(f"/api/case/{i}").json() for i in (0, 1))
    assert slide["image"] is None
    assert "999" in slide["notes"][0]
    assert scan["scan"] is None
    assert "3 slices" in scan["notes"][0]
    assert client.get("/slice/1/0").status_code == 422


def test_a_model_with_other_instances_is_listed_but_not_laid_over_the_map(tmp_path):
    _, prediction = slide_case(tmp_path / "slides")
    fewer = renamed(prediction, "case", scores=prediction.scores[:5], coords=prediction.coords[:5])
    save(tmp_path / "p" / "a", prediction)
    save(tmp_path / "p" / "b", fewer)
    client = client_of(ViewerData.read([tmp_path / "p"]))
    case = client.get("/api/case/0").json()
    assert [m["present"] for m in case["models"]] == [True, False]
    assert case["models"][1]["probability"] == 0.9
    assert any("other instances" in note for note in case["notes"])
    assert client.get("/api/case/0/scores/1").status_code == 404
    assert client.get("/api/case/0/instance/70").json()["models"][1] is None


def test_cases_without_places_or_without_a_lattice_have_their_own_kind(tmp_path):
    rng = np.random.default_rng(0)
    bare = Prediction("bare", [0.3], rng.normal(size=(6, 1)), meta=META)
    dots = Prediction("dots", [0.3], rng.normal(size=(60, 1)), coords=rng.uniform(0, 1000, (60, 2)))
    boxes = Prediction("voxels", [0.3], [[1.0], [2.0]], coords=[[1, 2, 3], [4, 5, 6]], frame=Frame((2, 2, 2)))
    client = client_of(ViewerData.read([save(tmp_path / "p", bare, dots, boxes)]))
    assert [c["kind"] for c in client.get("/api/cases").json()["cases"]] == ["none", "points", "scan"]
    assert client.get("/api/case/0/coords").status_code == 404
    assert client.get("/thumbnail/0.png").status_code == 404
    assert client.get("/api/case/0/instance/2").json()["coords"] is None
    assert client.get("/api/case/0").json()["exports"] == ["csv", "parquet"]
    assert client.get("/api/case/1").json()["step"] is None
    assert np.frombuffer(client.get("/api/case/2/coords").content, "<f4").tolist() == [1, 2, 3, 4, 5, 6]
    assert [client.get("/api/case/2").json()[name] for name in ("axes", "patch", "step")] == [3, [2] * 3, [2] * 3]
    for case in (1, 2):
        assert client.get(f"/thumbnail/{case}.png").status_code == 200


def test_what_was_sent_once_need_not_be_sent_again_but_never_across_a_restart(tmp_path):
    study = small_study(tmp_path)
    client, later = client_of(study), client_of(study)
    for path in ("/tiles/0/9/0_0.jpg", "/slice/1/2", "/api/case/0/coords", "/patch/0/3.jpg"):
        first = client.get(path)
        tag = {"if-none-match": first.headers["etag"]}
        assert client.get(path, headers=tag).status_code == 304
        assert later.get(path, headers=tag).status_code == 200
        assert "no-cache" in first.headers["cache-control"]


def test_several_score_columns_need_a_choice_and_get_it(tmp_path):
    _, prediction = slide_case(tmp_path / "slides")
    scores = np.stack([np.arange(80), np.arange(80) * 2, np.arange(80) * 3], 1).astype(np.float32)
    save(tmp_path / "p", renamed(prediction, "x", scores=scores, probs=[0.2, 0.3, 0.5], y=1))
    with pytest.raises(ConfigError, match="column"):
        ViewerData.read([tmp_path / "p"])
    client = client_of(ViewerData.read([tmp_path / "p"], column=1))
    assert np.frombuffer(client.get("/api/case/0/scores/0").content, "<f4").tolist() == scores[:, 1].tolist()
    (case,) = client.get("/api/cases").json()["cases"]
    assert (case["probability"], case["outcome"], case["label"]) == ([0.5], ["wrong"], 1)


def test_nothing_to_show_is_said_at_the_start(tmp_path):
    (tmp_path / "empty").mkdir()
    for places in ([tmp_path / "empty"], [tmp_path / "absent"], []):
        with pytest.raises(DataError):
            ViewerData.read(places)
    _, prediction = slide_case(tmp_path / "slides")
    save(tmp_path / "p", prediction, prediction)
    with pytest.raises(DataError, match="already"):
        ViewerData.read([tmp_path / "p"])


def test_answers_are_plain_json(tmp_path):
    client = client_of(small_study(tmp_path))
    for path in ("/api/cases", "/api/case/0", "/api/case/1", "/api/case/0/instance/0", "/api/case/99"):
        answer = client.get(path)
        assert answer.headers["content-type"] == "application/json"
        json.loads(answer.content.decode("ascii"), parse_constant=pytest.fail)

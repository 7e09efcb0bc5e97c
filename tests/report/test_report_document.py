"""The report as a file: one document, no way out, nothing that a name can break, nobody's secrets."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from support.lesion_cases import META, save_all, scan_case, slide_case

from smmil.errors import ConfigError, DataError
from smmil.files import write_json
from smmil.redact import safe_text
from smmil.report import write_report
from smmil.report.sources import _load_sources

EVIL = [
    "</script><script>alert(1)</script>", "</script x", "<!-- <script x", '"><img src=x onerror=alert(2)>',
    "{{data}} {{program}}", "ü 切片 🧫 \u202e ' \" & \\", "]]>", "\u2028 `${alert(3)}`",
]  # fmt: skip


class Reader(HTMLParser):
    """Tags with attributes, the text of each script by number, and the text outside scripts."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.scripts, self.text, self.inside = [], [], "", False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = tag in ("script", "style")
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        if not self.inside:
            self.text += data
        elif self.tags[-1][0] == "script":
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + data)


def written(folder, cases, name="m", **options):
    (folder / name).mkdir(exist_ok=True, parents=True)
    save_all(folder / name, cases)
    write_report([folder / name], folder / "report.html", resamples=0, **options)
    return (folder / "report.html").read_text(encoding="utf-8")


def some_cases():
    return [slide_case("s1", 1), slide_case("s2", 2, y=0), scan_case("ct")]


def test_only_our_two_scripts_may_run_and_nothing_may_be_fetched(tmp_path):
    page = Reader(written(tmp_path, some_cases()))
    policy = next(a["content"] for t, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    running = [text for attrs, text in page.scripts if "type" not in attrs]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in running]
    assert len(running) == 2
    assert re.findall(r"'sha256-([^']+)'", policy) == hashes
    assert policy.startswith("default-src 'none'")
    assert "connect-src" not in policy
    assert "unsafe-eval" not in policy
    assert "http" not in policy


def test_no_element_points_outside(tmp_path):
    page = Reader(written(tmp_path, some_cases()))
    for tag, attrs in page.tags:
        assert "src" not in attrs
        assert attrs.get("href", "#").startswith("#"), (tag, attrs)
        assert not [name for name in attrs if name.startswith("on")], (tag, attrs)
    assert not {tag for tag, _ in page.tags} & {"link", "iframe", "object", "embed", "base"}


@pytest.mark.parametrize("evil", EVIL)
def test_no_name_breaks_the_page(tmp_path, evil):
    plain = Reader(written(tmp_path / "plain", some_cases(), title="t"))
    meta = {**META, "model": evil, "score_kind": evil, "features": {"encoder": evil, "licence": evil}}
    cases = [slide_case(evil, 1, meta=meta), slide_case("s2", 2, y=0, meta=meta), replace(scan_case("ct"), meta=meta)]
    page = Reader(written(tmp_path / "evil", cases, title=evil))
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]
    block = next(text for attrs, text in page.scripts if attrs.get("id") == "data")
    assert not set("<>&") & set(block)  # whatever a parser takes for the end of a script, it is not in there
    data = json.loads(block)
    expected = "".join(c if c.isprintable() else " " for c in evil)
    assert expected in [case["id"] for case in data["cases"]]


def test_the_page_says_what_it_is_for_and_where_it_comes_from(tmp_path):
    text = Reader(written(tmp_path, some_cases(), licences={"efficientnet_lite0": "Apache-2.0"})).text
    for words in ("Research use only", "not for diagnosis", "Apache-2.0", "efficientnet_lite0", "attention logit",
                  "part test, fold 0", "ffffffffffff", "Encoder licence"):  # fmt: skip
        assert words in text, words
    assert "check the terms of the encoder" in Reader(written(tmp_path, some_cases())).text


def test_the_page_carries_the_licence_of_what_it_contains(tmp_path):
    text = " ".join(Reader(written(tmp_path, some_cases())).text.split())
    for words in ("OpenSeadragon (BSD-3-Clause)", "Copyright (C) 2009 CodePlex Foundation",
                  "Redistributions in binary form must reproduce", 'PROVIDED BY THE COPYRIGHT HOLDERS'):  # fmt: skip
        assert words in text, words


def test_an_encoder_with_a_revision_finds_its_licence(tmp_path):
    meta = {**META, "features": {"encoder": "resnet50@12ab"}}
    page = written(tmp_path, [slide_case("s", meta=meta)], licences={"resnet50": "BSD-3-Clause"})
    assert "BSD-3-Clause</dd>" in page


def test_planted_marks_of_persons_and_places_never_reach_the_page(tmp_path):
    keys = ["patient", "group", "PatientName", "PatientID", "birth", "accession", "institution", "operator", "path",
            "source", "slide", "file", "label_image", "macro", "comment", "address", "phone", "mail", "ssn", "doctor",
            "scanner_serial", "barcode", "user", "host", "cwd", "argv"]  # fmt: skip
    meta = {**META, **{key: f"PHI{i:02}" for i, key in enumerate(keys)}}
    meta["split"] = {**META["split"], "patients": "PHI90"}
    meta["features"] = {**META["features"], "recipe": "/home/PHI91/recipe.json", "slide": "PHI92"}
    meta["versions"] = {"smmil": "/home/PHI93/src/smmil 0.1"}
    run = tmp_path / "run"
    (run / "predictions").mkdir(parents=True)
    options = {"weights": "C:\\Users\\PHI94\\net.pt"}
    write_json(run / "run.json", {"manifest": {"path": "/data/PHI95/m.csv"}, "model": {"options": options}, "bags": {}})
    save_all(run / "predictions", [slide_case("s1", meta=meta), slide_case("/home/PHI96/s2", 2, y=0, meta=meta)])
    write_report([run], run / "report.html", resamples=0, title="/srv/PHI97/report")
    page = (run / "report.html").read_text(encoding="utf-8")
    assert re.findall(r"PHI\d\d", page) == []
    assert str(tmp_path) not in page


@pytest.mark.parametrize(
    ("text", "kept"),
    [("/home/eva/slide.svs", "slide.svs"), ("C:\\data\\eva\\s.svs", "s.svs"), ("~/eva/s.svs", "s.svs"),
     ("from /mnt/a b", "from a b"), ("hf-hub:owner/name", "hf-hub:owner/name"), ("a/b", "a/b"),
     ("file:///x/y.h5", "y.h5"), ("1/2 of it", "1/2 of it"), ("tab\there", "tab here")],
)  # fmt: skip
def test_paths_lose_their_folders(text, kept):
    assert safe_text(text) == kept


def test_the_same_predictions_give_the_same_bytes(tmp_path):
    assert written(tmp_path / "a", some_cases()) == written(tmp_path / "b", some_cases())


def test_a_large_set_is_stored_coarser_rather_than_too_large(tmp_path):
    cases = [slide_case(f"s{i}", i) for i in range(3)]
    assert '"bits":16' in written(tmp_path, cases)
    (tmp_path / "one").mkdir()
    from smmil.report import document

    assert (
        document._fitting_cases({"m": cases}, None, room=3000)[0].facts["verdicts"][0]["rasters"]["score"]["bits"] == 8
    )
    with pytest.raises(ConfigError, match="max_mb"):
        write_report([tmp_path / "m"], tmp_path / "r.html", max_mb=1)


def test_a_run_brings_its_predictions_and_facts(tmp_path):
    run = tmp_path / "runs" / "first"
    (run / "predictions").mkdir(parents=True)
    write_json(run / "run.json", {"bags": {"train": 96, "val": 24, "test": 30}, "parameters": 85194})
    with pytest.raises(DataError, match="smmil predict"):
        _load_sources([run])
    save_all(run / "predictions", some_cases())
    for place in (run, run / "predictions"):
        source = _load_sources([place])[0]
        assert (source.name, len(source.predictions), source.run["parameters"]) == ("first", 3, 85194)
    write_report([run], tmp_path / "r.html", resamples=0)
    assert "train 96, val 24, test 30" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_a_run_with_several_parts_prefers_test_and_else_asks(tmp_path):
    for part in ("test", "val"):
        (tmp_path / "run" / "predictions" / part).mkdir(parents=True)
        save_all(tmp_path / "run" / "predictions" / part, [slide_case(part)])
    write_json(tmp_path / "run" / "run.json", {})
    assert _load_sources([tmp_path / "run"])[0].predictions[0].id == "test"
    (tmp_path / "run" / "predictions" / "test").rename(tmp_path / "run" / "predictions" / "train")
    with pytest.raises(DataError, match="train, val"):
        _load_sources([tmp_path / "run"])


def test_equal_names_are_told_apart_without_their_folders(tmp_path):
    for place in ("a/m", "b/m"):
        (tmp_path / place).mkdir(parents=True)
        save_all(tmp_path / place, [slide_case("s")])
    assert [s.name for s in _load_sources([tmp_path / "a/m", tmp_path / "b/m"])] == ["m", "m (2)"]
    with pytest.raises(DataError, match="nothing to report"):
        _load_sources([])


def test_a_report_says_when_a_model_is_judged_on_cases_it_was_trained_on(tmp_path):
    seen = {**META, "split": {**META["split"], "part": "train"}}
    for name, metas in (("fair", [META, META]), ("mixed", [META, seen])):
        cases = [slide_case(f"s{i}", i, y=i, meta=meta) for i, meta in enumerate(metas)]
        save_all(tmp_path / name, cases)
        write_report([tmp_path / name], tmp_path / f"{name}.html", resamples=0)
    fair, mixed = ((tmp_path / f"{name}.html").read_text(encoding="utf-8") for name in ("fair", "mixed"))
    assert "Not a fair test" not in fair
    assert "Not a fair test: mixed (train)" in mixed
    assert "test + train" in mixed

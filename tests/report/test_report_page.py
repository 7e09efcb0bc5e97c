"""The page: one file, nothing from outside, nothing a name can break, and honest words."""

import base64
import re
from html.parser import HTMLParser

import pytest

from smmil.errors import DataError
from smmil.evaluate import summary
from smmil.maps import score_map
from smmil.prediction import Prediction
from smmil.report import PageTable, Picture, Section, comparison_page, write_page
from smmil.report.comparison import leaders

VOID = {"meta", "img", "br", "link"}
EVIL = """<script>alert("1")</script> & 'x' "y" ü 切片 </table>"""


class Reader(HTMLParser):
    """Collects tags and text, and insists that every tag is closed in order."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.open, self.text = [], [], ""
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def case(name, score, y):
    return Prediction(
        name, [0.9 if y else 0.2], [score, 0.0, 0.5], coords=[[0, 0], [1, 0], [2, 0]], edges=[[0, 1], [1, 2]],
        y=y, y_inst=[y, 0, 0],
    )  # fmt: skip


def models():
    good = [case("a", 2.0, 1), case("b", -1.0, 0)]
    bad = [case("a", 0.2, 1), case("b", -1.0, 0)]
    return {"abmil": summary(bad, threshold=0.4), "sm_ap": summary(good, threshold=0.4)}


def full_page(folder, results=None, name="case 1"):
    png = score_map(case("drawn", 2.0, 1), folder / "map.png")
    comparison_page(
        folder / "report.html", results=results or models(), maps=[(name, "the lesion is on the left", png)],
        notes=["Only two cases."], next_steps=["Run `smmil train`"], title=f"Report {name}",
    )  # fmt: skip
    return (folder / "report.html").read_text(encoding="utf-8")


def test_the_page_asks_nothing_from_outside_and_runs_nothing(tmp_path):
    page = full_page(tmp_path)
    tags = Reader(page).tags
    assert not [t for t, _ in tags if t in ("script", "link", "iframe", "object", "form", "a")]
    sources = [a["src"] for _, a in tags if "src" in a]
    assert sources
    assert all(s.startswith("data:image/png;base64,") for s in sources)
    assert not re.search(r"https?://|url\(|@import| on\w+=", re.sub(r"base64,[^\"]+", "", page))
    assert any("default-src 'none'" in a.get("content", "") for _, a in tags)


def test_pictures_are_inside_byte_for_byte_and_described(tmp_path):
    image = next(a for t, a in Reader(full_page(tmp_path)).tags if t == "img")
    assert base64.b64decode(image["src"].split(",")[1]) == (tmp_path / "map.png").read_bytes()
    assert image["alt"] == "Score maps of case case 1. the lesion is on the left"
    assert int(image["width"]) > 100


def test_names_with_markup_do_no_harm_anywhere(tmp_path):
    results = {EVIL: models()["abmil"], "b": models()["sm_ap"]}
    page = Reader(full_page(tmp_path, results, EVIL))
    assert "script" not in [t for t, _ in page.tags]
    assert page.text.count(EVIL) >= 4
    evil = Section(EVIL, [EVIL], [EVIL], [PageTable(EVIL, [EVIL], [[EVIL, EVIL]])])
    path = write_page(tmp_path / "evil.html", title=EVIL, lead=EVIL, sections=[evil])
    page = Reader(path.read_text(encoding="utf-8"))
    assert "script" not in [t for t, _ in page.tags]
    assert page.text.count(EVIL) == 10


def test_headings_tables_and_language_are_accessible(tmp_path):
    page = Reader(full_page(tmp_path))
    names = [t for t, _ in page.tags]
    assert names.count("h1") == 1
    assert next(t for t in names if re.fullmatch("h[1-6]", t)) == "h1"
    assert not {"h3", "h4", "h5", "h6"} & set(names)
    assert names.count("caption") == names.count("table") > 3
    assert all(a.get("scope") in ("col", "row") for t, a in page.tags if t == "th")
    assert dict(page.tags)["html"] == {"lang": "en"}


def test_light_and_dark_are_both_there(tmp_path):
    page = full_page(tmp_path)
    assert "prefers-color-scheme: dark" in page
    assert "color-scheme: light dark" in page


def test_the_same_content_gives_the_same_page(tmp_path):
    assert full_page(tmp_path / "a") == full_page(tmp_path / "b")


def test_metrics_stand_in_the_table_and_only_the_best_is_marked(tmp_path):
    page = full_page(tmp_path)
    rows = re.findall(r"<tr><th scope=\"row\">(\w+)</th>(.*?)</tr>", page)
    first = dict(rows[2:4])
    # all instances: abmil has its lesion at 0.2, below two of five others; sm_ap above all
    assert first["sm_ap"].startswith('<td class="best">1.000</td>')
    assert first["abmil"].startswith("<td>0.600</td>")
    bags = dict(rows[:2])
    assert "best" not in bags["abmil"] + bags["sm_ap"]


def test_who_leads_is_said_and_ties_are_not_victories():
    words = leaders(models())
    assert words[0] == "Of 8 comparisons abmil leads in 0, sm_ap leads in 6; 2 are ties."
    assert "AUROC, whole cases: abmil and sm_ap are equal to three digits (1.000)." in words
    assert "AUROC, instances of all cases together: sm_ap leads with 1.000, 0.400 before abmil (0.600)." in words


def test_a_model_that_does_not_win_is_named_as_such():
    swapped = {"sm_ap": models()["abmil"], "abmil": models()["sm_ap"]}
    assert leaders(swapped)[0] == "Of 8 comparisons sm_ap leads in 0, abmil leads in 6; 2 are ties."


def test_undefined_metrics_are_dashes_with_their_reason(tmp_path):
    nothing = {"m": summary([Prediction("a", [0.9], [1.0])]), "n": summary([case("a", 1.0, 1)])}
    comparison_page(tmp_path / "r.html", results=nothing)
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "nan" not in page
    assert "m: no case has a label; nothing can be measured" in page
    assert "<h2>What to do next</h2>" not in page


def test_one_flat_set_of_instance_metrics_is_accepted(tmp_path):
    flat = {m: {"bag": r["bag"], "instance": r["instance"]["all"]} for m, r in models().items()}
    comparison_page(tmp_path / "r.html", results=flat)
    assert "Instances of all cases together (6 instances of 2 cases)" in (tmp_path / "r.html").read_text()


def test_code_between_backquotes_is_shown_as_code(tmp_path):
    assert "<li>Run <code>smmil train</code></li>" in full_page(tmp_path)


def test_a_picture_that_is_none_is_refused_and_the_old_page_stays(tmp_path):
    before = full_page(tmp_path)
    (tmp_path / "bad.png").write_text("not a picture")
    for name, message in (("bad.png", "not a PNG picture"), ("none.png", "picture cannot be read")):
        with pytest.raises(DataError, match=f"{name}: {message}"):
            comparison_page(tmp_path / "report.html", results=models(), maps=[("a", "b", tmp_path / name)])
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == before
    with pytest.raises(DataError):
        Picture(tmp_path / "bad.png", "", "").html()

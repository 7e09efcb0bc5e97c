"""Sections that a caller adds to a report: inside the file, escaped, and with honest sentences about who leads."""

import base64
import re
from html.parser import HTMLParser

import pytest

from smmil.errors import DataError
from smmil.evaluate import summary
from smmil.maps import score_map
from smmil.prediction import Prediction
from smmil.report import Picture, Section, write_report
from smmil.report.numbers import leaders

VOID = {"meta", "img", "br", "link", "input"}
EVIL = """<script>alert("1")</script> & 'x' "y" ü 切片 </table>"""


class Reader(HTMLParser):
    """Collects tags and text, and insists that every tag is closed in order."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.open, self.text, self.running = [], [], "", []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "script" and "type" not in dict(attrs):
            self.running.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if not {"script", "style"} & set(self.open):
            self.text += data


def case(name, score, y):
    return Prediction(
        name, [0.9 if y else 0.2], [score, 0.0, 0.5], coords=[[0, 0], [1, 0], [2, 0]], edges=[[0, 1], [1, 2]],
        y=y, y_inst=[y, 0, 0],
    )  # fmt: skip


def predictions():
    good = [case("a", 2.0, 1), case("b", -1.0, 0)]
    bad = [case("a", 0.2, 1), case("b", -1.0, 0)]
    return {"abmil": bad, "sm_ap": good}


def models():
    return {name: summary(cases, threshold=0.4) for name, cases in predictions().items()}


def full_page(folder, sections=None, names=("abmil", "sm_ap"), **options):
    png = score_map(case("drawn", 2.0, 1), folder / "map.png")
    for name, cases in zip(names, predictions().values(), strict=True):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for one in cases:
            one.save(folder / name / f"{one.id}.npz")
    usual = [
        Section("Maps", pictures=[Picture(png, "case 1: the lesion is on the left", "Score maps of case 1")]),
        Section("Next", items=["Run `smmil train`"], ordered=True),
    ]
    options = {"threshold": 0.4, "resamples": 0, "title": "Report", "sections": sections or usual, **options}
    write_report([folder / name for name in names], folder / "report.html", **options)
    return (folder / "report.html").read_text(encoding="utf-8")


def test_sections_ask_nothing_from_outside_and_run_nothing(tmp_path):
    page = Reader(full_page(tmp_path))
    assert len(page.running) == 2
    assert not [t for t, _ in page.tags if t in ("link", "iframe", "object", "embed", "base")]
    sources = [a["src"] for _, a in page.tags if "src" in a]
    assert len(sources) == 1
    assert sources[0].startswith("data:image/png;base64,")
    assert all(a.get("href", "#").startswith("#") for _, a in page.tags)
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    assert not [name for _, a in page.tags for name in a if name.startswith("on")]


def test_pictures_are_inside_byte_for_byte_and_described(tmp_path):
    image = next(a for t, a in Reader(full_page(tmp_path)).tags if t == "img")
    assert base64.b64decode(image["src"].split(",")[1]) == (tmp_path / "map.png").read_bytes()
    assert image["alt"] == "Score maps of case 1"
    assert int(image["width"]) > 100


def test_names_with_markup_do_no_harm_anywhere(tmp_path):
    png = score_map(case("drawn", 2.0, 1), tmp_path / "evil.png")
    evil = [Section(EVIL, [EVIL], [EVIL], [Picture(png, EVIL, EVIL)])]
    page = Reader(full_page(tmp_path, evil, title=EVIL, lead=EVIL))
    assert len(page.running) == 2
    assert page.text.count(EVIL) == 7  # title twice, lead, heading, paragraph, item, caption
    assert next(a["alt"] for t, a in page.tags if t == "img") == EVIL


def test_headings_tables_and_language_are_accessible(tmp_path):
    page = Reader(full_page(tmp_path))
    names = [t for t, _ in page.tags]
    assert names.count("h1") == 1
    assert next(t for t in names if re.fullmatch("h[1-6]", t)) == "h1"
    assert not {"h4", "h5", "h6"} & set(names)
    assert names.count("caption") == names.count("table") == 2
    assert all(a.get("scope") in ("col", "row", "colgroup") for t, a in page.tags if t == "th")
    assert dict(page.tags)["html"] == {"lang": "en"}


def test_light_and_dark_are_both_there(tmp_path):
    page = full_page(tmp_path)
    for words in ("prefers-color-scheme: dark", "color-scheme: light", "color-scheme: dark"):
        assert words in page


def test_the_same_content_gives_the_same_page(tmp_path):
    assert full_page(tmp_path / "a") == full_page(tmp_path / "b")


def test_metrics_stand_in_the_table_and_only_the_best_is_marked(tmp_path):
    page = full_page(tmp_path)
    rows = dict(re.findall(r'<tr><th scope="row">([^<]+)</th>(.*?)</tr>', page, re.S))
    # all instances: abmil has its lesion at 0.2, below two of five others; sm_ap above all
    abmil, sm_ap = re.findall(r"<td.*?</td>", rows["AUROC, all cases"])
    assert sm_ap.startswith('<td class="best">1.000<')
    assert abmil.startswith("<td>0.600<")
    assert "best" not in rows["AUROC"]


def test_who_leads_is_said_and_ties_are_not_victories():
    words = leaders(models())
    assert words[0] == "Of 8 comparisons abmil leads in 0, sm_ap leads in 6; 2 are ties."
    assert "AUROC, whole cases: abmil and sm_ap are equal to three digits (1.000)." in words
    assert "AUROC, instances of all cases together: sm_ap leads with 1.000, 0.400 before abmil (0.600)." in words


def test_a_model_that_does_not_win_is_named_as_such():
    swapped = {"sm_ap": models()["abmil"], "abmil": models()["sm_ap"]}
    assert leaders(swapped)[0] == "Of 8 comparisons sm_ap leads in 0, abmil leads in 6; 2 are ties."


def test_undefined_metrics_are_dashes_with_their_reason(tmp_path):
    for name, prediction in (("m", Prediction("a", [0.9], [1.0])), ("n", case("a", 1.0, 1))):
        (tmp_path / name).mkdir()
        prediction.save(tmp_path / name / "a.npz")
    write_report([tmp_path / "m", tmp_path / "n"], tmp_path / "r.html", resamples=0)
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    text = Reader(page).text
    assert not re.search(r"\bnan\b", text)
    assert "–" in text
    assert "m: no case has a label; nothing can be measured" in text
    assert '<section class="extra">' not in page


def test_one_flat_set_of_instance_metrics_is_compared_too():
    flat = {m: {"bag": r["bag"], "instance": r["instance"]["all"]} for m, r in models().items()}
    assert leaders(flat)[0] == "Of 4 comparisons abmil leads in 0, sm_ap leads in 2; 2 are ties."


def test_code_between_backquotes_is_shown_as_code(tmp_path):
    assert "<li>Run <code>smmil train</code></li>" in full_page(tmp_path)


def test_a_picture_that_is_none_is_refused_and_the_old_page_stays(tmp_path):
    before = full_page(tmp_path)
    (tmp_path / "bad.png").write_text("not a picture")
    for name, message in (("bad.png", "not a PNG picture"), ("none.png", "picture cannot be read")):
        with pytest.raises(DataError, match=f"{name}: {message}"):
            full_page(tmp_path, [Section("s", pictures=[Picture(tmp_path / name, "", "")])])
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == before

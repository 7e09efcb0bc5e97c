"""The web room: templates escape, scripts fit together, and one bundle is one scope."""

import re

import pytest
from jinja2 import UndefinedError

from smmil.web import render, script_bundle, static_files, static_text

SCRIPTS = sorted(name for name in static_files() if name.endswith(".js") and ".min." not in name)
IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w.]+)";$', re.MULTILINE)
DECLARED = re.compile(r"^(?:export )?(?:async )?(?:function|class|const|let) (\w+)", re.MULTILINE)
EVIL = "</title><script>alert('1')</script> & \"x\""


def exported(name):
    return set(re.findall(r"^export (?:async )?(?:function|class|const|let) (\w+)", static_text(name), re.MULTILINE))


def reached(entry):
    """A module and all it imports."""
    found, waiting = set(), [entry]
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting += [other for _, other in IMPORT.findall(static_text(name)) if other not in found]
    return found


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_imported_name_is_exported_and_used(name):
    text = static_text(name)
    body = IMPORT.sub("", text)
    assert "import " not in body
    for names, source in IMPORT.findall(text):
        wanted = {word.strip() for word in names.split(",")}
        assert wanted <= exported(source), source
        assert all(re.search(rf"\b{word}\b", body) for word in wanted), source


def test_every_script_belongs_to_a_page_and_what_both_need_exists_once():
    report, viewer = reached("report_start.js"), reached("start.js")
    assert report | viewer == set(SCRIPTS)
    assert {"dom_helpers.js", "paint.js", "bars.js", "controls.js", "zoom_pane.js"} <= report & viewer
    assert {name for name in report if not name.startswith("report_")} <= viewer
    assert not [name for name in viewer if name.startswith("report_")]


def test_names_of_a_bundle_are_unique_and_nothing_is_imported():
    names = [word for name in reached("report_start.js") for word in DECLARED.findall(static_text(name))]
    assert len(names) == len(set(names))
    bundle = script_bundle("report_start.js")
    assert not re.search(r"^(import|export) ", bundle, re.MULTILINE)
    assert all(re.search(rf"^(async )?(function|class|const|let) {word}\b", bundle, re.MULTILINE) for word in names)


def test_a_bundle_has_what_a_class_extends_before_the_class():
    bundle = script_bundle("report_start.js")
    pairs = re.findall(r"^class (\w+) extends (\w+)", bundle, re.MULTILINE)
    assert len(pairs) == 3
    for child, parent in pairs:
        assert bundle.index(f"class {parent} ") < bundle.index(f"class {child} ")


def test_templates_escape_and_refuse_missing_values():
    page = render("viewer.html", title=EVIL)
    assert "<script>alert" not in page
    assert page.count("&lt;/title&gt;&lt;script&gt;") == 2
    with pytest.raises(UndefinedError):
        render("viewer.html")


@pytest.mark.parametrize("name", ["shared.css", "report.css", "view.css"])
def test_styles_ask_nothing_from_outside(name):
    assert not re.search(r"url\(|@import|https?:", static_text(name))


def test_classes_in_the_viewers_page_that_only_the_report_styles_do_not_exist():
    """The viewer links shared.css and view.css: a class styled in report.css alone would have no style there."""
    page = render("viewer.html", title="t")
    used = {word for names in re.findall(r'class="([^"]+)"', page) for word in names.split()}
    shared, report, view = (
        set(re.findall(r"\.([a-z][\w-]*)", static_text(f"{name}.css"))) for name in ("shared", "report", "view")
    )
    assert not used & (report - shared - view)

"""Which image belongs to which row: nothing guessed, nothing dropped in silence."""

import pytest
from PIL import Image
from support import prepare_makers as makers
from support.ct_makers import series

from smmil.errors import ConfigError, DataError
from smmil.prepare.table import _cases_from_table, _cases_without_labels, _common_kind, find_sources


def image(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4)).save(path)
    return path


@pytest.fixture
def folder(tmp_path):
    for name in ("a/one.png", "a/two.png", "b/three.x.png", "b/notes.txt", ".hidden/no.png", "out/previews/one.png"):
        path = tmp_path / "in" / name
        image(path) if path.suffix == ".png" else path.write_text("x")
    return tmp_path / "in"


def sources_of(folder):
    return find_sources([folder], skip=folder / "out")


def table(tmp_path, text):
    path = tmp_path / "labels.csv"
    path.write_text(text)
    return path


def test_images_below_a_folder_are_found_but_not_hidden_ones_nor_our_own_output(folder):
    assert [s.name for s in sources_of(folder)] == ["a/one", "a/two", "b/three.x"]
    assert [c.id for c in _cases_without_labels(sources_of(folder)).cases] == ["one", "two", "three.x"]


def test_the_same_file_given_twice_is_one_case(folder):
    assert len(find_sources([folder, folder / "a" / "one.png", folder / "a"], skip=folder / "out")) == 3


def test_ids_are_stems_or_relative_paths_or_come_with_a_path(tmp_path, folder):
    text = "id,label,patient,split,path,mpp\none,1,p1,train,,0.25\nb/three.x,0,p2,test,,\nown,0,p3,,in/a/two.png,\n"
    cases = _cases_from_table(table(tmp_path, text), sources_of(folder), mpp=0.5)
    found = [(c.id, c.source.name, c.label, c.patient, c.split, c.mpp) for c in cases.cases]
    assert found == [
        ("one", "one.png", "1", "p1", "train", 0.25),
        ("b/three.x", "three.x.png", "0", "p2", "test", 0.5),
        ("own", "two.png", "0", "p3", "", 0.5),
    ]
    assert cases.missing == ()
    assert cases.unlisted == ()


def test_two_images_of_one_name_are_refused_with_both_paths(tmp_path, folder):
    image(folder / "b" / "one.png")
    both = r"in/a/one\.png and .*in/b/one\.png are both called 'one'"
    with pytest.raises(DataError, match=both):
        _cases_without_labels(sources_of(folder))
    with pytest.raises(DataError, match=both):
        _cases_from_table(table(tmp_path, "id,label\none,1\n"), sources_of(folder))
    named = _cases_from_table(table(tmp_path, "id,label\na/one,1\nb/one,0\n"), sources_of(folder))
    assert [c.source.parent.name for c in named.cases] == ["a", "b"]


def test_rows_without_image_and_images_without_row_are_both_told(tmp_path, folder):
    cases = _cases_from_table(table(tmp_path, "id,label\none,1\ntow,0\n"), sources_of(folder))
    assert [c.id for c in cases.cases] == ["one"]
    assert cases.missing[0][0] == "tow"
    assert "did you mean two" in cases.missing[0][1]
    assert [p.name for p in cases.unlisted] == ["two.png", "three.x.png"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("id,label\nnobody,1\n", "none of the 1 rows has an image"),
        ("name,label\none,1\n", "column 'id' is missing"),
        ("id,label\n", "no rows"),
        ("id,label\none,1\none,0\n", "duplicate id: one"),
        ("id,label\none,tumour\n", "tumour"),
        ("id,label,split\none,1,dev\n", "unknown split 'dev'"),
        ("id,label,patient,split\none,1,p,train\ntwo,1,p,test\n", "patient in two splits"),
        ("id,label\n../one,1\n", "cannot name a file"),
        ("id,label\n/one,1\n", "cannot name a file"),
        ("id,label\n.one,1\n", r"no backslash, and no part between '/' may be empty or begin with a dot"),
        ("id,label,path\n=one,1,one.png\n", "id '=one' would be a formula in a spreadsheet"),
        ("id,label,patient\none,1,@p\n", "patient '@p' would be a formula"),
        ("id;label\none;1\n", "separated by semicolons"),
        ("id,label,mpp\none,1,big\n", "mpp is 'big'"),
    ],
)
def test_tables_that_cannot_be_meant_are_refused(tmp_path, folder, text, words):
    with pytest.raises(DataError, match=words):
        _cases_from_table(table(tmp_path, text), sources_of(folder))


def test_slides_and_scans_are_told_apart_and_not_mixed(tmp_path):
    series(tmp_path / "ct" / "scan")
    makers.write_slide(tmp_path / "wsi" / "slide", makers.glass(64, 64), flavour="dicom", factors=(1,))
    image(tmp_path / "png" / "a.png")
    kinds = {s.name: s.kind for s in find_sources([tmp_path])}
    assert kinds == {"ct/scan": "ct", "wsi/slide": "slide", "png/a": "slide"}
    assert _common_kind(find_sources([tmp_path / "ct"])) == "ct"
    with pytest.raises(ConfigError, match=r"both slides .* and scans .* --kind"):
        _common_kind(find_sources([tmp_path]))


def test_a_folder_without_images_and_no_folder_at_all_are_told(tmp_path):
    with pytest.raises(DataError, match="no slides or scans found"):
        find_sources([tmp_path])
    with pytest.raises(DataError, match="no such file or folder"):
        find_sources([tmp_path / "nowhere"])


def test_labels_of_a_spreadsheet_lose_their_decimal(tmp_path, folder):
    cases = _cases_from_table(table(tmp_path, "id,label\none,1.0\ntwo,0.0\n"), sources_of(folder))
    assert [case.label for case in cases.cases] == ["1", "0"]


def test_a_file_whose_name_is_a_formula_needs_an_id_of_its_own(tmp_path):
    image(tmp_path / "png" / "-x.png")
    with pytest.raises(DataError, match=r"id '-x' would be a formula .* columns id and path"):
        _cases_without_labels(sources_of(tmp_path / "png"))
    found = _cases_from_table(table(tmp_path, "id,label,path\nx,1,png/-x.png\n"), sources_of(tmp_path / "png"))
    assert found.cases[0].source.name == "-x.png"

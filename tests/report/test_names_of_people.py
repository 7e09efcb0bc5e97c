"""Words about files in which names of people may stand: nothing but the id of the case is left of them."""

from pathlib import Path

import pytest

from smmil.redact import without_names

PERSON = "MUELLER_Erika"


@pytest.mark.parametrize(
    "said",
    [
        "{path}: not a slide",
        "{path}/IM 01 Erika.dcm: not readable",
        "{resolved}: damaged",
        "but MUELLER_Erika.svs has",
        "but MUELLER_Erika has",
        "'MUELLER_Erika.svs'",
        "{folder}/Data Erika.dat: cannot be read",
        "{folder}: 3 series",
        "Vogel_Eva: 3 series",
    ],
)
def test_every_form_in_which_an_image_can_be_named_is_replaced(tmp_path, said):
    folder = tmp_path / "real" / "Vogel_Eva"
    folder.mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    path = tmp_path / "link" / "Vogel_Eva" / f"{PERSON}.svs"
    text = said.format(path=path, folder=path.parent, resolved=folder / path.name)
    told = without_names(f"error at {text} (and more)", "x1", path)
    assert not [name for name in ("MUELLER", "Erika", "Eva", str(tmp_path)) if name in told]
    assert "x1" in told
    assert told.startswith("error at ")


def test_the_name_behind_a_link_is_replaced_too(tmp_path):
    (tmp_path / "huber_ida.svs").touch()
    (tmp_path / "x1.svs").symlink_to(tmp_path / "huber_ida.svs")
    assert without_names("huber_ida.svs: is damaged", "x1", tmp_path / "x1.svs") == "x1: is damaged"


def test_a_file_given_from_where_we_stand_is_known_by_its_whole_path_too(tmp_path, monkeypatch):
    for folder in ("real", "Vogel Eva"):
        (tmp_path / folder).mkdir()
    (tmp_path / "Vogel Eva" / "now").symlink_to(tmp_path / "real")
    monkeypatch.chdir(tmp_path / "Vogel Eva")
    text = f"{tmp_path / 'Vogel Eva' / 'now' / 'a.svs'}: is damaged"
    assert without_names(text, "x1", Path("now/a.svs")) == "x1: is damaged"


def test_files_inside_a_folder_of_slices_are_not_named_either(tmp_path):
    folder = tmp_path / "ct7"
    folder.mkdir()
    (folder / "Vogel^Eva 1.dcm").touch()
    assert without_names("Vogel^Eva 1.dcm: no CT slice", "x1", folder) == "x1: no CT slice"


def test_files_deep_inside_a_folder_are_not_named_either(tmp_path):
    (tmp_path / "ct7" / "study" / "Huber_Ida").mkdir(parents=True)
    (tmp_path / "ct7" / "study" / "Huber_Ida" / "Vogel^Eva 1.dcm").touch()
    text = "Vogel^Eva 1.dcm: no CT slice; see Huber_Ida"
    assert without_names(text, "x1", tmp_path / "ct7") == "x1: no CT slice; see x1"


def test_names_inside_a_folder_are_hidden_and_words_are_left_alone(tmp_path):
    series = tmp_path / "a" / "Mueller"
    series.mkdir(parents=True)
    (series / "Erika.dcm").write_text("")
    text = f"{series / 'Erika.dcm'}: a slice of Mueller is damaged; see Erika.dcm, not Muellerin"
    assert without_names(text, "c7", series) == "c7: a slice of c7 is damaged; see c7, not Muellerin"


def test_ordinary_words_numbers_and_the_id_itself_stay(tmp_path):
    text = "a MUELLER 7: was made from a slide with pixels 999 x 12, but the scan has 1; give --slides"
    for name in ("slide.svs", "scan.nii.gz", "999", "12.svs", "1.svs"):
        assert without_names(text, "a MUELLER 7", tmp_path / "slides" / name) == text
    assert without_names(text, "a MUELLER 7", tmp_path / "slides" / "MUELLER.svs") == text


def test_the_options_named_are_those_of_the_page(tmp_path):
    assert without_names("needs it; give --image FILE", "x", None) == "needs it; give --slides FILE"


def test_a_very_long_id_leaves_room_for_the_reason(tmp_path):
    assert without_names(f"{tmp_path / 'a.svs'}: is damaged", "i" * 3000, tmp_path / "a.svs").endswith(": is damaged")

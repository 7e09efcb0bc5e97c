"""Images of cases are found as `smmil prepare` names them."""

import pytest

from smmil.errors import DataError
from smmil.images.matching import find_case_images


def touched(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def found(folder, *ids):
    return {id_: o.path.relative_to(folder).as_posix() for id_, o in find_case_images(folder, ids).items()}


def test_images_lie_at_the_top_or_in_subfolders(tmp_path):
    touched(tmp_path, "a.svs", "centre_1/b.tif", "centre_1/c.nii.gz", "centre_2/d.svs", ".hidden/e.svs")
    assert found(tmp_path, "a", "b", "c", "centre_2/d", "e", "f") == {
        "a": "a.svs",
        "b": "centre_1/b.tif",
        "c": "centre_1/c.nii.gz",
        "centre_2/d": "centre_2/d.svs",
    }


def test_a_series_is_its_folder_and_not_searched(tmp_path):
    touched(tmp_path, "scans/a7/1.dcm", "scans/a7/b7/2.dcm")
    assert found(tmp_path, "a7", "b7") == {"a7": "scans/a7"}


def test_the_slide_is_the_file_beside_its_folder_and_the_first_of_two_files(tmp_path):
    touched(tmp_path, "a/Data0001.dat", "a.mrxs", "b.svs", "b.tif")
    assert found(tmp_path, "a", "b") == {"a": "a.mrxs", "b": "b.svs"}


def test_one_name_in_two_folders_is_refused_unless_the_id_or_the_top_decides(tmp_path):
    touched(tmp_path, "x/a.svs", "y/a.svs")
    with pytest.raises(DataError, match=r"case a could be x/a.svs and y/a.svs; give a table"):
        found(tmp_path, "a")
    assert found(tmp_path, "y/a") == {"y/a": "y/a.svs"}
    touched(tmp_path, "a.svs")
    assert found(tmp_path, "a") == {"a": "a.svs"}


def test_ids_never_become_paths(tmp_path):
    touched(tmp_path, "secret.svs", "slides/a.svs")
    assert found(tmp_path / "slides", "../secret", str(tmp_path / "secret.svs")) == {}

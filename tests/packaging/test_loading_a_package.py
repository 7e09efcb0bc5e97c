"""A package read back: what was changed, damaged or smuggled in is refused."""

import hashlib
import shutil

import pytest
from support.package_makers import resum

from smmil.errors import ConfigError, DataError
from smmil.files import read_json, write_json
from smmil.packaging import load_package


@pytest.fixture
def copy(package, tmp_path):
    shutil.copytree(package, tmp_path / "p")
    return tmp_path / "p"


def test_checksums_are_those_of_sha256sum(package):
    lines = dict(reversed(line.split("  ")) for line in (package / "SHA256SUMS").read_text().splitlines())
    assert lines.keys() == {path.name for path in package.iterdir()} - {"SHA256SUMS"}
    for name, told in lines.items():
        assert told == hashlib.sha256((package / name).read_bytes()).hexdigest()


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "recipe.json", "README.md"])
def test_a_changed_file_is_refused_by_name(copy, name):
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(content)
    with pytest.raises(DataError, match=f"{name}: is not the file that was packaged"):
        load_package(copy, trust_code=True)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "recipe.json"])
def test_a_missing_file_is_named(copy, name):
    (copy / name).unlink()
    with pytest.raises(DataError, match=f"{name} is missing"):
        load_package(copy, trust_code=True)


def test_a_file_that_is_not_listed_is_not_trusted(copy):
    lines = (copy / "SHA256SUMS").read_text().splitlines(keepends=True)
    for name in ("recipe.json", "config.json"):
        (copy / "SHA256SUMS").write_text("".join(line for line in lines if name not in line))
        with pytest.raises(DataError, match=f"does not list {name}"):
            load_package(copy, trust_code=True)


def test_files_of_the_hub_itself_do_no_harm(copy):
    (copy / ".gitattributes").write_text("*.safetensors filter=lfs")
    load_package(copy, trust_code=True)


@pytest.mark.parametrize("name", ["../config.json", "/etc/passwd", "a/b"])
def test_a_list_that_points_outside_is_refused(copy, name):
    with (copy / "SHA256SUMS").open("a") as sums:
        sums.write(f"{'0' * 64}  {name}\n")
    with pytest.raises(DataError, match="expected lines of sha256sum"):
        load_package(copy, trust_code=True)


def test_any_other_folder_is_refused_in_one_line(tmp_path, road):
    for folder in (tmp_path, road.run, tmp_path / "absent"):
        with pytest.raises(DataError, match="give a folder written by smmil package"):
            load_package(folder)


def test_weights_of_another_model_are_noticed_even_with_fresh_checksums(copy):
    config = read_json(copy / "config.json")
    write_json(copy / "config.json", config | {"weights": "0" * 64})
    resum(copy)
    with pytest.raises(DataError, match=r"not the weights that config\.json names"):
        load_package(copy, trust_code=True)


def test_another_recipe_is_noticed_even_with_fresh_checksums(copy):
    recipe = read_json(copy / "recipe.json")
    recipe["settings"]["tile_um"] = 17.0
    write_json(copy / "recipe.json", recipe)
    resum(copy)
    with pytest.raises(DataError, match="not the recipe the model was trained on"):
        load_package(copy, trust_code=True)


@pytest.mark.parametrize("damage", [[], {}, {"format": 1}, {"format": 2}, {"format": 1, "features": 3}])
def test_a_foreign_config_is_one_line(copy, damage):
    write_json(copy / "config.json", damage)
    resum(copy)
    with pytest.raises(DataError, match=r"not that of a package of this version|written as format 2"):
        load_package(copy, trust_code=True)


def test_code_outside_smmil_runs_only_when_it_is_trusted(copy, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"would run code outside smmil \(support.prepare_makers:mean_colour\)"):
        load_package(copy)
    (tmp_path / "planted.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = read_json(copy / "config.json")
    write_json(copy / "config.json", config | {"model": config["model"] | {"name": "planted:Model"}})
    resum(copy)
    with pytest.raises(ConfigError, match="planted:Model"):
        load_package(copy)
    assert not (tmp_path / "executed").exists()

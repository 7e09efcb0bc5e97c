"""What the header of the card says to the hub: a licence it knows, and no numbers that are too good."""

import pytest
import yaml

from smmil.errors import ConfigError
from smmil.files import read_json
from smmil.packaging import write_package, writing
from smmil.packaging.card import _model_card


@pytest.mark.parametrize("parts", [["train"], ["val"], ["test", "val"], ["other cases", "train"]])
def test_the_hub_ranks_no_model_by_cases_that_shaped_it(package, parts):
    config = read_json(package / "config.json")
    told = _model_card(config, config["evaluation"] | {"parts": parts}, "slide", None)
    assert not yaml.safe_load(told.split("---\n")[1]).keys() & {"model-index", "metrics"}
    assert "| AUROC of cases |" in told
    told = _model_card(config, config["evaluation"] | {"parts": ["other cases", "test"]}, "slide", None)
    assert yaml.safe_load(told.split("---\n")[1]).keys() >= {"model-index", "metrics"}


@pytest.mark.parametrize("licence", ["", "Apache 2.0", "MIT\nlicense: gpl", "../x", "-", "see /home/eva/LICENCE", "ä"])
def test_a_licence_is_an_identifier(road, tmp_path, licence):
    with pytest.raises(ConfigError, match=r"--licence .*: expected an identifier as in the SPDX list"):
        write_package(road.run, tmp_path / "p", licence=licence)
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize("licence", ["MIT", "apache-2.0", "GPL-2.0+", "cc-by-nc-4.0", "other"])
def test_identifiers_of_licences_are_taken(licence):
    writing._check_licence(licence)

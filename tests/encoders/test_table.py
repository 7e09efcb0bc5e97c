import numpy as np
import pytest

from smmil.encoders import encoder_info, list_encoders
from smmil.errors import ConfigError


def test_the_promised_encoders_are_there_with_their_lengths():
    assert {name: encoder_info(name).dim for name in list_encoders()} == {
        "efficientnet-lite0": 1280,
        "resnet18": 512,
        "resnet50": 2048,
        "vit_b_32": 768,
        "resnet50-bt": 2048,
    }


@pytest.mark.parametrize("name", list_encoders())
def test_every_row_says_what_a_user_must_know(name):
    row = encoder_info(name)
    assert row.pixels == 224
    assert len(row.mean) == len(row.std) == 3
    assert all(0 < value < 1 for value in row.mean + row.std)
    assert row.licence
    assert row.source
    assert row.citation
    assert row.files
    assert "://" not in row.source + row.citation + row.licence


def test_normalisations_are_those_of_each_release():
    lite, imagenet, lunit = map(encoder_info, ("efficientnet-lite0", "vit_b_32", "resnet50-bt"))
    np.testing.assert_allclose(np.multiply(lite.mean + lite.std, 255), [127] * 3 + [128] * 3)
    assert imagenet.mean + imagenet.std == (0.485, 0.456, 0.406, 0.229, 0.224, 0.225)
    assert lunit.mean == (0.70322989, 0.53606487, 0.66096631)
    assert lunit.std == (0.21716536, 0.26081574, 0.20723464)


def test_free_names_are_known_by_their_beginning():
    assert encoder_info("timm:resnet10t").network == "resnet10t"
    assert encoder_info("hf-hub:lab/net").files[0] == "lab--net.safetensors"
    for empty in ("timm:", "hf-hub:"):
        with pytest.raises(ConfigError, match="unknown name"):
            encoder_info(empty)


def test_a_mistyped_name_gets_a_suggestion():
    with pytest.raises(ConfigError, match="unknown name 'resnet5'; did you mean resnet50"):
        encoder_info("resnet5")

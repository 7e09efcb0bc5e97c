import re

import numpy as np
import pytest

from smmil.encoders import encoder_info, list_encoders
from smmil.errors import ConfigError

HUB = [name for name in list_encoders() if encoder_info(name).family == "hub"]


def test_the_promised_encoders_are_there_with_their_lengths():
    assert {name: encoder_info(name).dim for name in list_encoders()} == {
        "efficientnet-lite0": 1280, "resnet18": 512, "resnet50": 2048, "vit_b_32": 768, "resnet50-bt": 2048,
        "uni": 1024, "uni2-h": 1536, "conch": 512, "conch-v1.5": 768, "virchow": 2560, "virchow2": 2560,
        "h-optimus-0": 1536, "h-optimus-1": 1536, "gigapath": 1536, "phikon": 768, "phikon-v2": 1024, "hibou-b": 768,
        "hibou-l": 1024, "kaiko-vits8": 384, "kaiko-vitb8": 768, "kaiko-vitl14": 1024, "ctranspath": 768,
        "lunit-vits8": 384, "dinov2-b": 768, "dinov2-l": 1024, "rad-dino": 768,
    }  # fmt: skip


@pytest.mark.parametrize("name", list_encoders())
def test_every_row_says_what_a_user_must_know(name):
    row = encoder_info(name)
    assert row.pixels == {"conch": 448, "conch-v1.5": 448, "rad-dino": 518}.get(name, 224)
    assert len(row.mean) == len(row.std) == 3
    assert all(0 < value < 1 for value in row.mean + row.std)
    assert all((row.licence, row.source, row.citation, row.files, row.pooling))
    assert row.gate in ("none", "terms", "approval")
    assert "://" not in row.source + row.citation + row.licence


@pytest.mark.parametrize("name", HUB)
def test_a_revision_is_a_whole_commit_or_left_open(name):
    row = encoder_info(name)
    assert row.revision is None or re.fullmatch("[0-9a-f]{40}", row.revision)
    assert row.files[0].startswith(row.hub.replace("/", "--") + "/")


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

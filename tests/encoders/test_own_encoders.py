"""A network of your own is an encoder: given as an object, as a function, or by the name of a function."""

import sys

import numpy as np
import pytest
import torch
from support import prepare_makers as makers
from support.tiny_encoders import MeanColour, tiles
from torch import nn

from smmil.encoders import Encoder, load_encoder
from smmil.errors import ConfigError, DataError
from smmil.formats import read_bag, read_provenance
from smmil.prepare import plan, run

FACTS = {"pixels": 8, "mean": (0.5, 0.25, 0.0), "std": (0.5, 0.5, 0.25)}
OWN = """
import torch
from torch import nn

class Net(nn.Module):
    pixels, mean, std, mpp, licence = 8, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), 0.5, "mine"
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
    def forward(self, images):
        return self.scale * images.mean((2, 3))

def make() -> nn.Module:
    return Net()

net = Net()

def plain(images):
    return images.amax((2, 3))

plain.pixels, plain.mean, plain.std, plain.revision = 8, 0.0, 1.0, "v1"

def wrong() -> nn.Module:
    return 3
"""


class Doubled(nn.Module):
    def __init__(self, factor=2.0):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, images):
        return self.factor * images.mean((2, 3))


@pytest.fixture
def my_lab(tmp_path, monkeypatch):
    (tmp_path / "my_lab_encoders.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_lab_encoders"
    sys.modules.pop("my_lab_encoders", None)


def by_hand(images, factor, mean, std):
    colours = images.astype(np.float64).mean((1, 2)) / 255
    return (factor * (colours - mean) / std).astype(np.float16)


def test_a_module_with_its_facts_gives_the_features_worked_out_by_hand():
    encoder = load_encoder(Doubled(), device="cpu", **FACTS)
    images = tiles(5, 8)
    np.testing.assert_allclose(encoder.encode(images), by_hand(images, 2, FACTS["mean"], FACTS["std"]), atol=2e-3)
    assert (encoder.dim, encoder.pixels, encoder.mpp) == (3, 8, None)


def test_any_callable_works_with_a_revision():
    encoder = load_encoder(lambda images: images.mean((2, 3)), device="cpu", name="mean", revision="v2", **FACTS)
    images = tiles(3, 8)
    assert encoder.id == "mean@v2"
    np.testing.assert_allclose(encoder.encode(images), by_hand(images, 1, FACTS["mean"], FACTS["std"]), atol=1e-3)
    with pytest.raises(ConfigError, match="no weights that identify it; give a revision"):
        load_encoder(MeanColour(), device="cpu", **FACTS)


def test_other_weights_are_another_encoder():
    ids = {load_encoder(Doubled(factor), device="cpu", **FACTS).id for factor in (2.0, 2.0, 3.0)}
    assert len(ids) == 2
    assert all(id_.startswith("Doubled@") for id_ in ids)


@pytest.mark.parametrize("thing", ["make", "net", "Net"])
def test_a_name_leads_to_a_function_a_class_or_the_network_itself(my_lab, thing):
    encoder = load_encoder(f"{my_lab}:{thing}", device="cpu")
    images = tiles(4, 8)
    np.testing.assert_allclose(encoder.encode(images), by_hand(images, 2, 0, 1), atol=2e-3)
    assert (encoder.mpp, encoder.licence) == (0.5, "mine")


def test_a_function_with_attributes_is_the_network(my_lab):
    encoder = load_encoder(f"{my_lab}:plain", device="cpu")
    assert encoder.id == "plain@v1"
    assert encoder.encode(np.full((1, 8, 8, 3), 255, np.uint8)).tolist() == [[1, 1, 1]]


@pytest.mark.parametrize(
    ("facts", "problem", "message"),
    [
        ({}, ConfigError, "Doubled: does not state pixels, mean, std; give them by keyword or as attributes"),
        ({"pixels": 8, "mean": 0}, ConfigError, "does not state std"),
        ({**FACTS, "sdt": 1}, ConfigError, "unknown argument 'sdt'; did you mean std"),
        ({**FACTS, "std": (1, 0, 1)}, ConfigError, "std is .*; expected three numbers above 0"),
        ({**FACTS, "mean": (1, 2)}, ConfigError, "mean is .*; expected three numbers"),
        ({**FACTS, "dim": 4}, DataError, "gives 3 features, not 4 as stated"),
        ({**FACTS, "weights": "x.pth"}, ConfigError, "comes with its weights"),
    ],
)
def test_missing_or_wrong_facts_are_named(facts, problem, message):
    with pytest.raises(problem, match=message):
        load_encoder(Doubled(), device="cpu", **facts)


def test_facts_of_the_table_and_of_a_finished_encoder_are_not_changed(my_lab):
    with pytest.raises(ConfigError, match="its mean is in the table"):
        load_encoder("efficientnet-lite0", mean=(0, 0, 0))
    ready = load_encoder(Doubled(), device="cpu", **FACTS)
    assert load_encoder(ready) is ready
    with pytest.raises(ConfigError, match="states its pixels itself"):
        load_encoder(ready, pixels=16)
    with pytest.raises(ConfigError, match="states its autocast itself"):
        load_encoder(ready, autocast=True)
    with pytest.raises(ConfigError, match=r"gives int; expected a smmil\.encoders\.Encoder"):
        load_encoder(f"{my_lab}:wrong")


def test_a_map_instead_of_vectors_is_refused():
    with pytest.raises(DataError, match="not one vector per tile"):
        load_encoder(lambda images: images, device="cpu", revision="1", **FACTS)


def test_prepare_takes_an_object_and_stores_its_facts(tmp_path):
    square = (64, 64, 64, 64, makers.TISSUE)
    makers.write_slide(tmp_path / "slides" / "s.svs", makers.painted(256, 256, square))
    recipe = makers.Recipe(tile_um=32.0, tissue=makers.recipe().tissue)
    facts = {"name": "twice", "mpp": 0.5, "licence": "mine", "source": "here"}
    encoder = load_encoder(Doubled(), device="cpu", **FACTS, **facts)
    todo = plan([tmp_path / "slides"], tmp_path / "out", recipe, encoder=encoder)
    with pytest.raises(ConfigError, match=r"cannot leave this process; name it as package\.module:function"):
        run(todo, executor="processes", workers=1)
    assert run(todo).count("written") == 1
    stored = read_provenance(tmp_path / "out" / "bags" / "s.h5")
    assert (stored["encoder"], stored["licence"]) == (encoder.id, "mine")
    assert stored["encoder_facts"]["mean"] == list(FACTS["mean"])
    assert (stored["encoder_facts"]["dim"], stored["encoder_facts"]["mpp"]) == (3, 0.5)
    expected = by_hand(np.full((1, 8, 8, 3), makers.TISSUE, np.uint8), 2, FACTS["mean"], FACTS["std"])
    np.testing.assert_allclose(read_bag(tmp_path / "out" / "bags" / "s.h5").x.numpy(), expected, atol=5e-3)
    assert run(plan([tmp_path / "slides"], tmp_path / "out", recipe, encoder=encoder)).count("kept") == 1
    with pytest.raises(ConfigError, match="holds bags of another recipe"):
        run(plan([tmp_path / "slides"], tmp_path / "out", recipe, encoder=load_encoder(Doubled(3.0), **FACTS)))


def test_an_object_and_a_name_are_not_both_the_encoder(tmp_path):
    makers.write_slide(tmp_path / "slides" / "s.svs", makers.glass(64, 64))
    with pytest.raises(ConfigError, match="given as an object, while the recipe says"):
        plan([tmp_path / "slides"], tmp_path / "out", makers.recipe(), encoder=makers.mean_colour())
    assert isinstance(makers.mean_colour(), Encoder)

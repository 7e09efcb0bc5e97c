"""The programs of docs/own-loop.md run as they are printed."""

import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from support.roads import smmil

from smmil.bag import BagBatch
from smmil.encoders.networks import _prepare_torchvision
from smmil.losses import total_loss
from smmil.synthetic import synthetic_slides, write_synthetic

PAGE = Path(__file__).parents[1] / "docs" / "own-loop.md"


def programs():
    """Title of the section and code of every Python block of the page, in order."""
    parts = re.split(r"^##? (.*)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    sections = zip(parts[1::2], parts[2::2], strict=True)
    return {title: code for title, text in sections for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL)}


@pytest.fixture
def names(tmp_path, monkeypatch):
    """What the first program of the page leaves: smmil, train_bags and val_bags of a small study."""
    write_synthetic(tmp_path, synthetic_slides(18, seed=3, size=(12, 30), dim=6))
    monkeypatch.chdir(tmp_path)
    found = {}
    exec(programs()["In your own loop"], found)
    assert len(found["train_bags"]) == 12
    assert len(found["val_bags"]) == 6
    return found


def test_the_page_holds_one_program_per_way_of_at_most_30_lines():
    found = programs()
    ways = ["With the loop of smmil", "Plain PyTorch", "Lightning", "A map"]
    assert list(found) == ["In your own loop", "From your own arrays", *ways]
    assert all(len(code.splitlines()) <= 30 for code in found.values())


def test_arrays_in_files_become_the_bags_they_came_from(names, tmp_path):
    given = names["bags"]
    for bag in given:
        np.save(tmp_path / f"{bag.id}_feat.npy", bag.x.numpy())
        np.save(tmp_path / f"{bag.id}_xy.npy", bag.coords.numpy())
    (tmp_path / "labels.csv").write_text("slide,tumour\n" + "".join(f"{bag.id},{bag.y}\n" for bag in given))
    exec(programs()["From your own arrays"], names)
    for bag, made in zip(given, names["bags"], strict=True):
        assert (made.id, made.y) == (bag.id, bag.y)
        assert torch.equal(made.x, bag.x)
        assert made.graph.same_as(bag.graph)


def test_the_loss_in_plain_torch_is_total_loss(names):
    torch.manual_seed(0)
    (code,) = re.findall(r"^    (loss = .*\n)    (loss = .*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    names |= {"torch": torch, "batch": BagBatch.pack(names["train_bags"])}
    names["output"] = names["smmil"].create_model("clam", 6).train()(names["batch"])
    exec("".join(code), names)
    assert names["output"].losses
    torch.testing.assert_close(names["loss"], total_loss(names["output"], names["batch"].y)[0])
    output = names["smmil"].create_model("abmil", 6, n_classes=3)(names["batch"])
    several = torch.nn.functional.cross_entropy(output.logits, names["batch"].y)
    torch.testing.assert_close(several, total_loss(output, names["batch"].y)[0])


def test_the_loop_of_smmil(names):
    exec(programs()["With the loop of smmil"], names)
    assert len(names["result"].history) == 3
    assert {"bag", "instance", "energy", "threshold"} <= set(names["numbers"])
    assert [p.id for p in names["predictions"]] == [bag.id for bag in names["val_bags"]]


def test_plain_pytorch_changes_the_weights(names, capsys):
    torch.manual_seed(0)
    exec(programs()["Plain PyTorch"], names)
    torch.manual_seed(0)
    fresh = names["smmil"].create_model("sm_ap", 6)
    assert not torch.equal(names["model"].head.weight, fresh.head.weight)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["0", "1", "2"]


@pytest.mark.filterwarnings("ignore")
def test_lightning_trains_and_validates(names):
    if find_spec("torchvision"):
        _prepare_torchvision("lightning")  # its torchmetrics imports it
    pytest.importorskip("lightning", reason="lightning is not installed; it is in the dependency group dev")
    torch.manual_seed(0)
    exec(programs()["Lightning"], names)
    torch.manual_seed(0)
    fresh = names["smmil"].create_model("sm_ap", 6)
    assert not torch.equal(names["task"].model.head.weight.cpu(), fresh.head.weight)
    assert torch.isfinite(names["trainer"].callback_metrics["val_loss"])
    assert len(names["predictions"]) == 6


def test_predictions_of_an_own_loop_reach_a_map_and_a_report(names, tmp_path):
    names["predictions"] = names["smmil"].predict(names["smmil"].create_model("sm_ap", 6), names["val_bags"])
    exec(programs()["A map"], names)
    assert (tmp_path / "map.png").stat().st_size > 5000
    smmil("report", "predictions", "--out", "report.html")
    assert all(bag.id in (tmp_path / "report.html").read_text() for bag in names["val_bags"])

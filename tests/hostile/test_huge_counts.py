"""Weights that state a billion steps, layers, heads or pseudo-bags: one line that names file and option, at once."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.bags import grid_bag
from support.package_makers import resum
from support.sandbox import FAILURES, outcomes

from smmil.errors import ConfigError
from smmil.files import read_json, write_json
from smmil.models import _LARGEST, _LARGEST_OF_ANY, create_model, list_models, model_options
from smmil.predict.inference import load_trained, predict
from smmil.weights import read_weights, save_weights

SMALL = {"dim": 16, "att_dim": 4, "trans_dim": 16, "context_dim": 4, "query_dim": 4, "reduced": 16, "level_dim": 16}
SMALL |= {"hidden": 8, "clusters": 4, "layers": 2, "depth": 2, "heads": 2, "size": 8, "landmarks": 8}
COUNTED_OR_NONE = ("knn", "head_dim", "dim", "att_dim")
BAG = grid_bag(40, dim=6)


def small(name: str) -> dict[str, Any]:
    known = model_options(name)
    return {option: value for option, value in SMALL.items() if type(known.get(option, "")) in (int, type(None))}


def counts(name: str, chosen: dict[str, int] | int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every whole number among the options of a model, by its name, and the options that state it in excess."""
    for option, default in model_options(name).items():
        if type(default) is int or (default is None and option in COUNTED_OR_NONE):
            most = chosen if isinstance(chosen, int) else chosen.get(option, _LARGEST_OF_ANY)
            yield option, small(name) | {option: most}
        if option == "sm":
            most = chosen if isinstance(chosen, int) else chosen["steps"]
            yield "steps", small(name) | {"sm": {"where": "early", "alpha": 0.5, "steps": most}}


def written(folder, name: str, option: str, options: dict[str, Any]):
    """A run folder whose weights are those of a small model, and whose facts state these options."""
    built = small(name) | ({"sm": options["sm"] | {"steps": 2}} if "sm" in options else {})
    facts = {"features": {}, "epoch": 1, "config": "c", "split": "s"}
    shape = {"name": name, "in_dim": 6, "n_classes": 1, "options": options}
    path = folder / name / option / "checkpoints" / "best.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    save_weights(path, create_model(name, 6, **built).state_dict(), facts | {"model": shape})
    return path


def read(path) -> None:
    with torch.no_grad():
        predict(load_trained(path.parents[1]).model, [BAG])


def test_a_count_that_no_model_needs_is_refused_by_name(tmp_path):
    asked = [(n, option, o) for n in list_models() for option, o in counts(n, 10**9)]
    asked += [("sm_ap", option, o) for option, o in counts("sm_ap", 10**30)]  # more than torch can count
    files = [written(tmp_path, *one) for one in asked]
    found = outcomes(read, files, None, seconds=10, memory=1 << 30)
    for (name, option, _), outcome in zip(asked, found, strict=True):
        assert outcome.kind == "error", (name, option, outcome)
        assert f"model {name}: {option} must be at most" in outcome.detail, outcome


@pytest.mark.slow
def test_the_largest_counts_end_soon_and_in_little_memory(tmp_path):
    asked = [(n, option, o) for n in list_models() for option, o in counts(n, _LARGEST)]
    read(written(tmp_path, "abmil", "none", small("abmil")))  # here, so that no process imports what it needs again
    found = outcomes(read, [written(tmp_path, *one) for one in asked], None, seconds=10, memory=1 << 30)
    for one, outcome in zip(asked, found, strict=True):
        assert outcome.kind not in FAILURES, (one, outcome)
    assert {outcome.kind for outcome in found} == {"same", "error"}  # some fit the weights, some do not


def test_runs_and_packages_name_their_file(sound, refused, tmp_path):
    path = sound.run / "checkpoints/best.safetensors"
    tensors, note = read_weights(path)
    save_weights(path, tensors, note | {"model": note["model"] | {"options": {"dim": 8, "att_dim": 10**9}}})
    words = "att_dim must be at most 100,000, got 1,000,000,000"
    refused("predict", sound.run, "--out", tmp_path / "p", words=(path, words))
    config = read_json(sound.package / "config.json")
    write_json(sound.package / "config.json", config | {"model": config["model"] | {"in_dim": 10**9}})
    resum(sound.package)
    base = ("predict", "--model", sound.package, sound.manifest, "--out", tmp_path / "p")
    refused(*base, words=(sound.package / "config.json", "in_dim must be at most"))
    config = (
        "train",
        sound.run / "config.yaml",
        "--set",
        "model.name=sm_ap",
        "--set",
        "model.options.steps=1000000000",
    )
    refused(*config, "--out", tmp_path / "t", words=("steps must be at most 1,000",))


def test_code_that_is_trusted_has_limits_of_its_own():
    with pytest.raises(ConfigError, match="steps must be at most"):
        create_model("sm_ap", 6, steps=10**6)
    assert create_model("torch.nn:Bilinear", 1, 1, out_features=2 * _LARGEST_OF_ANY) is not None

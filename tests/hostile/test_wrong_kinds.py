"""Every value of our own YAML and JSON files replaced by values of other kinds: one line that names the file."""

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from support.package_makers import resum

from smmil.config import load_config
from smmil.data.splits import load_splits
from smmil.errors import DataError, SmmilError
from smmil.experiments.grid import check_models, toy_study
from smmil.experiments.study import load_study
from smmil.files import read_json, write_json
from smmil.formats.convert import LEDGER
from smmil.models import create_model, list_models
from smmil.packaging import load_package, write_package
from smmil.predict import load_run, predict_run
from smmil.predict.inference import rebuilt
from smmil.prepare import load_recipe
from smmil.report.sources import find_sources
from smmil.train import train
from smmil.weights import read_weights, save_weights, tensors_digest

ABSENT = object()
IN_TURN_OR_EACH = pytest.mark.parametrize("each", [False, pytest.param(True, marks=pytest.mark.slow)])
WRONG = (ABSENT, None, -1.5, "x", [[1]], {"a": 1})


def replaced(content: Any, wrong: tuple[Any, ...] = WRONG, each: bool = True) -> Iterator[tuple[str, Any]]:
    """The content with one value, at any depth, left out or replaced; and where that is.

    each  every wrong value at every place; else two of them in turn, so that all have been somewhere
    """
    for number, place in enumerate(places(content)):
        for value in wrong if each else (wrong[number % len(wrong)], wrong[(number + 2) % len(wrong)]):
            if value is ABSENT and not place:
                continue
            changed = {"": copy.deepcopy(content)}
            inner: Any = changed
            for step in ("", *place)[:-1]:
                inner = inner[step]
            last = ("", *place)[-1]
            if value is ABSENT:
                del inner[last]
            else:
                inner[last] = copy.deepcopy(value)
            yield f"{'.'.join(map(str, place))} = {'absent' if value is ABSENT else value!r}", changed[""]


def places(content: Any) -> Iterator[tuple[Any, ...]]:
    yield ()
    listed = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in listed:
        for below in places(value):
            yield key, *below


def refuse_or_read(read, where: str, what: str) -> None:
    """Nothing but an error in one line that names the file may come out, or what is read."""
    told = where
    try:
        read()
    except SmmilError as problem:
        told = str(problem)
    except Exception as problem:
        raise AssertionError(f"{what}: {type(problem).__name__}: {problem}") from problem
    assert where in told, f"{what}: {told}"
    assert "\n" not in told, f"{what}: {told}"
    assert len(told) < 1000, f"{what}: {told}"


STUDY = {
    "name": "small",
    "datasets": [
        {"name": "a", "manifest": "${NOWHERE}", "training": {"batch_size": 1}, "training_of": {"global": {}}},
        {"name": "p{}", "synthetic": {"kind": "slides", "options": {"dim": 4}}, "sweep": {"lesion": [1, 2]}},
    ],
    "variants": [
        "ABMIL",
        {"name": "Own {}", "from": "ABMIL", "options": {"dim": 6}, "sweep": {"att_dim": [3, 4]}},
        {"name": "P {}", "model": "abmil", "training": {"penalty": {}}, "sweep": {"penalty.weight": [0.1]}},
    ],
    "learning_rates": [0.01],
    "seeds": [0],
    "pairs": {"ABMIL": "ABMIL"},
    "tables": [{"name": "t", "metrics": ["bag_auroc"]}],
    "figures": [{"name": "f", "kind": "sweep", "setting": "att_dim"}],
}
RECIPE = {"kind": "ct", "tile_px": 8, "tile_mpp": 0.5, "tissue": {"share": 0.5}, "windows": ["brain"], "encoder": "x"}
CONFIG = {
    "data": {"manifest": "m.csv", "folds": 2},
    "model": {"name": "abmil", "options": {"dim": 4}, "n_classes": 2},
    "training": {"epochs": 1, "lr": 0.1, "penalty": {"weight": 0.1}},
}


def read_study(path):
    study = load_study(path)
    check_models(study, str(path))
    toy_study(study)


@pytest.mark.parametrize(
    ("content", "read"),
    [
        (STUDY, read_study),
        (RECIPE, load_recipe),
        (RECIPE, lambda path: load_recipe(path, {"tissue": {"share": 0.1}, "tile_um": 9.0})),
        (CONFIG, load_config),
        (CONFIG, lambda path: load_config(path, ["training.penalty.weight=0.2", "model.options.dim=2"])),
    ],
    ids=["study", "recipe", "recipe with changes", "config", "config with changes"],
)
@IN_TURN_OR_EACH
def test_yaml(tmp_path, content, read, each):
    path = tmp_path / "hostile.yaml"
    for what, changed in replaced(content, each=each):
        path.write_text(yaml.safe_dump(changed))
        refuse_or_read(lambda: read(path), str(path), what)


def test_splits(tmp_path):
    path = tmp_path / "splits.json"
    for what, changed in replaced([{"train": ["a", "b"], "val": ["c"], "test": []}]):
        path.write_text(json.dumps(changed))
        refuse_or_read(lambda: load_splits(path), str(path), what)
    path.write_text(json.dumps([{"train": "abc", "val": ["c"], "test": []}]))
    with pytest.raises(DataError, match="expected lists of ids"):
        load_splits(path)


def users_of_a_run(sound, tmp_path):
    """What reads the folder of a run."""

    def package():
        shutil.rmtree(tmp_path / "packed", ignore_errors=True)
        write_package(sound.run, tmp_path / "packed")

    def again():
        train(load_config(sound.config), sound.run)

    def predict(part):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        predict_run(sound.run, out=tmp_path / "out", part=part)

    def report():
        (sound.run / "predictions").mkdir(exist_ok=True)
        (sound.run / "predictions" / "a.npz").touch()
        find_sources([sound.run])

    return {
        "package": package,
        "train again": again,
        "predict val": lambda: predict("val"),
        "load_run": lambda: load_run(sound.run),
        "report": report,
    }


READERS_OF = {
    "run.json": ("package", "train again", "report"),
    "split.json": ("package", "train again", "predict val"),
    "config.yaml": ("train again", "load_run", "predict val"),
}


@IN_TURN_OR_EACH
@pytest.mark.parametrize("file", READERS_OF)
def test_files_of_a_run(sound, tmp_path, file, each):
    path = sound.run / file
    sound.config = tmp_path / "config.yaml"
    shutil.copy(sound.run / "config.yaml", sound.config)
    before = path.read_bytes()
    content = yaml.safe_load(before) if file.endswith("yaml") else json.loads(before)
    if file == "split.json":
        content = {part: ids[:2] for part, ids in content.items()}
    if file == "run.json":
        content = {key: content[key] for key in ("status", "manifest", "bags", "model")}
    if file == "config.yaml":
        content |= {"training": {"epochs": 1}}
    users = READERS_OF[file]
    for what, changed in replaced(content, (ABSENT, None, 3, "x", [], {"a": 1}), each):
        for name, use in users_of_a_run(sound, tmp_path).items():
            if name not in users:
                continue
            path.write_text(json.dumps(changed))
            refuse_or_read(use, str(sound.run), f"{name}: {what}")


@IN_TURN_OR_EACH
@pytest.mark.parametrize("name", ["best", "last", "last, not ended"])
def test_notes_of_weights(sound, tmp_path, name, each):
    sound.config = sound.run / "config.yaml"
    path = sound.run / "checkpoints" / f"{name.partition(',')[0]}.safetensors"
    tensors, note = read_weights(path)
    note.pop("versions", None)
    note["features"] = {}
    if name == "last, not ended":
        note["state"] = note["state"] | {"ended": None, "history": [], "sums": {}}
        note["identity"].pop("versions")
    for what, changed in replaced(note, (ABSENT, None, 3, "x", [], {"a": 1}), each):
        save_weights(path, tensors, changed)
        for who, use in users_of_a_run(sound, tmp_path).items():
            if who in (("train again",) if name != "best" else ("package", "predict val", "load_run")):
                refuse_or_read(use, str(sound.run), f"{who}: {what}")


@pytest.mark.parametrize("file", ["config.json", "recipe.json"])
def test_files_of_a_package(sound, file):
    path = sound.package / file
    settings = {"encoder": "x@1", "settings": {"kind": "ct", "windows": ["brain"]}}
    content = settings if file == "recipe.json" else read_json(path)
    for what, changed in replaced(content, (ABSENT, None, 3, "x", [], {"a": 1})):
        write_json(path, changed)
        resum(sound.package)
        refuse_or_read(lambda: load_package(sound.package).origin, str(sound.package), what)


NOT_JSON = {
    "nested": "[" * 100_000,
    "closed": "[" * 5000 + "]" * 5000,
    "objects": '{"a":' * 5000 + "1" + "}" * 5000,
    "digits": "9" * 5000,
    "empty": "",
    "NUL": "\0\0",
    "half": '{"a": ',
}


@pytest.mark.parametrize("text", NOT_JSON.values(), ids=NOT_JSON.keys())
def test_damaged_json_is_one_line(sound, tmp_path, text, refused):
    for path in (sound.run / "split.json", sound.run / "run.json", tmp_path / "splits.json"):
        before = path.read_bytes() if path.exists() else None
        path.write_text(text)
        with pytest.raises(DataError, match=path.name):
            read_json(path)
        words = {
            "split.json": ("predict", sound.run, "--out", tmp_path / "p"),
            "run.json": ("package", sound.run, "--out", tmp_path / "packed"),
            "splits.json": (
                "train",
                sound.run / "config.yaml",
                "--out",
                tmp_path / "t",
                "--set",
                f"data.splits={path}",
            ),
        }[path.name]
        refused(*words, words=(path,))
        if before is not None:
            path.write_bytes(before)
    for file in ("recipe.json", "config.json"):
        (sound.package / file).write_text(text)
        resum(sound.package)
        refused("predict", "--model", sound.package, sound.manifest, "--out", tmp_path / "p", words=(file,))


@pytest.mark.parametrize("text", ["", "{}", '{"train": [], "val": [], "test": []}', "[]"])
def test_a_finished_run_without_its_split_is_not_said_to_be_fine(sound, refused, tmp_path, text):
    (sound.run / "split.json").write_text(text)
    refused("train", sound.run / "config.yaml", "--out", sound.run, words=(sound.run / "split.json",))
    refused("predict", sound.run, "--out", tmp_path / "p", words=(sound.run,))
    refused("package", sound.run, "--out", tmp_path / "packed", words=(sound.run,))


@pytest.mark.parametrize("named", ["..", "absent.csv", "run.json"])
def test_a_run_that_names_no_table_is_named_with_what_it_names(sound, refused, tmp_path, named):
    config = sound.run / "config.yaml"
    settings = yaml.safe_load(config.read_text())
    settings["data"]["manifest"] = named
    config.write_text(yaml.safe_dump(settings))
    for words in (("predict", sound.run, "--out", tmp_path / "p"), ("drift", sound.run, "--out", tmp_path / "d")):
        refused(*words, words=(config, sound.run.parent if named == ".." else named))


SIZES = {"in_dim": 10**9, "n_classes": 10**9, "options": {"dim": 10**9, "att_dim": 4}}


@pytest.mark.parametrize("key", SIZES)
def test_sizes_are_compared_with_the_tensors_before_anything_is_built(sound, tmp_path, refused, key):
    config = read_json(sound.package / "config.json")
    write_json(sound.package / "config.json", config | {"model": config["model"] | {key: SIZES[key]}})
    resum(sound.package)
    base = ("predict", "--model", sound.package, sound.manifest, "--out", tmp_path / "p")
    refused(*base, words=(sound.package, "weights do not fit the model"))
    path = sound.run / "checkpoints/best.safetensors"
    tensors, note = read_weights(path)
    save_weights(path, tensors, note | {"model": note["model"] | {key: SIZES[key]}})
    refused("predict", sound.run, "--out", tmp_path / "p", words=(path, "weights do not fit the model"))


@pytest.mark.parametrize("name", list_models())
def test_every_model_is_rebuilt_from_its_weights(name):
    torch.manual_seed(0)
    model = create_model(name, 6, 2)
    shape = {"name": name, "in_dim": 6, "n_classes": 2, "options": {}}
    facts = {"model": shape, "features": {}, "epoch": 1, "config": "c", "split": "s"}
    again = rebuilt(model.state_dict(), facts, Path("w"), False).model
    assert all(p.device.type == "cpu" for p in [*again.parameters(), *again.buffers()])
    assert tensors_digest(again.state_dict()) == tensors_digest(model.state_dict())
    with pytest.raises(DataError, match="w: weights do not fit the model"):
        rebuilt(model.state_dict(), facts | {"model": shape | {"in_dim": 10**9}}, Path("w"), False)


def test_a_million_layers_are_not_built(sound, tmp_path, refused):
    path = sound.run / "checkpoints/best.safetensors"
    _, note = read_weights(path)
    shape = {"name": "trans_mil", "in_dim": 6, "n_classes": 1, "options": {"layers": 10**9, "dim": 8}}
    save_weights(path, {"a": torch.zeros(2)}, note | {"model": shape})
    refused("predict", sound.run, "--out", tmp_path / "p", words=(path, "weights do not fit the model"))


def test_labels_of_5000_digits(sound, tmp_path, refused):
    lines = sound.manifest.read_text().splitlines()
    header = lines[0].split(",")
    table = sound.manifest.with_name("digits.csv")
    for label in ("9" * 5000, "9" * 5000 + ".0", "9" * 30):
        row = lines[1].split(",")
        row[header.index("label")] = label
        table.write_text("\n".join([lines[0], ",".join(row), *lines[2:]]) + "\n")
        refused("train", "--manifest", table, "--model", "abmil", "--out", tmp_path / "t", words=(table, "label"))
        refused("predict", sound.run, "--manifest", table, "--out", tmp_path / "p", words=(table, "label"))
    table.unlink()


@pytest.mark.parametrize("text", ["[]", "{}", '{"files": 3}', "null", "[" * 5000])
def test_the_list_of_a_conversion(sound, tmp_path, refused, text):
    bag = next((sound.manifest.parent / "bags").glob("*.h5"))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / LEDGER).write_text(text)
    refused("convert", bag, "--to", "clam", "--out", tmp_path / "out", words=(tmp_path / "out" / LEDGER,))

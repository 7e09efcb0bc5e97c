"""Code outside smmil runs only on the user's word, and only if it is a model or an encoder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import prepare_makers as makers
from support.package_makers import resum
from typer.main import get_command

from smmil.cli import app
from smmil.config import load_config
from smmil.encoders import load_encoder
from smmil.errors import ConfigError
from smmil.experiments.study import load_study
from smmil.files import read_json, write_json
from smmil.models import create_model
from smmil.packaging import load_package, write_package
from smmil.predict import load_run, load_trained, predict_run
from smmil.prepare import load_recipe
from smmil.weights import read_weights, save_weights

CONFIG = "data: {{manifest: '{manifest}', folds: 2, val_share: 0.5}}\nmodel: {{name: '{name}', options: {{dim: 8}}}}\n"
STUDY = """
name: small
datasets: [{{name: tiny, synthetic: {{kind: slides, bags: 12, options: {{size: [10, 16], dim: 4, lesion: [0.1, 0.3]}}}},
            folds: 2, val_share: 0.5, test_share: 0.3}}]
variants: [{{name: Own, model: '{name}', options: {{dim: 6, att_dim: 3}}}}]
learning_rates: [0.01]
folds: [0]
training: {{epochs: 1, warmup_epochs: 0}}
"""
RECIPE = "{{kind: slide, tile_um: 32, tissue: {{method: none}}, encoder: '{encoder}'}}"
TRUST = "--trust-code"


def name_in_weights(run: Path, name: str) -> None:
    for path in (run / "checkpoints").glob("*.safetensors"):
        tensors, note = read_weights(path)
        if "model" in note:
            save_weights(path, tensors, note | {"model": note["model"] | {"name": name}})


def name_in_package(package: Path, name: str) -> None:
    config = read_json(package / "config.json")
    write_json(package / "config.json", config | {"model": config["model"] | {"name": name}})
    resum(package)


@pytest.fixture
def commands(sound, tmp_path):
    """Every command that can read the name of a model or encoder from a file, and that file."""

    def make(model: str, encoder: str):
        for path, text in (("c.yaml", CONFIG), ("s.yaml", STUDY), ("r.yaml", RECIPE)):
            told = text.format(manifest=sound.manifest, name=model, encoder=encoder)
            (tmp_path / path).write_text(told)
        name_in_weights(sound.run, model)
        name_in_package(sound.package, model)
        makers.write_slide(tmp_path / "slides/a.tif", makers.painted(128, 128, (0, 0, 128, 128, makers.TISSUE)))
        config, study, recipe, out = (tmp_path / name for name in ("c.yaml", "s.yaml", "r.yaml", "out"))
        experiments = [
            (study, "experiment", verb, study, "--out", tmp_path / "study", *toy)
            for verb in ("run", "status", "tables", "figures", "trust")
            for toy in ((), ("--toy",))
        ]
        return [
            (sound.run, "predict", sound.run, "--out", out, "--part", "val"),
            (sound.run, "package", sound.run, "--out", tmp_path / "packed"),
            (sound.run, "explain", sound.run, "--method", "single", "--out", tmp_path / "maps", "--part", "val"),
            (sound.package, "predict", "--model", sound.package, sound.manifest, "--out", tmp_path / "out2"),
            (config, "train", config, "--out", tmp_path / "trained", "--set", "training.epochs=1"),
            (config, "train", config, "--out", tmp_path / "trained2", "--dry-run"),
            (recipe, "prepare", tmp_path / "slides", "--recipe", recipe, "--out", tmp_path / "p"),
            (recipe, "prepare", tmp_path / "slides", "--recipe", recipe, "--out", tmp_path / "p", "--dry-run"),
            *experiments,
        ]

    return make


def test_no_command_that_takes_the_users_word_is_forgotten(commands):
    takes = {verb for verb, made in get_command(app).commands.items() if _takes_word(made)}
    assert takes == {words[0] for _, *words in commands("planted:Net", "planted:declared")}


def _takes_word(command):
    """Whether a command, or one of those below it, has the option."""
    below = getattr(command, "commands", {}).values()
    return any(TRUST in option.opts for option in command.params) or any(map(_takes_word, below))


def test_no_file_makes_a_command_import_anything(commands, planted, refused):
    for file, *words in commands("planted:Net", "planted:declared"):
        refused(*words, words=(file, "planted:", TRUST))
        assert not planted.imported.exists(), words


def test_with_the_users_word_every_command_runs_it(commands, planted, command):
    for _, *words in commands("planted:Net", "planted:declared"):
        code, told = command(*words, TRUST)
        assert code == 0, (words, told)
    assert planted.imported.exists()


@pytest.mark.parametrize("name", ["planted:touch", "planted:Plain", "planted:Path", "os:getpid", "planted:imported.x"])
def test_what_is_no_model_is_never_called(commands, planted, refused, name):
    encoder = "planted:undeclared" if name == "planted:Path" else name
    for _, *words in commands(name, encoder):
        if words[0] == "experiment" and words[1] != "run" and words[-1] != "--toy":
            continue  # reads results and loads no model
        refused(*words, TRUST, words=(name.partition(":")[0],))
    assert not planted.called.exists()


def test_names_on_the_command_line_need_no_further_word(sound, planted, tmp_path, command, refused):
    quick = [word for change in ("training.epochs=1", "data.folds=2") for word in ("--set", change)]
    base = ("train", "--manifest", sound.manifest, *quick)
    assert command(*base, "--model", "planted:Net", "--out", tmp_path / "a")[0] == 0
    assert command(*base, "--set", "model.name=planted:Net", "--out", tmp_path / "b")[0] == 0
    assert command("models", "planted:Net")[0] == 0
    refused("models", "planted:touch", words=("planted:touch", "nn.Module"))
    refused(*base, "--model", "planted:touch", "--out", tmp_path / "c", words=("planted:touch", "nn.Module"))
    refused("predict", tmp_path / "a", "--out", tmp_path / "p", words=(tmp_path / "a", TRUST))
    # the name on the command line wins over the file's, which is then of no account
    (tmp_path / "c.yaml").write_text(CONFIG.format(manifest=sound.manifest, name="elsewhere:Net"))
    assert command("train", tmp_path / "c.yaml", "--model", "abmil", "--out", tmp_path / "d", "--dry-run")[0] == 0
    assert not planted.called.exists()


def test_python_asks_for_the_word_at_every_door(sound, planted, tmp_path):
    name_in_weights(sound.run, "planted:Net")
    name_in_package(sound.package, "planted:Net")
    (tmp_path / "c.yaml").write_text(CONFIG.format(manifest=sound.manifest, name="planted:Net"))
    (tmp_path / "s.yaml").write_text(STUDY.format(name="planted:Net"))
    (tmp_path / "r.yaml").write_text("encoder: planted:declared\n")
    doors = [
        lambda **word: load_trained(sound.run, **word),
        lambda **word: load_run(sound.run, **word),
        lambda **word: predict_run(sound.run, out=tmp_path / "p", part="val", **word),
        lambda **word: write_package(sound.run, tmp_path / "w", **word),
        lambda **word: load_package(sound.package, **word),
        lambda **word: load_config(tmp_path / "c.yaml", **word),
        lambda **word: load_study(tmp_path / "s.yaml", **word),
        lambda **word: load_recipe(tmp_path / "r.yaml", **word),
    ]
    for door in doors:
        with pytest.raises(ConfigError, match=r"would run code outside smmil \(planted:"):
            door()
    assert not planted.imported.exists()
    for door in doors:
        door(trust_code=True)
    create_model("planted:Net", 4)  # a name in Python code is the word itself
    load_encoder("planted:declared", device="cpu")
    for name in ("touch", "Plain", "undeclared", "wrongly_declared"):
        with pytest.raises(ConfigError, match=f"planted:{name}"):
            load_encoder(f"planted:{name}", device="cpu")
    assert not planted.called.exists()


def test_the_word_for_one_name_does_not_cover_another(sound, planted):
    name_in_weights(sound.run, "planted:Net")
    with pytest.raises(ConfigError, match="would run code outside smmil"):
        load_trained(sound.run, trust_code="my_lab:Net")
    assert load_trained(sound.run, trust_code="planted:Net").facts["model"]["name"] == "planted:Net"


# Imported by worker processes and by the command line, but not before the command line begins.
SHADOWS = ("tempfile", "pickle", "random", "socket", "typer", "pandas")


@pytest.fixture
def in_a_folder_of_shadows(planted, tmp_path):
    """Runs Python in a folder whose files have the names of modules; afterwards none of them was imported."""
    here = tmp_path / "here"
    here.mkdir()
    (here / "planted.py").write_text(planted.source.read_text())
    for name in SHADOWS:
        (here / f"{name}.py").write_text(f"open({str(tmp_path / 'shadowed')!r}, 'a').write({name!r})\n")
    (here / "s.yaml").write_text(STUDY.format(name="abmil"))
    source = str(Path(sys.modules["smmil"].__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONSAFEPATH")

    def python(*words):
        return subprocess.run([sys.executable, *words], cwd=here, env=environment, capture_output=True, text=True)

    yield python
    assert not (tmp_path / "shadowed").exists(), (tmp_path / "shadowed").read_text()
    assert not planted.imported.exists()


@pytest.mark.parametrize("as_script", [True, False])
def test_the_working_folder_is_not_searched_by_the_command(in_a_folder_of_shadows, tmp_path, as_script):
    script = tmp_path / "smmil"  # as pip writes it
    script.write_text("import sys\nfrom smmil.cli import main\nif __name__ == '__main__':\n    sys.exit(main())\n")
    told = in_a_folder_of_shadows(*([str(script)] if as_script else ["-m", "smmil"]), "models", "planted:Net")
    assert (told.returncode, told.stderr.count("\n")) == (2, 1), told.stderr
    assert "No module named 'planted'" in told.stderr


@pytest.mark.slow
def test_the_working_folder_is_not_searched_by_worker_processes(in_a_folder_of_shadows):
    words = ["experiment", "run", "s.yaml", "--out", "study", "--executor", "processes", "--workers", "1"]
    told = in_a_folder_of_shadows("-m", "smmil", *words)
    assert told.returncode == 0, told.stderr

"""The command line from outside: words, exit codes, and the road from a table to predictions."""

import errno
import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

import smmil.cli
from smmil.cli.doctor import EXTRAS
from smmil.errors import DataError
from smmil.synthetic import synthetic_slides, write_synthetic

CONFIGS = Path(__file__).parents[2] / "configs"
TOY = ["training.epochs=1", "training.threads=1", "data.folds=2", "data.val_share=0.5"]
COMMAND = [sys.executable, "-c", "from smmil.cli import main; main()"]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return write_synthetic(tmp_path_factory.mktemp("study"), synthetic_slides(16, seed=3, size=(12, 25), dim=5))


@pytest.fixture
def smmil_main(monkeypatch, capsys):
    """Call the command line in this process; gives exit code, standard output and standard error."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["smmil", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            smmil.cli.main()
        told = capsys.readouterr()
        return left.value.code or 0, told.out, told.err

    return call


def sets(changes):
    return [word for change in changes for word in ("--set", change)]


def test_help_is_quick_because_it_loads_nothing_heavy():
    code = "import sys, smmil.cli; print({'torch', 'pandas', 'sklearn', 'h5py', 'matplotlib'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
    began = os.times().children_user  # of the processor: other programs do not count
    shown = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, check=True).stdout
    assert os.times().children_user - began < 3
    assert all(verb in shown for verb in smmil.cli.VERBS)


@pytest.mark.parametrize("verb", smmil.cli.VERBS)
def test_every_verb_teaches_by_example(verb, smmil_main):
    code, shown, _ = smmil_main(verb, "--help")
    assert code == 0
    assert f"smmil {verb}" in shown


def test_the_road_from_a_table_to_predictions(study, tmp_path, smmil_main):
    run, out = tmp_path / "run", tmp_path / "predictions"
    arguments = ["train", "--manifest", study, "--model", "abmil", "--out", run, *sets([*TOY, "model.options.dim=8"])]
    code, told, _ = smmil_main(*arguments)
    assert code == 0
    assert "all 1 epochs done" in told
    assert f"next: smmil predict {run}" in told
    code, _, noted = smmil_main(*arguments)
    assert (code, "finished already" in noted) == (0, True)
    code, told, _ = smmil_main("predict", run, "--out", out, "--part", "val")
    split = json.loads((run / "split.json").read_text())
    assert code == 0
    assert f"{len(split['val'])} written, 0 there already, 0 failed" in told
    assert sorted(p.stem for p in out.glob("*.npz")) == sorted(split["val"])


def test_a_partly_failed_prediction_exits_with_3_and_lists_the_failures(study, tmp_path, smmil_main):
    run = tmp_path / "run"
    smmil_main("train", "--manifest", study, "--model", "abmil", "--out", run, *sets(TOY))
    table = study.read_text().replace("bags/slide_0003.h5", "bags/gone.h5")
    (study.parent / "gone.csv").write_text(table)
    code, told, noted = smmil_main("predict", run, "--out", tmp_path / "p", "--manifest", study.parent / "gone.csv")
    assert code == 3
    assert "15 written, 0 there already, 1 failed" in told
    assert "gone.h5" in noted
    assert "failures.csv" in noted


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "absent.yaml", "--out", "r"], "absent.yaml: no such file"),
        (["train", "--manifest", "absent.csv", "--model", "abmil", "--out", "r"], "absent.csv: no such file"),
        (["train", "--manifest", "STUDY", "--model", "smap", "--out", "r"], "did you mean sm_ap"),
        (
            ["train", "--manifest", "STUDY", "--model", "abmil", "--out", "r", "--set", "training.epoch=1"],
            "did you mean epochs",
        ),
        (["train", "--manifest", "STUDY", "--model", "abmil", "--out", "r", "--fold", "9"], "only folds 0 to"),
        (["predict", "nowhere", "--out", "p"], "give the --out folder of smmil train"),
        (["models", "abmill"], "did you mean abmil"),
    ],
)
def test_a_mistake_is_one_line_without_traceback_and_exit_2(arguments, words, study, tmp_path, monkeypatch, smmil_main):
    monkeypatch.chdir(tmp_path)
    code, _, told = smmil_main(*[str(study) if a == "STUDY" else a for a in arguments])
    assert code == 2
    assert words in told
    assert told.startswith("error: ")
    assert told.count("\n") == 1


def test_our_own_mistakes_keep_their_traceback(monkeypatch):
    monkeypatch.setattr(smmil.cli, "app", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        smmil.cli.main()


def test_a_full_disk_is_said_in_one_line(monkeypatch, capsys):
    def full():
        raise OSError(errno.ENOSPC, "No space left on device", "runs/x")

    monkeypatch.setattr(smmil.cli, "app", full)
    with pytest.raises(SystemExit) as left:
        smmil.cli.main()
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith("error: the disk is full (runs/x)")


def test_an_error_of_a_verb_is_exit_2(monkeypatch, capsys):
    def fail():
        raise DataError("slide_17.h5: no instances")

    monkeypatch.setattr(smmil.cli, "app", fail)
    with pytest.raises(SystemExit) as left:
        smmil.cli.main()
    assert (left.value.code, capsys.readouterr().err) == (2, "error: slide_17.h5: no instances\n")


def test_a_dry_run_shows_all_settings_and_writes_nothing(study, tmp_path, smmil_main):
    code, shown, _ = smmil_main("train", "--manifest", study, "--model", "abmil", "--out", tmp_path / "r", "--dry-run")
    assert code == 0
    assert "epochs: 50" in shown
    assert not (tmp_path / "r").exists()


def test_models_are_listed_and_shown_with_their_defaults(smmil_main):
    code, listed, _ = smmil_main("models")
    assert code == 0
    assert "sm_ap" in listed
    assert "abmil" in listed
    _, shown, _ = smmil_main("models", "sm_ap")
    assert "where" in shown
    assert "'early'" in shown


def test_the_doctor_finds_this_machine_well(smmil_main):
    code, shown, _ = smmil_main("doctor")
    assert code == 0
    assert "two synthetic bags: ok" in shown
    assert "torch" in shown


def test_the_doctor_says_which_extra_a_command_needs_and_what_is_missing(smmil_main, monkeypatch):
    there = importlib.metadata.version

    def version(name):
        if name in ("nibabel", "starlette"):
            raise importlib.metadata.PackageNotFoundError(name)
        return there(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setenv("COLUMNS", "200")
    _, shown, _ = smmil_main("doctor")
    state = {row.split("│")[1].strip(): row.split("│")[3].strip() for row in shown.splitlines() if row.count("│") == 4}
    assert {name for name, words in state.items() if words.startswith("missing")} >= {"ct", "view"}
    assert state["ct"] == "missing: nibabel"
    assert state["slides"] == "complete"


def test_the_doctor_knows_every_extra_that_an_error_proposes():
    project = tomllib.loads((CONFIGS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(EXTRAS) == set(project["optional-dependencies"]) - {"all"}
    source = "".join(path.read_text(encoding="utf-8") for path in (CONFIGS.parent / "src").rglob("*.py"))
    proposed = set(re.findall(r"MissingExtra\([^,]+, \"(\w+)\"", source))
    assert len(proposed) >= 8
    assert proposed <= set(EXTRAS)


@pytest.mark.parametrize("name", sorted(p.name for p in CONFIGS.glob("*.yaml")))
def test_every_example_config_runs_at_toy_size(name, study, tmp_path, smmil_main):
    code, told, noted = smmil_main(
        "train", CONFIGS / name, "--out", tmp_path / "run", *sets([f"data.manifest={study}", *TOY])
    )
    assert code == 0, noted
    assert "all 1 epochs done" in told


def test_ctrl_c_saves_says_how_to_go_on_and_exits_with_130(study, tmp_path):
    changes = [
        "training.epochs=4000",
        "training.threads=1",
        "data.folds=2",
        "data.val_share=0.5",
        "model.options.dim=8",
    ]
    command = [
        *COMMAND,
        "train",
        "--manifest",
        str(study),
        "--model",
        "abmil",
        "--out",
        str(tmp_path / "run"),
        *sets(changes),
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "run/checkpoints/last.safetensors").exists() and process.poll() is None:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "everything is saved, the same command goes on from there" in told
    assert json.loads((tmp_path / "run/run.json").read_text())["status"] == "interrupted"


def test_a_folder_with_other_files_is_not_taken_for_a_run(study, tmp_path, smmil_main):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/metrics.csv").write_text("mine")
    code, _, noted = smmil_main("train", "--manifest", study, "--model", "abmil", "--out", tmp_path / "mine")
    assert code == 2
    assert "metrics.csv, which no run of smmil wrote" in noted
    assert (tmp_path / "mine/metrics.csv").read_text() == "mine"


@pytest.mark.parametrize("inside", [False, True])
def test_an_impossible_out_folder_is_one_line(study, tmp_path, smmil_main, inside):
    (tmp_path / "file").write_text("mine")
    out = tmp_path / "file" / "x" if inside else tmp_path / "file"
    code, _, noted = smmil_main("train", "--manifest", study, "--model", "abmil", "--out", out, *sets(TOY))
    assert code == 2
    assert [line for line in noted.splitlines() if "error:" in line or "Traceback" in line] == noted.splitlines()[-1:]
    assert noted.splitlines()[-1].startswith("error: ")
    assert (tmp_path / "file").read_text() == "mine"


def test_the_version_is_printed(smmil_main):
    from smmil import __version__

    code, told, _ = smmil_main("--version")
    assert (code, told.strip()) == (0, __version__)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda t: t.assign(path=t["path"].iloc[0]), "the same file under several ids"),
        (lambda t: t.rename(columns={"group": "label"}), "column 'label' is given twice"),
        (lambda t: t.assign(label="-1"), "correct these rows"),
    ],
)
def test_tables_that_would_mislead_are_refused_even_in_a_dry_run(study, tmp_path, smmil_main, change, word):
    import pandas as pd

    change(pd.read_csv(study, dtype=str, keep_default_na=False)).to_csv(tmp_path / "bad.csv", index=False)
    code, _, noted = smmil_main(
        "train", "--manifest", tmp_path / "bad.csv", "--model", "abmil", "--out", tmp_path / "run", "--dry-run"
    )
    assert code == 2
    assert word in noted


def test_a_dry_run_checks_the_options_of_the_model(study, tmp_path, smmil_main):
    code, _, noted = smmil_main(
        "train", "--manifest", study, "--model", "sm_ap", "--out", tmp_path / "run", "--dry-run",
        *sets(["model.options.wher=late"]),
    )  # fmt: skip
    assert code == 2
    assert "did you mean where" in noted


def test_commas_are_asked_for_by_name(study, tmp_path, smmil_main):
    (tmp_path / "semi.csv").write_text(study.read_text().replace(",", ";"))
    code, _, noted = smmil_main(
        "train", "--manifest", tmp_path / "semi.csv", "--model", "abmil", "--out", tmp_path / "r"
    )
    assert code == 2
    assert "commas" in noted


def test_a_threshold_is_a_number_and_comes_from_one_place(tmp_path, smmil_main):
    wrong = {"finite": ["--threshold", "nan"], "not both": ["--threshold", "0.5", "--validation", tmp_path]}
    for words, extra in wrong.items():
        code, _, noted = smmil_main("evaluate", tmp_path, *extra)
        assert code == 2
        assert words in noted


def test_a_very_long_id_still_has_a_file_name():
    from smmil.files import file_name

    names = {f"{file_name('x' * 300 + end)}.npz" for end in "ab"}
    assert len(names) == 2
    assert all(len(name) < 255 for name in names)

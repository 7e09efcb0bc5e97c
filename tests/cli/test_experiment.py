"""smmil experiment from outside: words and exit codes."""

import pytest
from typer.testing import CliRunner

from smmil.cli.experiment import app
from smmil.errors import ConfigError

STUDY = """
name: small
datasets:
  - name: tiny
    synthetic: {kind: slides, bags: 12, options: {size: [10, 16], dim: 4}}
    folds: 2
    val_share: 0.5
    test_share: 0.3
  - {name: absent, manifest: "${ABSENT_DATA}"}
variants:
  - {name: ABMIL, model: abmil, options: {dim: 6, att_dim: 3}}
learning_rates: [1e-2]
training: {epochs: 1}
tables:
  - {name: both, metrics: [inst_auroc, bag_auroc]}
figures:
  - {name: histograms, kind: histograms}
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    path = tmp_path_factory.mktemp("study") / "small.yaml"
    path.write_text(STUDY)
    return path


def call(*words):
    found = CliRunner().invoke(app, [str(w) for w in words])
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found


def test_run_status_tables_figures(study, tmp_path):
    assert "missing" in call("status", study, "--out", tmp_path).output
    first = call("run", study, "--out", tmp_path)
    assert first.exit_code == 0
    assert "absent: left out, no data; give --data ABSENT_DATA=manifest.csv" in first.output
    assert "2 runs done now, 0 there already, 0 failed" in first.output
    assert "0 runs done now, 2 there already" in call("run", study, "--out", tmp_path).output
    shown = call("status", study, "--out", tmp_path).output
    row = next(line for line in shown.splitlines() if "tiny" in line)
    assert [int(word) for word in row.split() if word.isdigit()] == [2, 0, 0, 0]
    assert "both.tex" in call("tables", study, "--out", tmp_path).output.replace("\n", "")
    assert "histograms-tiny.svg" in call("figures", study, "--out", tmp_path).output.replace("\n", "")


def test_failures_are_listed_and_the_exit_code_is_3(study, tmp_path):
    bad = study.with_name("bad.yaml")
    broken = "variants:\n  - {name: Broken, model: 'support.broken_model:Broken'}"
    bad.write_text(STUDY.replace("variants:", broken))
    found = call("run", bad, "--out", tmp_path, "--trust-code")
    assert found.exit_code == 3
    assert "2 runs done now, 0 there already, 2 failed" in found.output
    assert "ZeroDivisionError" in (tmp_path / "small/failures.csv").read_text()


@pytest.mark.parametrize("toy", [(), ("--toy",)])
def test_an_unknown_option_is_refused_before_any_training_naming_the_config(study, tmp_path, toy):
    bad = study.with_name("bad.yaml")
    bad.write_text(STUDY.replace("att_dim: 3}", "att_dim: 3, gatde: true}"))
    with pytest.raises(
        ConfigError, match=r"bad\.yaml: variant 'ABMIL': .* did you mean gated\? \(options of abmil: dim"
    ):
        call("run", bad, "--out", tmp_path, *toy)
    assert not list(tmp_path.rglob("*"))


def test_what_another_runner_did_is_told_apart(tmp_path, capsys):
    from smmil.cli.experiment import _print_report
    from smmil.experiments.runner import Report

    _print_report(Report(done=["a"], done_by_others=["b", "c"], before=["d"]), tmp_path)
    assert "1 runs done now, 2 done by another runner meanwhile, 1 there already, 0 failed" in capsys.readouterr().out


def test_tables_before_any_run_say_what_to_do(study, tmp_path):
    from smmil.errors import DataError

    with pytest.raises(DataError, match="begin with smmil experiment run"):
        call("tables", study, "--out", tmp_path)


def test_wrong_words_are_explained(study, tmp_path):
    with pytest.raises(ConfigError, match=r"expected NAME=manifest\.csv"):
        call("run", study, "--out", tmp_path, "--data", "nonsense")
    with pytest.raises(ConfigError, match="did you mean tiny"):
        call("run", study, "--out", tmp_path, "--set", "tny")
    with pytest.raises(ConfigError, match="expected key=value"):
        call("run", study, "--out", tmp_path, "--executor", "submitit", "--slurm", "gpu")
    with pytest.raises(ConfigError, match="--slurm: is for the executor submitit, not serial"):
        call("run", study, "--out", tmp_path, "--slurm", "slurm_partition=gpu")


def test_a_run_that_was_asked_to_stop_ends_with_the_code_of_the_signal(study, tmp_path, monkeypatch):
    from smmil.experiments import run
    from smmil.train import Interrupted

    def stopped(_config, _out):
        raise Interrupted("stopped before epoch 2", 2)

    monkeypatch.setattr(run, "train", stopped)
    assert call("run", study, "--out", tmp_path).exit_code == 130
    assert not list(tmp_path.glob("runs/*/failure.json"))

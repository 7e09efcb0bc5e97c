"""Settings: what is refused, what is told, and what counts as the same run."""

import subprocess
import sys

import pytest

from smmil.config import TrainConfig, _flatten, load_config
from smmil.errors import ConfigError

LEAST = "data:\n  manifest: bags.csv\nmodel:\n  name: abmil\n"


def write(folder, text):
    path = folder / "study.yaml"
    path.write_text(text)
    return path


def test_the_defaults_are_the_papers_protocol(tmp_path):
    training = load_config(write(tmp_path, LEAST)).training
    assert (training.epochs, training.optimiser, training.weight_decay) == (50, "adam", 0.0)
    assert (training.lr, training.warmup_epochs, training.warmup_start) == (1e-4, 5, 0.1)
    assert (training.select, training.class_weights, training.batch_size) == ("auroc", False, 4)


def test_a_misspelt_key_is_refused_with_its_path_and_the_nearest_name(tmp_path):
    path = write(tmp_path, LEAST + "training:\n  epoch: 3\n")
    with pytest.raises(ConfigError, match=r"study\.yaml: training\.epoch: unknown key; did you mean epochs"):
        load_config(path)


def test_a_misspelt_section_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match="trainnig: unknown key; did you mean training"):
        load_config(write(tmp_path, LEAST + "trainnig: {}\n"))


def test_every_wrong_key_is_told_at_once_in_one_line(tmp_path):
    path = write(tmp_path, LEAST + "training:\n  epochs: many\n  lr: -1\n  optimiser: adm\n")
    with pytest.raises(ConfigError) as told:
        load_config(path)
    message = str(told.value)
    assert "\n" not in message
    assert "training.epochs: expected a whole number, got 'many'" in message
    assert "training.lr: expected greater than 0, got -1" in message
    assert "training.optimiser: expected 'adam', 'adamw' or 'sgd', got 'adm'" in message


@pytest.mark.parametrize(
    ("key", "value"), [("epochs", "2.5"), ("epochs", "true"), ("class_weights", "1"), ("lr", "fast")]
)
def test_a_value_of_the_wrong_type_is_not_bent_into_shape(tmp_path, key, value):
    with pytest.raises(ConfigError, match=f"training.{key}: expected"):
        load_config(write(tmp_path, LEAST), [f"training.{key}={value}"])


def test_what_must_be_given_is_asked_for():
    with pytest.raises(ConfigError, match=r"data.manifest: missing.*model: missing|model: missing.*data"):
        load_config(None, ["data.fold=1"])


def test_overrides_win_over_the_file_and_leave_the_rest(tmp_path):
    path = write(tmp_path, LEAST + "  options:\n    dim: 64\n    gated: true\ntraining:\n  lr: 1e-4\n  epochs: 7\n")
    config = load_config(path, ["training.lr=1e-5", "model.options.dim=32", "training.clip_norm=null"])
    assert (config.training.lr, config.training.epochs, config.training.clip_norm) == (1e-5, 7, None)
    assert config.model.options == {"dim": 32, "gated": True}


def test_numbers_like_1e_5_are_numbers_everywhere(tmp_path):
    config = load_config(write(tmp_path, LEAST + "  options: {alpha: 1e-1}\n"), ["training.lr=3E-3"])
    assert config.model.options["alpha"] == 0.1
    assert config.training.lr == 3e-3


def test_an_override_without_its_section_is_told_which():
    with pytest.raises(ConfigError, match=r"--set 'lr=1': expected training\.lr=1"):
        load_config(None, ["lr=1"])


@pytest.mark.parametrize("override", ["training.lr", "training..lr=1", "=3", ".lr=1"])
def test_an_override_without_section_key_and_value_is_explained(override):
    with pytest.raises(ConfigError, match=r"expected section\.key=value"):
        load_config(None, [override])


def test_a_key_given_twice_is_an_error_and_not_the_last_one_wins(tmp_path):
    with pytest.raises(ConfigError, match="key 'name' is given twice"):
        load_config(write(tmp_path, LEAST + "  name: sm_ap\n"))


def test_broken_yaml_a_missing_file_and_a_list_are_one_line_each(tmp_path):
    for text in ("data: [", "- a\n- b\n"):
        with pytest.raises(ConfigError) as told:
            load_config(write(tmp_path, text))
        assert "\n" not in str(told.value)
    with pytest.raises(ConfigError, match="no such file"):
        load_config(tmp_path / "absent.yaml")


def test_yaml_cannot_make_objects(tmp_path):
    with pytest.raises(ConfigError, match="not valid YAML"):
        load_config(write(tmp_path, "data: !!python/object/apply:os.getcwd []\n"))


def test_paths_in_a_file_count_from_the_file_and_in_overrides_from_here(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    path = write(tmp_path, LEAST)
    assert load_config(path).data.manifest == str(tmp_path / "bags.csv")
    assert load_config(path, ["data.manifest=bags.csv"]).data.manifest == str(tmp_path / "here" / "bags.csv")


def test_a_config_cannot_be_changed_after_it_was_checked(tmp_path):
    config = load_config(write(tmp_path, LEAST))
    with pytest.raises(ValueError, match="frozen"):
        config.training.lr = 1.0


def test_dumped_settings_read_back_as_the_same_config(tmp_path):
    config = load_config(write(tmp_path, LEAST), ["training.lr=1.5e-7", "model.options.where=late"])
    again = tmp_path / "again.yaml"
    again.write_text(config.to_yaml())
    assert load_config(again) == config
    assert load_config(again).digest() == config.digest()


def test_only_what_changes_the_result_changes_the_hash(tmp_path):
    path = write(tmp_path, LEAST)
    plain = load_config(path)
    free = load_config(path, ["training.workers=2", "training.checkpoint_minutes=0", "data.manifest=x.csv"])
    assert free.digest() == plain.digest()
    assert plain.differing_keys(free) == []
    other = load_config(path, ["training.seed=1", "model.options.dim=64"])
    assert other.digest() != plain.digest()
    assert [key.split()[0] for key in plain.differing_keys(other)] == [
        "model.options",
        "model.options.dim",
        "training.seed",
    ]


def test_flat_keys_are_dotted():
    config = TrainConfig.model_validate({"data": {"manifest": "a"}, "model": {"name": "b", "options": {"c": {"d": 1}}}})
    assert _flatten(config)["model.options.c.d"] == 1


def test_importing_the_config_does_not_load_torch():
    code = "import smmil.config, sys; sys.exit('torch' in sys.modules or 'pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

"""A study becomes runs; each is named by what decides its result and by nothing else."""

import shutil
from pathlib import Path

import pytest
from support.studies import manifest_study, tiny_set, tiny_study, variant

from smmil.errors import ConfigError
from smmil.experiments.grid import _make_grid
from smmil.experiments.study import Synthetic, _protocol, load_study
from smmil.synthetic import synthetic_slides, write_synthetic


@pytest.fixture(scope="module")
def bags(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bags")
    return write_synthetic(folder, synthetic_slides(12, size=(10, 14), dim=4, seed=1))


def keys(study, out, **options):
    return [run.key for run in _make_grid(study, out, **options).runs]


def write_study(path, text):
    path.write_text(text)
    return path


def test_every_combination_is_one_run_with_a_readable_name(tmp_path):
    grid = _make_grid(tiny_study(seeds=[0, 7]), tmp_path)
    assert len(grid.runs) == len({r.key for r in grid.runs}) == 2 * 2 * 2 * 2  # variants, rates, seeds, folds
    assert grid.runs[0].label == "tiny · ABMIL · lr 0.01 · seed 0 · fold 0"


def test_the_same_study_has_the_same_names_anywhere(bags, tmp_path):
    moved = tmp_path / "elsewhere"
    shutil.copytree(bags.parent, moved)
    there = keys(manifest_study(moved / "manifest.csv"), tmp_path / "b")
    assert keys(manifest_study(bags), tmp_path / "a") == there


def test_names_of_data_sets_and_variants_are_not_part_of_the_content(tmp_path):
    renamed = tiny_study(datasets=[tiny_set("other")], variants=[variant("A"), variant("B", "sm_ap")])
    assert keys(tiny_study(), tmp_path) == keys(renamed, tmp_path)


@pytest.mark.parametrize("change", ["bag", "instance labels", "label", "patient"])
def test_another_content_of_the_data_is_another_run(bags, tmp_path, change):
    moved = tmp_path / "changed"
    shutil.copytree(bags.parent, moved)
    before = keys(manifest_study(moved / "manifest.csv"), tmp_path)
    if change == "bag":
        shutil.copy(moved / "bags/slide_0001.h5", moved / "bags/slide_0003.h5")
    elif change == "instance labels":
        (moved / "labels/slide_0001.npy").write_bytes((moved / "labels/slide_0000.npy").read_bytes())
    else:
        text = (moved / "manifest.csv").read_text()
        old, new = {"label": (",1,patient_0001", ",0,patient_0001"), "patient": ("patient_0001", "patient_99")}[change]
        assert old in text
        (moved / "manifest.csv").write_text(text.replace(old, new))
    assert not set(before) & set(keys(manifest_study(moved / "manifest.csv"), tmp_path))


@pytest.mark.parametrize("change", [{"training": {"epochs": 3}}, {"seeds": [1]}, {"learning_rates": [1e-5]}])
def test_another_setting_is_another_run(tmp_path, change):
    assert not set(keys(tiny_study(), tmp_path)) & set(keys(tiny_study(**change), tmp_path))


def test_what_does_not_decide_the_result_is_not_part_of_the_name(tmp_path):
    free = tiny_study(training={"epochs": 2, "warmup_epochs": 0, "workers": 2, "checkpoint_minutes": 1.0})
    assert keys(tiny_study(), tmp_path) == keys(free, tmp_path)


def test_the_same_run_under_two_names_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"ABMIL .* and .*Twin .* are the same run"):
        _make_grid(tiny_study(variants=[variant("ABMIL"), variant("Twin")]), tmp_path)


def test_data_sets_without_data_are_left_out_and_said_to_be(tmp_path, monkeypatch):
    monkeypatch.delenv("NOWHERE", raising=False)
    absent = tiny_set("absent", synthetic=None, missing="NOWHERE")
    grid = _make_grid(tiny_study(datasets=[tiny_set(), absent]), tmp_path)
    assert {run.facts["set"] for run in grid.runs} == {"tiny"}
    assert grid.left_out == ["absent: left out, no data; give --data NOWHERE=manifest.csv"]
    with pytest.raises(ConfigError, match="no data set to train on"):
        _make_grid(tiny_study(datasets=[absent]), tmp_path)


def test_a_variable_is_filled_in_from_the_command_or_the_environment(tmp_path, monkeypatch):
    text = "datasets: [{name: mine, manifest: '${MINE}'}]\nvariants: [ABMIL]\n"
    path = write_study(tmp_path / "s.yaml", text)
    assert load_study(path).datasets[0].missing == "MINE"
    (tmp_path / "a.csv").touch()
    monkeypatch.setenv("MINE", str(tmp_path / "a.csv"))
    assert load_study(path).datasets[0].manifest == str(tmp_path / "a.csv")
    assert load_study(path, {"MINE": str(tmp_path / "b.csv")}).datasets[0].manifest == str(tmp_path / "b.csv")


def test_a_path_in_the_file_counts_from_the_file(tmp_path):
    path = write_study(tmp_path / "s.yaml", "datasets: [{name: mine, manifest: m.csv}]\nvariants: [ABMIL]\n")
    assert load_study(path).datasets[0].manifest == str(tmp_path.resolve() / "m.csv")


def test_settings_go_from_the_general_to_the_special(tmp_path):
    study = tiny_study(
        datasets=[tiny_set(training={"batch_size": 8}, training_of={"global": {"batch_size": 2}, "B": {"epochs": 9}})],
        variants=[variant("A"), variant("B", "sm_ap"), variant("C", "max_pool", options={}, group="global")],
    )
    found = {run.facts["variant"]: run.config.training for run in _make_grid(study, tmp_path).runs}
    assert [(found[v].batch_size, found[v].epochs, found[v].threads) for v in "ABC"] == [
        (8, 2, 1),
        (8, 9, 1),
        (2, 2, 1),
    ]


def test_the_protocol_has_the_batch_sizes_of_the_paper(tmp_path):
    text = "datasets: [RSNA, PANDA, CAMELYON16]\nvariants: [ABMIL, TransMIL, SETMIL]\n"
    study = load_study(write_study(tmp_path / "s.yaml", text))
    small = {"missing": None, "folds": 2, "val_share": 0.5}
    tiny = [{"synthetic": Synthetic(kind="slides", bags=8, seed=seed), **small} for seed in range(3)]
    sets = [d.model_copy(update=there) for d, there in zip(study.datasets, tiny, strict=True)]
    runs = _make_grid(study.model_copy(update={"datasets": sets, "folds": [0]}), tmp_path).runs
    size = {(r.facts["set"], r.facts["variant"]): r.config.training.batch_size for r in runs}
    assert [size[s, v] for s in ("RSNA", "PANDA", "CAMELYON16") for v in ("ABMIL", "TransMIL", "SETMIL")] == [
        *(32, 32, 32), *(32, 32, 1), *(4, 1, 1)]  # fmt: skip
    assert all(r.config.training.class_weights == (r.facts["set"] == "RSNA") for r in runs)


def test_a_sweep_is_one_variant_per_value(tmp_path):
    text = "datasets: [slides]\nvariants: [{name: 'T={}', from: SmAP, sweep: {steps: [0, exact]}}]\n"
    study = load_study(write_study(tmp_path / "s.yaml", text))
    assert [(v.name, v.options["steps"], v.setting) for v in study.variants] == [
        ("T=0", 0, {"steps": 0}), ("T=exact", "exact", {"steps": "exact"})]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("datasets: [slides]\nvariants: [ABMLI]", "did you mean ABMIL"),
        ("datasets: [slide]\nvariants: [ABMIL]", "did you mean slides"),
        ("datasets: [slides]\nvariants: [ABMIL]\nlearning_rate: [1]", "learning_rates"),
        ("datasets: [slides]\nvariants: [ABMIL, ABMIL]", "'ABMIL' is given twice"),
        ("datasets: []\nvariants: [ABMIL]", "expected a list"),
        ("datasets: [slides]\nvariants: [ABMIL]\nreference: Sm", "unknown variant 'Sm'"),
        ("datasets: [slides]\nvariants: [ABMIL]\ntables: [{name: a, metrics: [inst_aurc]}]", "did you mean inst_auroc"),
        ("datasets: [slides]\nvariants: [ABMIL]\ntests: [bag_aurc]", "did you mean bag_auroc"),
        ("datasets: [slides]\nvariants: [ABMIL]\nseeds: []", "seeds"),
        ("datasets: [slides]\nvariants: [ABMIL]\ntables: [{name: ../x, metrics: [froc]}]", "name"),
        ("datasets: [slides]\nvariants: [ABMIL]\nfigures: [{name: a/b, kind: maps}]", "name"),
        ("datasets: [slides]\nvariants: [ABMIL]\nfigures: [{name: a, kind: maps, metrics: [x]}]", "unknown metric 'x'"),
        (
            "datasets: [slides]\nvariants: [ABMIL, {name: 'S {}', from: SmAP, sweep: {steps: [1]}}]\n"
            "figures: [{name: a, kind: sweep, setting: stepz}]",
            "did you mean steps",
        ),
    ],
)
def test_mistakes_in_a_study_are_named(tmp_path, text, words):
    with pytest.raises(ConfigError, match=words):
        load_study(write_study(tmp_path / "s.yaml", text))


def test_every_model_of_the_protocol_can_be_made():
    from smmil.models import create_model

    for definition in _protocol()["variants"].values():
        create_model(definition["model"], 8, **definition.get("options", {}))


def test_the_folder_of_the_study_is_only_read(bags, tmp_path):
    before = sorted(p.stat().st_mtime_ns for p in Path(bags).parent.rglob("*"))
    _make_grid(manifest_study(bags), tmp_path)
    assert before == sorted(p.stat().st_mtime_ns for p in Path(bags).parent.rglob("*"))

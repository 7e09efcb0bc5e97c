"""Weights in the authors' layouts give, here, what the authors' programs compute."""

import pickle
import re

import numpy as np
import pytest
import torch
from support.bags import STEP, grid_bag
from support.foreign_programs import DIM, PROGRAMS, clam, dsmil, dtfd, patchgcn, setmil
from typer.testing import CliRunner

from smmil.bag import Bag, BagBatch
from smmil.cli import app
from smmil.config import load_config
from smmil.errors import ConfigError, DataError
from smmil.foreign_weights import LAYOUTS, convert_weights, import_weights
from smmil.foreign_weights.programs import PROGRAMS as LAYOUT_TABLES
from smmil.models.dtfd_mil import _fixed_orders
from smmil.packaging import load_package, write_package
from smmil.predict import load_trained, predict, predict_run
from smmil.prediction import Prediction
from smmil.synthetic import synthetic_slides, write_synthetic
from smmil.train import train

CASES = [(layout, number) for layout, programs in PROGRAMS.items() for number in range(len(programs))]


def scattered(n=23):
    """A bag whose nearest neighbours are never in doubt."""
    bag = grid_bag(n, dim=DIM)
    coords = np.random.default_rng(0).integers(0, 40 * STEP, (n, 2))
    return Bag(bag.id, bag.x, torch.from_numpy(coords), bag.frame, bag.graph)


def slide(columns=34, rows=20, n=60):
    """A bag on a lattice, one patch per cell; wider than the smallest map of SETMIL."""
    cells = np.random.default_rng(1).choice(columns * rows, n, replace=False)
    coords = np.stack([cells % columns, cells // columns], 1)
    coords[:2] = [0, 0], [columns - 1, rows - 1]
    bag = grid_bag(n, dim=DIM)
    return Bag(bag.id, bag.x, torch.from_numpy(coords * STEP), bag.frame)


def saved(tmp_path, content, name="checkpoint.pt"):
    torch.save(content, tmp_path / name)
    return tmp_path / name


def plain(weights):
    return {k: dict(v) if isinstance(v, dict) else v for k, v in weights.items()}


def test_every_layout_has_a_program_to_agree_with():
    assert set(PROGRAMS) == set(LAYOUTS)


@pytest.mark.parametrize(("layout", "number"), CASES)
def test_imported_weights_compute_what_their_program_computes(layout, number, tmp_path):
    weights, run = PROGRAMS[layout][number]
    model = import_weights(saved(tmp_path, plain(weights)), layout).model
    if layout == "dtfd":
        model.pseudo_bags = 1  # the program draws its cut at random; one pseudo-bag has only one
    bag = slide() if layout == "setmil" else scattered()
    logits, scores = run(bag)
    with torch.no_grad():
        out = model(BagBatch.pack([bag]))
    torch.testing.assert_close(out.logits, logits, rtol=1e-4, atol=1e-5)
    if scores is not None:
        torch.testing.assert_close(out.scores[:, -scores.shape[1] :], scores, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("layout", "number"), CASES)
def test_every_published_weight_is_used_or_listed(layout, number, tmp_path):
    weights, _ = PROGRAMS[layout][number]
    found = import_weights(saved(tmp_path, plain(weights)), layout)
    total = _size(weights)
    kept = sum(p.numel() for p in found.model.state_dict().values())
    assert total == kept + sum(weights[name].numel() for name in found.dropped)


def _size(content):
    return sum(_size(v) if isinstance(v, dict) else v.numel() for v in content.values())


@pytest.mark.parametrize("wrap", [
    lambda w: {"state_dict": w, "epoch": 7},
    lambda w: {f"module.{k}": v for k, v in w.items()},
    lambda w: {"epoch": 7, "global_step": 1, "state_dict": {f"model.{k}": v for k, v in w.items()}},
    lambda w: {"model": w, "args": {"lr": 1e-4}},
])  # fmt: skip
def test_what_training_frameworks_put_around_the_weights_is_taken_off(wrap, tmp_path):
    weights, _ = PROGRAMS["clam"][0]
    direct = import_weights(saved(tmp_path, dict(weights)), "clam").model.state_dict()
    wrapped = import_weights(saved(tmp_path, wrap(dict(weights)), "wrapped.pt"), "clam").model.state_dict()
    assert all(torch.equal(direct[k], wrapped[k]) for k in direct)


def test_unused_weights_are_listed(tmp_path):
    found = import_weights(saved(tmp_path, dict(PROGRAMS["patchgcn"][0][0])), "patchgcn")
    assert set(found.dropped) == {"layers.0.norm.weight", "layers.0.norm.bias"}


@pytest.mark.parametrize("size", [24, 48, 60])
def test_the_map_of_setmil_has_the_side_its_positions_tell_and_is_cut_as_in_its_program(size, tmp_path):
    weights, run = setmil(depth=2, size=size)
    found = import_weights(saved(tmp_path, dict(weights)), "setmil")
    assert (found.shape["options"]["size"], found.shape["options"]["crop"]) == (size, True)
    bag = slide(columns=66)
    with torch.no_grad():
        out = found.model(BagBatch.pack([bag]))
    logits, scores = run(bag)
    assert int((scores == 0).sum()) > 0
    torch.testing.assert_close(out.logits, logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(out.scores, scores, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("change", "said"), [
    (lambda w: w.pop("pos_embed"), r"pos_embed is missing"),
    (lambda w: w.update(pos_embed=w["pos_embed"][:, :-5]), r"pos_embed has 140 rows, expected \(S/2\)² \+ 1"),
    (lambda w: w.update(pos_embed=w["pos_embed"] + 1), r"pos_embed is no table of sines"),
    (lambda w: [w.update({k: v[:1]}) for k, v in w.items() if "lookup" in k], r"all heads share one table"),
])  # fmt: skip
def test_settings_of_setmil_that_would_be_lost_are_refused(change, said, tmp_path):
    weights = dict(setmil(depth=2, size=24)[0])
    change(weights)
    with pytest.raises(DataError, match=said):
        import_weights(saved(tmp_path, weights), "setmil")


@pytest.mark.parametrize(("layout", "program", "link"), [
    ("dsmil", dsmil(1), torch.sigmoid), ("dsmil", dsmil(2), torch.sigmoid), ("dsmil", dsmil(3), torch.sigmoid),
    ("patchgcn", patchgcn(), torch.sigmoid), ("clam", clam("multi", classes=3), lambda x: x.softmax(1)),
])  # fmt: skip
def test_probabilities_are_those_of_the_program(layout, program, link, tmp_path):
    """A sigmoid per class where its program has one: multi-label DSMIL, hazards of Patch-GCN."""
    weights, run = program
    if layout == "patchgcn":
        weights["classifier.weight"] *= 0.01  # no hazard is 0 or 1
    convert_weights(saved(tmp_path, plain(weights)), layout, tmp_path / "m")
    bags = list(synthetic_slides(2, seed=0, size=(25, 30), dim=DIM))
    manifest = write_synthetic(tmp_path / "bags", bags)
    trained = load_trained(tmp_path / "m")
    write_package(tmp_path / "m", tmp_path / "p")
    packed = load_package(tmp_path / "p").trained
    np.testing.assert_allclose(predict(trained.model, [scattered()])[0].probs, link(run(scattered())[0])[0], rtol=1e-3)
    predict_run(tmp_path / "m", out=tmp_path / "predictions", manifest=manifest)
    for bag in bags:
        bag = Bag(bag.id, bag.x.half().float(), bag.coords, bag.frame, bag.graph)
        expected = link(trained.model(BagBatch.pack([bag])).logits.detach())[0]
        stored = Prediction.load(tmp_path / "predictions" / f"{bag.id}.npz")
        for found in (stored, predict(trained.model, [bag])[0], predict(packed.model, [bag])[0]):
            np.testing.assert_allclose(found.probs, expected, rtol=1e-4)


def test_probabilities_that_do_not_sum_to_one_need_their_link():
    Prediction("a", [0.9, 0.8], [1.0], meta={"link": "sigmoid"})
    for meta in ({}, {"link": "softmax"}):
        with pytest.raises(DataError, match="must sum to 1"):
            Prediction("a", [0.9, 0.8], [1.0], meta=meta)


@pytest.mark.parametrize(("theirs", "k"), [("AFS", 1), ("MaxS", 2), ("MaxMinS", 2)])
def test_what_a_checkpoint_of_dtfd_does_not_tell_is_given(theirs, k, tmp_path):
    weights, run = dtfd(0, theirs, k)
    given = {"distill": theirs.lower(), "pseudo_bags": 3} | ({} if theirs == "AFS" else {"k": k})
    model = import_weights(saved(tmp_path, plain(weights)), "dtfd", given).model
    bag = scattered()
    order = _fixed_orders(bag.n, 1)[0]
    cuts = np.array_split(order.numpy(), 3)
    with torch.no_grad():
        out = model(BagBatch.pack([bag]))
    torch.testing.assert_close(out.logits, run(bag, lambda _: cuts)[0], rtol=1e-4, atol=1e-5)


def test_options_that_the_checkpoint_tells_cannot_be_changed(tmp_path):
    checkpoint = saved(tmp_path, plain(PROGRAMS["dtfd"][0][0]))
    with pytest.raises(ConfigError, match="dim: not an option that a checkpoint of DTFD-MIL leaves open; distill, ps"):
        import_weights(checkpoint, "dtfd", {"dim": 3})
    with pytest.raises(ConfigError, match=r"CLAM.*leaves open; none is"):
        import_weights(checkpoint, "clam", {"dim": 3})
    with pytest.raises(ConfigError, match="distill: unknown value 'minmax'"):
        import_weights(checkpoint, "dtfd", {"distill": "minmax"})


def command(*words):
    return CliRunner().invoke(app, ["convert-weights", *map(str, words)])


def test_the_command_says_what_it_assumed_and_takes_it_from_the_user(tmp_path):
    checkpoint = saved(tmp_path, plain(PROGRAMS["dtfd"][0][0]))
    told = command("--from", "dtfd", checkpoint, "--out", tmp_path / "a")
    assert "not told by the checkpoint: distill=afs, pseudo_bags=4, k=1, splits=1; change with --set" in told.output
    told = command("--from", "dtfd", checkpoint, "--out", tmp_path / "b", "--set", "distill=maxs", "--set", "k=2")
    assert load_trained(tmp_path / "b").facts["model"]["options"] == {
        "dim": 512, "att_dim": 128, "residual_blocks": 0, "distill": "maxs", "pseudo_bags": 4, "k": 2, "splits": 1
    }  # fmt: skip
    told = command("--from", "dsmil", saved(tmp_path, dict(PROGRAMS["dsmil"][1][0])), "--out", tmp_path / "c")
    assert "probabilities: a sigmoid per class" in told.output
    told = command("--from", "dtfd", checkpoint, "--out", tmp_path / "d", "--set", "distill")
    assert "expected name=value" in str(told.exception)


class Settings:
    """Stands for the object with which Lightning stores the settings of TransMIL."""


def test_a_lightning_file_says_how_to_get_its_weights_out(tmp_path):
    weights = {f"model.{name}": value for name, value in PROGRAMS["transmil"][0][0].items()}
    lightning = saved(tmp_path, {"state_dict": weights, "hyper_parameters": Settings(), "epoch": 7}, "epoch=07.ckpt")
    with pytest.raises(DataError, match=r"weights alone.*holds more than weights") as told:
        import_weights(lightning, "transmil")
    recipe = re.search(r"python -c \"(.*)\"", str(told.value))[1]
    assert "weights_only=False" in recipe
    assert "\n" not in str(told.value)
    program = recipe.replace("FILE", str(lightning)).replace("weights.pt", str(tmp_path / "weights.pt"))
    exec(program)  # the sentence of the error must work as it stands
    assert import_weights(tmp_path / "weights.pt", "transmil").shape["in_dim"] == DIM


def test_another_models_weights_are_refused_by_name(tmp_path):
    with pytest.raises(DataError, match=r"not a checkpoint of DSMIL: unexpected attention_net.0.weight"):
        import_weights(saved(tmp_path, dict(PROGRAMS["clam"][0][0])), "dsmil")


def test_a_missing_weight_is_named(tmp_path):
    weights = {k: v for k, v in PROGRAMS["clam"][0][0].items() if k != "attention_net.0.bias"}
    with pytest.raises(DataError, match=r"CLAM.*: embed\.bias \(theirs: attention_net\.0\.bias\) is missing$"):
        import_weights(saved(tmp_path, weights), "clam")
    weights = {k: v for k, v in PROGRAMS["clam"][0][0].items() if "attention_c" not in k}
    with pytest.raises(DataError, match=r"score\.weight \(theirs: attention_net\.\[23\]\.attention_c\.weight\) is"):
        import_weights(saved(tmp_path, weights), "clam")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_our_names_lead_back_to_theirs(layout):
    """What the error calls theirs is a name that the rules read as ours, for every weight whose rule is a template."""
    table = LAYOUT_TABLES[layout]
    found, _ = table.renamed(_flat(PROGRAMS[layout][0][0]), "x")
    told = [table.both_names(name) for name in found]
    pairs = [re.fullmatch(r"(.*) \(theirs: (.*)\)", text).groups() for text in told if "theirs" in text]
    assert len(pairs) >= 0.6 * len(found)
    assert all(table._our_name(theirs.replace("[23]", "3")) == ours for ours, theirs in pairs)


def _flat(content, prefix=""):
    flat = {}
    for key, value in content.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def test_a_weight_of_another_size_is_named_both_ways(tmp_path):
    weights = dict(PROGRAMS["transmil"][0][0])
    weights["_fc2.bias"] = torch.zeros(7)
    with pytest.raises(DataError, match=r"TransMIL: head\.bias \(theirs: _fc2\.bias\) is 7, expected 2$"):
        import_weights(saved(tmp_path, weights), "transmil")


def test_dsmil_without_its_queries_says_so(tmp_path):
    weights = {k: v for k, v in PROGRAMS["dsmil"][0][0].items() if ".q." not in k}
    with pytest.raises(DataError, match=r"query\.weight \(theirs: b_classifier\.q\.weight\) is missing"):
        import_weights(saved(tmp_path, weights), "dsmil")


class Bomb:
    def __reduce__(self):
        return (print, ("executed",))


def test_code_in_a_checkpoint_is_not_run(tmp_path, capsys):
    (tmp_path / "bomb.pt").write_bytes(pickle.dumps({"state_dict": Bomb()}, protocol=2))
    torch.save({"state_dict": Bomb()}, tmp_path / "bomb2.pt")
    for name in ("bomb.pt", "bomb2.pt"):
        with pytest.raises(DataError, match="weights alone"):
            import_weights(tmp_path / name, "clam")
    assert "executed" not in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04 cut"])
def test_damaged_files_are_one_line(content, tmp_path):
    (tmp_path / "x.pt").write_bytes(content)
    with pytest.raises(DataError, match=r"x\.pt"):
        import_weights(tmp_path / "x.pt", "clam")


def test_missing_files_and_unknown_layouts_are_told(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        import_weights(tmp_path / "none.pt", "clam")
    with pytest.raises(ConfigError, match="did you mean transmil"):
        import_weights(tmp_path / "none.pt", "trans_mil")


def test_a_converted_model_predicts_on_a_manifest(tmp_path):
    weights, run = PROGRAMS["clam"][0]
    convert_weights(saved(tmp_path, dict(weights)), "clam", tmp_path / "clam")
    slides = list(synthetic_slides(3, seed=0, size=(12, 20), dim=DIM))
    manifest = write_synthetic(tmp_path / "bags", slides)
    done = predict_run(tmp_path / "clam", out=tmp_path / "predictions", manifest=manifest)
    assert not done.failed
    for bag in slides:
        found = Prediction.load(tmp_path / "predictions" / f"{bag.id}.npz")
        logits, scores = run(Bag(bag.id, bag.x.half().float(), bag.coords))
        np.testing.assert_allclose(found.probs, logits.softmax(1)[0], rtol=1e-4)
        np.testing.assert_allclose(found.scores, scores, rtol=1e-3, atol=1e-5)
    with pytest.raises(DataError, match="give them with --manifest"):
        predict_run(tmp_path / "clam", out=tmp_path / "other")


def test_parts_of_losses_and_parallel_training_are_taken_off(tmp_path):
    weights = {k.replace("attention_net.", "attention_net.module."): v for k, v in PROGRAMS["clam"][0][0].items()}
    weights["instance_loss_fn.labels"] = torch.zeros(2)
    lightning = {"state_dict": {f"model.module.{k}": v for k, v in weights.items()}}
    found = import_weights(saved(tmp_path, lightning), "clam")
    assert found.dropped == ["instance_loss_fn.labels"]


def test_weights_of_a_failed_training_are_refused_by_name(tmp_path):
    weights = {k: v.clone() for k, v in PROGRAMS["clam"][0][0].items()}
    weights["classifiers.bias"][0] = float("nan")
    with pytest.raises(DataError, match=r"classifiers\.bias holds NaN"):
        import_weights(saved(tmp_path, weights), "clam")


def test_a_converted_model_is_not_overwritten(tmp_path):
    one, other = PROGRAMS["clam"][0][0], {k: v + 1 for k, v in PROGRAMS["clam"][0][0].items()}
    for _ in range(2):
        convert_weights(saved(tmp_path, dict(one)), "clam", tmp_path / "m")
    with pytest.raises(DataError, match="another converted model"):
        convert_weights(saved(tmp_path, other), "clam", tmp_path / "m")
    config = load_config(None, ["data.manifest=none.csv", "model.name=abmil"])
    with pytest.raises(DataError, match="not trained here"):
        train(config, tmp_path / "m")

"""Bags of digits: true to scikit-learn's images, positive by a 9 alone, no image in two parts; small real studies."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import smmil
from smmil.data import Manifest
from smmil.data.splits import load_splits
from smmil.errors import ConfigError
from smmil.evaluate import instance_metrics
from smmil.experiments.runner import load_results, run_study
from smmil.experiments.study import Dataset, Study, Synthetic, Variant
from smmil.synthetic.digits import digit_bags, write_digits


def known_digits():
    images, digits = load_digits(return_X_y=True)
    return {(image / 16).astype(np.float32).tobytes(): (row, int(digits[row])) for row, image in enumerate(images)}


@pytest.mark.parametrize("together", [False, True])
def test_a_bag_is_positive_exactly_when_a_nine_is_in_it_and_its_place_is_known(together):
    known = known_digits()
    bags = digit_bags(40, together=together)
    assert [bag.y for bag in bags] == [index // 5 % 2 for index in range(40)]
    for bag in bags:
        nines = [known[row.numpy().tobytes()][1] == 9 for row in bag.x]
        assert nines == bag.y_inst.bool().tolist()
        assert any(nines) == bool(bag.y)


def test_bags_of_different_parts_share_no_image_and_splits_follow_the_parts(tmp_path):
    known = known_digits()
    bags = digit_bags(40)
    used = {bag.id: {known[row.numpy().tobytes()][0] for row in bag.x} for bag in bags}
    splits = load_splits(write_digits(tmp_path, bags).with_name("splits.json"))
    assert sorted(id_ for split in splits for id_ in split.test) == sorted(used)
    for split in splits:
        train, val, test = (set().union(*(used[i] for i in part)) for part in (split.train, split.val, split.test))
        assert (train & val) | (train & test) | (val & test) == set()
        assert {bag.y for bag in bags if bag.id in split.val} == {0, 1}


def test_nines_touch_only_where_they_lie_together():
    def joined(bag):
        known = bag.y_inst.nonzero().flatten().tolist()
        index = torch.stack([bag.graph.dense()[i, known] for i in known])
        return len(known) == 1 or bool((index > 0).any(1).all())

    positive = [bag for bag in digit_bags(80, together=True) if bag.y]
    assert all(map(joined, positive))
    scattered = [bag for bag in digit_bags(80) if bag.y]
    assert not all(map(joined, scattered))


def test_digits_are_the_same_again_and_others_with_another_seed(tmp_path):
    once, again, other = digit_bags(12), digit_bags(20)[:12], digit_bags(12, seed=1)
    assert all(torch.equal(a.x, b.x) for a, b in zip(once, again, strict=True))
    assert not all(a.n == b.n and torch.equal(a.x, b.x) for a, b in zip(once, other, strict=True))
    manifest = Manifest.read(write_digits(tmp_path, once))
    manifest.check()
    assert torch.equal(manifest.bag(once[7].id).x, once[7].x)
    for wrong in ({"nines": (0, 3)}, {"nines": (1, 40)}, {"parts": 1}, {"size": (30, 400)}):
        with pytest.raises(ConfigError, match="no such set"):
            digit_bags(4, **wrong)


def test_forty_bags_of_digits_run_through_a_study_whose_folds_test_others(tmp_path):
    manifest = write_digits(tmp_path / "set", digit_bags(40, size=(8, 12), nines=(1, 3)))
    splits = str(manifest.with_name("splits.json"))
    dataset = Dataset(name="digits", manifest=str(manifest), splits=splits)
    variant = Variant(name="ABMIL", model="abmil", options={"dim": 16})
    short = {"learning_rates": [1e-3], "folds": [0, 1], "training": {"epochs": 1, "warmup_epochs": 1}}
    study = Study(name="small", datasets=[dataset], variants=[variant], **short)
    assert run_study(study, tmp_path / "out").failed == {}
    found = load_results(study, tmp_path / "out")
    assert list(found["n_test"]) == [8, 8]
    assert set(found["test"]) == {"rotate"}


@pytest.mark.slow
def test_a_nine_is_learned_from_labels_of_bags():
    bags = digit_bags(120)
    done = smmil.fit("sm_instance", bags[:90], bags[90:100], epochs=40, lr=1e-3, batch_size=1, seed=0, device="cpu")
    assert instance_metrics(smmil.predict(done.model, bags[100:]), pool="positive_bags")["auroc"] > 0.8


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "options"), [("slides", {"size": [20, 40]}), ("scans", {"slices": [10, 20]})])
def test_forty_synthetic_bags_of_each_contrast_run_through_a_rotating_study(tmp_path, kind, options):
    spec = [Synthetic(kind=kind, bags=40, options={**options, "contrast": c}) for c in (0.6, 1.0, 1.4)]
    sets = [Dataset(name=f"{kind} {s.options['contrast']}", synthetic=s, folds=3, test="rotate") for s in spec]
    variants = [Variant(name=m, model=m, options={"dim": 16}) for m in ("sm_gcn", "sm_instance")]
    short = {"learning_rates": [1e-3], "training": {"epochs": 2, "warmup_epochs": 1}}
    study = Study(name="small", datasets=sets, variants=variants, **short)
    assert run_study(study, tmp_path / "out").failed == {}
    assert load_results(study, tmp_path / "out").groupby(["set", "variant"])["n_test"].sum().eq(40).all()

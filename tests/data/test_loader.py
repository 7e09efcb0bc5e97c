import os
import random
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from smmil.bag import Bag
from smmil.data import BagDataset, Manifest, batches, epoch_order
from smmil.errors import ConfigError, DataError
from smmil.formats import write_bag
from smmil.synthetic import synthetic_slides, write_synthetic


def listed(dataset, **options):
    order = epoch_order(len(dataset), 3, 1)
    return list(batches(dataset, batch_size=3, order=order, **options))


def same(a, b):
    parts = all(torch.equal(getattr(a, f), getattr(b, f)) for f in ("x", "coords", "offsets", "y", "y_inst"))
    graphs = all(torch.equal(getattr(a.graph, f), getattr(b.graph, f)) for f in ("indptr", "indices", "weight"))
    return parts and graphs and a.ids == b.ids and a.frames == b.frames and a.x.dtype == b.x.dtype


def all_same(first, second):
    return len(first) == len(second) and all(same(a, b) for a, b in zip(first, second, strict=True))


def copy_of(study, folder):
    """A study of its own that a test may damage."""
    bags = synthetic_slides(6, seed=9, size=(20, 30), dim=8)
    return Manifest.read(write_synthetic(folder, bags))


def test_an_epoch_visits_every_bag_once_in_an_order_of_its_own():
    orders = [epoch_order(50, seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert epoch_order(5, 0, 0) == epoch_order(5, 0, 0)


def test_batches_hold_the_bags_of_the_order_as_they_lie_in_the_files(study):
    manifest = Manifest.read(study)
    order = [4, 0, 7, 2]
    first, second = batches(BagDataset(manifest), batch_size=3, order=order)
    assert first.ids + second.ids == tuple(manifest.ids[i] for i in order)
    for batch in (first, second):
        for id_, x, y, labels in zip(batch.ids, batch.split(batch.x), batch.y, batch.split(batch.y_inst), strict=True):
            bag = manifest.bag(id_)
            assert torch.equal(x, bag.x)
            assert int(y) == manifest.labels[id_]
            assert labels.tolist() == np.load(manifest.instance_labels_of(id_)).tolist()


@pytest.mark.parametrize("cache", [True, False])
def test_the_number_of_workers_and_the_cache_change_nothing(study, cache):
    manifest = Manifest.read(study)
    expected = listed(BagDataset(manifest, cache=False))
    dataset = BagDataset(manifest, cache=cache)
    for workers in (1, 2, 2, 0):
        assert all_same(listed(dataset, workers=workers), expected)


def test_resuming_gives_the_rest_without_reading_the_start(study, monkeypatch):
    manifest = Manifest.read(study)
    expected, read = listed(BagDataset(manifest)), []
    whole = Manifest.bag
    monkeypatch.setattr(Manifest, "bag", lambda self, id_, **o: read.append(id_) or whole(self, id_, **o))
    assert all_same(listed(BagDataset(manifest), start=2), expected[2:])
    assert read == [id_ for batch in expected[2:] for id_ in batch.ids]
    assert listed(BagDataset(manifest), start=4) == []


def test_loading_leaves_every_global_random_state_alone(study):
    torch.manual_seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    listed(BagDataset(Manifest.read(study)), workers=2)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before[1:]


def test_the_cache_reads_once_and_stops_at_its_limit(study, monkeypatch):
    manifest, read = Manifest.read(study), []
    whole = Manifest.bag
    monkeypatch.setattr(Manifest, "bag", lambda self, id_, **o: read.append(id_) or whole(self, id_, **o))
    dataset = BagDataset(manifest)
    listed(dataset)
    listed(dataset)
    assert len(read) == len(dataset)
    small = BagDataset(manifest, cache_bytes=1)
    small[0]
    small[0]
    assert len(read) == len(dataset) + 2


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_bag_gives_the_same_clean_error_from_a_worker(study, tmp_path, workers):
    manifest = copy_of(study, tmp_path)
    path = manifest.path_of(manifest.ids[3])
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(DataError) as caught:
        listed(BagDataset(manifest), workers=workers)
    assert str(caught.value).startswith(f"{path}: not readable")
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize("workers", [0, 2])
def test_another_feature_width_is_refused_with_both_bags(study, tmp_path, workers):
    manifest = copy_of(study, tmp_path)
    bag = manifest.bag(manifest.ids[0])
    write_bag(manifest.path_of(bag.id), Bag(bag.id, torch.ones(bag.n, 5), bag.coords, bag.frame))
    with pytest.raises(DataError, match=r"slide_0000\.h5: 5 features per instance, but bag slide_0001 has 8"):
        list(batches(BagDataset(manifest), batch_size=1, order=[1, 0], workers=workers))


def test_a_killed_worker_changes_nothing_and_does_not_interrupt_the_caller(study, monkeypatch, caplog, tmp_path):
    """A worker dies while the main process is busy with the first batch."""
    manifest, flag = Manifest.read(study), tmp_path / "busy"
    expected, main, whole = listed(BagDataset(manifest)), os.getpid(), Manifest.bag

    def deadly(self, id_, **options):
        if os.getpid() != main and id_ == expected[2].ids[1]:
            while not flag.exists():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(self, id_, **options)

    monkeypatch.setattr(Manifest, "bag", deadly)
    arrived = []
    for batch in batches(BagDataset(manifest), batch_size=3, order=epoch_order(10, 3, 1), workers=2):
        flag.touch()
        until = time.monotonic() + 0.4
        while not arrived and time.monotonic() < until:
            time.sleep(0.01)
        arrived.append(batch)
    assert all_same(arrived, expected)
    assert "worker failed" in caplog.text


def test_bags_from_workers_hold_no_file_handles(study):
    manifest = Manifest.read(study)
    dataset = BagDataset(manifest)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    listed(dataset, workers=2)
    after = len(os.listdir("/proc/self/fd")) if before else 0
    assert after - before < len(dataset)


def test_unknown_bags_and_senseless_options_are_refused(study):
    manifest = Manifest.read(study)
    with pytest.raises(DataError, match="no bag 'slide_9'"):
        BagDataset(manifest, ["slide_9"])
    with pytest.raises(ConfigError, match="batch_size=0"):
        batches(BagDataset(manifest), batch_size=0, order=[0])


@pytest.mark.parametrize("workers", [0, 2])
def test_without_instance_labels_the_same_bags_come_and_no_label_file_is_needed(study, tmp_path, workers):
    manifest = copy_of(study, tmp_path)
    expected = [replace(batch, y_inst=None) for batch in listed(BagDataset(manifest))]
    for id_ in manifest.ids:
        manifest.instance_labels_of(id_).unlink()
    bare = listed(BagDataset(manifest, instance_labels=False), workers=workers)
    assert all(batch.y_inst is None for batch in bare)
    assert [batch.ids for batch in bare] == [batch.ids for batch in expected]
    assert all(torch.equal(a.x, b.x) and torch.equal(a.y, b.y) for a, b in zip(bare, expected, strict=True))
    with pytest.raises(DataError, match="no such file; the column instance_labels of the table names it"):
        listed(BagDataset(manifest), workers=workers)


def test_instance_labels_inside_a_bag_file_are_left_out_when_they_are_not_wanted(study, tmp_path):
    manifest = copy_of(study, tmp_path)
    bag = manifest.bag(manifest.ids[0])
    write_bag(manifest.path_of(bag.id), bag, graph="grid")
    manifest.table["instance_labels"] = ""
    alone = Manifest(manifest.table, manifest.folder, manifest.name)
    assert torch.equal(alone.bag(bag.id).y_inst, bag.y_inst)
    assert alone.bag(bag.id, instance_labels=False).y_inst is None

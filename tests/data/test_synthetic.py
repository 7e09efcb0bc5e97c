import numpy as np
import pytest
import torch
from scipy.ndimage import label
from sklearn.metrics import roc_auc_score

from smmil.data import Manifest
from smmil.errors import ConfigError
from smmil.formats import read_provenance
from smmil.synthetic import synthetic_scans, synthetic_slides, write_synthetic
from smmil.synthetic.features import _encoder
from smmil.synthetic.slides import _blobs, _isolated_cells, _tissue

TOUCHING = np.ones((3, 3))


def equal_bags(a, b):
    return (
        a.id == b.id
        and a.y == b.y
        and all(torch.equal(getattr(a, f), getattr(b, f)) for f in ("x", "coords", "y_inst"))
    )


@pytest.mark.parametrize("make", [synthetic_slides, synthetic_scans])
def test_a_bag_depends_on_seed_and_number_only(make):
    few, many, other = make(3, seed=4, dim=8), make(6, seed=4, dim=8), make(3, seed=5, dim=8)
    assert all(equal_bags(a, b) for a, b in zip(few, many, strict=False))
    assert not any(torch.equal(a.x, b.x) for a, b in zip(few, other, strict=True))


def test_the_global_random_state_has_no_part_in_it():
    np.random.seed(0)
    torch.manual_seed(0)
    first = synthetic_slides(2, dim=8)
    np.random.seed(1)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    assert all(equal_bags(a, b) for a, b in zip(first, synthetic_slides(2, dim=8), strict=True))
    assert torch.equal(torch.get_rng_state(), state)


def test_sizes_labels_and_lesion_shares_are_as_asked():
    bags = synthetic_slides(20, size=(100, 140), dim=4, lesion=(0.1, 0.2), positive=0.25)
    assert all(100 <= b.n <= 140 for b in bags)
    assert [b.y for b in bags] == [0, 0, 0, 1] * 5
    for bag in bags:
        share = bag.y_inst.double().mean()
        assert share == 0 if bag.y == 0 else 0.09 <= share <= 0.21
        assert bag.graph.isolated_share == 0


def test_patches_lie_on_a_lattice_of_half_micron_pixels_without_doubles():
    for bag in synthetic_slides(5, dim=4):
        cells = bag.coords - bag.coords.min(0).values
        assert (cells % 512 == 0).all()
        assert len(torch.unique(cells, dim=0)) == bag.n
        assert (bag.frame.patch, bag.frame.spacing, bag.frame.unit) == ((512, 512), (0.5, 0.5), "um")


@pytest.mark.parametrize("seed", range(10))
def test_tissue_is_one_or_two_pieces_of_the_exact_size_and_lesions_are_connected(seed):
    rng = np.random.default_rng(seed)
    mask = _tissue(rng, 300)
    sick = _blobs(rng, mask, 30)
    assert mask.sum() == 300
    assert label(mask, TOUCHING)[1] in (1, 2)
    assert 20 <= sick.sum() <= 30
    assert not (sick & ~mask).any()
    assert label(sick, TOUCHING)[1] in (1, 2)


def test_distractors_stand_alone():
    rng = np.random.default_rng(0)
    mask = np.ones((20, 20), dtype=bool)
    sick = np.zeros_like(mask)
    sick[5:8, 5:8] = True
    alone = _isolated_cells(rng, mask, sick, 12)
    assert alone.sum() == 12
    assert label(alone, TOUCHING)[1] == 12
    assert label(alone | sick, TOUCHING)[1] == 13
    most = _isolated_cells(rng, mask, sick, mask.size)
    assert label(most | sick, TOUCHING)[1] == most.sum() + 1


def test_a_lesion_of_a_scan_is_one_run_of_slices():
    for bag in synthetic_scans(12, dim=4):
        runs = (torch.diff(bag.y_inst, prepend=torch.zeros(1, dtype=torch.long)) == 1).sum()
        assert runs == bag.y
        assert 24 <= bag.n <= 57
        assert bag.graph.is_chain
        assert bag.frame.unit == "mm"


def test_the_true_direction_finds_lesions_and_no_lesion_means_no_signal():
    def auroc(contrast):
        bags = synthetic_slides(30, seed=2, contrast=contrast, distractors=0)
        scores = torch.cat([b.x.double() for b in bags]).numpy() @ _encoder(64)[1]
        return roc_auc_score(torch.cat([b.y_inst for b in bags]), scores)

    assert abs(auroc(0.0) - 0.5) < 0.06
    assert 0.9 < auroc(1.0) < 0.999


def test_a_written_set_reads_back_with_labels_and_patients_of_two_bags(tmp_path):
    bags = synthetic_slides(8, size=(20, 60), dim=8) + synthetic_scans(2, dim=8)
    manifest = Manifest.read(write_synthetic(tmp_path, bags, dtype="float32"))
    manifest.check()
    for bag in bags:
        back = manifest.bag(bag.id)
        assert equal_bags(back, bag)
        assert back.frame == bag.frame
        assert torch.equal(back.graph.dense(), bag.graph.dense())
    assert sorted(map(list(manifest.groups.values()).count, set(manifest.groups.values()))) == [1] * 6 + [2] * 2
    assert read_provenance(manifest.path_of("scan_0001"))["encoder"] == "synthetic-scan-8"


def test_senseless_requests_are_refused():
    for options in ({"size": (5, 2)}, {"lesion": (0, 0.5)}, {"positive": 2}, {"distractors": 0.5}):
        with pytest.raises(ConfigError):
            synthetic_slides(2, **options)
    with pytest.raises(ConfigError):
        synthetic_slides(0)

"""Tables to bags: manifest, splits, loading, and synthetic sets with known truth."""

from smmil.data.loader import BagDataset, batches, epoch_order
from smmil.data.manifest import Manifest
from smmil.data.splits import Split, load_splits, make_splits, refuse_leaks, save_splits
from smmil.data.synthetic import synthetic_scans, synthetic_slides, write_synthetic

__all__ = [
    "BagDataset",
    "Manifest",
    "Split",
    "batches",
    "epoch_order",
    "load_splits",
    "make_splits",
    "refuse_leaks",
    "save_splits",
    "synthetic_scans",
    "synthetic_slides",
    "write_synthetic",
]

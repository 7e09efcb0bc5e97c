"""Manifests, splits and loading: tables to batches of bags."""

from smmil.data.loader import BagDataset, balanced_order, batches, epoch_order
from smmil.data.manifest import Manifest
from smmil.data.splits import Split, load_splits, make_splits, refuse_leaks, save_splits

__all__ = ["BagDataset", "Manifest", "Split", "balanced_order", "batches", "epoch_order"]
__all__ += ["load_splits", "make_splits", "refuse_leaks", "save_splits"]

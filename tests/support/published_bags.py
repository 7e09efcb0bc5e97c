"""Folders as the paper's group publishes its bags, with tiny features: slides on a lattice and scans."""

from pathlib import Path

import numpy as np

SETS = {"Camelyon16_MIL": (270, 129), "PANDA_MIL": (8822, 1794), "RSNA_ICH_MIL": (1000, 150)}


def published_bags(root: Path, name: str, counts: tuple[int, int], encoders=("resnet18",), *, dim=4, size=(6, 14)):
    """Bags of a published set: features of every encoder, labels, instance labels, coordinates and splits.csv."""
    rng = np.random.default_rng(0)
    scans = name.startswith("RSNA")
    below = root if scans else root / "patches_512"
    truth = below / ("slice_labels" if scans else "patch_labels")
    folders = [below / "features" / f"features_{encoder}" for encoder in encoders]
    for folder in (*folders, below / "labels", truth, *([] if scans else [below / "coords"])):
        folder.mkdir(parents=True)
    lines = ["bag_name,split"]
    for number in range(sum(counts)):
        id_, part = f"bag_{number:05d}", "train" if number < counts[0] else "test"
        n, y = int(rng.integers(*size)), number % 2
        y_inst = np.zeros(n, np.int64)
        y_inst[: 2 * y] = 1
        for folder in folders:
            np.save(folder / f"{id_}.npy", (rng.standard_normal((n, dim)) + y_inst[:, None]).astype(np.float32))
        np.save(below / "labels" / f"{id_}.npy", np.array([y]))
        np.save(truth / f"{id_}.npy", y_inst)
        if not scans:
            np.save(below / "coords" / f"{id_}.npy", np.stack([np.arange(n) % 4, np.arange(n) // 4], 1) * 512)
        lines.append(f"{id_},{part}")
    (root / "splits.csv").write_text("\n".join(lines) + "\n")
    return root

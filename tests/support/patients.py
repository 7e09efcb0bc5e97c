"""Studies of patients with several slides, on disk."""

from dataclasses import replace

import numpy as np
import pandas as pd
import torch

from smmil.formats import write_bag
from smmil.synthetic import synthetic_slides


def write_patients(folder, n=20, *, seed=0, slides=(1, 3), dim=6, noise=False):
    """Manifest of n patients with some slides each, their age and sex; of every second one the first slide is positive.

    noise  features say nothing and the label is age > 60: what only the covariate can tell
    """
    rng = np.random.default_rng(seed)
    counts = rng.integers(slides[0], slides[1] + 1, n)
    found = synthetic_slides(4 * int(counts.sum()), seed=seed, size=(12, 24), dim=dim)
    pools = {y: [bag for bag in found if bag.y == y] for y in (0, 1)}
    (folder / "bags").mkdir(parents=True, exist_ok=True)
    rows, at = [], 0
    for patient, count in enumerate(counts):
        age = float(rng.integers(30, 90)) + 0.5
        for slide in range(count):
            bag, id_ = pools[patient % 2 if slide == 0 else 0].pop(), f"c{(at * 7) % 97:02d}_{at}"
            y = int(age > 60) if noise else bag.y
            if noise:
                bag = replace(bag, x=torch.from_numpy(rng.standard_normal((bag.n, dim))).float(), y_inst=None)
            write_bag(folder / "bags" / f"{id_}.h5", replace(bag, id=id_, y=None))
            facts = {"id": id_, "path": f"bags/{id_}.h5", "label": y, "group": f"Name {patient}"}
            rows.append({**facts, "age": age, "sex": "FM"[patient % 2], "slide": slide})
            at += 1
    table = pd.DataFrame(rows).sample(frac=1, random_state=seed)
    table.to_csv(folder / "manifest.csv", index=False)
    return folder / "manifest.csv"

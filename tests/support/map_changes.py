"""Random changes of a feature map, made on the dense map itself."""

import numpy as np
import torch


def literal_changes(image, c):
    """The same changes of a feature map (side, side, channels), in numpy."""
    side = len(image)
    image = image[:, ::-1] if c.mirror else image
    image = image[::-1] if c.flip else image
    if c.zoom is not None:
        planes = torch.from_numpy(image.copy()).permute(2, 0, 1)[None]
        image = torch.nn.functional.interpolate(planes, size=c.zoom)[0].permute(1, 2, 0).numpy()
        if c.zoom > side:
            image = image[c.corner[0] :, c.corner[1] :][:side, :side]
        else:
            before = (side - c.zoom) // 2
            rim = (before, side - c.zoom - before)
            image = np.pad(image, (rim, rim, (0, 0)))
    if c.cut is not None:
        image, m = image.copy(), side // 8
        grey = image.mean()
        for i in range(c.cut[0], c.cut[0] + m):
            for j in range(c.cut[1], c.cut[1] + m):
                if i >= 0 and j >= 0:
                    image[i, j] = grey
    return np.rot90(image, c.turns)

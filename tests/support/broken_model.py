"""A model with a bug, for the test of what happens then."""

from torch import nn


class Broken(nn.Module):
    def __init__(self, in_dim, n_classes=1):
        super().__init__()
        self.layer = nn.Linear(in_dim, n_classes)

    def forward(self, batch):
        return 1 / 0


class Picky(nn.Module):
    """Takes features of its own width only."""

    def __init__(self, in_dim, n_classes=1, width=3):
        super().__init__()
        if in_dim != 1024:
            raise ValueError("made for features of width 1024")


class NoRoom(Broken):
    """Stands for a disk that is full."""

    def forward(self, batch):
        raise OSError(28, "No space left on device", "somewhere")

"""A model with a bug, for the test of what happens then."""

from torch import nn


class Broken(nn.Module):
    def __init__(self, in_dim, n_classes=1):
        super().__init__()
        self.layer = nn.Linear(in_dim, n_classes)

    def forward(self, batch):
        return 1 / 0

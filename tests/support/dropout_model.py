"""A model of somebody else's, with dropout in training and spectral norm's random buffers."""

from torch import nn

from smmil.models import Output
from smmil.nn import SmAttentionPool


class DropoutMIL(nn.Module):
    """Attention pooling behind dropout."""

    def __init__(self, in_dim, n_classes=1, *, dim=8):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(in_dim, dim), nn.ReLU(), nn.Dropout(0.3))
        self.pool = SmAttentionPool(dim, 4)
        self.head = nn.Sequential(nn.Dropout(0.3), nn.Linear(dim, n_classes))

    def forward(self, batch):
        z, scores = self.pool(self.embed(batch.x), batch.offsets, batch.need("graph"))
        return Output(self.head(z), scores)

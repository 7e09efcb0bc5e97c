"""Laws that several models obey, stated once."""

import torch

from smmil.bag import BagBatch
from support.bags import grid_bag, reordered, without_edges


def assert_blind_to_order_and_neighbours(model, loss: str) -> None:
    """Logits, scores and the model's own loss are the same for reordered instances and without the graph."""
    bag = grid_bag(40, dtype=torch.float64)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    plain = model(BagBatch.pack([bag]))
    for other, back in ((reordered(bag, order), order), (without_edges(bag), slice(None))):
        out = model(BagBatch.pack([other]))
        assert torch.allclose(out.logits, plain.logits, atol=1e-12)
        assert torch.allclose(out.scores, plain.scores[back], atol=1e-12)
        assert torch.allclose(out.losses[loss], plain.losses[loss], atol=1e-12)

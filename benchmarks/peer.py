"""torchmil, called as its documentation says, with the same widths as ours."""

import numpy as np
import torch
from torch import nn

from smmil.bag import Bag
from smmil.encoders.networks import _prepare_torchvision

_prepare_torchvision("torchmil")  # its torchmetrics imports it, which fails beside a torch without CUDA


def adjacency(bag: Bag, dense: bool = False) -> torch.Tensor:
    """Its normalised adjacency (1, n, n) in the layout its data sets hand to the models (sparse COO)."""
    index, weight = bag.graph.edges().numpy(), np.ones(bag.graph.indices.numel())
    from torchmil.utils.graph_utils import normalize_adj

    weight = normalize_adj(index, weight, n_nodes=bag.n)
    matrix = torch.sparse_coo_tensor(
        torch.from_numpy(index), torch.from_numpy(weight).float(), (bag.n, bag.n), check_invariants=False
    )
    return matrix.to_dense()[None] if dense else matrix.coalesce().unsqueeze(0)


def build_graph(coords: np.ndarray, step: int):
    """Its way from coordinates to a normalised adjacency: cells, KD-tree, Python loop."""
    from torchmil.utils.graph_utils import build_adj, normalize_adj

    cells = ((coords - coords.min(0)) / step).astype(int)
    index, weight = build_adj(cells, None, dist_thr=np.sqrt(2.0))
    return index, normalize_adj(index, weight, n_nodes=len(coords))


def sm_abmil(width: int) -> nn.Module:
    from torchmil.models import SmABMIL

    embed = nn.Sequential(nn.Linear(width, 512), nn.ReLU())
    return SmABMIL((width,), att_dim=100, att_act="tanh", spectral_norm=True, feat_ext=embed)


def abmil(width: int) -> nn.Module:
    from torchmil.models import ABMIL

    embed = nn.Sequential(nn.Linear(width, 512), nn.ReLU())
    return ABMIL((width,), att_dim=100, att_act="tanh", feat_ext=embed)


def sm_pool() -> nn.Module:
    from torchmil.nn.attention import SmAttentionPool

    return SmAttentionPool(512, 100, act="tanh", spectral_norm=True)


def exact_sm() -> nn.Module:
    from torchmil.nn import Sm

    return Sm(alpha=0.5, mode="exact")


def padded(bags: list[Bag]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A batch the way it pads: features, one sparse (b, n_max, n_max) adjacency, mask."""
    longest = max(b.n for b in bags)
    x = torch.zeros(len(bags), longest, bags[0].x.shape[1])
    mask = torch.zeros(len(bags), longest)
    index, weight = [], []
    for i, bag in enumerate(bags):
        x[i, : bag.n], mask[i, : bag.n] = bag.x, 1
        one = adjacency(bag)[0].coalesce()
        index.append(torch.cat([torch.full((1, one._nnz()), i), one.indices()]))
        weight.append(one.values())
    shape = (len(bags), longest, longest)
    return (
        x,
        torch.sparse_coo_tensor(torch.cat(index, 1), torch.cat(weight), shape, check_invariants=False).coalesce(),
        mask,
    )

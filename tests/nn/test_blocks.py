import pytest
import torch
from bags import STEP, grid_coords

from smmil.graph import grid_graph
from smmil.nn import blocks, sm, sm_exact


@pytest.mark.parametrize("columns", [16, 17, 40])
@pytest.mark.parametrize("operator", [sm, sm_exact])
def test_columns_in_blocks_give_what_all_at_once_gives(monkeypatch, columns, operator):
    p = grid_graph(grid_coords(50), STEP).normalized()
    u = torch.randn(50, columns, dtype=torch.float64, requires_grad=True)
    alpha = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)
    whole = operator(u, p, alpha)
    expected = torch.autograd.grad(whole.sin().sum(), (u, alpha))
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1)
    parts = operator(u, p, alpha)
    found = torch.autograd.grad(parts.sin().sum(), (u, alpha))
    assert torch.allclose(whole, parts, rtol=1e-13, atol=1e-13)
    assert all(torch.allclose(a, b, rtol=1e-12) for a, b in zip(found, expected, strict=True))

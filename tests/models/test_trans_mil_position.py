"""The positional encoding of TransMIL against loops over taps."""

import itertools

import pytest
import torch

from smmil.errors import ConfigError
from smmil.models.trans_mil import _PPEG

DIM = 3


def make(form, seed=0):
    torch.manual_seed(seed)
    return _PPEG(DIM, form=form).double()


def rows(n, seed=0):
    return torch.randn(n, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def literal_fold(ppeg, x):
    """Cell by cell and tap by tap on the s × s field of x, line by line."""
    side = round(len(x) ** 0.5)
    out = x.clone()
    for conv, size in ((ppeg.wide, 7), (ppeg.middle, 5), (ppeg.narrow, 3)):
        out += conv.bias
        for r, c, i, j in itertools.product(range(side), range(side), range(size), range(size)):
            row, column = r + i - size // 2, c + j - size // 2
            if 0 <= row < side and 0 <= column < side:
                out[r * side + c] += conv.weight[:, 0, i, j] * x[row * side + column]
    return out


def literal_chain(ppeg, x):
    out = x.clone()
    for conv, size in ((ppeg.wide, 7), (ppeg.middle, 5), (ppeg.narrow, 3)):
        out += conv.bias
        for i, tap in itertools.product(range(len(x)), range(size)):
            if 0 <= i + tap - size // 2 < len(x):
                out[i] += conv.weight[:, 0, tap] * x[i + tap - size // 2]
    return out


@pytest.mark.parametrize(
    ("form", "literal", "sizes"), [("fold", literal_fold, (1, 4, 9, 81)), ("chain", literal_chain, (1, 2, 5, 30))]
)
def test_ppeg_is_its_definition_and_class_tokens_pass(form, literal, sizes):
    ppeg = make(form)
    offsets = torch.tensor([0, *itertools.accumulate(n + 1 for n in sizes)])
    x = rows(int(offsets[-1]))
    with torch.no_grad():
        ours = ppeg(x, offsets)
        for a, b in itertools.pairwise(offsets):
            assert torch.equal(ours[a], x[a])
            assert torch.allclose(ours[a + 1 : b], literal(ppeg, x[a + 1 : b]), atol=1e-12)


@pytest.mark.parametrize("form", ["fold", "chain"])
def test_without_its_convolutions_ppeg_is_the_identity(form):
    ppeg, x = make(form), rows(17)
    for p in ppeg.parameters():
        torch.nn.init.zeros_(p)
    assert torch.equal(ppeg(x, torch.tensor([0, 17])), x)


def test_the_chain_knows_nothing_of_the_fold():
    """A change at one end of a line of 49 moves its four neighbours in the chain, a square of 4 × 4 in the fold."""
    for form, touched in (("chain", {1, 2, 3, 4}), ("fold", {1 + 7 * r + c for r in range(4) for c in range(4)})):
        ppeg, x = make(form), rows(50)
        other = x.clone()
        other[1] += 1
        moved = (ppeg(x, torch.tensor([0, 50])) - ppeg(other, torch.tensor([0, 50]))).abs().amax(1) > 1e-12
        assert set(moved.nonzero()[:, 0].tolist()) == touched


def test_other_forms_are_refused():
    with pytest.raises(ConfigError, match="did you mean chain"):
        _PPEG(4, form="chains")
